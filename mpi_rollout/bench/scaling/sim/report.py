"""What a simulation shows, as text.  Every line says whether it was measured or computed."""

import math
from dataclasses import fields

from mpi_rollout.bench.model import Constants
from mpi_rollout.bench.scaling.sim.analysis import Check, Curve, SimulationAnalysis
from mpi_rollout.bench.scaling.sim.file import SimulationFile
from mpi_rollout.bench.text import aligned
from mpi_rollout.errors import counted

UNITS = {
    "root_s": ("root", 1e6, "us"), "alpha_s": ("alpha", 1e6, "us per level of the tree"),
    "root_s_per_rank": ("root", 1e6, "us per rank"), "root_s_per_env": ("root", 1e9, "ns per env"),
    "beta_s_per_byte": ("beta", 1e9, "ns per byte"), "policy_s": ("policy", 1e6, "us"),
    "policy_s_per_env": ("policy", 1e9, "ns per env"),
}  # fmt: skip
WITHIN = 0.15  # What the model is meant to keep at the largest number of ranks, which is held out.


def lines(file: SimulationFile) -> list[str]:
    """All of it."""
    analysis = SimulationAnalysis(file)
    told = [title(file), workload(file), f"constants, {analysis.origin}"]
    if analysis.constants is not None:
        told.append("  " + constants(analysis.constants))
    told += crowding(analysis)
    if analysis.curves:
        told += ["", "computed, step by step:", *table(analysis.curves), "", *map(ending, analysis.curves), *bounds()]
    if analysis.checks:
        told += ["", "measured beside computed, ms per step:", *check_table(analysis), *map(held_out, analysis.checks)]
    failed = [(setting, job) for setting, job in file.samples if job.error]
    return [line for line in told if line is not None] + [
        f"failed: {setting}: {job.error.splitlines()[0]}" for setting, job in failed
    ]


def title(file: SimulationFile) -> str:
    """What was asked, where and when."""
    cores = file.facts["num_cores"]
    libraries = dict.fromkeys(job.mpi_library for _, job in file.samples if job.mpi_library)
    return (
        f"model of {file.question.env_name}, {counted(file.question.envs_per_rank, 'env')} per rank: "
        f"{file.origin['host']} "
        f"({file.facts['cpu_model']}, {counted(cores, 'core')}), "
        + "".join(f"{library}, " for library in libraries)
        + file.origin["started"][:10]
    )


def workload(file: SimulationFile) -> str:
    """What the model knows of the envs, and from where."""
    envs, how = file.envs, "measured" if file.question.env else "given"
    spread = f" (standard deviation {envs.step_spread_s * 1e3:.4g})" if envs.step_spread_s else ""
    resets = ", resets included" * bool(file.question.env)
    return (
        f"envs, {how}: {envs.step_s * 1e3:.4g} ms per step{spread}{resets}, observations of "
        f"{envs.observation_bytes:,} bytes, actions of {envs.action_bytes:,}"
    )


def constants(found: Constants) -> str:
    """In handy units; what is 0 is not shown by the points, or was not given."""
    parts = []
    for each in fields(found):
        name, factor, unit = UNITS[each.name]
        value = getattr(found, each.name)
        if value:
            parts.append(f"{name} {value * factor:.3g} {unit}")
    return ", ".join(parts) or "all 0"


def crowding(analysis: SimulationAnalysis) -> list[str]:
    """What jobs of more ranks than cores can say of machines that have a core for each, and what not."""
    told = []
    if analysis.fitting.is_crowded:
        told.append(
            "  fitted to ranks that share cores: the part per rank has the ranks' own work in it, which with a core "
            "for each rank is done at the same time"
        )
    sharing_us = analysis.fitting.sharing_s * 1e6
    if sharing_us:
        told.append(
            f"  sharing cores, measured: {sharing_us:.3g} us per step and rank; in no curve, only beside jobs of more "
            "ranks than cores"
        )
    return told


def table(curves: list[Curve]) -> list[str]:
    """One line for each number of ranks; parts of a step with the policy on the root, then each curve's rate."""
    root = curves[0]
    names = ["ranks", "envs", "env ms", "waiting ms", "exchange ms", "policy ms"]
    for curve in curves:
        where = "root" if curve is root else f"workers {curve.fragment_length}"
        names += [f"{where}: env steps/s", "efficiency"]
    cells = [names]
    for place, row in enumerate(root.rows):
        parts = [f"{1e3 * each:.3f}" for each in (row.env_s, row.waiting_s, row.exchange_s, row.policy_s)]
        rates = [each for curve in curves for each in (f"{curve.rows[place].env_steps_per_s:,.0f}",
                                                       f"{curve.rows[place].efficiency:.3f}")]  # fmt: skip
        cells.append([f"{row.num_ranks:,}", f"{row.num_envs:,}", *parts, *rates])
    return aligned(cells)


def ending(curve: Curve) -> str:
    """Where a curve ends: the root's saturation."""
    if curve.saturation is None:
        told = "exchange and policy never take as long as the envs"
    else:
        ranks = counted(curve.saturation, "rank")
        told = f"from {ranks} on, exchange and policy take as long as the envs or longer{_span(curve)}"
    if math.isfinite(curve.ceiling):
        told += f"; no number of ranks gives more than {curve.ceiling:,.0f} env steps/s"
    return f"{curve.label}: {told}"


def _span(curve: Curve) -> str:
    """How far that hangs on single numbers of ranks."""
    if not curve.saturations:
        return ""
    ends = curve.saturations[0], curve.saturations[-1]
    low, high = (f"{each:,.0f}" if math.isfinite(each) else "never" for each in ends)
    return f" ({low} to {high} where any one number of ranks is left out of the fit)"


def bounds() -> list[str]:
    """What the curves leave out."""
    return [
        "computed: nothing is stored, all nodes are alike; policies on the workers are not in this program yet, and "
        "sending their parameters is not in the curve"
    ]


def check_table(analysis: SimulationAnalysis) -> list[str]:
    """One line for each number of ranks that was tried."""
    cells = [["ranks", "jobs", "measured", "computed", "error", "exchange", "computed", "efficiency"]]
    for check in analysis.checks:
        span = f"({1e3 * check.low_s:.2f} to {1e3 * check.high_s:.2f})"
        cells.append([
            f"{check.num_ranks}{'*' * check.oversubscribed}", str(check.num_jobs),
            f"{1e3 * check.measured_s:.2f} {span}",
            f"{1e3 * check.computed_s:.2f}", f"{100 * check.error:+.1f} %", f"{1e3 * check.measured_exchange_s:.3f}",
            f"{1e3 * check.computed_exchange_s:.3f}", f"{analysis.efficiency(check).median:.3f}",
        ])  # fmt: skip
    crowded = any(check.oversubscribed for check in analysis.checks)
    coverage = f"{100 * min(check.coverage for check in analysis.checks):.0f} %"
    note = "medians over jobs; the range in brackets holds the true median with a probability of " + coverage
    return [*aligned(cells), note + "; * more ranks than cores" * crowded]


def held_out(check: Check) -> str | None:
    """The verdict on the largest number of ranks, if the constants were fitted without it."""
    if not check.is_held_out:
        return None
    verdict = "within" if abs(check.error) <= WITHIN else "not within"
    return (
        f"the largest, {counted(check.num_ranks, 'rank')}, held out of the fit: computed {100 * check.error:+.1f} % "
        f"of what was "
        f"measured, {verdict} {100 * WITHIN:.0f} %"
    )
