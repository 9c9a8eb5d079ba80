"""Tuning: measure the env by itself, the exchange with idle envs, then the candidates as real jobs, in random order."""

import math
import os
import shlex
import tempfile
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from mpi_rollout.bench.env_probe import EnvFigures, probe_env
from mpi_rollout.bench.jobs import JobFailed, JobRunner, Summary, stopping_on_signals
from mpi_rollout.bench.plan import (
    SLEEPING_ENV,
    JobOptions,
    Options,
    arguments_of,
    check_enough_envs,
    check_packages,
    in_order,
    printable_launcher,
    run_command,
    usable_launcher,
)
from mpi_rollout.bench.tune import report
from mpi_rollout.bench.tune.candidates import Candidate, Costs, Trial, candidates, narrow
from mpi_rollout.bench.workplace import cpu_model, tell
from mpi_rollout.config import AUTO, RolloutConfig
from mpi_rollout.core.host import free_memory, num_usable_cores
from mpi_rollout.envs.bare import WINDOW_S
from mpi_rollout.errors import Interrupted, RolloutError, StorageError, UsageError, counted

LEAST_STEPS, MOST_STEPS = 20, 1_000_000
EXCHANGE_STEPS, EXCHANGE_JOBS = 1000, 3


@dataclass(frozen=True)
class Tuning:
    """What is to be tuned, as the user asked for it.

    Parameters
    ----------
    run
        Values of `commands.TUNE_OPTIONS`.
    ranks
        Ascending; empty for 1, 2, 4, ... up to the cores that this process may use.
    trial_s
        Seconds of steps in a job, by the model.

    Raises
    ------
    UsageError
        A value that cannot be.
    """

    run: Options
    ranks: tuple[int, ...] = ()
    trial_s: float = 3.0
    jobs: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        if not 0 < self.trial_s < math.inf:
            raise UsageError(f"--trial-s must be a number of seconds and more than 0, got {self.trial_s:g}")
        num_envs = self.config.num_envs  # Refuses here what every job would refuse.
        if self.ranks:
            check_enough_envs(num_envs, self.ranks[-1])

    @cached_property
    def config(self) -> RolloutConfig:
        """The run, as it would be without any tuning."""
        return RolloutConfig(**self.run)

    @property
    def is_random(self) -> bool:
        return self.config.policy == "random"

    @cached_property
    def num_ranks(self) -> tuple[int, ...]:
        """Numbers of ranks to try, ascending; none has more ranks than envs."""
        cores = num_usable_cores()
        usual = sorted({2**power for power in range(cores.bit_length())} | {cores})
        return self.ranks or tuple(num_ranks for num_ranks in usual if num_ranks <= self.config.num_envs)

    @property
    def subject(self) -> report.Subject:
        config, cores = self.config, num_usable_cores()
        given = [argument for argument in arguments_of(config) if not argument.startswith("--num-envs=")]
        words = [word for argument in given for word in argument.split("=", 1)] + ["--num-envs", str(config.num_envs)]
        return report.Subject(
            name=str(config.env or config.env_factory),
            num_envs=config.num_envs,
            num_ranks=self.num_ranks[-1],
            launcher=self.jobs.launcher or "mpirun",
            words=tuple(words),
            machine=f"{os.uname().nodename} ({cpu_model()}, {counted(cores, 'core')})",
            free_bytes=free_memory(),
        )


def tune(tuning: Tuning) -> int:
    """Tune; print the results; return the exit code.

    Raises
    ------
    RolloutError
        Some jobs failed, which was no reason to stop.
    Interrupted
        Somebody asked us to stop; the results so far are printed.
    UsageError, EnvError, StorageError, LaunchError
        There is no such env, it fails by itself, or there is no way to start jobs or to write here.
    """
    options = tuning.jobs
    if not options.dry_run:
        check_packages()
    launcher = (printable_launcher if options.dry_run else usable_launcher)(options.launcher)
    with _folder() as folder, stopping_on_signals("tuning") as stop:
        jobs = JobRunner(Path(folder), launcher, options.timeout_s, stop)
        tuner = _Tuner(tuning, jobs)
        if options.dry_run:
            print("\n".join(tuner.commands()))
            return 0
        tuner.measure_exchange()
        trials = tuner.run()
    num_failed = sum(bool(trial.error) for trial in trials)
    if num_failed:
        raise RolloutError(f"{num_failed} of {counted(len(trials), 'job')} failed; the others are in the table")
    return 0


def _folder() -> tempfile.TemporaryDirectory:
    """Make a folder here, not in /tmp: jobs write as runs do, to the same disk."""
    try:
        return tempfile.TemporaryDirectory(prefix=".mpi_rollout-tune-", dir=".", ignore_cleanup_errors=True)
    except OSError as error:
        raise StorageError(f"cannot make a folder for the jobs here: {error.strerror}; start it elsewhere") from error


class _Tuner:
    """Measures the env by itself when it is made; then the exchange and the candidates, by jobs."""

    def __init__(self, tuning: Tuning, jobs: JobRunner):
        self._tuning, self._jobs, self._subject = tuning, jobs, tuning.subject
        self._env = self._measure_env()
        env = self._env
        self._costs = Costs(self._subject.num_envs, env.env_s, env.env_spread_s, env.policy_s)
        self._seconds: dict[Candidate, float] = {}  # That a step took in a candidate's last job.

    def _measure_env(self) -> EnvFigures:
        tell(f"measuring {self._subject.name} by itself")
        return probe_env(self._tuning.run, self._jobs, min(WINDOW_S, self._tuning.trial_s))

    def commands(self) -> list[str]:
        """Return those of all candidates; unless the exchange is measured, none that overlaps can be left out."""
        launcher, ways = self._jobs.launcher, self._candidates()
        return [shlex.join(run_command(launcher, way.num_ranks, self._config(way))) for way in ways]

    def _candidates(self) -> list[Candidate]:
        tuning = self._tuning
        return candidates(tuning.num_ranks, self._subject.num_envs, self._env.is_native, tuning.is_random)

    def measure_exchange(self) -> None:
        """Measure it by jobs of idle envs with as large observations, on one rank and on all.

        Of several jobs the least time counts: other work on the machine only makes it longer, and an exchange that
        seems too long would leave out candidates.  Laying out rows that nobody stores is the root's work too, and so
        are random actions, if the run has them.
        """
        exchange_s: dict[int, float] = {}
        fragment_length = 1
        idle = {"step_s": 0.0, "observation_bytes": self._env.observation_bytes}
        run: Options = {"env": None, "env_factory": SLEEPING_ENV, "env_kwargs": idle, "policy": "random"}
        run |= {"fragment_length": AUTO if self._tuning.is_random else "1", "vectorization_mode": "sync"}
        for num_ranks in sorted({1, self._tuning.num_ranks[-1]}) * EXCHANGE_JOBS:
            tell(f"measuring the exchange on {counted(num_ranks, 'rank')}")
            config = replace(self._config(Candidate(num_ranks)), **run, num_steps=EXCHANGE_STEPS)
            config = replace(config, trajectories=False, measure_limit=False)
            try:
                outcome = self._jobs.run(num_ranks, config)
            except JobFailed as error:
                tell(f"measuring the exchange failed: {error.headline}; nothing is left out for it")
                return
            seconds = self._root_s(outcome)
            exchange_s[num_ranks] = min(seconds, exchange_s.get(num_ranks, seconds))
            fragment_length = outcome["fragment_length"]
        self._costs = replace(self._costs, exchange_s=exchange_s, fragment_length=fragment_length)

    def _root_s(self, outcome: Summary) -> float:
        """Return the seconds of a step in which the root did not wait for envs."""
        phases = ("exchange", "write", "policy") if self._tuning.is_random else ("exchange", "write")
        shares = [outcome["losses"][name] for name in phases]
        return sum(shares) * outcome["seconds"] / outcome["num_steps"]

    def run(self) -> list[Trial]:
        """Try what may win; print the results, also when somebody stops us."""
        kept, left_out = narrow(self._candidates(), self._costs)
        lines = [*report.env_lines(self._subject, self._env), report.exchange_line(self._costs)]
        print("\n".join([*lines, *report.left_out_lines(left_out), ""]), flush=True)
        trials: list[Trial] = []
        order = in_order(kept, self._tuning.jobs)
        try:
            for repeat, candidate in order:
                if not any(trial.candidate == candidate and trial.error for trial in trials):
                    trials.append(self._try(candidate, repeat))
                    tell(f"job {len(trials)} of {len(order)}: {candidate}: {_result(trials[-1])}")
        except Interrupted as error:
            raise Interrupted(f"{error}; {len(trials)} of {len(order)} jobs were done") from error
        finally:
            if trials:
                print("\n".join(report.trial_lines(self._subject, trials)), flush=True)
        return trials

    def _try(self, candidate: Candidate, repeat: int) -> Trial:
        try:
            outcome = self._jobs.run(candidate.num_ranks, self._config(candidate))
        except JobFailed as error:
            return Trial(candidate, repeat, error=str(error))
        self._seconds[candidate] = outcome["seconds"] / outcome["num_steps"]
        limits = [limit for _, limit in outcome["limit"]]
        return Trial(candidate, repeat, outcome["env_steps_per_s"], float(np.median(limits)) if limits else 0.0)

    def _config(self, candidate: Candidate) -> RolloutConfig:
        """Return the run of a job.  Bare loops are measured where each core has its rank, once for each kind of env."""
        seconds = self._seconds.get(candidate) or self._costs.seconds(candidate)
        num_steps = round(min(max(self._tuning.trial_s / max(seconds, 1e-9), LEAST_STEPS), MOST_STEPS))
        is_plain = not candidate.options or [*candidate.options] == ["vectorization_mode"]
        has_all = is_plain and candidate.num_ranks == self._tuning.num_ranks[-1]  # Never left out.
        config = replace(self._tuning.config, num_steps=num_steps, out=str(self._jobs.folder / "run.h5"))
        config = replace(config, measure_limit=has_all, limit_s=min(1.0, self._tuning.trial_s / 3))
        own: Options = {"json": True, "progress": "none", "expect_ranks": candidate.num_ranks}
        return replace(config, **own, **candidate.options)


def _result(trial: Trial) -> str:
    return f"failed: {trial.error.splitlines()[0]}" if trial.error else f"{trial.env_steps_per_s:,.0f} env steps/s"
