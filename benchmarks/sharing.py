"""Measure what slots in shared memory bring over messages: python benchmarks/sharing.py measure [ROUNDS [RANKS]].

`connect` steps envs that observe the same bytes again and again, with messages and with shared slots in turn, in the
same processes.  Of a turn the pieces count that a fifth of them are quicker than: what other work takes is in the rest.
"""

import json
import time

import gymnasium
import numpy as np
from gymnasium import spaces
from measuring import main, python, ratios, spread, table

import mpi_rollout
from mpi_rollout.exchange import exchanges

ROUNDS, TURN_S, PER_PIECE = 15, 0.15, 4
NEVER, ALWAYS = 2**62, 0
CASES = (  # Ranks, envs, bytes of an observation, milliseconds that a step sleeps.
    (2, 8, 2**20, 0),
    (2, 64, 84 * 84 * 4, 0),
    (2, 64, 4096, 0),
    (2, 64, 1024, 0),
    (2, 64, 16, 0),
    (8, 32, 2**20, 5),
    (8, 32, 84 * 84 * 4, 5),
)


class Still(gymnasium.Env):
    """Observes the same all the time, at no cost but that of the copy into the slot."""

    action_space = spaces.Discrete(2)

    def __init__(self, nbytes: int, sleep_ms: int):
        self.observation_space = spaces.Box(0, 255, (nbytes,), np.uint8)
        self.sleep_s, self.seen = sleep_ms / 1000, np.ones(nbytes, np.uint8)

    def reset(self, seed=None, options=None):
        return self.seen, {}

    def step(self, action):
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return self.seen, 0.0, False, False, {}


def turn(num_envs: int, nbytes: int, sleep_ms: int) -> float | None:
    """Seconds of a step; None on workers."""
    with mpi_rollout.connect(lambda: Still(nbytes, sleep_ms), num_envs) as envs:
        if envs is None:
            return None
        envs.reset(seed=1)
        actions, pieces, start = np.zeros(num_envs, np.int64), [], time.perf_counter()
        while len(pieces) < 10 or time.perf_counter() < start + TURN_S:
            before = time.perf_counter()
            for _ in range(PER_PIECE):
                envs.step(actions)
            pieces.append(time.perf_counter() - before)
        return sorted(pieces)[len(pieces) // 5] / PER_PIECE


def take_turns(rounds: int, *case: int) -> None:
    taken: dict[int, list[float | None]] = {NEVER: [], ALWAYS: []}
    for number in range(rounds):
        for least in list(taken)[:: 1 if number % 2 else -1]:
            exchanges.LEAST_NBYTES = least
            taken[least].append(turn(*case))
    if taken[NEVER][0] is not None:
        print(json.dumps(list(taken.values())))


def measure(rounds: int = ROUNDS, num_ranks: int = 0) -> None:
    """All cases, or those of so many ranks."""

    def row(num_ranks: int, *case: int) -> tuple:
        messages, shared = json.loads(python(num_ranks, __file__, "turns", rounds, *case).splitlines()[-1])
        times = (spread((1e6 * seconds for seconds in some), ",.0f") for some in (messages, shared))
        return num_ranks, *case, *times, spread(ratios(messages, shared), ".2f")

    head = "ranks", "envs", "bytes", "sleep, ms", "a step with messages, us", "shared, us", "rate over messages'"
    table(head, (row(*case) for case in CASES if num_ranks in (0, case[0])))


if __name__ == "__main__":
    main(__doc__, {"measure": measure}, {"turns": take_turns})
