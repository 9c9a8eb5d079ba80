"""Counts over the rows of a run: which rows are env steps, and how long ranks were in their envs."""

from types import SimpleNamespace

import numpy as np
import pytest

from mpi_rollout.collect.tally import Tally

NUM_ENVS = 3


def tally(first_ready: bool = False) -> Tally:
    """Count for two ranks, each with one slot, in one exchange."""
    division = SimpleNamespace(num_ranks=2, num_envs=NUM_ENVS, first_ready=first_ready)
    exchanges = SimpleNamespace(
        division=division, rank_of_slot=np.array([0, 1]), slots=[slice(0, 2)], num_stepping=2
    )  # fmt: skip
    return Tally(exchanges)


def block(*ends: tuple[int, ...]) -> SimpleNamespace:
    """Rows in which these envs end, the first env on the first rank; the ranks take 1 s and 3 s in each."""
    num_ended = [[indices.count(0), len(indices) - indices.count(0)] for indices in ends]
    return SimpleNamespace(num_ended=np.array(num_ended), step_s=np.tile([1.0, 3.0], (len(ends), 1)))


def test_the_row_after_an_end_is_no_env_step():
    counts = tally()
    counts.add(block((), (0,), (1, 2), ()), 0, 4)
    assert counts.env_steps == 4 * 3 - 3


def test_an_end_in_the_last_row_is_counted_with_the_next_one():
    counts, rows = tally(), block((0,), (1, 2), (), (0, 1))
    counts.add(rows, 0, 2)
    assert counts.env_steps == 2 * 3 - 1
    counts.add(rows, 2, 4)
    assert counts.env_steps == 4 * 3 - 3
    counts.add(block(()), 0, 1)
    assert counts.env_steps == 5 * 3 - 5


def test_a_resumed_run_knows_how_many_episodes_ended_in_the_step_before():
    counts = tally()
    counts.resume(2)
    counts.add(block(()), 0, 1)
    assert counts.env_steps == 3 - 2


@pytest.mark.parametrize(("first_ready", "slowest_s"), [(False, 9.0), (True, 9.0)])
def test_the_slowest_and_the_mean_rank_are_told_apart(first_ready: bool, slowest_s: float):
    counts = tally(first_ready)
    counts.add(block((), (), ()), 0, 3)
    assert (counts.step_s.tolist(), counts.slowest_s, counts.mean_s) == ([3.0, 9.0], slowest_s, 6.0)


def test_in_lockstep_the_slowest_rank_of_each_step_counts():
    rows = block((), ())
    rows.step_s[1] = [5.0, 1.0]
    lockstep, first_ready = tally(), tally(first_ready=True)
    for counts in (lockstep, first_ready):
        counts.add(rows, 0, 2)
    assert (lockstep.slowest_s, first_ready.slowest_s) == (3.0 + 5.0, 1.0 + 5.0)
