"""Where the actions of a run come from: each class is a `source.Source`."""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TypeVar

import numpy as np

from mpi_rollout.core.spaces import Space, Tree, map_tree
from mpi_rollout.drive.policy_on_ranks import PolicyOnRanks
from mpi_rollout.drive.recall import Recall
from mpi_rollout.drive.source import Choice, Shown, Span
from mpi_rollout.errors import ActionError, PolicyError, SignalInterrupt
from mpi_rollout.policies.action_check import ActionReader, check_actions_alone
from mpi_rollout.policies.blocks import BlockPolicy
from mpi_rollout.policies.memory import STATE
from mpi_rollout.policies.model import Policy
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.process.exits import ends_forked
from mpi_rollout.text import counted, words_of

Given = TypeVar("Given")


class RandomActions:
    """Random actions, which rank 0 draws for all envs.

    A rank draws again for those of its envs that have action masks.
    """

    is_on_ranks = False

    def __init__(self, random: RandomPolicy):
        self._random = random
        self._steps: dict[range, int] = {}  # The first step of each env's last span.

    def resume(self, _recall: Recall) -> None:
        """Do nothing: actions depend on seed, env and step alone."""

    def actions(self, spans: Sequence[Span], _shown: Shown) -> Iterator[Choice]:
        for span in spans:
            self._steps[span.envs] = span.step
            self._random.forget(min(self._steps.values()))
            yield Choice(span, self._random.rows(span.step, span.num_steps, span.envs))


class RankActions:
    """The ranks choose: by a policy of their own, if there is one, or at random."""

    is_on_ranks = True

    def __init__(self, policy: PolicyOnRanks | None = None):
        self._policy = policy

    def resume(self, recall: Recall) -> None:
        if self._policy is not None:
            for rows in recall.rows(STATE in self._policy.takes):
                self._policy.remind(rows)

    def actions(self, spans: Sequence[Span], _shown: Shown) -> Iterator[Choice]:
        for span in spans:
            yield Choice(span, None)


class ModelActions:
    """A model on the root, which is asked for fixed blocks of envs, and for one step.

    `make` makes the policy of some envs; `takes` is what it takes besides observations, see `policies.memory`.
    """

    is_on_ranks = False

    def __init__(self, make: Callable[[range], BlockPolicy], spans: Sequence[range], read: ActionReader):
        self._policies = {envs: make(envs) for envs in spans}
        self._read, self._stepped = read, set[range]()
        self._indices = indices_by_span(spans)
        self.takes = next(iter(self._policies.values())).takes

    def resume(self, recall: Recall) -> None:
        for rows in recall.rows(STATE in self.takes):
            for policy in self._policies.values():
                policy.remind(rows)

    def actions(self, spans: Sequence[Span], shown: Shown) -> Iterator[Choice]:
        for span in spans:
            policy = self._policies[span.envs]
            if self.takes:
                if span.envs in self._stepped:
                    policy.view.note_step(*shown.ends(span))
                self._stepped.add(span.envs)
                policy.view.note_infos(shown.infos(span))
            acted = _asked(policy, shown.observations([span]), span.step)
            arrays = self._read(acted.actions, self._indices[span.envs])
            yield Choice(span, [array[np.newaxis] for array in arrays], acted.extras)


class PolicyActions:
    """A callable on the root.  It gives actions of one step, or a plan: those of several steps.

    `most` is the longest fragment: more than one step needs plans.
    """

    is_on_ranks = False

    def __init__(self, policy: Policy, spans: Sequence[range], action_space: Space, read: ActionReader, most: int = 1):
        self._policy, self._most = policy, most
        self._action_space, self._read, self._indices = action_space, read, indices_by_span(spans)
        # Of some envs the first step of their plan, and for each leaf its actions (num_steps, num_envs, ...).
        self._plans: dict[range, tuple[int, list[np.ndarray]]] = {}
        self._length = 0  # All plans are equally long, so that it is known where a run asks again.

    def resume(self, recall: Recall) -> None:
        """Take up the plans within which a run was stopped, with the observations that they were made from."""
        for envs, indices in self._indices.items():
            observed, step = itemgetter(slice(envs.start, envs.stop)), recall.num_steps
            plan = self._ask(map_tree(observed, recall.observations(step)), indices)
            if taken := step % self._length:
                plan = self._ask(map_tree(observed, recall.observations(step - taken)), indices)
            self._plans[envs] = step - taken, plan

    def actions(self, spans: Sequence[Span], shown: Shown) -> Iterator[Choice]:
        if unplanned := [span for span in spans if span.step >= self._stop(span.envs)]:
            indices = [self._indices[span.envs] for span in unplanned]
            plan = self._ask(
                shown.observations(unplanned), indices[0] if len(indices) == 1 else np.concatenate(indices)
            )
            start = 0
            for span in unplanned:
                stop = start + len(span.envs)
                self._plans[span.envs] = span.step, [array[:, start:stop] for array in plan]
                start = stop
        for span in spans:
            first, plan = self._plans[span.envs]
            rows = slice(span.step - first, span.step - first + span.num_steps)
            yield Choice(span, [array[rows] for array in plan])

    def _stop(self, envs: range) -> int:
        first, plan = self._plans.get(envs, (0, [()]))
        return first + len(plan[0])

    def _ask(self, observations: Tree, indices: np.ndarray) -> list[np.ndarray]:
        """Return a plan for some envs: for each leaf its actions (num_steps, num_envs, ...)."""
        actions = _asked(self._policy, observations)
        check_actions_alone(actions, self._action_space, len(indices))
        plan = self._read.plan(actions, indices)
        if plan is None:
            if self._most > 1:
                raise too_short(self._most, f"return actions of shape (num_steps, {len(indices)}, ...)")
            plan = [array[np.newaxis] for array in self._read(actions, indices)]
        self._length = self._length or len(plan[0])
        if len(plan[0]) != self._length:
            raise ActionError(f"the policy's plan has {counted(len(plan[0]), 'step')}, the one before {self._length}")
        return plan


def indices_by_span(spans: Sequence[range]) -> dict[range, np.ndarray]:
    """Return the env indices of each range of neighbouring envs, for messages."""
    return {envs: np.arange(envs.start, envs.stop) for envs in spans}


def too_short(length: int, way_out: str) -> ActionError:
    """Return the error of a policy that does not plan, where fragments have several steps."""
    return ActionError(
        f"--fragment-length {length} needs a policy that returns several steps at a time, this one returned one step; "
        f"use --fragment-length 1, or {way_out}"
    )


def _asked(policy: Callable[..., Given], *arguments: object) -> Given:
    try:
        with ends_forked:
            return policy(*arguments)
    except (SignalInterrupt, ActionError):
        raise
    except BaseException as error:
        raise PolicyError(f"policy: {words_of(error)}") from error
