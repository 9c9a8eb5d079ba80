"""What a scaling study is, the file that holds it, and the files of its parts.

The file is HDF5, readable with h5py alone:

/           attributes: format, format_version, kind, study (JSON), base_case, command, launcher, host, cpu_model,
            num_cores, versions, commit, started, updated
/jobs       a row for each job, see `samples.Job`
/ranks      a row for each rank of each job, `samples.Rank`
/parts      a row for each part of a job's run, with the rate of bare loops around it, `samples.JobPart`

After each job the whole file is written anew and put in the place of the one before: it is never half written.

A study may be measured in parts, as batch jobs of their own do: a number of ranks each.  The file of a part is one of
the whole study with the samples of one number of ranks, in the folder `<out>.parts`.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

from mpi_rollout.bench import tables
from mpi_rollout.bench.plan import STORED, JobOptions, Options, as_stored, check_enough_envs, check_least, in_order
from mpi_rollout.bench.scaling.samples import Job, JobPart, Point, Rank, Samples, joined
from mpi_rollout.bench.workplace import Facts
from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import DataError, StorageError, UsageError, counted
from mpi_rollout.options import difference

FORMAT, FORMAT_VERSION = "mpi_rollout-scaling", 1


@dataclass(frozen=True)
class Study:
    """Points of 1 to many ranks, each repeated, every time as a job of its own.

    Parameters
    ----------
    kind
        "strong": `size` envs in all on any number of ranks.  "weak": `size` envs on each rank.
    num_ranks
        Ascending; 1 is among them, because the base case is measured there.
    run
        Values of `commands.SCALING_OPTIONS`.
    fragment_lengths
        Of which each number of ranks has jobs.  Studies that say nothing of it were done in lockstep.

    Raises
    ------
    UsageError
        A value that no study can have.
    """

    kind: str
    num_ranks: tuple[int, ...]
    size: int
    run: Options
    jobs: JobOptions = field(default_factory=JobOptions)
    fragment_lengths: tuple[str, ...] = ("1",)

    def __post_init__(self) -> None:
        if not self.num_ranks:
            raise UsageError("--ranks must be one number or more, got none")
        check_least(self.size_option, self.size, 1)
        if self.kind == "strong":
            check_enough_envs(self.size, self.num_ranks[-1])
        for length in self.fragment_lengths:
            self.config(1, "study.h5", length)  # Refuses here what every job would refuse.

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
        """Return the number of envs of all ranks together."""
        return self.size if self.kind == "strong" else self.size * num_ranks

    def config(self, num_ranks: int, out: str, fragment_length: str = "1") -> RolloutConfig:
        """Return the run of one job."""
        own: Options = {"num_envs": self.num_envs(num_ranks), "out": out, "expect_ranks": num_ranks}
        own |= {"fragment_length": fragment_length, "measure_limit": True, "json": True, "progress": "none"}
        return RolloutConfig(**self.run, **own)

    def order(self) -> list[Point]:
        """Return all jobs in their order."""
        kinds = [(num_ranks, length) for length in self.fragment_lengths for num_ranks in self.num_ranks]
        return [Point(num_ranks, repeat, length) for repeat, (num_ranks, length) in in_order(kinds, self.jobs)]


def differences(stored: Study, study: Study) -> list[str]:
    """Say what a stored study has otherwise than this one, in the words of the command line."""
    own = {"kind": "the kind", "size": study.size_option, "num_ranks": "--ranks"}
    own["fragment_lengths"] = "--fragment-length"
    differing = tables.differing_options(stored, study, own) + tables.differing_options(stored.jobs, study.jobs, STORED)
    # A study that was begun before there was an option has its default.
    runs = [(name, stored.run.get(name, getattr(RolloutConfig, name, None)), now) for name, now in study.run.items()]
    return differing + [difference(name, before, now, str) for name, before, now in runs if before != now]


@dataclass(frozen=True)
class StudyFile:
    """What a file holds.

    Parameters
    ----------
    facts
        Of machine and program, as `workplace.machine_facts` gives them; they stay the same for all samples.
    origin
        command, host, started: of the first start of the study.
    """

    study: Study
    facts: Facts
    origin: dict[str, str]
    samples: Samples

    def write(self, path: str, updated: str) -> None:
        """Write it to the disk, in the place of what was there; raises what `tables.write_study` does."""
        study, samples = self.study, self.samples
        attributes: dict[str, str | int] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": study.kind,
            "launcher": study.jobs.launcher,
            "base_case": study.base_case,
            "study": json.dumps(as_stored(study), sort_keys=True),
            "updated": updated,
        }
        rows = {"jobs": (Job, samples.jobs), "ranks": (Rank, samples.ranks), "parts": (JobPart, samples.parts)}
        tables.write_study(path, attributes | self.facts | self.origin, rows)


def read_study(path: str) -> StudyFile:
    """Read a file of a study.

    Raises
    ------
    DataError
        It is not one, or of a version that this program does not know.
    """
    with tables.opened(path, "study", ["jobs", "ranks", "parts"]) as contents:
        check_format(path, contents.attributes)
        RolloutConfig.from_json(json.dumps(contents.parsed("study").get("run")), path)  # Each of its jobs has these.
        samples = Samples(contents.rows("jobs", Job), contents.rows("ranks", Rank), contents.rows("parts", JobPart))
        return StudyFile(contents.study("study", Study), contents.facts, contents.origin, samples)


def check_format(path: str, attributes: Mapping[str, object]) -> None:
    """Refuse what is no study of this program and version.

    Raises
    ------
    DataError
        The message says what it is, if that is known, and what to do with it.
    """
    if attributes.get("format") == "mpi_rollout":
        command = f"python -m mpi_rollout inspect {quote(path)} --plot PNG"
        raise DataError(f"{path} is a rollout, not a study; `{command}` draws it")
    tables.check_format(path, attributes, "study", FORMAT, FORMAT_VERSION)


def check_same_study(path: str, stored: StudyFile, study: Study, facts: Facts) -> None:
    """Refuse to go on with another study, or with this one on another machine or by another program.

    Raises
    ------
    UsageError
        The message says what differs.
    """
    differing = differences(stored.study, study) + tables.differing_facts(stored.facts, facts)
    tables.check_same(path, "study", differing)


def part_of(out: str, num_ranks: int) -> str:
    """Return the file of one number of ranks, of the study in the file `out`."""
    return f"{out}.parts/{num_ranks}.h5"


def make_folder(part: str) -> None:
    """Make the folder of parts, if this is the first.

    Raises
    ------
    StorageError
        It cannot be made.
    """
    try:
        Path(part).parent.mkdir(exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {Path(part).parent}: {error.strerror}") from error


def gathered(out: str) -> StudyFile | None:
    """Put together what all files of a study hold; None if there are no files.

    Raises
    ------
    DataError
        They are not of one study on machines of one kind, or one cannot be read.
    """
    paths = _files_of(out)
    if not paths:
        return None
    files = [_read_part(path) for path in paths]
    for path, file in zip(paths[1:], files[1:], strict=True):
        _check_same_part(paths[0], files[0], path, file)
    first = min(files, key=lambda file: file.origin["started"])
    return StudyFile(first.study, first.facts, first.origin, joined([file.samples for file in files]))


def _files_of(out: str) -> list[str]:
    """Return the files of a study: its parts, and then what was put together before."""
    parts = sorted(Path(f"{out}.parts").glob("*.h5"), key=lambda path: (len(path.name), path.name))
    return [*map(str, parts), *[out] * os.path.lexists(out)]


def _read_part(path: str) -> StudyFile:
    try:
        return read_study(path)
    except DataError as error:
        raise DataError(f"{error}; move it away, and the command that began the study measures it again") from error


def _check_same_part(first_path: str, first: StudyFile, path: str, other: StudyFile) -> None:
    differing = differences(first.study, other.study) + tables.differing_facts(first.facts, other.facts)
    if differing:
        raise DataError(
            f"{first_path} and {path} cannot be put together: {'; '.join(differing)}; remove one of them and measure "
            "it again like the others (under SLURM, --constraint chooses nodes of one kind)"
        )
