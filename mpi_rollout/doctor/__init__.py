"""`doctor`: check what this machine's MPI, cores and file system will do to a run, where a run does not say it itself.

The root examines its host and prints each finding at once; then all ranks start MPI and exchange.  MPI_Init may end the
process, so it comes last, and not under a launcher of another MPI.  A check that does not end is the last one.
"""

import os

from mpi_rollout.config import RolloutConfig
from mpi_rollout.doctor.findings import Report
from mpi_rollout.doctor.host import examine_host
from mpi_rollout.doctor.ranks import examine_ranks
from mpi_rollout.exchange.world import ROOT, claimed_rank


def doctor(out: str | None, config: RolloutConfig | None, as_json: bool, timeout_s: float) -> int:
    """Examine this machine; the root prints.  Return the exit code.  **Collective**, if there is a world.

    `out` is the folder of the output, None for where `run` writes; `config` names the env to time, if there is one;
    `timeout_s` is how long each check may take.
    """
    is_root = claimed_rank() == ROOT
    report = Report(timeout_s, as_json, is_root)
    if is_root:
        examine_host(report, out or ("results" if os.path.isdir("results") else "."), config)
    examine_ranks(report, config)
    return report.end()
