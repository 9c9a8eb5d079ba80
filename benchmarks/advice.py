"""Follow each advice that a run can end with: python benchmarks/advice.py follow [ROUNDS [CASE]].

Each case has a run in which something costs much, and one that does what the line says.  They take turns.  The table
has the line of the last run, and how many times as many env steps/s the other one had: median and range.
"""

import os
import re
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from measuring import ROUNDS, busy, main, ratios, run, spread, table, turns

HERE = Path(__file__).resolve()


class Envs(gymnasium.Env):
    """Its steps take `step_s` and no core; `times` as long on a rank, or in one of `every` steps by chance."""

    action_space = spaces.Discrete(2)

    def __init__(self, step_s: float = 0.0005, times: int = 1, rank: int = -1, every: int = 0, nbytes: int = 8):
        self.observation_space = spaces.Box(0, 255, (nbytes,), np.uint8)
        is_slow = rank == int(os.environ.get("OMPI_COMM_WORLD_RANK", rank))
        self._step_s, self._slow_s, self._every = step_s * (times if is_slow else 1), step_s * times, every
        self._frames = np.random.default_rng(0).integers(0, 255, (16, nbytes), np.uint8)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._frames[0], {}

    def step(self, action):
        is_slow = self._every and self.np_random.integers(self._every) == 0
        time.sleep(self._slow_s if is_slow else self._step_s)
        return self._frames[int(self.np_random.integers(16))], 0.0, False, False, {}


def act(observations, env_indices=None, uniforms=None, each_s=0.0):
    """Choose all actions at once, or after a time for each."""
    end = time.perf_counter() + each_s * len(observations)
    while time.perf_counter() < end:
        pass
    return np.zeros(len(observations), np.int64)


slowly = partial(act, each_s=3e-5)


class Quick:
    """A policy for the ranks."""

    act = staticmethod(act)
    make_policy = classmethod(lambda cls, *_: cls())


class Slow(Quick):
    """The same that takes its time."""

    act = staticmethod(slowly)


def many(*kwargs: str) -> str:
    return f"--env-factory {HERE}:Envs --env-kwargs [{','.join(kwargs)}]"


def own(kwargs: str) -> str:
    return f"--env-factory {HERE}:Envs --env-kwargs {{{kwargs}}}"


QUICK, SLOW = '{"step_s":0.0002}', '{"step_s":0.001}'
POLE, ACT, NONE = "--env CartPole-v1", f"--policy {HERE}:act", "--no-trajectories"
IMAGES = own('"step_s":0.0001,"nbytes":100000') + " --num-envs 16 --num-steps 2000"
# Ranks and options of a run, and what following its advice changes: {n} is the number that the advice names.
CASES = {
    "more envs": (2, f"{POLE} {ACT} {NONE} --num-steps 6000 --num-envs 8", 2, "--num-envs {n}"),
    "fragments": (2, f"{POLE} {NONE} --num-steps 6000 --num-envs 8 {ACT}", 2, f"--policy {HERE}:Quick.make_policy"),
    "policy": (2, f"{POLE} {NONE} --num-steps 1500 --policy {HERE}:slowly", 2,
               f"--policy {HERE}:Slow.make_policy --policy-block 32"),
    "policy alone": (1, f"{POLE} {NONE} --num-steps 1500 --policy {HERE}:slowly", 2,
                     f"--policy {HERE}:Slow.make_policy --policy-block 32"),
    "root": (2, own('"times":4,"rank":0') + f" {NONE} {ACT} --num-envs 16 --num-steps 150", 2, "--root-envs {n}"),
    "slow rank": (3, f"{many(*[QUICK] * 8, *[SLOW] * 4)} {NONE} {ACT} --num-envs 12 --num-steps 500 --wait sleep", 3,
                  many(*[QUICK, QUICK, SLOW] * 4)),
    "uneven": (2, own('"every":20,"times":20') + f" {NONE} {ACT} --num-envs 8 --num-steps 500", 2,
               f"--policy {HERE}:Quick.make_policy"),
    "crowded": (6, f"{POLE} {ACT} {NONE} --num-steps 5000 --num-envs 48", 2, ""),
    "shared": (2, f"{POLE} {ACT} {NONE} --num-steps 5000 --num-envs 16", 1, ""),
    "disk": (2, IMAGES, 2, NONE),
    "gzip": (2, f"{IMAGES} --compression gzip", 2, "--compression none"),
}  # fmt: skip


def follow(rounds: int = ROUNDS, *names: str) -> None:
    """Do each case, and what its advice says."""
    table(("case", "advice", "env steps/s, following it over not"), (of_case(name, rounds) for name in names or CASES))


def of_case(name: str, rounds: int) -> tuple[str, str, str]:
    num_ranks, options, other_ranks, change = CASES[name]
    with busy(1) if name == "shared" else nullcontext():
        first = run(num_ranks, options)
        number = re.search(r"--(?:num|root)-envs (\d+)", first["advice"])
        change = change.replace("{n}", number[1] if number else "64")
        ways = {"not": partial(run, num_ranks, options), "followed": partial(run, other_ranks, f"{options} {change}")}
        runs = turns(ways, rounds)
    rates = {way: [each["env_steps_per_s"] for each in some] for way, some in runs.items()}
    return name, runs["not"][-1]["advice"] or "-", spread(ratios(rates["followed"], rates["not"]), ".2f")


if __name__ == "__main__":
    main(__doc__, {"follow": follow})
