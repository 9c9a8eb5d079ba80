"""Doing a comparison: point after point, from where it was stopped; then showing its results.

Before it begins, each env is stepped a little: it shows whether the env works, and how long the comparison will take.
"""

import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import NamedTuple

import gymnasium

from mpi_rollout.bench.compare import report
from mpi_rollout.bench.compare.comparison import (
    Comparison,
    ComparisonFile,
    Point,
    Samples,
    Skip,
    check_same_comparison,
    read_comparison,
)
from mpi_rollout.bench.compare.processes import Processes, leaving_nothing_behind
from mpi_rollout.bench.compare.pythons import check_pythons, facts_now
from mpi_rollout.bench.compare.systems import System
from mpi_rollout.bench.compare.turns import WARM_UP_SHARE
from mpi_rollout.bench.jobs import JobFailed, JobRunner, Stop, stopping_on_signals
from mpi_rollout.bench.plan import check_packages, usable_launcher
from mpi_rollout.bench.workplace import claimed, origin, tell
from mpi_rollout.core.clock import utc_now
from mpi_rollout.core.spaces import leaves
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.errors import EnvError, Interrupted, RolloutError, counted, words_of
from mpi_rollout.storage.output import check_folder

LOOK_EVERY_S = 0.05  # At which of the systems that are being set up is ready.
LOOK_S, LEAST_STEPS = 0.1, 3
START_S = 2.0  # Of a system's processes on a core; imports, above all.
TURN_S = 0.02  # Of a turn, besides what it is for: stopping and continuing processes, writing the file.


def compare(comparison: Comparison, out: str) -> int:
    """Do a comparison, or what is left of it; print the results; return the exit code.

    Raises
    ------
    RolloutError
        Some systems failed at some points, which was no reason to stop; the message says how many.
    Interrupted
        Somebody asked us to stop; the same command continues.
    UsageError, DataError, StorageError, LaunchError
        There is no such env, or something else in the file's place, or no launcher, or no way to write.
    """
    check_pythons(comparison.python_of)
    probes = {env: probe(env) for env in comparison.envs}
    if comparison.jobs.dry_run:
        print("\n".join(plan_lines(comparison, probes)))
        return 0
    check_packages()
    check_folder(out)
    has_ours = any(system.is_ours for system in comparison.all_systems.values())
    launcher = usable_launcher(comparison.jobs.launcher) if has_ours else ""
    with claimed(out) as folder, leaving_nothing_behind() as mark, stopping_on_signals("the comparison") as stop:
        jobs = JobRunner(folder, launcher, comparison.jobs.timeout_s, stop)
        words = shlex.split(launcher)
        start = partial(Processes, num_cores=comparison.num_cores, launcher=words, mark=mark, jobs=jobs)
        start = partial(start, pythons=comparison.python_of)
        file = Runner(_open(comparison, out), out, start, stop).run()
    print("\n".join([*report.lines(file), f"file: {out}"]))
    if failed := file.samples.failed:
        raise RolloutError(f"{len(failed)} of all systems and points failed; {out} has their errors")
    return 0


def _open(comparison: Comparison, out: str) -> ComparisonFile:
    """Return what there is of this comparison; nothing yet, if there is no file."""
    facts = facts_now(comparison.python_of)
    if not os.path.lexists(out):
        return ComparisonFile(comparison, facts, origin(), Samples())
    stored = read_comparison(out)
    check_same_comparison(out, stored, comparison, facts)
    return stored


class Runner:
    """Takes the turns that are left of a comparison, and writes the file after each repeat.

    `_team` has the processes of the env that is measured, by system; they live until they fail or the env is done.
    """

    def __init__(self, file: ComparisonFile, out: str, start: Callable[[System, str], Processes], stop: Stop):
        self.file, self._comparison = file, file.comparison
        self._out, self._start, self._stop = out, start, stop
        self._team: dict[str, Processes] = {}

    def run(self) -> ComparisonFile:
        """Take them; return the comparison with all samples."""
        points = list(self._comparison.points)
        try:
            for env in self._comparison.envs:
                try:
                    for point in points:
                        if point.env == env:
                            self._measure(point, f"point {points.index(point) + 1} of {len(points)}")
                finally:
                    self._end_team()
        except Interrupted as error:
            self.file.write(self._out, utc_now())
            raise Interrupted(f"{error}; {self._out} has what was measured; the same command continues") from error
        return self.file

    def _measure(self, point: Point, place: str) -> None:
        """Take all turns at one point that are not taken yet."""
        self._stop.check()
        left = self._left(point)
        if not left:
            return
        self._set_up(point, left)
        names = {system.name for system in left}
        for repeat in range(self._comparison.jobs.repeats):
            for name in self._comparison.order(point, repeat):
                if name in names and not self.file.samples.is_done(point, name, repeat):
                    self._take_turn(point, name, repeat)
            self.file.write(self._out, utc_now())
        self._close(point, left)
        failed = [turn for turn in self.file.samples.failed if turn.point == point and turn.system in names]
        result = counted(len(left) - len(failed), "system") + f", {len(failed)} failed" * bool(failed)
        tell(f"{place}: {point}: {result}")

    def _left(self, point: Point) -> list[System]:
        """Return the systems with turns to take; note those that do not apply."""
        systems = self._comparison.systems_at(point)
        reasons = {system.name: self._comparison.reason_to_skip(system, point) for system in systems}
        self._note(self.file.samples.with_skips(Skip(*point, name, why) for name, why in reasons.items() if why))
        done = self.file.samples.is_done
        repeats = range(self._comparison.jobs.repeats)
        applying = [system for system in systems if not reasons[system.name]]
        return [system for system in applying if not all(done(point, system.name, repeat) for repeat in repeats)]

    def _note(self, samples: Samples) -> None:
        self.file = replace(self.file, samples=samples)

    def _fail(self, point: Point, name: str, error: JobFailed) -> None:
        """Keep why a system has no more turns at a point."""
        self._team.pop(name, None)
        repeat = sum(turn.point == point and turn.system == name for turn in self.file.samples.turns)
        self._note(self.file.samples.with_failure(point, name, repeat, utc_now(), str(error)))
        tell(f"{self._comparison.all_systems[name].title}, {point}: failed: {error.headline}")

    def _set_up(self, point: Point, systems: Iterable[System]) -> None:
        """Make their envs, those of as many systems at a time as there are cores."""
        waiting = list(systems)
        making: list[Processes] = []
        while waiting or making:
            while waiting and len(making) < self._comparison.num_cores:
                making.append(self._begin(waiting.pop(0), point))
            for processes in list(making):
                try:
                    if not processes.has_answer(LOOK_EVERY_S):
                        continue
                    processes.await_answer()
                except JobFailed as error:
                    self._fail(point, processes.system.name, error)
                making.remove(processes)

    def _begin(self, system: System, point: Point) -> Processes:
        if system.name not in self._team:
            self._team[system.name] = self._start(system, point.env)
        self._team[system.name].make(point.num_envs)
        return self._team[system.name]

    def _take_turn(self, point: Point, name: str, repeat: int) -> None:
        started = utc_now()
        try:
            turn = self._team[name].take_turn(self._comparison.window_s)
            self._note(self.file.samples.with_turn(point, name, repeat, started, turn))
        except JobFailed as error:
            self._fail(point, name, error)

    def _close(self, point: Point, systems: Iterable[System]) -> None:
        """Close the envs, all at the same time; a system that fails at it is started anew for the next point."""
        closing = [self._team[system.name] for system in systems if system.name in self._team]
        for processes in closing:
            processes.close()
        for processes in closing:
            try:
                processes.await_answer()
            except JobFailed as error:
                del self._team[processes.system.name]
                tell(f"{processes.system.title}, {point}: failed to close: {error.headline}")

    def _end_team(self) -> None:
        for processes in self._team.values():
            processes.leave()
        for processes in self._team.values():
            processes.end()
        self._team.clear()


class Probe(NamedTuple):
    """Seconds to make one env, to reset it and to step it once."""

    make_s: float
    reset_s: float
    step_s: float


def probe(env_id: str) -> Probe:
    """Make an env and step it a little.

    Raises
    ------
    UsageError
        There is no such env, a package is missing, or its spaces have no fixed shape.
    EnvError
        It fails at once.
    """
    start = perf_counter()
    env = EnvMaker(env_id)()
    make_s = perf_counter() - start
    leaves(env.observation_space), leaves(env.action_space)  # Or they are refused.
    try:
        return Probe(make_s, *_look_at(env))
    except Exception as error:
        raise EnvError(f"--env {env_id}: {words_of(error)}") from error
    finally:
        env.close()


def _look_at(env: gymnasium.Env) -> tuple[float, float]:
    """Return the seconds of a reset, and of a step."""
    start = perf_counter()
    env.reset(seed=0)
    reset_s = perf_counter() - start
    action, num_steps, start = env.action_space.sample(), 0, perf_counter()
    while num_steps < LEAST_STEPS or perf_counter() - start < LOOK_S:
        _, _, terminated, truncated, _ = env.step(action)
        num_steps += 1
        if terminated or truncated:
            env.reset()
    return reset_s, (perf_counter() - start) / num_steps


def plan_lines(comparison: Comparison, probes: dict[str, Probe]) -> list[str]:
    """Say what will be measured, point by point, what will not be and why, and about how long it takes."""
    lines, seconds = [], 0.0
    for env in comparison.envs:
        seconds += START_S * len(comparison.all_systems) / comparison.num_cores
        for num_envs in comparison.sizes:
            names = measured(comparison, Point(env, num_envs))
            lines.append(f"{Point(env, num_envs)}: {', '.join(names)}")
            num_native = sum(comparison.all_systems[name].is_native for name in names)
            seconds += point_s(comparison, num_envs, len(names) - num_native, probes[env])
            seconds += point_s(comparison, 1, num_native, probes[env])  # They are made and stepped all at once.
    reasons = {
        f"{system.name}: {why}": None
        for point in comparison.points
        for system in comparison.systems_at(point)
        if (why := comparison.reason_to_skip(system, point))
    }
    lines += [f"skipped: {reason}" for reason in reasons]
    turns = f"{counted(comparison.jobs.repeats, 'turn')} of {comparison.window_s:g} s each"
    return [*lines, f"{turns}; about {seconds // 60:.0f} min {seconds % 60:.0f} s in all"]


def measured(comparison: Comparison, point: Point) -> list[str]:
    """Return the systems that apply at a point."""
    systems = comparison.systems_at(point)
    return [system.name for system in systems if not comparison.reason_to_skip(system, point)]


def point_s(comparison: Comparison, num_envs: int, num_systems: int, env: Probe) -> float:
    """Estimate how long a point takes: making envs on all cores, then turns, in which one core steps them."""
    sweep_s = num_envs * env.step_s
    turn_s = max(comparison.window_s, sweep_s) + max(WARM_UP_SHARE * comparison.window_s, sweep_s)
    turn_s += num_envs * env.reset_s + TURN_S
    return num_systems * (comparison.jobs.repeats * turn_s + num_envs * env.make_s / comparison.num_cores)
