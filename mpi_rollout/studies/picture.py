"""What a study of scaling shows, as a picture: speed-up, efficiency, where the time goes."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.commands import style
from mpi_rollout.errors import DataError
from mpi_rollout.studies.report import Analysis, PointFigures, analyses, disturbance, title
from mpi_rollout.studies.statistics import reaches
from mpi_rollout.studies.study import PHASES
from mpi_rollout.studies.study_file import StudyFile, read_study
from mpi_rollout.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_study(path: str) -> list[str]:
    """Draw a study beside its file; return the names of the files.  DataError if it is none, or has no result."""
    file = read_study(path)
    several = [analysis for analysis in analyses(file) if analysis.points]
    if not several:
        raise DataError(f"{path} has no result yet; there is nothing to draw")
    figure = style.new_figure("plot", 6.4)
    panels = figure.subplot_mosaic([["speed-up", "efficiency"], ["phases", "phases"]], height_ratios=(1.25, 1))
    headline, *fine = _words(file, several)
    style.head(figure, headline, fine)
    style.frame(panels["speed-up"], "Speed-up", "ranks")
    style.frame(panels["efficiency"], "Efficiency: share of the ideal speed-up", "ranks")
    if several[0].base is None:
        for name in ("speed-up", "efficiency"):
            style.say(panels[name], "no base case")
    else:
        _plot_speed_ups(panels["speed-up"], several, several[0].base.median)
        _plot_efficiencies(panels["efficiency"], several, several[0].base.median)
    if len(several) == 1:
        _plot_phases(panels["phases"], several[0].points)
    else:
        points = [analysis.points[-1] for analysis in several]
        where = f"fragment length, on {points[0].num_ranks:,} ranks{' (more than cores)' * points[0].oversubscribed}"
        _plot_phases(panels["phases"], points, where, [analysis.asked_length for analysis in several])
    return style.save_study(figure, os.path.splitext(path)[0])


def _words(file: StudyFile, several: list[Analysis]) -> list[str]:
    """Say what was measured, then the fine print."""
    subject, _, place = title(file).partition(", ")
    if (base := several[0].base) is None:
        return [subject[0].upper() + subject[1:], place, *disturbance(several)]
    points = [(analysis.uncrowded or analysis.points)[-1] for analysis in several]
    speed_up, ranks = max((point.speed_up.median, point.num_ranks) for point in points if point.speed_up)
    who = f"{counted(ranks, 'rank')} make{'s' * (ranks == 1)}"
    headline = f"{who} {speed_up:.3g} times as many env steps as one bare loop: {subject}"
    base_case = f"1 = {file.study.base_case}: {base.median:,.0f} env steps/s"
    return [headline, place, base_case, *disturbance(several)]


def _plot_speed_ups(axes: "Axes", several: list[Analysis], base: float) -> None:
    ranks = [point.num_ranks for point in several[0].points]
    ideal = [point.ideal for point in several[0].points]
    axes.plot(ranks, ideal, "--", color=style.GREY, linewidth=1, label="ideal")
    limits = [point.limit.median / base for point in several[0].points]
    axes.plot(ranks, limits, "x", color=style.DARK, markersize=6, label="bare loops on all ranks at once")
    _plot_points(axes, several, "speed_up")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.tick_params(axis="y", which="minor", left=False, labelleft=False)
    style.count_x(axes, ranks)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** 0.35)  # Room for the legend, whatever the points.
    style.legend(axes, loc="upper left", borderaxespad=0)


def _plot_efficiencies(axes: "Axes", several: list[Analysis], base: float) -> None:
    ranks = [point.num_ranks for point in several[0].points]
    axes.axhline(1.0, linestyle="--", color=style.GREY, linewidth=1)
    limits = [point.limit.median / base / point.ideal for point in several[0].points]
    axes.plot(ranks, limits, "x", color=style.DARK, markersize=6)
    _plot_points(axes, several, "efficiency")
    axes.set_ylim(0, max(1.1, axes.get_ylim()[1]))
    style.count_x(axes, ranks)


def _plot_points(axes: "Axes", several: list[Analysis], name: str) -> None:
    """Draw medians and intervals for each length of fragments; open where there were more ranks than cores."""
    for place, analysis in enumerate(several):
        ranks, intervals = zip(*((point.num_ranks, getattr(point, name)) for point in analysis.points), strict=True)
        medians, coverage = [interval.median for interval in intervals], min(each.coverage for each in intervals)
        spread = f"{100 * coverage:.0f} % interval" if coverage else "range"  # Two samples have no interval.
        label, shown = analysis.label, style.Look(style.look(place, len(several)))
        if len(several) == 1:
            label, shown = f"median, {spread}", {"linestyle": "", "marker": "o", "color": style.BLUE}
        axes.errorbar(ranks, medians, reaches(intervals), label=label, capsize=3, markersize=5, **shown)
        crowded = [point for point in analysis.points if point.oversubscribed]
        if crowded:
            x, y = [point.num_ranks for point in crowded], [getattr(point, name).median for point in crowded]
            open_: style.Look = {**shown, "linestyle": "", "markerfacecolor": "w", "markersize": 5, "zorder": 3}
            axes.plot(x, y, label="more ranks than cores" if place == 0 else None, **open_)


def _plot_phases(axes: "Axes", points: list[PointFigures], xlabel: str = "", names: Sequence[str] = ()) -> None:
    is_crowded = any(point.oversubscribed for point in points)
    xlabel = xlabel or ("ranks (* more than cores)" if is_crowded else "ranks")
    names = names or [f"{point.num_ranks:,}{'*' * point.oversubscribed}" for point in points]
    style.frame(axes, "Where the time goes", xlabel, "% of the run time", "y")
    places, bottom = np.arange(len(points)), np.zeros(len(points))
    for phase, name in PHASES.items():
        color, hatch = style.TIME[name]
        values = np.array([100 * point.shares[phase] for point in points])
        axes.bar(places, values, 0.6, bottom, facecolor=color, edgecolor="w", linewidth=0.4, hatch=hatch, label=name)
        bottom += values
    axes.set_ylim(0, 100)
    margin = max(0.7, 2 - len(points) / 2)  # A few bars do not become walls.
    axes.set_xlim(-margin, len(points) - 1 + margin)
    axes.set_xticks(places, labels=names)
    style.legend_below(axes, len(PHASES))
