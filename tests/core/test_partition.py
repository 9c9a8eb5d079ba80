"""Who owns which envs."""

import numpy as np
import pytest

from mpi_rollout.core.layout import split_by_rank
from mpi_rollout.core.partition import Division, Partition
from mpi_rollout.errors import UsageError

WORLDS = [(1, 1), (5, 1), (5, 5), (7, 2), (7, 3), (64, 3), (64, 4), (1000, 7), (1001, 1000)]
both = pytest.mark.parametrize("root_envs", [None, 0])


@both
@pytest.mark.parametrize(("num_envs", "num_workers"), WORLDS)
def test_ranks_own_the_slices_that_array_split_makes(num_envs: int, num_workers: int, root_envs: int | None):
    partition = Partition(num_envs, num_workers + (root_envs == 0), root_envs)
    slices = [list(partition.envs_of(rank)) for rank in range(partition.num_ranks)]
    even = [part.tolist() for part in np.array_split(np.arange(num_envs), num_workers)]
    assert slices == [[]] * (root_envs == 0) + even


@both
@pytest.mark.parametrize(("num_envs", "num_workers"), WORLDS)
def test_runs_are_the_ranks_with_envs_in_two_groups(num_envs: int, num_workers: int, root_envs: int | None):
    partition = Partition(num_envs, num_workers + (root_envs == 0), root_envs)
    assert len(partition.ranges) <= 2
    from_runs = {
        run.first_rank + i: range(run.first_env + i * run.envs_per_rank, run.first_env + (i + 1) * run.envs_per_rank)
        for run in partition.ranges
        for i in range(run.num_ranks)
    }
    all_ranks = range(partition.num_ranks)
    assert from_runs == {rank: partition.envs_of(rank) for rank in all_ranks if partition.envs_of(rank)}


@both
@pytest.mark.parametrize(("num_envs", "num_workers"), WORLDS)
def test_capacity_is_the_size_of_the_largest_slice(num_envs: int, num_workers: int, root_envs: int | None):
    partition = Partition(num_envs, num_workers + (root_envs == 0), root_envs)
    assert partition.capacity == max(len(partition.envs_of(rank)) for rank in range(partition.num_ranks))


@pytest.mark.parametrize(("num_envs", "num_ranks", "root_envs"), [(7, 2, 1), (7, 2, 6), (64, 4, 5), (11, 3, 9)])
@pytest.mark.parametrize("first_env", [0, 5])
def test_the_root_may_own_few_envs_or_many(num_envs: int, num_ranks: int, root_envs: int, first_env: int):
    partition = Partition(num_envs, num_ranks, first_env=first_env, root_envs=root_envs)
    slices = [partition.envs_of(rank) for rank in range(num_ranks)]
    assert len(slices[0]) == root_envs and slices[0].start == first_env
    sizes = [len(envs) for envs in slices[1:]]
    assert max(sizes) - min(sizes) <= 1 and [index for envs in slices for index in envs] == list(partition.envs)
    assert partition.capacity == max(root_envs, *sizes)
    column = np.broadcast_to(np.arange(num_envs + first_env)[None], (2, num_envs + first_env)).copy()
    assert [
        part.tolist()
        for view in split_by_rank(column[:, first_env:], Partition(num_envs, num_ranks, root_envs=root_envs))
        for part in view[1]
    ] == [list(envs) for envs in slices]


def test_groups_share_the_envs_of_the_root():
    division = Division(20, 3, num_groups=2, root_envs=5)
    assert [len(envs) for envs in division.envs_of(0)] == [3, 2]
    assert [len(division.envs_of(rank)[0]) + len(division.envs_of(rank)[1]) for rank in (1, 2)] == [8, 7]
    assert [len(envs[0]) for envs in map(Division(20, 3, first_ready=True, root_envs=4).envs_of, range(3))] == [4, 8, 8]


@pytest.mark.parametrize(
    ("num_ranks", "num_groups", "root_envs", "problem"),
    [
        (1, 1, 4, "root_envs=4 needs at least 2 ranks, got 1"),
        (3, 1, 7, "root_envs must be from 0 to 6, so that each other rank has an env, got 7 of 8 envs on 3 ranks"),
        (3, 1, -1, "root_envs must be from 0 to 6"),
        (2, 3, 2, "root_envs must be at least the number of groups, 3, got 2"),
    ],
)
def test_impossible_numbers_of_envs_of_the_root_are_refused(
    num_ranks: int, num_groups: int, root_envs: int, problem: str
):
    with pytest.raises(UsageError, match=problem):
        Division(8, num_ranks, num_groups=num_groups, root_envs=root_envs)


def test_a_rank_out_of_the_world_owns_nothing():
    assert Partition(7, 3).envs_of(3) == range(0)


@pytest.mark.parametrize(("num_ranks", "root_envs"), [(3, None), (4, 0)])
def test_fewer_envs_than_ranks_that_step_them_are_refused(num_ranks: int, root_envs: int | None):
    with pytest.raises(UsageError, match=r"num_envs must be at least .* got 2 envs on 3 ranks; use more envs or"):
        Partition(2, num_ranks, root_envs)


def test_a_dedicated_root_alone_is_refused():
    with pytest.raises(UsageError, match=r"root_envs=0 needs .* got 1; start the program with mpirun -n 2"):
        Partition(4, 1, root_envs=0)


@both
@pytest.mark.parametrize(("num_envs", "num_workers"), WORLDS)
def test_splitting_columns_by_rank_gives_each_rank_its_envs_without_a_copy(
    num_envs: int, num_workers: int, root_envs: int | None
):
    partition = Partition(num_envs, num_workers + (root_envs == 0), root_envs)
    column = np.broadcast_to(np.arange(num_envs)[None, :, None], (2, num_envs, 3)).copy()
    views = split_by_rank(column, partition)
    owned = [rank_envs[:, 0].tolist() for view in views for rank_envs in view[1]]
    assert [[]] * (root_envs == 0) + owned == [list(partition.envs_of(rank)) for rank in range(partition.num_ranks)]
    assert all(np.shares_memory(view, column) for view in views)


DIVISIONS = [
    (num_envs, num_ranks, root_envs, num_groups)
    for num_envs, num_ranks in [(12, 1), (12, 2), (13, 3), (29, 5), (1000, 7)]
    for root_envs in (None, 0)
    for num_groups in (1, 2, 3)
    if num_ranks > (root_envs == 0) and num_envs >= num_groups * (num_ranks - (root_envs == 0))
]
divided = pytest.mark.parametrize(("num_envs", "num_ranks", "root_envs", "num_groups"), DIVISIONS)


@divided
def test_groups_are_neighbouring_envs_that_differ_by_one_at_most_over_all_ranks(
    num_envs: int, num_ranks: int, root_envs: int | None, num_groups: int
):
    division = Division(num_envs, num_ranks, root_envs, num_groups)
    even = [part.tolist() for part in np.array_split(np.arange(num_envs), num_groups)]
    assert [list(partition.envs) for _, partition in division.partitions] == even
    assert all(
        (first_rank, partition.num_ranks, partition.root_envs) == (0, num_ranks, root_envs)
        for first_rank, partition in division.partitions
    )


@divided
def test_with_first_ready_each_rank_that_steps_envs_is_a_part_of_its_own(
    num_envs: int, num_ranks: int, root_envs: int | None, num_groups: int
):
    division = Division(num_envs, num_ranks, root_envs, first_ready=True)
    whole = Partition(num_envs, num_ranks, root_envs)
    assert [(rank, partition.num_ranks, partition.envs) for rank, partition in division.partitions] == [
        (rank, 1, whole.envs_of(rank)) for rank in division.stepping_ranks
    ]
    assert division.stepping_ranks == tuple(range(int(root_envs == 0), num_ranks))


@divided
@pytest.mark.parametrize("first_ready", [False, True])
def test_every_env_is_in_one_slice_of_one_rank(
    num_envs: int, num_ranks: int, root_envs: int | None, num_groups: int, first_ready: bool
):
    division = Division(num_envs, num_ranks, root_envs, 1 if first_ready else num_groups, first_ready)
    slices = [envs for rank in range(num_ranks) for envs in division.envs_of(rank)]
    assert sorted(index for envs in slices for index in envs) == list(range(num_envs))
    assert all(slices) and (root_envs is None or division.envs_of(0) == ())
    assert {len(division.envs_of(rank)) for rank in division.stepping_ranks} == {1 if first_ready else num_groups}


@pytest.mark.parametrize("first_env", [0, 7])
@both
@pytest.mark.parametrize(("num_envs", "num_workers"), WORLDS)
def test_places_say_in_which_row_of_which_rank_each_env_is(
    num_envs: int, num_workers: int, root_envs: int | None, first_env: int
):
    partition = Partition(num_envs, num_workers + (root_envs == 0), root_envs, first_env)
    slots, rows = partition.places
    found = [partition.envs_of(slot)[row] for slot, row in zip(slots.tolist(), rows.tolist(), strict=True)]
    assert found == list(partition.envs) == list(range(first_env, first_env + num_envs))


@pytest.mark.parametrize(("num_ranks", "root_envs"), [(2, None), (3, 0)])
def test_more_groups_than_each_rank_has_envs_are_refused(num_ranks: int, root_envs: int | None):
    with pytest.raises(UsageError, match=r"num_groups 3 needs at least 3 envs for each .* got 5 envs on 2 ranks; use"):
        Division(5, num_ranks, root_envs, num_groups=3)
