"""`python -m mpi_rollout`."""

import sys

from mpi_rollout.cli import main
from mpi_rollout.exchange.mpi import finalize
from mpi_rollout.process.console import divert_stdout

if __name__ == "__main__":
    code = main()
    if "--json" in sys.argv:
        divert_stdout()  # What envs print when they end is no part of it.
    finalize()  # All ranks are here; what an env does at the interpreter's end is of no concern to the others.
    sys.exit(code)
