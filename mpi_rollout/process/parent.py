"""A process that the kernel ends when the process that started it ends.

A rank whose launcher was killed must not live on.  No thread of Python can see to that: none runs while an env is in C
code that holds the interpreter's lock.
"""

import ctypes
import os
import signal
from contextlib import suppress

PR_SET_PDEATHSIG = 1  # linux/prctl.h
# What starts ranks on their host: of Open MPI, of MPICH and its relatives, of SLURM, of PALS.
# The kernel keeps 15 letters of a name.
LAUNCHERS = (
    *("prterun", "prted", "orterun", "orted", "mpirun", "mpiexec"),
    *("mpiexec.hydra", "hydra_pmi_proxy", "slurmstepd", "palsd"),
)


def end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends.

    Parameters
    ----------
    parent
        The process that was the parent; if it has ended already, this process ends now.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_launcher() -> None:
    """Have the kernel kill this process when its launcher ends.  To be called early: before envs are made.

    Only where the launcher itself is the parent.  A parent of another name may be a wrapper script, or a program that
    is to leave this one behind: when such a parent ends, that says nothing of the launcher.
    """
    parent = os.getppid()
    with suppress(OSError):
        with open(f"/proc/{parent}/comm") as file:
            name = file.read().strip()
        if name in LAUNCHERS:
            end_with(parent)
