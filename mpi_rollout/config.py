"""What a run is told: one frozen dataclass, from which the command line is derived and which the file stores."""

import importlib
import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import gymnasium
import numpy as np

from mpi_rollout import __version__
from mpi_rollout.deadline import seconds_of
from mpi_rollout.errors import UsageError

VECTORIZATION_MODES = ("sync", "vector_entry_point")
MODES = ("sync", "async")
ON_ENV_ERROR = ("abort", "restart")
FAULT_TOLERANCE = ("abort", "shrink")
WAITS = ("auto", "spin", "sleep")
PROGRESS = ("auto", "bar", "lines", "none")


def option(default: Any, help_text: str, **extra: Any) -> Any:
    """A dataclass field with its help text beside its default."""
    metadata = {"help": help_text, **extra}
    return (
        field(default_factory=default, metadata=metadata)
        if callable(default)
        else field(default=default, metadata=metadata)
    )


MAX_TIMEOUT_S = 1e6  # faulthandler counts microseconds in 64 bits; this is eleven days.

# What decides on the data, and so must not change when a run is continued.
DATA_OPTIONS = (
    "env", "env_factory", "env_kwargs", "num_envs", "num_steps", "seed", "policy", "vectorization_mode", "trajectories"
)  # fmt: skip
LEAST = {
    "num_envs": 1, "num_steps": 1, "seed": 0, "num_groups": 1, "batch_size": 1, "expect_ranks": 1, "max_env_restarts": 1
}  # fmt: skip
CHOICES = {
    "vectorization_mode": VECTORIZATION_MODES, "mode": MODES, "ft": FAULT_TOLERANCE, "on_env_error": ON_ENV_ERROR,
    "wait": WAITS, "progress": PROGRESS,
}  # fmt: skip


@dataclass(frozen=True)
class RolloutConfig:
    """The options of `run`.  The same values give the same data, whatever the number of ranks.

    Raises
    ------
    UsageError
        A value that no run can have.
    """

    env: str | None = option(
        None, "env id, as gymnasium.make takes it: CartPole-v1, ale_py:ALE/Breakout-v5", metavar="ID"
    )
    env_factory: str | None = option(
        None, "callable that returns one env, for envs that are not registered", metavar="MODULE:CALLABLE"
    )
    env_kwargs: dict[str, Any] = option(dict, "JSON object of keyword arguments for the env", metavar="JSON")
    num_envs: int = option(64, "envs over all ranks")
    num_steps: int = option(1000, "steps of each env")
    seed: int = option(0, "of everything random")
    policy: str = option("random", "random, or a callable that takes batched observations", metavar="MODULE:CALLABLE")
    out: str = option(
        "results/rollout.h5", "file to write; if the same run was interrupted there, it is continued", metavar="FILE"
    )
    vectorization_mode: str = option(
        "sync", "how a rank steps its envs: one after the other, or by the env's own vectorized version",
        choices=VECTORIZATION_MODES,
    )  # fmt: skip
    mode: str = option(
        "sync", "all ranks in lockstep, or whichever rank is ready first", choices=MODES,
    )  # fmt: skip
    num_groups: int = option(1, "groups of envs that are stepped in turn: 2 let the ranks step while the policy works")
    batch_size: int = option(1, "with --mode async, the ranks whose envs the policy is given together")
    dedicated_root: bool = option(False, "rank 0 steps no envs")
    wait: str = option(
        "auto", "how a rank waits for messages: at the cost of its core, which is quickest, or asleep; auto is asleep "
        "where a host has four ranks or more for each core", choices=WAITS,
    )  # fmt: skip
    trajectories: bool = option(True, "store what the envs did, not the throughput alone")
    measure_limit: bool = option(False, "measure bare env.step loops between parts of the run and tell the ratio")
    limit_s: float = option(1.0, "with --measure-limit, seconds of each of its six measurements", metavar="S")
    on_env_error: str = option(
        "abort", "an env that fails ends the run, or is made anew: its episode is then truncated and faulted",
        choices=ON_ENV_ERROR,
    )  # fmt: skip
    max_env_restarts: int = option(10, "with --on-env-error restart, how often each env may be made anew", metavar="N")
    env_timeout: float | None = option(
        None, "seconds that a step or reset may take; one that takes longer is an error of that env", metavar="S"
    )
    check_finite: bool = option(False, "NaN and infinity in observations and rewards are errors of the env")
    max_walltime: str | None = option(
        None, "stop in time, with all steps committed, before this much time has passed: 01:30:00, as SLURM writes it",
        metavar="TIME",
    )  # fmt: skip
    ft: str = option(
        "abort", "when a rank is lost: end the job, or go on without its envs (mpirun --with-ft ulfm)",
        choices=FAULT_TOLERANCE,
    )  # fmt: skip
    expect_ranks: int | None = option(None, "refuse to run on any other number of ranks", metavar="N")
    progress: str = option("auto", "how to tell how far it is: a bar on a terminal, else lines", choices=PROGRESS)
    json: bool = option(False, "print the summary as one line of JSON")

    def __post_init__(self):
        if (self.env is None) == (self.env_factory is None):
            raise UsageError(
                "give one of --env ID and --env-factory MODULE:CALLABLE, got "
                + ("none" if self.env is None else "both")
            )
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{flag(name)} must be at least {least}, got {value}")
        if not isinstance(self.env_kwargs, dict):
            raise UsageError(f"--env-kwargs must be a JSON object, got {json.dumps(self.env_kwargs)}")
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise UsageError(f"{flag(name)} must be one of {', '.join(allowed)}, got {getattr(self, name)}")
        if not 0 < self.limit_s <= MAX_TIMEOUT_S:
            raise UsageError(f"--limit-s must be more than 0 s and at most {MAX_TIMEOUT_S:g}, got {self.limit_s:g}")
        if self.env_timeout is not None and not 0 < self.env_timeout <= MAX_TIMEOUT_S:
            raise UsageError(
                f"--env-timeout must be more than 0 s and at most {MAX_TIMEOUT_S:g}, got {self.env_timeout:g}"
            )
        if self.max_walltime is not None:
            seconds_of(self.max_walltime)
        if self.mode == "async" and self.num_groups > 1:
            raise UsageError(
                f"--mode async makes a group of each rank, got --num-groups {self.num_groups} too; use one"
            )
        if self.ft == "shrink" and (self.mode != "sync" or self.num_groups > 1):
            got = f"--num-groups {self.num_groups}" if self.num_groups > 1 else f"--mode {self.mode}"
            raise UsageError(f"--ft shrink is for ranks in lockstep, got {got}; leave one of the two out")
        if self.ft == "shrink" and self.wait == "sleep":
            raise UsageError("--ft shrink needs MPI's own waits, got --wait sleep; leave one of the two out")
        if self.ft == "shrink" and self.on_env_error == "restart":
            raise UsageError("--ft shrink and --on-env-error restart do not go together yet; leave one of the two out")

    def to_json(self) -> str:
        """All values, keys sorted."""
        return json.dumps(asdict(self), sort_keys=True)


def flag(name: str) -> str:
    """A field's option as the user types it."""
    return "--" + name.replace("_", "-")


def load_callable(spec: str, option_name: str) -> Callable[..., Any]:
    """Import `module:callable`.

    Raises
    ------
    UsageError
        There is no such module or callable; the message has the reason.
    """
    module_name, colon, name = spec.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"{option_name} must be MODULE:CALLABLE, got {spec!r}")
    try:
        target: Any = importlib.import_module(module_name)
        for part in name.split("."):
            target = getattr(target, part)
    except AttributeError as error:
        raise UsageError(f"{option_name} {spec}: {error}") from error
    except Exception as error:
        raise UsageError(
            f"{option_name} {spec}: cannot import {module_name!r}: {type(error).__name__}: {error}"
        ) from error
    if not callable(target):
        raise UsageError(f"{option_name} {spec} is {type(target).__name__}, not callable")
    return target


def versions() -> dict[str, str]:
    """Of what takes part in making the data."""
    found = {"mpi_rollout": __version__, "python": platform.python_version()}
    return found | {"numpy": np.__version__, "gymnasium": gymnasium.__version__}
