"""What a simulation shows, as text.  Every line says whether it was measured or computed."""

import math
from dataclasses import fields

from mpi_rollout.bench.model import Constants
from mpi_rollout.bench.scaling.curves import Check, Curve, SimulationAnalysis
from mpi_rollout.bench.scaling.simulation import SimulationFile
from mpi_rollout.bench.tables import aligned
from mpi_rollout.bench.workplace import place_and_time
from mpi_rollout.errors import counted

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
    "computed: nothing is stored, all nodes are alike; policies on the workers are not in this program yet, and "
    "sending their parameters is not in the curve"
)
WITHIN = 0.15  # What the model is meant to keep at the largest number of ranks, which is held out.


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
    """Return one line for each number of ranks: parts of a step with the policy on the root, then each curve's rate."""
    root = curves[0]
    names = ["ranks", "envs", "env ms", "waiting ms", "exchange ms", "policy ms"]
    for curve in curves:
        where = "root" if curve is root else f"workers {curve.fragment_length}"
        names += [f"{where}: env steps/s", "efficiency"]
    cells = [names]
    for place, row in enumerate(root.rows):
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
    """Return one line for each number of ranks that was tried."""
    cells = [["ranks", "jobs", "measured", "computed", "error", "exchange", "computed", "efficiency"]]
    for check in analysis.checks:
        span = f"({1e3 * check.low_s:.2f} to {1e3 * check.high_s:.2f})"
        line = [f"{check.num_ranks}{'*' * check.oversubscribed}", str(check.num_jobs)]
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
    return (
        f"the largest, {counted(check.num_ranks, 'rank')}, held out of the fit: computed {100 * check.error:+.1f} % "
        f"of what was measured, {verdict} {100 * WITHIN:.0f} %"
    )
