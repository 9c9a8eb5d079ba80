"""How many times a for-loop: the table with which EnvPool was announced, for the machine that the comparison ran on.

Each row is the fastest of some systems, with the number of envs that suits it best, over the fastest bare loop on one
core.  `published.ANNOUNCED` has the table of EnvPool's authors.
"""

from collections.abc import Callable
from typing import NamedTuple

from mpi_rollout.bench import statistics
from mpi_rollout.bench.compare.analysis import Analysis
from mpi_rollout.bench.compare.comparison import BASE
from mpi_rollout.bench.compare.systems import System
from mpi_rollout.bench.statistics import Interval
from mpi_rollout.bench.tables import aligned


def _named(*names: str) -> Callable[[System], bool]:
    return lambda system: system.name in names


def _ours(form: str) -> Callable[[System], bool]:
    kinds = ("native", "native-ahead") if form else ("loop", "sampler")
    return lambda system: system.is_ours and system.form == form and system.kind in kinds


ROWS: dict[str, Callable[[System], bool]] = {
    "for-loop": _named(BASE),
    "for-loops on all cores": _named("bare-all"),
    "subprocess (AsyncVectorEnv)": _named("async"),
    "Tianshou": lambda system: system.needs == "tianshou",
    "TorchRL": lambda system: system.needs == "torchrl",
    "RLlib": lambda system: system.needs == "ray",
    "PufferLib": lambda system: system.needs == "pufferlib",
    "Sample Factory": _named("sample-factory"),
    "mpi_rollout": _ours(""),
    "EnvPool, sync": _named("envpool", "envpool-1"),
    "EnvPool, async": _named("envpool-async", "envpool-async-1"),
    "mpi_rollout, EnvPool slices": _ours("envpool"),
    "Gymnasium's NumPy, ALE": _named("native"),
    "mpi_rollout, NumPy or ALE slices": _ours("vector_entry_point"),
    "gymnax": _named("gymnax"),
    "Numba kernel by itself": _named("numba"),
    "mpi_rollout, Numba slices": _ours("numba"),
}
FIRST_NATIVE = "EnvPool, sync"  # From here on the task is implemented anew.


class Multiple(NamedTuple):
    """The fastest system of a row.

    Parameters
    ----------
    ratio
        To the fastest bare loop on one core.
    """

    row: str
    system: str
    num_envs: int
    rate: Interval
    ratio: Interval


def multiples(analysis: Analysis, env: str) -> list[Multiple]:
    """Return those with results for an env; none without a bare loop."""
    cells = [(point.num_envs, name, cell.rate) for (point, name), cell in analysis.cells.items() if point.env == env]
    loops = [rate for _, name, rate in cells if name == BASE]
    if not loops:
        return []
    base, found = max(loops, key=lambda rate: rate.median), []
    systems = analysis.comparison.all_systems
    for row, is_in in ROWS.items():
        members = [cell for cell in cells if is_in(systems[cell[1]])]
        if members:
            num_envs, name, rate = max(members, key=lambda cell: cell[2].median)
            found.append(Multiple(row, name, num_envs, rate, statistics.ratio(rate, base)))
    return found


def lines(analysis: Analysis, env: str) -> list[str]:
    """Return the table of an env."""
    rows = [["", "env steps/s", "times", "envs", ""]]
    titles = analysis.comparison.all_systems
    for row, name, num_envs, rate, ratio in multiples(analysis, env):
        rows.append([row, f"{rate.median:,.0f}", f"{ratio.median:.3g}", f"{num_envs:,}", titles[name].title])
    return aligned(rows, names_left=True)
