"""The picture of a study: speed-up, efficiency, where the time goes."""

from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.bench.scaling import report
from mpi_rollout.bench.scaling.analysis import Analysis, PointFigures
from mpi_rollout.bench.scaling.study import StudyFile, read_study
from mpi_rollout.bench.statistics import NoFit, reaches, serial_fraction
from mpi_rollout.commands import style
from mpi_rollout.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PHASES = {
    "env": ("envs", style.BLUE, ""),
    "idle": ("waiting for the slowest rank", style.LIGHT, "///"),
    "exchange": ("exchange", style.GREEN, "\\\\\\"),
    "policy": ("policy", style.ORANGE, "..."),
    "write": ("waiting for the disk", style.RED, ""),
}
"""The name, colour and hatch of each of `analysis.PHASES`, in their order."""


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
    figure = style.new_figure("plot", 6.4)
    panels = figure.subplot_mosaic([["speed-up", "efficiency"], ["phases", "phases"]], height_ratios=(1.25, 1))
    title, *fine = _words(file, analysis)
    style.head(figure, title, fine)
    _plot_speed_ups(panels["speed-up"], analysis)
    _plot_efficiencies(panels["efficiency"], analysis)
    _plot_phases(panels["phases"], analysis.points)
    return style.save_study(figure, path.removesuffix(".h5"))


def _words(file: StudyFile, analysis: Analysis) -> list[str]:
    """Return what was measured, then the fine print."""
    subject, _, place = report.title(file).partition(", ")
    lines = [subject[0].upper() + subject[1:], place]
    if analysis.base is not None:
        lines.append(f"1 = {file.study.base_case}: {analysis.base.median:,.0f} env steps/s")
    return lines + report.disturbance(analysis)


def _plot_speed_ups(axes: "Axes", analysis: Analysis) -> None:
    style.frame(axes, "Speed-up", "ranks")
    if analysis.base is None:
        return style.say(axes, "no base case")
    points, base = analysis.points, analysis.base.median
    ranks = [point.num_ranks for point in points]
    axes.plot(ranks, ranks, "--", color=style.GREY, linewidth=1, label="ideal")
    limits = [point.limit.median / base for point in points]
    axes.plot(ranks, limits, "x", color=style.RED, markersize=6, label="bare loops on all ranks at once")
    _plot_law(axes, analysis, ranks)
    _plot_measured(axes, points, "speed_up")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", left=False, labelleft=False)
    style.count_x(axes, ranks)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.35)  # Room for the legend, whatever the points.
    style.legend(axes, loc="upper left", borderaxespad=0)


def _plot_law(axes: "Axes", analysis: Analysis, ranks: list[int]) -> None:
    """Draw the curve of Amdahl's or Gustafson's law, where it could be fitted."""
    name = next(iter(analysis.fits))
    law = analysis.fits[name]
    if isinstance(law, NoFit):
        return
    x = np.geomspace(ranks[0], max(point.num_ranks for point in analysis.fit_points), 100)
    serial, parallel = law.coefficients
    y = 1 / (serial + parallel / x) if name == "Amdahl" else serial + parallel * x
    axes.plot(x, y, "-", color=style.SKY, linewidth=2, label=f"{name}, serial {serial_fraction(law):.3g}")


def _plot_efficiencies(axes: "Axes", analysis: Analysis) -> None:
    style.frame(axes, "Efficiency: speed-up over ranks", "ranks")
    points = analysis.points
    if analysis.base is None:
        return style.say(axes, "no base case")
    ranks = [point.num_ranks for point in points]
    axes.axhline(1.0, linestyle="--", color=style.GREY, linewidth=1)
    limits = [point.limit.median / analysis.base.median / point.num_ranks for point in points]
    axes.plot(ranks, limits, "x", color=style.RED, markersize=6)
    _plot_measured(axes, points, "efficiency")
    axes.set_ylim(0, max(1.1, axes.get_ylim()[1]))
    style.count_x(axes, ranks)


def _plot_measured(axes: "Axes", points: list[PointFigures], name: str) -> None:
    """Draw medians and intervals; open where there were more ranks than cores."""
    for is_open in (False, True):
        some = [point for point in points if point.oversubscribed == is_open]
        if not some:
            continue
        intervals = [getattr(point, name) for point in some]
        medians = [interval.median for interval in intervals]
        coverage = min(interval.coverage for interval in intervals)
        spread = f"{100 * coverage:.0f} % interval" if coverage else "range"  # Of two samples it is worth nothing.
        label = "more ranks than cores" if is_open else f"median, {spread}"
        look: style.Look = {"fmt": "o", "color": style.BLUE, "capsize": 3, "markersize": 5}
        look["markerfacecolor"] = "w" if is_open else style.BLUE
        axes.errorbar([point.num_ranks for point in some], medians, reaches(intervals), label=label, **look)


def _plot_phases(axes: "Axes", points: list[PointFigures]) -> None:
    is_crowded = any(point.oversubscribed for point in points)
    xlabel = "ranks (* more than cores)" if is_crowded else "ranks"
    style.frame(axes, "Where the time goes", xlabel, "% of the run time", "y")
    places, bottom = np.arange(len(points)), np.zeros(len(points))
    for phase, (name, color, hatch) in PHASES.items():
        values = np.array([100 * point.shares[phase] for point in points])
        axes.bar(places, values, 0.6, bottom, facecolor=color, edgecolor="w", linewidth=0.4, hatch=hatch, label=name)
        bottom += values
    axes.set_ylim(0, 100)
    margin = max(0.7, 2 - len(points) / 2)  # A few bars do not become walls.
    axes.set_xlim(-margin, len(points) - 1 + margin)
    axes.set_xticks(places, labels=[f"{point.num_ranks:,}{'*' * point.oversubscribed}" for point in points])
    style.legend_below(axes, len(PHASES))
