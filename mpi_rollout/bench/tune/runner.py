"""Tuning: measure the env by itself, the exchange with idle envs, then the candidates as real jobs, in random order."""

import math
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mpi_rollout.bench.env_probe import EnvFigures, probe_env
from mpi_rollout.bench.jobs import (
    JobFailed,
    Stop,
    check_seconds,
    run_job,
    stopping_on_signals,
    told_launcher,
    usable_launcher,
)
from mpi_rollout.bench.machine import cpu_model
from mpi_rollout.bench.plan import arguments_of, in_order
from mpi_rollout.bench.tune import report
from mpi_rollout.bench.tune.candidates import Candidate, Costs, candidates, narrow
from mpi_rollout.bench.tune.trials import Trial
from mpi_rollout.bench.workplace import tell
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.host import free_memory, num_usable_cores
from mpi_rollout.envs.bare import WINDOW_S
from mpi_rollout.errors import Interrupted, RolloutError, StorageError, UsageError, counted

LEAST_STEPS, MOST_STEPS = 20, 1_000_000
EXCHANGE_STEPS, EXCHANGE_JOBS = 1000, 3


@dataclass(frozen=True)
class Tuning:
    """What is to be tuned, as it was asked.

    Parameters
    ----------
    run
        Values of `options.RUN_OPTIONS`.
    ranks
        Ascending; empty for 1, 2, 4, ... up to the cores that this process may use.
    trial_s
        Seconds of steps in a job, by the model.
    timeout_s
        Of one job, and of measuring the env.

    Raises
    ------
    UsageError
        A value that cannot be.
    """

    run: dict[str, Any]
    ranks: tuple[int, ...] = ()
    repeats: int = 5
    order_seed: int = 0
    trial_s: float = 3.0
    timeout_s: float = 300.0
    launcher: str = ""

    def __post_init__(self):
        for name, value, least in (("--repeats", self.repeats, 1), ("--order-seed", self.order_seed, 0)):
            if value < least:
                raise UsageError(f"{name} must be at least {least}, got {value}")
        if not 0 < self.trial_s < math.inf:
            raise UsageError(f"--trial-s must be a number of seconds and more than 0, got {self.trial_s:g}")
        check_seconds("--timeout-s", self.timeout_s)
        try:
            shlex.split(self.launcher)
        except ValueError as error:
            raise UsageError(f"--launcher {self.launcher!r}: {error}") from error
        num_envs = self.config.num_envs  # Refuses here what every job would refuse.
        if self.ranks and num_envs < self.ranks[-1]:
            raise UsageError(
                f"--num-envs must be at least the largest of --ranks, got {counted(num_envs, 'env')} for "
                f"{counted(self.ranks[-1], 'rank')}; "
                "use more envs or fewer ranks"
            )

    @cached_property
    def config(self) -> RolloutConfig:
        """The run, as it would be without any tuning."""
        return RolloutConfig(**self.run)

    @cached_property
    def num_ranks(self) -> tuple[int, ...]:
        """Numbers of ranks to try, ascending; none has more ranks than envs."""
        cores = num_usable_cores()
        usual = sorted({2**power for power in range(cores.bit_length())} | {cores})
        return self.ranks or tuple(each for each in usual if each <= self.config.num_envs)

    @property
    def subject(self) -> report.Subject:
        config, cores = self.config, num_usable_cores()
        given = [each for each in arguments_of(config) if not each.startswith("--num-envs=")]
        words = [word for argument in given for word in argument.split("=", 1)] + ["--num-envs", str(config.num_envs)]
        return report.Subject(
            name=config.env or config.env_factory,
            num_envs=config.num_envs,
            num_ranks=self.num_ranks[-1],
            launcher=self.launcher or "mpirun",
            words=tuple(words),
            machine=f"{os.uname().nodename} ({cpu_model()}, {counted(cores, 'core')})",
            free_bytes=free_memory(),
        )


def tune(tuning: Tuning, dry_run: bool = False) -> int:
    """Tune; print what was found; return the exit code.

    Raises
    ------
    RolloutError
        Some jobs failed, which was no reason to stop.
    Interrupted
        Somebody asked us to stop; what was found so far is printed.
    UsageError, EnvError, StorageError, LaunchError
        There is no such env, it fails by itself, or there is no way to start jobs or to write here.
    """
    launcher = (told_launcher if dry_run else usable_launcher)(tuning.launcher)
    with _folder() as folder, stopping_on_signals("tuning") as stop:
        tuner = _Tuner(tuning, Path(folder), launcher, stop)
        tuner.measure_env()
        if dry_run:
            print("\n".join(tuner.commands()))
            return 0
        tuner.measure_exchange()
        trials = tuner.run()
    num_failed = sum(bool(trial.error) for trial in trials)
    if num_failed:
        raise RolloutError(f"{num_failed} of {counted(len(trials), 'job')} failed; the others are in the table")
    return 0


def _folder() -> tempfile.TemporaryDirectory:
    """Here, not in /tmp: jobs write as runs do, to the same disk."""
    try:
        return tempfile.TemporaryDirectory(prefix=".mpi_rollout-tune-", dir=".", ignore_cleanup_errors=True)
    except OSError as error:
        raise StorageError(f"cannot make a folder for the jobs here: {error.strerror}; start it elsewhere") from error


class _Tuner:
    def __init__(self, tuning: Tuning, folder: Path, launcher: str, stop: Stop):
        self._tuning, self._folder, self._launcher, self._stop = tuning, folder, launcher, stop
        self._subject = tuning.subject
        self._env: EnvFigures | None = None
        self._costs: Costs | None = None
        self._seconds: dict[Candidate, float] = {}  # That a step took in a candidate's last job.

    def measure_env(self) -> None:
        """By itself, in a child process."""
        tell(f"measuring {self._subject.name} by itself")
        env = probe_env(
            self._tuning.run, self._folder, self._tuning.timeout_s, self._stop, min(WINDOW_S, self._tuning.trial_s)
        )
        self._env = env
        self._costs = Costs(self._subject.num_envs, env.env_s, env.env_spread_s, env.policy_s)

    def commands(self) -> list[str]:
        """Those of all candidates; without the exchange none of those that overlap can be left out."""
        return [shlex.join(self._command(self._config(each), each)) for each in self._candidates()]

    def _candidates(self) -> list[Candidate]:
        return candidates(self._tuning.num_ranks, self._subject.num_envs, self._env.is_native)

    def measure_exchange(self) -> None:
        """By jobs of idle envs with as large observations, on one rank and on all.

        The least of some jobs: other work on the machine makes it only longer, and what is left out is not tried.
        Laying out rows that nobody stores is the root's work too, and so are random actions, if the run has them.
        """
        found: dict[int, float] = {}
        for ranks in sorted({1, self._tuning.num_ranks[-1]}) * EXCHANGE_JOBS:
            tell(f"measuring the exchange on {counted(ranks, 'rank')}")
            config = replace(
                self._config(Candidate(ranks)), env=None, env_factory="mpi_rollout.bench.sleeping:SleepingEnv",
                env_kwargs={"step_s": 0.0, "observation_bytes": self._env.observation_bytes}, policy="random",
                num_steps=EXCHANGE_STEPS, trajectories=False, measure_limit=False,
            )  # fmt: skip
            try:
                outcome = self._job(config, Candidate(ranks))
            except JobFailed as error:
                tell(f"measuring the exchange failed: {str(error).splitlines()[0]}; nothing is left out for it")
                return
            shares = [outcome["losses"][name] for name in self._root_phases]
            seconds = sum(shares) * outcome["seconds"] / outcome["num_steps"]
            found[ranks] = min(seconds, found.get(ranks, seconds))
        self._costs = replace(self._costs, exchange_s=found)

    @property
    def _root_phases(self) -> tuple[str, ...]:
        is_random = self._tuning.config.policy == "random"
        return ("exchange", "write", "policy") if is_random else ("exchange", "write")

    def run(self) -> list[Trial]:
        """Try what may win; print what was found, also when somebody stops us."""
        kept, left_out = narrow(self._candidates(), self._costs)
        print("\n".join([*report.env_lines(self._subject, self._env), report.exchange_line(self._costs),
                         *report.left_out_lines(left_out), ""]), flush=True)  # fmt: skip
        trials: list[Trial] = []
        order = in_order(kept, self._tuning.repeats, self._tuning.order_seed)
        try:
            for repeat, candidate in order:
                if not any(trial.candidate == candidate and trial.error for trial in trials):
                    trials.append(self._try(candidate, repeat))
                    tell(f"job {len(trials)} of {len(order)}: {candidate}: {_told(trials[-1])}")
        except Interrupted as error:
            raise Interrupted(f"{error}; {len(trials)} of {len(order)} jobs were done") from error
        finally:
            if trials:
                print("\n".join(report.trial_lines(self._subject, trials)), flush=True)
        return trials

    def _try(self, candidate: Candidate, repeat: int) -> Trial:
        try:
            outcome = self._job(self._config(candidate), candidate)
        except JobFailed as error:
            return Trial(candidate, repeat, error=str(error))
        self._seconds[candidate] = outcome["seconds"] / outcome["num_steps"]
        limits = [limit for _, limit in outcome["limit"]]
        return Trial(candidate, repeat, outcome["env_steps_per_s"], float(np.median(limits)) if limits else 0.0)

    def _config(self, candidate: Candidate) -> RolloutConfig:
        """Bare loops are measured where each core has its rank, once for each way of stepping."""
        seconds = self._seconds.get(candidate) or self._costs.seconds(candidate)
        num_steps = round(min(max(self._tuning.trial_s / max(seconds, 1e-9), LEAST_STEPS), MOST_STEPS))
        has_all = candidate.is_lockstep and candidate.num_ranks == self._tuning.num_ranks[-1]  # Never left out.
        return replace(
            self._tuning.config, num_steps=num_steps, out=str(self._folder / "run.h5"), json=True, progress="none",
            expect_ranks=candidate.num_ranks, measure_limit=has_all,
            limit_s=min(1.0, self._tuning.trial_s / 3), **candidate.options,
        )  # fmt: skip

    def _command(self, config: RolloutConfig, candidate: Candidate) -> list[str]:
        start = [*shlex.split(self._launcher), "-n", str(candidate.num_ranks), sys.executable, "-m", "mpi_rollout"]
        return [*start, "run", *arguments_of(config)]

    def _job(self, config: RolloutConfig, candidate: Candidate) -> dict[str, Any]:
        return run_job(self._command(config, candidate), self._folder, self._tuning.timeout_s, self._stop)


def _told(trial: Trial) -> str:
    return f"failed: {trial.error.splitlines()[0]}" if trial.error else f"{trial.env_steps_per_s:,.0f} env steps/s"
