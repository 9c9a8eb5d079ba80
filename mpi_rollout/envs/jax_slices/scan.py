"""Many steps of many functional envs in one compiled call."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax, random

# XLA computes the last elements of a batch, which fill no vector, with other code, and a batch of one in another way:
# their last bits may differ.  So all batches are multiples of the widest vectors of CPUs.
LANES = 16
RESET_SHARE = 16  # One in so many envs is reset at once.


class Task:
    """An env and its time limit.  What was compiled for a task is used again for an equal one."""

    def __init__(self, env: Any, max_episode_steps: int | None) -> None:
        self.env, self.max_episode_steps = env, max_episode_steps

    def __hash__(self) -> int:
        return hash((id(self.env), self.max_episode_steps))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Task):
            return False
        return self.env is other.env and self.max_episode_steps == other.max_episode_steps


class Carry(NamedTuple):
    """What envs have from one step to the next.  All arrays have a row for each env.

    Parameters
    ----------
    keys
        Of the episodes; the uses 0, 1, 2, ... of a key are the reset and the steps.
    steps
        Taken in the episode, int32.
    episodes
        Their numbers, uint32.
    ended
        Whether the last step ended the episode: the next one begins another.
    """

    state: Any
    observations: Any
    keys: jax.Array
    steps: jax.Array
    episodes: jax.Array
    ended: jax.Array


class Outcome(NamedTuple):
    """The outcome of steps; observations may be left out."""

    observations: Any
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


@partial(jax.jit, static_argnames="task")
def begin(task: Task, env_keys: jax.Array, episodes: jax.Array) -> Carry:
    """Begin episodes with these numbers."""
    keys = _folded(env_keys, episodes)
    first = jax.vmap(task.env.reset)(_folded(keys, jnp.zeros_like(episodes)))
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

    def of(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(of, chosen, others)


@partial(jax.jit, static_argnames=("task", "has_observations"))
def advance(
    task: Task, env_keys: jax.Array, carry: Carry, actions: Any, num_steps: int, has_observations: bool
) -> tuple[Carry, Outcome]:
    """Take the first `num_steps` of the steps that there are actions for.

    The number of steps is a value, so that one compiled loop takes any number up to the number of rows.  A scan would
    be compiled again for each of them.  Rows behind the last step are zeros.
    """

    def one(row: jax.Array, loop: tuple[Carry, Outcome]) -> tuple[Carry, Outcome]:
        before, columns = loop
        batch = jax.tree.map(lambda array: lax.dynamic_index_in_dim(array, row, keepdims=False), actions)
        after, outcome = _step(task, env_keys, before, batch, has_observations)
        return after, jax.tree.map(partial(lax.dynamic_update_index_in_dim, index=row, axis=0), columns, outcome)

    num_rows = len(jax.tree.leaves(actions)[0])
    batch = jax.tree.map(lambda array: array[0], actions)
    _, shapes = jax.eval_shape(partial(_step, task, has_observations=has_observations), env_keys, carry, batch)
    columns = jax.tree.map(lambda part: jnp.zeros((num_rows, *part.shape), part.dtype), shapes)
    after, columns = lax.fori_loop(0, num_steps, one, (carry, columns))
    return jax.tree.map(_strong, after), columns


def _step(task: Task, env_keys: jax.Array, carry: Carry, actions: Any, has_observations: bool) -> tuple[Carry, Outcome]:
    """Take one step; envs whose episode has ended begin the next one instead."""
    steps, runs = carry.steps + 1, ~carry.ended
    observations, state, rewards, done, infos = jax.vmap(task.env.step)(
        _folded(carry.keys, steps), carry.state, actions
    )
    truncations = jnp.asarray(infos.get("truncated", jnp.zeros_like(done))).astype(bool)
    terminations = jnp.asarray(infos.get("terminated", done.astype(bool) & ~truncations)).astype(bool) & runs
    if task.max_episode_steps is not None:
        truncations |= steps >= task.max_episode_steps
    truncations &= runs
    moved = carry._replace(state=state, observations=observations, steps=steps, ended=terminations | truncations)
    after = _begin_next(task, env_keys, moved, carry.ended)
    rewards = jnp.where(runs, rewards, 0).astype(jnp.result_type(float))
    outcome = Outcome(after.observations if has_observations else None, rewards, terminations, truncations)
    return after, outcome


def _begin_next(task: Task, env_keys: jax.Array, carry: Carry, ended: jax.Array) -> Carry:
    """Begin the next episodes of some envs.

    A reset may cost more than a step, and few envs need one in a step.  So it is done for a part of the envs at a time,
    as often as there are envs left.
    """
    num_envs = len(ended)
    width = padded(-(-num_envs // RESET_SHARE))

    def some(loop: tuple[jax.Array, Carry]) -> tuple[jax.Array, Carry]:
        left, now = loop
        (places,) = jnp.nonzero(left, size=width, fill_value=num_envs)  # Places behind the last env are dropped.
        fresh = begin(task, env_keys[places], now.episodes[places] + 1)
        now = jax.tree.map(lambda old, new: old.at[places].set(new, mode="drop"), now, fresh)
        return left.at[places].set(False, mode="drop"), now

    return lax.while_loop(lambda loop: loop[0].any(), some, (ended, carry))[1]
