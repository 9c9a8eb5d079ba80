"""Comparisons made up of turns whose figures are known."""

from typing import Any

import numpy as np

from mpi_rollout.bench.compare.comparison import Comparison, ComparisonFile, Samples, Skip
from mpi_rollout.bench.compare.turns import Turn
from mpi_rollout.bench.plan import JobOptions

ENV, SIZES = "CartPole-v1", (1, 2, 4, 8, 16, 64)
FACTS = {"cpu_model": "Made-up 9000", "num_cores": 2, "versions": "mpi_rollout 0.1.0", "commit": "abc1234"}
ORIGIN = {"command": "python -m mpi_rollout compare", "host": "node7", "started": "2026-01-02T03:04:05+00:00"}
ENV_S, RESET_S = 1e-5, 3e-6
# Seconds of a step of N envs: N times the first, and the second.
TIMES = {
    "bare": (ENV_S, 0.0), "bare-all": (ENV_S / 2, 0.0), "mpi-1": (ENV_S, 3e-5), "mpi-2": (ENV_S / 2, 5e-5),
    "mpi-fragments-2": (ENV_S / 2, 1e-6), "mpi-native-1": (ENV_S / 50, 4e-5), "sync": (1.2 * ENV_S, 1e-5),
    "native": (ENV_S / 50, 3e-5), "async": (6 * ENV_S, 5e-5),
}  # fmt: skip
APART = ("bare-all", "mpi-2", "mpi-fragments-2")  # With one env they do not apply.


def make_comparison(**more: Any) -> Comparison:
    given = {"envs": (ENV,), "num_envs": SIZES, "systems": tuple(TIMES), "ranks": (1, 2), "num_cores": 2}
    jobs = JobOptions(**{name: more.pop(name) for name in ("repeats", "order_seed", "launcher") if name in more})
    return Comparison(**given | {"jobs": jobs} | more)


def made_up(comparison: Comparison, spread: float = 0.0, failing: str = "") -> ComparisonFile:
    """A whole comparison in which a step of N envs takes what `TIMES` says.

    Parameters
    ----------
    spread
        Turns are slower than that, by as much at most, relative; another one in each turn.
    failing
        A system that fails in the first turn of each point.
    """
    samples, rng = Samples(), np.random.default_rng(3)
    for point in comparison.points:
        for repeat in range(comparison.jobs.repeats):
            for name in comparison.order(point, repeat):
                if name in APART and point.num_envs == 1:
                    samples = samples.with_skips([Skip(*point, name, "1 env for 2 processes")])
                elif name == failing:
                    if repeat == 0:
                        samples = samples.with_failure(
                            point, name, repeat, ORIGIN["started"], "no licence\nfor anybody"
                        )
                else:
                    row_s, overhead_s = TIMES[name]
                    seconds = (point.num_envs * row_s + overhead_s) * (1 + spread * rng.random())
                    turn = Turn(RESET_S * point.num_envs, 1000 * point.num_envs, 1000 * seconds, 1000)
                    samples = samples.with_turn(point, name, repeat, ORIGIN["started"], turn)
    return ComparisonFile(comparison, dict(FACTS), dict(ORIGIN), samples)
