"""The process that has a system's envs: started by `processes`, which sends it orders over a socket.

    python -m mpi_rollout.bench.compare.server SOCKET SYSTEM      SYSTEM as JSON, see `processes`

Orders and their answers: ("make", num_envs) ("made", None); ("turn", window_s) ("turned", Turn); ("close", None)
("closed", None); ("end", None) no answer.  The answer to whatever fails is ("failed", why), and the process ends.  Of
a job's ranks the root listens, and the others serve it inside `connect`.

Another Python may run this for a system that is not installed here; then it needs NumPy and any Gymnasium.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from mpi_rollout.bench.compare.setups import Setup, maker_of
from mpi_rollout.errors import words_of

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from mpi_rollout.bench.compare.turns import RunningSystem
    from mpi_rollout.bench.plan import Options


def main() -> int:
    """Serve until told to end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal's is for the comparison.
    path, system = sys.argv[1], json.loads(sys.argv[2])
    if system["num_ranks"]:
        return serve_on_ranks(path, system)
    connection = connect_to(path)
    try:
        serve(connection, system)
    except Exception as error:
        connection.send(("failed", one_line(error)))
        return 70
    return 0


@contextmanager
def nearby(path: Path) -> Iterator[str]:
    """Give a name for a socket that is short, however long the path: the system takes 107 bytes."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def connect_to(path: str) -> Connection:
    """Connect to the comparison."""
    there = socket.socket(socket.AF_UNIX)
    with nearby(Path(path)) as name:
        there.connect(name)
    return Connection(there.detach())


def one_line(error: BaseException) -> str:
    """Return an error's words in one line."""
    return words_of(error).splitlines()[0]


def serve(connection: Connection, system: "Options") -> None:
    """Make a system's envs in this process, as often as orders say."""
    make = maker_of(system["maker"])
    while num_envs := next_size(connection):
        made = make(Setup(system["env"], num_envs, system["num_cores"]))
        serve_turns(connection, made)
        made.close()
        connection.send(("closed", None))


def next_size(connection: Connection) -> int:
    """Wait for the order to make envs; return how many, or 0 for the end."""
    order, value = connection.recv()
    return value if order == "make" else 0


def serve_turns(connection: Connection | None, system: "RunningSystem") -> None:
    """Say that it is made; take turns until the order to close it.  Only the root of a job calls this."""
    assert connection is not None
    connection.send(("made", None))
    while True:
        order, value = connection.recv()
        if order != "turn":
            return
        connection.send(("turned", system.take_turn(value)))


def serve_on_ranks(path: str, system: "Options") -> int:
    """Do the same on all ranks of a job.

    **Collective.**
    """
    from mpi_rollout.exchange import job_end, world

    world.start_mpi_on_all_ranks(system["timeout_s"])
    comm = world.comm_world()
    world.take_names_off_shared_memory(comm)  # Jobs that fail or hang are killed.
    connection = connect_to(path) if comm.rank == world.ROOT else None
    try:
        while num_envs := comm.bcast(next_size(connection) if connection else None):
            serve_size = _serve_connected if system["maker"] else _serve_run
            serve_size(connection, comm, system, num_envs, Path(path).parent)
            if connection is not None:
                connection.send(("closed", None))
    except Exception as error:
        if connection is None:
            raise
        connection.send(("failed", one_line(error)))
        job_end.abort(comm, 70)
    return 0


def _serve_connected(
    connection: Connection | None, comm: "Intracomm", system: "Options", num_envs: int, _folder: Path
) -> None:
    from mpi_rollout.bench.compare.forms import connect_options
    from mpi_rollout.train.connect import connect

    options = dict(map(tuple, system["options"])) | connect_options(system["form"], system["env"])
    with connect(num_envs=num_envs, comm=comm, **options) as envs:
        if envs is not None:
            setup = Setup(system["env"], num_envs, system["num_cores"], envs, comm.size)
            made = maker_of(system["maker"])(setup)
            serve_turns(connection, made)
            made.close()


def _serve_run(
    connection: Connection | None, comm: "Intracomm", system: "Options", num_envs: int, folder: Path
) -> None:
    from mpi_rollout.bench.compare.runs import run_on_ranks

    run_on_ranks(comm, system, num_envs, folder, lambda run: serve_turns(connection, run))


if __name__ == "__main__":
    sys.exit(main())
