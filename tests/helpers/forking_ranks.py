"""Started by `Job`: forks its processes when all is imported, which takes a start less than half the time.

`rank_of_fork.py`, which `mpirun` or a test starts, asks here for the child that it stands for.  That is in every other
way a process of its own: it starts MPI itself, and ends as an interpreter would.  But it does not free all objects one
by one: that takes longer than the fork, since it would get its own copy of all memory that it shares with its parent.
This process ends with its input.
"""

import atexit
import ctypes
import gc
import importlib
import marshal
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from mpi_rollout.__main__ import start
from mpi_rollout.storage import sandbox

# But none of the tests' own modules: some find out at once which rank they are on.
for name in (
    "mpi_rollout.cli",
    "mpi_rollout.collect.run",
    "mpi_rollout.collect.root",
    "mpi_rollout.storage.output",
    "mpi_rollout.storage.writer",
    "mpi_rollout.train.vector_env",
    "mpi_rollout.commands.checking",
    "mpi_rollout.commands.inspection",
    "mpi_rollout.studies.scaling",
    "gymnasium.envs.classic_control",
    "pytest",
    *sys.argv[2:],
):
    importlib.import_module(name)

MAPPED = "from mpi4py import rc; rc.initialize = False; import mpi4py.MPI; print(open('/proc/self/maps').read())"


def share_with_children() -> None:
    """Prepare what is imported for forks, which then take half the time that they would take else.

    The MPI library is mapped and relocated: children still import mpi4py and start MPI themselves.  What is there they
    do not look at for garbage; the program's own `gc.unfreeze` would have them, and copy all of it.
    """
    found = subprocess.run([sys.executable, "-c", MAPPED], capture_output=True, text=True)
    for library in set(re.findall(r"/.*/libmpi\.so.*", found.stdout)):
        ctypes.CDLL(library)
    gc.freeze()
    gc.unfreeze = lambda: None


def fork_sandboxes() -> None:
    """Let the process that reads a file for a child be a fork, too: another interpreter takes half a second.

    Its parent is not the one that asks for it.  It ends with that all the same: see `watch`.
    """
    proxy = [sys.executable, "-I", "-S", str(Path(__file__).with_name("rank_of_fork.py")), sys.argv[1]]
    popen = lambda command, **options: subprocess.Popen([*proxy, *command[1:]], **options)  # noqa: E731
    sandbox.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": popen})
    sandbox.end_with = lambda parent: None


def end_mpi() -> None:
    """Do what mpi4py does at the interpreter's end."""
    from mpi4py import MPI, rc

    if MPI.Is_initialized() and not MPI.Is_finalized() and rc.finalize is not False:
        MPI.Finalize()


def exit_code(run: Callable[[], None]) -> int:
    """Run a program in a child; return the code with which an interpreter would end, after what it does then."""
    code: object = 0
    try:
        run()
    except SystemExit as error:
        code = error.code
    except BaseException:
        code = 1
        sys.excepthook(*sys.exc_info())
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
    threading._shutdown()
    atexit._run_exitfuncs()
    if "mpi4py.MPI" in sys.modules:
        end_mpi()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # Some programs leave something else there.
            stream.flush()
    return code if isinstance(code, int) else code is not None


def receive(connection: socket.socket) -> tuple[list[str], str, dict[bytes, bytes], list[int]]:
    """Take what a rank is to be: its arguments, folder, variables and cores; its files become those of this process."""
    size, descriptors, *_ = socket.recv_fds(connection, 4, 3)
    for wanted, given in enumerate(descriptors):
        os.dup2(given, wanted)
        os.close(given)
    left = int.from_bytes(size, sys.byteorder)
    parts = []
    while left:
        parts.append(connection.recv(left))
        left -= len(parts[-1])
    return marshal.loads(b"".join(parts))


def become(connection: socket.socket) -> None:
    """Make this child the process that was asked for, and run its program."""
    arguments, folder, variables, cores = receive(connection)
    os.setpgid(0, 0)  # Some programs send signals to their group.
    os.environ.clear()
    os.environb.update(variables)
    os.sched_setaffinity(0, cores)
    os.chdir(folder)
    sys.executable = os.environ.pop("STARTED_AS", sys.executable)
    connection.sendall(os.getpid().to_bytes(4, "little"))
    if arguments[0] == "-c":
        sys.argv[1:] = arguments[2:]
        exec(arguments[1])
        return
    if arguments[0] != "-m":
        sys.path[0], sys.argv[:] = os.path.dirname(arguments[0]), arguments
        runpy.run_path(arguments[0], run_name="__main__")
        return
    sys.path[0], sys.argv[1:] = folder, arguments[2:]
    if arguments[1] == "mpi_rollout":
        sys.exit(start())
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


def watch(connection: socket.socket, child: int) -> None:
    """Tell a rank how the child has ended that is it, or kill that when the rank was killed."""
    end = os.pidfd_open(child)
    poll = select.poll()
    poll.register(connection, 0)  # Only its end.
    poll.register(end, select.POLLIN)
    if any(descriptor == connection.fileno() for descriptor, _ in poll.poll()):
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(BrokenPipeError):
        connection.sendall(code.to_bytes(4, "little", signed=True))


def serve(connection: socket.socket) -> None:
    """Be what has asked, in a child."""
    child = os.fork()
    if child == 0:
        os._exit(exit_code(lambda: become(connection)))
    watch(connection, child)
    os._exit(0)


share_with_children()
fork_sandboxes()
# A sandbox starts its child with signals blocked.  Where that child was the first fork, all ranks had them blocked.
signal.pthread_sigmask(signal.SIG_SETMASK, ())
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for those that fork.
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen(64)
print("ready", flush=True)
while sys.stdin not in (ready := select.select([listener, sys.stdin], [], [])[0]):
    connection, _ = listener.accept()
    if os.fork() == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listener.close()
        serve(connection)
    connection.close()
