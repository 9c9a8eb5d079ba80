"""What the model is fitted to and compared with: a study of `mpi_rollout scaling`, or one of sleeping envs made here.

A study made here has two kinds of points.  Those that check the model are of the envs that were asked for.  Those that
measure its constants have options of their own: small envs and large observations, and many envs on one rank, so that
ranks, envs and bytes can be told apart.
"""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from fits import Calibration, ExchangePoint, NoFit, calibrate, fit_ready, fit_writes
from network import network_of
from step_model import Constants, Way, Workload, predict

from mpi_rollout.studies.jobs import JobOptions
from mpi_rollout.studies.statistics import Interval, median_interval
from mpi_rollout.studies.study import Point, Sample, Study
from mpi_rollout.studies.study_file import StudyFile

SLEEPING = str(Path(__file__).resolve().parents[1] / "sleeping.py") + ":SleepingEnv"
PROBE_ENVS, MANY_ENVS = 4, (16, 64)  # Envs of a rank; times as many on one rank, for what the root does for each.
SMALL_BYTES, LARGE_BYTES = 8, 65_536  # Of observations, to tell bytes from envs.
SHORTEST_S, LONGEST_S = 0.001, 0.02  # Of a probe's env step: shorter sleeps are not exact, longer ones take long.
Options = tuple[tuple[str, object], ...]
JOB_S, LEAST_STEPS, MOST_STEPS = 2.0, 25, 2000


def make_study(
    step_s: float, spread_s: float, nbytes: int, size: int, probe: Sequence[int], check: Sequence[int],
    lengths: Sequence[int], jobs: JobOptions,
) -> Study:  # fmt: skip
    """Return the study that measures the constants by `probe` and checks the model by `check`, numbers of ranks."""
    kwargs = {"step_s": step_s, "spread_s": spread_s, "observation_bytes": nbytes}
    points = []
    for ranks in check:
        ways = [(length, ()) for length in sorted({1, *lengths})]
        ways.append((max(lengths), (("storage", "sharded"), ("trajectories", True))))
        if ranks > 1:
            ways.append((1, _ready(ranks, size)))
        for length, more in ways:
            steps = ("num_steps", _num_steps(size * step_s, length))
            points.append(Point(ranks, (("fragment_length", str(length)), steps, *more)))
    probe_s = min(max(step_s, SHORTEST_S), LONGEST_S)
    points += [_probe(ranks, PROBE_ENVS, probe_s, SMALL_BYTES) for ranks in probe]
    # A step of more envs takes as long: so caches are as cold after it.
    points += [_probe(1, times * PROBE_ENVS, probe_s / times, SMALL_BYTES) for times in MANY_ENVS if probe]
    points += [_probe(ranks, PROBE_ENVS, probe_s, LARGE_BYTES) for ranks in probe[-2:]]
    # Short steps: ranks queue.
    served = [ranks for ranks in probe[-3:] if ranks > 1]
    points += [_probe(ranks, PROBE_ENVS, SHORTEST_S, SMALL_BYTES, _ready(ranks, PROBE_ENVS)) for ranks in served]
    run = {"env": None, "env_factory": SLEEPING, "env_kwargs": kwargs, "policy": "random", "seed": 0}
    run |= {"trajectories": False, "vectorization_mode": "sync", "batch_size": None, "num_groups": 1, "limit_s": 0.02}
    return Study("weak", tuple(points), size, run | {"policy_on": "auto"}, jobs)


def _probe(ranks: int, envs: int, step_s: float, nbytes: int, more: Options = ()) -> Point:
    kwargs = json.dumps({"step_s": step_s, "observation_bytes": nbytes})
    num_steps = ("num_steps", _num_steps(envs * step_s, 1))
    more = more or (("num_envs", ranks * envs),)
    return Point(ranks, (("env_kwargs", kwargs), ("fragment_length", "1"), num_steps, *more))


def _ready(ranks: int, envs: int) -> Options:
    """Return the options of first ready.  A root that steps envs would serve nobody meanwhile, so it has none."""
    return ("batch_size", 1), ("num_envs", (ranks - 1) * envs), ("root_envs", 0)


def _num_steps(step_s: float, length: int) -> int:
    wanted = min(max(round(JOB_S / step_s), LEAST_STEPS), MOST_STEPS)
    return max(4, -(-wanted // length)) * length


@dataclass(frozen=True)
class Check:
    """Measured beside computed, in seconds of one step; without what is held out the constants were fitted."""

    way: Way
    num_ranks: int
    num_jobs: int
    is_held_out: bool
    oversubscribed: bool
    measured: Interval
    computed_s: float
    efficiency: Interval

    @property
    def error(self) -> float:
        return self.computed_s / self.measured.median - 1


class Fitting:
    """What the jobs of a study say of the machine, and how far the model is from them; NoFit if they do not show it.

    What has more ranks than all probes is in no fit, if there are probes.  `is_crowded` says that the constants are of
    jobs that had more ranks than cores.  How far `refits` differ, each without one number of ranks, shows what hangs on
    a single one.  `sharing_s` are seconds of a step that all ranks wait for one that shares its core, for each rank of
    the job, in comparisons with jobs of more ranks than cores.
    """

    def __init__(self, file: StudyFile):
        self.study, self._done = file.study, _by_point(file.samples)
        self.network = network_of(file.study.jobs.launcher)
        self.most_fitted = max((point.num_ranks for point in self._done if not _is_check(point)), default=math.inf)
        self.is_crowded, self.result = self._fit()
        self.result = replace(self.result, constants=self._with_other_ways(self.result.constants))
        self.refits = self._leave_one_out()
        self.sharing_s = self._sharing()
        self.work = self._workload(next(p for p in self._done if _is_check(p) and p.num_ranks == 1 and _is_lockstep(p)))
        self.checks = self._checks()

    def beside(self, file: StudyFile) -> list[Check]:
        """Compare this model with a study of the same machine that was in no fit, whose network is known."""
        other = copy(self)
        other.study, other._done, other.most_fitted = file.study, _by_point(file.samples), 0
        other.network = network_of(file.study.jobs.launcher)
        return other._checks()

    def _checks(self) -> list[Check]:
        checks = map(self._check, filter(_is_check, self._done))
        return sorted(checks, key=lambda check: (check.way.kind, check.num_ranks))

    def fitted(self, is_crowded: bool) -> list[Point]:
        """Return the points of one rank, and those with or without a core for each rank that are not held out.

        All are in lockstep: what an exchange takes shows where there is one in each step.  Ranks that share cores wait
        in another way than others: the two kinds are not mixed in one fit.
        """
        return [
            point
            for point, jobs in self._done.items()
            if point.num_ranks == 1 or jobs[0].oversubscribed == is_crowded
            if point.num_ranks <= self.most_fitted and _is_lockstep(point)
        ]

    def _fit(self) -> tuple[bool, Calibration]:
        """Fit to ranks with a core each, if there are enough of them; else to those that share cores."""
        with suppress(NoFit):
            return False, self._calibrated(self.fitted(False))
        return True, self._calibrated(self.fitted(True))

    def _calibrated(self, points: Sequence[Point]) -> Calibration:
        return calibrate([self._exchange_point(point) for point in points])

    def _exchange_point(self, point: Point) -> ExchangePoint:
        """Return what an exchange took.  Laying out rows that nobody stores is the root's work too."""
        jobs, num_others = self._done[point], point.num_ranks - 1
        seconds = median((job.exchange_s + job.write_s) / job.num_steps for job in jobs)
        policy_s = median(job.policy_s / job.num_steps for job in jobs)
        # The order is the tree's first message; a slot comes from each other rank.
        nbytes = jobs[0].order_bytes + num_others * jobs[0].slot_bytes if num_others else 0.0
        return ExchangePoint(point.num_ranks, jobs[0].num_envs, nbytes, seconds, policy_s)

    def _with_other_ways(self, constants: Constants) -> Constants:
        """Add what exchanges do not show: the costs of a row in a file, and of serving a rank by itself."""
        ready, written = [], []
        for point, jobs in self._done.items():
            if point.num_ranks > self.most_fitted:
                continue
            way, work = self._way(point), self._workload(point)
            if way.is_ready:
                seconds = median(job.seconds / job.num_steps for job in jobs)
                ready.append((point.num_ranks - 1, work.envs_per_rank * work.env_step_s, seconds))
            if way.ranks_per_shard:
                num_rows = way.ranks_per_shard * work.envs_per_rank * jobs[0].num_steps
                written.append((num_rows, median(job.write_s for job in jobs)))
        serve_s, away_s = fit_ready(ready) if len(ready) > 1 else (0.0, 0.0)
        commit_s, per_env_s = fit_writes(written) if len({*dict(written)}) > 1 else (0.0, 0.0)
        return replace(constants, serve_s=serve_s, away_s=away_s, commit_s=commit_s, write_s_per_env=per_env_s)

    def _leave_one_out(self) -> list[Constants]:
        points, refits = self.fitted(self.is_crowded), []
        for num_ranks in {point.num_ranks for point in points} - {1}:
            with suppress(NoFit):
                refit = self._calibrated([point for point in points if point.num_ranks != num_ranks]).constants
                refits.append(self._with_other_ways(refit))
        return refits

    def _sharing(self) -> float:
        """Fit `sharing_s`, a line through 0, by least squares of errors relative to the step."""
        above = below = 0.0
        for point in self.fitted(is_crowded=True):
            jobs = self._done[point]
            if jobs[0].oversubscribed:
                step_s = median(job.seconds / job.num_steps for job in jobs)
                in_envs_s = median((job.env_s + job.idle_s) / job.num_steps for job in jobs)
                step = predict(Constants(), self._workload(point), point.num_ranks)
                above += (in_envs_s - step.env_s - step.waiting_s) * point.num_ranks / step_s**2
                below += (point.num_ranks / step_s) ** 2
        return max(0.0, above / below) if below else 0.0

    def _workload(self, point: Point) -> Workload:
        """Return the envs of a point; a step takes as long as on one rank, since sleeps take longer than asked for."""
        lockstep = replace(point, options=tuple({**dict(point.options), "fragment_length": "1"}.items()))
        same = [jobs[0] for other, jobs in self._done.items() if _kind(other) == _kind(lockstep)]
        first = (same or self._done[point])[0]
        envs = first.num_envs // self._way(point).num_stepping(point.num_ranks)
        alone = [
            job.env_s / job.num_steps / job.num_envs
            for other, jobs in self._done.items()
            for job in jobs
            if other.num_ranks == 1 and self._sleep(other, job) == self._sleep(point, first)
        ]
        slept_s, spread_s, _ = self._sleep(point, first)
        step_s = median(alone) if alone else slept_s
        slot_bytes = first.slot_bytes / first.fragment_length
        return Workload(envs, step_s, spread_s, first.order_bytes / first.num_envs, slot_bytes)

    def _sleep(self, point: Point, job: Sample) -> tuple[float, float, int]:
        """Return what decides how one rank sleeps: mean and spread of an env's step, and the envs of a rank."""
        stored = dict(point.options).get("env_kwargs")
        kwargs = json.loads(str(stored)) if stored else self.study.run["env_kwargs"]
        num_stepping = self._way(point).num_stepping(point.num_ranks)
        return kwargs.get("step_s", 0.0), kwargs.get("spread_s", 0.0), job.num_envs // num_stepping

    def _way(self, point: Point) -> Way:
        options, job = dict(point.options), self._done[point][0]
        if "batch_size" in options:
            return Way(is_ready=True)
        ranks_per_shard = -(-point.num_ranks // self.network.num_nodes) if "storage" in options else 0
        return Way(job.fragment_length, job.inference == "workers" and job.fragment_length > 1, ranks_per_shard)

    def _check(self, point: Point) -> Check:
        jobs = self._done[point]
        way, work, crowded = self._way(point), self._workload(point), jobs[0].oversubscribed
        measured = median_interval([job.seconds / job.num_steps for job in jobs])
        computed_s = predict(self.result.constants, work, point.num_ranks, way, self.network).seconds
        if way.ranks_per_shard:  # A run that is shorter than the time between two commits has one at its end.
            computed_s += self.result.constants.commit_s / jobs[0].num_steps
        if crowded and not way.is_ready:  # There, waiting for a core is in the constants.
            computed_s += self.sharing_s * point.num_ranks / way.fragment_length
        env_s = work.envs_per_rank * work.env_step_s
        span = (env_s / seconds for seconds in (measured.median, measured.high, measured.low))
        efficiency = Interval(*span, measured.coverage)
        held_out = point.num_ranks > self.most_fitted
        return Check(way, point.num_ranks, len(jobs), held_out, crowded, measured, computed_s, efficiency)


def _by_point(samples: Sequence[Sample]) -> dict[Point, list[Sample]]:
    """Return the jobs that gave a result, by what they are of, whatever their repeat."""
    done: dict[Point, list[Sample]] = {}
    for sample in samples:
        if not sample.error:
            done.setdefault(replace(sample.point, repeat=0), []).append(sample)
    return done


def _is_check(point: Point) -> bool:
    return "env_kwargs" not in dict(point.options)


def _is_lockstep(point: Point) -> bool:
    return point.length == "1" and "batch_size" not in dict(point.options)


def _kind(point: Point) -> tuple[int, tuple[tuple[str, object], ...]]:
    return point.num_ranks, tuple(sorted(each for each in point.options if each[0] != "num_steps"))
