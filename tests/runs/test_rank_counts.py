"""Any rank count, same data: every dataset of a file is the same bytes on 1, 2, 3, ... ranks."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import Job, assert_same_bytes, datasets, once

RUNS = {
    "CartPole": ("--env", "CartPole-v1", "--num-envs", "7", "--num-steps", "150", "--seed", "3"),
    "Nested": ("--env-factory", "envs:Nested", "--num-envs", "7", "--num-steps", "80"),
    "Image": ("--env-factory", "envs:Image", "--num-envs", "5", "--num-steps", "30", "--seed", "1"),
    "policy that looks": (
        "--env", "CartPole-v1", "--num-envs", "8", "--num-steps", "400", "--policy", "policies:leaning",
    ),
    "many blocks": (
        "--env", "MountainCarContinuous-v0", "--env-kwargs", '{"max_episode_steps": 90}', "--num-envs", "6",
        "--num-steps", "5000",
    ),
}  # fmt: skip

# Under another MPI, tests/collect/test_collector.py compares the files of 1, 2 and 3 ranks in every way to exchange.
pytestmark = pytest.mark.any_mpi

FEW_ON_ROOT = {
    "dedicated root": (
        "--root-envs",
        "0",
    ),
    "one on the root": ("--root-envs", "1"),
    "one on the root, async": ("--root-envs", "1", "--batch-size", "1"),
}
OTHERS = {"few envs": ("--num-envs", "3"), "few steps": ("--num-steps", "20")}  # The last of an option counts.

Collected = Callable[[int | None], dict[tuple[str, str], Path]]


def variants(num_ranks: int | None) -> dict[str, tuple[str, ...]]:
    """What is collected on some ranks besides the runs as they are."""
    return {"": ()} | (FEW_ON_ROOT if num_ranks in (2, 4) else {}) | (OTHERS if num_ranks == 2 else {})


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """The files of all runs on some ranks, or without mpiexec; one job for all of them."""

    @once
    def of(num_ranks: int | None) -> dict[tuple[str, str], Path]:
        job, found = Job(tmp_path_factory.mktemp("ranks")), {}
        commands = []
        for name, arguments in RUNS.items():
            for variant, more in variants(num_ranks).items():
                found[name, variant] = job.folder / f"{len(found)}.h5"
                commands.append((*arguments, *more, "--out", found[name, variant].name))
        assert job.train(num_ranks, "runs", commands) == [0] * len(commands)
        return found

    return of


@pytest.mark.mpi(1, 2, 3, 5)
@pytest.mark.parametrize("name", RUNS)
def test_rank_count_does_not_change_the_data(collected: Collected, num_ranks: int, name: str):
    assert_same_bytes(datasets(collected(num_ranks)[name, ""]), datasets(collected(None)[name, ""]))


@pytest.mark.mpi(2, 4)
@pytest.mark.parametrize("variant", FEW_ON_ROOT)
@pytest.mark.parametrize("name", RUNS)
def test_the_share_of_the_root_does_not_change_the_data(collected: Collected, num_ranks: int, name: str, variant: str):
    assert_same_bytes(datasets(collected(num_ranks)[name, variant]), datasets(collected(None)[name, ""]))


@pytest.mark.parametrize("name", RUNS)
def test_more_envs_do_not_change_the_data_of_the_first_ones(collected: Collected, name: str):
    few, many = datasets(collected(2)[name, "few envs"]), datasets(collected(None)[name, ""])
    many["/episodes"] = many["/episodes"][many["/episodes"]["env_index"] < 3]
    for column in few.keys() - {"/episodes"}:
        many[column] = np.ascontiguousarray(many[column][:, :3])
    assert_same_bytes(few, many)


@pytest.mark.parametrize("name", RUNS)
def test_more_steps_do_not_change_the_first_ones(collected: Collected, name: str):
    few, many = datasets(collected(2)[name, "few steps"]), datasets(collected(None)[name, ""])
    assert len(few["rewards"]) == 20
    for column in few.keys() - {"/episodes"}:
        assert few[column].tobytes() == many[column][: len(few[column])].tobytes(), column


def test_another_seed_changes_the_data(job: Job):
    arguments = ("--env", "CartPole-v1", "--num-envs", "4", "--num-steps", "30")
    first, second = (datasets(job.collect(None, *arguments, "--seed", str(seed), out=f"{seed}.h5")) for seed in (0, 1))
    assert not np.isin(first["observations"][0], second["observations"][0]).any()
    assert first["actions"].tobytes() != second["actions"].tobytes()


@pytest.mark.mpi(3)
def test_the_file_says_how_many_ranks_made_it(job: Job, num_ranks: int):
    path = job.collect(num_ranks, "--env", "CartPole-v1", "--num-envs", "7", "--num-steps", "9", "--root-envs", "0")
    with h5py.File(path) as file:
        assert file.attrs["num_ranks"] == 3
        assert file["throughput/ranks"]["rank"].tolist() == [0, 1, 2]
        assert file["throughput/ranks"]["num_envs"].tolist() == [0, 4, 3]
