"""`python -m mpi_rollout`."""

import sys

from mpi_rollout.cli import main

if __name__ == "__main__":
    sys.exit(main())
