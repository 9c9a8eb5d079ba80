"""Any rank count, same data: every dataset of a file is the same bytes on 1, 2, 3, ... ranks."""

import h5py
import numpy as np
import pytest
from jobs import Collected, Job, assert_same_bytes, collected_in_ways, datasets

RUNS = {
    "CartPole": ("--env", "CartPole-v1", "--num-envs", "7", "--num-steps", "150", "--seed", "3"),
    "Nested": ("--env-factory", "envs:Nested", "--num-envs", "7", "--num-steps", "80"),
    "Image": ("--env-factory", "envs:Image", "--num-envs", "5", "--num-steps", "30", "--seed", "1"),
    "policy that looks": (
        "--env", "CartPole-v1", "--num-envs", "8", "--num-steps", "400", "--policy", "policies:leaning",
    ),
    "many blocks": (
        "--env", "MountainCarContinuous-v0", "--env-kwargs", '{"max_episode_steps": 90}', "--num-envs", "6",
        "--num-steps", "500",
    ),
}  # fmt: skip

# Under another MPI, tests/collect/test_collector.py compares the files of 1, 2 and 3 ranks in every way to exchange.
pytestmark = pytest.mark.any_mpi

FEW_ON_ROOT = {  # Which share of the root a run is tried with: tests/collect/test_collector.py has more of them.
    "CartPole": ("--root-envs", "1", "--batch-size", "1"),
    "Nested": ("--root-envs", "0"),
    "Image": ("--root-envs", "1"),
    "policy that looks": ("--root-envs", "0"),
    "many blocks": ("--root-envs", "1", "--batch-size", "1"),
}
FEW_ENVS, FEW_STEPS = ("--num-envs", "3"), ("--num-steps", "20")  # The last of an option counts.


def ways_of(name: str, num_ranks: int | None) -> list[tuple[str, ...]]:
    """What is collected on some ranks besides the runs as they are."""
    return [(), *{2: [FEW_ENVS, FEW_STEPS], 3: [FEW_ON_ROOT[name]]}.get(num_ranks, [])]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    return collected_in_ways(tmp_path_factory, RUNS, ways_of, num_rows=128)


@pytest.mark.mpi(1, 2, 3, 5)
@pytest.mark.parametrize("name", RUNS)
def test_rank_count_does_not_change_the_data(collected: Collected, num_ranks: int, name: str):
    assert_same_bytes(datasets(collected(num_ranks)[name][0]), datasets(collected(None)[name][0]))


@pytest.mark.mpi(3)
@pytest.mark.parametrize("name", RUNS)
def test_the_share_of_the_root_does_not_change_the_data(collected: Collected, num_ranks: int, name: str):
    assert_same_bytes(datasets(collected(num_ranks)[name][1]), datasets(collected(None)[name][0]))


@pytest.mark.parametrize("name", RUNS)
def test_more_envs_do_not_change_the_data_of_the_first_ones(collected: Collected, name: str):
    few, many = datasets(collected(2)[name][1]), datasets(collected(None)[name][0])
    many["/episodes"] = many["/episodes"][many["/episodes"]["env_index"] < 3]
    for column in few.keys() - {"/episodes"}:
        many[column] = np.ascontiguousarray(many[column][:, :3])
    assert_same_bytes(few, many)


@pytest.mark.parametrize("name", RUNS)
def test_more_steps_do_not_change_the_first_ones(collected: Collected, name: str):
    few, many = datasets(collected(2)[name][2]), datasets(collected(None)[name][0])
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
