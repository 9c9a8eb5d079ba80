"""Constants from the samples of a simulation: which jobs they are fitted to, and what they leave to sharing cores."""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from mpi_rollout.bench.model import Calibration, Constants, ExchangePoint, Workload, calibrate, predict
from mpi_rollout.bench.scaling.samples import Job
from mpi_rollout.bench.scaling.sim.file import SimulationFile
from mpi_rollout.bench.scaling.sim.question import Setting
from mpi_rollout.bench.statistics import NoFit


class Fitting:
    """What the jobs of a simulation say of the machine.

    Attributes
    ----------
    done
        Jobs that gave a result, by what they are of.
    held_out
        The largest number of ranks of the checks, where it is larger than any of the probes: it is in no fit.
    result
        Of measured constants; NoFit says why there are none.  None where they were not to be measured.
    is_crowded
        It is of jobs that had more ranks than cores.
    refits
        Constants that are fitted without one of the numbers of ranks: what hangs on a single one is not known.
    sharing_s
        Seconds of a step by which a rank that shares its core keeps all waiting, for each rank of the job.  Only in
        what is compared with jobs of more ranks than cores.
    """

    def __init__(self, file: SimulationFile):
        self._envs, question = file.envs, file.question
        self.done = _by_setting(file)
        largest = max(question.check, default=0)
        is_beyond = len(question.check) > 1 and largest > max(question.probe, default=0)
        self.held_out = largest if is_beyond else None
        self.is_crowded = False
        self.result = self._fit() if file.known is None else None
        self.refits = self._leave_one_out()
        self.sharing_s = self._sharing()

    def fitted(self, is_crowded: bool) -> list[Setting]:
        """Those of one rank and, but for the one that is held out, those with or without a core for each rank.

        Ranks that share cores wait in another way than others: the two kinds are not mixed in one fit.
        """
        found = []
        for setting, jobs in self.done.items():
            is_held_out = setting.num_ranks == self.held_out
            is_of_kind = setting.num_ranks == 1 or jobs[0].oversubscribed == is_crowded
            if is_of_kind and not is_held_out:
                found.append(setting)
        return found

    def _fit(self) -> Calibration | NoFit:
        """To ranks with a core each, if there are enough of them; else to those that share cores."""
        for self.is_crowded in (False, True):
            try:
                return calibrate([_point(self.done[setting]) for setting in self.fitted(self.is_crowded)])
            except NoFit as error:
                reason = error
        return reason

    def _leave_one_out(self) -> list[Constants]:
        if not isinstance(self.result, Calibration):
            return []
        settings, found = self.fitted(self.is_crowded), []
        for ranks in {setting.num_ranks for setting in settings} - {1}:
            points = [_point(self.done[setting]) for setting in settings if setting.num_ranks != ranks]
            with suppress(NoFit):
                found.append(calibrate(points).constants)
        return found

    def env_step_s(self, like: Setting) -> float:
        """What one env's step takes on one rank that nobody disturbs: sleeps take longer than was asked for."""
        alone = [
            job.env_s / job.num_steps / setting.envs_per_rank
            for setting, jobs in self.done.items()
            if setting.num_ranks == 1 and setting.sleep == like.sleep
            for job in jobs
        ]
        return median_of(alone) if alone else like.env_step_s

    def _sharing(self) -> float:
        """Fitted through 0, by least squares of errors relative to the step."""
        above = below = 0.0
        for setting in self.fitted(is_crowded=True):
            jobs = self.done[setting]
            if not jobs[0].oversubscribed:
                continue
            step_s = median_of([job.seconds / job.num_steps for job in jobs])
            in_envs_s = median_of([(job.env_s + job.idle_s) / job.num_steps for job in jobs])
            more_s = in_envs_s - self._slowest(setting)
            above += more_s * setting.num_ranks / step_s**2
            below += (setting.num_ranks / step_s) ** 2
        return max(0.0, above / below) if below else 0.0

    def _slowest(self, setting: Setting) -> float:
        step = predict(Constants(), self.workload(setting), setting.num_ranks)
        return step.env_s + step.waiting_s

    def workload(self, setting: Setting) -> Workload:
        envs = replace(
            self._envs, step_s=self.env_step_s(setting), step_spread_s=setting.env_step_spread_s,
            observation_bytes=setting.observation_bytes,
        )  # fmt: skip
        return envs.workload(setting.envs_per_rank)


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
    policy_s = median_of([job.policy_s / job.num_steps for job in jobs])
    return ExchangePoint(first.num_ranks, first.num_envs, nbytes, exchange_s(jobs), policy_s)


def exchange_s(jobs: list[Job]) -> float:
    """Of one step: all that is neither envs nor policy.  Laying out what nobody stores is the root's work too."""
    return median_of([(job.exchange_s + job.write_s) / job.num_steps for job in jobs])


def median_of(values: list[float]) -> float:
    return float(np.median(values))
