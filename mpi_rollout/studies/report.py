"""What the samples of a study of scaling show: medians with intervals, speed-ups; and all that as text.

The base case is absolute: what a bare loop does on one rank, measured by the study's own jobs of one rank, one
sample a job.  A job of more ranks is compared with that, not with this program on one rank.  Where several ranks make
each env, these stand for the one rank.
"""

from statistics import median

from mpi_rollout.options import AUTO
from mpi_rollout.studies import statistics
from mpi_rollout.studies.statistics import Interval, median_interval
from mpi_rollout.studies.study import PHASES, Sample
from mpi_rollout.studies.study_file import StudyFile, place_and_time
from mpi_rollout.text import aligned, counted

QUIET = 0.9  # A share of a core: ranks spin while they wait, so on a quiet machine they have all of it.
CAUSES = {
    "env": "env steps that take longer than in the base case",
    "idle": "waiting for the slowest rank before each exchange",
    "exchange": "messages and the root's work for them",
    "policy": "on the root",
    "write": "writing the file",
}
COLUMNS = "ranks", "envs", "jobs", "env steps/s", "speed-up", "efficiency", "of limit"


class PointFigures:
    """What the jobs of one number of ranks show, as medians and shares of the run time by `PHASES`.

    `limit` is env steps per second of bare loops on all of these ranks at once.  `speed_up` and `efficiency` are None
    without a base case, `losses` empty: the shares that take the efficiency from 1 to what it is, all phases but `env`,
    and `env` as far as an env step takes longer than in the base case.  `cpu_share` is of the rank that had the least
    of a core.  The efficiency is the speed-up over the `ideal` one.
    """

    def __init__(self, jobs: list[Sample], base: Interval | None, ranks_per_env: int):
        self.num_ranks, self.num_envs, self.num_jobs = jobs[0].point.num_ranks, jobs[0].num_envs, len(jobs)
        self.ideal = self.num_ranks // ranks_per_env
        self.oversubscribed, self.slept = any(job.oversubscribed for job in jobs), any(job.slept for job in jobs)
        self.rate = median_interval([job.env_steps_per_s for job in jobs])
        self.limit = median_interval([_bare(job) for job in jobs])
        self.of_limit = median(job.env_steps_per_s / _bare(job) for job in jobs)
        self.speed_up = statistics.ratio(self.rate, base) if base else None
        self.efficiency = self.speed_up.scaled(1 / self.ideal) if self.speed_up else None
        self.cpu_share = median(job.cpu_share for job in jobs)
        self.shares = {name: median(getattr(job, f"{name}_s") / job.seconds for job in jobs) for name in PHASES}
        self.losses: dict[str, float] = {}
        if base:
            env_step_s = median(job.env_s * self.ideal / job.env_steps for job in jobs)
            self.losses = self.shares | {"env": self.shares["env"] * (1 - 1 / base.median / env_step_s)}


class Analysis:
    """The figures of a study, complete or not, for one length of fragments.

    `base` is env steps per second of the base case, or None if no job of one rank gave a result; it is of all
    `num_base_jobs`, whatever their fragments: bare loops have none.  `fragment_length` is the largest number of steps
    between two exchanges.  `points` are of the numbers of ranks with results, ascending.
    """

    def __init__(self, file: StudyFile, asked_length: str = ""):
        self.study = study = file.study
        self.asked_length = asked_length or study.lengths[0]
        done = [sample for sample in file.samples if not sample.error]
        bare = [_bare(sample) for sample in done if sample.point.num_ranks == study.ranks_per_env]
        self.base, self.num_base_jobs = median_interval(bare) if bare else None, len(bare)
        done = [sample for sample in done if sample.point.length == self.asked_length]
        self.fragment_length = max((sample.fragment_length for sample in done), default=1)
        by_ranks = [[sample for sample in done if sample.point.num_ranks == ranks] for ranks in study.num_ranks]
        self.points = [PointFigures(samples, self.base, study.ranks_per_env) for samples in by_ranks if samples]

    @property
    def label(self) -> str:
        """In words, how many steps there are between two exchanges."""
        if self.fragment_length == 1:
            return "lockstep" + " (auto)" * (self.asked_length == AUTO)
        return f"fragments of {self.fragment_length}" + " at most (auto)" * (self.asked_length == AUTO)

    @property
    def no_base(self) -> str:
        """Why there is no base case."""
        ranks = self.study.ranks_per_env
        return f"no job of {f'{ranks} ranks' if ranks > 1 else 'one rank'} gave a result"

    @property
    def uncrowded(self) -> list[PointFigures]:
        """The points without those of more ranks than cores, which show how the scheduler works."""
        return [point for point in self.points if not point.oversubscribed]


def analyses(file: StudyFile) -> list[Analysis]:
    """Return the figures for each length of fragments."""
    return [Analysis(file, length) for length in file.study.lengths]


def _bare(job: Sample) -> float:
    return median(bare for _, bare in job.limit)


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
        text += [*label, cause(analysis.uncrowded)]
    return text + file.failures


def title(file: StudyFile) -> str:
    """Say what was measured where and when."""
    study = file.study
    size = f"{counted(study.size, 'env')} {'in all' if study.kind == 'strong' else 'per rank'}"
    used = {host for job in file.samples for host in job.hosts.split(", ") if host}
    hosts = f"{len(used)} hosts such as {min(used)}" if len(used) > 1 else min(used, default=file.origin["host"])
    where = place_and_time(hosts, file.facts, [job.mpi_library for job in file.samples], file.origin["started"])
    # Where points differ in it, as in a study of the model, no single number is true.
    steps = (
        f"{counted(study.run['num_steps'], 'step')} a job" if "num_steps" in study.run else "jobs of several lengths"
    )
    if study.lengths != ("1",):
        steps += f", fragments of {', '.join(study.lengths)}"
    return f"{study.kind} scaling of {study.env_name}, {size}, {steps}: {where}"


def _base(file: StudyFile, analysis: Analysis) -> str:
    if analysis.base is None:
        return f"no base case, so no speed-ups: {analysis.no_base}"
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
    )


def notes(several: list[Analysis]) -> list[str]:
    """Say what the columns mean."""
    points = [point for analysis in several for point in analysis.points]
    point = min(points, key=lambda point: point.num_jobs)
    coverages = {"env steps/s": point.rate.coverage}
    if point.speed_up is not None:
        coverages["speed-up and efficiency"] = point.speed_up.coverage
    text = [
        f"medians over jobs; {statistics.promise(coverages)}",
        "of limit: of bare loops on all ranks at once, in the same job",
    ]
    if any(point.oversubscribed for point in points):
        text.append("* more ranks than cores: such points show no scaling")
    return text + disturbance(several)


def disturbance(several: list[Analysis]) -> list[str]:
    """Return a line if ranks that should have had cores of their own, and never sleep to wait, had less."""
    points = [point for analysis in several for point in analysis.uncrowded]
    share = min((point.cpu_share for point in points if not point.slept), default=1.0)
    if share >= QUIET:
        return []
    return [
        f"a rank had no more than {share:.2f} of a core: its envs sleep, or other work ran on this machine and these "
        "figures are not this program's"
    ]


def cause(points: list[PointFigures]) -> str:
    """Say in one sentence what holds it back, at the largest number of ranks that have cores of their own."""
    point = points[-1] if points else None
    if point is None or point.efficiency is None:
        return "what holds it back: not known, as no point has both a base case and a core for each rank"
    worst = sorted(((share, name) for name, share in point.losses.items() if share >= 0.001), reverse=True)[:2]
    causes = [f"{PHASES[name]} ({CAUSES[name]}), {100 * share:.1f} % of the time" for share, name in worst]
    ranks = f"{counted(point.num_ranks, 'rank')} (efficiency {point.efficiency.median:.3f})"
    return f"what holds it back at {ranks}: {'; then '.join(causes) or 'nothing'}"
