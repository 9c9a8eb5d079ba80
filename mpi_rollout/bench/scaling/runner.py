"""Doing a study: job after job, in its order, from where it was stopped; then telling what it shows.

A study is one job after the other, each started as a person would start it, by mpirun, with the command that
`--dry-run` prints.  This process only waits meanwhile.  It starts no MPI, so it runs where mpirun runs.
"""

import json
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from mpi_rollout.bench.jobs import (
    JobFailed,
    Stop,
    check_seconds,
    run_job,
    stopping_on_signals,
    told_launcher,
    usable_launcher,
)
from mpi_rollout.bench.machine import machine_facts
from mpi_rollout.bench.scaling import report
from mpi_rollout.bench.scaling.file import StudyFile, check_same_study
from mpi_rollout.bench.scaling.parts import check_failures, gathered, make_folder, part_of
from mpi_rollout.bench.scaling.samples import Samples, joined, of_ranks
from mpi_rollout.bench.scaling.study import Point, Study
from mpi_rollout.bench.workplace import claimed, job_folder, now, origin, tell
from mpi_rollout.errors import Interrupted, UsageError
from mpi_rollout.process.console import STDOUT, say
from mpi_rollout.storage.output import check_folder

WARM_UP = -1


@dataclass(frozen=True)
class Plan:
    """What is left of a study: a warm-up, and the jobs in their order, with their commands as a shell would take them.

    Parameters
    ----------
    num_failed
        How many jobs failed before and stay so.
    """

    commands: dict[Point, str]
    num_failed: int = 0

    def as_json(self) -> str:
        """For scripts: jobs (num_ranks, repeat, command), warm_up (a command, or null), num_failed."""
        warm_up = next((command for point, command in self.commands.items() if point.repeat == WARM_UP), None)
        jobs = [point._asdict() | {"command": command} for point, command in self.commands.items()
                if point.repeat != WARM_UP]  # fmt: skip
        return json.dumps({"jobs": jobs, "warm_up": warm_up, "num_failed": self.num_failed})


def plan(study: Study, out: str, only: int | None, redo_failed: bool = False) -> Plan:
    """Find what is left of a study."""
    stored = gathered(out)
    if stored:
        # Asked where a batch job is not: neither the launcher nor the machine is that of the jobs.
        check_same_study(
            out, replace(stored, study=replace(stored.study, launcher=study.launcher)), study, stored.facts
        )
    samples = stored.samples if stored else Samples()
    order, done = _order(study, only), _done(samples, redo_failed)
    left = [point for point in order if point not in done]
    launcher, folder = told_launcher(study.launcher), job_folder(_file_of(out, only))
    commands = {
        point: shlex.join(study.command(launcher, sys.executable, point.num_ranks, str(_job_out(folder, point))))
        for point in ([_warm_up(left)] if left else []) + left
    }
    return Plan(commands, len(done & samples.failed & {*order}))


def _job_out(folder: Path, point: Point) -> Path:
    """A job's own output: what one that was killed may still be writing is in nobody's way."""
    return folder / f"{point.num_ranks}-{'warm-up' if point.repeat == WARM_UP else point.repeat}.h5"


def _file_of(out: str, only: int | None) -> str:
    return out if only is None else part_of(out, only)


def _order(study: Study, only: int | None) -> list[Point]:
    return [point for point in study.order() if only in (None, point.num_ranks)]


def _done(samples: Samples, redo_failed: bool) -> set[Point]:
    return samples.points - (samples.failed if redo_failed else set())


def show_plan(
    study: Study, out: str, timeout_s: float, only: int | None, redo_failed: bool, as_json: bool
) -> int:  # fmt: skip
    """Print the commands of what is left, start none; return the exit code.  Raises what `measure` does."""
    check(study, out, timeout_s, only)
    found = plan(study, out, only, redo_failed)
    say((found.as_json() if as_json else "\n".join(found.commands.values())) + "\n", STDOUT)
    return 0


def check(study: Study, out: str, timeout_s: float, only: int | None) -> None:
    """Refuse what cannot be done before anything is started.

    Raises
    ------
    UsageError, StorageError
        An option cannot be, or there is no folder for the file.
    """
    check_seconds("--timeout-s", timeout_s)
    if only not in (None, *study.num_ranks):
        raise UsageError(f"--only must be one of --ranks ({', '.join(map(str, study.num_ranks))}), got {only}")
    check_folder(out)


def measure(
    study: Study, out: str, timeout_s: float, only: int | None = None, redo_failed: bool = False
) -> int:  # fmt: skip
    """Do a study, or what is left of it; print what it shows; return the exit code.

    Parameters
    ----------
    timeout_s
        Of one job.
    only
        Do only the jobs of this number of ranks, into a file of their own; `parts.gather` puts such files together.
    redo_failed
        Do again what has failed before; otherwise it stays as it is.

    Raises
    ------
    RolloutError
        Some jobs failed, which was no reason to stop; the message says how many.
    Interrupted
        Somebody asked us to stop; the same command continues.
    UsageError, DataError, StorageError, LaunchError
        There is something else in the file's place, or no launcher, or no way to write.
    """
    check(study, out, timeout_s, only)
    launcher = usable_launcher(study.launcher)
    path = _file_of(out, only)
    if only is not None:
        make_folder(path)
    with claimed(path) as folder, stopping_on_signals() as stop:
        file = _open(study, out, only)
        done = _done(file.samples, redo_failed)
        file = replace(file, samples=joined([file.samples], done))
        file = Runner(file, path, folder, launcher, timeout_s, stop, _order(study, only)).run()
    told = report.lines(file) if only is None else [f"`scaling gather {out}` puts this file and the others together"]
    print("\n".join([*told, f"file: {path}"]))
    return check_failures(file, path)


def _warm_up(order: list[Point]) -> Point:
    """A job whose result is dropped: the first one finds no file in the page cache and cores that are asleep."""
    return Point(max(point.num_ranks for point in order), WARM_UP)


def _open(study: Study, out: str, only: int | None) -> StudyFile:
    """What there is of this study; nothing yet, if there is no file."""
    facts, stored = machine_facts(), gathered(out)
    if stored is None:
        return StudyFile(study, facts, origin(), Samples())
    check_same_study(out, stored, study, facts)
    return stored if only is None else replace(stored, samples=of_ranks(stored.samples, only))


class Runner:
    """Does the jobs that are left of a study, and has the file written after each."""

    def __init__(
        self, file: StudyFile, out: str, folder: Path, launcher: str, timeout_s: float, stop: Stop, order: list[Point]
    ):  # fmt: skip
        self.file, self.study, self._order = file, file.study, order
        self._out, self._folder, self._launcher, self._timeout_s, self._stop = out, folder, launcher, timeout_s, stop

    def run(self) -> StudyFile:
        """Do them; return the study with all samples."""
        order = self._order
        left = [point for point in order if point not in self.file.samples.points]
        if len(left) < len(order):
            tell(f"{self._out} has {len(order) - len(left)} of {len(order)} jobs already")
        try:
            if left:
                self._warm_up(_warm_up(left))
            for point in left:
                self._add(point)
        except Interrupted as error:
            num = len(self.file.samples.jobs)
            raise Interrupted(f"{error}; {num} of {len(order)} jobs are done; the same command continues") from error
        return self.file

    def _warm_up(self, warm_up: Point) -> None:
        """Also finds out whether jobs would be of another MPI library than those there are."""
        known = {job.mpi_library for job in self.file.samples.jobs if not job.error}
        try:
            found = self._job(warm_up)["mpi_library"]
            if known and found not in known:
                raise UsageError(
                    f"--out {self._out}: it is of another study: the MPI library was {', '.join(known)}, is {found}; "
                    "use the same to continue it, or another --out"
                )
        except JobFailed as error:
            if error.code == UsageError.exit_code:  # What no job can do, such as an env that does not exist.
                raise UsageError(str(error).partition(": ")[2] or str(error)) from error
            tell(f"the warm-up, {warm_up.num_ranks} ranks, failed: {str(error).splitlines()[0]}")

    def _add(self, point: Point) -> None:
        file, started = self.file, now()
        try:
            outcome = self._job(point)
            found = file.samples.with_outcome(point.repeat, started, int(file.facts["num_cores"]), outcome)
            told = f"{found.jobs[-1].env_steps_per_s:,.0f} env steps/s"
        except JobFailed as error:
            found = file.samples.with_failure(point, self.study.num_envs(point.num_ranks), started, str(error))
            told = f"failed: {str(error).splitlines()[0]}"
        self.file = StudyFile(file.study, file.facts, file.origin, found)
        self.file.write(self._out, now())
        tell(f"job {len(found.jobs)} of {len(self._order)}: {point}: {told}")

    def _job(self, point: Point) -> dict:
        out = _job_out(self._folder, point)
        command = self.study.command(self._launcher, sys.executable, point.num_ranks, str(out))
        return run_job(command, self._folder, self._timeout_s, self._stop)
