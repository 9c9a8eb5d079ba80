"""A trainer's envs that are MPI programs, on several ranks each: they are what they are on one rank."""

import re
from functools import partial

import h5py
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from jobs import Job
from mpi_envs import Cells, OneRank
from oracle import differences, record

WAYS = [
    {"ranks_per_env": 1},
    {"ranks_per_env": 2},
    {"ranks_per_env": 4},
    {"ranks_per_env": 3, "root_envs": 0},
    {"ranks_per_env": 2, "num_groups": 2},
    {"ranks_per_env": 2, "batch_size": 1},
]


@pytest.mark.mpi(4)
def test_a_trainer_gets_what_gymnasium_gives_for_envs_of_one_rank(job: Job, num_ranks: int):
    cases = [(mode, way) for mode in AutoresetMode for way in (WAYS if mode == AutoresetMode.SAME_STEP else WAYS[1:3])]
    options = [("mpi_envs:Cells", 5, 25, {"autoreset_mode": mode.value, **way}) for mode, way in cases]
    for (mode, way), found in zip(cases, job.train(num_ranks, "recordings", options), strict=True):
        expected = record(SyncVectorEnv([partial(Cells, OneRank())] * 5, autoreset_mode=mode), 25)
        assert differences(found, expected) == [], (mode, way)


@pytest.mark.any_mpi
@pytest.mark.mpi(4)
def test_calls_by_name_reach_all_ranks_of_an_env(job: Job, num_ranks: int):
    of_one, of_two = job.train(num_ranks, "calls_of_all_ranks")
    assert differences(of_two, of_one) == [] and of_two[1] == (1, 1, 1, 1)
    with h5py.File(job.folder / "2.h5") as file:
        assert file["throughput/ranks"][...][["rank", "num_envs"]].tolist() == [(0, 2), (2, 2)]


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_the_failure_of_one_rank_is_its_exception_with_the_rank_and_a_reset_begins_anew(job: Job, num_ranks: int):
    before, told, after, again = job.train(num_ranks, "past_failures_of_a_rank")
    place = r"rank 0 \(\S+, envs 0 to 2\), step \d: env 0, step 1 of its episode: ValueError: rank 1 \("
    assert differences(after, before) == [] and re.match(place, told) and re.match(place, again)
