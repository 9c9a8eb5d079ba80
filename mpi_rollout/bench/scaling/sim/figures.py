"""The picture of a simulation: what was measured as markers, what was computed as lines.  Black and grey."""

import math
from typing import Any

from mpi_rollout.bench.scaling.sim import report
from mpi_rollout.bench.scaling.sim.analysis import Curve, SimulationAnalysis
from mpi_rollout.bench.scaling.sim.file import SimulationFile, read_simulation
from mpi_rollout.commands.plots import new_figure, save
from mpi_rollout.errors import DataError

KINDS = (".png", ".svg")
_STYLES = ("-", "--", "-.", ":")
_GREYS = ("0.0", "0.35", "0.55", "0.35")


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
    figure = new_figure("plot", 12, 5)
    efficiencies, rates, steps = figure.subplots(1, 3)
    _plot_efficiencies(efficiencies, analysis)
    _plot_rates(rates, analysis)
    _plot_steps(steps, analysis)
    handles, labels = efficiencies.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize="small")
    figure.suptitle("\n".join(_title(file, analysis)), fontsize="small")
    made = [path.removesuffix(".h5") + kind for kind in KINDS]
    for each in made:
        save(figure, "plot", each)
    return made


def _title(file: SimulationFile, analysis: SimulationAnalysis) -> list[str]:
    constants = report.constants(analysis.constants) if analysis.constants else ""
    return [report.title(file), report.workload(file), f"constants {analysis.origin}", constants]


def _styled(curves: list[Curve]) -> list[tuple[Curve, dict[str, Any]]]:
    styles = [{"linestyle": _STYLES[place % 4], "color": _GREYS[place % 4]} for place in range(len(curves))]
    return list(zip(curves, styles, strict=True))


def _plot_efficiencies(axes: Any, analysis: SimulationAnalysis) -> None:
    axes.set(title="efficiency: envs' share of the time", xlabel="ranks")
    axes.axhline(0.5, color="0.7", linewidth=1)
    for place, (curve, style) in enumerate(_styled(analysis.curves)):
        efficiencies = [row.efficiency for row in curve.rows]
        ranks = [row.num_ranks for row in curve.rows]
        axes.plot(ranks, efficiencies, label=curve.label, **style)
        span = [row.efficiency_low for row in curve.rows], [row.efficiency_high for row in curve.rows]
        axes.fill_between(ranks, *span, color="0.5", alpha=0.2, linewidth=0)  # See `CurveRow`.
        if curve.saturation is not None and curve.saturation <= curve.rows[-1].num_ranks:
            axes.axvline(curve.saturation, linewidth=0.6, **style)
            told = f"saturated: {curve.saturation:,} "
            axes.text(curve.saturation, 0.02 + 0.05 * place, told, ha="right", fontsize="small")
    for is_crowded in (False, True):
        _plot_checks(axes, analysis, is_crowded)
    axes.set_ylim(0, 1.05)
    _log_ranks(axes, analysis)


def _plot_checks(axes: Any, analysis: SimulationAnalysis, is_crowded: bool) -> None:
    """Medians and intervals; open where ranks share cores, with a cross where the model has such ranks."""
    some = [check for check in analysis.checks if check.oversubscribed == is_crowded]
    if not some:
        return
    ranks, found = [check.num_ranks for check in some], [analysis.efficiency(check) for check in some]
    lengths = [[each.median - each.low for each in found], [each.high - each.median for each in found]]
    label = "measured" + ", more ranks than cores" * is_crowded
    axes.errorbar(ranks, [each.median for each in found], lengths, fmt="o", color="k", capsize=3,
                  markerfacecolor="w" if is_crowded else "k", label=label)  # fmt: skip
    if is_crowded:
        computed = [each.median * check.measured_s / check.computed_s for each, check in zip(found, some, strict=True)]
        axes.plot(ranks, computed, "x", color="0.35", label="computed for ranks that share these cores")


def _plot_rates(axes: Any, analysis: SimulationAnalysis) -> None:
    axes.set(title="env steps per second", xlabel="ranks")
    root = analysis.curves[0]
    axes.plot([row.num_ranks for row in root.rows], [row.num_envs / row.env_s for row in root.rows], color="0.75",
              linewidth=3, label="envs alone")  # fmt: skip
    for curve, style in _styled(analysis.curves):
        axes.plot([row.num_ranks for row in curve.rows], [row.env_steps_per_s for row in curve.rows], **style)
    for check in analysis.checks:
        num_envs = root.rows[0].num_envs // root.rows[0].num_ranks * check.num_ranks
        axes.plot(check.num_ranks, num_envs / check.measured_s, "o", color="k",
                  markerfacecolor="w" if check.oversubscribed else "k")  # fmt: skip
    axes.set_yscale("log")
    axes.legend(fontsize="small", loc="upper left")
    _log_ranks(axes, analysis)


def _plot_steps(axes: Any, analysis: SimulationAnalysis) -> None:
    axes.set(title="a step, policy on the root (computed)", xlabel="ranks", ylabel="ms")
    rows = analysis.curves[0].rows
    ranks = [row.num_ranks for row in rows]
    parts = {"envs": "env_s", "exchange and root": "exchange_s", "policy": "policy_s",
             "waiting for the slowest": "waiting_s"}  # fmt: skip
    for (name, attribute), style, grey in zip(parts.items(), _STYLES, _GREYS, strict=True):
        values = [1e3 * getattr(row, attribute) or math.nan for row in rows]  # 0 has no place on a log axis.
        if not all(map(math.isnan, values)):
            axes.plot(ranks, values, linestyle=style, color=grey, label=name)
    some = [check for check in analysis.checks if check.num_ranks > 1]
    if some:
        axes.plot([check.num_ranks for check in some], [1e3 * check.measured_exchange_s for check in some], "s",
                  color="k", markerfacecolor="w", label="exchange and root, measured")  # fmt: skip
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / (high / low) ** 0.5, high)  # Room for the legend.
    axes.legend(fontsize="small", loc="lower right")
    _log_ranks(axes, analysis)


def _log_ranks(axes: Any, analysis: SimulationAnalysis) -> None:
    ranks = [row.num_ranks for row in analysis.curves[0].rows]
    axes.set_xscale("log", base=2)
    shown = ranks[:: max(1, len(ranks) // 6)]
    axes.set_xticks(shown, labels=[str(each) for each in shown])
    axes.minorticks_off()
