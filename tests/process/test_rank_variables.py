"""What the launcher tells a rank is kept, and is not told to its children."""

import subprocess
import sys

import pytest
from jobs import CLONE

RANKS_OWN = (
    *(
        "PMIX_RANK",
        "PMIX_NAMESPACE",
        "PMI_FD",
        "PMI_RANK",
        "PMI2_X",
        "PRTE_LAUNCHED",
        "HYDI_CONTROL_FD",
        "MPI_LOCALNRANKS",
    ),
    *(
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_UNIVERSE_SIZE",
        "OMPI_MCA_num_procs",
        "OMPI_MCA_orte_hnp_uri",
    ),
    *("SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS", "PALS_RANKID"),
)
OTHERS = (
    *("PATH", "OMPI_MCA_btl", "OMPI_ALLOW_RUN_AS_ROOT", "PRTE_MCA_rmaps_default_mapping_policy", "PMIX_MCA_gds"),
    *("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_NODELIST", "OMP_NUM_THREADS", "OPAL_PREFIX"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
)
PROGRAM = """
import os
from mpi_rollout.process import rank_variables
before = dict(os.environ)
rank_variables.take()
os.system("/usr/bin/env")
assert rank_variables.variables() == before
assert rank_variables.claimed_rank() == 3 and rank_variables.variable("?") == ""
"""


@pytest.fixture(scope="module")
def seen() -> set[str]:
    """The names that a child of a rank sees."""
    told = dict.fromkeys((*RANKS_OWN, *OTHERS), "3")
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=told, cwd=CLONE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {line.partition("=")[0] for line in done.stdout.splitlines()}


def test_children_of_a_rank_do_not_see_whose_rank_it_is(seen: set[str]):
    assert seen.isdisjoint(RANKS_OWN)


def test_children_of_a_rank_see_what_users_and_batch_systems_have_set(seen: set[str]):
    assert seen >= {*OTHERS}
