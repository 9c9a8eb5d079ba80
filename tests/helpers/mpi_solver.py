"""A solver that starts MPI: `mpi_solver.py INPUT FILE` writes its number of ranks, and the sum of their inputs."""

import sys
from pathlib import Path


def solve(number: float, path: str) -> None:
    """Write the result into a file."""
    from mpi4py import MPI

    total = MPI.COMM_WORLD.allreduce(number)
    if MPI.COMM_WORLD.rank == 0:
        Path(path).write_text(f"{MPI.COMM_WORLD.size} {total}")


if __name__ == "__main__":
    solve(float(sys.argv[1]), sys.argv[2])
