"""`python -m mpi_rollout`, and the script `mpi-rollout`."""

import sys

from mpi_rollout.cli import main
from mpi_rollout.exchange.job_end import finalize
from mpi_rollout.process.console import divert_stdout


def start() -> int:
    """Run the command line as a program of its own; return its exit code."""
    code = main()
    if "--json" in sys.argv:
        divert_stdout()  # What envs print when they end is no part of it.
    finalize()  # All ranks are here; what an env does at the interpreter's end is of no concern to the others.
    return code


if __name__ == "__main__":
    sys.exit(start())
