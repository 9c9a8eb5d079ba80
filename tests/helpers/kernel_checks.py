"""What the tests of CartPole's backends share: known answers, references and outcomes."""

from functools import cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

import mpi_rollout.envs.kernels  # noqa: F401  # Registers the envs.
from mpi_rollout.envs.rollout import RolloutColumns

# Of Random123, file kat_vectors: counter, key, and what philox4x32 makes of them in ten rounds.
KNOWN_ANSWERS = (
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
)
Outcome = tuple[np.ndarray, ...]


def vector_env(backend: str, num_envs: int, **kwargs: Any) -> VectorEnv:
    mode = "vector_entry_point"
    return gymnasium.make_vec(f"mpi_rollout/CartPole{backend}-v0", num_envs, vectorization_mode=mode, **kwargs)


def single_envs(num_envs: int, max_episode_steps: int = 500, first_env: int = 0, **kwargs: Any) -> SyncVectorEnv:
    """The reference: the env in Python, one after the other, with Gymnasium's time limit and its resets."""

    def make(index: int) -> gymnasium.Env:
        limit = {"max_episode_steps": max_episode_steps}
        return gymnasium.make("mpi_rollout/CartPoleNumba-v0", first_env=first_env + index, **limit, **kwargs)

    functions = [lambda index=index: make(index) for index in range(num_envs)]
    return SyncVectorEnv(functions, autoreset_mode=AutoresetMode.NEXT_STEP)


def balancing(observations: np.ndarray) -> np.ndarray:
    """Actions that keep most poles up for some hundred steps."""
    x, x_dot, theta, theta_dot = observations.T
    return (0.1 * x + 0.3 * x_dot + 2 * theta + theta_dot > 0).astype(np.int64)


@cache
def chosen_actions(num_rows: int, num_envs: int, **kwargs: Any) -> np.ndarray:
    """Actions (num_rows, num_envs): the even envs balance, the odd ones move at random."""
    envs, rng = single_envs(num_envs, **kwargs), np.random.default_rng(0)
    observations, _ = envs.reset()
    rows = []
    for _ in range(num_rows):
        rows.append(np.where(np.arange(num_envs) % 2, rng.integers(0, 2, num_envs), balancing(observations)))
        observations, *_ = envs.step(rows[-1])
    return np.array(rows)


def stepped(envs: VectorEnv, actions: np.ndarray) -> Outcome:
    """Observations, rewards, terminations and truncations of steps, each (num_rows, num_envs, ...)."""
    rows = [envs.step(row)[:4] for row in actions]
    return tuple(np.array(column) for column in zip(*rows, strict=True))


def empty_columns(num_rows: int, num_envs: int) -> Outcome:
    shape = (num_rows, num_envs)
    flags = np.ones(shape, np.bool_), np.ones(shape, np.bool_)
    return np.full((*shape, 4), np.nan, np.float32), np.full(shape, np.nan), *flags


def rolled_out(envs: VectorEnv, actions: np.ndarray, num_rows: int) -> Outcome:
    """The same by `rollout`, so many rows in a call."""
    outcome = empty_columns(*actions.shape)
    for start in range(0, len(actions), num_rows):
        rows = slice(start, start + num_rows)
        envs.rollout(actions[rows], RolloutColumns(*(column[rows] for column in outcome)))
    return outcome


def same(first: Outcome, second: Outcome, tolerance: float = 0.0) -> bool:
    """Whether two outcomes are the same bytes, or observations at least as near as this."""
    if tolerance:
        np.testing.assert_allclose(first[0], second[0], rtol=0, atol=tolerance)
    start = 1 if tolerance else 0
    return all(a.tobytes() == b.tobytes() for a, b in zip(first[start:], second[start:], strict=True))
