"""Who owns which envs."""

import numpy as np
import pytest

from mpi_rollout.layout import split_by_rank
from mpi_rollout.partition import Partition

WORLDS = [(1, 1), (5, 1), (5, 5), (7, 2), (7, 3), (64, 3), (64, 4), (1000, 7), (1001, 1000)]


@pytest.mark.parametrize(("num_envs", "num_ranks"), WORLDS)
def test_ranks_own_the_slices_that_array_split_makes(num_envs: int, num_ranks: int):
    partition = Partition(num_envs, num_ranks)
    slices = [list(partition.envs_of(rank)) for rank in range(num_ranks)]
    assert slices == [part.tolist() for part in np.array_split(np.arange(num_envs), num_ranks)]


@pytest.mark.parametrize("root_envs", [0, 1, 5])
@pytest.mark.parametrize(("num_envs", "num_ranks"), WORLDS)
def test_the_root_owns_what_it_is_given_and_the_others_share_the_rest(num_envs: int, num_ranks: int, root_envs: int):
    partition = Partition(root_envs + num_envs, 1 + num_ranks, root_envs)
    assert partition.envs_of(0) == range(root_envs)
    slices = [list(partition.envs_of(rank + 1)) for rank in range(num_ranks)]
    assert slices == [part.tolist() for part in np.array_split(root_envs + np.arange(num_envs), num_ranks)]


@pytest.mark.parametrize("root_envs", [None, 0, 1, 5])
@pytest.mark.parametrize(("num_envs", "num_ranks"), WORLDS)
def test_runs_are_the_ranks_with_envs_in_few_groups(num_envs: int, num_ranks: int, root_envs: int | None):
    partition = Partition(num_envs + (root_envs or 0), num_ranks + (root_envs is not None), root_envs)
    assert len(partition.runs) <= 3
    from_runs = {
        run.first_rank + i: range(run.first_env + i * run.envs_per_rank, run.first_env + (i + 1) * run.envs_per_rank)
        for run in partition.runs
        for i in range(run.num_ranks)
    }
    all_ranks = range(partition.num_ranks)
    assert from_runs == {rank: partition.envs_of(rank) for rank in all_ranks if partition.envs_of(rank)}


@pytest.mark.parametrize("root_envs", [None, 0, 1, 400])
@pytest.mark.parametrize(("num_envs", "num_ranks"), WORLDS)
def test_capacity_is_the_size_of_the_largest_slice(num_envs: int, num_ranks: int, root_envs: int | None):
    partition = (
        Partition(num_envs + (root_envs or 0), num_ranks + 1, root_envs)
        if root_envs is not None
        else (Partition(num_envs, num_ranks))
    )
    assert partition.capacity == max(len(partition.envs_of(rank)) for rank in range(partition.num_ranks))


def test_a_single_rank_may_be_given_all_envs():
    assert Partition(7, 1, root_envs=7).envs_of(0) == range(7)


def test_a_rank_out_of_the_world_owns_nothing():
    assert Partition(7, 3).envs_of(3) == range(0)


@pytest.mark.parametrize(("num_envs", "num_ranks", "root_envs"), [(2, 3, None), (2, 4, 0), (6, 4, 4)])
def test_fewer_envs_than_ranks_that_step_them_are_refused(num_envs: int, num_ranks: int, root_envs: int | None):
    with pytest.raises(ValueError, match=r"--num-envs must be at least .* got 2 envs on 3 ranks; use more envs or"):
        Partition(num_envs, num_ranks, root_envs)


@pytest.mark.parametrize("root_envs", [0, 3])
def test_a_root_that_leaves_envs_to_others_is_refused_alone(root_envs: int):
    with pytest.raises(ValueError, match=rf"--root-envs {root_envs} .*got 1 rank; start the program with mpirun -n 2"):
        Partition(4, 1, root_envs)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_root_with_more_envs_than_there_are_is_refused(num_ranks: int):
    with pytest.raises(ValueError, match=r"--root-envs must be at most --num-envs, got --root-envs 5 of 4 envs"):
        Partition(4, num_ranks, root_envs=5)


@pytest.mark.parametrize("root_envs", [None, 1])
@pytest.mark.parametrize(("num_envs", "num_ranks"), WORLDS[2:])
def test_splitting_columns_by_rank_gives_each_rank_its_envs_without_a_copy(
    num_envs: int, num_ranks: int, root_envs: int | None
):
    partition = Partition(num_envs, num_ranks, root_envs)
    column = np.broadcast_to(np.arange(num_envs)[None, :, None], (2, num_envs, 3)).copy()
    views = split_by_rank(column, partition)
    owned = [rank_envs[:, 0].tolist() for view in views for rank_envs in view[1]]
    assert owned == [list(partition.envs_of(rank)) for rank in range(num_ranks)]
    assert all(np.shares_memory(view, column) for view in views)
