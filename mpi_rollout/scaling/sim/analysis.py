"""What follows from a simulation's question and samples: constants, curves, and how far measurements are from them."""

from dataclasses import dataclass, replace

import numpy as np

from mpi_rollout.scaling.model import (
    Calibration,
    Constants,
    ExchangePoint,
    Step,
    Workload,
    calibrate,
    ceiling,
    predict,
    saturation,
)  # fmt: skip
from mpi_rollout.scaling.samples import Job
from mpi_rollout.scaling.sim.file import SimulationFile
from mpi_rollout.scaling.sim.question import Setting
from mpi_rollout.scaling.statistics import Interval, NoFit, median_interval

ON_ROOT = 0  # The fragment length of curves with the policy on the root.


@dataclass(frozen=True)
class CurveRow:
    """A computed point.  `fragment_length` is 0 where the policy is on the root; seconds are of one step."""

    fragment_length: int
    num_ranks: int
    num_envs: int
    env_s: float
    waiting_s: float
    exchange_s: float
    policy_s: float
    efficiency: float
    env_steps_per_s: float


@dataclass(frozen=True)
class Curve:
    """Computed points of one way to work, ascending, and where it ends.

    Parameters
    ----------
    saturation
        The least number of ranks where exchange and policy take as long as the envs; None if there is none.
    ceiling
        Env steps per second that no number of ranks exceeds.
    """

    fragment_length: int
    rows: list[CurveRow]
    saturation: int | None
    ceiling: float

    @property
    def label(self) -> str:
        if self.fragment_length == ON_ROOT:
            return "policy on the root (computed)"
        return f"policy on the workers, fragments of {self.fragment_length} (computed)"


@dataclass(frozen=True)
class Check:
    """Measured beside computed, in seconds of one step: all of it, and what exchange and the root took of it.

    Parameters
    ----------
    is_held_out
        The constants were fitted without this number of ranks.
    error
        Of the computed step, relative.
    """

    num_ranks: int
    num_jobs: int
    is_held_out: bool
    oversubscribed: bool
    measured_s: float
    low_s: float
    high_s: float
    coverage: float
    computed_s: float
    error: float
    measured_exchange_s: float
    computed_exchange_s: float


class SimulationAnalysis:
    """The figures of a simulation, complete or not.

    Attributes
    ----------
    constants
        None where they cannot be had; then there are no curves.
    fit
        Of measured constants; NoFit says why there are none.
    is_crowded
        It is of jobs that had more ranks than cores.
    sharing_s
        Seconds of a step by which a rank that shares its core keeps all waiting, for each rank of the job.  Only in
        what is compared with jobs of more ranks than cores.
    """

    def __init__(self, file: SimulationFile):
        self._file, self._question = file, file.question
        self._done = _by_setting(file)
        largest = max(self._question.check, default=None)
        self._held_out = largest if len(self._question.check) > 1 else None
        self.is_crowded = False
        self.fit = self._fit() if file.known is None else None
        if file.known is not None:
            self.constants: Constants | None = file.known.constants
        else:
            self.constants = self.fit.constants if isinstance(self.fit, Calibration) else None
        self._work = file.envs.workload(self._question.envs_per_rank)
        self.sharing_s = self._sharing()
        self.curves = [] if self.constants is None else [self._curve(each) for each in self._lengths]
        self.checks = [] if self.constants is None else self._checks()

    @property
    def _lengths(self) -> tuple[int, ...]:
        return (ON_ROOT, *self._question.fragment_lengths)

    @property
    def origin(self) -> str:
        """In words, where the constants come from."""
        if self._file.known is not None:
            return self._file.known.origin
        if not isinstance(self.fit, Calibration):
            return f"none: {self.fit}"
        jobs = [job for setting in self._fitted(self.is_crowded) for job in self._done[setting]]
        most = max(job.num_ranks for job in jobs)
        crowded = ", more than cores" * self.is_crowded
        return (
            f"measured here by {len(jobs)} jobs of up to {most} ranks{crowded}, whose envs sleep; they fit within "
            f"{100 * self.fit.worst_error:.0f} %"
        )

    def _fitted(self, is_crowded: bool) -> list[Setting]:
        """Those of one rank and, but for the one that is held out, those with or without a core for each rank.

        Ranks that share cores wait in another way than others: the two kinds are not mixed in one fit.
        """
        found = []
        for setting, jobs in self._done.items():
            is_held_out = setting.is_check and setting.num_ranks == self._held_out
            is_of_kind = setting.num_ranks == 1 or jobs[0].oversubscribed == is_crowded
            if is_of_kind and not is_held_out:
                found.append(setting)
        return found

    def _fit(self) -> Calibration | NoFit:
        """To ranks with a core each, if there are enough of them; else to those that share cores."""
        for self.is_crowded in (False, True):
            try:
                return calibrate([_point(self._done[setting]) for setting in self._fitted(self.is_crowded)])
            except NoFit as error:
                reason = error
        return reason

    def _env_step_s(self, like: Setting) -> float:
        """What one env's step takes on one rank that nobody disturbs: sleeps take longer than was asked for."""
        alone = [
            job.env_s / job.num_steps / setting.envs_per_rank
            for setting, jobs in self._done.items()
            if setting.num_ranks == 1 and setting.sleep == like.sleep
            for job in jobs
        ]
        return _median(alone) if alone else like.env_step_s

    def _sharing(self) -> float:
        """Fitted through 0, by least squares of errors relative to the step."""
        above = below = 0.0
        for setting in self._fitted(is_crowded=True):
            jobs = self._done[setting]
            if not jobs[0].oversubscribed:
                continue
            step_s = _median([job.seconds / job.num_steps for job in jobs])
            in_envs_s = _median([(job.env_s + job.idle_s) / job.num_steps for job in jobs])
            more_s = in_envs_s - self._slowest(setting)
            above += more_s * setting.num_ranks / step_s**2
            below += (setting.num_ranks / step_s) ** 2
        return max(0.0, above / below) if below else 0.0

    def _slowest(self, setting: Setting) -> float:
        step = predict(Constants(), self._workload(setting), setting.num_ranks)
        return step.env_s + step.waiting_s

    def _workload(self, setting: Setting) -> Workload:
        envs = replace(
            self._file.envs, step_s=self._env_step_s(setting), step_spread_s=setting.env_step_spread_s,
            observation_bytes=setting.observation_bytes,
        )  # fmt: skip
        return envs.workload(setting.envs_per_rank)

    def _curve(self, length: int) -> Curve:
        work, fragment = self._work, length or None
        rows = [_row(length, ranks, work.envs_per_rank, predict(self.constants, work, ranks, fragment))
                for ranks in self._question.num_ranks]  # fmt: skip
        return Curve(length, rows, saturation(self.constants, work, fragment), ceiling(self.constants, work, fragment))

    def _checks(self) -> list[Check]:
        found = [self._check(setting, jobs) for setting, jobs in self._done.items() if setting.is_check]
        return sorted(found, key=lambda check: check.num_ranks)

    def _check(self, setting: Setting, jobs: list[Job]) -> Check:
        crowded = jobs[0].oversubscribed
        step = predict(self.constants, self._workload(setting), setting.num_ranks)
        computed_s = step.seconds + crowded * self.sharing_s * setting.num_ranks
        measured = median_interval([job.seconds / job.num_steps for job in jobs])
        return Check(
            num_ranks=setting.num_ranks,
            num_jobs=len(jobs),
            is_held_out=setting.num_ranks == self._held_out,
            oversubscribed=crowded,
            measured_s=measured.median,
            low_s=measured.low,
            high_s=measured.high,
            coverage=measured.coverage,
            computed_s=computed_s,
            error=computed_s / measured.median - 1,
            measured_exchange_s=_exchange_s(jobs),
            computed_exchange_s=step.exchange_s,
        )

    def efficiency(self, check: Check) -> Interval:
        """Measured: the time that the envs need by themselves, over that of a step."""
        setting = next(each for each in self._done if each.is_check and each.num_ranks == check.num_ranks)
        env_s = setting.envs_per_rank * self._env_step_s(setting)
        return Interval(env_s / check.measured_s, env_s / check.high_s, env_s / check.low_s, check.coverage)


def _by_setting(file: SimulationFile) -> dict[Setting, list[Job]]:
    """Jobs that gave a result, by what they are of, whatever their repeat."""
    found: dict[Setting, list[Job]] = {}
    for setting, job in file.samples:
        if not job.error:
            found.setdefault(replace(setting, repeat=0), []).append(job)
    return found


def _point(jobs: list[Job]) -> ExchangePoint:
    first = jobs[0]
    nbytes = first.order_bytes + (first.num_ranks - 1) * first.slot_bytes if first.num_ranks > 1 else 0.0
    policy_s = _median([job.policy_s / job.num_steps for job in jobs])
    return ExchangePoint(first.num_ranks, first.num_envs, nbytes, _exchange_s(jobs), policy_s)


def _exchange_s(jobs: list[Job]) -> float:
    """Of one step: all that is neither envs nor policy.  Laying out what nobody stores is the root's work too."""
    return _median([(job.exchange_s + job.write_s) / job.num_steps for job in jobs])


def _median(values: list[float]) -> float:
    return float(np.median(values))


def _row(length: int, num_ranks: int, envs_per_rank: int, step: Step) -> CurveRow:
    num_envs = num_ranks * envs_per_rank
    parts = step.env_s, step.waiting_s, step.exchange_s, step.policy_s
    return CurveRow(length, num_ranks, num_envs, *parts, step.efficiency, num_envs / step.seconds)
