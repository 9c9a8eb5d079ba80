"""The picture of a comparison: env steps per second against the number of envs, a panel for each env.

Black and grey: it is printed so.  What is this program's is black, bare loops are dashed, the rest is grey; markers
tell systems apart, and of this program's ways their fillings what kind of env they step.
"""

from itertools import cycle, product
from typing import Any

import numpy as np

from mpi_rollout.bench.compare import report
from mpi_rollout.bench.compare.analysis import Analysis
from mpi_rollout.bench.compare.comparison import Point
from mpi_rollout.bench.compare.file import read_comparison
from mpi_rollout.bench.compare.systems import System
from mpi_rollout.commands.plots import KINDS, new_figure, save
from mpi_rollout.errors import DataError

WIDTH, HEIGHT, LEGEND_WIDTH = 4.2, 5.0, 3.2  # Inches of a panel, and of the legend beside them.
OURS, OTHERS = "osD^vPX", "s^vDo<>Pph*d"  # Markers, in the order of tables.
LINES = ("-", "-.", ":")  # Of this program's: when its markers have all been used, the next.

GREYS = {"sync": "0.4", "async": "0.4", "native": "0.4", "pool": "0.5", "sb3": "0.6", "envpool": "0.7", "minari": "0.5"}
FILLS = {"native": "w", "record": "0.8"}  # Of markers; of others they are full.


def plot_comparison(path: str) -> list[str]:
    """Draw a comparison beside its file; return the lines to print: the files that were made.

    Raises
    ------
    DataError
        It is not a comparison, or one without any result.
    UsageError
        matplotlib is missing, or cannot write there.
    """
    file = read_comparison(path)
    analysis = Analysis(file.comparison, file.samples)
    envs = [env for env in file.comparison.envs if analysis.systems(env)]
    if not envs:
        raise DataError(f"{path} has no result yet; there is nothing to draw")
    figure = new_figure("plot", WIDTH * len(envs) + LEGEND_WIDTH, HEIGHT)
    panels = figure.subplots(1, len(envs), squeeze=False)[0]
    looks = looks_of(file.comparison.all_systems)
    for axes, env in zip(panels, envs, strict=True):
        _plot_env(axes, analysis, env, looks)
    panels[0].set_ylabel("env steps per second")
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    order = [system.title for system in file.comparison.all_systems.values() if system.title in handles]
    figure.legend([handles[label] for label in order], order, loc="outside right center", fontsize="small")
    figure.suptitle("\n".join(report.title(file).split(": ", 1)), fontsize="medium")
    made = [path.removesuffix(".h5") + kind for kind in KINDS]
    for each in made:
        save(figure, "plot", each)
    return made


def looks_of(systems: dict[str, System]) -> dict[str, dict[str, Any]]:
    """How each system is drawn, by name."""
    found: dict[str, dict[str, Any]] = {}
    ours = {system.kind: cycle(product(LINES, OURS)) for system in systems.values()}
    others = iter(OTHERS * len(systems))
    for name, system in systems.items():
        fill = {"markerfacecolor": FILLS[system.kind]} if system.kind in FILLS else {}
        if system.kind == "base":
            found[name] = {"color": "0.0" if name == "bare" else "0.5", "linestyle": "--", "linewidth": 1.5}
        elif system.is_ours:
            line, marker = next(ours[system.kind])
            found[name] = {"color": "0.0", "marker": marker, "linestyle": line, "linewidth": 1.8, **fill}
        else:
            grey = GREYS[name.partition("-")[0]]
            found[name] = {"color": grey, "marker": next(others), "linewidth": 1.0, "linestyle": "-", **fill}
    return found


def _plot_env(axes: Any, analysis: Analysis, env: str, looks: dict[str, dict[str, Any]]) -> None:
    axes.set(title=env, xlabel="envs", xscale="log", yscale="log")
    for name in analysis.systems(env):
        sizes = analysis.sizes(env, [name])
        rates = [analysis.cells[Point(env, num_envs), name].rate for num_envs in sizes]
        medians = np.array([each.median for each in rates])
        lengths = np.array([[each.median - each.low for each in rates], [each.high - each.median for each in rates]])
        title = analysis.comparison.all_systems[name].title
        axes.errorbar(sizes, medians, lengths, label=title, markersize=5, capsize=2, elinewidth=0.8, **looks[name])
    sizes = analysis.comparison.num_envs
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, labels=[str(each) for each in sizes])
    axes.minorticks_off()
    axes.grid(color="0.9")
