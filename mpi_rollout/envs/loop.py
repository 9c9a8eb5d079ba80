"""A slice of unmodified envs, stepped one after the other: the loop that everything else must keep up with.

Semantics are those of `gymnasium.vector.SyncVectorEnv` in NEXT_STEP mode, bit for bit; what differs is the price:
outputs are written once, into arrays that the caller gives (a rank's slot), and the wrappers that `gymnasium.make`
puts around every env are stepped over, what they do being done here for all envs at once.
"""

from collections.abc import Callable, Iterator, Sequence
from operator import call
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from mpi_rollout.errors import DataError, EnvError, UsageError
from mpi_rollout.layout import RESULTS, Columns, Leaf, SlotLayout, describe, leaves

NO_LIMIT = 2**62  # Steps; twice it would not fit an int64.


class LoopVectorEnv(VectorEnv):
    """Step `env_fns`' envs in a sequential loop, with automatic reset in the step after an episode's end.

    Parameters
    ----------
    env_fns
        Each makes one env; all with the same spaces.
    seeds
        For each env the seeds of its episodes, taken at every reset that is not given one.  Without them episodes
        go on with the env's own generator, as in Gymnasium.
    first_env_index
        Of the first env, for messages.

    `step` and `reset` return the same arrays each time, valid until the next call.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        *,
        seeds: Sequence[Iterator[int]] | None = None,
        first_env_index: int = 0,
    ):
        self.envs = [make() for make in env_fns]
        self.num_envs = len(self.envs)
        self._first_env_index = first_env_index
        self._take_spaces()
        self._seeds = seeds
        layout = SlotLayout(self.single_observation_space, self.num_envs)
        self.write_to(layout.one(np.zeros(layout.nbytes, np.uint8), self.num_envs))
        inner, limits = zip(*map(step_over_wrappers, self.envs), strict=True)
        self._inner, self._limits = inner, np.array(limits)
        self._num_steps = 0
        self._episode_starts = np.zeros(self.num_envs, np.int64)
        self._next_deadline = 0
        self._ends = np.zeros(self.num_envs, np.bool_)
        self._steps = [env.step for env in inner]
        self._resets = [self._reset_instead(index) for index in range(self.num_envs)]
        self._calls = list(self._steps)
        self._ended: list[int] = []

    def _take_spaces(self) -> None:
        first = self.envs[0]
        self.spec, self.render_mode = first.spec, first.render_mode
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        leaves(self.single_observation_space), leaves(self.single_action_space)  # Or they are refused.
        for index, env in enumerate(self.envs):
            for name in ("observation_space", "action_space"):
                got, expected = describe(getattr(env, name)), describe(getattr(first, name))
                if got != expected:
                    raise UsageError(
                        f"all envs must have the same {name}, env {self._first_env_index} has {expected}, "
                        f"env {self._first_env_index + index} has {got}; make them equal in --env-factory"
                    )
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        scalar_actions = isinstance(self.single_action_space, gymnasium.spaces.Discrete)
        self._split_actions = list if scalar_actions else self._split_copied_actions

    def write_to(self, columns: Columns) -> None:
        """From now on write outputs into these arrays of `num_envs` rows, and return them."""
        self.columns = columns
        self._targets = [
            (leaf, column.reshape(int(np.prod(column.shape[: 1 + bool(leaf.shape)])), *leaf.shape[1:]))
            for leaf, column in zip(leaves(self.single_observation_space), columns.observation_arrays, strict=True)
        ]

    def _split_copied_actions(self, actions: Any) -> list[Any]:
        """One action per env; copied, since an env may keep its action and the caller's array is written again."""
        single = self.single_action_space
        if not isinstance(single, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
            return list(actions.copy())
        return [_copied(action) for action in iterate(self.action_space, actions)]

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None):
        """Start a new episode in every env."""
        if seed is None:
            seed = [None] * self.num_envs if self._seeds is None else [next(seeds) for seeds in self._seeds]
        elif isinstance(seed, int):
            seed = [seed + index for index in range(self.num_envs)]
        self._num_steps = 0
        self._episode_starts[:] = 0
        observations: list[Any] = []
        try:
            for env, value in zip(self._inner, seed, strict=True):
                observations.append(env.reset(seed=value, options=options)[0])
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._error(len(observations), error) from error
        self._next_deadline = self._limits.min()
        self._ended = []
        for column in self.columns.results:
            column[:] = 0
        self._write_observations(observations)
        return self.columns.observations, {}

    def step(self, actions: Any):
        """Step every env, or reset it where its episode ended in the last step."""
        self._num_steps += 1
        for index in self._ended:
            self._calls[index] = self._resets[index]
            self._episode_starts[index] = self._num_steps
        outcomes: list[tuple[Any, ...]] = []
        try:
            outcomes.extend(map(call, self._calls, self._split_actions(actions)))  # If one raises, its place is known.
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise self._error(len(outcomes), error) from error
        for index in self._ended:
            self._calls[index] = self._steps[index]
        try:
            observations, rewards, terminations, truncations, _ = zip(*outcomes, strict=True)
        except (TypeError, ValueError) as error:
            raise self._no_outcome(outcomes) from error
        self._write_observations(observations)
        return self.columns.observations, *self._write_results(rewards, terminations, truncations), {}

    def _reset_instead(self, index: int) -> Callable[[Any], tuple[Any, ...]]:
        def reset(_action):
            seed = None if self._seeds is None else next(self._seeds[index])
            observation, info = self._inner[index].reset(seed=seed)
            return observation, 0.0, False, False, info

        return reset

    def _write_results(self, *results: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
        columns = self.columns.results
        for leaf, column, values in zip(RESULTS, columns, results, strict=True):
            try:
                column[:] = values
            except (TypeError, ValueError) as error:
                raise self._misfit(leaf, values, error) from error
        _, terminations, truncations = columns
        if self._num_steps >= self._next_deadline:
            self._apply_time_limit(truncations)
        np.logical_or(terminations, truncations, out=self._ends)
        self._ended = self._ends.nonzero()[0].tolist()
        return columns

    def _apply_time_limit(self, truncations: np.ndarray) -> None:
        """End the episodes that are as long as their limit.

        Starts only move on, so until the earliest deadline of now, no episode can reach its limit.
        """
        elapsed = self._num_steps - self._episode_starts
        over = elapsed >= self._limits
        truncations |= over
        left = np.where(over, self._limits, self._limits - elapsed)
        self._next_deadline = self._num_steps + int(left.min())

    def _write_observations(self, observations: Sequence[Any]) -> None:
        for leaf, target in self._targets:
            try:
                parts = [leaf.of(observation) for observation in observations] if leaf.keys else observations
                write_leaf(leaf, parts, target)
            except (TypeError, ValueError, AttributeError, LookupError) as error:
                raise self._misfit(leaf, observations, error) from error

    def _misfit(self, leaf: Leaf, outputs: Sequence[Any], error: Exception) -> DataError:
        """Name the first env whose output is not what the leaf says."""
        for index, output in enumerate(outputs):
            try:
                array = np.asarray(output if leaf in RESULTS else leaf.of(output))
                if array.shape == leaf.shape and _fits(array.dtype, leaf):
                    continue
                got = f"{array.dtype} of shape {array.shape}"
            except (TypeError, ValueError, LookupError) as problem:
                got = f"{type(output).__name__} without it ({type(problem).__name__}: {problem})"
            name = leaf.path if leaf in RESULTS else f"observation {leaf.path!r}" if leaf.path else "observation"
            return DataError(
                f"env {self._first_env_index + index}: its {name} should be {leaf.dtype} of shape {leaf.shape}, got "
                f"{got}; correct the env or its space, or wrap it in --env-factory, e.g. with "
                "gymnasium.wrappers.DtypeObservation"
            )
        return DataError(f"envs {self._first_env_index} to {self._first_env_index + self.num_envs - 1}: {error}")

    def _no_outcome(self, outcomes: Sequence[Any]) -> DataError:
        """Name the first env whose step did not return what a step returns."""
        is_good = [isinstance(outcome, tuple | list) and len(outcome) == 5 for outcome in outcomes]
        index = is_good.index(False)
        got = f"{len(outcomes[index])} values" if isinstance(outcomes[index], tuple) else type(outcomes[index]).__name__
        return DataError(
            f"env {self._first_env_index + index}: its step should return observation, reward, terminated, truncated "
            f"and info, got {got}; envs of the old gym are made new by gymnasium's shimmy"
        )

    def _error(self, position: int, error: BaseException) -> EnvError:
        index, number = self._first_env_index + position, self._num_steps - self._episode_starts[position]
        when = f"step {number} of its episode" if number else "reset"
        what = f"called sys.exit({error.code})" if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
        return EnvError(f"env {index}, {when}: {what}")

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()


def step_over_wrappers(env: gymnasium.Env) -> tuple[gymnasium.Env, int]:
    """Find what to step below the outermost wrappers that `gymnasium.make` adds, and the time limit they set.

    PassiveEnvChecker and OrderEnforcing guard against mistakes that the loop does not make; TimeLimit is counted by
    the loop.  Any other wrapper changes what the env does: from there on nothing is stepped over.
    """
    limit = NO_LIMIT
    while type(env) in (wrappers.TimeLimit, wrappers.OrderEnforcing, wrappers.PassiveEnvChecker):
        if type(env) is wrappers.TimeLimit:
            limit = min(limit, env._max_episode_steps)
        env = env.env
    return env, limit


def write_leaf(leaf: Leaf, parts: Sequence[Any], target: np.ndarray) -> None:
    """Write one part per env into a column, converting nothing that the space does not promise.

    Parameters
    ----------
    target
        The column with env axis and the leaf's first axis merged: what `np.concatenate` writes to.

    Raises
    ------
    TypeError, ValueError, AttributeError
        A part is not of the leaf's shape or dtype.
    """
    if leaf.shape:
        if set(map(len, parts)) != {leaf.shape[0]}:
            raise ValueError("not of the space's shape")
        np.concatenate(parts, out=target, casting="no")  # Checks the dtype and all axes but the first.
        return
    values = np.array(parts)
    if values.shape != target.shape or not _fits(values.dtype, leaf):
        raise ValueError("not scalars of the space's dtype")
    target[:] = values


def _fits(got: np.dtype, leaf: Leaf) -> bool:
    """Arrays must have the dtype itself; a scalar may be any Python or NumPy number of its kind."""
    if leaf.shape:
        return got == leaf.dtype
    kinds = {"i": "iub", "u": "iub", "b": "b", "f": "fiu"}
    return got.kind in kinds[leaf.dtype.kind]


def _copied(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _copied(value) for key, value in action.items()}
    if isinstance(action, tuple):
        return tuple(_copied(value) for value in action)
    return action.copy() if isinstance(action, np.ndarray) else action
