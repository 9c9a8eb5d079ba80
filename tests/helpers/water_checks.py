"""What `examples/shallow_water` does on four ranks, as JSON: a program for a job of its tests."""

import json
import sys
import warnings
from hashlib import sha256
from pathlib import Path

import numpy as np
from jobs import CLONE
from mpi4py import MPI

sys.path.insert(0, str(CLONE / "examples" / "shallow_water"))
from env import DEPTH, NUM_PADS, episode, make_env
from solver import GRAVITY, SIDE, Tank

WORLD, ALONE = MPI.COMM_WORLD, MPI.COMM_SELF


def episodes() -> dict[str, list[str]]:
    """Digests of an episode by the number of ranks per env; 15 rows are divided evenly by none but one and three."""
    digests = {}
    for size in range(1, WORLD.size + 1):
        comm = WORLD.Split(WORLD.rank // size)
        digests[str(size)] = WORLD.allgather(f"{comm.size} {sha256(episode(comm, num_cells=15)).hexdigest()}")
        comm.Free()
    return digests


def volumes() -> list[float]:
    """Volumes of water before and after an episode with the strongest pressures."""
    env = make_env(ALONE)
    env.reset(seed=2)
    before = env._tank.heights[env._tank.own].sum()
    rng = np.random.default_rng(0)
    for _ in range(150):
        env.step(rng.choice([-1.0, 1.0], NUM_PADS))
    return [before, env._tank.heights[env._tank.own].sum()]


def energy_lost(gain: float) -> float:
    """The return of pads that press where the water rises."""
    env, total, is_over = make_env(ALONE), 0.0, False
    observation, _ = env.reset(seed=4)
    while not is_over:
        rises = observation[8:].reshape(NUM_PADS, 2).mean(axis=1)
        observation, reward, _, is_over, _ = env.step(gain * rises)
        total += reward
    return total


def seiche() -> float:
    """The largest change of a low wave from wall to wall after one period of theory, as a share of its height."""
    tank = Tank(ALONE, 64)
    wave = 1e-4 * np.cos(np.pi * (np.arange(64) + 0.5) / 64)
    heights = DEPTH + np.tile(wave[:, None], 64)
    tank.fill(heights)
    tank.advance(2 * SIDE / np.sqrt(GRAVITY * DEPTH), np.zeros((64, 64)))
    return float(abs(tank.heights[tank.own] - heights).max() / 1e-4)


def refused() -> str:
    try:
        make_env(WORLD, num_cells=7)
    except ValueError as error:
        return str(error)
    return ""


def unseeded() -> int:
    """How many ranks begin with other water than rank 0, where no seed is given."""
    first = WORLD.allgather(make_env(WORLD).reset()[0].tobytes())
    return sum(other != first[0] for other in first)


def checker() -> list[str]:
    """What Gymnasium's checker warns of."""
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(make_env(ALONE), skip_render_check=True)
    return [str(each.message) for each in caught]


found = {"episodes": episodes(), "refused": refused(), "unseeded": unseeded()}
if WORLD.rank == 0:
    found |= {"volumes": volumes(), "lost": [energy_lost(0), energy_lost(4)], "seiche": seiche(), "warnings": checker()}
    Path("found.json").write_text(json.dumps(found))
