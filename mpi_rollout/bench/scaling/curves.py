"""What follows from a simulation's question and samples: constants, curves, and how far measurements are from them."""

import math
from dataclasses import dataclass

from mpi_rollout.bench.model import LOCKSTEP, Calibration, Constants, Way, ceiling, predict, saturation
from mpi_rollout.bench.scaling.fitting import Fitting, exchange_s
from mpi_rollout.bench.scaling.samples import Job
from mpi_rollout.bench.scaling.simulation import Setting, SimulationFile
from mpi_rollout.bench.statistics import Interval, median_interval


@dataclass(frozen=True)
class CurveRow:
    """A computed point; seconds are of one step.

    Parameters
    ----------
    fragment_length
        1 in lockstep.
    efficiency_low, efficiency_high
        With constants fitted without any one number of ranks; without a fit as `efficiency`.
    """

    fragment_length: int
    num_ranks: int
    num_envs: int
    env_s: float
    waiting_s: float
    exchange_s: float
    policy_s: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    env_steps_per_s: float


@dataclass(frozen=True)
class Curve:
    """Computed points of one way to work, ascending, and where it ends.

    Parameters
    ----------
    saturation
        The least number of ranks where exchange and policy take as long as the envs; None if there is none.
    saturations
        The same with constants fitted without any one number of ranks, ascending; empty without a fit.
    ceiling
        Env steps per second that no number of ranks exceeds.
    """

    way: Way
    rows: list[CurveRow]
    saturation: int | None
    saturations: list[float]
    ceiling: float

    @property
    def label(self) -> str:
        if self.way == LOCKSTEP:
            return "lockstep (computed)"
        where = "workers" if self.way.on_workers else "root"
        return f"fragments of {self.way.fragment_length}, actions from the {where} (computed)"


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

    fragment_length: int
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
    """

    def __init__(self, file: SimulationFile):
        self._file, self._question, self.fitting = file, file.question, Fitting(file)
        self.constants: Constants | None = None
        if file.known is not None:
            self.constants = file.known.constants
        elif isinstance(self.fitting.result, Calibration):
            self.constants = self.fitting.result.constants
        self._work = file.envs.workload(self._question.envs_per_rank)
        self.curves: list[Curve] = []
        self.checks: list[Check] = []
        if self.constants is not None:
            self.curves = [self._curve(self.constants, way) for way in self._question.ways]
            self.checks = self._checks(self.constants)

    @property
    def origin(self) -> str:
        """In words, where the constants come from."""
        if self._file.known is not None:
            return self._file.known.origin
        fitting = self.fitting
        if not isinstance(fitting.result, Calibration):
            return f"none: {fitting.result}"
        jobs = [job for setting in fitting.fitted(fitting.is_crowded) for job in fitting.done[setting]]
        most = max(job.num_ranks for job in jobs)
        crowded = ", more than cores" * fitting.is_crowded
        return (
            f"measured here by {len(jobs)} jobs of up to {most} ranks{crowded}, whose envs sleep; they fit within "
            f"{100 * fitting.result.worst_error:.0f} %"
        )

    def _curve(self, constants: Constants, way: Way) -> Curve:
        work = self._work
        others = [saturation(refit, work, way) for refit in self.fitting.refits]
        return Curve(
            way=way,
            rows=[self._row(constants, way, num_ranks) for num_ranks in self._question.num_ranks],
            saturation=saturation(constants, work, way),
            saturations=sorted(math.inf if num_ranks is None else num_ranks for num_ranks in others),
            ceiling=ceiling(constants, work, way),
        )

    def _row(self, constants: Constants, way: Way, num_ranks: int) -> CurveRow:
        step = predict(constants, self._work, num_ranks, way)
        others = [predict(refit, self._work, num_ranks, way).efficiency for refit in self.fitting.refits]
        num_envs = num_ranks * self._work.envs_per_rank
        parts = step.env_s, step.waiting_s, step.exchange_s, step.policy_s
        span = min(others, default=step.efficiency), max(others, default=step.efficiency)
        rate = num_envs / step.seconds
        return CurveRow(way.fragment_length, num_ranks, num_envs, *parts, step.efficiency, *span, rate)

    def _checks(self, constants: Constants) -> list[Check]:
        done = self.fitting.done.items()
        checks = [self._check(constants, setting, jobs) for setting, jobs in done if setting.is_check]
        return sorted(checks, key=lambda check: (check.fragment_length, check.num_ranks))

    def _check(self, constants: Constants, setting: Setting, jobs: list[Job]) -> Check:
        crowded = jobs[0].oversubscribed
        length = setting.fragment_length
        way = self._question.way_of(length)
        step = predict(constants, self.fitting.workload(setting), setting.num_ranks, way)
        computed_s = step.seconds + crowded * self.fitting.sharing_s * setting.num_ranks / length
        measured = median_interval([job.seconds / job.num_steps for job in jobs])
        return Check(
            fragment_length=length,
            num_ranks=setting.num_ranks,
            num_jobs=len(jobs),
            is_held_out=setting.num_ranks == self.fitting.held_out,
            oversubscribed=crowded,
            measured_s=measured.median,
            low_s=measured.low,
            high_s=measured.high,
            coverage=measured.coverage,
            computed_s=computed_s,
            error=computed_s / measured.median - 1,
            measured_exchange_s=exchange_s(jobs),
            computed_exchange_s=step.exchange_s,
        )

    def checks_of(self, curve: Curve) -> list[Check]:
        return [check for check in self.checks if check.fragment_length == curve.way.fragment_length]

    def efficiency(self, check: Check) -> Interval:
        """Return the measured one: the time that the envs need by themselves, over that of a step."""
        checked = [setting for setting in self.fitting.done if setting.is_check]
        there = check.num_ranks, check.fragment_length
        setting = next(setting for setting in checked if (setting.num_ranks, setting.fragment_length) == there)
        env_s = setting.envs_per_rank * self.fitting.env_step_s(setting)
        return Interval(env_s / check.measured_s, env_s / check.high_s, env_s / check.low_s, check.coverage)
