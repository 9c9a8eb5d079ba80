"""Doing a comparison: point after point, from where it was stopped; then telling what it shows."""

import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from mpi_rollout.bench.compare import report
from mpi_rollout.bench.compare.comparison import Comparison, Point
from mpi_rollout.bench.compare.estimate import probe, told_plan
from mpi_rollout.bench.compare.facts import facts_now
from mpi_rollout.bench.compare.file import ComparisonFile, check_same_comparison, read_comparison
from mpi_rollout.bench.compare.processes import Processes, leaving_nothing_behind
from mpi_rollout.bench.compare.samples import Samples, Skip
from mpi_rollout.bench.compare.systems import System, reason_to_skip
from mpi_rollout.bench.jobs import (
    JobFailed,
    Stop,
    check_seconds,
    stopping_on_signals,
    usable_launcher,
)
from mpi_rollout.bench.workplace import claimed, now, origin, tell
from mpi_rollout.errors import Interrupted, RolloutError
from mpi_rollout.storage.output import check_folder

LOOK_EVERY_S = 0.05  # At which of the systems that are being set up is ready.


def compare(comparison: Comparison, out: str, timeout_s: float, dry_run: bool = False) -> int:
    """Do a comparison, or what is left of it; print what it shows; return the exit code.

    Parameters
    ----------
    timeout_s
        Of one system's set-up at one point, and of a turn beyond its window.

    Raises
    ------
    RolloutError
        Some systems failed at some points, which was no reason to stop; the message says how many.
    Interrupted
        Somebody asked us to stop; the same command continues.
    UsageError, DataError, StorageError, LaunchError
        There is no such env, or something else in the file's place, or no launcher, or no way to write.
    """
    check_seconds("--timeout-s", timeout_s)
    probes = {env: probe(env) for env in comparison.envs}
    if dry_run:
        print("\n".join(told_plan(comparison, probes)))
        return 0
    check_folder(out)
    launcher = _launcher(comparison)
    with claimed(out) as folder, leaving_nothing_behind() as mark, stopping_on_signals("the comparison") as stop:
        start = partial(
            Processes, num_cores=comparison.num_cores, launcher=launcher, folder=folder, mark=mark,
            timeout_s=timeout_s, stop=stop,
        )  # fmt: skip
        runner = Runner(_open(comparison, out), out, start, stop)
        file = runner.run()
    print("\n".join([*report.lines(file), f"file: {out}"]))
    if failed := file.samples.failed:
        raise RolloutError(f"{len(failed)} of all systems and points failed; {out} has their errors")
    return 0


def _launcher(comparison: Comparison) -> list[str]:
    """What starts ranks, if any are to be started."""
    if not any(system.is_ours for system in comparison.all_systems.values()):
        return []
    return shlex.split(usable_launcher(comparison.launcher))


def _open(comparison: Comparison, out: str) -> ComparisonFile:
    """What there is of this comparison; nothing yet, if there is no file."""
    facts = facts_now()
    if not os.path.lexists(out):
        return ComparisonFile(comparison, facts, origin(), Samples())
    stored = read_comparison(out)
    check_same_comparison(out, stored, comparison, facts)
    return stored


class Runner:
    """Takes the turns that are left of a comparison, and has the file written after each repeat.

    `_team` are the processes of the env that is measured, by system; each lives until it fails or the env is done.
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
            self.file.write(self._out, now())
            raise Interrupted(f"{error}; {self._out} has what was measured; the same command continues") from error
        return self.file

    def _measure(self, point: Point, place: str) -> None:
        """All turns at one point that are not taken yet."""
        self._stop.check()
        left = self._left(point)
        if not left:
            return
        self._set_up(point, left)
        names = {system.name for system in left}
        for repeat in range(self._comparison.repeats):
            for name in self._comparison.order(point, repeat):
                if name in names and not self.file.samples.is_done(point, name, repeat):
                    self._take_turn(point, name, repeat)
            self.file.write(self._out, now())
        self._close(point, left)
        failed = [each for each in self.file.samples.failed if each.point == point and each.system in names]
        num = len(left) - len(failed)
        told = f"{num} system{'s' * (num != 1)}" + f", {len(failed)} failed" * bool(failed)
        tell(f"{place}: {point}: {told}")

    def _left(self, point: Point) -> list[System]:
        """The systems with turns to take; those that do not apply are noted."""
        num_cores = self._comparison.num_cores
        systems = self._comparison.all_systems.values()
        reasons = {system.name: reason_to_skip(system, *point, num_cores) for system in systems}
        self._note(self.file.samples.with_skips(Skip(*point, name, why) for name, why in reasons.items() if why))
        done = self.file.samples.is_done
        repeats = range(self._comparison.repeats)
        return [
            system for system in systems
            if not reasons[system.name] and not all(done(point, system.name, repeat) for repeat in repeats)
        ]  # fmt: skip

    def _note(self, samples: Samples) -> None:
        self.file = replace(self.file, samples=samples)

    def _fail(self, point: Point, name: str, error: JobFailed) -> None:
        """Keep why a system has no more turns at a point."""
        self._team.pop(name, None)
        repeat = sum(turn.point == point and turn.system == name for turn in self.file.samples.turns)
        self._note(self.file.samples.with_failure(point, name, repeat, now(), str(error)))
        tell(f"{self._comparison.all_systems[name].title}, {point}: failed: {str(error).splitlines()[0]}")

    def _set_up(self, point: Point, systems: Iterable[System]) -> None:
        """Have their envs made, those of as many systems at a time as there are cores."""
        waiting, making = list(systems), []
        while waiting or making:
            while waiting and len(making) < self._comparison.num_cores:
                making.append(self._begin(waiting.pop(0), point))
            for each in list(making):
                try:
                    if not each.has_answer(LOOK_EVERY_S):
                        continue
                    each.await_answer()
                except JobFailed as error:
                    self._fail(point, each.system.name, error)
                making.remove(each)

    def _begin(self, system: System, point: Point) -> Processes:
        if system.name not in self._team:
            self._team[system.name] = self._start(system, point.env)
        self._team[system.name].make(point.num_envs)
        return self._team[system.name]

    def _take_turn(self, point: Point, name: str, repeat: int) -> None:
        started = now()
        try:
            turn = self._team[name].take_turn(self._comparison.window_s)
            self._note(self.file.samples.with_turn(point, name, repeat, started, turn))
        except JobFailed as error:
            self._fail(point, name, error)

    def _close(self, point: Point, systems: Iterable[System]) -> None:
        """Have the envs closed, all at the same time; who fails at it is started anew for the next point."""
        closing = [self._team[system.name] for system in systems if system.name in self._team]
        for each in closing:
            each.close()
        for each in closing:
            try:
                each.await_answer()
            except JobFailed as error:
                del self._team[each.system.name]
                tell(f"{each.system.title}, {point}: failed to close: {str(error).splitlines()[0]}")

    def _end_team(self) -> None:
        for each in self._team.values():
            each.leave()
        for each in self._team.values():
            each.end()
        self._team.clear()
