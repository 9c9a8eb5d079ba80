"""gymnax, as its documentation shows it: a jitted scan over its vmapped `step`, here with what it gives in NumPy.

It resets in the step that ends an episode, so all rows are env steps.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mpi_rollout.studies.compare import SEED, Setup
from systems.stepped import Stepper, actions_of


@contextmanager
def scan(setup: Setup) -> Iterator[Stepper]:
    """All envs in one process, many steps in a sweep."""
    import gymnax
    import jax

    env, params = gymnax.make(setup.env["env"])
    actions, carry = jax.numpy.asarray(np.stack(actions_of(setup))), None
    begin = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))
    step_all = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def step(carry: Any, row: Any) -> Any:
        key, state = carry
        key, drawn = jax.random.split(key)
        observation, state, reward, *ends, _ = step_all(jax.random.split(drawn, setup.num_envs), state, row, params)
        return (key, state), (observation, reward, *ends)

    scan_all = jax.jit(lambda carry, rows: jax.lax.scan(step, carry, rows))

    def reset() -> None:
        nonlocal carry
        key = jax.random.key(SEED)
        _, state = begin(jax.random.split(key, setup.num_envs), params)
        carry = key, jax.block_until_ready(state)

    def sweep() -> int:
        nonlocal carry
        carry, outputs = scan_all(carry, actions)
        jax.device_get(outputs)
        return actions.shape[0] * setup.num_envs

    reset()
    sweep()  # Compiles.
    yield Stepper(reset, sweep)
