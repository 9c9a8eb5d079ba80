"""The file of a study: what was asked, the machine and the program, and every sample.

It is JSON, with a digest.  It is written anew after each job and then put in the place of the one before, so it is
never half written.  A study may be measured in parts, as batch jobs of their own do: the file of a part is one of the
whole study with the samples of one number of ranks, in the folder `<out>.parts`.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from mpi_rollout.config import RolloutConfig, difference, read_config, versions
from mpi_rollout.errors import ContentError, DataError, StorageError, UsageError
from mpi_rollout.process.clock import utc_now
from mpi_rollout.process.host import num_cores_of_host, num_usable_cores
from mpi_rollout.process.paths import open_regular, why_not_regular
from mpi_rollout.storage.ownership import give_name, identity, removed
from mpi_rollout.studies.study import Point, Sample, Study
from mpi_rollout.text import counted, first_line

FORMAT, FORMAT_VERSION = "mpi_rollout-study", 1
Facts = dict[str, str | int]


@dataclass(frozen=True)
class StudyFile:
    """A study with its samples.

    `facts` of machine and program (`machine_facts`) are those of all samples; `origin` has command, host and time
    (started) of the first start.
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

    @property
    def failures(self) -> list[str]:
        """A line for each job that failed."""
        return [f"failed: {each.point}: {each.error.splitlines()[0]}" for each in self.samples if each.error]

    def of(self, points: set[Point]) -> "StudyFile":
        """Return it with the samples of these points alone."""
        return replace(self, samples=tuple(sample for sample in self.samples if sample.point in points))

    def differences(self, now: "StudyFile") -> list[str]:
        """Say what this one has otherwise than another, in the words of the command line."""
        pairs = zip(_asked(self), _asked(now), strict=True)
        differing = [f"{name} was {before}, is {value}" for (_, before), (name, value) in pairs if before != value]
        defaults = vars(RolloutConfig(env="any"))  # What a study has that was begun before there was an option.
        for name, value in now.study.run.items():
            before = self.study.run.get(name, defaults[name])
            differing += [difference(name, before, value, str)] * (before != value)
        return differing + [
            f"{name.replace('_', ' ')} was {self.facts.get(name) or 'unknown'}, is {value or 'unknown'}"
            for name, value in now.facts.items()
            if self.facts.get(name) != value
        ]

    def write(self, path: str, updated: str) -> None:
        """Write it to the disk, in the place of what was there; StorageError leaves that as it was."""
        contents: dict[str, object] = {"format": FORMAT, "format_version": FORMAT_VERSION, "updated": updated}
        contents |= {"base_case": self.study.base_case, **asdict(self)}
        contents["digest"] = _digest(contents)
        new = f"{path}.new"
        try:
            with removed(new):
                with suppress(FileNotFoundError):
                    os.unlink(new)  # Whatever it is: to write into a pipe would wait for ever.
                Path(new).write_text(json.dumps(contents))
                give_name(new, path, identity(path))
        except OSError as error:
            raise StorageError(f"--out {path}: cannot write {new}: {error.strerror}") from error


def _asked(file: StudyFile) -> list[tuple[str, str]]:
    """Return the options of a study besides those of its run, in the words of the command line."""
    study, jobs = file.study, file.study.jobs
    return [
        ("the kind", study.kind),
        (study.size_option, str(study.size)),
        ("--ranks", ",".join(map(str, study.num_ranks))),
        ("--fragment-length", ",".join(study.lengths)),
        ("--repeats", str(jobs.repeats)),
        ("--order-seed", str(jobs.order_seed)),
        ("--launcher", jobs.launcher or "none"),
    ]


def _digest(contents: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def read_study(path: str) -> StudyFile:
    """Read a file of a study; DataError if it is none, of an unknown version, or not as it was written."""
    if why := why_not_regular(path):
        raise DataError(why)
    try:
        with open(path, "rb", opener=open_regular) as file:
            contents = json.loads(file.read())
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or str(error)).lower().replace(' or directory', '')}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path} is no study, which is a file of JSON; if it is a rollout, `python -m mpi_rollout inspect "
            f"{path} --plot PNG` draws it"
        ) from error
    if not isinstance(contents, dict) or contents.get("format") != FORMAT:
        raise DataError(f"{path} is no study of mpi_rollout; move it away or use another --out")
    version = contents.get("format_version")
    if version != FORMAT_VERSION:
        raise DataError(f"{path} has format version {version}, this program knows {FORMAT_VERSION}")
    try:
        return _checked(path, contents)
    except (ContentError, UsageError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not a readable file of a study: {first_line(error)}") from error


def _checked(path: str, contents: dict[str, Any]) -> StudyFile:
    if contents.pop("digest", None) != _digest(contents):
        raise ContentError("what it holds is not what was written: its digest does not fit")
    stored = {name: contents[name] for name in ("study", "facts", "origin", "samples")}
    file: StudyFile = _decoded(stored, StudyFile)
    if missing := {"cpu_model", "num_cores", "command", "host", "started"} - {*file.facts, *file.origin}:
        raise ContentError(f"it has no {min(missing)}")
    read_config(json.dumps(file.study.run), path)  # Each of its jobs has these.
    return file


def _decoded(value: Any, kind: Any) -> Any:
    """Return a value from JSON as one of this type; TypeError or ValueError if it is none."""
    if is_dataclass(kind):
        kinds = get_type_hints(kind)
        return kind(**{name: _decoded(part, kinds.get(name, object)) for name, part in value.items()})  # type: ignore[operator]
    if get_origin(kind) is tuple:
        kinds_of_parts = get_args(kind)
        if kinds_of_parts[-1] is ...:
            kinds_of_parts = kinds_of_parts[:1] * len(value)
        return tuple(_decoded(part, own) for part, own in zip(value, kinds_of_parts, strict=True))
    if not isinstance(value, (get_origin(kind) or kind, int) if kind is float else get_origin(kind) or kind):
        raise TypeError(f"{value!r:.80} should be {kind.__name__}")
    return value


def part_of(out: str, num_ranks: int) -> str:
    """Return the file of one number of ranks, of the study in the file `out`."""
    return f"{out}.parts/{num_ranks}.json"


def gathered(out: str) -> StudyFile | None:
    """Put together what all files of a study hold; None if there are no files.

    Of a point that two files have, the first one's sample is taken: a part's before the whole's.  DataError if they
    are not of one study on machines of one kind, or one cannot be read.
    """
    parts = sorted(Path(f"{out}.parts").glob("*.json"), key=lambda path: (len(path.name), path.name))
    paths = [*map(str, parts), *[out] * os.path.lexists(out)]
    files = [_read_part(path) for path in paths]
    if not files:
        return None
    for path, file in zip(paths, files, strict=True):
        if differing := files[0].differences(file):
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


def machine_facts() -> Facts:
    """Return by name what must stay the same for samples to belong to one study: facts of machine and program.

    In a batch job all cores of the node are counted: a job is allotted others each time.
    """
    found = versions()
    with suppress(importlib.metadata.PackageNotFoundError):
        found |= {"mpi4py": importlib.metadata.version("mpi4py")}  # An import of it would start MPI.
    return {
        "cpu_model": cpu_model(),
        "num_cores": num_cores_of_host() if "SLURM_JOB_ID" in os.environ else num_usable_cores(),
        "versions": ", ".join(f"{name} {version}" for name, version in found.items()),
        "commit": _commit(),
    }


def cpu_model() -> str:
    """Return the processor's name as the kernel has it."""
    match = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return match.group(1).strip() if match else platform.machine()


def _commit() -> str:
    """Return the last commit that changed this package, with `-dirty` if files changed since; empty without git."""
    last = _git("log", "-1", "--format=%h", "--", ".")
    return last + "-dirty" if last and _git("status", "--porcelain", "--", ".") else last


def _git(*arguments: str) -> str:
    package = Path(__file__).parents[1]
    try:
        done = subprocess.run(["git", *arguments], cwd=package, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def place_and_time(host: str, facts: Facts, libraries: Iterable[str], started: str) -> str:
    """Return host, processor, cores, MPI libraries, each once, and the day, in words."""
    machine = f"{host} ({facts['cpu_model']}, {counted(int(facts['num_cores']), 'core')})"
    return ", ".join([machine, *dict.fromkeys(filter(None, libraries)), started[:10]])


def origin() -> dict[str, str]:
    """Return command, host and time of a study that begins now, by name."""
    command = shlex.join(["python", "-m", "mpi_rollout", *sys.argv[1:]])
    return {"command": command, "host": os.uname().nodename, "started": utc_now()}
