"""Natively vectorized envs: one object that steps all envs of a rank at once, adapted to how the program steps envs.

They reset in the next step, they are seeded by the seed of the run, and they say what they promise about their random
numbers.  `native_makers` makes them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from mpi_rollout.core.seeding import Reproducibility, seeds_of_episodes
from mpi_rollout.core.spaces import Tree, set_spaces
from mpi_rollout.envs.inputs import OptionsOfOne, Reset, Seeds, Step, Values
from mpi_rollout.envs.rollout import Rollout, SendRecv
from mpi_rollout.errors import UsageError

Make = Callable[[int], VectorEnv]  # It takes the seed of the run.
STEP_SINGLE_ENVS = "step single envs, with vectorization_mode='sync'"


class NativeVectorEnv(VectorWrapper):
    """Natively vectorized envs as the program steps them.

    Parameters
    ----------
    reproducibility
        What the envs promise.  Those that promise EPISODE take "episodes" among the options of `reset`: the numbers
        (num_envs,) of the episodes to begin.
    seed_for
        What `envs.reset(seed=...)` is given for a seed of the run.
    """

    def __init__(
        self, envs: VectorEnv, reproducibility: Reproducibility, seed_for: Callable[[int], object] = lambda seed: seed
    ) -> None:
        super().__init__(envs)
        self.reproducibility, self._seed_for = reproducibility, seed_for
        self._take(envs)

    def _take(self, envs: VectorEnv) -> None:
        self.env = envs
        self.observation_space = batch_space(envs.single_observation_space, envs.num_envs)
        self.action_space = batch_space(envs.single_action_space, envs.num_envs)
        self.step = envs.step  # type: ignore[method-assign]  # Called in each step, without a detour.
        if isinstance(envs, Rollout):  # From Python 3.12 on `isinstance` does not ask `__getattr__`.
            self.rollout, self.last_observations = envs.rollout, envs.last_observations
        if isinstance(envs, SendRecv):
            self.send, self.recv, self.outcome = envs.send, envs.recv, envs.outcome

    def reset(self, *, seed: Seeds = None, options: OptionsOfOne = None) -> Reset:
        given = {} if seed is None else {"seed": self._seed_for(seed)}  # type: ignore[arg-type]  # One for all.
        return self.env.reset(**given, options=options)  # type: ignore[arg-type]  # What the library takes.

    def compile_steps(self, has_observations: bool) -> None:
        """Compile the steps of envs that have compiled ones, with or without observations, before any clock runs."""
        if hasattr(self.env, "compile_steps"):
            self.env.compile_steps(has_observations)
            if getattr(self.env.unwrapped, "reproducibility", None) == Reproducibility.SLICE:  # It was measured.
                self.reproducibility = Reproducibility.SLICE

    def render(self) -> Values:
        try:
            frames = self.env.render()
        except NotImplementedError:  # By Gymnasium's class.
            frames = None
        if frames is None:
            what = f"{type(self.unwrapped).__name__} has no frames; if it can render, make it with"
            raise UsageError(f"{what} env_kwargs={{'render_mode': 'rgb_array'}}; else {STEP_SINGLE_ENVS}")
        return frames

    def call(self, name: str, *args: object, **kwargs: object) -> Sequence[object]:
        """Call a method, or get an attribute, of each env, if these envs have a method for that."""
        return self._method_of_all("call")(name, *args, **kwargs)

    def set_attr(self, name: str, values: Sequence[object]) -> None:
        """Set an attribute of each env, if these envs have a method for that."""
        self._method_of_all("set_attr")(name, values)

    def _method_of_all(self, name: str) -> Callable[..., Sequence[object]]:
        method = getattr(self.env, name, None)
        if method is None:
            what = f"{type(self.unwrapped).__name__} steps its envs as one and has no method {name}"
            raise AttributeError(f"{what}; give it one, as Gymnasium's SyncVectorEnv has it, or {STEP_SINGLE_ENVS}")
        return method


class SeededWhenMade(NativeVectorEnv):
    """Envs that take their seed when they are made: another seed makes them again."""

    def __init__(self, envs: VectorEnv, make: Make, seed: int, reproducibility: Reproducibility) -> None:
        self._make, self._seed, self._is_new = make, seed, True
        super().__init__(envs, reproducibility)

    def reset(self, *, seed: int | None = None, options: OptionsOfOne = None) -> Reset:  # type: ignore[override]
        if seed is not None and not (self._is_new and seed == self._seed):
            self.env.close()
            self._seed = seed
            self._take(self._make(seed))
        self._is_new = False
        return self.env.reset(options=options)


class SeededEpisodes(NativeVectorEnv):
    """Envs that take a seed in each reset: their episodes get the seeds that a loop would give them.

    Such envs reset by themselves in the step after an end, with random numbers that follow from all their steps before.
    Here a second reset follows in the same step, with the seeds of the episodes: they then depend on these alone.

    Seen with ale-py 0.12.1: a masked reset leaves the other envs as they are, and the episode that it begins has the
    bytes of one that a new env begins with that seed, in mid-episode, at its end, and after the reset that follows.

    Until there is a seed of the run, from `seed` or by `reset(seed=...)`, the envs are as they came.

    Parameters
    ----------
    envs
        They reset in the next step.  `reset(seed=seeds, options={"reset_mask": mask})` resets the envs of a bool mask
        with a seed each, an int32 array, and returns the observations of all envs.
    """

    has_episode_seeds = True

    def __init__(self, envs: VectorEnv, env_indices: range, seed: int | None = None) -> None:
        super().__init__(envs, Reproducibility.EPISODE)
        self.step = self._step_and_reset  # type: ignore[method-assign]
        self._env_indices, self._seed = np.array(env_indices), seed
        self._episodes, self._over = np.full(self.num_envs, -1), np.zeros(self.num_envs, np.bool_)

    def reset(self, *, seed: int | None = None, options: OptionsOfOne = None) -> Reset:  # type: ignore[override]
        """Begin episodes, as `SliceVectorEnv.reset`; the envs get all options but "episodes"."""
        if seed is not None:
            self._seed = seed
            self._episodes[:] = -1
        if self._seed is None:
            return self.env.reset(options=options)
        options = dict(options or {})
        places = np.flatnonzero(options.get("reset_mask", np.ones(self.num_envs, np.bool_)))
        episodes = np.asarray(options.pop("episodes", self._episodes + 1))
        self._episodes[places], self._over[places] = episodes[places], False
        seeds = seeds_of_episodes(self._seed, self._env_indices[places], episodes[places])
        return self.env.reset(seed=seeds.astype(np.int32), options=options)  # type: ignore[arg-type]  # A seed for each.

    def _step_and_reset(self, actions: Tree) -> Step:
        """Take a step; where an episode ended in the one before, begin the next one with its seed."""
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        if self._over.any() and self._seed is not None:
            observations, of_reset = self.reset(options={"reset_mask": self._over.copy()})
            infos = {**infos, **of_reset}
        self._over = np.logical_or(terminations, truncations)
        return observations, rewards, terminations, truncations, infos


class PoolVectorEnv(VectorEnv):
    """What `envpool.make_gymnasium` returned, as a Gymnasium vector env.

    Seen with EnvPool 1.2.5: its seeds are fixed when a pool is made, and each env of a list of seeds gives the same
    bytes in any pool.  Its spaces are those of a single env; observations of a Discrete space are int32.  It aborts the
    process for a wrong number of actions, and takes actions outside of their space; the root checks them before.  It
    ends by a segmentation fault where a second step is sent before the first one is received.

    Attributes
    ----------
    bare_step
        The pool's own `step`, with which `bare` compares.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.metadata, self.spec, self.render_mode = pool.metadata, None, None
        set_spaces(self, pool.num_envs, pool.observation_space, pool.action_space)
        self.bare_step = pool.step
        self._env_ids = np.arange(self.num_envs, dtype=np.int32)
        self._action_dtype = pool.spec.action_array_spec["action"].dtype

    def reset(self, *, seed: object = None, options: OptionsOfOne = None) -> Reset:
        """Begin episodes; the seeds are those of the pool."""
        outcome: Reset = self._pool.reset()
        return outcome

    def step(self, actions: np.ndarray) -> Step:
        """Take a step as `bare_step` does, without its look at ids and configuration, which takes 10 us."""
        self.send(actions)
        return self.outcome(self.recv())

    def send(self, actions: np.ndarray) -> None:
        self._pool._send([self._env_ids, self._env_ids, np.array(actions, self._action_dtype, order="C")])

    def recv(self) -> list[np.ndarray]:
        states: list[np.ndarray] = self._pool._recv()
        return states

    def outcome(self, states: list[np.ndarray]) -> Step:
        outcome: Step = self._pool._to(states, False, True)
        return outcome

    def close(self, **_kwargs: object) -> None:
        self._pool.close()
