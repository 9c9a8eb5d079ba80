"""Started as a rank by `mpirun`: has `forking_ranks.py` at a socket fork a child that is the rank, and is its proxy.

It forwards signals to the child, and ends as the child ends.  Run with `-I -S`; it imports only what is part of the
interpreter, since it is there to start quickly.
"""

import marshal
import posix
import sys
from _signal import SIG_DFL, SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, signal
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket
from array import array

FORWARDED = (SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT)


def forward(number: int, _frame: object) -> None:
    """Send the child a signal that was meant for it."""
    try:  # noqa: SIM105, since to import contextlib takes longer than all the rest.
        posix.kill(child, number)
    except ProcessLookupError:
        pass  # It has ended, which this process is about to hear.


server = socket(AF_UNIX, SOCK_STREAM)
server.connect(sys.argv[1])
cores = sorted(posix.sched_getaffinity(0))
request = marshal.dumps((sys.argv[2:], posix.getcwd(), posix.environ, cores))
server.sendmsg([array("i", [len(request)])], [(SOL_SOCKET, SCM_RIGHTS, array("i", [0, 1, 2]))])
server.sendall(request)
child = int.from_bytes(server.recv(4), "little")
for number in FORWARDED:
    signal(number, forward)
code = int.from_bytes(server.recv(4), "little", signed=True)
if code < 0:
    if -code in FORWARDED:
        signal(-code, SIG_DFL)
    posix.kill(posix.getpid(), -code)
posix._exit(code)
