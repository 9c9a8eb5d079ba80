"""Follow each advice that a run can end with: python benchmarks/advice.py follow [ROUNDS [CASE]].

Each case has a run in which something costs much, and one that does what the line says.  They take turns.  The table
has the line of the last run, and how many times as many env steps/s the other one had: median and range.
"""

import re
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
from measuring import ROUNDS, busy, main, ratios, run, spread, table, turns

HERE = Path(__file__).resolve()


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


def sleeping(kwargs: str) -> str:
    return f"--env-factory {HERE.with_name('sleeping.py')}:SleepingEnv --env-kwargs {kwargs}"


def many(*kwargs: str) -> str:
    return sleeping(f"[{','.join(kwargs)}]")


QUICK, SLOW = '{"step_s":0.0002}', '{"step_s":0.001}'
POLE, ACT, NONE = "--env CartPole-v1", f"--policy {HERE}:act", "--no-trajectories"
IMAGES = sleeping('{"step_s":0.0001,"observation_bytes":100000}') + " --num-envs 16 --num-steps 2000"
SLOW_ROOT, UNEVEN = '{"step_s":0.0005,"slow_s":0.002,"slow_rank":0}', '{"step_s":0.0005,"slow_s":0.01,"slow_every":20}'
# Ranks and options of a run, and what following its advice changes: {n} is the number that the advice names.
CASES = {
    "more envs": (2, f"{POLE} {ACT} {NONE} --num-steps 6000 --num-envs 8", 2, "--num-envs {n}"),
    "fragments": (2, f"{POLE} {NONE} --num-steps 6000 --num-envs 8 {ACT}", 2, f"--policy {HERE}:Quick.make_policy"),
    "policy": (2, f"{POLE} {NONE} --num-steps 1500 --policy {HERE}:slowly", 2,
               f"--policy {HERE}:Slow.make_policy --policy-block 32"),
    "policy alone": (1, f"{POLE} {NONE} --num-steps 1500 --policy {HERE}:slowly", 2,
                     f"--policy {HERE}:Slow.make_policy --policy-block 32"),
    "root": (2, sleeping(SLOW_ROOT) + f" {NONE} {ACT} --num-envs 16 --num-steps 150", 2, "--root-envs {n}"),
    "slow rank": (3, f"{many(*[QUICK] * 8, *[SLOW] * 4)} {NONE} {ACT} --num-envs 12 --num-steps 500 --wait sleep", 3,
                  many(*[QUICK, QUICK, SLOW] * 4)),
    "uneven": (2, sleeping(UNEVEN) + f" {NONE} {ACT} --num-envs 8 --num-steps 500", 2,
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
