"""What a comparison is, what it gave, and the file that holds both.  Nothing is started here.

The file is HDF5, readable with h5py alone:

/           attributes: format, format_version, comparison (JSON), titles (JSON: of the systems), command, host,
            cpu_model, num_cores, versions, commit, started, updated
/turns      a row for each turn of each system, `Sample`
/skips      a row for each system and point where it does not apply, `Skip`

After each repeat the whole file is written anew and put in the place of the one before: it is never half written.
"""

import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mpi_rollout.bench import tables
from mpi_rollout.bench.compare.pythons import read_pythons
from mpi_rollout.bench.compare.reasons import reason_to_skip
from mpi_rollout.bench.compare.systems import System, systems_of
from mpi_rollout.bench.compare.turns import Turn
from mpi_rollout.bench.plan import STORED, JobOptions, as_stored
from mpi_rollout.bench.workplace import Facts
from mpi_rollout.errors import UsageError, counted
from mpi_rollout.options import check_seconds

FORMAT, FORMAT_VERSION = "mpi_rollout-compare", 1
BASE = "bare"  # What the others are compared with.
OPTIONS = {
    "envs": "--env",
    "num_envs": "--num-envs",
    "systems": "--systems",
    "ranks": "--ranks",
    "window_s": "--window-s",
    "pythons": "--python",
    "native_num_envs": "--native-num-envs",
}


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
        The cores that all systems share; also the number of processes and threads of systems that divide envs.
    pythons
        PACKAGE=PYTHON: another Python that has what systems need.
    native_num_envs
        More numbers of envs, with which systems that have the env in another form are measured, and the bare loop.

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
    window_s: float = 0.25
    pythons: tuple[str, ...] = ()
    native_num_envs: tuple[int, ...] = ()
    jobs: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        check_seconds("--window-s", self.window_s)
        read_pythons(self.pythons)
        known = systems_of(self.ranks, self.num_cores)
        unknown = [name for name in self.systems if name not in known]
        if unknown:
            raise UsageError(f"--systems: there is no {', '.join(unknown)}; there are {','.join(known)}")

    @property
    def all_systems(self) -> dict[str, System]:
        """Those that are compared, by name, in the order of tables; the bare loop first."""
        known = systems_of(self.ranks, self.num_cores)
        return {name: system for name, system in known.items() if name in self.systems or name == BASE}

    @property
    def python_of(self) -> dict[str, str]:
        """Other Pythons, by the package that they have."""
        return read_pythons(self.pythons)

    @property
    def points(self) -> Iterator[Point]:
        """Env by env, the numbers of envs ascending."""
        return (Point(env, num_envs) for env in self.envs for num_envs in self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """All numbers of envs, ascending."""
        return tuple(sorted({*self.num_envs, *self.native_num_envs}))

    def systems_at(self, point: Point) -> list[System]:
        """Return the systems that are to be measured with so many envs, whether or not they apply."""
        is_for_all = point.num_envs in self.num_envs
        return [system for system in self.all_systems.values() if is_for_all or system.is_native or system.name == BASE]

    def reason_to_skip(self, system: System, point: Point) -> str:
        """Say why a system cannot be measured at a point; empty if it can."""
        return reason_to_skip(system, *point, self.num_cores, self.python_of)

    def order(self, point: Point, repeat: int) -> list[str]:
        """Return the systems in the order of their turns: another random one in each repeat of each point."""
        seed = [self.jobs.order_seed, zlib.crc32(point.env.encode()), point.num_envs, repeat]
        return [str(name) for name in np.random.default_rng(seed).permutation(list(self.all_systems))]


@dataclass(frozen=True)
class Sample:
    """One turn of one system.  If it failed, `error` says why; the system has no more turns at this point.

    Parameters
    ----------
    reset_s
        Seconds of a reset of all envs, before the window.
    env_steps, seconds, sweeps
        Of the window; see `steppers`.
    """

    env: str
    num_envs: int
    system: str
    repeat: int
    started: str
    error: str = ""
    reset_s: float = 0.0
    env_steps: int = 0
    seconds: float = 0.0
    sweeps: int = 0

    @property
    def point(self) -> Point:
        return Point(self.env, self.num_envs)

    @property
    def env_steps_per_s(self) -> float:
        return self.env_steps / self.seconds


@dataclass(frozen=True)
class Skip:
    """A system that does not apply at a point, and why."""

    env: str
    num_envs: int
    system: str
    reason: str


@dataclass(frozen=True)
class Samples:
    """All rows of a comparison, in the order in which they came: nothing is summed up over turns."""

    turns: tuple[Sample, ...] = ()
    skips: tuple[Skip, ...] = ()

    @property
    def failed(self) -> list[Sample]:
        return [sample for sample in self.turns if sample.error]

    def is_done(self, point: Point, system: str, repeat: int) -> bool:
        """Tell whether a turn has been taken, or never will be."""
        return any(
            sample.system == system and sample.point == point and (sample.repeat == repeat or sample.error)
            for sample in self.turns
        )

    def with_turn(self, point: Point, system: str, repeat: int, started: str, turn: Turn) -> "Samples":
        """Add a turn."""
        sample = Sample(*point, system, repeat, started, "", *turn)
        return Samples((*self.turns, sample), self.skips)

    def with_failure(self, point: Point, system: str, repeat: int, started: str, error: str) -> "Samples":
        """Add a turn that failed, or that could not be because the set-up failed."""
        return Samples((*self.turns, Sample(*point, system, repeat, started, error)), self.skips)

    def with_skips(self, skips: Iterable[Skip]) -> "Samples":
        """Add what does not apply."""
        return Samples(self.turns, tuple(dict.fromkeys((*self.skips, *skips))))


@dataclass(frozen=True)
class ComparisonFile:
    """What a file holds.

    Parameters
    ----------
    facts
        Of machine and program, and the versions of all systems; they stay the same for all samples.
    origin
        command, host, started: of the first start of the comparison.
    """

    comparison: Comparison
    facts: Facts
    origin: dict[str, str]
    samples: Samples

    def write(self, path: str, updated: str) -> None:
        """Write it to the disk, in the place of what was there; raises what `tables.write_study` does."""
        titles = {name: system.title for name, system in self.comparison.all_systems.items()}
        attributes: dict[str, str | int] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "titles": json.dumps(titles),
            "comparison": json.dumps(as_stored(self.comparison), sort_keys=True),
            "updated": updated,
        }
        rows = {"turns": (Sample, self.samples.turns), "skips": (Skip, self.samples.skips)}
        tables.write_study(path, attributes | self.facts | self.origin, rows)


def read_comparison(path: str) -> ComparisonFile:
    """Read a file of a comparison.

    Raises
    ------
    DataError
        It is not one, or of a version that this program does not know.
    """
    with tables.opened(path, "comparison", ["turns", "skips"]) as contents:
        tables.check_format(path, contents.attributes, "comparison", FORMAT, FORMAT_VERSION)
        samples = Samples(contents.rows("turns", Sample), contents.rows("skips", Skip))
        return ComparisonFile(contents.study("comparison", Comparison), contents.facts, contents.origin, samples)


def check_same_comparison(path: str, stored: ComparisonFile, comparison: Comparison, facts: Facts) -> None:
    """Refuse to go on with another comparison, or with this one on another machine or with other versions.

    Raises
    ------
    UsageError
        The message says what differs.
    """
    before = stored.comparison
    differing = tables.differing_options(before, comparison, OPTIONS)
    differing += tables.differing_options(before.jobs, comparison.jobs, STORED)
    tables.check_same(path, "comparison", differing + tables.differing_facts(stored.facts, facts))
