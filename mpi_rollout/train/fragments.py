"""Fragments of a trainer: several steps of all envs in one exchange."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.layout import Block
from mpi_rollout.core.spaces import tree_of
from mpi_rollout.drive.lanes import Lane, indices_of
from mpi_rollout.drive.policy_on_ranks import PolicyOnRanks
from mpi_rollout.errors import ActionError, RankError, UsageError
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.process.host import check_length
from mpi_rollout.train.call_state import CallState
from mpi_rollout.train.steps import Steps

Batch = dict[str, Any]
NO_POLICY = "there is no policy on the ranks: give connect a policy, such as policy='mine:make_policy'"


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
    policy
        The ranks ask it for actions where the trainer gives none; None: random ones.
    """

    def __init__(self, steps: Steps, state: CallState):
        self._steps, self._driver, self._state = steps, steps.driver, state
        self.policy: PolicyOnRanks | None = None
        self._random: RandomPolicy | None = None
        self._next_step = dict.fromkeys(self._driver.lanes, 0)  # The next step of random actions.
        self._sent: dict[Lane, Sent] = {}  # What was sent last.
        self._num_steps = self._room = 0  # `_num_steps` are those of the fragments under way.
        self._block: Block

    def set_parameters(self, parameters: Mapping[str, Any] | Sequence[Any]) -> None:
        """Give the policy new parameters, see `MPIVectorEnv.set_policy`."""
        if self.policy is None:
            raise UsageError(NO_POLICY)
        if not self._driver.serves_first_ready:
            self._state.check_idle("set_policy")
        self.policy.set_parameters(parameters)

    def seed(self, seed: int) -> None:
        """Begin to draw random actions, or what the policy draws from, from this seed."""
        self._next_step = dict.fromkeys(self._next_step, 0)
        if self.policy is not None:
            self.policy.seed(seed)
        else:
            self._random = RandomPolicy(self._driver.action_space, self._driver.num_envs, seed)

    def send(self, lanes: Sequence[Lane], num_steps: int, actions: object) -> None:
        """Send the actions of several steps; None for random ones, or those of the policy on the ranks.

        Raises
        ------
        ActionError
            The actions are not of shape (num_steps, num_envs, ...), or not in their space; nothing was sent.
        ValueError
            The policy chooses the actions of other fragments under way, or of these alone, or they have another number
            of steps; nothing was sent.
        """
        if self._steps.recorder is not None:
            self._steps.recorder.make_room(lanes, num_steps)
        self._make_room(num_steps)
        given = None if actions is None else self._read(num_steps, actions, indices_of(lanes))
        if self.policy is not None and any(bool(sent.actions) == (given is None) for sent in self._under_way):
            raise ValueError("actions must be given for all fragments under way, or left to the policy for all of them")
        self._num_steps, start = num_steps, 0
        for lane in lanes:
            if given is None and self.policy is not None:
                self._sent[lane] = self._leave_to(self.policy, lane, num_steps)
            else:
                rows = slice(start, start := start + lane.num_envs)
                drawn = self._draw(lane, num_steps) if given is None else [array[:, rows] for array in given]
                self._driver.send(lane, drawn, num_steps)
                self._sent[lane] = Sent(drawn, 0)
            self._state.fragments.add(lane)

    @property
    def _under_way(self) -> list[Sent]:
        return [self._sent[lane] for lane in self._state.fragments]

    def _make_room(self, num_steps: int) -> None:
        """Let slots hold so many steps, if the fragments under way allow that to be done now."""
        if self._state.fragments and self._num_steps != num_steps:
            raise ValueError(f"num_steps must be {self._num_steps} while fragments of so many are under way")
        if self._room >= num_steps:
            return
        driver = self._driver
        exchange = max((lane.exchange for lane in driver.lanes), key=lambda exchange: exchange.layout.nbytes)
        num_slots = driver.exchanges.num_slots
        check_length(f"collect({num_steps})", num_steps, exchange.layout.nbytes, num_slots, exchange.order.nbytes)
        driver.make_room(num_steps)
        self._block = driver.block(num_steps + 1)
        self._unpackers = driver.unpackers(self._block)
        self._room = num_steps
        self._steps.outcomes.use_slots()

    def _leave_to(self, policy: PolicyOnRanks, lane: Lane, num_steps: int) -> Sent:
        policy.bring(lane)
        self._driver.send(lane, None, num_steps, self._next_step[lane])
        self._next_step[lane] += num_steps
        return Sent([], policy.version)

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
            shape = getattr(actions, "shape", type(actions).__name__)
            got = f", got {shape}" if arrays is None else f", got {len(arrays[0])} steps"
            raise ActionError(f"actions must be of shape ({num_steps}, {len(indices)}, ...){got}")
        return arrays

    def receive(self, num_lanes: int) -> tuple[list[Lane], Batch]:
        """Wait for the fragments of so many lanes, or of all that are under way; return the lanes and their batch."""
        try:
            self._steps.take_in(num_lanes, self._lay)
        except RankError as error:
            if self._steps.mode is AutoresetMode.DISABLED:
                error.args = (f"{error}; the fragment is void: call reset() for all envs",)
            raise
        lanes = self._steps.receive(num_lanes)
        self._state.fragments.difference_update(lanes)
        batch = self._batch(lanes, [self._sent[lane] for lane in lanes])
        ended = batch["terminations"] | batch["truncations"]
        self._state.note_ends(lanes, ended[-1])
        batch["infos"] = self._steps.infos(lanes, len(ended), ended)
        if self._steps.recorder is not None:
            self._steps.recorder.take_batch(lanes, batch)
        return lanes, batch

    def _lay(self, lanes: Sequence[Lane]) -> None:
        """Keep the slots of some lanes, which have just come."""
        for lane in lanes:
            self._unpackers[lane].lay_observations(1, 0, self._num_steps)
            self._unpackers[lane].lay_results(0, self._num_steps)

    def _batch(self, lanes: Sequence[Lane], sent: Sequence[Sent]) -> Batch:
        """Return the fragments of some lanes in new arrays; keep their last observations."""
        driver, block, num_steps, outcomes = self._driver, self._block, self._num_steps, self._steps.outcomes
        for lane in lanes:
            self._unpackers[lane].unpack(0, num_steps)
        envs = _envs_of(lanes)

        def rows(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            return [np.array(array[:num_steps, envs]) for array in arrays]

        for array, first in zip(block.observation_arrays, outcomes.last_arrays(lanes), strict=True):
            array[0, envs] = first
        last = [np.array(array[num_steps, envs]) for array in block.observation_arrays]
        outcomes.keep(lanes, last)
        is_given = bool(sent[0].actions)
        given = [np.concatenate(arrays, axis=1) for arrays in zip(*(one.actions for one in sent), strict=True)]
        rewards, terminations, truncations = rows(block.results)
        batch: Batch = {
            "observations": tree_of(driver.observation_space, rows(block.observation_arrays)),
            "actions": tree_of(driver.action_space, given if is_given else rows(block.action_arrays)),
            "rewards": rewards,
            "terminations": terminations,
            "truncations": truncations,
            "last_observations": tree_of(driver.observation_space, last),
        }
        if self.policy is not None and not is_given:
            names = [leaf.path for leaf in driver.exchanges.contents.extras]
            batch["extras"] = dict(zip(names, rows(block.extra_arrays), strict=True))
            versions = np.repeat([one.version for one in sent], [lane.num_envs for lane in lanes])
            batch["policy_version"] = np.tile(versions, (num_steps, 1))
        return batch


def _envs_of(lanes: Sequence[Lane]) -> slice | np.ndarray:
    """Return where the envs of some lanes are; neighbours as a slice."""
    is_joined = all(lane.envs.start == before.envs.stop for before, lane in pairwise(lanes))
    return slice(lanes[0].envs.start, lanes[-1].envs.stop) if is_joined else indices_of(lanes)
