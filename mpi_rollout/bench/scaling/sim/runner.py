"""Doing a simulation: the jobs that measure, if there are any, then the model, then telling what it shows."""

import json
import os
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mpi_rollout.bench.env_probe import probe_env
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
from mpi_rollout.bench.scaling.samples import Samples
from mpi_rollout.bench.scaling.sim import report
from mpi_rollout.bench.scaling.sim.analysis import Check, CurveRow, SimulationAnalysis
from mpi_rollout.bench.scaling.sim.constants import Known, known_from_study
from mpi_rollout.bench.scaling.sim.file import SimulationFile, check_same_simulation, read_simulation
from mpi_rollout.bench.scaling.sim.question import GIVEN, MEASURED, Envs, Setting, Simulation, constants_of
from mpi_rollout.bench.scaling.study import Point
from mpi_rollout.bench.workplace import claimed, now, origin, tell
from mpi_rollout.errors import Interrupted, RolloutError, UsageError, counted
from mpi_rollout.storage.output import check_folder


def simulate(question: Simulation, out: str, timeout_s: float, dry_run: bool = False) -> int:
    """Answer a question, or do what is left of that; print what it shows; return the exit code.

    Raises
    ------
    RolloutError
        Some jobs failed, which was no reason to stop; or the constants could not be fitted.
    Interrupted
        Somebody asked us to stop; the same command continues.
    UsageError, DataError, StorageError, LaunchError
        There is something else in the file's place, or no launcher, or no way to write.
    """
    check_seconds("--timeout-s", timeout_s)
    if dry_run:
        print("\n".join(commands(question, out)))
        return 0
    check_folder(out)
    has_jobs = bool(question.check) or question.constants_from == MEASURED
    launcher = usable_launcher(question.launcher) if has_jobs else ""
    with claimed(out) as folder, stopping_on_signals() as stop:
        file = _open(question, out, folder, timeout_s, stop)
        file = _Runner(file, out, folder, launcher, timeout_s, stop).run()
    print("\n".join([*report.lines(file), f"file: {out}"]))
    return _ending(file, out)


def commands(question: Simulation, out: str) -> list[str]:
    """The commands of all jobs, as a shell would take them."""
    if question.envs is None:
        raise UsageError("--dry-run prints the jobs of given envs, got --env; give --env-step-s and --obs-bytes")
    launcher = told_launcher(question.launcher)
    return [
        shlex.join(question.command(launcher, sys.executable, setting, f"{out}.job/{place}.h5"))
        for place, setting in enumerate(question.settings(question.envs))
    ]


def _ending(file: SimulationFile, out: str) -> int:
    num_failed = sum(bool(job.error) for _, job in file.samples)
    if num_failed:
        raise RolloutError(f"{num_failed} of {counted(len(file.samples), 'job')} failed; {out} has their errors")
    analysis = SimulationAnalysis(file)
    if analysis.constants is None:
        raise RolloutError(
            f"no constants: {analysis.fitting.result}; give more numbers of ranks by --probe, or "
            "constants, and another --out"
        )
    return 0


def _open(question: Simulation, out: str, folder: Path, timeout_s: float, stop: Stop) -> SimulationFile:
    """What there is of this simulation; without a file what has to be known before the jobs."""
    facts = machine_facts()
    if os.path.lexists(out):
        stored = read_simulation(out)
        check_same_simulation(out, stored, question, facts)
        return stored
    known = _known(question)
    envs = question.envs or _measured(question, folder, timeout_s, stop)
    return SimulationFile(question, envs, known, facts, origin())


def _known(question: Simulation) -> Known | None:
    if question.constants_from == MEASURED:
        return None
    if question.constants_from == GIVEN:
        return Known(constants_of(question.given), "given on the command line")
    return known_from_study(question.constants_from)


def _measured(question: Simulation, folder: Path, timeout_s: float, stop: Stop) -> Envs:
    tell(f"measuring {question.env_name}")
    found = probe_env({**question.env, "num_envs": question.envs_per_rank}, folder, timeout_s, stop)
    return Envs(found.env_s, found.env_spread_s, found.observation_bytes, found.action_bytes)


class _Runner:
    """Does the jobs that are left, and has the file written after each."""

    def __init__(self, file: SimulationFile, out: str, folder: Path, launcher: str, timeout_s: float, stop: Stop):
        self.file = file
        self._out, self._folder, self._launcher, self._timeout_s, self._stop = out, folder, launcher, timeout_s, stop

    def run(self) -> SimulationFile:
        """Do them; return the simulation with all samples."""
        order = self.file.question.settings(self.file.envs)
        done = {setting for setting, _ in self.file.samples}
        try:
            for setting in order:
                if setting not in done:
                    self._add(setting, len(order))
        except Interrupted as error:
            num = len(self.file.samples)
            raise Interrupted(f"{error}; {num} of {len(order)} jobs are done; the same command continues") from error
        self._write()
        return self.file

    def _add(self, setting: Setting, num_jobs: int) -> None:
        started, point = now(), Point(setting.num_ranks, setting.repeat)
        try:
            outcome = self._job(setting)
            found = Samples().with_outcome(point.repeat, started, int(self.file.facts["num_cores"]), outcome)
            told = f"{1e3 * outcome['seconds'] / outcome['num_steps']:.2f} ms per step"
        except JobFailed as error:
            found = Samples().with_failure(point, setting.num_ranks * setting.envs_per_rank, started, str(error))
            told = f"failed: {str(error).splitlines()[0]}"
        self.file = replace(self.file, samples=(*self.file.samples, (setting, found.jobs[0])))
        self._write()
        tell(f"job {len(self.file.samples)} of {num_jobs}: {setting}: {told}")

    def _write(self) -> None:
        """With what follows from the samples so far."""
        analysis = SimulationAnalysis(self.file)
        rows = [row for curve in analysis.curves for row in curve.rows]
        used = json.dumps(asdict(analysis.constants)) if analysis.constants else ""
        words = {"constants_used": used, "constants_used_origin": analysis.origin}
        self.file.write(self._out, now(), words, curves=(CurveRow, rows), checks=(Check, analysis.checks))

    def _job(self, setting: Setting) -> dict[str, Any]:
        out = self._folder / f"{len(self.file.samples)}.h5"
        command = self.file.question.command(self._launcher, sys.executable, setting, str(out))
        return run_job(command, self._folder, self._timeout_s, self._stop)
