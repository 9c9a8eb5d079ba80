"""How the policy is asked: it gets the last observations of some lanes' envs, and its actions go to the ranks."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from mpi_rollout.core.spaces import Space, Tree, leaves, rows_of, tree_of
from mpi_rollout.drive.blocks import LaneProgress, OpenBlocks
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.fragments import FragmentLengths
from mpi_rollout.drive.lanes import Lane, indices_of, parts_of
from mpi_rollout.drive.policy_on_ranks import PolicyOnRanks
from mpi_rollout.errors import ActionError, PolicyError, SignalInterrupt
from mpi_rollout.policies.blocks import BlockPolicy, refuse_pair
from mpi_rollout.policies.random import Policy, RandomPolicy
from mpi_rollout.process.exits import ends_forked
from mpi_rollout.text import words_of

AskedPolicy = Policy | BlockPolicy | PolicyOnRanks
Recall = Callable[[int], Tree]  # The observations of all envs in a step, shape (num_envs, ...).
MOST_DRAWING = 0.01  # Of a run's time on the root: more of it is left to the ranks.
TRIAL_S = 0.2  # After which this share is known.


class LanePlan(NamedTuple):
    """Actions that a policy has given for a lane's envs from a step on: for each leaf (num_steps, num_envs, ...)."""

    first_step: int
    arrays: list[np.ndarray]

    def num_left(self, step: int) -> int:
        """Return how many steps it has from this one on."""
        return self.first_step + len(self.arrays[0]) - step

    def rows(self, step: int, num_steps: int) -> list[np.ndarray]:
        """Return the actions of the next steps from this one on."""
        start = step - self.first_step
        return [array[start : start + num_steps] for array in self.arrays]


class Actor:
    """Asks the policy and posts its actions.

    Parameters
    ----------
    lengths
        Of fragments: random actions, and those of a policy that plans ahead, are sent for several steps at a time.
    inference
        Who chooses random actions: root, workers, or auto: the workers where it takes the root long.

    Attributes
    ----------
    inference
        Who chooses random actions now.
    recall
        In a continued run: what it needs to ask a policy that plans ahead where it was asked.
    """

    def __init__(
        self,
        driver: Driver,
        policy: AskedPolicy,
        blocks: OpenBlocks,
        lengths: FragmentLengths,
        inference: str = "root",
    ):
        self._driver, self._policy, self._blocks = driver, policy, blocks
        self._lengths, self.inference = lengths, inference
        self._random = policy if isinstance(policy, RandomPolicy) else None
        self._model = policy if isinstance(policy, BlockPolicy) else None
        self.recall: Recall | None = None
        self._plans: dict[Lane, LanePlan] = {}
        self._plan_length = 0
        self._began_s = 0.0
        self._policy_s = driver.clock.seconds["policy"]

    def act(self, progresses: Sequence[LaneProgress], stop: int) -> None:
        """Send some lanes' envs what they are to do in their next steps, which are before `stop`.

        Raises
        ------
        PolicyError
            The policy has failed.
        ActionError
            It gave what are no actions of these envs.
        """
        if self._random is not None:
            for progress in progresses:
                self._act_at_random(self._random, progress, stop)
            return
        if isinstance(self._policy, PolicyOnRanks):
            for progress in progresses:
                self._driver.send(progress.lane, None, self._find_room(progress, stop), progress.step)
            return
        plans = self._plans
        unplanned = [progress for progress in progresses if not self._has_plan(progress)] if plans else progresses
        if unplanned:
            self._ask_for(unplanned)
        if plans:
            for progress in progresses:
                if progress.lane in plans:
                    self._go_on_as_planned(progress, stop)

    def _has_plan(self, progress: LaneProgress) -> bool:
        plan = self._plans.get(progress.lane)
        return plan is not None and plan.num_left(progress.step) > 0

    def forget(self, step: int) -> None:
        """Let go of what was drawn for the steps before this one."""
        if self._random is not None:
            self._random.forget(step)

    def _act_at_random(self, policy: RandomPolicy, progress: LaneProgress, stop: int) -> None:
        lane, driver = progress.lane, self._driver
        num_steps = self._find_room(progress, stop)
        if self.inference == "workers" or (self.inference == "auto" and self._drawing_takes_long()):
            driver.send(lane, None, num_steps, progress.step)
            return
        arrays = policy.rows(progress.step, num_steps, _range_of(lane))
        driver.clock.lap("policy")
        driver.send(lane, arrays, num_steps, progress.step)

    def _drawing_takes_long(self) -> bool:
        """Leave the drawing to the ranks for good where it takes the root long."""
        clock = self._driver.clock
        self._began_s = self._began_s or clock.now
        elapsed_s = clock.now - self._began_s
        if elapsed_s > TRIAL_S:
            share = (clock.seconds["policy"] - self._policy_s) / elapsed_s
            self.inference = "workers" if share > MOST_DRAWING else "root"
        return self.inference == "workers"

    def _find_room(self, progress: LaneProgress, stop: int) -> int:
        num_steps = self._lengths.next(progress.lane, progress.step)
        return self._blocks.find_room(progress, min(num_steps, stop - progress.step))

    def _ask_for(self, progresses: Sequence[LaneProgress]) -> None:
        """Ask the policy for the actions of some lanes; send those of one step, or keep a plan."""
        lanes, driver = [progress.lane for progress in progresses], self._driver
        actions = self._ask(progresses)
        is_planned = self._model is None
        plan = driver.read.plan(actions, indices_of(lanes), progresses[0].step) if is_planned else None
        driver.clock.lap("policy")
        if plan is not None:
            self._keep(plan, progresses)
        elif self._plan_length > 1:
            raise ActionError(f"the policy gave the actions of one step, after plans of {self._plan_length} steps")
        elif self._lengths.most > 1:
            way = f"return actions of shape (num_steps, {sum(lane.num_envs for lane in lanes)}, ...)"
            way = "leave out --policy-on root" if self._model is not None else way
            raise ActionError(
                f"--fragment-length {self._lengths.most} has the actions of so many steps sent at a time, and the "
                f"policy gave those of one step, since it needs each observation; use --fragment-length 1, or {way}"
            )
        else:
            self._plan_length = 1
            arrays = driver.read(actions, indices_of(lanes))
            for progress, (lane, part) in zip(progresses, parts_of(lanes), strict=True):
                own = [array[part] for array in arrays]
                self._blocks.find_room(progress, 1)
                self._store(progress, own)
                driver.send(lane, own, 1, progress.step)

    def _keep(self, plan: list[np.ndarray], progresses: Sequence[LaneProgress]) -> None:
        """Keep the plans of some lanes.  All plans are equally long, so that it is known where a run asks again."""
        self._plan_length = self._plan_length or len(plan[0])
        if len(plan[0]) != self._plan_length:
            raise ActionError(f"the policy's plan has {len(plan[0])} steps, the one before had {self._plan_length}")
        start = 0
        for progress in progresses:
            rows = slice(start, start + progress.lane.num_envs)
            start = rows.stop
            self._plans[progress.lane] = LanePlan(progress.step, [array[:, rows] for array in plan])
            if progress.step % self._plan_length:
                self._plan_again(progress)

    def _plan_again(self, progress: LaneProgress) -> None:
        """Take up the plan of a run that was stopped amid it, with the observation that the plan was made from."""
        assert self.recall is not None, "a run that begins asks first in step 0"
        first_step = progress.step - progress.step % self._plan_length
        observations = rows_of(self.recall(first_step), progress.lane.envs)
        plan = self._driver.read.plan(self._call(observations), indices_of([progress.lane]), first_step)
        if plan is None or len(plan[0]) != self._plan_length:
            raise ActionError(f"the policy's plan has another length than {self._plan_length} steps")
        self._plans[progress.lane] = LanePlan(first_step, plan)

    def _go_on_as_planned(self, progress: LaneProgress, stop: int) -> None:
        plan = self._plans[progress.lane]
        num_steps = self._find_room(progress, min(stop, progress.step + plan.num_left(progress.step)))
        actions = plan.rows(progress.step, num_steps)
        self._store(progress, actions)
        self._driver.send(progress.lane, actions, num_steps, progress.step)

    @staticmethod
    def _store(progress: LaneProgress, actions: Sequence[np.ndarray]) -> None:
        rows = slice(progress.row, progress.row + progress.num_rows)
        for array, sent in zip(progress.open_block.block.action_arrays, actions, strict=True):
            array[rows, progress.lane.envs] = sent

    def _ask(self, progresses: Sequence[LaneProgress]) -> Tree:
        """Return the actions of some lanes' envs."""
        if self._model is None:
            actions = self._call(self._observations(progresses))
            refuse_pair(actions, self._driver.action_space, sum(progress.lane.num_envs for progress in progresses))
            return actions
        parts = [
            self._call(self._observations([progress]), _range_of(progress.lane), progress.step)
            for progress in progresses
        ]
        for progress, acted in zip(progresses, parts, strict=True):
            block = progress.open_block.block
            for array, values in zip(block.extra_arrays, acted.extras, strict=False):
                array[progress.row, progress.lane.envs] = values
        return concatenated(self._driver.action_space, [acted.actions for acted in parts])

    def _call(self, *arguments: Any) -> Any:
        assert not isinstance(self._policy, PolicyOnRanks), "the ranks ask it"
        try:
            with ends_forked:
                return self._policy(*arguments)
        except (SignalInterrupt, ActionError):
            raise
        except BaseException as error:
            raise PolicyError(f"policy: {words_of(error)}") from error

    def _observations(self, progresses: Sequence[LaneProgress]) -> Tree:
        """Copy the last observations of some lanes' envs, C-contiguous.

        The policy may write into them: what it gets shares no memory with the block, which is stored.
        """
        views = [progress.open_block.block.observations_of(progress.row, progress.lane.envs) for progress in progresses]
        if isinstance(views[0], np.ndarray):
            return np.concatenate(views)
        return concatenated(self._driver.observation_space, views)


def _range_of(lane: Lane) -> range:
    return range(lane.envs.start, lane.envs.stop)


def concatenated(space: Space, trees: Sequence[Tree]) -> Tree:
    """Return batches of some envs as a batch of all of them, in new arrays."""
    return tree_of(space, (np.concatenate([leaf.of(tree) for tree in trees]) for leaf in leaves(space)))
