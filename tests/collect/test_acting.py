"""What the policy sees, where its actions go, and what is said when it fails."""

from types import SimpleNamespace

import numpy as np
import pytest
from envs import Nested
from gymnasium import spaces

from mpi_rollout.collect.acting import Actor
from mpi_rollout.collect.blocks import LaneProgress, OpenBlock
from mpi_rollout.core.clock import Clock
from mpi_rollout.core.layout import Block
from mpi_rollout.core.spaces import leaves, mask_leaves
from mpi_rollout.errors import PolicyError, SignalInterrupt
from mpi_rollout.policies.random import RandomPolicy

ACTIONS = spaces.Discrete(100)


class Run:
    """Two lanes of two envs each, in row 1 of a block."""

    def __init__(self, space: spaces.Space, infos: tuple = ()):
        self.block = Block(space, ACTIONS, 4, 2, 3)
        for number, array in enumerate(self.block.observation_arrays):
            array[...] = np.arange(array.size).reshape(array.shape) % 7 + number
        self.sent: list[tuple[list, object, bool]] = []
        self.driver = SimpleNamespace(clock=Clock(), observation_space=space, send=self._send)
        self.progresses = []
        for start in (0, 2):
            exchange = SimpleNamespace(
                action_arrays=(np.zeros(2, np.int64),), layout=SimpleNamespace(infos=infos), take=lambda column: column,
            )  # fmt: skip
            lane = SimpleNamespace(exchange=exchange, envs=slice(start, start + 2), is_marked=False)
            self.progresses.append(LaneProgress(lane, OpenBlock(self.block, {}), step=5, row=1))

    def _send(self, lanes: list, actions: object, is_trusted: bool) -> None:
        self.sent.append((lanes, actions, is_trusted))
        for lane, part in zip(lanes, np.split(np.asarray(actions), len(lanes)), strict=True):
            lane.exchange.action_arrays[0][:] = part


@pytest.mark.parametrize("space", [spaces.Box(0, 9, (3,), np.float64), Nested.observation_space], ids=["one", "nested"])
def test_a_policy_gets_copies_of_the_last_observations_of_its_lanes_in_env_order(space: spaces.Space):
    run, given = Run(space), []

    def policy(observations: object) -> list[int]:
        for leaf, array in zip(leaves(space), run.block.observation_arrays, strict=True):
            part = leaf.of(observations)
            assert part.flags.c_contiguous and not np.shares_memory(part, array)
            assert part.tobytes() == array[1].tobytes()
        given.append(observations)
        return [11, 12, 13, 14]

    actor = Actor(run.driver, policy)
    actor.act(run.progresses)
    actor.forget(9)
    assert len(given) == 1 and not actor.asks_lanes_alone
    [(lanes, actions, is_trusted)] = run.sent
    assert lanes == [progress.lane for progress in run.progresses] and actions == [11, 12, 13, 14] and not is_trusted
    assert run.block.action_arrays[0].tolist() == [[0] * 4, [11, 12, 13, 14], [0] * 4]
    assert run.driver.clock.seconds["policy"] > 0


def test_the_random_policy_is_asked_by_step_and_need_not_be_checked():
    run, policy = Run(spaces.Discrete(2)), RandomPolicy(ACTIONS, 4, 3)
    actor = Actor(run.driver, policy)
    assert actor.asks_lanes_alone
    actor.act(run.progresses[1:])
    [(_, actions, is_trusted)] = run.sent
    assert is_trusted and actions.tolist() == RandomPolicy(ACTIONS, 4, 3).at(5)[2:].tolist()
    actor.forget(64)
    assert not policy._drawn


@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.parametrize("is_marked", [True, False])
def test_masks_are_heeded_where_a_slot_has_some(has_mask: bool, is_marked: bool):
    run = Run(spaces.Discrete(2), mask_leaves(ACTIONS))
    progress = run.progresses[0]
    allowed = np.zeros((2, 100), np.uint8)
    allowed[0, 42] = allowed[1, 43] = 1
    columns = SimpleNamespace(info_arrays=[(np.packbits(allowed, axis=1), np.full(2, has_mask))])
    progress.lane.exchange.columns, progress.lane.is_marked = columns, is_marked
    Actor(run.driver, RandomPolicy(ACTIONS, 4, 3)).act([progress])
    drawn = RandomPolicy(ACTIONS, 4, 3).at(5)[:2].tolist()
    assert run.block.action_arrays[0][1, :2].tolist() == ([42, 43] if has_mask and is_marked else drawn)


@pytest.mark.parametrize("error", [ValueError("no idea"), SystemExit(3)])
def test_a_policy_that_fails_is_said_to_have_failed(error: BaseException):
    def policy(observations: object) -> None:
        raise error

    run = Run(spaces.Discrete(2))
    with pytest.raises(PolicyError, match=r"^policy: ") as raised:
        Actor(run.driver, policy).act(run.progresses)
    assert raised.value.__cause__ is error and run.sent == []


def test_a_signal_is_no_failure_of_the_policy():
    def policy(observations: object) -> None:
        raise SignalInterrupt("stop")

    run = Run(spaces.Discrete(2))
    with pytest.raises(SignalInterrupt):
        Actor(run.driver, policy).act(run.progresses)
