"""The program, which the ranks that are named refuse to start: `python refusing_ranks.py RANK,... ARGUMENTS...`."""

import sys

from mpi_rollout import __main__ as program

refusing = [int(word) for word in sys.argv.pop(1).split(",")]
if program.beginning.claimed_rank() in refusing:
    program.beginning.PACKAGES = ("nosuchpackage",)
sys.exit(program.start())
