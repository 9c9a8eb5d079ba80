"""What a simulation shows, as text and as a picture.

Every line of the text says whether it was measured or computed; in the picture, what was measured is markers, and what
was computed is lines.
"""

import math
from collections.abc import Iterator
from dataclasses import fields
from itertools import cycle
from typing import TYPE_CHECKING

from mpi_rollout.bench.model import Constants
from mpi_rollout.bench.scaling.curves import Check, Curve, SimulationAnalysis
from mpi_rollout.bench.scaling.simulation import SimulationFile, read_simulation
from mpi_rollout.bench.statistics import reaches
from mpi_rollout.bench.tables import aligned
from mpi_rollout.bench.workplace import place_and_time
from mpi_rollout.commands import style
from mpi_rollout.errors import DataError, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNITS = {
    "root_s": ("root", 1e6, "us"),
    "root_s_per_rank": ("root", 1e6, "us per rank"),
    "root_s_per_env": ("root", 1e9, "ns per env"),
    "alpha_s": ("alpha", 1e6, "us per level of the tree"),
    "beta_s_per_byte": ("beta", 1e9, "ns per byte"),
    "policy_s": ("policy", 1e6, "us"),
    "policy_s_per_env": ("policy", 1e9, "ns per env"),
}
LIMITS = (
    "computed: nothing is stored, all nodes are alike; fragments are for actions that are known so many steps ahead"
)
WITHIN = 0.15  # What the model is meant to keep at the largest number of ranks, which is held out.
CURVES = ((style.BLUE, "-"), (style.RED, "--"), (style.GREEN, "-."), (style.PURPLE, ":"))
PARTS = {
    "env_s": ("envs", style.GREY, "-"),
    "exchange_s": ("exchange and root", style.GREEN, "--"),
    "policy_s": ("policy", style.ORANGE, "-."),
    "waiting_s": ("waiting for the slowest", style.PURPLE, ":"),
}
"""The parts of a computed step by the attributes of `CurveRow`: name, colour and line."""


def lines(file: SimulationFile) -> list[str]:
    """Return all of it."""
    analysis = SimulationAnalysis(file)
    text = [title(file), workload(file), f"constants, {analysis.origin}"]
    if analysis.constants is not None:
        text.append("  " + constants(analysis.constants))
    text += crowding(analysis)
    if analysis.curves:
        text += ["", "computed, step by step:", *table(analysis.curves), "", *map(ending, analysis.curves), LIMITS]
    if analysis.checks:
        text += ["", "measured beside computed, ms per step:", *check_table(analysis)]
        text += [held_out(check) for check in analysis.checks if check.is_held_out]
    failed = [(setting, job) for setting, job in file.samples if job.error]
    return text + [f"failed: {setting}: {job.error.splitlines()[0]}" for setting, job in failed]


def title(file: SimulationFile) -> str:
    """Say what was asked, where and when."""
    libraries = [job.mpi_library for _, job in file.samples]
    where = place_and_time(file.origin["host"], file.facts, libraries, file.origin["started"])
    return f"model of {file.question.env_name}, {counted(file.question.envs_per_rank, 'env')} per rank: {where}"


def workload(file: SimulationFile) -> str:
    """Say what the model knows of the envs, and from where."""
    envs, how = file.envs, "measured" if file.question.env else "given"
    spread = f" (standard deviation {envs.step_spread_s * 1e3:.4g})" if envs.step_spread_s else ""
    resets = ", resets included" * bool(file.question.env)
    return (
        f"envs, {how}: {envs.step_s * 1e3:.4g} ms per step{spread}{resets}, observations of "
        f"{envs.observation_bytes:,} bytes, actions of {envs.action_bytes:,}"
    )


def constants(values: Constants) -> str:
    """Write constants in handy units, without those that are 0: the points do not show them, or nobody gave them."""
    parts = []
    for column in fields(values):
        name, factor, unit = UNITS[column.name]
        value = getattr(values, column.name)
        if value:
            parts.append(f"{name} {value * factor:.3g} {unit}")
    return ", ".join(parts) or "all 0"


def crowding(analysis: SimulationAnalysis) -> list[str]:
    """Say what jobs of more ranks than cores show of machines that have a core for each rank, and what not."""
    text = []
    if analysis.fitting.is_crowded:
        text.append(
            "  fitted to ranks that share cores: the part per rank has the ranks' own work in it, which with a core "
            "for each rank is done at the same time"
        )
    sharing_us = analysis.fitting.sharing_s * 1e6
    if sharing_us:
        text.append(
            f"  sharing cores, measured: {sharing_us:.3g} us per step and rank; in no curve, only beside jobs of more "
            "ranks than cores"
        )
    return text


def table(curves: list[Curve]) -> list[str]:
    """Return one line for each number of ranks: parts of a step in lockstep, then each curve's rate."""
    lockstep = curves[0]
    names = ["ranks", "envs", "env ms", "waiting ms", "exchange ms", "policy ms"]
    for curve in curves:
        way = "lockstep" if curve is lockstep else f"fragments of {curve.way.fragment_length}"
        names += [f"{way}: env steps/s", "efficiency"]
    cells = [names]
    for place, row in enumerate(lockstep.rows):
        parts = [f"{1e3 * seconds:.3f}" for seconds in (row.env_s, row.waiting_s, row.exchange_s, row.policy_s)]
        line = [f"{row.num_ranks:,}", f"{row.num_envs:,}", *parts]
        for curve in curves:
            line += [f"{curve.rows[place].env_steps_per_s:,.0f}", f"{curve.rows[place].efficiency:.3f}"]
        cells.append(line)
    return aligned(cells)


def ending(curve: Curve) -> str:
    """Say where a curve ends: the root's saturation."""
    if curve.saturation is None:
        text = "exchange and policy never take as long as the envs"
    else:
        ranks = counted(curve.saturation, "rank")
        text = f"from {ranks} on, exchange and policy take as long as the envs or longer{_span(curve)}"
    if math.isfinite(curve.ceiling):
        text += f"; no number of ranks gives more than {curve.ceiling:,.0f} env steps/s"
    return f"{curve.label}: {text}"


def _span(curve: Curve) -> str:
    """Say how far that depends on single numbers of ranks."""
    if not curve.saturations:
        return ""
    ends = curve.saturations[0], curve.saturations[-1]
    low, high = (f"{num_ranks:,.0f}" if math.isfinite(num_ranks) else "never" for num_ranks in ends)
    return f" ({low} to {high} where any one number of ranks is left out of the fit)"


def check_table(analysis: SimulationAnalysis) -> list[str]:
    """Return one line for each length of fragments and number of ranks that was tried."""
    cells = [["fragment", "ranks", "jobs", "measured", "computed", "error", "exchange", "computed", "efficiency"]]
    for check in analysis.checks:
        span = f"({1e3 * check.low_s:.2f} to {1e3 * check.high_s:.2f})"
        line = [str(check.fragment_length), f"{check.num_ranks}{'*' * check.oversubscribed}", str(check.num_jobs)]
        line += [f"{1e3 * check.measured_s:.2f} {span}", f"{1e3 * check.computed_s:.2f}", f"{100 * check.error:+.1f} %"]
        line += [f"{1e3 * seconds:.3f}" for seconds in (check.measured_exchange_s, check.computed_exchange_s)]
        cells.append([*line, f"{analysis.efficiency(check).median:.3f}"])
    crowded = any(check.oversubscribed for check in analysis.checks)
    coverage = f"{100 * min(check.coverage for check in analysis.checks):.0f} %"
    note = "medians over jobs; the range in brackets holds the true median with a probability of " + coverage
    return [*aligned(cells), note + "; * more ranks than cores" * crowded]


def held_out(check: Check) -> str:
    """Return the verdict on the largest number of ranks, where the constants were fitted without it."""
    verdict = "within" if abs(check.error) <= WITHIN else "not within"
    largest = counted(check.num_ranks, "rank")
    if check.fragment_length > 1:
        largest += f", fragments of {check.fragment_length}"
    return (
        f"the largest, {largest}, held out of the fit: computed {100 * check.error:+.1f} % of what was measured, "
        f"{verdict} {100 * WITHIN:.0f} %"
    )


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
    figure = style.new_figure("plot", 7.0)
    panels = figure.subplot_mosaic([["efficiency", "rate"], ["step", "names"]])
    headline, *fine = _words(file, analysis)
    style.head(figure, headline, fine)
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
    subject, _, place = title(file).partition(": ")
    known = constants(analysis.constants) if analysis.constants else ""
    return [subject[0].upper() + subject[1:], place, workload(file), f"constants {analysis.origin}", known]


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
            _plot_checks(axes, analysis, curve, is_crowded, look["color"])
    axes.set_ylim(0, 1.05)
    _number_ranks(axes, analysis)


def _plot_checks(axes: "Axes", analysis: SimulationAnalysis, curve: Curve, is_crowded: bool, color: str) -> None:
    """Draw medians and intervals; open where ranks share cores, with a cross where the model has such ranks."""
    some = [check for check in analysis.checks_of(curve) if check.oversubscribed == is_crowded]
    if not some:
        return
    ranks, intervals = [check.num_ranks for check in some], [analysis.efficiency(check) for check in some]
    medians = [interval.median for interval in intervals]
    label = "measured" + ", more ranks than cores" * is_crowded
    label = label if curve is analysis.curves[0] else ""  # Once; the colours are those of the lines.
    axes.errorbar(ranks, medians, reaches(intervals), label=label, **_measured(is_crowded, color))
    if is_crowded:
        ratios = [check.measured_s / check.computed_s for check in some]
        computed = [median * ratio for median, ratio in zip(medians, ratios, strict=True)]
        axes.plot(ranks, computed, "x", color=color, label=label and "computed for ranks that share these cores")


def _measured(is_crowded: bool, color: str) -> style.Look:
    """Return how measured points look."""
    look: style.Look = {"fmt": "o", "color": color, "markersize": 5, "capsize": 3}
    return look | {"markerfacecolor": "w" if is_crowded else color}


def _plot_rates(axes: "Axes", analysis: SimulationAnalysis) -> None:
    style.frame(axes, "Env steps per second", "ranks")
    rows = analysis.curves[0].rows
    ranks, alone = [row.num_ranks for row in rows], [row.num_envs / row.env_s for row in rows]
    axes.plot(ranks, alone, color="0.8", linewidth=4, label="envs alone")
    for curve, look in _styled(analysis.curves):
        axes.plot([row.num_ranks for row in curve.rows], [row.env_steps_per_s for row in curve.rows], **look)
        for check in analysis.checks_of(curve):
            num_envs = rows[0].num_envs // rows[0].num_ranks * check.num_ranks
            axes.errorbar(
                check.num_ranks, num_envs / check.measured_s, **_measured(check.oversubscribed, look["color"])
            )
    style.log_y(axes)
    style.legend(axes, loc="upper left")
    _number_ranks(axes, analysis)


def _plot_steps(axes: "Axes", analysis: SimulationAnalysis) -> None:
    style.frame(axes, "A step in lockstep (computed)", "ranks", "ms")
    rows = analysis.curves[0].rows
    for attribute, (name, color, line) in PARTS.items():
        values = [1e3 * getattr(row, attribute) or math.nan for row in rows]  # 0 has no place on a log axis.
        if not all(map(math.isnan, values)):
            axes.plot([row.num_ranks for row in rows], values, linestyle=line, color=color, label=name)
    some = [check for check in analysis.checks_of(analysis.curves[0]) if check.num_ranks > 1]
    if some:
        ranks = [check.num_ranks for check in some]
        measured = [1e3 * check.measured_exchange_s for check in some]
        axes.plot(ranks, measured, "s", color=style.GREEN, markerfacecolor="w", label="exchange and root, measured")
    style.log_y(axes)
    _number_ranks(axes, analysis)


def _number_ranks(axes: "Axes", analysis: SimulationAnalysis) -> None:
    style.count_x(axes, [row.num_ranks for row in analysis.curves[0].rows], most=6)
