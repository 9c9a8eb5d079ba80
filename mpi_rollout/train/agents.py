"""What a trainer is given of envs with several agents: dicts by agent, arrays with an axis of agents, or their rows.

Behind the results of the env as a whole come those of its agents, see `core.columns.outcomes_of`.  Behind the leaves of
observations comes which agents are alive.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.vector.utils import batch_space

from mpi_rollout.core.columns import ALL_AGENTS, RESULTS
from mpi_rollout.core.spaces import AgentsSpace, Space, Tree, agents_of, describe, leaves, nearest_to_zero, tree_of
from mpi_rollout.envs.inputs import Info, Step
from mpi_rollout.errors import ActionError, Option, UsageError

FORMS = "dict", "axis"


class AgentsForm:
    """How observations, actions, results and ends of several agents are laid out; "dict" or "axis".

    The spaces are those of one env, by agent.  UsageError for an axis of agents whose spaces are not equal.
    """

    def __init__(self, observation_space: AgentsSpace, action_space: AgentsSpace, form: str):
        self.names, self.is_axis = agents_of(observation_space), form == "axis"
        self._observed, self._acted = observation_space[self.names[0]], action_space[self.names[0]]
        self.agent_spaces = (self._observed, self._acted) if self.is_axis else ()
        for agent in self.names if self.is_axis else ():
            for space, first in ((observation_space, self._observed), (action_space, self._acted)):
                if describe(space[agent]) != describe(first):
                    pair = f"{self.names[0]!r} has {first}, {agent!r} has {space[agent]}"
                    raise UsageError(Option("agents"), f" axis needs agents with equal spaces, {pair}; use ", DICT)

    def space(self, by_agent: Space) -> Space:
        """Return the space of one env, of observations or actions by agent, as the trainer sees it."""
        if not self.is_axis:
            return by_agent
        assert isinstance(by_agent, AgentsSpace)
        return batch_space(by_agent[self.names[0]], len(self.names))

    def observations(self, by_agent: Tree, num_axes: int) -> Tree:
        """Return observations in this form; their arrays have `num_axes` axes before those of a single observation."""
        return self._joined(self._observed, by_agent, num_axes) if self.is_axis else by_agent

    def _joined(self, space: Space, by_agent: Tree, num_axes: int) -> Tree:
        parts = [np.stack([leaf.of(by_agent[name]) for name in self.names], num_axes) for leaf in leaves(space)]
        return tree_of(space, parts)

    def actions(self, actions: Any, num_axes: int) -> Tree:
        """Return the actions of a trainer by agent; ActionError if they have no axis of the agents."""
        if not self.is_axis:
            return actions
        try:
            arrays = [np.asarray(leaf.of(actions)) for leaf in leaves(self._acted)]
        except (LookupError, TypeError, ValueError):
            arrays = []
        if not arrays or any(array.shape[num_axes : num_axes + 1] != (len(self.names),) for array in arrays):
            shape = ", ".join([*("num_steps",) * (num_axes - 1), "num_envs", str(len(self.names)), "..."])
            got = getattr(actions, "shape", type(actions).__name__)
            raise ActionError(f"actions of {len(self.names)} agents must be of shape ({shape}), got {got}")
        parts = enumerate(self.names)
        return {name: tree_of(self._acted, [array.take(i, num_axes) for array in arrays]) for i, name in parts}

    def columns(self, arrays: Sequence[np.ndarray]) -> Tree:
        """Return arrays, one for each agent, in this form."""
        return np.stack(arrays, -1) if self.is_axis else dict(zip(self.names, arrays, strict=True))

    def results(self, results: Sequence[np.ndarray]) -> list[Tree]:
        """Return rewards, terminations and truncations; dicts have the ends of the env as a whole, too."""
        size = len(self.names)
        formed = [self.columns(results[start : start + size]) for start in range(3, len(results), size)]
        for own, of_all in () if self.is_axis else zip(formed[1:], results[1:3], strict=True):
            own[ALL_AGENTS] = of_all
        return formed

    def say(self, infos: Info, alive: Sequence[np.ndarray], ended: np.ndarray | None = None) -> Info:
        """Add to the infos of a step which agents are alive now, and with an axis which envs' episodes have ended."""
        infos["alive"] = self.columns([np.array(flags) for flags in alive])
        if self.is_axis and ended is not None:
            infos["ended"] = ended
        return infos

    def form_finals(self, finals: np.ndarray) -> None:
        """Bring the last observations of envs, None where there is none, into this form."""
        for index, observation in enumerate(finals) if self.is_axis else ():
            if observation is not None:
                finals[index] = self.observations(observation, 0)

    def batch(
        self, batch: dict[str, Any], results: Sequence[np.ndarray], before: Sequence[np.ndarray], last: Sequence[Any]
    ) -> dict[str, Any]:
        """Return a fragment in this form; `alive` says which agents acted in each step.

        `before` and `last` are what was shown before each step, and after the last one: at their ends which agents were
        alive.
        """
        before, last = before[-len(self.names) :], last[-len(self.names) :]
        ended = results[1] | results[2]
        for step, infos in enumerate(batch["infos"]):
            alive = [flags[step + 1] for flags in before] if step + 1 < len(ended) else last
            self.say(infos, alive, ended[step])
        formed = dict(zip((leaf.path for leaf in RESULTS), self.results(results), strict=True))
        formed |= {"observations": self.observations(batch["observations"], 2), "alive": self.columns(before)}
        if self.is_axis:
            formed["actions"] = self._joined(self._acted, batch["actions"], 2)
        return batch | formed | {"last_observations": self.observations(batch["last_observations"], 1)}


DICT = Option("agents", "dict")


def form_of(observation_space: Space, action_space: Space, form: str) -> AgentsForm | None:
    """Return the form for a trainer; None where envs have no agents, for which only "dict" means nothing."""
    if isinstance(observation_space, AgentsSpace) and isinstance(action_space, AgentsSpace):
        return AgentsForm(observation_space, action_space, form)
    if form != FORMS[0]:
        raise UsageError(Option("agents"), f" {form} is for envs with several agents, these have none; leave it out")
    return None


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
    """The agents of `num_envs` envs as envs of their own: rows of a trainer that knows of one agent, env after env.

    What comes from `connect(..., agents="axis", autoreset_mode="same_step")` is laid out so.  The row of an agent is
    done when the agent leaves, when it pauses, which cuts its episode, and when the env's episode ends.  While it does
    not act, its row is an episode of observations nearest to zero, without reward, which learns nothing and loses
    nothing; that one is done when the agent comes back, or with the env's episode.  `space` is that of the observations
    of one agent.
    """

    def __init__(self, agents: Sequence[str], num_envs: int, space: Space):
        self.agents, self._space, self._leaves = agents, space, leaves(space)
        self._shape = num_envs, len(agents)
        self.num_rows = num_envs * len(agents)
        self._nothing = nearest_to_zero(space)
        self._acts = np.ones(self._shape, np.bool_)  # Who acts in the next step.

    def reset(self, tree: Tree, alive: np.ndarray) -> Tree:
        """Return observations (num_envs, num_agents, ...) after a reset as rows; `alive` says who acts next."""
        self._acts = alive
        return self._observations(tree)

    def _observations(self, tree: Tree) -> Tree:
        arrays = [leaf.of(tree) for leaf in self._leaves]
        return tree_of(self._space, [array.reshape(self.num_rows, *array.shape[2:]) for array in arrays])

    def actions(self, rows: Tree, space: Space) -> Tree:
        """Return the actions of rows as the envs take them."""
        arrays = [np.asarray(leaf.of(rows)) for leaf in leaves(space)]
        return tree_of(space, [array.reshape(*self._shape, *array.shape[1:]) for array in arrays])

    def step(self, outcome: Step, last_observations: Mapping[int, Tree], alive: np.ndarray) -> StepOfRows:
        """Lay out what a step of the envs has given.

        `last_observations` are those of the envs that ended, `alive` (num_envs, num_agents) says who acts next.
        """
        observations, rewards, terminations, truncations, _ = outcome
        has_left, ended = terminations | truncations, np.zeros((self._shape[0], 1), np.bool_)
        ended[list(last_observations)] = True
        acted, self._acts = self._acts, alive
        pauses = acted & ~alive & ~has_left & ~ended
        rows, finals = self._observations(observations), dict[int, Tree]()
        dones = (has_left | ended | (acted != alive)).ravel()
        is_absent = ~(alive | ended).ravel()
        for row in np.flatnonzero(dones).tolist():
            env, agent = divmod(row, len(self.agents))
            source, place = (last_observations[env], agent) if ended[env, 0] else (rows, row)
            if not acted[env, agent]:
                finals[row] = deepcopy(self._nothing)
                continue
            finals[row] = tree_of(self._space, [np.array(leaf.of(source)[place]) for leaf in self._leaves])
            for leaf in self._leaves if is_absent[row] else ():
                leaf.of(rows)[row] = leaf.of(self._nothing)
        is_cut = (truncations & ~terminations | pauses).ravel()
        return StepOfRows(rows, rewards.ravel(), dones, is_cut, finals)
