"""The picture of a simulation: what was measured as markers, what was computed as lines."""

import math
from collections.abc import Iterator
from itertools import cycle
from typing import TYPE_CHECKING

from mpi_rollout.bench.scaling import simulation_report as report
from mpi_rollout.bench.scaling.curves import Curve, SimulationAnalysis
from mpi_rollout.bench.scaling.simulation import SimulationFile, read_simulation
from mpi_rollout.bench.statistics import reaches
from mpi_rollout.commands import style
from mpi_rollout.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVES = ((style.BLUE, "-"), (style.RED, "--"), (style.GREEN, "-."), (style.PURPLE, ":"))
PARTS = {
    "env_s": ("envs", style.GREY, "-"),
    "exchange_s": ("exchange and root", style.GREEN, "--"),
    "policy_s": ("policy", style.ORANGE, "-."),
    "waiting_s": ("waiting for the slowest", style.PURPLE, ":"),
}
"""The parts of a computed step by the attributes of `CurveRow`: name, colour and line."""


def plot_simulation(path: str) -> list[str]:
    """Draw a simulation beside its file; return the lines to print: the files that were made.

    Raises
    ------
    DataError
        It is not a simulation, or one without curves.
    UsageError
        matplotlib is missing, or cannot write there.
    """
    file = read_simulation(path)
    analysis = SimulationAnalysis(file)
    if not analysis.curves:
        raise DataError(f"{path} has no curves yet: {analysis.origin}; there is nothing to draw")
    figure = style.new_figure("plot", 6.6)
    panels = figure.subplot_mosaic([["efficiency", "rate"], ["step", "names"]])
    title, *fine = _words(file, analysis)
    style.head(figure, title, fine)
    _plot_efficiencies(panels["efficiency"], analysis)
    _plot_rates(panels["rate"], analysis)
    _plot_steps(panels["step"], analysis)
    _name(panels["names"], panels["efficiency"], "Above", "upper left")
    _name(panels["names"], panels["step"], "On the left", "lower left")
    return style.save_study(figure, path.removesuffix(".h5"))


def _name(axes: "Axes", panel: "Axes", title: str, place: str) -> None:
    """Draw the legend of a panel, in a panel of its own."""
    axes.axis("off")
    if (other := axes.get_legend()) is not None:
        axes.add_artist(other)  # Else the next one takes its place.
    handles, labels = panel.get_legend_handles_labels()
    heading: style.Look = {"title": title, "title_fontproperties": {"weight": "bold", "size": style.SMALL}}
    style.legend(axes, handles=handles, labels=labels, loc=place, borderaxespad=0, alignment="left", **heading)


def _words(file: SimulationFile, analysis: SimulationAnalysis) -> list[str]:
    """Return what was computed, then the fine print."""
    subject, _, place = report.title(file).partition(": ")
    constants = report.constants(analysis.constants) if analysis.constants else ""
    return [subject[0].upper() + subject[1:], place, report.workload(file), f"constants {analysis.origin}", constants]


def _styled(curves: list[Curve]) -> list[tuple[Curve, style.Look]]:
    looks: Iterator[style.Look] = cycle({"color": color, "linestyle": line} for color, line in CURVES)
    return list(zip(curves, looks, strict=False))


def _plot_efficiencies(axes: "Axes", analysis: SimulationAnalysis) -> None:
    style.frame(axes, "Efficiency: the envs' share of the time", "ranks")
    for curve, look in _styled(analysis.curves):
        ranks = [row.num_ranks for row in curve.rows]
        axes.plot(ranks, [row.efficiency for row in curve.rows], label=curve.label.replace(", ", ",\n"), **look)
        span = [row.efficiency_low for row in curve.rows], [row.efficiency_high for row in curve.rows]
        axes.fill_between(ranks, *span, color=look["color"], alpha=0.2, linewidth=0)  # See `CurveRow`.
        if curve.saturation is not None and curve.saturation <= curve.rows[-1].num_ranks:
            axes.plot([curve.saturation] * 2, [0, 0.5], linewidth=0.8, **look)
            axes.text(curve.saturation, 0.44, f"half at {curve.saturation:,} ", ha="right", fontsize=style.SMALL)
    for is_crowded in (False, True):
        _plot_checks(axes, analysis, is_crowded)
    axes.set_ylim(0, 1.05)
    _number_ranks(axes, analysis)


def _plot_checks(axes: "Axes", analysis: SimulationAnalysis, is_crowded: bool) -> None:
    """Draw medians and intervals; open where ranks share cores, with a cross where the model has such ranks."""
    some = [check for check in analysis.checks if check.oversubscribed == is_crowded]
    if not some:
        return
    ranks, intervals = [check.num_ranks for check in some], [analysis.efficiency(check) for check in some]
    medians = [interval.median for interval in intervals]
    label = "measured" + ", more ranks than cores" * is_crowded
    axes.errorbar(ranks, medians, reaches(intervals), label=label, **_measured(is_crowded))
    if is_crowded:
        errors = [check.measured_s / check.computed_s for check in some]
        computed = [median * error for median, error in zip(medians, errors, strict=True)]
        axes.plot(ranks, computed, "x", color=style.RED, label="computed for ranks that share these cores")


def _measured(is_crowded: bool) -> style.Look:
    """Return how measured points look."""
    look: style.Look = {"fmt": "o", "color": style.DARK, "markersize": 5, "capsize": 3}
    return look | {"markerfacecolor": "w" if is_crowded else style.DARK}


def _plot_rates(axes: "Axes", analysis: SimulationAnalysis) -> None:
    style.frame(axes, "Env steps per second", "ranks")
    root = analysis.curves[0]
    ranks, alone = [row.num_ranks for row in root.rows], [row.num_envs / row.env_s for row in root.rows]
    axes.plot(ranks, alone, color="0.8", linewidth=4, label="envs alone")
    for curve, look in _styled(analysis.curves):
        axes.plot([row.num_ranks for row in curve.rows], [row.env_steps_per_s for row in curve.rows], **look)
    for check in analysis.checks:
        num_envs = root.rows[0].num_envs // root.rows[0].num_ranks * check.num_ranks
        axes.errorbar(check.num_ranks, num_envs / check.measured_s, **_measured(check.oversubscribed))
    style.log_y(axes)
    style.legend(axes, loc="upper left")
    _number_ranks(axes, analysis)


def _plot_steps(axes: "Axes", analysis: SimulationAnalysis) -> None:
    style.frame(axes, "A step, policy on the root (computed)", "ranks", "ms")
    rows = analysis.curves[0].rows
    for attribute, (name, color, line) in PARTS.items():
        values = [1e3 * getattr(row, attribute) or math.nan for row in rows]  # 0 has no place on a log axis.
        if not all(map(math.isnan, values)):
            axes.plot([row.num_ranks for row in rows], values, linestyle=line, color=color, label=name)
    some = [check for check in analysis.checks if check.num_ranks > 1]
    if some:
        ranks = [check.num_ranks for check in some]
        measured = [1e3 * check.measured_exchange_s for check in some]
        axes.plot(ranks, measured, "s", color=style.GREEN, markerfacecolor="w", label="exchange and root, measured")
    style.log_y(axes)
    _number_ranks(axes, analysis)


def _number_ranks(axes: "Axes", analysis: SimulationAnalysis) -> None:
    style.count_x(axes, [row.num_ranks for row in analysis.curves[0].rows], most=6)
