"""What a comparison shows, as text: rates, ratios to the bare loop, overheads, and EnvPool's announcement."""

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from mpi_rollout.studies.statistics import Interval, median_interval, ratio
from mpi_rollout.text import aligned

BASE, ALL_CORES = "bare", "bare-all"
NEEDED_SIZES = 5  # Of a fit.
ROWS = {  # The rows of the announcement and of its picture: the systems by patterns of their names.
    "for-loop": "bare",
    "for-loops on all cores": "bare-all",
    "subprocess (AsyncVectorEnv)": "async",
    "Tianshou": "tianshou.*",
    "TorchRL": "torchrl.*",
    "RLlib": "rllib.*",
    "PufferLib": "puffer.*",
    "Sample Factory": "sample-factory",
    "mpi_rollout": r"mpi-(\d+|run.*|groups|ready)",
    "EnvPool, sync": "envpool(-1)?",
    "EnvPool, async": "envpool-async.*",
    "mpi_rollout, EnvPool slices": "mpi-envpool.*",
    "Gymnasium's NumPy, ALE": "native",
    "mpi_rollout, NumPy or ALE slices": "mpi-native.*",
    "gymnax": "gymnax",
    "Numba kernel by itself": "numba",
    "mpi_rollout, Numba slices": "mpi-numba.*",
}
FIRST_NATIVE = "EnvPool, sync"  # From here on the task is implemented anew.
# Atari frames per second in EnvPool's first README (github.com/sail-sg/envpool, commit 036ae89, 2021-11).
MACHINES = "laptop, 12 cores", "TPU-VM, 96", "2 x EPYC 7352, 96", "DGX-A100, 256"
ANNOUNCED = {
    "for-loop": (4_876, 3_817, 4_053, 4_336),
    "subprocess (AsyncVectorEnv)": (18_249, 42_885, 19_560, 79_509),
    "Sample Factory": (27_035, 192_074, 262_963, 639_389),
    "EnvPool, sync": (40_791, 175_938, 159_191, 470_170),
    "EnvPool, async": (50_513, 352_243, 410_941, 845_537),
}


def row_of(name: str) -> str:
    """The row of `ROWS` that a system is in; empty if it is in none."""
    return next((row for row, pattern in ROWS.items() if re.fullmatch(pattern, name)), "")


def rate_of(turn: dict[str, Any]) -> float:
    """Env steps per second of a turn; older files have env steps and seconds."""
    return turn["env_steps"] / turn["seconds"] if "seconds" in turn else turn["env_steps_per_s"]


class Analysis:
    """The figures of a comparison."""

    def __init__(self, study: dict[str, Any]):
        self.study, self.systems = study, study["systems"]
        self.envs = list(dict.fromkeys(turn["env"] for turn in study["turns"]))
        self.sizes = sorted({turn["num_envs"] for turn in study["turns"]})

    @cached_property
    def rates(self) -> dict[tuple[str, int, str], Interval]:
        """Env steps per second by env, number of envs and system."""
        taken: dict[tuple[str, int, str], list[float]] = {}
        for turn in self.study["turns"]:
            if not turn["error"]:
                key = turn["env"], turn["num_envs"], turn["system"]
                taken.setdefault(key, []).append(rate_of(turn))
        return {key: median_interval(rates) for key, rates in taken.items()}

    def measured(self, env: str) -> list[str]:
        """The systems with results for an env, in the order of tables."""
        names = {name for of_env, _, name in self.rates if of_env == env}
        return [name for name in self.systems if name in names]

    def of(self, env: str, name: str) -> dict[int, Interval]:
        """A system's rates by number of envs."""
        return {size: self.rates[env, size, name] for size in self.sizes if (env, size, name) in self.rates}

    def best(self, env: str, names: list[str]) -> dict[int, Interval]:
        """By number of envs the highest median of some systems."""
        found: dict[int, Interval] = {}
        for name in names:
            for size, rate in self.of(env, name).items():
                found[size] = max(found.get(size, rate), rate, key=lambda each: each.median)
        return dict(sorted(found.items()))

    def overhead(self, env: str, name: str) -> tuple[float, float, float] | None:
        """Fit N t_row + t_os to the seconds of N transitions; return both, and the largest relative error."""
        rates = self.of(env, name)
        if len(rates) < NEEDED_SIZES:
            return None
        seconds = np.array([size / rate.median for size, rate in rates.items()])
        terms = np.stack([np.array([*rates], float), np.ones(len(rates))], axis=1) / seconds[:, np.newaxis]
        found, *_ = np.linalg.lstsq(terms, np.ones(len(rates)), rcond=None)
        return float(found[0]), float(found[1]), float(np.max(np.abs(terms @ found - 1)))

    def multiples(self, env: str) -> dict[str, Interval]:
        """By row, how many times the fastest bare loop; each with the number of envs that suits it best."""
        rows: dict[str, list[Interval]] = {row: [] for row in ["", *ROWS]}
        for name in self.measured(env):
            rows[row_of(name)] += self.of(env, name).values()
        best = {row: max(rates, key=lambda each: each.median) for row, rates in rows.items() if row and rates}
        return {row: ratio(rate, best["for-loop"]) for row, rate in best.items()} if "for-loop" in best else {}


def lines(study: dict[str, Any]) -> list[str]:
    """All tables, then what was skipped or failed."""
    analysis = Analysis(study)
    text = [f"{place(study)}: `{study['command']}`", f"with {study['versions']}"]
    for env in analysis.envs:
        text += ["", f"{env}: env steps/s, median and how far its interval reaches", *matrix(analysis, env, reach)]
        text += ["", f"{env}: over the bare loop on one core", *matrix(analysis, env, over(analysis.of(env, BASE)))]
        text += ["", f"{env}: N transitions take N t_row + t_os, and t_env each in the bare loop"]
        text += overheads(analysis, env)
    text += ["", "times the for-loop, each with the number of envs that suits it best", *announcement(analysis), ""]
    for skip in study["skips"]:
        text.append(f"skipped: {skip['env']}, {skip['num_envs']} envs, {skip['system']}: {skip['reason']}")
    for turn in study["turns"]:
        if turn["error"]:
            text.append(f"failed: {turn['env']}, {turn['num_envs']} envs, {turn['system']}: {turn['error']}")
    return text


def place(study: dict[str, Any]) -> str:
    return f"{study['host']} ({study['cpu_model']}, {study['num_cores']} cores), {study['started'][:10]}"


def reach(rate: Interval, _size: int) -> str:
    return f"{rate.median:,.0f} ±{100 * max(rate.high - rate.median, rate.median - rate.low) / rate.median:.0f}%"


def over(base: dict[int, Interval]) -> Callable[[Interval, int], str]:
    return lambda rate, size: f"{rate.median / base[size].median:.3g}" if size in base else "-"


def matrix(analysis: Analysis, env: str, words: Callable[[Interval, int], str]) -> list[str]:
    """A line for each system, a column for each number of envs."""
    table = [["envs", *(f"{size:,}" for size in analysis.sizes)]]
    for name in analysis.measured(env):
        rates = analysis.of(env, name)
        cells = [words(rates[size], size) if size in rates else "-" for size in analysis.sizes]
        table.append([analysis.systems[name]["title"], *cells])
    return aligned(table, 1)


def overheads(analysis: Analysis, env: str) -> list[str]:
    """What a step of all envs costs besides its rows."""
    loop = [1 / rate.median for rate in analysis.of(env, BASE).values()]
    table = [["", "t_os us", "t_row us", "t_row / t_env", "fit within"]]
    for name in analysis.measured(env):
        if fit := analysis.overhead(env, name):
            row_s, step_s, error = fit
            cells = f"{1e6 * step_s:.1f}", f"{1e6 * row_s:.3f}", f"{row_s / np.median(loop):.3f}", f"{100 * error:.0f}%"
            table.append([analysis.systems[name]["title"], *cells])
    return aligned(table, 1) if len(table) > 1 else [f"a fit needs {NEEDED_SIZES} numbers of envs"]


def announcement(analysis: Analysis) -> list[str]:
    """The table of EnvPool's announcement, and beside it this machine's."""
    here = {env: analysis.multiples(env) for env in analysis.envs}
    table = [["", *MACHINES, *(f"here: {env}" for env in here)]]
    for row in ROWS:
        published = [rate / base for rate, base in zip(ANNOUNCED.get(row, ()), ANNOUNCED["for-loop"], strict=False)]
        cells = [f"{found[row].median:.3g}" if row in found else "" for found in here.values()]
        if any(cells):
            table.append([row, *([f"{each:.2g}" for each in published] or [""] * len(MACHINES)), *cells])
    return aligned(table, 1)
