"""Where the actions of a run come from.  Each source sends lanes the actions of their next steps.

Actions that come back with the slots are stored from there.  Others go into their rows when they are sent.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from mpi_rollout.core.spaces import Space, Tree, leaves, rows_of, tree_of
from mpi_rollout.drive.blocks import Blocks
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.lanes import Lane, indices_of, parts_of
from mpi_rollout.errors import ActionError, PolicyError, SignalInterrupt
from mpi_rollout.policies.blocks import BlockPolicy, check_actions_alone
from mpi_rollout.policies.model import Policy
from mpi_rollout.process.exits import ends_forked
from mpi_rollout.text import counted, words_of

Given = TypeVar("Given")


class Span(NamedTuple):
    """The next steps of a lane: at most `num_steps` from `step` on."""

    lane: Lane
    step: int
    num_steps: int


class ActionSource(Protocol):
    """Sends actions."""

    def send(self, spans: Sequence[Span], blocks: Blocks) -> None:
        """Send lanes the actions of their next steps, which have rows in the blocks.

        Raises
        ------
        PolicyError
            The policy has failed.
        ActionError
            It gave what are no actions of these envs.
        """


class RankActions:
    """The ranks choose: by a policy of their own, or at random."""

    def __init__(self, driver: Driver):
        self._driver = driver

    def send(self, spans: Sequence[Span], _blocks: Blocks) -> None:
        for lane, step, num_steps in spans:
            self._driver.send(lane, None, num_steps, step)


class ModelActions:
    """A model on the root, which is asked for fixed blocks of envs, and for one step."""

    def __init__(self, driver: Driver, policy: BlockPolicy):
        self._driver, self._policy = driver, policy

    def send(self, spans: Sequence[Span], blocks: Blocks) -> None:
        driver = self._driver
        for span in spans:
            lane, step, _ = span
            observations = last_observations(driver.observation_space, [span], blocks)
            acted = _asked(self._policy, observations, lane.exchange.partition.envs, step)
            driver.clock.lap("policy")
            arrays = driver.read(acted.actions, lane.env_indices)
            block, row = blocks.at(step)
            for array, values in zip(block.extra_arrays, acted.extras, strict=False):
                array[row, lane.envs] = values
            _store(blocks, lane, step, [array[np.newaxis] for array in arrays])
            driver.send(lane, arrays, 1, step)


class PolicyActions:
    """A callable on the root.  It gives actions of one step, or a plan: those of several steps.

    Parameters
    ----------
    most
        The longest fragment: more than one step needs plans.

    Attributes
    ----------
    recall
        In a continued run, returns the observations (num_envs, ...) of an earlier step: a policy that plans is asked
        again where it was asked.
    """

    def __init__(self, driver: Driver, policy: Policy, most: int = 1):
        self._driver, self._policy, self._most = driver, policy, most
        self.recall: Callable[[int], Tree] | None = None
        # The first step of each lane's plan, and for each leaf its actions (num_steps, num_envs, ...).
        self._plans: dict[Lane, tuple[int, list[np.ndarray]]] = {}
        self._length = 0  # All plans are equally long, so that it is known where a run asks again.

    def send(self, spans: Sequence[Span], blocks: Blocks) -> None:
        if unplanned := [span for span in spans if span.step >= self._stop(span.lane)]:
            self._ask(unplanned, blocks)
        for lane, step, num_steps in spans:
            first, plan = self._plans[lane]
            actions = [array[step - first : step - first + num_steps] for array in plan]
            _store(blocks, lane, step, actions)
            self._driver.send(lane, actions, len(actions[0]), step)

    def _stop(self, lane: Lane) -> int:
        first, plan = self._plans.get(lane, (0, [()]))
        return first + len(plan[0])

    def _ask(self, spans: Sequence[Span], blocks: Blocks) -> None:
        lanes, driver = [span.lane for span in spans], self._driver
        indices = indices_of(lanes)
        actions = _asked(self._policy, last_observations(driver.observation_space, spans, blocks))
        check_actions_alone(actions, driver.action_space, len(indices))
        plan = driver.read.plan(actions, indices)
        driver.clock.lap("policy")
        if plan is None:
            if self._most > 1:
                raise too_short(self._most, f"return actions of shape (num_steps, {len(indices)}, ...)")
            plan = [array[np.newaxis] for array in driver.read(actions, indices)]
        self._check(plan)
        for span, (lane, part) in zip(spans, parts_of(lanes), strict=True):
            self._plans[lane] = span.step, [array[:, part] for array in plan]
            if span.step % self._length:
                self._ask_again(span)

    def _check(self, plan: list[np.ndarray]) -> None:
        self._length = self._length or len(plan[0])
        if len(plan[0]) != self._length:
            raise ActionError(f"the policy's plan has {counted(len(plan[0]), 'step')}, the one before {self._length}")

    def _ask_again(self, span: Span) -> None:
        """Take up the plan within which a run was stopped, with the observations that it was made from."""
        assert self.recall is not None, "a run that begins asks first in step 0"
        lane, first = span.lane, span.step - span.step % self._length
        actions = _asked(self._policy, rows_of(self.recall(first), lane.envs))
        plan = self._driver.read.plan(actions, lane.env_indices)
        if plan is None:
            raise ActionError(f"the policy gave the actions of one step, after a plan of {self._length} steps")
        self._check(plan)
        self._plans[lane] = first, plan


def too_short(length: int, way_out: str) -> ActionError:
    """Return the error of a policy that does not plan, where fragments have several steps."""
    return ActionError(
        f"--fragment-length {length} needs a policy that returns several steps at a time, this one returned one step; "
        f"use --fragment-length 1, or {way_out}"
    )


def last_observations(space: Space, spans: Sequence[Span], blocks: Blocks) -> Tree:
    """Copy the last observations of some lanes' envs, C-contiguous.

    The policy may write into them: they share no memory with the block, which is stored.
    """
    views = []
    for lane, step, _ in spans:
        block, row = blocks.at(step)
        views.append(block.observations_of(row, lane.envs))
    if isinstance(views[0], np.ndarray):
        return np.concatenate(views)
    return tree_of(space, (np.concatenate([leaf.of(view) for view in views]) for leaf in leaves(space)))


def _asked(policy: Callable[..., Given], *arguments: object) -> Given:
    try:
        with ends_forked:
            return policy(*arguments)
    except (SignalInterrupt, ActionError):
        raise
    except BaseException as error:
        raise PolicyError(f"policy: {words_of(error)}") from error


def _store(blocks: Blocks, lane: Lane, step: int, actions: Sequence[np.ndarray]) -> None:
    block, row = blocks.at(step)
    for array, sent in zip(block.action_arrays, actions, strict=True):
        array[row : row + len(sent), lane.envs] = sent
