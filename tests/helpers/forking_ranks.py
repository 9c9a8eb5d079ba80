"""Started by `Job`: forks its processes when all is imported, which takes a start less than half the time.

`rank_of_fork.py`, which `mpirun` or a test starts, asks here for the child that it stands for.  That is in every other
way a process of its own: it starts MPI itself, and ends as `forked_process` says.  This process ends with its input.
"""

import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress

from forked_process import exit_code, share_with_children

from mpi_rollout.__main__ import start

for name in (
    "mpi_rollout.cli",
    "mpi_rollout.collect.run",
    "mpi_rollout.collect.root",
    "mpi_rollout.storage.output",
    "mpi_rollout.storage.writer",
    "mpi_rollout.train.vector_env",
    "gymnasium.envs.classic_control",
    "pytest",
    *sys.argv[2:],
):  # But none of the tests' own modules: some find out at once which rank they are on.
    importlib.import_module(name)


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
