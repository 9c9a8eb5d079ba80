"""What a study of scaling shows, as text: speed-up, efficiency, fits, what holds it back."""

from collections.abc import Sequence

from mpi_rollout.studies.figures import Analysis, PointFigures, analyses
from mpi_rollout.studies.statistics import Fit, NoFit
from mpi_rollout.studies.study_file import StudyFile, place_and_time
from mpi_rollout.text import counted

QUIET = 0.9  # A share of a core: ranks spin while they wait, so on a quiet machine they have all of it.
CAUSES = {
    "env": "env steps that take longer than in the base case",
    "idle": "waiting for the slowest rank before each exchange",
    "exchange": "the exchange and the root's work for it",
    "policy": "the policy on the root",
    "write": "waiting for the disk",
}
COLUMNS = (
    *("ranks", "envs", "jobs", "env steps/s", "speed-up", "efficiency"),
    *("of limit", "load balance", "comm. eff."),
)


def lines(file: StudyFile) -> list[str]:
    """Return all of it."""
    several = analyses(file)
    text = [title(file), _base(file, several[0]), ""]
    some = [(analysis, [f"{analysis.label}:"] * (len(several) > 1)) for analysis in several if analysis.points]
    for analysis, label in some:
        text += [*label, *aligned([COLUMNS, *map(_cells, analysis.points)]), ""]
    if some:
        text += notes([analysis for analysis, _ in some])
        if " --only " in file.origin["command"]:
            text.append(
                "each number of ranks was measured by a command of its own, not in turns with the others: what differs "
                "between their nodes or hours is not in the ranges"
            )
    for analysis, label in some:
        text += [*label, f"{analysis.law}'s law: {_fit_words(analysis.fit)}", cause(analysis.fit_points)]
    return text + file.failures


def title(file: StudyFile) -> str:
    """Say what was measured where and when."""
    study = file.study
    size = f"{counted(study.size, 'env')} {'in all' if study.kind == 'strong' else 'per rank'}"
    used = {host for job in file.samples for host in job.hosts.split(", ") if host}
    hosts = f"{len(used)} hosts such as {min(used)}" if len(used) > 1 else min(used, default=file.origin["host"])
    where = place_and_time(hosts, file.facts, [job.mpi_library for job in file.samples], file.origin["started"])
    steps = counted(study.run["num_steps"], "step") + " a job"
    if study.lengths != ("1",):
        steps += f", fragments of {', '.join(study.lengths)}"
    return f"{study.kind} scaling of {study.env_name}, {size}, {steps}: {where}"


def _base(file: StudyFile, analysis: Analysis) -> str:
    if analysis.base is None:
        return "no base case, so no speed-ups: no job of one rank gave a result"
    jobs = counted(analysis.num_base_jobs, "job")
    return f"base case: {file.study.base_case}: {analysis.base.shown(',.0f')} env steps/s (median of {jobs})"


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
    )


def aligned(rows: Sequence[Sequence[str]], names_left: bool = False) -> list[str]:
    """Lay out cells as columns, flush right; with `names_left` the first column is flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        if names_left:
            cells[0] = row[0].ljust(widths[0])
        lines.append("  ".join(cells).rstrip())
    return lines


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


def _fit_words(fit: Fit | NoFit) -> str:
    if isinstance(fit, NoFit):
        return f"no fit: {fit}"
    checked = f"within {100 * fit.worst_error:.1f} %; the largest, held out, {100 * fit.held_out_error:+.1f} %"
    return f"serial fraction {fit.serial_fraction:.4f} ({checked})"


def cause(points: list[PointFigures]) -> str:
    """Say in one sentence what holds it back, at the largest number of ranks that have cores of their own."""
    point = points[-1] if points else None
    if point is None or point.efficiency is None:
        return "what holds it back: not known, as no point has both a base case and a core for each rank"
    worst = sorted(((share, name) for name, share in point.losses.items() if share >= 0.001), reverse=True)[:2]
    causes = [f"{CAUSES[name]}, {100 * share:.1f} % of the time" for share, name in worst]
    ranks = f"{counted(point.num_ranks, 'rank')} (efficiency {point.efficiency.median:.3f})"
    return f"what holds it back at {ranks}: {'; then '.join(causes) or 'nothing'}"
