"""What a scaling study is: its points, their order, and the command of each.  Values: nothing is started or read."""

import shlex
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpi_rollout.bench.plan import arguments_of, in_order
from mpi_rollout.config import RolloutConfig, difference
from mpi_rollout.errors import UsageError, counted

KINDS = ("strong", "weak")
# Options of a run that a study is made of; the rest is the study's own affair.
RUN_OPTIONS = (
    "env", "env_factory", "env_kwargs", "num_steps", "seed", "policy", "vectorization_mode", "mode", "num_groups",
    "trajectories", "wait", "limit_s", "actions", "strict_dtypes",
)  # fmt: skip


class Point(NamedTuple):
    """One job of a study."""

    num_ranks: int
    repeat: int

    def __str__(self) -> str:
        return f"{counted(self.num_ranks, 'rank')}, repeat {self.repeat}"


@dataclass(frozen=True)
class Study:
    """Points of 1 to many ranks, each repeated, every time as a job of its own.

    Parameters
    ----------
    kind
        "strong": `size` envs in all on any number of ranks.  "weak": `size` envs on each rank.
    num_ranks
        Ascending; 1 is among them, because the base case is measured there.
    order_seed
        Of the order of the jobs.
    run
        Values of `RUN_OPTIONS`.
    launcher
        What starts the ranks, without `-n`; empty for the mpirun of this installation.

    Raises
    ------
    UsageError
        A value that no study can have.
    """

    kind: str
    num_ranks: tuple[int, ...]
    size: int
    repeats: int
    order_seed: int
    run: dict[str, Any]
    launcher: str = ""

    def __post_init__(self):
        if not self.num_ranks:
            raise UsageError("--ranks must be one number or more, got none")
        if self.repeats < 1:
            raise UsageError(f"--repeats must be at least 1, got {self.repeats}")
        if self.order_seed < 0:
            raise UsageError(f"--order-seed must be at least 0, got {self.order_seed}")
        try:
            shlex.split(self.launcher)
        except ValueError as error:
            raise UsageError(f"--launcher {self.launcher!r}: {error}") from error
        if self.size < 1:
            raise UsageError(f"{self.size_option} must be at least 1, got {self.size}")
        if self.kind == "strong" and self.size < self.num_ranks[-1]:
            raise UsageError(
                f"--num-envs must be at least the largest of --ranks, got {counted(self.size, 'env')} for "
                f"{self.num_ranks[-1]} "
                "ranks; use more envs or fewer ranks"
            )
        self.config(1, "study.h5")  # Refuses here what every job would refuse.

    @property
    def size_option(self) -> str:
        return "--num-envs" if self.kind == "strong" else "--envs-per-rank"

    @property
    def base_case(self) -> str:
        """In words, what speed-ups are relative to."""
        if self.run["vectorization_mode"] == "vector_entry_point":
            return f"bare step loop over the env's own vectorized version of {self.size} envs, one rank"
        return f"bare env.step loop over {counted(self.size, 'env')}, one rank"

    @property
    def env_name(self) -> str:
        return self.run["env"] or self.run["env_factory"]

    def num_envs(self, num_ranks: int) -> int:
        """Of all ranks together."""
        return self.size if self.kind == "strong" else self.size * num_ranks

    def config(self, num_ranks: int, out: str) -> RolloutConfig:
        """The run of one job."""
        return RolloutConfig(
            **self.run, num_envs=self.num_envs(num_ranks), out=out, measure_limit=True, json=True, progress="none",
            expect_ranks=num_ranks,
        )  # fmt: skip

    def order(self) -> list[Point]:
        """All jobs."""
        return [Point(ranks, repeat) for repeat, ranks in in_order(self.num_ranks, self.repeats, self.order_seed)]

    def command(self, launcher: str, python: str, num_ranks: int, out: str) -> list[str]:
        """The command of one job."""
        options = arguments_of(self.config(num_ranks, out))
        return [*shlex.split(launcher), "-n", str(num_ranks), python, "-m", "mpi_rollout", "run", *options]


def differences(stored: Study, study: Study) -> list[str]:
    """What a stored study has otherwise than this one, in the words of the command line."""
    names = {
        "kind": "the kind", "size": study.size_option, "num_ranks": "--ranks", "repeats": "--repeats",
        "order_seed": "--order-seed", "launcher": "--launcher",
    }  # fmt: skip
    pairs = [(name, getattr(stored, key), getattr(study, key)) for key, name in names.items()]
    found = [f"{name} was {_told(before)}, is {_told(now)}" for name, before, now in pairs if before != now]
    # A file that was written before there was an option has none of it.
    runs = [(key, stored.run.get(key, getattr(RolloutConfig, key, None)), now) for key, now in study.run.items()]
    return found + [difference(key, before, now, str) for key, before, now in runs if before != now]


def _told(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
