"""Pictures of studies: speed-up, efficiency, where the time goes.  Black and grey: they are printed so."""

from typing import Any

import numpy as np

from mpi_rollout.bench.scaling import report
from mpi_rollout.bench.scaling.analysis import PHASES, Analysis, PointFigures
from mpi_rollout.bench.scaling.file import StudyFile, read_study
from mpi_rollout.bench.statistics import NoFit, serial_fraction
from mpi_rollout.commands.plots import KINDS, new_figure, save
from mpi_rollout.errors import DataError

LABELS = {
    "env": "envs", "idle": "waiting for the slowest rank", "exchange": "exchange", "policy": "policy",
    "write": "waiting for the disk",
}  # fmt: skip
_GREYS, _HATCHES = ("0.92", "1.0", "0.65", "0.35", "0.0"), ("", "////", "", "", "")


def plot_study(path: str) -> list[str]:
    """Draw a study beside its file; return the lines to print: the files that were made.

    Raises
    ------
    DataError
        It is not a study, or one without any result.
    UsageError
        matplotlib is missing, or cannot write there.
    """
    file = read_study(path)
    analysis = Analysis(file.study, file.samples)
    if not analysis.points:
        raise DataError(f"{path} has no result yet; there is nothing to draw")
    figure = new_figure("plot", 12, 4.2)
    speed_ups, efficiencies, phases = figure.subplots(1, 3)
    _plot_speed_ups(speed_ups, analysis)
    _plot_efficiencies(efficiencies, analysis)
    _plot_phases(phases, analysis.points)
    figure.suptitle("\n".join(_title(file, analysis)), fontsize="medium")
    made = [path.removesuffix(".h5") + kind for kind in KINDS]
    for each in made:
        save(figure, "plot", each)
    return made


def _title(file: StudyFile, analysis: Analysis) -> list[str]:
    lines = report.title(file).split(": ", 1)
    if analysis.base is not None:
        lines.append(f"1 = {file.study.base_case}: {analysis.base.median:,.0f} env steps/s")
    return lines + report.disturbance(analysis)


def _plot_speed_ups(axes: Any, analysis: Analysis) -> None:
    axes.set(title="speed-up", xlabel="ranks")
    if analysis.base is None:
        axes.text(0.5, 0.5, "no base case", ha="center", transform=axes.transAxes)
        return
    points, base = analysis.points, analysis.base.median
    ranks = [point.num_ranks for point in points]
    axes.plot(ranks, ranks, "--", color="0.5", linewidth=1, label="ideal")
    axes.plot(ranks, [point.limit.median / base for point in points], "x", color="0.5", markersize=7,
              label="bare loops on all ranks at once")  # fmt: skip
    _plot_law(axes, analysis, ranks)
    _plot_measured(axes, points, "speed_up")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    _number_ranks(axes, ranks)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.25)  # Room for the legend, whatever the points.
    axes.legend(fontsize="small", loc="upper left")


def _plot_law(axes: Any, analysis: Analysis, ranks: list[int]) -> None:
    """The curve of Amdahl's or Gustafson's law, where it could be fitted."""
    name = next(iter(analysis.fits))
    found = analysis.fits[name]
    if isinstance(found, NoFit):
        return
    x = np.geomspace(ranks[0], max(point.num_ranks for point in analysis.fit_points), 100)
    serial, parallel = found.coefficients
    y = 1 / (serial + parallel / x) if name == "Amdahl" else serial + parallel * x
    axes.plot(x, y, "-", color="0.4", linewidth=1, label=f"{name}, serial {serial_fraction(found):.3g}")


def _plot_efficiencies(axes: Any, analysis: Analysis) -> None:
    axes.set(title="parallel efficiency", xlabel="ranks")
    points = analysis.points
    if analysis.base is None:
        axes.text(0.5, 0.5, "no base case", ha="center", transform=axes.transAxes)
        return
    axes.axhline(1.0, linestyle="--", color="0.5", linewidth=1)
    limits = [point.limit.median / analysis.base.median / point.num_ranks for point in points]
    axes.plot([point.num_ranks for point in points], limits, "x", color="0.5", markersize=7)
    _plot_measured(axes, points, "efficiency")
    axes.set_ylim(0, max(1.1, axes.get_ylim()[1]))
    _number_ranks(axes, [point.num_ranks for point in points])


def _plot_measured(axes: Any, points: list[PointFigures], name: str) -> None:
    """Medians and intervals; open where there were more ranks than cores."""
    for is_open in (False, True):
        some = [point for point in points if point.oversubscribed == is_open]
        if not some:
            continue
        found = [getattr(point, name) for point in some]
        medians = np.array([each.median for each in found])
        lengths = np.array([[each.median - each.low for each in found], [each.high - each.median for each in found]])
        coverage = min(each.coverage for each in found)
        spread = f"{100 * coverage:.0f} % interval" if coverage else "range"  # Of two samples it is worth nothing.
        label = "more ranks than cores" if is_open else f"median, {spread}"
        axes.errorbar([point.num_ranks for point in some], medians, lengths, fmt="o", color="k", capsize=4,
                      markerfacecolor="w" if is_open else "k", label=label)  # fmt: skip


def _number_ranks(axes: Any, ranks: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, labels=[str(each) for each in ranks])
    axes.minorticks_off()
    axes.set_xlim(ranks[0] / 1.3, ranks[-1] * 1.3)


def _plot_phases(axes: Any, points: list[PointFigures]) -> None:
    is_crowded = any(point.oversubscribed for point in points)
    xlabel = "ranks (* more than cores)" if is_crowded else "ranks"
    axes.set(title="where the time goes", xlabel=xlabel, ylabel="% of the run time")
    places, bottom = np.arange(len(points)), np.zeros(len(points))
    for phase, grey, hatch in zip(PHASES, _GREYS, _HATCHES, strict=True):
        values = np.array([100 * point.shares[phase] for point in points])
        axes.bar(places, values, 0.6, bottom, color=grey, edgecolor="k", linewidth=0.6, hatch=hatch,
                 label=LABELS[phase])  # fmt: skip
        bottom += values
    axes.set_ylim(0, 100)
    axes.set_xticks(places, labels=[f"{point.num_ranks}{'*' * point.oversubscribed}" for point in points])
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1), reverse=True)
