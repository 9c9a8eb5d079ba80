"""Envs with several agents: a `pettingzoo.ParallelEnv` as a Gymnasium env, and the columns of its agents.

Observations and actions of such an env are dicts by agent, of all agents that are possible.  An agent that is not alive
has an observation of zeros, or of the bounds that are nearest to zero, and its action is not handed on.  After its last
step it has the observation that the env gives.  The env's reward is the sum of its agents' rewards, in the order of
`possible_agents`.  An episode ends when no agent is left, or all that are left have ended: it is terminated if all
these have terminated, else truncated.

As PettingZoo's API allows it, an env may give infos and observations by other names than its agents'.  Such infos are
those of the env as a whole.  Such observations are left out, with a notice.
"""

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import cycle
from operator import itemgetter
from typing import Any

import gymnasium
import numpy as np

from mpi_rollout.core.columns import ALL_AGENTS, RESULTS
from mpi_rollout.core.layout import Columns
from mpi_rollout.core.spaces import AgentsSpace, Space, Tree, agents_of, nearest_to_zero
from mpi_rollout.envs.faults import Begun, Outcome, begun
from mpi_rollout.envs.inputs import Info, OptionsOfOne
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.process.notices import NOTICES
from mpi_rollout.text import words_of

DICTS = (dict, Mapping)  # The first one is found at once.
NOBODY = object()  # A key that no dict has.
OF_TRAINERS = frozenset(("alive", "ended"))  # Infos that `connect` adds to those of the env.


class Present:
    """Some of an env's agents, and what is asked of them in each step.

    Attributes
    ----------
    names, listed
        Their names, as a set and in the order of `possible_agents`.
    keys, flags
        For each possible agent its name, or `NOBODY`, and whether it is one of them.
    pick
        Takes what they are given out of a dict, in C; KeyError if one is missing.
    others
        The observations of the others, taken from `possible`, which has one for each possible agent.
    """

    def __init__(self, possible: Mapping[str, Tree], names: Collection[str]):
        self.names, self.listed = frozenset(names), [agent for agent in possible if agent in names]
        self.flags = [agent in names for agent in possible]
        self.others = {agent: observation for agent, observation in possible.items() if agent not in names}
        self.keys = [agent if agent in names else NOBODY for agent in possible]
        self.pick = itemgetter(*self.listed) if len(self.listed) > 1 else self._pick_one

    def _pick_one(self, given: Mapping[str, Any]) -> tuple[Any]:
        return (given[self.listed[0]],)


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
    acting
        The agents that acted in the last step; none after a reset.
    is_part
        Another rank looks at what steps and resets return; here it may be nothing.
    """

    is_part = False

    def __init__(self, parallel_env: Any, name: str):
        self.parallel_env, self._name = parallel_env, name
        self.metadata = getattr(parallel_env, "metadata", None) or {}
        self.render_mode = getattr(parallel_env, "render_mode", None)
        self.agent_names = agents = _names_of(parallel_env, name)
        self.observation_space, self.action_space = (
            AgentsSpace({agent: _space_of(method, agent, name) for agent in agents})
            for method in (parallel_env.observation_space, parallel_env.action_space)
        )
        self._absent = {agent: nearest_to_zero(space) for agent, space in self.observation_space.spaces.items()}
        self._all = Present(self._absent, agents)
        self._none = [0] * len(agents) * len(RESULTS)
        self._alive = self.acting = self._nobody = Present(self._absent, ())
        self.leave_out()

    def leave_out(self, alive: "Present | None" = None) -> None:
        """Forget the last outcome; these agents are alive then, or nobody."""
        self.outcome: list[float] = [*self._none, *(alive or self._nobody).flags]

    def take_over(self, failed: "AgentsEnv") -> None:
        """Stand in for an env that has failed, in the step under way."""
        self.acting = failed.acting
        self.leave_out(self.acting)

    def take_acting(self) -> list[bool]:
        """Tell which agents acted in the step whose episode has ended; it is asked once."""
        acting, self.acting = self.acting, self._nobody
        return acting.flags

    def reset(self, *, seed: int | None = None, options: OptionsOfOne = None) -> Begun:
        """Start an episode."""
        self.acting = self._nobody
        outcome = self.parallel_env.reset(seed=seed, options=options)
        alive = self._look()
        if self.is_part:
            self._alive = alive
            return {}, {}
        observations, infos = begun(outcome)
        if not alive.listed:
            raise DataError("no agent is in `agents` after a reset; give it those that act first")
        begin = self._of_all(observations, alive, alive), self._said(infos)
        self._alive = alive
        self.leave_out(alive)
        return begin

    def step(self, action: dict[str, Tree]) -> Outcome:
        """Hand on the actions of the agents that are alive."""
        acting = self.acting = self._alive
        if acting is not self._all:
            action = {agent: action[agent] for agent in acting.listed}
        outcome = self.parallel_env.step(action)
        alive = self._look()
        if self.is_part:
            self._alive = alive
            return {}, 0.0, False, False, {}
        if not isinstance(outcome, tuple | list) or len(outcome) != 5:
            return outcome  # type: ignore[return-value]  # The error of envs without agents names it.
        observations, *results, infos = outcome
        own, terminated, truncated = self._results_of(results, acting)
        try:
            total = sum(own)
            if isinstance(total, np.ndarray):  # As of an env without agents.
                own, total = [np.asarray(reward).item() for reward in own], total.item()
            ends = [*map(bool, (*terminated, *truncated))]
        except (TypeError, ValueError) as error:
            raise self._misfit(own, (*terminated, *truncated), error) from error
        if any(ends):
            alive = self._left_by(alive, self._ended(ends))
        given = self._of_all(observations, acting, alive), total, False, False, self._said(infos)
        self._alive, self.outcome = alive, [*own, *ends, *alive.flags]
        if alive.listed:
            return given
        is_over = acting.names <= self._ended(ends[: len(own)])
        return *given[:2], is_over, not is_over, given[-1]

    def _look(self) -> "Present":
        """Return which agents are alive now; `_all` and `_nobody` themselves are these."""
        agents: Any = getattr(self.parallel_env, "agents", None)
        if type(agents) is list:
            for known in (self._all, self.acting):
                if agents == known.listed:
                    return known
        try:
            alive, num_names = frozenset(agents), len(agents)
        except TypeError as error:
            got = f"got {agents!r:.80}; keep in it who acts next"
            raise DataError(f"its `agents` should be a list of names, {got}") from error
        if not alive <= self._all.names:
            raise self._stranger("its `agents` have", next(agent for agent in agents if agent not in self._all.names))
        if len(alive) < num_names:
            raise DataError(f"its `agents` have a name twice, got {agents!r:.80}; each agent acts once in a step")
        if not alive:
            return self._nobody
        return self._all if alive == self._all.names else Present(self._absent, alive)

    def _left_by(self, alive: "Present", ended: set[str]) -> "Present":
        """Return which agents are alive where some have ended: nobody, if those in `agents` all have.

        PettingZoo's rule is to take them out of `agents`; not all envs do.
        """
        if alive.names <= ended:
            return self._nobody
        num_agents = len(self.agent_names)
        if again := alive.names & ended & self._ended(self.outcome[num_agents : 3 * num_agents]):
            NOTICES.note(
                self._name,
                f"its agent {min(again)!r} has ended in two neighbouring steps and is still in `agents`, so each of "
                "these steps is an episode of its own; take out of `agents` who has ended and does not begin anew",
            )
        return alive

    def _results_of(self, results: Sequence[Any], acting: "Present") -> Iterable[Sequence[Any]]:
        """Return rewards, terminations and truncations of all agents, in their order; DataError for wrong names."""
        rewards, terminations, truncations = results
        names, zeros = self._all.names, self._none
        try:  # In C: this is what an env with agents costs besides its own step.
            if acting is self._all and len(rewards) == len(terminations) == len(truncations) == len(names):
                return acting.pick(rewards), acting.pick(terminations), acting.pick(truncations)
            if acting.names <= rewards.keys() <= names >= terminations.keys() and truncations.keys() <= names:
                # What is said of those that do not act has no meaning.
                return [[*map(given.get, acting.keys, zeros)] for given in results]
        except (AttributeError, TypeError, LookupError):
            pass  # What is wrong is found below.
        for leaf, given in zip(RESULTS, results, strict=True):
            self._check_names(leaf.path, given)
        if missing := acting.names - rewards.keys():
            raise DataError(f"its agent {min(missing)!r} acted and has no reward")
        return [[given.get(agent, 0) for agent in acting.keys] for given in results]

    def _ended(self, ends: Sequence[float]) -> set[str]:
        """Return the agents that some flags, of all agents or twice of all, are true of."""
        return {agent for agent, has_ended in zip(cycle(self.agent_names), ends, strict=False) if has_ended}

    def _of_all(self, observations: Any, acting: "Present", alive: "Present") -> Mapping[str, Tree]:
        """Return the observations of all agents: given ones of those that acted or will act, and those of the others.

        DataError if there is none of one that will act, or for wrong names.
        """
        try:
            if acting is self._all and len(observations) == len(acting.names) and acting.pick(observations):
                return observations
            if self._all.names >= observations.keys() >= alive.names:
                shown = acting if alive is acting else Present(self._absent, acting.names | alive.names)
                return {**self._absent, **observations, **shown.others}
        except (AttributeError, TypeError, LookupError):
            pass  # What is wrong is found below.
        self._check_dict("observations", observations)
        strangers = [name for name in observations if name not in self._all.names]
        if missing := alive.names - observations.keys():
            if strangers:
                raise self._stranger("its observations have", strangers[0])
            raise DataError(f"its agent {min(missing)!r} is in `agents` and has no observation")
        NOTICES.note(self._name, f"its observations have {strangers[0]!r:.80}, which is no agent; it is left out")
        own = {agent: seen for agent, seen in observations.items() if agent in self._all.names}
        return self._of_all(own, acting, alive)

    def _said(self, infos: Any) -> Info:
        """Return the infos of the agents that say something, and those of the env as a whole, which have other names.

        DataError if those of an agent are no dict, or the trainer would get others in their place.
        """
        agents = self._all.names
        try:
            if not any(infos.values()) and infos.keys() <= agents:
                return {}
        except (AttributeError, TypeError, ValueError):
            pass  # What is wrong is found below.
        self._check_dict("infos", infos)
        if taken := OF_TRAINERS.intersection(infos) - agents:
            name = min(taken)
            raise DataError(
                f"its infos have {name!r}, which connect says of agents itself; give that info another name"
            )
        for agent in agents.intersection(infos):
            if not (infos[agent] is None or isinstance(infos[agent], DICTS)):
                raise DataError(f"the info of its agent {agent!r} should be a dict, got {infos[agent]!r:.80}")
        return {name: info for name, info in infos.items() if name not in agents or info}

    def _check_dict(self, what: str, given: object) -> None:
        """Raise DataError if something is no dict."""
        if not isinstance(given, DICTS):
            raise DataError(f"its {what} should be a dict by agent, got {given!r:.80}")

    def _check_names(self, what: str, given: object) -> None:
        """Raise DataError if something is no dict, or has names that are no agents'."""
        self._check_dict(what, given)
        assert isinstance(given, DICTS)
        if not given.keys() <= self._all.names:
            raise self._stranger(f"its {what} have", next(name for name in given if name not in self._all.names))

    def _stranger(self, what: str, name: object) -> DataError:
        """Return the error of a name that is no agent's."""
        known = ", ".join(self.agent_names)
        way_out = "name all agents there, and no others here"
        if name == ALL_AGENTS:
            way_out = (
                "RLlib's envs have such a key, PettingZoo's have none: leave it out, and keep in `agents` who acts next"
            )
        return DataError(f"{what} {name!r:.80}, which is not in possible_agents ({known:.200}); {way_out}")

    def _misfit(self, rewards: Sequence[Any], ends: Sequence[Any], error: Exception) -> DataError:
        """Return the error of the first reward that is no number, or of the first end that is no truth value."""
        for agent, reward in zip(self.agent_names, rewards, strict=True):
            if not _is_one(reward, float):
                return DataError(f"the reward of its agent {agent!r} should be a number, got {reward!r:.80}")
        for agent, flag in zip(cycle(self.agent_names), ends, strict=False):
            if not _is_one(flag, bool):
                return DataError(f"the ends of its agent {agent!r} should be true or false, got {flag!r:.80}")
        return DataError(f"its rewards cannot be added up ({words_of(error)}); give numbers")

    def render(self) -> Any:
        return self.parallel_env.render()

    def close(self) -> None:
        self.parallel_env.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "parallel_env":  # Not what copying and pickling ask for.
            raise AttributeError(name)
        return getattr(self.parallel_env, name)


def _names_of(parallel_env: Any, name: str) -> tuple[str, ...]:
    """Return the names of an env's agents; UsageError if a file cannot have them."""
    agents = getattr(parallel_env, "possible_agents", None)
    agents = tuple(agents) if isinstance(agents, Iterable) else ()
    if not agents or not all(map(_is_name, agents)) or len({*agents}) < len(agents):
        expected = f"possible_agents, a list of different names, of which none is {ALL_AGENTS} or has a / in it"
        raise UsageError(f"{name}: a ParallelEnv must have {expected}, got {list(agents)!r:.80}")
    return agents


def _is_name(agent: object) -> bool:
    return isinstance(agent, str) and agent not in ("", ".", ALL_AGENTS) and "/" not in agent


def _is_one(value: object, kind: type) -> bool:
    """Tell whether something is a number, or a truth value; it may be an array of one element."""
    try:
        kind(np.asarray(value).item())
    except (TypeError, ValueError):
        return False
    return not isinstance(value, str | bytes)


def _space_of(method: Any, agent: str, name: str) -> Space:
    try:
        space = method(agent)
    except (AttributeError, LookupError, NotImplementedError) as error:
        raise UsageError(f"{name}: {method.__name__}({agent!r}) raises {error!r:.80}; return its space") from error
    if not isinstance(space, gymnasium.Space):
        raise UsageError(f"{name}: {method.__name__}({agent!r}) must return a Gymnasium space, got {space!r:.80}")
    return space


def agents_envs(observation_space: Space, envs: Sequence[gymnasium.Env]) -> list[AgentsEnv]:
    """Return the envs below all wrappers, if the space of these is that of agents; else none."""
    return [env.unwrapped for env in envs] if agents_of(observation_space) else []  # type: ignore[misc]


def write_agents(envs: Sequence[AgentsEnv], columns: Columns, ended: Sequence[int]) -> None:
    """Write the outcomes of all envs of some columns into those of their agents, with few NumPy calls.

    Where an episode has ended and agents that acted are still alive, because a wrapper or a fault has cut it, these are
    truncated.
    """
    table, num_agents = np.array([env.outcome for env in envs], np.float64), len(envs[0].agent_names)
    alive = columns.alive_arrays
    for place, column in enumerate([*columns.agent_results, *alive]):
        column[:] = table[:, place]
    if ended:
        acted = np.array([envs[index].take_acting() for index in ended])
        for place, (truncations, flags) in enumerate(zip(columns.agent_results[-num_agents:], alive, strict=True)):
            truncations[ended] |= flags[ended] & acted[:, place]
            flags[ended] = False


def write_alive(envs: Sequence[AgentsEnv], columns: Columns) -> None:
    """Write which agents are alive after a reset of some envs, if these have agents."""
    if envs:
        table, num_agents = np.array([env.outcome for env in envs], np.bool_), len(envs[0].agent_names)
        for place, column in enumerate(columns.alive_arrays):
            column[:] = table[:, place - num_agents]
