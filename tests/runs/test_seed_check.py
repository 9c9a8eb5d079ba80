"""A run looks at its first env before it begins: whether the same seed gives the same data."""

import json

import h5py
import pytest
from jobs import Job, assert_same_bytes, datasets

from mpi_rollout.collect.run import looks_at_first
from mpi_rollout.config import RolloutConfig

pytestmark = pytest.mark.any_mpi

SIZE = ("--num-envs", "4", "--num-steps", "30")
UNSEEDED = ("--env-factory", "forgetful_envs:Unseeded", *SIZE)
COUNTING = ("--env-factory", "forgetful_envs:Counting", *SIZE)


def seed_check(path) -> str:
    with h5py.File(path) as file:
        return file.attrs["seed_check"]


def test_a_run_of_an_env_that_ignores_its_seed_says_so_in_one_line_and_in_its_file(job: Job):
    result = job(None, *UNSEEDED, "--out", "run.h5")
    [line] = [line for line in result.err.splitlines() if "does not repeat" in line]
    assert line.startswith("mpi_rollout: env 0 does not repeat its episodes: reset twice with seed ")
    assert "other observations of the reset: at [0] " in line and "seed every random generator of the env" in line
    assert seed_check(job.folder / "run.h5").startswith("reset twice with seed ")
    assert "its seeds     env 0 does not repeat its episodes: reset twice" in job(None, "inspect", "run.h5").out
    replayed = job(None, "verify", "run.h5", "--replay", "2", *UNSEEDED[:2])
    assert replayed.code == 65 and "the run saw at its start that env 0 does not repeat its episodes" in replayed.err
    assert job(None, "verify", "run.h5").code == 0


def test_a_run_has_the_same_bytes_with_the_look_and_without(job: Job):
    looked = job.collect(None, *COUNTING)
    without = job.collect(None, *COUNTING, "--no-seed-check", out="without.h5")
    assert_same_bytes(datasets(looked), datasets(without))
    assert seed_check(looked).endswith("at [0] 1.0, then 2.0") and seed_check(without) == ""


@pytest.mark.mpi(2)
def test_the_rank_that_has_env_0_looks_at_it_and_the_root_says_it(job: Job, num_ranks: int):
    options = *COUNTING, "--root-envs", "0", "--storage", "sharded", "--shards-per-node", "2"
    result = job(num_ranks, *options, "--out", "run.h5")
    assert result.code == 0 and result.err.count("does not repeat") == 1
    assert seed_check(job.folder / "run.h5").endswith("at [0] 1.0, then 2.0")
    assert json.loads(job(None, "inspect", "--json", "run.h5").out)["seed_check"].endswith("1.0, then 2.0")


@pytest.mark.parametrize(
    "options",
    [
        {"seed_check": False},
        {"trajectories": False},
        {"env_timeout_s": 5.0},
        {"ranks_per_env": 2},
        {"vectorization_mode": "envpool"},
    ],
)
def test_a_run_does_not_look_where_that_could_do_harm_or_nobody_would_read_it(options):
    assert looks_at_first(RolloutConfig(env="CartPole-v1"))
    assert not looks_at_first(RolloutConfig(env="CartPole-v1", **options))
