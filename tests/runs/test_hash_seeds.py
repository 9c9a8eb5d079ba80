"""Envs that draw in the order of a set: each run has the same seed of Python's hashes, or says that it has not."""

import json

import h5py
import pytest
from jobs import Job, assert_same_bytes, datasets

pytestmark = pytest.mark.full_start

RUN = ("--env-factory", "set_envs:Draws", "--num-envs", "3", "--progress", "none")
UNSET = {"PYTHONHASHSEED": ""}
VERIFY = ("verify", "run.h5", "--replay", "5", "--trust")
RECORD = """
import numpy as np
import mpi_rollout
from set_envs import Draws
with mpi_rollout.connect(Draws, 3, record="run.h5") as envs:
    if envs is not None:
        envs.reset(seed=0)
        for _ in range(8):
            envs.step(np.zeros(3, int))
"""


@pytest.mark.mpi
def test_the_data_are_the_same_bytes_on_any_number_of_ranks(job: Job):
    """Also in a run that is continued, whose envs take their last steps again."""
    alone = datasets(job.collect(None, *RUN, "--num-steps", "20", out="alone.h5", **UNSET))
    job.collect(2, *RUN, "--num-steps", "13", **UNSET)
    assert_same_bytes(datasets(job.collect(3, *RUN, "--num-steps", "20", **UNSET)), alone)
    with h5py.File(job.folder / "run.h5") as file:
        assert json.loads(file.attrs["versions"])["PYTHONHASHSEED"] == "0"
    assert job(None, *VERIFY, **UNSET).code == 0


def test_a_seed_of_the_user_stays_and_is_named_where_data_differ(job: Job):
    job.collect(None, *RUN, "--num-steps", "13", PYTHONHASHSEED="42")
    assert job(None, *VERIFY, PYTHONHASHSEED="42").code == 0
    other = job(None, *VERIFY, **UNSET)
    assert (
        other.code == 65 and "(PYTHONHASHSEED 42 then, 0 now" in other.err and "export PYTHONHASHSEED=42" in other.err
    )
    continued = job(None, *RUN, "--num-steps", "20", "--out", "run.h5", **UNSET)
    assert continued.code == 0 and "(PYTHONHASHSEED 42 then, 0 now" in continued.err


def test_a_random_seed_is_told_and_named_where_data_differ(job: Job):
    first = job(None, *RUN, "--num-steps", "13", "--out", "run.h5", PYTHONHASHSEED="random")
    assert first.code == 0 and "mpi_rollout: PYTHONHASHSEED is random" in first.err
    again = job(None, *VERIFY, PYTHONHASHSEED="random")
    assert again.code == 65 and "(PYTHONHASHSEED random then, random now" in again.err


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_ranks_with_different_seeds_are_refused(job: Job, num_ranks: int):
    script = "import os, sys\nrank = os.environ.get('OMPI_COMM_WORLD_RANK', os.environ.get('PMI_RANK'))\n"
    script += "os.environ['PYTHONHASHSEED'] = rank\n"
    script += f"os.execv(sys.executable, [sys.executable, '-m', 'mpi_rollout', *{RUN!r}, '--out', 'run.h5'])"
    result = job.script(num_ranks, script)
    assert result.code == 78 and "do not agree on PYTHONHASHSEED: rank 0 has 0, rank 1" in result.err, result.err


def test_a_script_that_sets_the_variable_too_late_has_a_random_seed(job: Job):
    recorded = job.script(None, f"import os\nos.environ['PYTHONHASHSEED'] = '7'\n{RECORD}", **UNSET)
    assert recorded.code == 0, recorded.err
    result = job(None, *VERIFY, "--env-factory", "set_envs:Draws", PYTHONHASHSEED="0")
    assert result.code == 65 and "collect or record with PYTHONHASHSEED=0" in result.err
