"""The program, on ranks that come to its imports at different times: `python late_ranks.py SECONDS,... ARGUMENTS...`.

Rank k does so the k-th number of seconds after all ranks heed signals, which the files late-k show.
"""

import sys
import time
from pathlib import Path

from mpi_rollout import __main__ as program

DELAYS_S = [float(word) for word in sys.argv.pop(1).split(",")]
check_packages = program.beginning.check_packages


def check_late() -> None:
    rank = program.beginning.claimed_rank()
    Path(f"late-{rank}").touch()
    while not all(Path(f"late-{other}").exists() for other in range(len(DELAYS_S))):
        time.sleep(0.01)
    time.sleep(DELAYS_S[rank])
    check_packages()


program.beginning.check_packages = check_late
sys.exit(program.start())
