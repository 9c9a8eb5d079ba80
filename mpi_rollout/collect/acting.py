"""How the policy is asked: it gets the last observations of some lanes' envs, and its actions go to the ranks."""

from collections.abc import Sequence

import numpy as np

from mpi_rollout.collect.blocks import LaneProgress
from mpi_rollout.core.spaces import Tree, leaves, rows_of, tree_of
from mpi_rollout.errors import PolicyError, SignalInterrupt, words_of
from mpi_rollout.policies.random import Policy, RandomPolicy
from mpi_rollout.process.exits import ends_forked
from mpi_rollout.ranks.driver import Driver


class Actor:
    """Asks the policy and posts its actions.

    Attributes
    ----------
    asks_lanes_alone
        The policy looks at no observations, so that nothing is won by asking it for several lanes at once.
    """

    def __init__(self, driver: Driver, policy: Policy):
        self._driver, self._policy = driver, policy
        self._random = policy if isinstance(policy, RandomPolicy) else None
        self.asks_lanes_alone = self._random is not None

    def act(self, progresses: Sequence[LaneProgress]) -> None:
        """Ask the policy what some lanes' envs do, send it to them, and write it into their rows.

        Raises
        ------
        PolicyError
            The policy has failed.
        ActionError
            It gave what are no actions of these envs.
        """
        actions = self._ask(progresses) if self._random is None else self._draw(self._random, progresses[0])
        self._driver.clock.lap("policy")
        self._driver.send([progress.lane for progress in progresses], actions, self._random is not None)
        for progress in progresses:
            lane, rows = progress.lane, progress.open_block.block.action_arrays
            for array, sent in zip(rows, lane.exchange.action_arrays, strict=True):
                array[progress.row, lane.envs] = sent

    def forget(self, step: int) -> None:
        """Let go of what was drawn for the steps before this one."""
        if self._random is not None:
            self._random.forget(step)

    def _draw(self, policy: RandomPolicy, progress: LaneProgress) -> Tree:
        lane = progress.lane
        if lane.is_marked and lane.exchange.layout.infos:
            packed, has_mask = map(lane.exchange.take, lane.exchange.columns.info_arrays[0])
            if has_mask.any():
                return policy.by_masks(progress.step, lane.envs, has_mask, packed)
        return rows_of(policy.at(progress.step), lane.envs)

    def _ask(self, progresses: Sequence[LaneProgress]) -> Tree:
        observations = self._observations(progresses)
        try:
            with ends_forked:
                return self._policy(observations)
        except SignalInterrupt:
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
        space = self._driver.observation_space
        return tree_of(space, (np.concatenate([leaf.of(view) for view in views]) for leaf in leaves(space)))
