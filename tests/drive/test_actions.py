"""What the policy sees, where its actions go, for how many steps at a time, and what is said when it fails."""

from collections.abc import Callable

import numpy as np
import pytest
from envs import Counting, Nested
from single_rank import driver_of

from mpi_rollout.core.spaces import leaves
from mpi_rollout.drive import actions as acting
from mpi_rollout.drive.actions import Actor
from mpi_rollout.drive.blocks import Discard, LaneProgress, OpenBlocks
from mpi_rollout.drive.fragments import FragmentLengths
from mpi_rollout.errors import ActionError, PolicyError, SignalInterrupt
from mpi_rollout.policies.random import Policy, RandomPolicy

ACTIONS = Counting.action_space
FAR = 1000  # A stop that no fragment comes near.


class Run:
    """Two lanes of two envs each, whose last observations are those of step 5, in row 1 of a block of 8 rows."""

    def __init__(self, policy: Policy | None, most: int = 1, inference: str = "root", make: Callable = Counting):
        self.driver = driver_of(make, num_envs=4, num_groups=2, is_random=policy is None)
        self.driver.make_room(most)
        self.policy = policy or RandomPolicy(ACTIONS, 4, 3)
        blocks = OpenBlocks(self.driver, Discard([self.driver.block(8) for _ in range(3)]), 3)
        opened = blocks.open(4)
        self.block = opened.block
        for number, array in enumerate(self.block.observation_arrays):
            array[...] = np.arange(array.size).reshape(array.shape) % 7 + number
        self.progresses = [LaneProgress(lane, opened, step=5, row=1) for lane in self.driver.lanes]
        lengths = FragmentLengths(most, None)
        for lane in 5 * self.driver.lanes:  # As if there had been fragments, each four times as long as the one before.
            lengths.note(lane, 1)
        self.actor = Actor(self.driver, self.policy, blocks, lengths, inference)

    def act(self, stop: int = FAR) -> None:
        self.actor.act(self.progresses, stop)

    def go_on(self) -> None:
        """As if all slots had come."""
        self.driver.under_way.clear()
        for progress in self.progresses:
            progress.take_in(progress.num_rows)

    def orders(self) -> list[tuple[bool, int, int]]:
        """Whether the ranks choose, the number of steps and the first step of each lane's last order."""
        orders = [lane.exchange.order for lane in self.driver.lanes]
        return [(order.is_chosen, order.num_rows, order.step) for order in orders]

    def sent(self) -> np.ndarray:
        """The actions of the last orders, of shape (num_steps, 4)."""
        return np.concatenate([lane.exchange.order.actions[0] for lane in self.driver.lanes], axis=1)


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
    run = Run(policy, make=make)
    run.act()
    run.actor.forget(9)
    assert len(given) == 1 and list(run.driver.under_way) == run.driver.lanes
    assert run.orders() == [(False, 1, 5)] * 2
    for leaf, array in zip(leaves(make.action_space), run.block.action_arrays, strict=True):
        assert array[1].tobytes() == leaf.of(actions).tobytes() and not array[[0, *range(2, 8)]].any()
    assert run.driver.clock.seconds["policy"] > 0


def test_actions_that_are_none_of_the_space_are_not_sent():
    run = Run(lambda observations: np.array([2, 3, 4, 7]))
    with pytest.raises(ActionError, match="action for env 3 must be in 2 to 6, got 7"):
        run.act()
    assert not run.driver.under_way


def test_the_random_policy_is_asked_by_step_and_its_actions_come_back_with_the_slots():
    run = Run(None)
    run.actor.act(run.progresses[1:], FAR)
    assert list(run.driver.under_way) == run.driver.lanes[1:] and run.orders()[1] == (False, 1, 5)
    [sent] = run.driver.lanes[1].exchange.order.actions
    assert sent.tolist() == [RandomPolicy(ACTIONS, 4, 3).at(5)[2:].tolist()]
    assert not run.block.action_arrays[0].any()
    run.actor.forget(64)
    assert not run.policy._drawn


@pytest.mark.parametrize("stop", [FAR, 7])
def test_random_actions_of_several_steps_are_sent_at_a_time(stop: int):
    run = Run(None, most=4)
    run.act(stop)
    num_steps = min(8, stop) - 5  # A fragment ends at a multiple of four steps.
    assert run.orders() == [(False, num_steps, 5)] * 2
    assert run.sent().tolist() == [RandomPolicy(ACTIONS, 4, 3).at(step).tolist() for step in range(5, 5 + num_steps)]
    assert [progress.num_rows for progress in run.progresses] == [num_steps] * 2


def test_ranks_choose_random_actions_where_they_are_to():
    run = Run(None, most=4, inference="workers")
    run.act()
    assert run.orders() == [(True, 3, 5)] * 2 and not run.policy._drawn
    assert run.driver.clock.seconds["policy"] == 0


@pytest.mark.parametrize(("share", "who"), [(0.02, "workers"), (0.005, "root")])
def test_drawing_is_left_to_the_ranks_for_good_where_it_takes_the_root_long(share: float, who: str):
    run = Run(None, inference="auto")
    run.act()
    assert run.actor.inference == "auto" and run.orders()[0][0] is False
    clock = run.driver.clock
    clock.now += 2 * acting.TRIAL_S
    clock.seconds["policy"] = share * 2 * acting.TRIAL_S
    run.act()
    assert run.actor.inference == who
    assert run.orders()[1][0] is (who == "workers")


def planned(num_steps: int) -> np.ndarray:
    """A plan of so many steps of four envs."""
    return np.arange(4 * num_steps).reshape(num_steps, 4) % 5 + 2


def test_a_plan_is_sent_in_fragments_and_the_policy_is_asked_again_after_it():
    asked = []

    def policy(observations: np.ndarray) -> np.ndarray:
        asked.append(run.progresses[0].step)
        return planned(6)

    run = Run(policy, most=4)
    for progress in run.progresses:
        progress.step, progress.row = 0, 0
    sent, steps = [], []
    for _ in range(4):
        run.act()
        steps += [(run.progresses[0].step, len(run.sent()))]
        sent.append(run.sent())
        row, num_rows = run.progresses[0].row, len(run.sent())
        stored = run.progresses[0].open_block.block.action_arrays[0][row : row + num_rows]
        assert stored.tolist() == sent[-1].tolist()
        run.go_on()
    assert asked == [0, 6] and steps == [(0, 4), (4, 2), (6, 2), (8, 4)]
    assert np.concatenate(sent).tolist() == np.concatenate([planned(6), planned(6)]).tolist()


def test_a_plan_is_taken_step_by_step_where_fragments_have_one_step():
    run = Run(lambda observations: planned(5))
    for progress in run.progresses:
        progress.step, progress.row = 0, 0
    for row in range(3):
        run.act()
        assert run.orders() == [(False, 1, row)] * 2 and run.sent().tolist() == [planned(5)[row].tolist()]
        run.go_on()


def test_a_wrong_action_in_a_plan_is_named_with_its_step_and_env():
    plan = planned(4)
    plan[2, 3] = 7
    run = Run(lambda observations: plan, most=4)
    with pytest.raises(ActionError, match=r"^step 7: the policy's action for env 3 must be in 2 to 6, got 7"):
        run.act()
    assert not run.driver.under_way


def test_a_continued_run_takes_up_the_plan_amid_which_it_was_stopped():
    """In step 5 of a plan of 3 steps, which was made in step 3."""
    asked = []

    def policy(observations: np.ndarray) -> np.ndarray:
        asked.append(observations.copy())
        return np.stack([np.clip(observations[:, 0], 2, 4) + step for step in range(3)])

    run = Run(policy, most=4)
    recalled = np.array([[2] * 4, [3] * 4, [4] * 4, [2] * 4])
    run.actor.recall = lambda step: recalled * (step == 3)
    run.act()
    assert run.orders() == [(False, 1, 5)] * 2 and run.sent().tolist() == [[4, 5, 6, 4]]
    assert [array.tolist() for array in asked[1:]] == [recalled[:2].tolist(), recalled[2:].tolist()]


def test_a_wrong_action_in_a_plan_that_is_taken_up_is_named_with_its_own_step():
    plans = iter([planned(3), np.full((3, 2), 7)])
    run = Run(lambda observations: next(plans))
    run.actor.recall = lambda step: np.zeros((4, 4), np.int64)
    with pytest.raises(ActionError, match=r"^step 3: the policy's action for env 0 must be in 2 to 6, got 7"):
        run.act()


def test_all_plans_of_a_run_are_equally_long():
    lengths = iter([2, 3])
    run = Run(lambda observations: planned(next(lengths)), most=2)
    for progress in run.progresses:
        progress.step, progress.row = 0, 0
    run.act()
    run.go_on()
    with pytest.raises(ActionError, match="the policy's plan has 3 steps, the one before had 2"):
        run.act()


def test_fragments_are_refused_where_the_policy_needs_each_observation():
    run = Run(lambda observations: np.full(4, 2), most=16)
    with pytest.raises(ActionError) as raised:
        run.act()
    assert str(raised.value) == (
        "--fragment-length 16 has the actions of so many steps sent at a time, and the policy gave those of one step, "
        "since it needs each observation; use --fragment-length 1, or return actions of shape (num_steps, 4, ...)"
    )
    assert not run.driver.under_way


@pytest.mark.parametrize("error", [ValueError("no idea"), SystemExit(3)])
def test_a_policy_that_fails_is_said_to_have_failed(error: BaseException):
    def policy(observations: object) -> None:
        raise error

    run = Run(policy)
    with pytest.raises(PolicyError, match=r"^policy: ") as raised:
        run.act()
    assert raised.value.__cause__ is error and not run.driver.under_way


def test_a_signal_is_no_failure_of_the_policy():
    def policy(observations: object) -> None:
        raise SignalInterrupt("stop")

    with pytest.raises(SignalInterrupt):
        Run(policy).act()


def test_a_policy_that_plans_only_later_is_refused():
    given = iter([np.full(2, 2), np.full(2, 2), np.full((4, 4), 2)])
    run = Run(lambda observations: np.full(4, 2) if next(given).ndim == 1 else np.full((4, 4), 2))
    run.act()
    run.go_on()
    run.act()
    run.go_on()
    with pytest.raises(ActionError, match="the policy's plan has 4 steps, the one before had 1"):
        run.act()
