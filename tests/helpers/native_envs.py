"""Natively vectorized envs as users write them: what a factory makes of env indices and a seed."""

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.envs.rollout import OUTCOME, RolloutColumns


class Drift(VectorEnv):
    """Envs that walk by their actions until they are past 20; each draws from its own generator."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    reproducibility = "env"
    single_observation_space = spaces.Box(-1e9, 1e9, (2,), np.float32)
    single_action_space = spaces.Discrete(3)

    def __init__(self, env_indices: range, seed: int, ends_at: int = 20):
        self.num_envs, self._ends_at = len(env_indices), ends_at
        self._generators = [np.random.default_rng([seed, index]) for index in env_indices]

    def reset(self, *, seed=None, options=None):
        self._place, self._over = np.zeros(self.num_envs, int), np.zeros(self.num_envs, bool)
        return self._observe(), {}

    def step(self, actions: np.ndarray):
        self._place = np.where(self._over, 0, self._place + 1 + actions)
        rewards = np.where(self._over, 0, actions.astype(float))
        self._over = (self._place > self._ends_at) & ~self._over
        return self._observe(), rewards, self._over.copy(), np.zeros(self.num_envs, bool), {}

    def _observe(self) -> np.ndarray:
        return np.stack([self._place, [draws.random() for draws in self._generators]], axis=1).astype(np.float32)


def drift(env_indices: range, seed: int, **kwargs: Any) -> Drift:
    return Drift(env_indices, seed, **kwargs)


class DoubleDrift(Drift):
    """The same with the spaces of CartPole."""

    single_observation_space = spaces.Box(-1e9, 1e9, (4,), np.float32)
    single_action_space = spaces.Discrete(2)

    def _observe(self) -> np.ndarray:
        return np.tile(super()._observe(), 2)


class Rolling(Drift):
    """Takes many steps in one call, in which no episode ends; its actions have two components."""

    single_action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, env_indices: range, seed: int):
        super().__init__(env_indices, seed)
        self.num_rows: list[int] = []

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        self.num_rows.append(len(actions))

    def last_observations(self) -> np.ndarray:
        return self._observe()


class RollingParts(Rolling):
    """Its action is a dict, of one part."""

    single_action_space = spaces.Dict(push=Rolling.single_action_space)


def too_few(env_indices: range, seed: int) -> Drift:
    return Drift(env_indices[:-1], seed)


def no_vector_env(env_indices: range, seed: int) -> object:
    return object()


def boastful(env_indices: range, seed: int) -> Drift:
    made = Drift(env_indices, seed)
    made.reproducibility = "always"
    return made


def spaceless(env_indices: range, seed: int) -> Drift:
    made = Drift(env_indices, seed)
    made.single_observation_space = None
    return made


def unsaid(env_indices: range, seed: int) -> Drift:
    made = Drift(env_indices, seed)
    made.metadata = None
    return made


def at_once(env_indices: range, seed: int) -> Drift:
    made = Drift(env_indices, seed)
    made.metadata, made.reproducibility = {"autoreset_mode": AutoresetMode.SAME_STEP}, "episode"
    return made


class DriftOn(Drift):
    """Begins the next episode in the step that ends one: nobody sees where that was."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def step(self, actions: np.ndarray):
        self._place = self._place + 1 + actions
        over = self._place > self._ends_at
        self._place[over] = 0
        return self._observe(), actions.astype(float), over, np.zeros(self.num_envs, bool), {}


class RollingOn(DriftOn):
    """Takes the same steps, many in one call."""

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        for row, taken in enumerate(actions):
            outcome = dict(zip(OUTCOME, self.step(taken), strict=False))
            for name, array in columns.wanted().items():
                array[row] = outcome[name]

    def last_observations(self) -> np.ndarray:
        return self._observe()


class RollingDrift(Drift):
    """Takes the steps of `Drift`, many in one call."""

    rollout, last_observations = RollingOn.rollout, RollingOn.last_observations


def drift_on(env_indices: range, seed: int) -> DriftOn:
    return DriftOn(env_indices, seed)


class Changed(Drift):
    """Gives something else in each process."""

    def __init__(self, env_indices: range, seed: int):
        super().__init__(env_indices, seed)
        self._generators = [np.random.default_rng() for _ in env_indices]


class Seeded(Drift):
    """Gives each env of a masked reset a seed of its own, as ALE's envs do."""

    takes_episode_seeds = True

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        assert seed is None or (seed.dtype == np.int32 and seed.shape == (mask.sum(),) and (seed >= 0).all())
        for place, of_env in zip(np.flatnonzero(mask), seed if seed is not None else (), strict=False):
            self._generators[place] = np.random.default_rng(int(of_env))
        if not hasattr(self, "_place"):
            return super().reset()
        self._place, self._over = np.where(mask, 0, self._place), self._over & ~mask
        drawn = self._drawn.copy()
        drawn[mask] = [self._generators[place].random() for place in np.flatnonzero(mask)]
        self._drawn = drawn
        return self._rows(), {}

    def _observe(self):
        self._drawn = np.array([draws.random() for draws in self._generators])
        return self._rows()

    def _rows(self):
        return np.stack([self._place, self._drawn], axis=1).astype(np.float32)


def seeded(env_indices: range, seed: int, **kwargs: Any) -> Seeded:
    return Seeded(env_indices, seed, **kwargs)
