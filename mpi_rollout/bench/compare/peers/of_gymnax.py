"""gymnax, as its documentation shows it: a jitted scan over its vmapped `step`, here with what it gives in NumPy."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpi_rollout.bench.compare.peers import drawn_actions
from mpi_rollout.bench.compare.setups import Setup
from mpi_rollout.bench.compare.turns import SEED, BatchSystem


class ScanStepper:
    """All envs, many steps in a sweep; gymnax resets in the step that ends an episode, so all rows are env steps.

    Parameters
    ----------
    actions
        Of shape (num_steps, num_envs, ...).
    """

    def __init__(self, env: str, actions: Sequence[Any]):
        import gymnax
        import jax

        self._jax = jax
        self._env, self._params = gymnax.make(env)
        self._actions = jax.numpy.asarray(np.stack(actions))
        self._num_steps, self._num_envs = self._actions.shape[:2]
        self._begin = jax.jit(jax.vmap(self._env.reset, in_axes=(0, None)))
        self._scan = jax.jit(self._steps)

    def _steps(self, key: Any, state: Any, actions: Any) -> Any:
        jax = self._jax

        def step(carry: Any, row: Any) -> Any:
            key, state = carry
            key, drawn = jax.random.split(key)
            keys = jax.random.split(drawn, self._num_envs)
            observation, state, reward, *ends, _ = jax.vmap(self._env.step, in_axes=(0, 0, 0, None))(
                keys, state, row, self._params
            )
            return (key, state), (observation, reward, *ends)

        return jax.lax.scan(step, (key, state), actions)

    def reset(self) -> None:
        jax = self._jax
        self._key = jax.random.key(SEED)
        _, self._state = self._begin(jax.random.split(self._key, self._num_envs), self._params)
        jax.block_until_ready(self._state)

    def sweep(self) -> int:
        (self._key, self._state), outputs = self._scan(self._key, self._state, self._actions)
        self._jax.device_get(outputs)
        return self._num_steps * self._num_envs

    def count(self, sweeps: Sequence[int]) -> int:
        return sum(sweeps)

    def close(self) -> None:
        """Do nothing: there are only arrays."""


def scan(setup: Setup) -> BatchSystem:
    """Make all envs in one process."""
    stepper = ScanStepper(setup.env, drawn_actions(setup))
    stepper.reset()
    stepper.sweep()  # Compiles.
    return BatchSystem(stepper)
