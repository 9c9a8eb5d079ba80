"""Functional envs in JAX as users write them; their arithmetic is exact."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from jax import random
from jax.custom_batching import custom_vmap

from mpi_rollout.envs.jax_slices import jax_slice


class Hop:
    """Hops by its actions and at random until it is four away from where it began."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(-100.0, 100.0, (2,), np.float32)

    def reset(self, key):
        place = random.randint(key, (), -2, 3)
        return self._observe(key, place), {"place": place, "time": 0}

    def step(self, key, state, action):
        place = state["place"] + 2 * action - 1 + random.randint(key, (), -1, 2)
        state = {"place": place, "time": state["time"] + 1}
        return self._observe(key, place), state, place / 4, jnp.abs(place) >= 4, {"place": place}

    def _observe(self, key, place):
        return jnp.stack([place.astype(jnp.float32), random.uniform(key)])


class Slow(Hop):
    """Is over after three steps as well, which it calls a time limit."""

    def step(self, key, state, action):
        observation, state, reward, done, _ = super().step(key, state, action)
        is_late = state["time"] >= 3
        return observation, state, reward, done | is_late, {"truncated": is_late & ~done}


class Nested(Hop):
    """Has parts in its observations and in its actions."""

    action_space = spaces.Tuple([spaces.Discrete(2), spaces.Box(-1, 1, (2,), np.float32)])
    observation_space = spaces.Dict({"both": Hop.observation_space, "where": spaces.Discrete(200)})

    def step(self, key, state, action):
        hop, push = action
        observation, state, reward, done, infos = super().step(key, state, hop)
        return observation, state, reward + push.sum(), done, infos

    def _observe(self, key, place):
        return {"both": super()._observe(key, place), "where": place + 100}


@custom_vmap
def wide(place):
    return place


@wide.def_vmap
def _wide(axis_size, _is_batched, place):
    return place + (axis_size > 16), True


class Wide(Hop):
    """Begins elsewhere in a batch of more than 16 envs, as programs whose arithmetic depends on the width."""

    def _observe(self, key, place):
        return super()._observe(key, wide(place))


class Growing(Hop):
    """Has a state that changes its dtype."""

    def step(self, key, state, action):
        observation, state, *rest = super().step(key, state, action)
        return observation, state | {"time": state["time"] * 1.5}, *rest


HOP = Hop()


def wides(env_indices: range, seed: int) -> VectorEnv:
    return jax_slice(Wide(), env_indices, seed)


def hops(env_indices: range, seed: int, **kwargs: Any) -> VectorEnv:
    return jax_slice(HOP, env_indices, seed, **kwargs)
