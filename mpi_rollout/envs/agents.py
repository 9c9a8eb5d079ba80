"""Envs with several agents: a `pettingzoo.ParallelEnv` as a Gymnasium env, and the columns of its agents.

Observations and actions of such an env are dicts by agent, of all agents that are possible.  An agent that is not alive
has an observation of zeros, or of the bounds that are nearest to zero, and its action is not handed on.  The env's
reward is the sum of its agents' rewards, in the order of `possible_agents`.  An episode ends when no agent is left, or
all that are left have ended: it is terminated if all these have terminated, else truncated.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from mpi_rollout.core.columns import ALL_AGENTS
from mpi_rollout.core.layout import Columns
from mpi_rollout.core.spaces import AgentsSpace, Space, Tree, agents_of, nearest_to_zero
from mpi_rollout.envs.faults import Begun, Outcome, begun
from mpi_rollout.envs.inputs import Info, OptionsOfOne
from mpi_rollout.errors import DataError, UsageError

OF_AGENT = 4  # What an outcome has of each agent: its reward, whether it terminated, was truncated, is alive.


def is_of_pettingzoo(made: object, kind: str) -> bool:
    """Tell whether something is a `ParallelEnv` or an `AECEnv`, without importing PettingZoo."""
    pettingzoo = sys.modules.get("pettingzoo")
    return pettingzoo is not None and isinstance(made, getattr(pettingzoo, kind))


class AgentsEnv(gymnasium.Env):
    """A `pettingzoo.ParallelEnv` with Gymnasium's methods; its own attributes can be read through it.

    UsageError if its agents have no names that a file can have, or no spaces.

    Attributes
    ----------
    outcome
        What the last step or reset has led to, as the row of a table: the agents' rewards, terminations and
        truncations, and which agents are alive.
    is_part
        Another rank looks at what steps and resets return; here it may be nothing.
    """

    is_part = False

    def __init__(self, parallel_env: Any, name: str):
        self.parallel_env = parallel_env
        self.metadata = getattr(parallel_env, "metadata", None) or {}
        self.render_mode = getattr(parallel_env, "render_mode", None)
        self.agent_names = agents = tuple(getattr(parallel_env, "possible_agents", None) or ())
        are_names = all(isinstance(agent, str) and agent != ALL_AGENTS for agent in agents)
        if not agents or not are_names or len({*agents}) < len(agents):
            expected = f"possible_agents, a list of different names, of which none is {ALL_AGENTS}"
            raise UsageError(f"{name}: a ParallelEnv must have {expected}, got {list(agents)!r:.80}")
        self.observation_space, self.action_space = (
            AgentsSpace({agent: _space_of(method, agent, name) for agent in agents})
            for method in (parallel_env.observation_space, parallel_env.action_space)
        )
        self._known, self._alive, self._none = frozenset(agents), frozenset[str](), (0,) * len(agents)
        self._absent = {agent: nearest_to_zero(space) for agent, space in self.observation_space.spaces.items()}
        self.leave_out()

    def leave_out(self, alive: Sequence[float] = ()) -> None:
        """Forget the last outcome.  No agent is alive then, or those are whose flags in `alive` say so."""
        num_others = OF_AGENT * len(self.agent_names) - len(alive)
        self.outcome: list[float] = [0] * num_others + [*alive]

    def reset(self, *, seed: int | None = None, options: OptionsOfOne = None) -> Begun:
        """Start an episode."""
        outcome = self.parallel_env.reset(seed=seed, options=options)
        self._look()
        if self.is_part:
            return {}, {}
        observations, infos = begun(outcome)
        if not self._alive:
            raise DataError("no agent is in `agents` after a reset; give it those that act first")
        self.leave_out(self.flags_of_alive())
        return self._of_all(observations), _said(infos)

    def step(self, action: dict[str, Tree]) -> Outcome:
        """Hand on the actions of the agents that are alive."""
        acting, names = self._alive, self.agent_names
        if acting is not self._known:
            action = {agent: action[agent] for agent in names if agent in acting}
        outcome = self.parallel_env.step(action)
        self._look()
        if self.is_part:
            return {}, 0.0, False, False, {}
        if not isinstance(outcome, tuple | list) or len(outcome) != 5:
            return outcome  # type: ignore[return-value]  # The error of envs without agents names it.
        observations, rewards, terminations, truncations, infos = outcome
        if acting is not self._known:  # What is said of others has no meaning.
            rewards, terminations, truncations = (
                {agent: given[agent] for agent in acting if agent in given}
                for given in (rewards, terminations, truncations)
            )
        if len(rewards) < len(acting):
            raise DataError(f"its agent {min(acting - rewards.keys())!r} acted and has no reward")
        # In C: this is what an env with agents costs besides its own step.
        own = [*map(rewards.get, names, self._none)]
        total = sum(own)
        if isinstance(total, np.ndarray) and total.size == 1:  # As of an env without agents.
            own, total = [np.asarray(reward).item() for reward in own], total.item()
        ends = *map(terminations.get, names, self._none), *map(truncations.get, names, self._none)
        # PettingZoo's rule is to take them out of `agents`; not all envs do.
        if any(ends) and all(terminations.get(agent) or truncations.get(agent) for agent in self._alive):
            self._alive = frozenset()
        self.outcome = [*own, *map(bool, ends), *self.flags_of_alive()]
        if self._alive:
            return self._of_all(observations), total, False, False, _said(infos)
        is_over = all(terminations.get(agent, False) for agent in acting)
        return self._of_all(observations), total, is_over, not is_over, _said(infos)

    def _look(self) -> None:
        """Take in which agents are alive now; `_known` itself is all of them."""
        alive = frozenset(self.parallel_env.agents)
        self._alive = alive = self._known if alive == self._known else alive
        if not alive <= self._known:
            agent, known = next(iter(alive - self._known)), ", ".join(self.agent_names)
            raise DataError(f"its agent {agent!r:.80} is not in possible_agents ({known:.200}); name all agents there")

    def flags_of_alive(self) -> list[bool]:
        """Tell which agents are alive."""
        return [*map(self._alive.__contains__, self.agent_names)]

    def _of_all(self, observations: Mapping[str, Tree]) -> Mapping[str, Tree]:
        """Return the observations of all agents; DataError if there is none of one that is alive."""
        if len(observations) == len(self.agent_names):
            return observations
        if missing := self._alive - observations.keys():
            raise DataError(f"its agent {min(missing)!r} is in `agents` and has no observation")
        return {**self._absent, **observations}

    def render(self) -> Any:
        return self.parallel_env.render()

    def close(self) -> None:
        self.parallel_env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "parallel_env":  # Not what copying and pickling ask for.
            raise AttributeError(name)
        return getattr(self.parallel_env, name)


def _space_of(method: Any, agent: str, name: str) -> Space:
    try:
        space = method(agent)
    except (AttributeError, LookupError, NotImplementedError) as error:
        raise UsageError(f"{name}: {method.__name__}({agent!r}) raises {error!r:.80}; return its space") from error
    if not isinstance(space, gymnasium.Space):
        raise UsageError(f"{name}: {method.__name__}({agent!r}) must return a Gymnasium space, got {space!r:.80}")
    return space


def _said(infos: Mapping[str, Info]) -> Info:
    """Return the agents' infos by agent, of those that say something."""
    return {agent: info for agent, info in infos.items() if info} if any(infos.values()) else {}


def agents_envs(observation_space: Space, envs: Sequence[gymnasium.Env]) -> list[AgentsEnv]:
    """Return the envs below all wrappers, if the space of these is that of agents; else none."""
    return [env.unwrapped for env in envs] if agents_of(observation_space) else []  # type: ignore[misc]


def write_agents(envs: Sequence[AgentsEnv], columns: Columns, ended: Sequence[int]) -> None:
    """Write the outcomes of all envs of some columns into those of their agents, with few NumPy calls.

    Where an episode has ended and agents are still alive, because a wrapper or a fault has cut it, these are truncated.
    """
    table, num_agents = np.array([env.outcome for env in envs], np.float64), len(envs[0].agent_names)
    alive = columns.observation_arrays[-num_agents:]
    for place, column in enumerate([*columns.agent_results, *alive]):
        column[:] = table[:, place]
    for truncations, flags in zip(columns.agent_results[-num_agents:], alive, strict=True) if ended else ():
        truncations[ended] |= flags[ended]
        flags[ended] = False


def write_alive(envs: Sequence[AgentsEnv], columns: Columns) -> None:
    """Write which agents are alive after a reset of some envs, if these have agents."""
    if envs:
        table, num_agents = np.array([env.outcome for env in envs], np.bool_), len(envs[0].agent_names)
        for place, column in enumerate(columns.observation_arrays[-num_agents:]):
            column[:] = table[:, place - num_agents]
