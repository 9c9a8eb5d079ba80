"""Run a training script on one rank as `python -m mpi4py` does: an exception on one rank ends all of them.

And so that a script can be told to stop before the job's time limit:

- SIGUSR1 does nothing on ranks other than 0, also before and after `connect` (launchers send it to all ranks).
- Exit code 75, "I have saved, start me again", reaches the batch script: mpi4py makes MPI_Abort of any code but 0, of
  which `srun --mpi=pmi2` makes 137.  All ranks leave with the code of rank 0, so MPI can end in good order.

In a heterogeneous job, where srun ends the ranks of one component when those of another end, rank 0 also writes how far
it is into the file that MPI_ROLLOUT_RANK_0 names: begun, or the exit code where that is 0 or 75.
"""

import atexit
import os
import signal
import sys
from pathlib import Path

from mpi4py.run import main

from mpi_rollout.errors import Interrupted
from mpi_rollout.exchange.job_end import finalize
from mpi_rollout.exchange.world import claimed_rank


def run() -> None:
    """Run the script and end as it does."""
    if claimed_rank() != 0:
        signal.signal(signal.SIGUSR1, lambda *_: None)  # Not SIG_IGN, which programs that an env starts would inherit.
        signal.siginterrupt(signal.SIGUSR1, False)
    tell("begun")
    to_do = []
    atexit.register(lambda: [each() for each in to_do])  # First registered, last called: others may use MPI.
    try:
        main()
        tell("0")
    except SystemExit as end:
        if not end.code:
            tell("0")
        elif end.code == Interrupted.exit_code:
            tell(str(end.code))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # By which srun ends the other ranks when the first has left.
            to_do.append(finalize)
        raise


def tell(what: str) -> None:
    """Write it where the batch script looks for it."""
    path = os.environ.get("MPI_ROLLOUT_RANK_0")
    if path and claimed_rank() == 0:
        Path(path).write_text(what + "\n")


if __name__ == "__main__":
    sys.exit(run())
