"""From the samples of a study to its figures: medians with intervals, speed-ups against the base case, fits.

The base case is absolute: what a bare loop does on one rank, measured by the study's own jobs of one rank, one
sample a job.  A job of more ranks is compared with that, not with this program on one rank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mpi_rollout.config import AUTO
from mpi_rollout.studies import statistics
from mpi_rollout.studies.samples import Sample
from mpi_rollout.studies.statistics import Fit, Interval, NoFit, median_interval, median_of
from mpi_rollout.studies.study import StudyFile

PHASES = ("env", "idle", "exchange", "policy", "write")


@dataclass(frozen=True)
class PointFigures:
    """What the jobs of one number of ranks show.

    Parameters
    ----------
    limit
        Env steps per second of bare loops on all of these ranks at once.
    speed_up, efficiency, losses
        None, or empty, without a base case.
    cpu_share, slept
        Of the rank that had the least of a core; whether ranks slept while they waited, in some job.
    shares, losses
        Shares of the run time by `PHASES`, medians over jobs; and those that take the efficiency from 1 to what it is:
        all phases but `env`, and `env` as far as an env step takes longer than in the base case.
    """

    num_ranks: int
    num_envs: int
    num_jobs: int
    oversubscribed: bool
    rate: Interval
    limit: Interval
    of_limit: float
    speed_up: Interval | None
    efficiency: Interval | None
    load_balance: float
    communication_efficiency: float
    karp_flatt: float
    cpu_share: float
    slept: bool
    shares: dict[str, float]
    losses: dict[str, float]
    exchange_s: float
    exchange_bytes: float


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
        self.points = [self._point(samples) for samples in by_ranks if samples]

    def _point(self, jobs: list[Sample]) -> PointFigures:
        num_ranks = jobs[0].point.num_ranks
        rate = median_interval([job.env_steps_per_s for job in jobs])
        speed_up = statistics.ratio(rate, self.base) if self.base else None
        shares = {name: median_of(getattr(job, f"{name}_s") / job.seconds for job in jobs) for name in PHASES}
        env_step_s = median_of(job.env_s * num_ranks / job.env_steps for job in jobs)
        useful_s, seconds = [[rank.env_s for rank in job.ranks] for job in jobs], [job.seconds for job in jobs]
        return PointFigures(
            num_ranks=num_ranks,
            num_envs=jobs[0].num_envs,
            num_jobs=len(jobs),
            oversubscribed=any(job.oversubscribed for job in jobs),
            rate=rate,
            limit=median_interval([_bare(job) for job in jobs]),
            of_limit=median_of(job.env_steps_per_s / _bare(job) for job in jobs),
            speed_up=speed_up,
            efficiency=speed_up.scaled(1 / num_ranks) if speed_up else None,
            load_balance=median_of(map(statistics.load_balance, useful_s)),
            communication_efficiency=median_of(map(statistics.communication_efficiency, useful_s, seconds)),
            karp_flatt=statistics.karp_flatt(speed_up.median, num_ranks) if speed_up else np.nan,
            cpu_share=median_of(min(rank.cpu_share for rank in job.ranks) for job in jobs),
            slept=any(job.slept for job in jobs),
            shares=shares,
            losses=self._losses(shares, env_step_s),
            exchange_s=median_of(job.exchange_s / job.num_steps for job in jobs),
            exchange_bytes=jobs[0].exchange_bytes,
        )

    def _losses(self, shares: dict[str, float], env_step_s: float) -> dict[str, float]:
        if self.base is None:
            return {}
        return shares | {"env": shares["env"] * (1 - 1 / self.base.median / env_step_s)}

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

    @cached_property
    def fits(self) -> dict[str, Fit | NoFit]:
        """By name: the law of this kind of study, and `exchange`."""
        laws = {"strong": ("Amdahl", statistics.amdahl), "weak": ("Gustafson", statistics.gustafson)}
        name, law = laws[self.study.kind]
        exchange = _attempt(lambda: self.fit_exchange(self.fit_points))
        return {name: _attempt(lambda: law(self._speed_ups())), "exchange": exchange}

    def _speed_ups(self) -> dict[int, float]:
        if self.base is None:
            raise NoFit("no base case: no job of one rank gave a result")
        return {point.num_ranks: point.speed_up.median for point in self.fit_points if point.speed_up}

    def fit_exchange(self, points: list[PointFigures]) -> Fit:
        """Fit what an exchange takes; NoFit if these points do not show it."""
        if self.study.run["batch_size"] is not None or self.study.run["num_groups"] != 1 or self.fragment_length > 1:
            raise NoFit("only lockstep (--fragment-length 1) shows what one exchange takes")
        seconds = {point.num_ranks: point.exchange_s for point in points}
        return statistics.alpha_beta(seconds, {point.num_ranks: point.exchange_bytes for point in points})


def analyses(file: StudyFile) -> list[Analysis]:
    """Return the figures for each length of fragments."""
    return [Analysis(file, length) for length in file.study.lengths]


def _bare(job: Sample) -> float:
    return median_of(bare for _, bare in job.limit)


def _attempt(make: Callable[[], Fit]) -> Fit | NoFit:
    try:
        return make()
    except NoFit as error:
        return error
