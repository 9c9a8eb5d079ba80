"""The file of a simulation: its question and all samples, in HDF5, readable with h5py alone.

/           attributes: format, format_version, question (JSON), envs (JSON), constants (JSON), constants_origin,
            (both empty where they are measured), constants_used (JSON), constants_used_origin, command, host,
            cpu_model, num_cores, versions, commit, started, updated
/settings   a row for each job that was run: of what envs, `question.Setting`
/jobs       what it gave, `samples.Job`, in the same order
/curves     computed: a row for each curve and number of ranks, `analysis.CurveRow`
/checks     measured beside computed, `analysis.Check`
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import h5py

from mpi_rollout.bench.model import Constants
from mpi_rollout.bench.scaling.samples import Job
from mpi_rollout.bench.scaling.sim.constants import Known
from mpi_rollout.bench.scaling.sim.question import Envs, Setting, Simulation
from mpi_rollout.bench.tables import Contents, add_table, check_format, facts_of, opened, origin_of, replaced
from mpi_rollout.errors import ContentError, UsageError

FORMAT, FORMAT_VERSION = "mpi_rollout-simulation", 1


@dataclass(frozen=True)
class SimulationFile:
    """What a file holds.

    Parameters
    ----------
    envs
        Those of the question, measured where it names a real env.
    known
        Constants that were not measured here; None if they are to be fitted to the samples.
    facts, origin
        As a study's.
    """

    question: Simulation
    envs: Envs
    known: Known | None
    facts: dict[str, Any]
    origin: dict[str, str]
    samples: tuple[tuple[Setting, Job], ...] = ()

    def write(
        self, path: str, updated: str, words: dict[str, str] | None = None, **derived: tuple[type, list[Any]]
    ) -> None:
        """Put it on the disk, in the place of what was there.

        Parameters
        ----------
        words, derived
            What follows from the rest, for other readers: attributes, and tables by name, with the class of their
            rows and these.
        """
        with replaced(path) as file:
            self._fill(file, {"updated": updated} | (words or {}), derived)

    def _fill(self, file: h5py.File, words: dict[str, str], derived: dict[str, tuple[type, list[Any]]]) -> None:
        known = self.known
        file.attrs.update(self.facts | self.origin | words)
        file.attrs.update({
            "format": FORMAT, "format_version": FORMAT_VERSION,
            "question": json.dumps(self.question.as_dict(), sort_keys=True),
            "envs": json.dumps(asdict(self.envs)),
            "constants": json.dumps(asdict(known.constants)) if known else "",
            "constants_origin": known.origin if known else "",
        })  # fmt: skip
        add_table(file, "settings", Setting, [setting for setting, _ in self.samples])
        add_table(file, "jobs", Job, [job for _, job in self.samples])
        for name, (row, rows) in derived.items():
            add_table(file, name, row, rows)


def read_simulation(path: str) -> SimulationFile:
    """Read a file of a simulation.

    Raises
    ------
    DataError
        It is not one, or of a version that this program does not know.
    """
    with opened(path, "simulation", ["settings", "jobs"]) as contents:
        check_format(path, contents.attributes, "simulation", FORMAT, FORMAT_VERSION)
        settings, jobs = contents.rows("settings", Setting), contents.rows("jobs", Job)
        if len(settings) != len(jobs):
            raise ContentError(f"it has {len(settings)} settings and {len(jobs)} jobs")
        return SimulationFile(
            question=contents.record("question", Simulation),
            envs=contents.record("envs", Envs),
            known=_known(contents),
            facts=facts_of(contents),
            origin=origin_of(contents),
            samples=tuple(zip(settings, jobs, strict=True)),
        )


def _known(contents: Contents) -> Known | None:
    if not contents.value("constants", str):
        return None
    return Known(contents.record("constants", Constants), contents.value("constants_origin", str))


def check_same_simulation(path: str, stored: SimulationFile, question: Simulation, facts: dict[str, Any]) -> None:
    """Refuse to go on with another question, or on another machine or by another program.

    Raises
    ------
    UsageError
        The message says what differs.
    """
    before, now = stored.question.as_dict() | stored.facts, question.as_dict() | facts
    differing = [f"{_words(name)} was {before[name]}, is {now[name]}" for name in now if before[name] != now[name]]
    if differing:
        raise UsageError(
            f"--out {path}: it is of another simulation: {'; '.join(differing)}; give the same to continue it, "
            "or use another --out"
        )


def _words(name: str) -> str:
    return name.replace("_", " ")
