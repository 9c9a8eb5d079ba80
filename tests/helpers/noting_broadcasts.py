"""The program, with a note of what Bcast brings to each rank: `noted-RANK.bin` has the messages in their order."""

import sys
from pathlib import Path

from mpi_rollout.__main__ import start
from mpi_rollout.exchange.transports import CollectiveTransport


class NotingComm:
    """A communicator that keeps the bytes of its broadcasts."""

    def __init__(self, comm):
        self.comm, self.path = comm, Path(f"noted-{comm.rank}.bin")

    def Bcast(self, buffer, root):  # noqa: N802
        self.comm.Bcast(buffer, root)
        with self.path.open("ab") as file:
            file.write(buffer[0])

    def __getattr__(self, name):
        return getattr(self.comm, name)


class Noting(CollectiveTransport):
    def __init__(self, buffers):
        super().__init__(buffers._replace(comm=NotingComm(buffers.comm)))


if __name__ == "__main__":
    from mpi_rollout.exchange import exchanges

    exchanges.CollectiveTransport = Noting
    sys.exit(start())
