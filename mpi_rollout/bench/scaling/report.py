"""What a study shows, as text."""

import math

from mpi_rollout.bench.scaling.analysis import Analysis, PointFigures
from mpi_rollout.bench.scaling.file import StudyFile
from mpi_rollout.bench.statistics import Fit, Interval, NoFit, serial_fraction
from mpi_rollout.bench.text import aligned, machine
from mpi_rollout.errors import counted

QUIET = 0.9  # Of a core: ranks spin while they wait, so on a quiet machine they have all of it.
CAUSES = {
    "env": "env steps that take longer than in the base case",
    "idle": "waiting for the slowest rank of each step",
    "exchange": "the exchange and the root's work for it",
    "policy": "the policy on the root",
    "write": "waiting for the disk",
}
COLUMNS = (
    "ranks", "envs", "jobs", "env steps/s", "speed-up", "efficiency", "of limit", "load balance", "comm. eff.",
    "Karp-Flatt",
)  # fmt: skip


def lines(file: StudyFile) -> list[str]:
    """All of it."""
    analysis = Analysis(file.study, file.samples)
    told = [title(file), _base(file, analysis), ""]
    if analysis.points:
        told += [
            *table(analysis.points),
            "",
            *notes(analysis),
            *_of_parts(file),
            *map(_fit_line, *zip(*analysis.fits.items(), strict=True)),
        ]
        told.append(cause(analysis.fit_points))
    failed = [job for job in file.samples.jobs if job.error]
    told += [f"failed: {job.point}: {job.error.splitlines()[0]}" for job in failed]
    return told


def title(file: StudyFile) -> str:
    """What was measured where and when."""
    study, samples = file.study, file.samples
    size = f"{counted(study.size, 'env')} {'in all' if study.kind == 'strong' else 'per rank'}"
    libraries = dict.fromkeys(job.mpi_library for job in samples.jobs if job.mpi_library)
    return (
        f"{study.kind} scaling of {study.env_name}, {size}, {counted(study.run['num_steps'], 'step')} a job: "
        f"{machine(hosts(file), file.facts)}, "
        + "".join(f"{library}, " for library in libraries)
        + file.origin["started"][:10]
    )


def hosts(file: StudyFile) -> str:
    """Where its jobs ran."""
    used = {host for job in file.samples.jobs for host in job.hosts.split(", ") if host}
    return f"{len(used)} hosts such as {min(used)}" if len(used) > 1 else min(used, default=file.origin["host"])


def _base(file: StudyFile, analysis: Analysis) -> str:
    if analysis.base is None:
        return "no base case, so no speed-ups: no job of one rank gave a result"
    num_jobs = analysis.points[0].num_jobs
    return (
        f"base case: {file.study.base_case}: {_interval(analysis.base, ',.0f')} env steps/s "
        f"(median of {counted(num_jobs, 'job')})"
    )


def table(points: list[PointFigures]) -> list[str]:
    """One line for each number of ranks, below a line of names."""
    return aligned([COLUMNS, *map(_cells, points)])


def _cells(point: PointFigures) -> tuple[str, ...]:
    speed_up = _interval(point.speed_up, ".2f") if point.speed_up else "-"
    efficiency = _interval(point.efficiency, ".3f") if point.efficiency else "-"
    return (
        f"{point.num_ranks}{'*' * point.oversubscribed}", f"{point.num_envs:,}", str(point.num_jobs),
        _interval(point.rate, ",.0f"), speed_up, efficiency, f"{point.of_limit:.3f}", f"{point.load_balance:.3f}",
        f"{point.communication_efficiency:.3f}", "-" if math.isnan(point.karp_flatt) else f"{point.karp_flatt:.4f}",
    )  # fmt: skip


def _interval(found: Interval, form: str) -> str:
    return f"{found.median:{form}} ({found.low:{form}} to {found.high:{form}})"


def notes(analysis: Analysis) -> list[str]:
    """What the columns mean."""
    point = min(analysis.points, key=lambda each: each.num_jobs)
    coverage = f"{100 * point.rate.coverage:.0f} % for env steps/s"
    if point.speed_up is not None:
        coverage += f", {100 * point.speed_up.coverage:.0f} % for speed-up and efficiency"
    found = [
        "medians over jobs; the range in brackets holds the true median with a probability of " + coverage,
        "of limit: of bare loops on all ranks at once, in the same job",
    ]
    if any(each.oversubscribed for each in analysis.points):
        found.append("* more ranks than cores: such points are in no fit and show no scaling")
    return found + disturbance(analysis)


def _of_parts(file: StudyFile) -> list[str]:
    """A line if each number of ranks was measured at a time, and maybe on nodes, of its own."""
    if " --only " not in file.origin["command"]:
        return []
    return [
        "each number of ranks was measured by a command of its own, not in turns with the others: what differs between "
        "their nodes or hours is not in the ranges"
    ]


def disturbance(analysis: Analysis) -> list[str]:
    """A line if ranks that should have had cores of their own, and never sleep to wait, had less."""
    share = min((each.cpu_share for each in analysis.fit_points if not each.slept), default=1.0)
    if share >= QUIET:
        return []
    return [
        f"a rank had no more than {share:.2f} of a core: its envs sleep, or other work ran on this machine and these "
        "figures are not this program's"
    ]


def _fit_line(name: str, found: Fit | NoFit) -> str:
    title = "exchange, alpha-beta" if name == "exchange" else f"{name}'s law"
    if isinstance(found, NoFit):
        return f"{title}: no fit: {found}"
    checked = f"within {100 * found.worst_error:.1f} %; the largest, held out, {100 * found.held_out_error:+.1f} %"
    if name != "exchange":
        return f"{title}: serial fraction {serial_fraction(found):.4f} ({checked})"
    root_s, alpha_s, beta_s = found.coefficients
    told = f"{title}: {root_s * 1e6:.1f} us + {alpha_s * 1e6:.1f} us per message + {beta_s * 1e9:.3f} ns per byte"
    doubt = "; a negative part means that these points do not tell the parts apart" * (min(found.coefficients) < 0)
    return f"{told} ({checked}{doubt})"


def cause(points: list[PointFigures]) -> str:
    """What holds it back, in one sentence, at the largest number of ranks that have cores of their own."""
    if not points or points[-1].efficiency is None:
        return "what holds it back: not known, as no point has both a base case and a core for each rank"
    point = points[-1]
    worst = sorted(((share, name) for name, share in point.losses.items() if share >= 0.001), reverse=True)[:2]
    causes = [f"{CAUSES[name]}, {100 * share:.1f} % of the time" for share, name in worst]
    ranks = f"{counted(point.num_ranks, 'rank')} (efficiency {point.efficiency.median:.3f})"
    return f"what holds it back at {ranks}: {'; then '.join(causes) or 'nothing'}"
