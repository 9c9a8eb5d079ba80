"""`python -m mpi_rollout`."""

import sys

from mpi_rollout.cli import main
from mpi_rollout.mpi import finalize

if __name__ == "__main__":
    code = main()
    finalize()  # All ranks are here; what an env does at the interpreter's end is of no concern to the others.
    sys.exit(code)
