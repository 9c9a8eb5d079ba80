"""What `scaling` does: plans a study, does it or a part of it, puts parts together, and shows the results."""

import json
from dataclasses import dataclass, replace

from mpi_rollout.core.clock import utc_now
from mpi_rollout.errors import DataError, Interrupted, RolloutError, UsageError
from mpi_rollout.process.console import STDOUT, say
from mpi_rollout.storage.output import check_folder
from mpi_rollout.studies import report
from mpi_rollout.studies.jobs import JobRunner, stopping_on_signals
from mpi_rollout.studies.machine import claimed, job_folder, machine_facts, origin, tell
from mpi_rollout.studies.plan import check_packages, usable_launcher
from mpi_rollout.studies.runner import Runner, commands_of, warm_up_of
from mpi_rollout.studies.samples import Point
from mpi_rollout.studies.study import Study, StudyFile, check_same_study, gathered, make_folder, part_of
from mpi_rollout.text import counted


@dataclass(frozen=True)
class Task:
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

    def done(self, file: StudyFile) -> set[Point]:
        """Return the points that need no more jobs."""
        return file.done - (file.failed if self.redo_failed else set())

    def check(self) -> None:
        """Refuse what cannot be done: UsageError for --only, StorageError if there is no folder for the file."""
        if self.only not in (None, *self.study.num_ranks):
            ranks = ", ".join(map(str, self.study.num_ranks))
            raise UsageError(f"--only must be one of --ranks ({ranks}), got {self.only}")
        check_folder(self.out)


def show_plan(task: Task, as_json: bool) -> int:
    """Print the commands of what is left, start none; return the exit code.  Raises what `measure` does.

    As JSON, for scripts: jobs (num_ranks, repeat, command), warm_up (a command, or null), num_failed.
    """
    task.check()
    study, file = task.study, _to_continue(task)
    done = task.done(file)
    left = [point for point in task.order if point not in done]
    commands = commands_of(study, ([warm_up_of(left)] if left else []) + left, job_folder(task.path))
    if as_json:
        jobs = [{"num_ranks": p.num_ranks, "repeat": p.repeat, "command": commands[p]} for p in left]
        warm_up = commands[warm_up_of(left)] if left else None
        num_failed = len(done & file.failed & {*task.order})
        say(json.dumps({"jobs": jobs, "warm_up": warm_up, "num_failed": num_failed}) + "\n", STDOUT)
    else:
        say("\n".join(commands.values()) + "\n", STDOUT)
    return 0


def _to_continue(task: Task) -> StudyFile:
    """Return what there is of a study, asked where a batch job is not: its launcher and machine are the jobs' own."""
    stored = gathered(task.out)
    if stored is None:
        return StudyFile(task.study, {}, {})
    jobs = replace(stored.study.jobs, launcher=task.study.jobs.launcher)
    check_same_study(task.out, replace(stored, study=replace(stored.study, jobs=jobs)), task.study, stored.facts)
    return stored


def measure(task: Task) -> int:
    """Do a study, or what is left of it; print its results; return the exit code.

    RolloutError if some jobs failed, which was no reason to stop; Interrupted if somebody asked us to stop.
    """
    task.check()
    check_packages()
    launcher, path = usable_launcher(task.study.jobs.launcher), task.path
    if task.only is not None:
        make_folder(path)
    with claimed(path) as folder, stopping_on_signals() as stop:
        runner = Runner(_open(task), JobRunner(folder, launcher, task.study.jobs.timeout_s, stop), path)
        order, done = task.order, runner.file.done
        if left := [point for point in order if point not in done]:
            if len(left) < len(order):
                tell(f"{path} has {len(order) - len(left)} of {len(order)} jobs already")
            runner.warm_up(warm_up_of(left))
        runner.run(order)
    if task.only is None:
        print("\n".join(report.lines(runner.file)))
    else:
        print(f"`scaling gather {task.out}` puts this file and the others together")
    print(f"file: {path}")
    return _check_failures(runner.file, path)


def _open(task: Task) -> StudyFile:
    """Return what there is of this study, without what is to be done again; nothing yet, if there is no file."""
    facts, stored = machine_facts(), gathered(task.out)
    if stored is None:
        return StudyFile(task.study, facts, origin())
    check_same_study(task.out, stored, task.study, facts)
    return stored.of(task.done(stored) & {*task.order})


def gather(out: str) -> int:
    """Put the parts of a study together, print its results; return the exit code.

    RolloutError if some jobs failed; Interrupted if some are missing, after what there is was put together.
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
    missing = [point for point in order if point not in file.done]
    if missing:
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
