"""Fragments for a trainer: several steps of all envs in one exchange."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.host import check_length
from mpi_rollout.core.layout import Block
from mpi_rollout.core.spaces import Tree, tree_of
from mpi_rollout.errors import ActionError
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.ranks.driver import Driver
from mpi_rollout.ranks.lanes import Lane, indices_of
from mpi_rollout.ranks.policy_on_ranks import PolicyOnRanks

Batch = dict[str, Any]


class Sent(NamedTuple):
    """What a lane's envs are doing.

    Parameters
    ----------
    actions
        For each leaf an array (num_steps, num_envs, ...); none where the policy on the ranks chooses them.
    version
        Of this policy.
    """

    actions: list[np.ndarray]
    version: int


class Fragments:
    """Sends actions of several steps, and makes arrays of what comes back.

    Attributes
    ----------
    num_steps
        Of the fragments under way; 0 if there is none.
    under_way
        The lanes that have been sent a fragment, and have not been received.
    policy
        The ranks ask it for actions where the trainer gives none; None: random ones.
    """

    def __init__(self, driver: Driver, policy: PolicyOnRanks | None = None):
        self._driver, self.policy = driver, policy
        self._random: RandomPolicy | None = None
        self._next_step = dict.fromkeys(driver.lanes, 0)  # Of what is drawn.
        self.under_way: dict[Lane, Sent] = {}
        self._num_steps = self._room = 0
        self._block: Block

    @property
    def num_steps(self) -> int:
        return self._num_steps if self.under_way else 0

    def seed(self, seed: int) -> None:
        """Begin to draw random actions, or what the policy draws from, from this seed."""
        self._next_step = dict.fromkeys(self._next_step, 0)
        if self.policy is not None:
            self.policy.seed(seed)
        else:
            self._random = RandomPolicy(self._driver.action_space, self._driver.num_envs, seed)

    def make_room(self, num_steps: int) -> bool:
        """Have slots hold so many steps; return whether they are others now.

        Raises
        ------
        ValueError
            The fragments under way do not leave that to be done now.
        """
        if self.num_steps not in (0, num_steps):
            raise ValueError(f"num_steps must be {self.num_steps} while fragments of so many are under way")
        if self._room >= num_steps:
            return False
        exchange = max((lane.exchange for lane in self._driver.lanes), key=lambda exchange: exchange.layout.nbytes)
        num_slots = self._driver.exchanges.num_slots
        check_length(f"collect({num_steps})", num_steps, exchange.layout.nbytes, num_slots, exchange.order.nbytes)
        self._driver.make_room(num_steps)
        self._block = self._driver.block(num_steps + 1)
        self._destinations = self._driver.destinations(self._block)
        self._room = num_steps
        return True

    def send(self, lanes: Sequence[Lane], num_steps: int, actions: object) -> None:
        """Send the actions of several steps; None for random ones, or those of the policy on the ranks.

        Raises
        ------
        ActionError
            The actions are not of shape (num_steps, num_envs, ...), or not in their space; nothing was sent.
        ValueError
            The policy chooses the actions of other fragments under way, or of these alone; nothing was sent.
        """
        given = None if actions is None else self._read(num_steps, actions, indices_of(lanes))
        if self.policy is not None and any(bool(sent.actions) == (given is None) for sent in self.under_way.values()):
            raise ValueError("actions must be given for all fragments under way, or left to the policy for all of them")
        self._num_steps, start = num_steps, 0
        for lane in lanes:
            if given is None and self.policy is not None:
                self._have_chosen(lane, num_steps, self.policy)
            else:
                rows = slice(start, start := start + lane.num_envs)
                drawn = self._draw(lane, num_steps) if given is None else [array[:, rows] for array in given]
                self._driver.send(lane, drawn, num_steps)
                self.under_way[lane] = Sent(drawn, 0)

    def _have_chosen(self, lane: Lane, num_steps: int, policy: PolicyOnRanks) -> None:
        policy.bring(lane)
        self._driver.send(lane, None, num_steps, self._next_step[lane])
        self._next_step[lane] += num_steps
        self.under_way[lane] = Sent([], policy.version)

    def _draw(self, lane: Lane, num_steps: int) -> list[np.ndarray]:
        if self._random is None:
            self.seed(int(np.random.SeedSequence().generate_state(1, np.uint64)[0]))
        assert self._random is not None
        self._random.forget(min(self._next_step.values()))
        arrays = self._random.rows(self._next_step[lane], num_steps, range(lane.envs.start, lane.envs.stop))
        self._next_step[lane] += num_steps
        return arrays

    def _read(self, num_steps: int, actions: object, indices: np.ndarray) -> list[np.ndarray]:
        arrays = self._driver.read.plan(actions, indices, 0)
        if arrays is None or len(arrays[0]) != num_steps:
            got = f", got {len(arrays[0])} steps" if arrays is not None else f", got {_shape_of(actions)}"
            raise ActionError(f"actions must be of shape ({num_steps}, {len(indices)}, ...){got}")
        return arrays

    def take(self, lanes: Sequence[Lane]) -> None:
        """Lay the slots of some lanes, which have just come."""
        for lane in lanes:
            self._destinations[lane].lay_observations(1, 0, self.num_steps)
            self._destinations[lane].lay_results(0, self.num_steps)

    def batch(self, lanes: Sequence[Lane], first_observations: Sequence[np.ndarray]) -> tuple[Batch, list[np.ndarray]]:
        """Return what came back of some lanes, and their envs' last observations, an array for each leaf.

        Parameters
        ----------
        first_observations
            Those before the fragment, an array (num_envs, ...) for each leaf.
        """
        driver, block, num_steps = self._driver, self._block, self.num_steps
        sent = [self.under_way.pop(lane) for lane in lanes]
        for lane in lanes:
            self._destinations[lane].unpack(0, num_steps)
        envs = envs_of(lanes)
        for array, first in zip(block.observation_arrays, first_observations, strict=True):
            array[0, envs] = first
        last = [np.array(array[num_steps, envs]) for array in block.observation_arrays]
        is_given = bool(sent[0].actions)
        actions = (
            [np.concatenate(arrays, axis=1) for arrays in zip(*(one.actions for one in sent), strict=True)]
            if is_given
            else [array[:num_steps, envs] for array in block.action_arrays]
        )
        rewards, terminations, truncations = (np.array(column[:num_steps, envs]) for column in block.results)
        batch: Batch = {
            "observations": _tree(
                driver.observation_space, [array[:num_steps, envs] for array in block.observation_arrays]
            ),
            "actions": _tree(driver.action_space, actions),
            "rewards": rewards,
            "terminations": terminations,
            "truncations": truncations,
            "last_observations": _tree(driver.observation_space, last),
        }
        if self.policy is not None and not is_given:
            names = [leaf.path for leaf in driver.exchanges.contents.extras]
            extras = zip(names, block.extra_arrays, strict=True)
            batch["extras"] = {name: np.array(array[:num_steps, envs]) for name, array in extras}
            versions = np.repeat([one.version for one in sent], [lane.num_envs for lane in lanes])
            batch["policy_version"] = np.tile(versions, (num_steps, 1))
        return batch, last


def envs_of(lanes: Sequence[Lane]) -> slice | np.ndarray:
    """Return where the envs of some lanes are; neighbours as a slice."""
    is_joined = all(lane.envs.start == before.envs.stop for before, lane in pairwise(lanes))
    return slice(lanes[0].envs.start, lanes[-1].envs.stop) if is_joined else indices_of(lanes)


def _tree(space: spaces.Space, arrays: Sequence[np.ndarray]) -> Tree:
    return tree_of(space, [np.array(array) for array in arrays])


def _shape_of(actions: object) -> object:
    return getattr(actions, "shape", type(actions).__name__)
