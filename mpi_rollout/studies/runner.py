"""Doing a study: job after job, in its order, from where it was stopped.

Each job is started by mpirun, as a person would start it, with the command that `--dry-run` prints.  This process only
waits meanwhile.  It starts no MPI, so it runs where mpirun runs.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mpi_rollout.errors import Interrupted, UsageError
from mpi_rollout.process.clock import utc_now
from mpi_rollout.process.console import say
from mpi_rollout.studies.jobs import JobFailed, JobRunner, find_launcher, run_command
from mpi_rollout.studies.study import Point, Sample, Study, sample_of
from mpi_rollout.studies.study_file import StudyFile

WARM_UP = -1


def warm_up_of(left: Sequence[Point]) -> Point:
    """Return a job whose result is dropped: the first job finds no file in the page cache and cores asleep."""
    return replace(left[0], num_ranks=max(point.num_ranks for point in left), repeat=WARM_UP)


def _command(launcher: str, study: Study, point: Point, folder: Path) -> list[str]:
    """Return the command of a job.  Its output is its own: a job that was killed may still write into another."""
    words = "".join(f"-{value}" for _, value in point.options)
    out = folder / f"{point.num_ranks}{words}-{'warm-up' if point.repeat == WARM_UP else point.repeat}.h5"
    return run_command(launcher, point.num_ranks, study.config(point, str(out)))


def commands_of(study: Study, points: Sequence[Point], folder: Path) -> dict[Point, str]:
    """Return the lines of `--dry-run`: the commands of jobs, for a shell."""
    launcher = find_launcher(study.jobs.launcher) or "mpirun"
    return {point: shlex.join(_command(launcher, study, point, folder)) for point in points}


class Runner:
    """Does the jobs of a study, and keeps in `file` all samples so far; writes it to `path` after each job."""

    def __init__(self, file: StudyFile, launcher: str, jobs: JobRunner, path: str = ""):
        self.file, self._launcher, self._jobs, self._path = file, launcher, jobs, path

    def run(self, order: Sequence[Point]) -> None:
        """Do those of some jobs that have no sample yet; Interrupted if somebody asks us to stop."""
        left = [point for point in order if point not in self.file.done]
        try:
            for number, point in enumerate(left, len(order) - len(left) + 1):
                say(f"mpi_rollout: job {number} of {len(order)}: {point}: {self._add(point)}\n")
        except Interrupted as error:
            hint = "; the same command continues" if self._path else ""
            raise Interrupted(f"{error}; {len(self.file.samples)} of {len(order)} jobs are done{hint}") from error

    def warm_up(self, point: Point) -> Sample | None:
        """Do a job whose sample is not kept; return it, or None if it failed.

        UsageError if it is what no job can do, or of another MPI library than the samples there are.
        """
        known = {sample.mpi_library for sample in self.file.samples if not sample.error}
        try:
            sample = self._sample(point)
        except JobFailed as error:
            if error.code == UsageError.exit_code:  # What no job can do, such as an env that does not exist.
                raise UsageError(str(error).partition(": ")[2] or str(error)) from error
            say(f"mpi_rollout: the warm-up, {point.num_ranks} ranks, failed: {str(error).splitlines()[0]}\n")
            return None
        if known and sample.mpi_library not in known:
            raise UsageError(
                f"--out {self._path}: it is of another study: the MPI library was {', '.join(known)}, is "
                f"{sample.mpi_library}; use the same to continue it, or another --out"
            )
        return sample

    def _add(self, point: Point) -> str:
        """Do one job and keep what it gave; return that in words."""
        started = utc_now()
        try:
            sample = self._sample(point)
        except JobFailed as error:
            sample = Sample(point, self.file.study.num_envs(point.num_ranks), started, str(error))
        self.file = replace(self.file, samples=(*self.file.samples, sample))
        if self._path:
            self.file.write(self._path, utc_now())
        return sample.result

    def _sample(self, point: Point) -> Sample:
        started, command = utc_now(), _command(self._launcher, self.file.study, point, self._jobs.folder)
        return sample_of(point, started, int(self.file.facts["num_cores"]), self._jobs.run(command))
