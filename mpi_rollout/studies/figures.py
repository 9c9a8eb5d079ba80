"""From the samples of a study to its figures: medians with intervals, speed-ups against the base case, fits.

The base case is absolute: what a bare loop does on one rank, measured by the study's own jobs of one rank, one
sample a job.  A job of more ranks is compared with that, not with this program on one rank.
"""

from functools import cached_property
from statistics import median

import numpy as np

from mpi_rollout.config import AUTO
from mpi_rollout.studies import statistics
from mpi_rollout.studies.statistics import Fit, Interval, NoFit, median_interval
from mpi_rollout.studies.study import PHASES, Sample
from mpi_rollout.studies.study_file import StudyFile


class PointFigures:
    """What the jobs of one number of ranks show, as medians and shares of the run time by `PHASES`.

    `limit` is env steps per second of bare loops on all of these ranks at once.  `speed_up` and `efficiency` are None
    without a base case, `losses` empty: the shares that take the efficiency from 1 to what it is, all phases but `env`,
    and `env` as far as an env step takes longer than in the base case.  `load_balance` and `communication_efficiency`
    are the POP project's (pop-coe.eu): the ranks' mean time in envs over the busiest rank's, and that over the run's.
    `cpu_share` is of the rank that had the least of a core.
    """

    def __init__(self, jobs: list[Sample], base: Interval | None):
        self.num_ranks, self.num_envs, self.num_jobs = jobs[0].point.num_ranks, jobs[0].num_envs, len(jobs)
        self.oversubscribed, self.slept = any(job.oversubscribed for job in jobs), any(job.slept for job in jobs)
        self.rate = median_interval([job.env_steps_per_s for job in jobs])
        self.limit = median_interval([_bare(job) for job in jobs])
        self.of_limit = median(job.env_steps_per_s / _bare(job) for job in jobs)
        self.speed_up = statistics.ratio(self.rate, base) if base else None
        self.efficiency = self.speed_up.scaled(1 / self.num_ranks) if self.speed_up else None
        useful_s = [np.array([rank.env_s for rank in job.ranks]) for job in jobs]
        self.load_balance = median(each.mean() / each.max() for each in useful_s)
        busiest = zip(useful_s, jobs, strict=True)
        self.communication_efficiency = median(each.max() / job.seconds for each, job in busiest)
        self.cpu_share = median(min(rank.cpu_share for rank in job.ranks) for job in jobs)
        self.shares = {name: median(getattr(job, f"{name}_s") / job.seconds for job in jobs) for name in PHASES}
        self.losses: dict[str, float] = {}
        if base:
            env_step_s = median(job.env_s * self.num_ranks / job.env_steps for job in jobs)
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
        bare = [_bare(sample) for sample in done if sample.point.num_ranks == 1]
        self.base, self.num_base_jobs = median_interval(bare) if bare else None, len(bare)
        done = [sample for sample in done if sample.point.length == self.asked_length]
        self.fragment_length = max((sample.fragment_length for sample in done), default=1)
        by_ranks = [[sample for sample in done if sample.point.num_ranks == ranks] for ranks in study.num_ranks]
        self.points = [PointFigures(samples, self.base) for samples in by_ranks if samples]

    @property
    def label(self) -> str:
        """In words, how many steps there are between two exchanges."""
        if self.fragment_length == 1:
            return "lockstep" + " (auto)" * (self.asked_length == AUTO)
        return f"fragments of {self.fragment_length}" + " at most (auto)" * (self.asked_length == AUTO)

    @property
    def fit_points(self) -> list[PointFigures]:
        """The points without those of more ranks than cores, which show how the scheduler works."""
        return [point for point in self.points if not point.oversubscribed]

    @property
    def law(self) -> str:
        """Whose law is fitted."""
        return "Amdahl" if self.study.kind == "strong" else "Gustafson"

    @cached_property
    def fit(self) -> Fit | NoFit:
        """The law of this kind of study, or why there is no fit."""
        if self.base is None:
            return NoFit("no base case: no job of one rank gave a result")
        try:
            law = statistics.amdahl if self.study.kind == "strong" else statistics.gustafson
            return law({point.num_ranks: point.speed_up.median for point in self.fit_points if point.speed_up})
        except NoFit as error:
            return error


def analyses(file: StudyFile) -> list[Analysis]:
    """Return the figures for each length of fragments."""
    return [Analysis(file, length) for length in file.study.lengths]


def _bare(job: Sample) -> float:
    return median(bare for _, bare in job.limit)
