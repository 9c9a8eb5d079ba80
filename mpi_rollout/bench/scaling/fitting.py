"""Constants of the model, from the samples of a simulation or from a study's file.

Both fit what jobs with a core for each rank show.  Where these are too few, as on a laptop, they fit jobs whose ranks
share cores instead.
"""

from contextlib import suppress
from dataclasses import replace

import numpy as np

from mpi_rollout.bench.model import Calibration, Constants, ExchangePoint, Workload, calibrate, exchange_parts, predict
from mpi_rollout.bench.scaling.analysis import Analysis, PointFigures
from mpi_rollout.bench.scaling.report import hosts
from mpi_rollout.bench.scaling.samples import Job
from mpi_rollout.bench.scaling.simulation import Known, Setting, SimulationFile
from mpi_rollout.bench.scaling.study import StudyFile, read_study
from mpi_rollout.bench.statistics import NoFit, median_of, non_negative
from mpi_rollout.bench.workplace import machine_words
from mpi_rollout.errors import DataError


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
        Constants that are fitted without one of the numbers of ranks each: how far they differ shows what hangs on a
        single number of ranks.
    sharing_s
        Seconds of a step that all ranks wait for one that shares its core, for each rank of the job.  It counts only
        in comparisons with jobs of more ranks than cores.
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
        """Return the settings of one rank, and those with or without a core for each rank that are not held out.

        All are in lockstep: what an exchange takes shows where there is one in each step.  Ranks that share cores wait
        in another way than others: the two kinds are not mixed in one fit.
        """
        return [
            setting
            for setting, jobs in self.done.items()
            if setting.num_ranks == 1 or jobs[0].oversubscribed == is_crowded
            if setting.num_ranks != self.held_out and setting.fragment_length == 1
        ]

    def _fit(self) -> Calibration | NoFit:
        """Fit to ranks with a core each, if there are enough of them; else to those that share cores."""
        for self.is_crowded in (False, True):
            try:
                return calibrate([_point(self.done[setting]) for setting in self.fitted(self.is_crowded)])
            except NoFit as error:
                reason = error
        return reason

    def _leave_one_out(self) -> list[Constants]:
        if not isinstance(self.result, Calibration):
            return []
        settings, refits = self.fitted(self.is_crowded), []
        for num_ranks in {setting.num_ranks for setting in settings} - {1}:
            points = [_point(self.done[setting]) for setting in settings if setting.num_ranks != num_ranks]
            with suppress(NoFit):
                refits.append(calibrate(points).constants)
        return refits

    def env_step_s(self, like: Setting) -> float:
        """Return what one env's step takes on one rank that nobody disturbs: sleeps take longer than was asked for."""
        alone = [
            job.env_s / job.num_steps / setting.envs_per_rank
            for setting, jobs in self.done.items()
            if setting.num_ranks == 1 and setting.sleep == like.sleep
            for job in jobs
        ]
        return median_of(alone) if alone else like.env_step_s

    def _sharing(self) -> float:
        """Fit `sharing_s`, a line through 0, by least squares of errors relative to the step."""
        above = below = 0.0
        for setting in self.fitted(is_crowded=True):
            jobs = self.done[setting]
            if not jobs[0].oversubscribed:
                continue
            step_s = median_of(job.seconds / job.num_steps for job in jobs)
            in_envs_s = median_of((job.env_s + job.idle_s) / job.num_steps for job in jobs)
            more_s = in_envs_s - self._slowest(setting)
            above += more_s * setting.num_ranks / step_s**2
            below += (setting.num_ranks / step_s) ** 2
        return max(0.0, above / below) if below else 0.0

    def _slowest(self, setting: Setting) -> float:
        step = predict(Constants(), self.workload(setting), setting.num_ranks)
        return step.env_s + step.waiting_s

    def workload(self, setting: Setting) -> Workload:
        envs = replace(self._envs, step_s=self.env_step_s(setting), step_spread_s=setting.env_step_spread_s)
        return replace(envs, observation_bytes=setting.observation_bytes).workload(setting.envs_per_rank)


def _by_setting(file: SimulationFile) -> dict[Setting, list[Job]]:
    """Return the jobs that gave a result, by what they are of, whatever their repeat."""
    done: dict[Setting, list[Job]] = {}
    for setting, job in file.samples:
        if not job.error:
            done.setdefault(replace(setting, repeat=0), []).append(job)
    return done


def _point(jobs: list[Job]) -> ExchangePoint:
    first = jobs[0]
    policy_s = median_of(job.policy_s / job.num_steps for job in jobs)
    return ExchangePoint(first.num_ranks, first.num_envs, first.exchange_bytes, exchange_s(jobs), policy_s)


def exchange_s(jobs: list[Job]) -> float:
    """Return a step's seconds besides envs and policy.  Laying out rows that nobody stores is the root's work too."""
    return median_of((job.exchange_s + job.write_s) / job.num_steps for job in jobs)


def known_from_study(path: str) -> Known:
    """Fit a study's exchange: root, alpha and beta.

    One study does not tell more parts apart.  In a weak one bytes grow with the ranks, so beta holds what the root
    does for each rank and env.  In a strong one the number of envs is constant: the root's part is taken as theirs.

    Raises
    ------
    DataError
        It is no study, or too small a one.
    """
    file = read_study(path)
    lengths = file.study.fragment_lengths
    analysis = Analysis(file.study, file.samples, "1" if "1" in lengths else lengths[0])
    points = _points_of(analysis, path)
    columns = np.stack([exchange_parts(point.num_ranks, point.num_envs, point.exchange_bytes) for point in points])
    values = np.array([point.exchange_s for point in points])
    root_s, alpha_s, beta = non_negative(columns[:, [0, 3, 4]], values).tolist()
    root = {"root_s": root_s} if file.study.kind == "weak" else {"root_s_per_env": root_s / file.study.size}
    policy_s = _policy_s_per_env(file, points)
    constants = Constants(**root, alpha_s=alpha_s, beta_s_per_byte=beta, policy_s_per_env=policy_s)
    ranks = f"1 to {points[-1].num_ranks} ranks"
    if any(point.oversubscribed for point in points):
        ranks += ", more than cores, so that curves tend to be too low,"
    where = f"{machine_words(hosts(file), file.facts)}, {file.origin['started'][:10]}"
    return Known(constants, f"fitted to the {file.study.kind} study {path}, {ranks} on {where}")


def _points_of(analysis: Analysis, path: str) -> list[PointFigures]:
    """Return the points with a core for each rank, if they carry a fit; else all."""
    for points in (analysis.fit_points, analysis.points):
        try:
            analysis.fit_exchange(points)
            return points
        except NoFit as error:
            reason = error
    raise DataError(f"--constants {path}: its exchange has no fit: {reason}; take a study with more points")


def _policy_s_per_env(file: StudyFile, points: list[PointFigures]) -> float:
    ranks = {point.num_ranks for point in points}
    jobs = [job for job in file.samples.jobs if not job.error and job.fragment_length == 1 and job.num_ranks in ranks]
    return median_of(job.policy_s / job.num_steps / job.num_envs for job in jobs)
