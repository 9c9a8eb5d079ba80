"""Any rank count, same data: every dataset of a file is the same bytes on 1, 2, 3, ... ranks."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import Job, assert_same_bytes, datasets

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


@pytest.fixture(scope="module", params=RUNS)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a run and its file, made without mpiexec."""
    folder = tmp_path_factory.mktemp("reference")
    return request.param, Job(folder).collect(None, *RUNS[request.param])


@pytest.mark.mpi(1, 2, 3, 5)
def test_rank_count_does_not_change_the_data(job: Job, reference: tuple[str, Path], num_ranks: int):
    name, path = reference
    assert_same_bytes(datasets(job.collect(num_ranks, *RUNS[name])), datasets(path))


@pytest.mark.mpi(2, 4)
def test_a_dedicated_root_does_not_change_the_data(job: Job, reference: tuple[str, Path], num_ranks: int):
    name, path = reference
    assert_same_bytes(datasets(job.collect(num_ranks, *RUNS[name], "--dedicated-root")), datasets(path))


def test_more_envs_do_not_change_the_data_of_the_first_ones(job: Job, reference: tuple[str, Path]):
    name, path = reference
    arguments = list(RUNS[name])
    arguments[arguments.index("--num-envs") + 1] = "3"
    few, many = datasets(job.collect(2, *arguments)), datasets(path)
    many["/episodes"] = many["/episodes"][many["/episodes"]["env_index"] < 3]
    for column in few.keys() - {"/episodes"}:
        many[column] = np.ascontiguousarray(many[column][:, :3])
    assert_same_bytes(few, many)


def test_more_steps_do_not_change_the_first_ones(job: Job, reference: tuple[str, Path]):
    name, path = reference
    arguments = list(RUNS[name])
    arguments[arguments.index("--num-steps") + 1] = "20"
    few, many = datasets(job.collect(2, *arguments)), datasets(path)
    for column in few.keys() - {"/episodes"}:
        assert few[column].tobytes() == many[column][: len(few[column])].tobytes(), column


def test_another_seed_changes_the_data(job: Job):
    arguments = ("--env", "CartPole-v1", "--num-envs", "4", "--num-steps", "30")
    first, second = (datasets(job.collect(None, *arguments, "--seed", str(seed), out=f"{seed}.h5")) for seed in (0, 1))
    assert not np.isin(first["observations"][0], second["observations"][0]).any()
    assert first["actions"].tobytes() != second["actions"].tobytes()


@pytest.mark.mpi(3)
def test_the_file_says_how_many_ranks_made_it(job: Job, num_ranks: int):
    path = job.collect(num_ranks, "--env", "CartPole-v1", "--num-envs", "7", "--num-steps", "9", "--dedicated-root")
    with h5py.File(path) as file:
        assert file.attrs["num_ranks"] == 3
        assert file["throughput/ranks"]["rank"].tolist() == [0, 1, 2]
        assert file["throughput/ranks"]["num_envs"].tolist() == [0, 4, 3]
