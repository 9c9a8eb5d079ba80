"""What a study asks: at which points, how often each, of which run; and the file that holds it with all its samples.

The file is JSON.  It has what was asked, what speed-ups are relative to, the machine and the program, the command that
began it, a digest of all that, and every sample.  It is written anew after each job and then put in the place of the
one before, so it is never half written.

A study may be measured in parts, as batch jobs of their own do: a number of ranks each.  The file of a part is one of
the whole study with the samples of one number of ranks, in the folder `<out>.parts`.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mpi_rollout.config import RolloutConfig, renamed
from mpi_rollout.errors import ContentError, DataError, StorageError, UsageError
from mpi_rollout.options import difference
from mpi_rollout.studies.machine import Facts
from mpi_rollout.studies.plan import JobOptions, Options, check_enough_envs, check_least, in_order
from mpi_rollout.studies.samples import Point, Sample, record
from mpi_rollout.text import counted, first_line

FORMAT, FORMAT_VERSION = "mpi_rollout-study", 1


@dataclass(frozen=True)
class Study:
    """Points, each repeated, every time as a job of its own; UsageError for a value that no study can have.

    Parameters
    ----------
    kind
        "strong", "tune": `size` envs in all on any number of ranks.  "weak": `size` envs on each rank.
    points
        Without repeats.  A study of scaling has 1 rank among its numbers of ranks: the base case is measured there.
    run
        What all jobs have in common: options of a run.
    """

    kind: str
    points: tuple[Point, ...]
    size: int
    run: Options
    jobs: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        if not self.points:
            raise UsageError("--ranks must be one number or more, got none")
        check_least(self.size_option, self.size, 1)
        if self.kind != "weak":
            check_enough_envs(self.size, self.num_ranks[-1])
        for length in self.lengths:
            self.config(next(point for point in self.points if point.length == length), "study.json")

    @cached_property
    def num_ranks(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(sorted({point.num_ranks for point in self.points}))

    @cached_property
    def lengths(self) -> tuple[str, ...]:
        """The lengths of fragments: a curve for each."""
        return tuple(dict.fromkeys(point.length for point in self.points))

    @property
    def size_option(self) -> str:
        return "--envs-per-rank" if self.kind == "weak" else "--num-envs"

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
        """Return the number of envs of all ranks together."""
        return self.size * num_ranks if self.kind == "weak" else self.size

    def config(self, point: Point, out: str) -> RolloutConfig:
        """Return the run of one job."""
        own: Options = {"num_envs": self.num_envs(point.num_ranks), "out": out, "expect_ranks": point.num_ranks}
        own |= {"measure_limit": True, "json": True, "progress": "none"}
        options = dict(point.options)
        if "env_kwargs" in options:
            own |= {"env_kwargs": json.loads(str(options.pop("env_kwargs")))}
        return RolloutConfig(**(self.run | own | options))

    def order(self) -> list[Point]:
        """Return all jobs in their order."""
        return [replace(point, repeat=repeat) for repeat, point in in_order(self.points, self.jobs)]


def scaling_points(num_ranks: Sequence[int], lengths: Sequence[str]) -> tuple[Point, ...]:
    """Return the points of a study of scaling: all numbers of ranks with each length of fragments."""
    return tuple(Point(ranks, (("fragment_length", length),)) for length in lengths for ranks in num_ranks)


def differences(stored: Study, study: Study) -> list[str]:
    """Say what a stored study has otherwise than this one, in the words of the command line."""
    pairs: list[tuple[str, object, object]] = [
        ("the kind", stored.kind, study.kind),
        (study.size_option, stored.size, study.size),
        ("--ranks", stored.num_ranks, study.num_ranks),
        ("--fragment-length", stored.lengths, study.lengths),
        ("--repeats", stored.jobs.repeats, study.jobs.repeats),
        ("--order-seed", stored.jobs.order_seed, study.jobs.order_seed),
        ("--launcher", stored.jobs.launcher, study.jobs.launcher),
    ]
    differing = [f"{name} was {_shown(before)}, is {_shown(now)}" for name, before, now in pairs if before != now]
    # A study that was begun before there was an option has its default.
    runs = [(name, stored.run.get(name, getattr(RolloutConfig, name, None)), now) for name, now in study.run.items()]
    return differing + [difference(name, before, now, str) for name, before, now in runs if before != now]


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def differing_facts(stored: Facts, facts: Facts) -> list[str]:
    """Say which facts of machine and program are others than when the file was begun."""
    return [
        f"{name.replace('_', ' ')} was {stored.get(name) or 'unknown'}, is {value or 'unknown'}"
        for name, value in facts.items()
        if stored.get(name) != value
    ]


@dataclass(frozen=True)
class StudyFile:
    """What a file holds: a study with its samples.

    `facts` of machine and program (`workplace.machine_facts`) stay the same for all samples; `origin` has command, host
    and time (started) of the first start.
    """

    study: Study
    facts: Facts
    origin: dict[str, str]
    samples: tuple[Sample, ...] = ()

    @property
    def done(self) -> set[Point]:
        return {sample.point for sample in self.samples}

    @property
    def failed(self) -> set[Point]:
        return {sample.point for sample in self.samples if sample.error}

    def of(self, points: set[Point]) -> "StudyFile":
        """Return it with the samples of these points alone."""
        return replace(self, samples=tuple(sample for sample in self.samples if sample.point in points))

    def write(self, path: str, updated: str) -> None:
        """Write it to the disk, in the place of what was there; StorageError leaves that as it was."""
        contents: dict[str, Any] = {"format": FORMAT, "format_version": FORMAT_VERSION, "updated": updated}
        contents |= {"base_case": self.study.base_case, **asdict(self)}
        contents["digest"] = _digest(contents)
        new = Path(f"{path}.new")
        try:
            with new.open("w") as file:
                json.dump(contents, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except OSError as error:
            raise StorageError(f"--out {path}: cannot write {new}: {error.strerror}") from error
        finally:
            new.unlink(missing_ok=True)


def _digest(contents: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def read_study(path: str) -> StudyFile:
    """Read a file of a study; DataError if it is none, of an unknown version, or not as it was written."""
    try:
        with open(path, "rb") as file:
            contents = json.loads(file.read())
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or str(error)).lower().replace(' or directory', '')}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is no study, which is a file of JSON; if it is a rollout, `python -m mpi_rollout inspect "
            f"{path} --plot PNG` draws it"
        ) from error
    stated = contents.get("format") if isinstance(contents, dict) else None
    if stated != FORMAT:
        raise DataError(f"{path} is no study of mpi_rollout; move it away or use another --out")
    if contents.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {contents.get('format_version')}, this program knows {FORMAT_VERSION}"
        )
    try:
        return _checked_file(path, contents)
    except (ContentError, UsageError) as error:
        raise DataError(f"{path} is not a readable file of a study: {first_line(error)}") from error


def _checked_file(path: str, contents: dict[str, Any]) -> StudyFile:
    digest = contents.pop("digest", None)
    if digest != _digest(contents):
        raise ContentError("what it holds is not what was written: its digest does not fit")
    stored: Options = {name: contents[name] for name in ("study", "facts", "origin", "samples") if name in contents}
    with suppress(KeyError, TypeError, ValueError, AttributeError):  # What is no study is refused below.
        stored["study"] = stored["study"] | {"run": renamed(stored["study"]["run"])}
    file: StudyFile = record("it", stored, StudyFile)
    if missing := {"cpu_model", "num_cores", "command", "host", "started"} - {*file.facts, *file.origin}:
        raise ContentError(f"it has no {min(missing)}")
    RolloutConfig.from_json(json.dumps(file.study.run), path)  # Each of its jobs has these.
    return file


def check_same_study(path: str, stored: StudyFile, study: Study, facts: Facts) -> None:
    """Refuse to go on with another study, or with this one on another machine or by another program."""
    if differing := differences(stored.study, study) + differing_facts(stored.facts, facts):
        raise UsageError(
            f"--out {path}: it is of another study: {'; '.join(differing)}; give the same to continue it, "
            "or use another --out"
        )


def part_of(out: str, num_ranks: int) -> str:
    """Return the file of one number of ranks, of the study in the file `out`."""
    return f"{out}.parts/{num_ranks}.json"


def make_folder(part: str) -> None:
    """Make the folder of parts, if this is the first."""
    try:
        Path(part).parent.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {Path(part).parent}: {error.strerror}") from error


def gathered(out: str) -> StudyFile | None:
    """Put together what all files of a study hold; None if there are no files.

    Of a point that two files have, the first one's sample is taken: a part's before the whole's.  DataError if they
    are not of one study on machines of one kind, or one cannot be read.
    """
    parts = sorted(Path(f"{out}.parts").glob("*.json"), key=lambda path: (len(path.name), path.name))
    paths = [*map(str, parts), *[out] * os.path.lexists(out)]
    if not paths:
        return None
    files = [_read_part(path) for path in paths]
    for path, file in zip(paths, files, strict=True):
        if differing := differences(files[0].study, file.study) + differing_facts(files[0].facts, file.facts):
            raise DataError(
                f"{paths[0]} and {path} cannot be put together: {'; '.join(differing)}; remove one of them and measure "
                "it again like the others (under SLURM, --constraint chooses nodes of one kind)"
            )
    first = min(files, key=lambda file: file.origin["started"])
    by_point = {sample.point: sample for file in reversed(files) for sample in file.samples}
    return replace(first, samples=tuple(sorted(by_point.values(), key=lambda sample: sample.started)))


def _read_part(path: str) -> StudyFile:
    try:
        return read_study(path)
    except DataError as error:
        raise DataError(f"{error}; move it away, and the command that began the study measures it again") from error
