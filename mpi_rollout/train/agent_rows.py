"""The agents of envs as envs of their own: the rows of a trainer that knows of one agent, env after env.

What comes from `connect(..., agents="axis", autoreset_mode="same_step")` is laid out so.  The row of an agent is done
when the agent leaves, and when the env's episode ends.  From an agent's end to that of its env, its row is an episode
of observations nearest to zero, without reward, which learns nothing and loses nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpi_rollout.core.spaces import Space, Tree, leaves, nearest_to_zero, tree_of
from mpi_rollout.envs.inputs import Step
from mpi_rollout.exchange.infos import FINAL_OBS


@dataclass(frozen=True)
class StepOfRows:
    """A step: arrays with a row for each agent of each env.

    `final_observations` has the last observation of each row that is done, by its index.
    """

    observations: Tree
    rewards: np.ndarray
    dones: np.ndarray
    is_cut: np.ndarray
    final_observations: dict[int, Tree]


class AgentRows:
    """Lays out the agents of `num_envs` envs as rows; `space` is that of the observations of one agent."""

    def __init__(self, agents: Sequence[str], num_envs: int, space: Space):
        self.agents, self._space, self._leaves = agents, space, leaves(space)
        self._shape = num_envs, len(agents)
        self.num_rows = num_envs * len(agents)
        self._nothing = nearest_to_zero(space)

    def observations(self, tree: Tree) -> Tree:
        """Return observations (num_envs, num_agents, ...) as rows."""
        arrays = [leaf.of(tree) for leaf in self._leaves]
        return tree_of(self._space, [array.reshape(self.num_rows, *array.shape[2:]) for array in arrays])

    def actions(self, rows: Tree, space: Space) -> Tree:
        """Return the actions of rows as the envs take them."""
        arrays = [np.asarray(leaf.of(rows)) for leaf in leaves(space)]
        return tree_of(space, [array.reshape(*self._shape, *array.shape[1:]) for array in arrays])

    def step(self, outcome: Step) -> StepOfRows:
        """Lay out what a step of the envs has given."""
        observations, rewards, terminations, truncations, infos = outcome
        has_left, ended = terminations | truncations, infos["ended"][:, None]
        rows, finals = self.observations(observations), dict[int, Tree]()
        dones = (has_left | ended).ravel()
        for row in np.flatnonzero(dones).tolist():
            env, agent = divmod(row, len(self.agents))
            source, place = (infos[FINAL_OBS][env], agent) if ended[env, 0] else (rows, row)
            finals[row] = tree_of(self._space, [np.array(leaf.of(source)[place]) for leaf in self._leaves])
            for leaf in () if ended[env, 0] else self._leaves:
                leaf.of(rows)[row] = leaf.of(self._nothing)
        return StepOfRows(rows, rewards.ravel(), dones, (truncations & ~terminations).ravel(), finals)
