"""What the policy sees, where its actions go, for how many steps at a time, and what is said when it fails."""

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from envs import Counting, Nested
from single_rank import driver_of

from mpi_rollout.collect.collector import Collector, CollectorOptions
from mpi_rollout.collect.watcher import Watchers
from mpi_rollout.core.spaces import leaves
from mpi_rollout.drive.actions import PolicyActions, RankActions
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.sink import DiscardSink
from mpi_rollout.drive.source import Source, Span
from mpi_rollout.errors import ActionError, PolicyError, SignalInterrupt
from mpi_rollout.policies.random import RandomPolicy

ACTIONS = Counting.action_space
Make = Callable[[Driver], Source]


class Run:
    """Two lanes of two envs each, whose last observations are those of `step`, in a block of 8 rows from step 0 on."""

    def __init__(self, make_source: Make, room: int = 1, step: int = 5, make: Callable = Counting):
        self.driver = driver_of(make, num_envs=4, num_groups=2)
        self.driver.make_room(room)
        self.source, sink = make_source(self.driver), DiscardSink([self.driver.block(8) for _ in range(3)])
        self.collector = Collector(self.driver, self.source, sink, CollectorOptions(3), Watchers([]))
        self.blocks, self.step = self.collector._blocks, step
        for _ in range(3):
            self.blocks.extend()
        self.block = self.blocks.oldest
        for number, array in enumerate(self.block.observation_arrays):
            array[...] = np.arange(array.size).reshape(array.shape) % 7 + number

    def send(self, num_steps: int = 1, lanes: slice = slice(None)) -> None:
        spans = [Span(lane.env_range, self.step, num_steps) for lane in self.driver.lanes[lanes]]
        for choice in self.source.actions(spans, self.collector._last_rows):
            self.collector._send(choice)

    def go_on(self) -> int:
        """As if all slots had come; return the number of steps."""
        self.driver.under_way.clear()
        num_steps = len(self.sent())
        self.step += num_steps
        return num_steps

    def orders(self) -> list[tuple[bool, int, int]]:
        """Whether the ranks choose, the number of steps and the first step of each lane's last order."""
        orders = [lane.exchange.order for lane in self.driver.lanes]
        return [(order.is_chosen, order.num_rows, order.step) for order in orders]

    def sent(self) -> np.ndarray:
        """The actions of the last orders, of shape (num_steps, 4)."""
        return np.concatenate([lane.exchange.order.actions[0] for lane in self.driver.lanes], axis=1)


def asking(policy: Callable, most: int = 1) -> Make:
    def make(driver: Driver) -> PolicyActions:
        envs = [lane.env_range for lane in driver.lanes]
        return PolicyActions(policy, envs, driver.action_space, driver.read, most)

    return make


@pytest.mark.parametrize("make", [Counting, Nested], ids=["one", "nested"])
def test_a_policy_gets_copies_of_the_last_observations_of_its_lanes_in_env_order(make: type):
    given = []

    def policy(observations: object) -> object:
        for leaf, array in zip(leaves(make.observation_space), run.block.observation_arrays, strict=True):
            part = leaf.of(observations)
            assert part.flags.c_contiguous and not np.shares_memory(part, array)
            assert part.tobytes() == array[1].tobytes()
        given.append(observations)
        return actions

    actions = RandomPolicy(make.action_space, 4, 0).at(0)
    run = Run(asking(policy), step=1, make=make)
    run.send()
    assert len(given) == 1 and list(run.driver.under_way) == run.driver.lanes
    assert run.orders() == [(False, 1, 1)] * 2
    for leaf, array in zip(leaves(make.action_space), run.block.action_arrays, strict=True):
        assert array[1].tobytes() == leaf.of(actions).tobytes() and not array[[0, *range(2, 8)]].any()
    assert run.driver.clock.seconds["policy"] > 0


def test_actions_that_are_none_of_the_space_are_not_sent():
    run = Run(asking(lambda observations: np.array([2, 3, 4, 7])))
    with pytest.raises(ActionError, match="action for env 3 must be in 2 to 6, got 7"):
        run.send()
    assert not run.driver.under_way


def test_ranks_choose_the_actions_that_are_left_to_them():
    run = Run(lambda driver: RankActions(), room=4)
    run.send(3)
    assert run.orders() == [(True, 3, 5)] * 2
    assert run.driver.clock.seconds["policy"] == 0


def planned(num_steps: int) -> np.ndarray:
    """A plan of so many steps of four envs."""
    return np.arange(4 * num_steps).reshape(num_steps, 4) % 5 + 2


@pytest.mark.parametrize(("num_steps", "lengths"), [(4, [4, 2, 2, 4]), (1, [1] * 7)])
def test_a_plan_is_sent_in_fragments_and_the_policy_is_asked_again_after_it(num_steps: int, lengths: list[int]):
    asked, sent = [], []

    def policy(observations: np.ndarray) -> np.ndarray:
        asked.append(run.step)
        return planned(6)

    run = Run(asking(policy, 4), room=4, step=0)
    for length in lengths:
        run.send(min(num_steps, 8 - run.step % 8))
        sent.append(run.sent())
        block, row = run.blocks.at(run.step)
        assert block.action_arrays[0][row : row + length].tolist() == sent[-1].tolist()
        assert run.go_on() == length
    assert asked == [0, 6]
    assert np.concatenate(sent).tolist() == np.concatenate([planned(6), planned(6)])[: sum(lengths)].tolist()


def test_a_wrong_action_in_a_plan_is_named_with_its_row_and_env():
    plan = planned(4)
    plan[2, 3] = 7
    run = Run(asking(lambda observations: plan, 4), room=4)
    with pytest.raises(ActionError, match=r"^in row 2 of the actions, the policy's action for env 3"):
        run.send()
    assert not run.driver.under_way


def test_a_continued_run_takes_up_the_plan_amid_which_it_was_stopped():
    """In step 5 of a plan of 3 steps, which was made in step 3."""
    asked = []

    def policy(observations: np.ndarray) -> np.ndarray:
        asked.append(observations.copy())
        return np.stack([np.clip(observations[:, 0], 2, 4) + step for step in range(3)])

    run = Run(asking(policy, 4), room=4)
    recalled = np.array([[2] * 4, [3] * 4, [4] * 4, [2] * 4])
    run.source.resume(SimpleNamespace(num_steps=5, observations=lambda step: recalled * (step == 3)))
    run.send()
    assert run.orders() == [(False, 1, 5)] * 2 and run.sent().tolist() == [[4, 5, 6, 4]]
    assert [array.tolist() for array in asked[1::2]] == [recalled[:2].tolist(), recalled[2:].tolist()]


@pytest.mark.parametrize("lengths", [[2, 3], [1, 4]])
def test_all_plans_of_a_run_are_equally_long(lengths: list[int]):
    given = iter([np.full(4, 2) if length == 1 else planned(length) for length in lengths])
    run = Run(asking(lambda observations: next(given)), room=2, step=0)
    run.send(2)
    run.go_on()
    with pytest.raises(ActionError, match=f"the policy's plan has {lengths[1]} steps, the one before {lengths[0]}"):
        run.send(2)


def test_fragments_are_refused_where_the_policy_needs_each_observation():
    run = Run(asking(lambda observations: np.full(4, 2), 16), room=16)
    with pytest.raises(ActionError) as raised:
        run.send()
    assert str(raised.value) == (
        "--fragment-length 16 needs a policy that returns several steps at a time, this one returned one step; use "
        "--fragment-length 1, or return actions of shape (num_steps, 4, ...)"
    )
    assert not run.driver.under_way


@pytest.mark.parametrize("error", [ValueError("no idea"), SystemExit(3)])
def test_a_policy_that_fails_is_said_to_have_failed(error: BaseException):
    def policy(observations: object) -> None:
        raise error

    run = Run(asking(policy))
    with pytest.raises(PolicyError, match=r"^policy: ") as raised:
        run.send()
    assert raised.value.__cause__ is error and not run.driver.under_way


def test_a_signal_is_no_failure_of_the_policy():
    def policy(observations: object) -> None:
        raise SignalInterrupt("stop")

    with pytest.raises(SignalInterrupt):
        Run(asking(policy)).send()
