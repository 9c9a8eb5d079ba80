"""The file of a study: all samples, in HDF5, readable with h5py alone.

/           attributes: format, format_version, kind, study (JSON), base_case, command, launcher, host, cpu_model,
            num_cores, versions, commit, started, updated
/jobs       a row each, see `samples.Job`
/ranks      a row for each rank of each job, `samples.Rank`
/parts      a row for each part of a job's run, with the rate of bare loops around it, `samples.JobPart`

It is written anew as a whole after each job and then put in the place of the one before: it is never half written.
"""

import json
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any

import h5py

from mpi_rollout.bench import tables
from mpi_rollout.bench.scaling.samples import Job, JobPart, Rank, Samples
from mpi_rollout.bench.scaling.study import Study, differences
from mpi_rollout.bench.tables import add_table, facts_of, opened, origin_of, replaced, told_facts
from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import DataError, UsageError

FORMAT, FORMAT_VERSION = "mpi_rollout-scaling", 1
TABLES = {"jobs": Job, "ranks": Rank, "parts": JobPart}


@dataclass(frozen=True)
class StudyFile:
    """What a file holds.

    Parameters
    ----------
    facts
        Of machine and program, as `machine.machine_facts` gives them; they stay the same for all samples.
    origin
        command, host, started: of the first start of the study.
    """

    study: Study
    facts: dict[str, Any]
    origin: dict[str, str]
    samples: Samples

    def write(self, path: str, updated: str) -> None:
        """Put it on the disk, in the place of what was there.

        Raises
        ------
        StorageError
            It cannot be written; what was there is as before.
        """
        with replaced(path) as file:
            self._fill(file)
            file.attrs["updated"] = updated

    def _fill(self, file: h5py.File) -> None:
        study = self.study
        attributes = {
            "format": FORMAT, "format_version": FORMAT_VERSION, "kind": study.kind, "launcher": study.launcher,
            "base_case": study.base_case, "study": json.dumps(asdict(study), sort_keys=True),
        }  # fmt: skip
        file.attrs.update(attributes | self.facts | self.origin)
        for name, row in TABLES.items():
            add_table(file, name, row, getattr(self.samples, name))


def read_study(path: str) -> StudyFile:
    """Read a file of a study.

    Raises
    ------
    DataError
        It is not one, or of a version that this program does not know.
    """
    with opened(path, "study", [*TABLES]) as contents:
        check_format(path, contents.attributes)
        RolloutConfig.from_json(json.dumps(contents.parsed("study").get("run")), path)  # Each of its jobs has these.
        return StudyFile(
            study=contents.record("study", Study),
            facts=facts_of(contents),
            origin=origin_of(contents),
            samples=Samples(**{name: contents.rows(name, row) for name, row in TABLES.items()}),
        )


def check_format(path: str, attributes: Any) -> None:
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


def check_same_study(path: str, stored: StudyFile, study: Study, facts: dict[str, Any]) -> None:
    """Refuse to go on with another study, or with this one on another machine or by another program.

    Raises
    ------
    UsageError
        The message says what differs.
    """
    differing = differences(stored.study, study) + told_facts(stored.facts, facts)
    if differing:
        raise UsageError(
            f"--out {path}: it is of another study: {'; '.join(differing)}; give the same to continue it, "
            "or use another --out"
        )
