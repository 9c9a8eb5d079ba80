"""One vector env for all envs whose data depend on (seed, env index, episode, actions) only.

So slices of a job's envs give the same bytes as all of them in one.  A backend keeps their states: a kernel, torch or
JAX.  What is here is the same for each of them: when episodes begin, and what is checked before a backend gets it.
"""

from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.core.spaces import Space, Tree, in_native_order, leaves, map_tree, set_spaces, tree_of
from mpi_rollout.envs.inputs import OptionsOfOne, Reset, Step, take_reset_mask
from mpi_rollout.envs.rollout import RolloutColumns, num_rows_of
from mpi_rollout.errors import ActionError, UsageError
from mpi_rollout.process.notices import NOTICES


class Backend(Protocol):
    """The states of the envs, and what changes them.  Its arguments were checked."""

    name: str  # What messages call it.
    most_seed: float
    takes_uint8: bool  # See `mpi_rollout.envs.rollout.Rollout`.

    def begin(self, seed: int, chosen: np.ndarray, episodes: np.ndarray) -> None:
        """Begin the episodes (num_envs,) int64 of the envs in a mask; this seed is used from now on.

        The first time and with another seed the mask has all envs.
        """

    def rollout(self, actions: Tree, columns: RolloutColumns) -> None:
        """Take steps, as `SliceVectorEnv.rollout`; observations and actions may be trees."""

    def observations(self) -> Tree:
        """Return the observations (num_envs, ...) in new arrays."""

    def episodes(self) -> np.ndarray:
        """Return the numbers (num_envs,) int64 of the running episodes in a new array."""

    def compile_steps(self, has_observations: bool) -> bool:
        """Compile what steps need, with or without observations, and change no env.

        Tell whether an env gives the same bytes in a batch of any width, as far as that is measured here.
        """


class SliceVectorEnv(VectorEnv):
    """Envs that begin their next episode in the step after an end, and are a `mpi_rollout.envs.rollout.Rollout`.

    The arrays that `step` and `reset` return are new each time; infos are empty.  `env_indices` are those among all
    envs of a job.
    """

    reproducibility = Reproducibility.EPISODE
    metadata: dict[str, Any] = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self, backend: Backend, env_indices: range, seed: int, observation_space: Space, action_space: Space
    ) -> None:
        self._backend, self._env_indices, self._was_reset = backend, env_indices, False
        self._seed = self._checked_seed(seed)
        self.takes_uint8 = backend.takes_uint8
        set_spaces(self, len(env_indices), observation_space, action_space)
        self._observed, self._acted = leaves(observation_space), leaves(action_space)
        self._shapes = [(self.num_envs, *leaf.shape) for leaf in self._acted]
        self._choices = action_space if isinstance(action_space, Discrete) else None
        self._num_rows: WeakKeyDictionary[RolloutColumns, int] = WeakKeyDictionary()  # Columns that were checked.
        shape = (1, self.num_envs)
        observations = tree_of(observation_space, [np.zeros(shape + leaf.shape, leaf.dtype) for leaf in self._observed])
        self._row = (observations, np.zeros(shape), np.zeros(shape, np.bool_), np.zeros(shape, np.bool_))
        self._columns_of_row = RolloutColumns(*self._row)

    def compile_steps(self, has_observations: bool) -> None:
        """Compile steps; promise less where the data of an env depend on the number of envs here."""
        if not self._backend.compile_steps(has_observations):
            self.reproducibility = Reproducibility.SLICE
            NOTICES.note(
                f"envs {self._env_indices.start} to {self._env_indices.stop - 1}",
                "an env gives other data for the same keys in a batch of another width; so the data depend on the "
                "number of ranks (reproducibility is slice in the file), and such a run cannot be continued",
            )

    def reset(self, *, seed: int | None = None, options: OptionsOfOne = None) -> Reset:
        """Begin episodes: episode 0 of each env at first and whenever there is a seed, else each env's next one.

        Parameters
        ----------
        seed
            The new seed, for all envs: env i has its own random numbers by its index.
        options
            "reset_mask", (num_envs,) bool: reset these envs only; not together with a seed.
            "episodes", (num_envs,) int64: begin these episodes, to take them again.
        """
        mask, _ = take_reset_mask(options, self.num_envs)
        if mask is not None and seed is not None:
            raise ValueError("a seed is for all envs, and cannot come with options['reset_mask']")
        if mask is not None and not self._was_reset:
            raise ResetNeeded("reset all envs before some of them")
        chosen = np.ones(self.num_envs, np.bool_) if mask is None else mask
        if seed is not None:
            self._seed = self._checked_seed(seed)
        if options and "episodes" in options:
            episodes = self._checked_episodes(options["episodes"])
        elif seed is None and self._was_reset:
            episodes = self._backend.episodes() + 1
        else:
            episodes = np.zeros(self.num_envs, np.int64)
        self._backend.begin(self._seed, chosen, episodes)
        self._was_reset = True
        return self._backend.observations(), {}

    def step(self, actions: Tree) -> Step:
        """Take one step; the actions of envs that begin an episode are not used."""
        arrays = [in_native_order(np.asarray(leaf.of(actions)))[np.newaxis] for leaf in self._acted]
        self._check_actions(arrays)
        batch = tree_of(self.single_action_space, arrays) if self._choices is None else arrays[0]
        self._backend.rollout(batch, self._columns_of_row)
        observations, *results = self._row
        rewards, terminations, truncations = (array[0].copy() for array in results)
        return map_tree(lambda array: array[0].copy(), observations), rewards, terminations, truncations, {}

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        """Take steps with actions (num_steps, num_envs, ...); see `mpi_rollout.envs.rollout.Rollout`."""
        actions = in_native_order(np.asarray(actions))
        self._check_actions([actions])
        num_rows = self._num_rows.get(columns)
        if num_rows is None:
            num_rows = self._num_rows[columns] = num_rows_of(columns, self.num_envs, *self._observed)
        if len(actions) > num_rows:
            raise ValueError(f"the columns have room for {num_rows} steps, got actions of {len(actions)}")
        self._backend.rollout(actions, columns)

    def last_observations(self) -> Tree:
        """Return the observations (num_envs, ...) that the last step or reset has led to, in new arrays."""
        self._check_was_reset()
        return self._backend.observations()

    @property
    def episodes(self) -> np.ndarray:
        """The numbers (num_envs,) int64 of the episodes that the envs are in."""
        self._check_was_reset()
        return self._backend.episodes()

    def _check_was_reset(self) -> None:
        if not self._was_reset:
            raise ResetNeeded("reset the envs before their first step")

    def _checked_seed(self, seed: object) -> int:
        return checked_integer(self._backend.name, "seed", seed, 0, self._backend.most_seed)

    def _checked_episodes(self, episodes: object) -> np.ndarray:
        array = np.asarray(episodes)
        if array.shape != (self.num_envs,) or array.dtype.kind not in "iu" or array.min() < 0:
            raise ValueError(f"options['episodes'] must be {self.num_envs} integers from 0 on, got {episodes!r}")
        return array.astype(np.int64)

    def _check_actions(self, arrays: list[np.ndarray]) -> None:
        """Check the leaves of actions, (num_steps, num_envs, ...) each, before any step."""
        self._check_was_reset()
        is_discrete = self._choices is not None
        for array, shape in zip(arrays, self._shapes, strict=True):
            if array.shape[1:] != shape or array.dtype.kind not in ("iu" if is_discrete else "biuf"):
                words = ", ".join(map(str, ("num_steps", *shape)))
                what = f"actions must be {'integers' if is_discrete else 'numbers'} ({words})"
                raise ActionError(f"{what}, got an array {array.shape} of {array.dtype}")
        if self._choices is not None:
            self._check_choices(arrays[0], self._choices)

    def _check_choices(self, actions: np.ndarray, choices: Discrete) -> None:
        """Check integers: a kernel would take a wrong one for another one."""
        # One pass, and no temporary array.  Where all bits together are less than n, each number is.
        if not choices.start and 0 <= np.bitwise_or.reduce(actions, None) < choices.n:
            return
        wrong = (actions < choices.start) | (actions >= choices.start + choices.n)
        if wrong.any():
            row, env = np.argwhere(wrong)[0]
            place = f"env {self._env_indices[env]}" + (f" in row {row}" if len(actions) > 1 else "")
            raise ActionError(f"the action of {place} must be in {choices}, got {actions[row, env]}")


def checked_integer(of: str, name: str, value: object, low: int, high: float) -> int:
    """Return an integer from `low` to `high`, or raise UsageError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        until = "on" if high == float("inf") else f"to {high:,}"
        raise UsageError(f"{name} of {of} must be an integer from {low:,} {until}, got {value!r}")
    return int(value)
