"""What a study shows, as text, and as a picture: speed-up, efficiency, where the time goes."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.bench.scaling.analysis import Analysis, PointFigures, analyses
from mpi_rollout.bench.scaling.study import StudyFile, read_study
from mpi_rollout.bench.statistics import Fit, NoFit, reaches, serial_fraction
from mpi_rollout.bench.tables import aligned
from mpi_rollout.bench.workplace import place_and_time
from mpi_rollout.commands import style
from mpi_rollout.errors import DataError, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUIET = 0.9  # Of a core: ranks spin while they wait, so on a quiet machine they have all of it.
CAUSES = {
    "env": "env steps that take longer than in the base case",
    "idle": "waiting for the slowest rank before each exchange",
    "exchange": "the exchange and the root's work for it",
    "policy": "the policy on the root",
    "write": "waiting for the disk",
}
COLUMNS = (
    *("ranks", "envs", "jobs", "env steps/s", "speed-up", "efficiency"),
    *("of limit", "load balance", "comm. eff.", "Karp-Flatt"),
)
PHASES = {
    "env": ("envs", style.BLUE, ""),
    "idle": ("waiting for the slowest rank", style.LIGHT, "///"),
    "exchange": ("exchange", style.GREEN, "\\\\\\"),
    "policy": ("policy", style.ORANGE, "..."),
    "write": ("waiting for the disk", style.RED, ""),
}
"""The name, colour and hatch of each of `analysis.PHASES`, in their order."""


def lines(file: StudyFile) -> list[str]:
    """Return all of it."""
    several = analyses(file.study, file.samples)
    text = [title(file), _base(file, several[0]), ""]
    some = [analysis for analysis in several if analysis.points]
    for analysis in some:
        text += [f"{analysis.label}:"] * (len(several) > 1) + [*table(analysis.points), ""]
    text += [*notes(some), *_parts_note(file)] if some else []
    for analysis in some:
        text += [f"{analysis.label}:"] * (len(several) > 1)
        text += [_fit_line(name, law) for name, law in analysis.fits.items()]
        text.append(cause(analysis.fit_points))
    failed = [job for job in file.samples.jobs if job.error]
    return text + [f"failed: {job.point}: {job.error.splitlines()[0]}" for job in failed]


def title(file: StudyFile) -> str:
    """Say what was measured where and when."""
    study = file.study
    size = f"{counted(study.size, 'env')} {'in all' if study.kind == 'strong' else 'per rank'}"
    libraries = [job.mpi_library for job in file.samples.jobs]
    where = place_and_time(hosts(file), file.facts, libraries, file.origin["started"])
    steps = counted(study.run["num_steps"], "step") + " a job"
    if study.fragment_lengths != ("1",):
        steps += f", fragments of {', '.join(study.fragment_lengths)}"
    return f"{study.kind} scaling of {study.env_name}, {size}, {steps}: {where}"


def hosts(file: StudyFile) -> str:
    """Say where its jobs ran."""
    used = {host for job in file.samples.jobs for host in job.hosts.split(", ") if host}
    return f"{len(used)} hosts such as {min(used)}" if len(used) > 1 else min(used, default=file.origin["host"])


def _base(file: StudyFile, analysis: Analysis) -> str:
    if analysis.base is None:
        return "no base case, so no speed-ups: no job of one rank gave a result"
    return (
        f"base case: {file.study.base_case}: {analysis.base.shown(',.0f')} env steps/s "
        f"(median of {counted(analysis.num_base_jobs, 'job')})"
    )


def table(points: list[PointFigures]) -> list[str]:
    """Return one line for each number of ranks, below a line of names."""
    return aligned([COLUMNS, *map(_cells, points)])


def _cells(point: PointFigures) -> tuple[str, ...]:
    return (
        f"{point.num_ranks}{'*' * point.oversubscribed}",
        f"{point.num_envs:,}",
        str(point.num_jobs),
        point.rate.shown(",.0f"),
        point.speed_up.shown(".2f") if point.speed_up else "-",
        point.efficiency.shown(".3f") if point.efficiency else "-",
        f"{point.of_limit:.3f}",
        f"{point.load_balance:.3f}",
        f"{point.communication_efficiency:.3f}",
        "-" if math.isnan(point.karp_flatt) else f"{point.karp_flatt:.4f}",
    )


def notes(several: list[Analysis]) -> list[str]:
    """Say what the columns mean."""
    points = [point for analysis in several for point in analysis.points]
    point = min(points, key=lambda point: point.num_jobs)
    coverage = f"{100 * point.rate.coverage:.0f} % for env steps/s"
    if point.speed_up is not None:
        coverage += f", {100 * point.speed_up.coverage:.0f} % for speed-up and efficiency"
    text = [
        "medians over jobs; the range in brackets holds the true median with a probability of " + coverage,
        "of limit: of bare loops on all ranks at once, in the same job",
    ]
    if any(point.oversubscribed for point in points):
        text.append("* more ranks than cores: such points are in no fit and show no scaling")
    return text + disturbance(several)


def _parts_note(file: StudyFile) -> list[str]:
    """Return a line if each number of ranks was measured at a time, and maybe on nodes, of its own."""
    if " --only " not in file.origin["command"]:
        return []
    return [
        "each number of ranks was measured by a command of its own, not in turns with the others: what differs between "
        "their nodes or hours is not in the ranges"
    ]


def disturbance(several: list[Analysis]) -> list[str]:
    """Return a line if ranks that should have had cores of their own, and never sleep to wait, had less."""
    points = [point for analysis in several for point in analysis.fit_points]
    share = min((point.cpu_share for point in points if not point.slept), default=1.0)
    if share >= QUIET:
        return []
    return [
        f"a rank had no more than {share:.2f} of a core: its envs sleep, or other work ran on this machine and these "
        "figures are not this program's"
    ]


def _fit_line(name: str, law: Fit | NoFit) -> str:
    title = "exchange, alpha-beta" if name == "exchange" else f"{name}'s law"
    if isinstance(law, NoFit):
        return f"{title}: no fit: {law}"
    checked = f"within {100 * law.worst_error:.1f} %; the largest, held out, {100 * law.held_out_error:+.1f} %"
    if name != "exchange":
        return f"{title}: serial fraction {serial_fraction(law):.4f} ({checked})"
    root_s, alpha_s, beta_s = law.coefficients
    text = f"{title}: {root_s * 1e6:.1f} us + {alpha_s * 1e6:.1f} us per message + {beta_s * 1e9:.3f} ns per byte"
    doubt = "; a negative part means that these points do not tell the parts apart" * (min(law.coefficients) < 0)
    return f"{text} ({checked}{doubt})"


def cause(points: list[PointFigures]) -> str:
    """Say in one sentence what holds it back, at the largest number of ranks that have cores of their own."""
    point = points[-1] if points else None
    if point is None or point.efficiency is None:
        return "what holds it back: not known, as no point has both a base case and a core for each rank"
    worst = sorted(((share, name) for name, share in point.losses.items() if share >= 0.001), reverse=True)[:2]
    causes = [f"{CAUSES[name]}, {100 * share:.1f} % of the time" for share, name in worst]
    ranks = f"{counted(point.num_ranks, 'rank')} (efficiency {point.efficiency.median:.3f})"
    return f"what holds it back at {ranks}: {'; then '.join(causes) or 'nothing'}"


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
    several = [analysis for analysis in analyses(file.study, file.samples) if analysis.points]
    if not several:
        raise DataError(f"{path} has no result yet; there is nothing to draw")
    figure = style.new_figure("plot", 6.4)
    panels = figure.subplot_mosaic([["speed-up", "efficiency"], ["phases", "phases"]], height_ratios=(1.25, 1))
    headline, *fine = _words(file, several)
    style.head(figure, headline, fine)
    _plot_speed_ups(panels["speed-up"], several)
    _plot_efficiencies(panels["efficiency"], several)
    if len(several) == 1:
        _plot_phases(panels["phases"], several[0].points)
    else:
        points = [analysis.points[-1] for analysis in several]
        where = f"fragment length, on {points[0].num_ranks:,} ranks{' (more than cores)' * points[0].oversubscribed}"
        _plot_phases(panels["phases"], points, where, [analysis.asked_length for analysis in several])
    return style.save_study(figure, path.removesuffix(".h5"))


def _words(file: StudyFile, several: list[Analysis]) -> list[str]:
    """Return what was measured, then the fine print."""
    subject, _, place = title(file).partition(", ")
    text = [subject[0].upper() + subject[1:], place]
    if (base := several[0].base) is not None:
        text.append(f"1 = {file.study.base_case}: {base.median:,.0f} env steps/s")
    return text + disturbance(several)


def _plot_speed_ups(axes: "Axes", several: list[Analysis]) -> None:
    style.frame(axes, "Speed-up", "ranks")
    analysis = several[0]
    if analysis.base is None:
        return style.say(axes, "no base case")
    points, base = analysis.points, analysis.base.median
    ranks = [point.num_ranks for point in points]
    axes.plot(ranks, ranks, "--", color=style.GREY, linewidth=1, label="ideal")
    limits = [point.limit.median / base for point in points]
    axes.plot(ranks, limits, "x", color=style.RED, markersize=6, label="bare loops on all ranks at once")
    if len(several) == 1:
        _plot_law(axes, analysis, ranks)
    _plot_points(axes, several, "speed_up")
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


def _plot_efficiencies(axes: "Axes", several: list[Analysis]) -> None:
    style.frame(axes, "Efficiency: speed-up over ranks", "ranks")
    analysis, points = several[0], several[0].points
    if analysis.base is None:
        return style.say(axes, "no base case")
    ranks = [point.num_ranks for point in points]
    axes.axhline(1.0, linestyle="--", color=style.GREY, linewidth=1)
    limits = [point.limit.median / analysis.base.median / point.num_ranks for point in points]
    axes.plot(ranks, limits, "x", color=style.RED, markersize=6)
    _plot_points(axes, several, "efficiency")
    axes.set_ylim(0, max(1.1, axes.get_ylim()[1]))
    style.count_x(axes, ranks)


def _plot_points(axes: "Axes", several: list[Analysis], name: str) -> None:
    """Draw the points of one length of fragments, or a line for each length."""
    if len(several) == 1:
        return _plot_measured(axes, several[0].points, name)
    for place, analysis in enumerate(several):
        ranks, intervals = zip(*((point.num_ranks, getattr(point, name)) for point in analysis.points), strict=True)
        look: style.Look = {"label": analysis.label, "capsize": 3, "markersize": 5, **style.look(place)}
        axes.errorbar(ranks, [interval.median for interval in intervals], reaches(intervals), **look)


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


def _plot_phases(axes: "Axes", points: list[PointFigures], xlabel: str = "", names: Sequence[str] = ()) -> None:
    is_crowded = any(point.oversubscribed for point in points)
    xlabel = xlabel or ("ranks (* more than cores)" if is_crowded else "ranks")
    names = names or [f"{point.num_ranks:,}{'*' * point.oversubscribed}" for point in points]
    style.frame(axes, "Where the time goes", xlabel, "% of the run time", "y")
    places, bottom = np.arange(len(points)), np.zeros(len(points))
    for phase, (name, color, hatch) in PHASES.items():
        values = np.array([100 * point.shares[phase] for point in points])
        axes.bar(places, values, 0.6, bottom, facecolor=color, edgecolor="w", linewidth=0.4, hatch=hatch, label=name)
        bottom += values
    axes.set_ylim(0, 100)
    margin = max(0.7, 2 - len(points) / 2)  # A few bars do not become walls.
    axes.set_xlim(-margin, len(points) - 1 + margin)
    axes.set_xticks(places, labels=names)
    style.legend_below(axes, len(PHASES))
