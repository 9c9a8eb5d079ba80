"""The file of a comparison: all samples, in HDF5, readable with h5py alone.

/           attributes: format, format_version, comparison (JSON), titles (JSON: of the systems), command, host,
            cpu_model, num_cores, versions, commit, started, updated
/turns      a row for each turn of each system, `samples.Sample`
/skips      a row for each system and point where it does not apply, `samples.Skip`

It is written anew as a whole after each repeat and then put in the place of the one before: it is never half written.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from mpi_rollout.bench.compare.comparison import Comparison, differences
from mpi_rollout.bench.compare.samples import Sample, Samples, Skip
from mpi_rollout.bench.tables import add_table, check_format, facts_of, opened, origin_of, replaced, told_facts
from mpi_rollout.errors import UsageError

FORMAT, FORMAT_VERSION = "mpi_rollout-compare", 1
TABLES = {"turns": Sample, "skips": Skip}


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
        titles = {name: system.title for name, system in self.comparison.all_systems.items()}
        attributes = {
            "format": FORMAT, "format_version": FORMAT_VERSION, "titles": json.dumps(titles),
            "comparison": json.dumps(asdict(self.comparison), sort_keys=True), "updated": updated,
        }  # fmt: skip
        with replaced(path) as file:
            file.attrs.update(attributes | self.facts | self.origin)
            for name, row in TABLES.items():
                add_table(file, name, row, getattr(self.samples, name))


def read_comparison(path: str) -> ComparisonFile:
    """Read a file of a comparison.

    Raises
    ------
    DataError
        It is not one, or of a version that this program does not know.
    """
    with opened(path, "comparison", [*TABLES]) as contents:
        check_format(path, contents.attributes, "comparison", FORMAT, FORMAT_VERSION)
        return ComparisonFile(
            comparison=contents.record("comparison", Comparison),
            facts=facts_of(contents),
            origin=origin_of(contents),
            samples=Samples(**{name: contents.rows(name, row) for name, row in TABLES.items()}),
        )


def check_same_comparison(path: str, stored: ComparisonFile, comparison: Comparison, facts: dict[str, Any]) -> None:
    """Refuse to go on with another comparison, or with this one on another machine or with other versions.

    Raises
    ------
    UsageError
        The message says what differs.
    """
    differing = differences(stored.comparison, comparison) + told_facts(stored.facts, facts)
    if differing:
        raise UsageError(
            f"--out {path}: it is of another comparison: {'; '.join(differing)}; give the same to continue it, "
            "or use another --out"
        )
