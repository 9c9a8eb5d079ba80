"""Functional envs as the backend of a slice: NumPy outside; inside, many steps of many envs in one compiled call."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import starmap
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax import lax, random

from mpi_rollout.core.spaces import Space, Tree, leaves, nearest_to_zero, tree_of
from mpi_rollout.envs.jax_slices import Array, FunctionalEnv, Key, State
from mpi_rollout.envs.rollout import RolloutColumns
from mpi_rollout.envs.slice_env import SliceVectorEnv, checked_integer
from mpi_rollout.errors import UsageError

CHUNK_NBYTES = 2**22  # Of the outcome of one compiled call: it stays in the cache.
MOST_STEPS = 64  # In one compiled call.
# XLA computes the last elements of a batch, which fill no vector, with other code, and a batch of one in another way:
# their last bits may differ.  So all batches are multiples of the widest vectors of CPUs.
LANES = 16
TRIAL_STEPS = 8  # In which the outcomes of two widths are compared.
RESET_SHARE = 16  # One in so many envs is reset at once.


class LimitedEnv(NamedTuple):
    """The methods of an env, and its time limit.  What was compiled for one is used again for an equal one."""

    reset: Callable[[Key], tuple[Array, State]]
    step: Callable[[Key, State, Array], tuple[Array, State, Array, Array, Mapping[str, Array]]]
    max_episode_steps: int | None


class Carry(NamedTuple):
    """What envs have from one step to the next.  All arrays have a row for each env."""

    state: State
    observations: Tree
    keys: jax.Array  # Of the episodes; the uses 0, 1, 2, ... of a key are the reset and the steps.
    steps: jax.Array  # Taken in the episode, int32.
    episodes: jax.Array  # Their numbers, uint32.
    ended: jax.Array  # Whether the last step ended the episode: the next one begins another.


class Outcome(NamedTuple):
    """The outcome of steps; observations may be left out."""

    observations: Tree
    rewards: jax.Array
    terminations: jax.Array
    truncations: jax.Array


def keys_of_envs(seed: int, env_indices: range) -> jax.Array:
    """Return a key for each env and for those that fill the batch; more than 32 bits of a seed are folded in."""
    key = random.key(seed & 0xFFFFFFFF, impl="threefry2x32")  # Whatever JAX is configured to use.
    while seed := seed >> 32:
        key = random.fold_in(key, seed & 0xFFFFFFFF)
    stop = env_indices.start + padded(len(env_indices))
    return _folded(jnp.broadcast_to(key, stop - env_indices.start), jnp.arange(env_indices.start, stop))


def padded(num_envs: int) -> int:
    """Return the number of envs that a compiled call computes for `num_envs`."""
    return -(-num_envs // LANES) * LANES


_folded = jax.vmap(random.fold_in)


@partial(jax.jit, static_argnames="env")
def begin(env: LimitedEnv, env_keys: jax.Array, episodes: jax.Array) -> Carry:
    """Begin episodes with these numbers."""
    keys = _folded(env_keys, episodes)
    first = jax.vmap(env.reset)(_folded(keys, jnp.zeros_like(episodes)))
    observations, state = jax.tree.map(_strong, first)
    return Carry(
        state, observations, keys, jnp.zeros(episodes.shape, jnp.int32), episodes, jnp.zeros(episodes.shape, bool)
    )


def _strong(array: jax.Array) -> jax.Array:
    """Return an array that is not weakly typed: steps make such, and another type would be compiled again."""
    is_special = jnp.issubdtype(array.dtype, jax.dtypes.extended)  # A key.
    return array if is_special else lax.convert_element_type(array, array.dtype)


@jax.jit
def merge(mask: jax.Array, chosen: Carry, others: Carry) -> Carry:
    """Take the envs of a mask from one carry, and the others from another."""
    return jax.vmap(lambda is_chosen, *both: jax.tree.map(partial(jnp.where, is_chosen), *both))(mask, chosen, others)


@partial(jax.jit, static_argnames=("env", "has_observations"))
def advance(
    env: LimitedEnv, env_keys: jax.Array, carry: Carry, actions: Tree, num_steps: int, has_observations: bool
) -> tuple[Carry, Outcome]:
    """Take the first `num_steps` of the steps that there are actions for; rows behind them are zeros.

    The number of steps is a value: a scan would be compiled again for each of them.
    """

    def one(row: jax.Array, loop: tuple[Carry, Outcome]) -> tuple[Carry, Outcome]:
        before, columns = loop
        batch = jax.tree.map(lambda array: lax.dynamic_index_in_dim(array, row, keepdims=False), actions)
        after, outcome = _step(env, env_keys, before, batch, has_observations)
        return after, jax.tree.map(partial(lax.dynamic_update_index_in_dim, index=row, axis=0), columns, outcome)

    num_rows = len(jax.tree.leaves(actions)[0])
    batch = jax.tree.map(lambda array: array[0], actions)
    _, shapes = jax.eval_shape(partial(_step, env, has_observations=has_observations), env_keys, carry, batch)
    columns = jax.tree.map(lambda part: jnp.zeros((num_rows, *part.shape), part.dtype), shapes)
    after, columns = lax.fori_loop(0, num_steps, one, (carry, columns))
    return jax.tree.map(_strong, after), columns


def _step(
    env: LimitedEnv, env_keys: Array, carry: Carry, actions: Tree, has_observations: bool
) -> tuple[Carry, Outcome]:
    """Take one step; envs whose episode has ended begin the next one instead."""
    steps, runs = carry.steps + 1, ~carry.ended
    observations, state, rewards, done, infos = jax.vmap(env.step)(_folded(carry.keys, steps), carry.state, actions)
    truncations = jnp.asarray(infos.get("truncated", jnp.zeros_like(done))).astype(bool)
    terminations = jnp.asarray(infos.get("terminated", done.astype(bool) & ~truncations)).astype(bool) & runs
    if env.max_episode_steps is not None:
        truncations |= steps >= env.max_episode_steps
    truncations &= runs
    moved = carry._replace(state=state, observations=observations, steps=steps, ended=terminations | truncations)
    after = _begin_next(env, env_keys, moved, carry.ended)
    rewards = jnp.where(runs, rewards, 0).astype(jnp.result_type(float))
    outcome = Outcome(after.observations if has_observations else None, rewards, terminations, truncations)
    return after, outcome


def _begin_next(env: LimitedEnv, env_keys: jax.Array, carry: Carry, ended: jax.Array) -> Carry:
    """Begin the next episodes of some envs: few need one in a step, and a reset may cost more than a step.

    So it is done for a part of the envs at a time, as often as there are envs left.
    """
    num_envs = len(ended)
    width = padded(-(-num_envs // RESET_SHARE))

    def some(loop: tuple[jax.Array, Carry]) -> tuple[jax.Array, Carry]:
        left, now = loop
        (places,) = jnp.nonzero(left, size=width, fill_value=num_envs)  # Places behind the last env are dropped.
        fresh = begin(env, env_keys[places], now.episodes[places] + 1)
        now = jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), now, fresh)
        return left.at[places].set(False, mode="drop"), now

    return lax.while_loop(lambda loop: loop[0].any(), some, (ended, carry))[1]


def make_envs(
    env: FunctionalEnv,
    env_indices: range,
    seed: int,
    observation_space: Space | None,
    action_space: Space | None,
    max_episode_steps: int | None,
) -> SliceVectorEnv:
    """Make the envs of `jax_slice`, which describes the arguments."""
    jax.devices()  # XLA starts its threads here, as many as `library_threads` says.
    both_spaces = checked_spaces(env, observation_space, action_space)
    if max_episode_steps is not None:
        checked_integer(JAXBackend.name, "max_episode_steps", max_episode_steps, 1, math.inf)
    backend = JAXBackend(LimitedEnv(env.reset, env.step, max_episode_steps), env_indices, *both_spaces)
    return SliceVectorEnv(backend, env_indices, seed, *both_spaces)


class JAXBackend:
    """A `slice_env.Backend`: all steps go through one compiled loop of up to `chunk` steps."""

    name, most_seed, takes_uint8 = "JAX envs", math.inf, False
    _carry: Carry

    def __init__(self, env: LimitedEnv, env_indices: range, observation_space: Space, action_space: Space) -> None:
        self._env, self._env_indices, self._num_envs = env, env_indices, len(env_indices)
        self._observation_space, self._action_space = observation_space, action_space
        self._leaves, self._num_computed = leaves(observation_space), padded(self._num_envs)
        row_nbytes = self._num_computed * (sum(leaf.nbytes for leaf in self._leaves) + 8)
        self.chunk = 2 ** int(math.log2(min(MOST_STEPS, max(1, CHUNK_NBYTES // row_nbytes))))

    def compile_steps(self, has_observations: bool) -> bool:
        other_width = 2 * LANES if self._num_computed == LANES else LANES
        own, other = (self._trial(width, has_observations) for width in (self._num_computed, other_width))
        return all(starmap(np.array_equal, zip(own, other, strict=True)))

    def _trial(self, width: int, has_observations: bool) -> list[np.ndarray]:
        """Compile steps of so many envs, and take a few; return what the first `LANES` gave, as bytes."""
        first = self._env_indices.start
        env_keys = keys_of_envs(0, range(first, first + width))
        carry = begin(self._env, env_keys, np.zeros(width, np.uint32))
        shape, space = (self.chunk, width), self._action_space
        action = nearest_to_zero(space)
        actions = [np.broadcast_to(leaf.of(action), shape + leaf.shape).astype(leaf.dtype) for leaf in leaves(space)]
        num_steps = np.int32(min(TRIAL_STEPS, self.chunk))
        after, outcome = advance(self._env, env_keys, carry, tree_of(space, actions), num_steps, has_observations)
        given = jax.device_get([carry.observations, after.observations, (after.ended, *outcome[1:])])
        rows = [array[:LANES] for array in jax.tree.leaves(given[:2])]
        rows += [np.moveaxis(array, -1, 0)[:LANES] for array in jax.tree.leaves(given[2])]
        return [np.frombuffer(np.ascontiguousarray(row).tobytes(), np.uint8) for row in rows]

    def begin(self, seed: int, chosen: np.ndarray, episodes: np.ndarray) -> None:
        self._env_keys = keys_of_envs(seed, self._env_indices)
        fresh = begin(self._env, self._env_keys, self._filled(episodes.astype(np.uint32)))
        self._carry = fresh if chosen.all() else merge(self._filled(chosen), fresh, self._carry)

    def _filled(self, array: np.ndarray) -> np.ndarray:
        """Fill up the envs of a batch."""
        return np.pad(array, (0, self._num_computed - self._num_envs))

    def rollout(self, actions: Tree, columns: RolloutColumns) -> None:
        """Take steps.  While the host copies the outcome of a chunk, JAX computes the next one."""
        wanted: dict[str, Tree] = dict(columns.wanted())
        num_steps = len(jax.tree.leaves(actions)[0])
        before: list[tuple[slice, Outcome]] = []
        for start in range(0, num_steps, self.chunk):
            rows = slice(start, min(start + self.chunk, num_steps))
            part = jax.tree.map(lambda array, rows=rows: self._padded(array[rows]), actions)
            self._carry, outcome = advance(
                self._env, self._env_keys, self._carry, part, np.int32(rows.stop - start), "observations" in wanted
            )
            before.append((rows, outcome))
            if len(before) > 1:
                self._bring(*before.pop(0), wanted)
        for chunk in before:
            self._bring(*chunk, wanted)

    def _padded(self, array: np.ndarray) -> np.ndarray:
        """Fill up the steps of a chunk and the envs of a batch."""
        if array.shape[:2] == (self.chunk, self._num_computed):
            return array
        filled = np.zeros((self.chunk, self._num_computed, *array.shape[2:]), array.dtype)
        filled[: len(array), : self._num_envs] = array
        return filled

    def _bring(self, rows: slice, outcome: Outcome, wanted: dict[str, Tree]) -> None:
        """Wait for the outcome of a chunk, and copy it into these rows of the columns."""
        host = jax.device_get({name: tree for name, tree in outcome._asdict().items() if name in wanted})
        for name, tree in wanted.items():
            for leaf in self._leaves if name == "observations" else [None]:
                column, array = (tree, host[name]) if leaf is None else (leaf.of(tree), leaf.of(host[name]))
                column[rows] = array[: rows.stop - rows.start, : self._num_envs]

    def observations(self) -> Tree:
        """Return observations of the dtypes of their spaces."""
        host = jax.device_get(self._carry.observations)
        arrays = [np.array(leaf.of(host)[: self._num_envs], leaf.dtype) for leaf in self._leaves]
        return tree_of(self._observation_space, arrays)

    def episodes(self) -> np.ndarray:
        return np.array(self._carry.episodes[: self._num_envs], np.int64)


def checked_spaces(env: FunctionalEnv, given_space: Space | None, action_space: Space | None) -> tuple[Space, Space]:
    """Return the spaces of a functional env, or raise UsageError; nothing is computed, JAX tells shapes and dtypes."""
    name = type(env).__name__
    key = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))
    observation, state = jax.eval_shape(env.reset, key)
    action_space = action_space or getattr(env, "action_space", None)
    if not isinstance(action_space, spaces.Space):
        raise UsageError(f"JAX env {name} needs an action_space of Gymnasium, got {action_space!r}")
    observation_space = given_space or getattr(env, "observation_space", None)
    if not isinstance(observation_space, spaces.Space):
        observation_space = _unbounded(name, observation)
    actions = tree_of(action_space, [np.zeros(leaf.shape, leaf.dtype) for leaf in leaves(action_space)])
    observation_after, state_after, reward, done, _ = jax.eval_shape(env.step, key, state, actions)
    for what, first, second in (("state", state, state_after), ("observation", observation, observation_after)):
        _check_same(name, what, first, second)
    for what, array in (("reward", reward), ("done", done)):
        if array.shape:
            raise UsageError(f"the {what} of JAX env {name} must be one number, got shape {array.shape}")
    _check_observation(name, observation_space, observation)
    return observation_space, action_space


def _unbounded(name: str, observation: Array) -> Space:
    if isinstance(observation, dict):
        return spaces.Dict({key: _unbounded(name, part) for key, part in observation.items()})
    if not hasattr(observation, "shape"):
        raise UsageError(f"JAX env {name} needs an observation_space of Gymnasium")
    dtype = np.dtype(observation.dtype)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, observation.shape, dtype)
    low, high = (0, 1) if dtype == np.bool_ else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return spaces.Box(low, high, observation.shape, np.int8 if dtype == np.bool_ else dtype)


def _check_same(name: str, what: str, first: State, second: State) -> None:
    """Refuse what step returns in other shapes than reset: a compiled loop needs the same."""
    places, more = (jax.tree_util.tree_flatten_with_path(tree)[0] for tree in (first, second))
    if jax.tree.structure(first) != jax.tree.structure(second):
        raise UsageError(f"the {what} that step of JAX env {name} returns is nested otherwise than that of reset")
    for (path, before), (_, after) in zip(places, more, strict=True):
        if (before.shape, before.dtype) != (after.shape, after.dtype):
            expected = f"{before.dtype} of shape {before.shape} as reset does"
            place = jax.tree_util.keystr(path)
            got = f"{after.dtype} of shape {after.shape}"
            raise UsageError(f"step of JAX env {name} must return {what}{place} as {expected}, got {got}")


def _check_observation(name: str, space: Space, observation: Array) -> None:
    for leaf in leaves(space):
        try:
            shape = leaf.of(observation).shape
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise UsageError(f"the observation of JAX env {name} is not nested as its space {space}") from error
        if shape != leaf.shape:
            at = f" {leaf.path}" if leaf.path else ""
            raise UsageError(f"the observation{at} of JAX env {name} must have shape {leaf.shape}, got {shape}")
