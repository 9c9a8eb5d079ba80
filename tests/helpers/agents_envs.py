"""Envs with several agents that show who they are: agents leave one after the other, and one comes later."""

import os
import signal
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from stopping_envs import Policy

from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.exchange.world import claimed_rank

NAMES = ("walker", "runner", "late")


class Lives(ParallelEnv):
    """Agent i of an episode leaves after a number of steps that the seed draws; "late" comes in the second step.

    An agent's observation is [a number of the episode, step, its action before]; its reward is the step plus a tenth of
    its place.
    """

    def __init__(self, longest: int = 7):
        self.metadata, self.possible_agents, self.agents = {"name": "lives"}, list(NAMES), []
        self._longest, self.closed = longest, False

    def observation_space(self, agent: str) -> spaces.Space:
        if agent == "late":
            return spaces.Dict({"seed": spaces.Box(1, 2.0**32, (1,), np.float64), "step": spaces.Discrete(100)})
        return spaces.Box(0, 2.0**32, (3,), np.float64)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(5 if agent == "runner" else 3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        if seed is not None:
            self._draw = np.random.default_rng(seed)
        self._seed, self._step = int(self._draw.integers(1, 2**31)), 0
        draws = self._draw.integers(2, self._longest, 3)
        self._lives, self._is_cut = dict(zip(NAMES, draws.tolist(), strict=True)), bool(draws[0] % 2)
        self.agents = list(NAMES[:2])
        return self._seen(self.agents, {}), {"runner": {"lives": int(draws[1])}}

    def step(self, actions: dict[str, Any]):
        assert set(actions) == set(self.agents), "the actions of those that are alive, and of no others"
        self._step += 1
        acting = list(self.agents)
        over = {agent: self._lives[agent] <= self._step for agent in acting}
        self.agents = [agent for agent in acting if not over[agent]]
        if self._step == 1:
            self.agents.append("late")
        rewards = {agent: self._step + NAMES.index(agent) / 10 for agent in acting}
        terminations = {agent: over[agent] and not (self._is_cut and agent == "runner") for agent in acting}
        truncations = {agent: over[agent] and not terminations[agent] for agent in acting}
        shown = dict.fromkeys([*acting, *self.agents])
        return self._seen(shown, actions), rewards, terminations, truncations, {agent: {} for agent in acting}

    def _seen(self, agents: Any, actions: dict[str, Any]) -> dict[str, Any]:
        seen = {agent: np.array([self._seed, self._step, actions.get(agent, 9)], np.float64) for agent in agents}
        if "late" in seen:
            seen["late"] = {"seed": np.array([float(self._seed)]), "step": self._step}
        return seen

    def close(self) -> None:
        self.closed = True


def even(longest: int = 7) -> ParallelEnv:
    """Agents whose spaces are equal, in an env that says the step besides."""

    class Even(Lives):
        def __init__(self) -> None:
            super().__init__(longest)
            self.possible_agents = list(NAMES[:2])

        def action_space(self, agent: str) -> spaces.Space:
            return spaces.Discrete(3)

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
            observations, infos = super().reset(seed)
            return observations, infos | {"step": 0}

        def step(self, actions: dict[str, Any]):
            observations, *results, infos = super().step(actions)
            self.agents = [agent for agent in self.agents if agent != "late"]
            shown = {agent: seen for agent, seen in observations.items() if agent != "late"}
            return shown, *results, infos | {"step": self._step}

    return Even()


class Restless(ParallelEnv):
    """Who acts, and who ends, is drawn in each step: agents pause, come back, leave without an end, and end again.

    An agent's observation is [a number of the episode, step], its reward is drawn.
    """

    def __init__(self, longest: int = 12):
        self.metadata, self.possible_agents, self.agents = {"name": "restless"}, list(NAMES), []
        self._longest = longest

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(0, 2.0**32, (2,), np.float64)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        self._draw = np.random.default_rng(seed)
        self._seed, self._step = int(self._draw.integers(1, 2**31)), 0
        self._last = int(self._draw.integers(1, self._longest))
        self.agents = self._some() or list(NAMES)
        return self._seen(), {}

    def step(self, actions: dict[str, Any]):
        self._step += 1
        acted = list(self.agents)
        rewards = {agent: self._draw.normal() for agent in acted}
        terminations, truncations = ({agent: self._draw.random() < 0.1 for agent in acted} for _ in range(2))
        self.agents = self._some() if self._step < self._last else []
        return self._seen(), rewards, terminations, truncations, {}

    def _some(self) -> list[str]:
        return [agent for agent in NAMES if self._draw.random() < 0.6]

    def _seen(self) -> dict[str, Any]:
        return {agent: np.array([self._seed, self._step], np.float64) for agent in NAMES}


class Steady(Restless):
    """What it draws follows from its first seed alone."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        return super().reset(int(self._draw.integers(2**31)) if seed is None else seed)


class Leaving(Restless):
    """The process of the second rank is killed in a step of an episode's middle."""

    num_calls = 0

    def step(self, actions: dict[str, Any]):
        Leaving.num_calls += 1
        if claimed_rank() == 1 and Leaving.num_calls > 40 and 1 < self._step < self._last - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(actions)


class Stranger(Lives):
    """An agent comes that nobody knew."""

    def step(self, actions: dict[str, Any]):
        outcome = super().step(actions)
        self.agents = [*self.agents, "stranger"]
        return outcome


class Staying(Lives):
    """Those that have ended last stay in `agents`."""

    def step(self, actions: dict[str, Any]):
        outcome = super().step(actions)
        self.agents = self.agents or list(actions)
        return outcome


class Bare(Lives):
    """A reset without infos."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        return super().reset(seed, options)[0]


class Done(Lives):
    """A step of old PettingZoo, with one dict of ends."""

    def step(self, actions: dict[str, Any]):
        observations, rewards, terminations, _, infos = super().step(actions)
        return observations, rewards, terminations, infos


class Unpaid(Lives):
    """An agent that acts has no reward."""

    def step(self, actions: dict[str, Any]):
        observations, rewards, *rest = super().step(actions)
        del rewards["runner"]
        return observations, rewards, *rest


class Numbered(Lives):
    """The agents are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = [0, 1]


class Twins(Lives):
    """Two agents have the same name."""

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["walker", "walker"]


class Spread(Lives):
    """On several ranks, of which the others return nothing; numbers are arrays of one element, no end is None."""

    def __init__(self, comm: Any, longest: int = 7):
        super().__init__(longest)
        self._comm = comm

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        begun = super().reset(seed, options)
        return None if self._comm.rank else begun

    def step(self, actions: dict[str, Any]):
        observations, rewards, *ends, infos = super().step(actions)
        rewards = {agent: np.array([reward]) for agent, reward in rewards.items()}
        ends = [{agent: np.array([True]) if flag else None for agent, flag in flags.items()} for flags in ends]
        return None if self._comm.rank else (observations, rewards, *ends, infos)


def changing(env_index: int) -> ParallelEnv:
    """Each env has its agents in another order."""
    env = Lives()
    env.possible_agents = list(NAMES[env_index % 2 :] + NAMES[: env_index % 2])
    return env


class InTurn(AECEnv):
    """Its agents act in turn."""


class Ragged(Lives):
    """An agent's actions have no fixed shape."""

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Sequence(spaces.Discrete(2))


def by_hand(
    make: Any, num_envs: int, actions: dict[str, np.ndarray], seeds: Callable[[int], Iterator[int | None]]
) -> dict[str, np.ndarray]:
    """What a file of a run has below /trajectories: the envs stepped one by one, with the actions of the run."""
    num_steps = len(next(iter(actions.values())))
    envs = [_alone(make(), seeds(index)) for index in range(num_envs)]
    rows = [next(env) for env in envs]
    states, steps = [rows], []
    for step in range(num_steps):
        chosen = [{agent: array[step, index] for agent, array in actions.items()} for index in range(num_envs)]
        rows = [env.send(action) for env, action in zip(envs, chosen, strict=True)]
        states.append(rows)
        steps.append(rows)
    columns = {
        name: np.array([[row[name] for row in of_step] for of_step in (states if _is_state(name) else steps)])
        for name in rows[0]
    }
    return columns | {f"actions/{agent}": array for agent, array in actions.items()}


def of_run(seed: int) -> Callable[[int], Iterator[int | None]]:
    """The seeds of the episodes of each env of a run."""
    return lambda index: episode_seeds(seed, index)


def of_trainer(seed: int) -> Callable[[int], Iterator[int | None]]:
    """The seeds of the episodes of each env of a trainer that resets them once."""
    return lambda index: chain([seed + index], repeat(None))


def diary(envs: Any, num_steps: int, seed: int, fragment: int = 1) -> dict[str, np.ndarray]:
    """What a trainer is given in some steps, by path in a file; the actions do not depend on it."""
    seen, infos = envs.reset(seed=seed)
    chosen, rows, draw = [], [_named(envs, seen, infos["alive"])], np.random.default_rng(seed)
    for _ in range(num_steps // fragment):
        actions = [draw.integers(0, 3, (fragment, envs.num_envs)) for _ in envs.agents]
        chosen.append({f"actions/{name}": array for name, array in zip(envs.agents, actions, strict=True)})
        of_step = np.stack(actions, -1) if _is_axis(envs) else dict(zip(envs.agents, actions, strict=True))
        if fragment > 1:
            batch = envs.collect(fragment, of_step)
            for step in range(fragment):
                is_last = step + 1 == fragment
                after = batch["last_observations"] if is_last else _at(batch["observations"], step + 1)
                results = [_at(batch[name], step) for name in RESULT_NAMES]
                rows.append(_named(envs, after, batch["infos"][step]["alive"], results, batch["infos"][step]))
        else:
            seen, *results, infos = envs.step(_at(of_step, 0))
            rows.append(_named(envs, seen, infos["alive"], results, infos))
    columns = {name: np.array([row[name] for row in rows[not _is_state(name) :]]) for name in rows[-1]}
    return columns | {name: np.concatenate([row[name] for row in chosen]) for name in chosen[0]}


RESULT_NAMES = "rewards", "terminations", "truncations"


def _is_axis(envs: Any) -> bool:
    return not isinstance(envs.single_action_space, spaces.Dict)


def _at(tree: Any, step: int) -> Any:
    return {name: _at(part, step) for name, part in tree.items()} if isinstance(tree, dict) else tree[step]


def _named(envs: Any, seen: Any, alive: Any, results: Any = (), infos: Any = None) -> dict[str, np.ndarray]:
    trees = {"observations": seen, "alive": alive} | dict(zip(RESULT_NAMES, results, strict=False))
    if not _is_axis(envs):
        return {path: np.array(array) for name, tree in trees.items() for path, array in _paths(name, tree)}
    row = {f"{name}/{agent}": array[:, i] for name, array in trees.items() for i, agent in enumerate(envs.agents)}
    return row | ({} if infos is None else {"ended": infos["ended"]})


def _paths(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield from _paths(f"{name}/{key}", part)
    else:
        yield name, tree


def _is_state(name: str) -> bool:
    return name.startswith(("observations/", "alive/"))


def _alone(env: Any, seeds: Iterator[int | None]) -> Iterator[dict[str, Any]]:
    """Step one env: a row that resets follows each end."""
    agents = env.possible_agents
    while True:
        observations, _ = env.reset(seed=next(seeds))
        chosen = yield _row(env, observations, {}, {}, {}, False)
        while env.agents:
            acting = list(env.agents)
            observations, rewards, terminations, truncations, _ = env.step({agent: chosen[agent] for agent in acting})
            rewards = {agent: rewards[agent] for agent in agents if agent in acting}
            chosen = yield _row(env, observations, rewards, terminations, truncations, not env.agents)


def _row(env: Any, observations: Any, rewards: Any, terminations: Any, truncations: Any, is_over: bool) -> Any:
    row = {}
    for agent in env.possible_agents:
        row |= _leaves(f"observations/{agent}", env.observation_space(agent), observations.get(agent))
        row[f"alive/{agent}"] = agent in env.agents
        row[f"rewards/{agent}"] = float(rewards.get(agent, 0.0))
        row[f"terminations/{agent}"] = bool(terminations.get(agent, False))
        row[f"truncations/{agent}"] = bool(truncations.get(agent, False))
    row["rewards/__all__"] = float(sum([rewards.get(agent, 0.0) for agent in env.possible_agents]))
    have_terminated = all(terminations[agent] for agent in rewards)
    row["terminations/__all__"], row["truncations/__all__"] = (
        is_over and have_terminated,
        is_over and not have_terminated,
    )
    return row


def _leaves(name: str, space: spaces.Space, value: Any) -> dict[str, Any]:
    if isinstance(space, spaces.Dict):
        parts = [_leaves(f"{name}/{key}", part, value and value[key]) for key, part in space.items()]
        return {path: leaf for part in parts for path, leaf in part.items()}
    if value is None:
        value = np.clip(np.zeros(space.shape), space.low, space.high) if isinstance(space, spaces.Box) else 0
    return {name: np.asarray(value, space.dtype)}


def _by_sight(observations: dict[str, Any]) -> dict[str, np.ndarray]:
    numbers = {agent: observations[agent][:, 0] + observations[agent][:, 1] for agent in NAMES[:2]}
    numbers["late"] = observations["late"]["step"] + observations["late"]["seed"][:, 0]
    return {agent: (number % (5 if agent == "runner" else 3)).astype(np.int64) for agent, number in numbers.items()}


by_sight = Policy(_by_sight)


class Stumbling(Lives):
    """Fails in the second step of each episode."""

    def __init__(self) -> None:
        super().__init__(longest=9)

    def step(self, actions: dict[str, Any]):
        outcome = super().step(actions)
        if self._step == 2:
            raise RuntimeError("stumbles")
        return outcome


def matching() -> ParallelEnv:
    """Two agents, each of which is rewarded for the action that it sees."""

    class Matching(Lives):
        def __init__(self) -> None:
            super().__init__()
            self.possible_agents = list(NAMES[:2])

        def observation_space(self, agent: str) -> spaces.Space:
            return spaces.Box(0, 1, (3,), np.float32)

        def action_space(self, agent: str) -> spaces.Space:
            return spaces.Discrete(3)

        def _show(self) -> dict[str, np.ndarray]:
            self._shown = {agent: int(self._draw.integers(3)) for agent in self.possible_agents}
            return {agent: np.eye(3, dtype=np.float32)[place] for agent, place in self._shown.items()}

        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
            self._draw = np.random.default_rng(seed) if seed is not None else self._draw
            self._step, self.agents = 0, list(self.possible_agents)
            return self._show(), {}

        def step(self, actions: dict[str, Any]):
            self._step += 1
            rewards = {agent: float(self._shown[agent] == action) for agent, action in actions.items()}
            is_over = dict.fromkeys(self.agents, self._step == 20)
            self.agents = [] if self._step == 20 else self.agents
            return self._show(), rewards, dict.fromkeys(actions, False), is_over, {}

    return Matching()


def steps_of_rows(envs: Any, num_steps: int) -> list[Any]:
    """What SB3 is given of agents as rows: the reset, then with the actions what each step gives."""
    from mpi_rollout.sb3 import MPIVecEnv

    rows, draw = MPIVecEnv(envs, agents="rows"), np.random.default_rng(1)
    rows.seed(3)
    given: list[Any] = [(rows.reset().copy(), list(rows.reset_infos))]
    for _ in range(num_steps):
        actions = draw.integers(0, 3, rows.num_envs)
        given.append((actions, rows.step(actions)))
    assert len(rows.get_attr("possible_agents")) == rows.num_envs == 3 * len(envs.agents)
    return given


def learned(envs: Any) -> tuple[float, float]:
    """The mean reward of a step before and after PPO has learned."""
    from stable_baselines3 import PPO

    from mpi_rollout.sb3 import MPIVecEnv

    rows = MPIVecEnv(envs, agents="rows")
    model = PPO("MlpPolicy", rows, n_steps=64, batch_size=128, learning_rate=3e-3, seed=0, device="cpu")

    def mean_reward() -> float:
        seen, rewards = rows.reset(), []
        for _ in range(40):
            seen, reward, _, _ = rows.step(model.predict(seen)[0])
            rewards.append(reward.mean())
        return float(np.mean(rewards))

    before = mean_reward()
    model.learn(4096)
    return before, mean_reward()


gymnasium.register("mine/Lives-v0", entry_point=Lives)
