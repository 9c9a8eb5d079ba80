"""What a comparison is: envs, numbers of envs, systems, and in which order they have their turns.  Values."""

import shlex
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from mpi_rollout.bench.compare.systems import System, systems_of
from mpi_rollout.bench.jobs import check_seconds
from mpi_rollout.errors import UsageError, counted

BASE = "bare"  # What the others are compared with.
OPTIONS = {
    "envs": "--env", "num_envs": "--num-envs", "systems": "--systems", "ranks": "--ranks", "repeats": "--repeats",
    "window_s": "--window-s", "order_seed": "--order-seed", "launcher": "--launcher",
}  # fmt: skip


class Point(NamedTuple):
    """Where all systems are measured side by side."""

    env: str
    num_envs: int

    def __str__(self) -> str:
        return f"{self.env}, {counted(self.num_envs, 'env')}"


@dataclass(frozen=True)
class Comparison:
    """Systems at points of env id and number of envs, each with `repeats` turns of `window_s` seconds.

    Parameters
    ----------
    systems
        Names; the bare loop is always among them.
    ranks
        Ascending; of this program's ranks that step envs.
    num_cores
        That all of them have; also the number of processes and threads of systems that share envs out.
    order_seed
        Of the order of the turns.
    launcher
        What starts this program's ranks, without `-n`; empty for the mpirun of this installation.

    Raises
    ------
    UsageError
        A value that no comparison can have.
    """

    envs: tuple[str, ...]
    num_envs: tuple[int, ...]
    systems: tuple[str, ...]
    ranks: tuple[int, ...]
    num_cores: int
    repeats: int = 5
    window_s: float = 0.25
    order_seed: int = 0
    launcher: str = ""

    def __post_init__(self):
        if self.repeats < 1:
            raise UsageError(f"--repeats must be at least 1, got {self.repeats}")
        check_seconds("--window-s", self.window_s)
        if self.order_seed < 0:
            raise UsageError(f"--order-seed must be at least 0, got {self.order_seed}")
        try:
            shlex.split(self.launcher)
        except ValueError as error:
            raise UsageError(f"--launcher {self.launcher!r}: {error}") from error
        known = systems_of(self.ranks, self.num_cores)
        unknown = [name for name in self.systems if name not in known]
        if unknown:
            raise UsageError(f"--systems: there is no {', '.join(unknown)}; there are {','.join(known)}")

    @property
    def all_systems(self) -> dict[str, System]:
        """Those that are compared, by name, in the order of tables; the bare loop first."""
        return {
            name: system
            for name, system in systems_of(self.ranks, self.num_cores).items()
            if name in self.systems or name == BASE
        }

    @property
    def points(self) -> Iterator[Point]:
        """Env by env, the numbers of envs ascending."""
        return (Point(env, num_envs) for env in self.envs for num_envs in self.num_envs)

    def order(self, point: Point, repeat: int) -> list[str]:
        """The systems in the order of their turns: another random one in each repeat of each point."""
        seed = [self.order_seed, zlib.crc32(point.env.encode()), point.num_envs, repeat]
        return [str(name) for name in np.random.default_rng(seed).permutation(list(self.all_systems))]


def numbers_list(option: str, least: int = 1) -> Callable[[str], tuple[int, ...]]:
    """A reader of a list of whole numbers such as 1,2,4: ascending, each once."""

    def read(text: str) -> tuple[int, ...]:
        try:
            found = {int(part) for part in text.split(",")}
        except ValueError:
            found = {least - 1}
        if min(found) < least:
            raise UsageError(f"{option} must be whole numbers of at least {least}, such as 1,2,4; got {text!r}")
        return tuple(sorted(found))

    return read


def names_list(text: str) -> tuple[str, ...]:
    """Read names such as a,b: each once, in their order."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def differences(stored: Comparison, now: Comparison) -> list[str]:
    """What a stored comparison has otherwise than this one, in the words of the command line."""
    before, after = asdict(stored), asdict(now)
    return [
        f"{option} was {_told(before[name])}, is {_told(after[name])}"
        for name, option in OPTIONS.items()
        if before[name] != after[name]
    ]


def _told(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
