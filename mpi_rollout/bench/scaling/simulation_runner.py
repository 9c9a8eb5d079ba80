"""Doing a simulation: the jobs that measure, if there are any, then the model, then showing its results."""

import json
import os
import shlex
from dataclasses import asdict, replace

from mpi_rollout.bench.env_probe import probe_env
from mpi_rollout.bench.jobs import JobFailed, JobRunner, stopping_on_signals
from mpi_rollout.bench.model import Constants
from mpi_rollout.bench.plan import check_packages, printable_launcher, run_command, usable_launcher
from mpi_rollout.bench.scaling import simulation_report as report
from mpi_rollout.bench.scaling.curves import Check, CurveRow, SimulationAnalysis
from mpi_rollout.bench.scaling.fitting import known_from_study
from mpi_rollout.bench.scaling.samples import Point, Samples
from mpi_rollout.bench.scaling.simulation import (
    GIVEN,
    MEASURED,
    Envs,
    Known,
    Setting,
    Simulation,
    SimulationFile,
    read_simulation,
)
from mpi_rollout.bench.tables import check_same
from mpi_rollout.bench.workplace import Facts, claimed, machine_facts, origin, tell
from mpi_rollout.core.clock import utc_now
from mpi_rollout.errors import Interrupted, RolloutError, UsageError, counted
from mpi_rollout.storage.output import check_folder


def simulate(question: Simulation, out: str) -> int:
    """Answer a question, or do what is left of that; print the results; return the exit code.

    Raises
    ------
    RolloutError
        Some jobs failed, which was no reason to stop; or the constants could not be fitted.
    Interrupted
        Somebody asked us to stop; the same command continues.
    UsageError, DataError, StorageError, LaunchError
        There is something else in the file's place, or no launcher, or no way to write.
    """
    if question.jobs.dry_run:
        print("\n".join(commands(question, out)))
        return 0
    check_packages()
    check_folder(out)
    launcher = usable_launcher(question.jobs.launcher) if question.has_jobs else ""
    with claimed(out) as folder, stopping_on_signals() as stop:
        jobs = JobRunner(folder, launcher, question.jobs.timeout_s, stop)
        file = _Runner(_open(question, out, jobs), out, jobs).run()
    print("\n".join([*report.lines(file), f"file: {out}"]))
    return _exit_code(file, out)


def commands(question: Simulation, out: str) -> list[str]:
    """Return the commands of all jobs, as a shell would take them."""
    if question.envs is None:
        raise UsageError("--dry-run prints the jobs of given envs, got --env; give --env-step-s and --obs-bytes")
    launcher = printable_launcher(question.jobs.launcher)
    return [
        shlex.join(run_command(launcher, setting.num_ranks, question.config(setting, f"{out}.job/{place}.h5")))
        for place, setting in enumerate(question.settings(question.envs))
    ]


def _exit_code(file: SimulationFile, out: str) -> int:
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


def _open(question: Simulation, out: str, jobs: JobRunner) -> SimulationFile:
    """Return what there is of this simulation; without a file what has to be known before the jobs."""
    facts = machine_facts()
    if os.path.lexists(out):
        stored = read_simulation(out)
        _check_same(out, stored, question, facts)
        return stored
    known = _known(question)
    return SimulationFile(question, question.envs or _measured(question, jobs), known, facts, origin())


def _check_same(path: str, stored: SimulationFile, question: Simulation, facts: Facts) -> None:
    """Refuse to go on with another question, or on another machine or by another program.

    Raises
    ------
    UsageError
        The message says what differs.
    """
    before, now = stored.question.as_dict() | stored.facts, question.as_dict() | facts
    changed = [name for name in now if before[name] != now[name]]
    words = [f"{name.replace('_', ' ')} was {before[name]}, is {now[name]}" for name in changed]
    check_same(path, "simulation", words)


def _known(question: Simulation) -> Known | None:
    if question.constants_from == MEASURED:
        return None
    if question.constants_from == GIVEN:
        return Known(Constants(**question.given), "given on the command line")
    return known_from_study(question.constants_from)


def _measured(question: Simulation, jobs: JobRunner) -> Envs:
    tell(f"measuring {question.env_name}")
    env = probe_env({**question.env, "num_envs": question.envs_per_rank}, jobs)
    return Envs(env.env_s, env.env_spread_s, env.observation_bytes, env.action_bytes)


class _Runner:
    """Does the jobs that are left, and writes the file after each."""

    def __init__(self, file: SimulationFile, out: str, jobs: JobRunner):
        self.file, self._out, self._jobs = file, out, jobs

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
        started, point = utc_now(), Point(setting.num_ranks, setting.repeat)
        out = str(self._jobs.folder / f"{len(self.file.samples)}.h5")
        config = self.file.question.config(setting, out)
        try:
            outcome = self._jobs.run(setting.num_ranks, config)
            samples = Samples().with_outcome(point.repeat, started, int(self.file.facts["num_cores"]), outcome)
            result = f"{1e3 * outcome['seconds'] / outcome['num_steps']:.2f} ms per step"
        except JobFailed as error:
            samples = Samples().with_failure(point, config.num_envs, started, str(error))
            result = f"failed: {error.headline}"
        self.file = replace(self.file, samples=(*self.file.samples, (setting, samples.jobs[0])))
        self._write()
        tell(f"job {len(self.file.samples)} of {num_jobs}: {setting}: {result}")

    def _write(self) -> None:
        """Write the file with what follows from the samples so far."""
        analysis = SimulationAnalysis(self.file)
        rows = [row for curve in analysis.curves for row in curve.rows]
        used = json.dumps(asdict(analysis.constants)) if analysis.constants else ""
        words = {"constants_used": used, "constants_used_origin": analysis.origin, "updated": utc_now()}
        self.file.write(self._out, words, {"curves": (CurveRow, rows), "checks": (Check, analysis.checks)})
