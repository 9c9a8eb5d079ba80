"""Doing a study: job after job, in its order, from where it was stopped; then showing its results.

A study is one job after the other.  Each is started by mpirun, as a person would start it, with the command that
`--dry-run` prints.  This process only waits meanwhile.  It starts no MPI, so it runs where mpirun runs.
"""

import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from mpi_rollout.bench.jobs import JobFailed, JobRunner, Summary, stopping_on_signals
from mpi_rollout.bench.plan import check_packages, printable_launcher, run_command, usable_launcher
from mpi_rollout.bench.scaling import report
from mpi_rollout.bench.scaling.samples import Point, Samples, joined, of_ranks
from mpi_rollout.bench.scaling.study import Study, StudyFile, check_same_study, gathered, make_folder, part_of
from mpi_rollout.bench.workplace import claimed, job_folder, machine_facts, origin, tell
from mpi_rollout.core.clock import utc_now
from mpi_rollout.errors import DataError, Interrupted, RolloutError, UsageError, counted
from mpi_rollout.process.console import STDOUT, say
from mpi_rollout.storage.output import check_folder

WARM_UP = -1


@dataclass(frozen=True)
class Task:
    """A study, or a part of it, that is to be done.

    Parameters
    ----------
    out
        The file of the study.
    only
        Do only the jobs of this number of ranks, into a file of their own; `gather` puts such files together.
    redo_failed
        Do again what has failed before; otherwise it stays as it is.
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

    def done(self, samples: Samples) -> set[Point]:
        """Return the points that need no more jobs."""
        return samples.points - (samples.failed if self.redo_failed else set())

    def check(self) -> None:
        """Refuse what cannot be done before anything is started.

        Raises
        ------
        UsageError, StorageError
            An option cannot be, or there is no folder for the file.
        """
        if self.only not in (None, *self.study.num_ranks):
            ranks = ", ".join(map(str, self.study.num_ranks))
            raise UsageError(f"--only must be one of --ranks ({ranks}), got {self.only}")
        check_folder(self.out)


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
        warm_ups = [command for point, command in self.commands.items() if point.repeat == WARM_UP]
        jobs = [
            point._asdict() | {"command": command}
            for point, command in self.commands.items()
            if point.repeat != WARM_UP
        ]
        return json.dumps({"jobs": jobs, "warm_up": next(iter(warm_ups), None), "num_failed": self.num_failed})


def plan(task: Task) -> Plan:
    """Find what is left of a study."""
    stored, study = gathered(task.out), task.study
    if stored:
        # Asked where a batch job is not: neither the launcher nor the machine is that of the jobs.
        jobs = replace(stored.study.jobs, launcher=study.jobs.launcher)
        unlaunched = replace(stored, study=replace(stored.study, jobs=jobs))
        check_same_study(task.out, unlaunched, study, stored.facts)
    samples = stored.samples if stored else Samples()
    order, done = task.order, task.done(samples)
    left = [point for point in order if point not in done]
    launcher, folder = printable_launcher(study.jobs.launcher), job_folder(task.path)
    commands = {}
    for point in ([_warm_up(left)] if left else []) + left:
        config = study.config(point.num_ranks, str(_job_out(folder, point)), point.fragment_length)
        commands[point] = shlex.join(run_command(launcher, point.num_ranks, config))
    return Plan(commands, len(done & samples.failed & {*order}))


def _job_out(folder: Path, point: Point) -> Path:
    """Return a job's own output: a job that was killed may still write into it, which disturbs no other job."""
    repeat = "warm-up" if point.repeat == WARM_UP else point.repeat
    return folder / f"{point.num_ranks}-{point.fragment_length}-{repeat}.h5"


def show_plan(task: Task, as_json: bool) -> int:
    """Print the commands of what is left, start none; return the exit code.  Raises what `measure` does."""
    task.check()
    left = plan(task)
    say((left.as_json() if as_json else "\n".join(left.commands.values())) + "\n", STDOUT)
    return 0


def measure(task: Task) -> int:
    """Do a study, or what is left of it; print its results; return the exit code.

    Raises
    ------
    RolloutError
        Some jobs failed, which was no reason to stop; the message says how many.
    Interrupted
        Somebody asked us to stop; the same command continues.
    UsageError, DataError, StorageError, LaunchError
        There is something else in the file's place, or no launcher, or no way to write.
    """
    task.check()
    check_packages()
    launcher, path = usable_launcher(task.study.jobs.launcher), task.path
    if task.only is not None:
        make_folder(path)
    with claimed(path) as folder, stopping_on_signals() as stop:
        file = _open(task)
        file = replace(file, samples=joined([file.samples], task.done(file.samples)))
        file = Runner(file, task, JobRunner(folder, launcher, task.study.jobs.timeout_s, stop)).run()
    if task.only is None:
        print("\n".join(report.lines(file)))
    else:
        print(f"`scaling gather {task.out}` puts this file and the others together")
    print(f"file: {path}")
    return _check_failures(file, path)


def gather(out: str) -> int:
    """Put the parts of a study together, print its results; return the exit code.

    Raises
    ------
    RolloutError
        Some jobs failed; the message says how many.
    Interrupted
        Some numbers of ranks are missing; what there is was put together.
    DataError, StorageError
        There is nothing to put together, or it is not of one study; or it cannot be written.
    """
    check_packages()
    check_folder(out)
    with claimed(out):
        file = gathered(out)
        if file is None:
            raise DataError(f"there is nothing of a study in {out}.parts; `scaling strong --only R` writes into it")
        file.write(out, utc_now())
    print("\n".join([*report.lines(file), f"file: {out}"]))
    order = file.study.order()
    missing = [point for point in order if point not in file.samples.points]
    if missing:
        ranks = ", ".join(map(str, sorted({point.num_ranks for point in missing})))
        raise Interrupted(
            f"{len(missing)} of {counted(len(order), 'job')} are missing, of {ranks} ranks; the command that began the "
            "study does what is left"
        )
    return _check_failures(file, out)


def _check_failures(file: StudyFile, out: str) -> int:
    """Return 0 if no job failed; otherwise raise RolloutError."""
    if failed := file.samples.failed:
        raise RolloutError(
            f"{len(failed)} of {counted(len(file.samples.jobs), 'job')} failed; {out} has their errors, and the "
            "command that began the study does them again with --redo-failed"
        )
    return 0


def _warm_up(order: list[Point]) -> Point:
    """Return a job whose result is dropped: the first job finds no file in the page cache and cores asleep."""
    return Point(max(point.num_ranks for point in order), WARM_UP, order[0].fragment_length)


def _open(task: Task) -> StudyFile:
    """Return what there is of this study; nothing yet, if there is no file."""
    facts, stored = machine_facts(), gathered(task.out)
    if stored is None:
        return StudyFile(task.study, facts, origin(), Samples())
    check_same_study(task.out, stored, task.study, facts)
    return stored if task.only is None else replace(stored, samples=of_ranks(stored.samples, task.only))


class Runner:
    """Does the jobs that are left of a study, and writes the file after each."""

    def __init__(self, file: StudyFile, task: Task, jobs: JobRunner):
        self.file, self._study, self._order, self._path, self._jobs = file, task.study, task.order, task.path, jobs

    def run(self) -> StudyFile:
        """Do them; return the study with all samples."""
        order = self._order
        left = [point for point in order if point not in self.file.samples.points]
        if len(left) < len(order):
            tell(f"{self._path} has {len(order) - len(left)} of {len(order)} jobs already")
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
        """Do the warm-up, which also shows whether jobs would be of another MPI library than those there are."""
        known = {job.mpi_library for job in self.file.samples.jobs if not job.error}
        try:
            library = self._job(warm_up)["mpi_library"]
            if known and library not in known:
                raise UsageError(
                    f"--out {self._path}: it is of another study: the MPI library was {', '.join(known)}, is "
                    f"{library}; use the same to continue it, or another --out"
                )
        except JobFailed as error:
            if error.code == UsageError.exit_code:  # What no job can do, such as an env that does not exist.
                raise UsageError(str(error).partition(": ")[2] or str(error)) from error
            tell(f"the warm-up, {warm_up.num_ranks} ranks, failed: {error.headline}")

    def _add(self, point: Point) -> None:
        file, started = self.file, utc_now()
        try:
            outcome = self._job(point)
            num_cores = int(file.facts["num_cores"])
            samples = file.samples.with_outcome(point.repeat, started, num_cores, outcome, point.fragment_length)
            result = f"{samples.jobs[-1].env_steps_per_s:,.0f} env steps/s"
        except JobFailed as error:
            samples = file.samples.with_failure(point, self._study.num_envs(point.num_ranks), started, str(error))
            result = f"failed: {error.headline}"
        self.file = replace(file, samples=samples)
        self.file.write(self._path, utc_now())
        tell(f"job {len(samples.jobs)} of {len(self._order)}: {point}: {result}")

    def _job(self, point: Point) -> Summary:
        out = str(_job_out(self._jobs.folder, point))
        return self._jobs.run(point.num_ranks, self._study.config(point.num_ranks, out, point.fragment_length))
