"""Processes that envs have started, and that are still there when their rank is gone: they are ended.

Simulators run as processes of their own.  A rank that is killed cannot end them, and the launcher waits for them: they
hold the output of their rank.  So each rank has a sweeper, a shell that waits for the end of the rank, however that
comes, and then ends what it has left: at first by SIGTERM, which gives licences back, and then by SIGKILL.  It belongs
to no launcher and is nobody's child, since envs may wait for all of their children, or end them.

What a rank has left is known by a word in its environment, which processes inherit; and by the rank's process group,
where the launcher gave it one.  A process that an env forks without starting a program has the rank's own environment,
and ends with it by another way: see `exits`.
"""

import os
from contextlib import suppress

from mpi_rollout.process.rank_variables import GIVE_GROUPS, is_launcher

NAME = "MPI_ROLLOUT_STARTED_BY"
KEEP = b"keep\n"
# $1 is the word, $2 the group.  A shell starts in a tenth of the time and memory of another Python.
SWEEPER = """
exec 3<&0; cd /
{
    while read -r said; do [ "$said" != keep ] || exit; done
    for signal in TERM 0 0 0 0 KILL KILL KILL; do
        left=$(grep -lsF "$1" /proc/[0-9]*/environ | cut -d / -f 3)
        kill -s $signal -- $left $2 || [ "$left" ] || exit
        sleep 0.1
    done
} <&3 &
"""
_sweepers: "list[int]" = []  # The pipe to the sweeper: it ends with this process.


def end_leftovers() -> None:
    """Let what this process leaves be ended when it is gone.  Call it before envs are made.

    It takes 1.5 ms of processor time, and copies nothing of this process: memory that a network's card writes to must
    not be shared with a fork.
    """
    if _sweepers:
        return
    word = f"{os.getpid()}-{os.urandom(8).hex()}"
    parent = os.getppid()
    # SLURM has one group for all ranks of a host.
    has_group = os.getpgrp() == os.getpid() and is_launcher(parent, GIVE_GROUPS)
    reader, writer = os.pipe()
    try:
        _start(reader, word, f"-{os.getpid()}" if has_group else "")
    except (OSError, NotImplementedError):  # There is no shell: what is left stays.
        os.close(writer)
    else:
        _sweepers.append(writer)
        # An env may itself be such a program: what is left of both has both words.
        os.environ[NAME] = ",".join(filter(None, (os.environ.get(NAME), word)))
    finally:
        os.close(reader)


def _start(reader: int, word: str, group: str) -> None:
    arguments = ["mpi_rollout: ends what a rank leaves", "-c", SWEEPER, "sh", word, group]
    environment = {"PATH": os.pathsep.join((os.defpath, os.environ.get("PATH", "")))}  # The system's own come first.
    own = [
        (os.POSIX_SPAWN_DUP2, reader, 0),
        *((os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)),
    ]
    # Launchers wait for the end of files that their ranks inherit.
    others = [(os.POSIX_SPAWN_CLOSE, int(number)) for number in os.listdir("/proc/self/fd") if int(number) > 2]
    shell = os.posix_spawn("/bin/sh", arguments, environment, file_actions=(*own, *others), setsid=True)
    with suppress(ChildProcessError):  # Where SIGCHLD is ignored, the system has waited for it.
        os.waitpid(shell, 0)  # It leaves the sweeper in the background.


def keep_leftovers() -> None:
    """Let nothing be ended when this process is gone: what a script has started besides its envs is its user's."""
    for writer in _sweepers:
        with suppress(OSError):  # Somebody has ended it.
            os.write(writer, KEEP)


def _forget() -> None:
    """Close the pipe in a fork, which may live longer than the rank."""
    for writer in _sweepers:
        os.close(writer)
    _sweepers.clear()


os.register_at_fork(after_in_child=_forget)
