"""Doing a study, or a part of it: job after job, in its order, from where it was stopped; putting parts together.

Each job is started by mpirun, as a person would start it, with the command that `--dry-run` prints.  This process only
waits meanwhile.  It starts no MPI, so it runs where mpirun runs.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpi_rollout.errors import DataError, Interrupted, RolloutError, UsageError
from mpi_rollout.process.clock import utc_now
from mpi_rollout.process.console import STDOUT, say, show
from mpi_rollout.storage.output import check_folder
from mpi_rollout.studies import report
from mpi_rollout.studies.jobs import (
    JobFailed,
    arguments_of,
    check_scipy,
    claimed,
    find_launcher,
    job_folder,
    run_job,
    usable_launcher,
)
from mpi_rollout.studies.study import Point, Sample, Study, sample_of
from mpi_rollout.studies.study_file import StudyFile, gathered, machine_facts, origin, part_of
from mpi_rollout.text import counted

WARM_UP = -1


def warm_up_of(left: Sequence[Point]) -> Point:
    """Return a job whose result is dropped: the first job finds no file in the page cache and cores asleep."""
    return replace(left[0], num_ranks=max(point.num_ranks for point in left), repeat=WARM_UP)


def _command(launcher: str, study: Study, point: Point, folder: Path) -> list[str]:
    """Return the command of a job.  Its output is its own: a job that was killed may still write into another."""
    words = "".join(f"-{value}" for _, value in point.options)
    out = folder / f"{point.num_ranks}{words}-{'warm-up' if point.repeat == WARM_UP else point.repeat}.h5"
    start = [*shlex.split(launcher), "-n", str(point.num_ranks), sys.executable, "-m", "mpi_rollout", "run"]
    return [*start, *arguments_of(study.config(point, str(out)))]


def commands_of(study: Study, points: Sequence[Point], folder: Path) -> dict[Point, str]:
    """Return the lines of `--dry-run`: the commands of jobs, for a shell."""
    launcher = find_launcher(study.jobs.launcher) or "mpirun"
    return {point: shlex.join(_command(launcher, study, point, folder)) for point in points}


class Runner:
    """Does the jobs of a study, and keeps in `file` all samples so far; writes it to `path` after each job.

    `folder` is for the jobs' own files.
    """

    def __init__(self, file: StudyFile, launcher: str, folder: Path, path: str = ""):
        self.file, self._launcher, self._folder, self._path = file, launcher, folder, path

    def run(self, order: Sequence[Point]) -> None:
        """Do those of some jobs that have no sample yet; Interrupted if somebody asks us to stop."""
        left = [point for point in order if point not in self.file.done]
        try:
            for number, point in enumerate(left, len(order) - len(left) + 1):
                sample = self._sample(point)
                self.file = replace(self.file, samples=(*self.file.samples, sample))
                if self._path:
                    self.file.write(self._path, utc_now())
                say(f"mpi_rollout: job {number} of {len(order)}: {point}: {sample.result}\n")
        except Interrupted as error:
            hint = "; the same command continues" if self._path else ""
            raise Interrupted(f"{error}; {len(self.file.samples)} of {len(order)} jobs are done{hint}") from error

    def warm_up(self, point: Point) -> Sample | None:
        """Do a job whose sample is not kept; return it, or None if it failed.

        UsageError if it is what no job can do, or of another MPI library than the samples there are.
        """
        known = {sample.mpi_library for sample in self.file.samples if not sample.error}
        sample = self._sample(point)
        if sample.error:
            say(f"mpi_rollout: the warm-up, {point.num_ranks} ranks, {sample.result}\n")
            return None
        if known and sample.mpi_library not in known:
            raise UsageError(
                f"--out {self._path}: it is of another study: the MPI library was {', '.join(known)}, is "
                f"{sample.mpi_library}; use the same to continue it, or another --out"
            )
        return sample

    def _sample(self, point: Point) -> Sample:
        study, started = self.file.study, utc_now()
        try:
            command = _command(self._launcher, study, point, self._folder)
            outcome = run_job(command, self._folder, study.jobs.timeout_s)
        except JobFailed as error:
            if point.repeat == WARM_UP and error.code == UsageError.exit_code:  # No job can do it, whatever the ranks.
                raise UsageError(str(error).partition(": ")[2] or str(error)) from error
            return Sample(point, study.num_envs(point.num_ranks), started, str(error))
        return sample_of(point, started, int(self.file.facts["num_cores"]), outcome)


@dataclass(frozen=True)
class Measurement:
    """A study to be done into the file `out`, or the jobs of `only` one number of ranks into a file of their own.

    What has failed before stays as it is, unless `redo_failed`.
    """

    study: Study
    out: str
    only: int | None = None
    redo_failed: bool = False

    @property
    def path(self) -> str:
        """The file that is written."""
        return self.out if self.only is None else part_of(self.out, self.only)

    @property
    def order(self) -> list[Point]:
        return [point for point in self.study.order() if self.only in (None, point.num_ranks)]

    def check(self) -> None:
        """Refuse what cannot be done: UsageError for --only, StorageError if there is no folder for the file."""
        if self.only not in (None, *self.study.num_ranks):
            ranks = ", ".join(map(str, self.study.num_ranks))
            raise UsageError(f"--only must be one of --ranks ({ranks}), got {self.only}")
        check_folder(self.out)

    def start(self, stored: StudyFile | None, now: StudyFile) -> StudyFile:
        """Return the stored study without the points that are to be done again, or `now` if nothing is stored.

        UsageError if it is of another study than `now`, on another machine, or by another program.
        """
        if stored is None:
            return now
        if differing := stored.differences(now):
            raise UsageError(
                f"--out {self.out}: it is of another study: {'; '.join(differing)}; give the same to continue it, or "
                "use another --out"
            )
        kept = stored.done - (stored.failed if self.redo_failed else set())
        return stored.of(kept & {*self.order})


def show_plan(measurement: Measurement, as_json: bool) -> int:
    """Print the commands of what is left, start none; return the exit code.  Raises what `measure` does.

    As JSON, for scripts: jobs (num_ranks, repeat, command), warm_up (a command, or null), num_failed.
    """
    measurement.check()
    now, stored = StudyFile(measurement.study, {}, {}), gathered(measurement.out)
    if stored is not None:  # It is asked where a batch job is not: its launcher and machine are the jobs' own.
        given = replace(measurement.study.jobs, launcher=stored.study.jobs.launcher)
        now = StudyFile(replace(measurement.study, jobs=given), stored.facts, {})
    file = measurement.start(stored, now)
    left = [point for point in measurement.order if point not in file.done]
    warm_ups = [warm_up_of(left)] if left else []
    commands = commands_of(measurement.study, warm_ups + left, job_folder(measurement.path))
    text = "\n".join(commands.values())
    if as_json:
        jobs = [{"num_ranks": p.num_ranks, "repeat": p.repeat, "command": commands[p]} for p in left]
        warm_up = commands[warm_ups[0]] if left else None
        text = json.dumps({"jobs": jobs, "warm_up": warm_up, "num_failed": len(file.failed)})
    say(text + "\n", STDOUT)
    return 0


def measure(measurement: Measurement) -> int:
    """Do a study, or what is left of it; print its results; return the exit code.

    RolloutError if some jobs failed, which was no reason to stop; Interrupted if somebody asked us to stop.
    """
    measurement.check()
    check_scipy()
    launcher, path = usable_launcher(measurement.study.jobs.launcher), measurement.path
    with claimed(path) as folder:
        now = StudyFile(measurement.study, machine_facts(), origin())
        runner = Runner(measurement.start(gathered(measurement.out), now), launcher, folder, path)
        order, done = measurement.order, runner.file.done
        if left := [point for point in order if point not in done]:
            if len(left) < len(order):
                say(f"mpi_rollout: {path} has {len(order) - len(left)} of {len(order)} jobs already\n")
            runner.warm_up(warm_up_of(left))
        runner.run(order)
    whole = [f"`scaling gather {measurement.out}` puts this file and the others together"]
    show([*(report.lines(runner.file) if measurement.only is None else whole), f"file: {path}"])
    return _check_failures(runner.file, path)


def gather(out: str) -> int:
    """Put the parts of a study together, print its results; return the exit code.

    RolloutError if some jobs failed; Interrupted if some are missing, after what there is was put together.
    """
    check_scipy()
    check_folder(out)
    with claimed(out):
        file = gathered(out)
        if file is None:
            raise DataError(f"there is nothing of a study in {out}.parts; `scaling strong --only R` writes into it")
        file.write(out, utc_now())
    show([*report.lines(file), f"file: {out}"])
    order = file.study.order()
    if missing := [point for point in order if point not in file.done]:
        ranks = ", ".join(map(str, sorted({point.num_ranks for point in missing})))
        raise Interrupted(
            f"{len(missing)} of {counted(len(order), 'job')} are missing, of {ranks} ranks; the command that began the "
            "study does what is left"
        )
    return _check_failures(file, out)


def _check_failures(file: StudyFile, out: str) -> int:
    """Return 0 if no job failed; otherwise raise RolloutError."""
    if failed := file.failed:
        raise RolloutError(
            f"{len(failed)} of {counted(len(file.samples), 'job')} failed; {out} has their errors, and the "
            "command that began the study does them again with --redo-failed"
        )
    return 0
