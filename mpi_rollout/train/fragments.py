"""Fragments of a trainer: several steps of all envs in one exchange."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.layout import Block
from mpi_rollout.core.spaces import tree_of
from mpi_rollout.drive.driver import Lane
from mpi_rollout.drive.lanes import indices_of, parts_of
from mpi_rollout.drive.policy_on_ranks import PolicyOnRanks
from mpi_rollout.errors import ActionError, RankError, UsageError
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.train.ends import RootEnd
from mpi_rollout.train.steps import Steps

Batch = dict[str, Any]
NO_POLICY = "there is no policy on the ranks: give connect a policy, such as policy='mine:make_policy'"


class Fragments:
    """Sends actions of several steps, and makes arrays of what comes back.

    The ranks ask `policy` for actions where the trainer gives none; None: random ones.
    """

    def __init__(self, steps: Steps, end: RootEnd, policy: PolicyOnRanks | None = None):
        self._steps, self._driver, self._end, self._policy = steps, steps.driver, end, policy
        self._random: RandomPolicy | None = None
        self._next_step = dict.fromkeys(self._driver.lanes, 0)  # The first one that is not drawn yet.
        # What each lane was sent last: for each leaf (num_steps, num_envs, ...); none where the policy chooses.
        self._sent: dict[Lane, list[np.ndarray]] = {}
        self._num_steps = self._room = 0  # `_num_steps` are those of the fragments under way.
        self._block: Block

    def set_parameters(self, parameters: Mapping[str, object] | Sequence[object]) -> None:
        """Give the policy new parameters, see `MPIVectorEnv.set_policy`."""
        if self._policy is None:
            raise UsageError(NO_POLICY)
        if not self._driver.serves_first_ready:
            self._end.check_idle("set_policy")
        self._policy.set_parameters(parameters)

    def seed(self, seed: int) -> None:
        """Begin to draw random actions, or what the policy draws from, from this seed."""
        self._next_step = dict.fromkeys(self._next_step, 0)
        if self._policy is not None:
            self._policy.seed(seed)
        else:
            self._random = RandomPolicy(self._driver.action_space, self._driver.num_envs, seed)

    def send(self, lanes: Sequence[Lane], num_steps: int, actions: object) -> None:
        """Send the actions of several steps; None for random ones, or those of the policy on the ranks.

        Before anything is sent, ActionError if the actions are not of shape (num_steps, num_envs, ...), or not in their
        space; ValueError if the policy chooses the actions of other fragments under way, or of these alone, or they
        have another number of steps.
        """
        recorder = self._end.recorder
        if recorder is not None:
            recorder.make_room(lanes, num_steps)
        self._make_room(num_steps)
        given = None if actions is None else self._read(num_steps, actions, indices_of(lanes))
        is_left = given is None and self._policy is not None
        if any(is_left == bool(self._sent[lane]) for lane in self._end.fragments):
            raise ValueError("actions must be given for all fragments under way, or left to the policy for all of them")
        self._num_steps = num_steps
        for lane, part in parts_of(lanes):
            if given is not None:
                self._sent[lane] = [array[:, part] for array in given]
                self._driver.send(lane, self._sent[lane], num_steps)
            else:
                self._sent[lane] = self._choose(lane, num_steps)
            if recorder is not None and not is_left:
                recorder.act([lane], self._sent[lane])
            self._end.fragments.add(lane)

    def _make_room(self, num_steps: int) -> None:
        """Let slots hold so many steps, if the fragments under way allow that to be done now."""
        if self._end.fragments and self._num_steps != num_steps:
            raise ValueError(f"num_steps must be {self._num_steps} while fragments of so many are under way")
        if self._room >= num_steps:
            return
        driver = self._driver
        driver.check_room(f"collect({num_steps})", num_steps)
        driver.make_room(num_steps)
        self._block = driver.block(num_steps + 1)
        self._unpackers = driver.unpackers(self._block)
        self._room = num_steps
        self._steps.outcomes.use_slots()

    def _choose(self, lane: Lane, num_steps: int) -> list[np.ndarray]:
        """Leave the next steps of a lane to the policy, or send it random actions; return these."""
        if self._policy is None and self._random is None:
            self.seed(int(np.random.SeedSequence().generate_state(1, np.uint64)[0]))
        step, drawn = self._next_step[lane], list[np.ndarray]()
        if self._policy is not None:
            self._policy.bring(lane)
            self._driver.send(lane, None, num_steps, step)
        elif self._random is not None:
            self._random.forget(min(self._next_step.values()))
            drawn = self._random.rows(step, num_steps, lane.exchange.partition.envs)
            self._driver.send(lane, drawn, num_steps)
        self._next_step[lane] += num_steps
        return drawn

    def _read(self, num_steps: int, actions: object, indices: np.ndarray) -> list[np.ndarray]:
        form = self._steps.form
        arrays = self._driver.read.plan(actions if form is None else form.actions(actions, 2), indices)
        if arrays is None or len(arrays[0]) != num_steps:
            shape = getattr(actions, "shape", type(actions).__name__)
            got = f", got {shape}" if arrays is None else f", got {len(arrays[0])} steps"
            raise ActionError(f"actions must be of shape ({num_steps}, {len(indices)}, ...){got}")
        return arrays

    def receive(self, num_lanes: int) -> tuple[list[Lane], Batch]:
        """Wait for the fragments of so many lanes, or of all that are under way; return the lanes and their batch."""
        steps = self._steps
        try:
            lanes = steps.receive(num_lanes, self._lay)
        except RankError as error:
            if steps.mode is AutoresetMode.DISABLED:
                error.args = (f"{error}; the fragment is void: call reset() for all envs",)
            raise
        self._end.fragments.difference_update(lanes)
        return lanes, self._batch(lanes)

    def _lay(self, lanes: Sequence[Lane]) -> None:
        """Keep the slots of some lanes, which have just come."""
        for lane in lanes:
            self._unpackers[lane].lay_observations(1, 0, self._num_steps)
            self._unpackers[lane].lay_results(0, self._num_steps)

    def _batch(self, lanes: Sequence[Lane]) -> Batch:
        """Return the fragments of some lanes in new arrays; keep their last observations, and record all of it."""
        driver, block, outcomes = self._driver, self._block, self._steps.outcomes
        steps, envs = slice(0, self._num_steps), _envs_of(lanes)
        for array, first in zip(block.observation_arrays, outcomes.last_arrays(lanes), strict=True):
            array[0, envs] = first
        last = [np.array(array[self._num_steps, envs]) for array in block.observation_arrays]
        outcomes.keep(lanes, last)
        observations, results, actions, extras = (
            [np.array(array[steps, envs]) for array in arrays]
            for arrays in (block.observation_arrays, block.outcomes, block.action_arrays, block.extra_arrays)
        )
        sent = [self._sent[lane] for lane in lanes]
        is_given = bool(sent[0])
        if is_given:
            actions = [np.concatenate(arrays, axis=1) for arrays in zip(*sent, strict=True)]
        rewards, terminations, truncations, *_ = results
        ended = terminations | truncations
        self._end.note_ends(lanes, ended[-1])
        infos, noted = self._steps.infos(lanes, self._num_steps, ended)
        batch: Batch = {
            "observations": tree_of(driver.observation_space, observations),
            "actions": tree_of(driver.action_space, actions),
            "rewards": rewards,
            "terminations": terminations,
            "truncations": truncations,
            "last_observations": tree_of(driver.observation_space, last),
            "infos": infos,
        }
        if self._policy is not None and not is_given:
            names = [leaf.path for leaf in driver.exchanges.contents.extras]
            batch["extras"] = dict(zip(names, extras, strict=True))
            versions = np.repeat([self._policy.version_of(lane) for lane in lanes], [lane.num_envs for lane in lanes])
            batch["policy_version"] = np.tile(versions, (self._num_steps, 1))
            extras.append(batch["policy_version"])
        if self._end.recorder is not None:
            after = [array[1 : self._num_steps + 1, envs] for array in block.observation_arrays]
            chosen = () if is_given else (*actions, *extras)
            self._end.recorder.take(lanes, results, after, noted, chosen)
        form = self._steps.form
        return batch if form is None else form.batch(batch, results, observations, last)


def _envs_of(lanes: Sequence[Lane]) -> slice | np.ndarray:
    """Return where the envs of some lanes are; neighbours as a slice."""
    is_joined = all(lane.envs.start == before.envs.stop for before, lane in pairwise(lanes))
    return slice(lanes[0].envs.start, lanes[-1].envs.stop) if is_joined else indices_of(lanes)
