"""How many steps ranks take between two exchanges."""

from types import SimpleNamespace

import numpy as np
import pytest
from single_rank import driver_of

from mpi_rollout.config import RolloutConfig
from mpi_rollout.drive.fragments import FragmentLengths, auto_length, prepare_lengths
from mpi_rollout.errors import UsageError
from mpi_rollout.process import host
from mpi_rollout.process.host import check_length

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("row_nbytes", "num_ranks", "length"),
    [
        (64, 1, 256),  # More win nothing.
        (4 * KIB, 2, 256),
        (4 * KIB + 1, 2, 128),  # A power of two, the largest with which a slot has at most 1 MiB.
        (40 * KIB, 2, 16),
        (128 * KIB, 2, 8),
        (256 * KIB + 1, 2, 8),  # Images: a few steps.
        (4 * MIB, 2, 8),
        (4 * MIB + 1, 2, 4),  # A slot has at most 32 MiB.
        (32 * MIB + 1, 2, 1),
        (4 * MIB, 16, 4),
        (4 * KIB, 256, 256),
        (4 * KIB, 512, 128),  # All slots have at most 256 MiB.
        (128 * KIB, 10_000, 1),
    ],
)
def test_the_length_is_what_slots_hold(row_nbytes: int, num_ranks: int, length: int):
    assert auto_length(row_nbytes, num_ranks) == length


@pytest.mark.parametrize(
    ("row_nbytes", "num_ranks", "length"),
    [
        (64, 2, 256),
        (64 * KIB, 2, 64),  # Actions of 4 MiB.
        (4 * MIB, 2, 16),  # Fewer steps would be slower.
        (4 * MIB, 16, 4),  # All actions have at most 256 MiB.
        (512 * MIB, 2, 1),
    ],
)
def test_without_data_in_slots_the_length_is_what_actions_need(row_nbytes: int, num_ranks: int, length: int):
    assert auto_length(row_nbytes, num_ranks, counts_only=True) == length


def test_fragments_that_do_not_fit_into_memory_are_refused_with_the_length_that_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host, "free_memory", lambda: 100 * MIB)
    check_length("it", 25, MIB, 3, MIB)
    with pytest.raises(UsageError) as raised:
        check_length("--fragment-length 26", 26, MIB, 3, MIB)
    assert str(raised.value) == (
        "--fragment-length 26: rank 0 needs 109.1 MB of memory for 26 steps of all ranks, its host has 104.9 MB free, "
        "and MPI counts up to 2.1 GB; use at most 25"
    )
    with pytest.raises(UsageError, match=r"use at most 1$"):
        check_length("it", 2, 200 * MIB, 3, MIB)


def test_fragments_that_mpi_cannot_count_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host, "free_memory", lambda: 2**50)
    for row_nbytes, num_ranks, order_nbytes in ((MIB // 4, 4, 8), (8, 3, MIB)):
        check_length("it", 2047, row_nbytes, num_ranks, order_nbytes)
        with pytest.raises(UsageError, match=r"use at most 2,047$"):
            check_length("it", 2048, row_nbytes, num_ranks, order_nbytes)


class Lane:
    """A lane whose ranks took so many seconds for its last fragment."""

    def __init__(self, *step_s: float):
        self.exchange = SimpleNamespace(step_s=np.array(step_s))


def test_in_lockstep_each_fragment_has_one_step():
    lengths, slow = FragmentLengths(), Lane(9.0)
    lengths.note(slow, 1)
    assert [lengths.next(slow, step) for step in (0, 5, 64)] == [1, 1, 1]


def test_fragments_that_a_user_asks_for_end_at_multiples_of_their_length():
    lengths, slow = FragmentLengths(10, None), Lane(9.0)
    assert lengths.next(slow, 0) == 1
    lengths.note(slow, 1)
    assert lengths.next(slow, 0) == 4
    lengths.note(slow, 4)
    assert [lengths.next(slow, step) for step in (0, 3, 9, 10, 25)] == [10, 7, 1, 10, 5] and lengths.longest == 4


def test_fragments_grow_while_they_are_in_time():
    lengths, fast = FragmentLengths(64, 0.4), Lane(1e-6, 2e-6)
    taken, step = [], 0
    for _ in range(6):
        taken.append(lengths.next(fast, step))
        step += taken[-1]
        lengths.note(fast, taken[-1])
    assert taken == [1, 4, 16, 43, 64, 64]


def test_a_fragment_takes_no_longer_than_it_may_on_the_slowest_rank():
    lengths, slow, idle = FragmentLengths(256, 0.4), Lane(0.01, 0.05), Lane(0.0)
    for _ in range(5):
        lengths.note(slow, 1)
        lengths.note(idle, 1)
    assert lengths.next(slow, 0) == 8 and lengths.next(idle, 0) == 256
    slow.exchange.step_s[:] = 2.0
    lengths.note(slow, 1)
    assert lengths.next(slow, 0) == 1
    lengths.note(slow, 0)  # A fragment of which no step is complete says nothing.
    assert lengths.next(slow, 0) == 1


RUN = {"env_factory": "envs:Counting", "num_envs": 3, "num_steps": 100}


@pytest.mark.parametrize(
    ("options", "length"),
    [
        ({}, 100),
        ({"num_steps": 1000}, 256),
        ({"policy": "policies:leaning"}, 1),
        ({"fragment_length": "7"}, 7),
        ({"fragment_length": "700"}, 100),
        ({"fragment_length": "7", "policy": "policies:leaning"}, 7),
        ({"fragment_length": "1"}, 1),
        ({"on_rank_loss": "shrink"}, 100),
        ({"policy_on": "root"}, 100),  # An older version's file may say so.
    ],
)
def test_slots_hold_the_longest_fragment_of_a_run(options: dict, length: int):
    driver = driver_of(num_groups=2)
    lengths = prepare_lengths(RolloutConfig(**RUN | options), driver)
    assert lengths.most == length and [lane.exchange.room for lane in driver.lanes] == [length] * 2
    for _ in range(5):
        lengths.note(Lane(9.0), 1)
    assert lengths.next(driver.lanes[0], 0) == 1
