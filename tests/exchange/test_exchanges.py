"""Parts of the envs by turns, or as they get ready: the same data as in lockstep, and nobody waits for a slow rank."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from envs import Agreeing
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from jobs import Job, once
from oracle import differences, walk

from mpi_rollout.core.partition import Division

NUM_ENVS, NUM_STEPS = 17, 10
MODES = ("next_step", "same_step")
WAYS: dict[str, dict[str, Any]] = {
    "one group": {},
    "two groups": {"num_groups": 2},
    "three groups of views, dedicated root": {"num_groups": 3, "copy": False, "root_envs": 0},
    "first ready": {"batch_size": 1},
    "first ready views, dedicated root": {"batch_size": 1, "copy": False, "root_envs": 0},
    "first two ready, dedicated root": {"batch_size": 2, "root_envs": 0},
}


def can_be(way: str, num_ranks: int) -> bool:
    options = WAYS[way]
    return num_ranks - ("root_envs" in options) >= options.get("batch_size", 1)


RUNS = [(num_ranks, way) for num_ranks in (1, 3) for way in WAYS if can_be(way, num_ranks)]


@cache
def in_lockstep(mode: str) -> list[Any]:
    """What Gymnasium gives, env by env."""
    return walk(SyncVectorEnv([Agreeing] * NUM_ENVS, autoreset_mode=AutoresetMode[mode.upper()]), NUM_STEPS)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[tuple[str, str], Any]]:
    """What a job on some ranks gives, for each mode and way; one job for all of them."""

    @once
    def of(num_ranks: int) -> dict[tuple[str, str], Any]:
        keys = [(mode, way) for mode in MODES for way in WAYS if can_be(way, num_ranks)]
        cases = [("envs:Dozing", NUM_ENVS, NUM_STEPS, {"autoreset_mode": mode, **WAYS[way]}) for mode, way in keys]
        found = Job(tmp_path_factory.mktemp("walks")).train(num_ranks, "walks", cases)
        return dict(zip(keys, found, strict=True))

    return of


def parts_of(way: str, num_ranks: int) -> list[list[int]]:
    """The envs that are always received together."""
    options = WAYS[way]
    division = Division(
        NUM_ENVS, num_ranks, options.get("root_envs"), options.get("num_groups", 1), "batch_size" in options
    )
    return [list(partition.envs) for _, partition in division.partitions]


in_all_ways = pytest.mark.parametrize(("num_ranks", "way"), RUNS)


@pytest.mark.mpi
@in_all_ways
@pytest.mark.parametrize("mode", MODES)
def test_envs_give_the_same_in_whatever_order_they_come(walked, num_ranks: int, way: str, mode: str):
    by_env, _, _ = walked(num_ranks)[mode, way]
    assert differences(by_env, in_lockstep(mode)) == []


@pytest.mark.mpi
@in_all_ways
def test_recv_gives_whole_groups_or_ranks_in_env_order_and_contiguous(walked, num_ranks: int, way: str):
    _, slices, is_contiguous = walked(num_ranks)["next_step", way]
    assert all(is_contiguous) and len(is_contiguous) >= NUM_STEPS
    parts = parts_of(way, num_ranks)
    for where in slices:
        assert where.dtype == np.int64 and (np.diff(where) > 0).all()
        assert set(where) == {index for part in parts if set(part) & set(where) for index in part}
    counts = np.bincount(np.concatenate(slices), minlength=NUM_ENVS)
    assert (counts == NUM_STEPS).all()


@pytest.mark.mpi
@pytest.mark.parametrize(("num_ranks", "way"), [run for run in RUNS if "batch_size" not in WAYS[run[1]]])
def test_groups_come_in_turn(walked, num_ranks: int, way: str):
    _, slices, _ = walked(num_ranks)["next_step", way]
    assert [where.tolist() for where in slices] == parts_of(way, num_ranks) * NUM_STEPS


@pytest.mark.mpi
@pytest.mark.parametrize(("num_ranks", "way"), [run for run in RUNS if WAYS[run[1]].get("batch_size") == 2])
def test_as_many_ranks_are_awaited_as_the_batch_size_says(walked, num_ranks: int, way: str):
    """But for the last ones: when fewer are under way."""
    _, slices, _ = walked(num_ranks)["next_step", way]
    parts = [set(part) for part in parts_of(way, num_ranks)]
    num_ranks_in = [sum(part <= set(where) for part in parts) for where in slices]
    num_full = num_ranks_in.count(2)
    assert num_ranks_in == [2] * num_full + [1] * (len(slices) - num_full) and num_full >= NUM_STEPS // 2


LIVING = {"lockstep": {}, "groups": {"num_groups": 2}, "ready": {"batch_size": 1}}


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[str, Any]]:
    @once
    def of(num_ranks: int) -> dict[str, Any]:
        found = Job(tmp_path_factory.mktemp("views")).train(num_ranks, "views_that_live", 7, 20, [*LIVING.values()])
        return dict(zip(LIVING, found, strict=True))

    return of


@pytest.mark.mpi(3)
@pytest.mark.parametrize("way", LIVING)
def test_views_live_until_the_call_after_the_next(lives, num_ranks: int, way: str):
    is_alive, is_reused = lives(num_ranks)[way]
    assert all(is_alive) and len(is_alive) >= 20
    assert all(is_reused) and is_reused  # Else they would be copies.


SLOW_RANK, LEAST = 2, 6
PATIENT = {
    "first": {"batch_size": 1},
    "first two": {"batch_size": 2},
    "first, dedicated root": {"batch_size": 1, "root_envs": 0},
}


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What comes while rank 2 of 4 is in a long step: it ends when all other envs have come `LEAST` times, else never.

    So a rank that is kept from its turn, or the root's own envs, which are stepped in `recv`, would let the job hang.
    """
    arguments = SLOW_RANK, LEAST, [*PATIENT.values()]
    found = Job(tmp_path_factory.mktemp("slow")).train(4, "past_a_slow_rank", *arguments)
    return dict(zip(PATIENT, found, strict=True))


@pytest.mark.mpi
@pytest.mark.parametrize("way", PATIENT)
def test_a_rank_in_a_long_step_keeps_no_other_from_its_turn(passed, way: str):
    came, num_more = passed[way]
    whole = Division(8, 4, PATIENT[way].get("root_envs"), first_ready=True).whole
    assert set(came) == set(range(8)) - set(whole.envs_of(SLOW_RANK))
    assert min(came.count(index) for index in set(came)) >= LEAST
    assert num_more >= 1
