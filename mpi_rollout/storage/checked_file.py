"""A file that may be damaged or hostile, after checks that read its tables and none of its columns.

It is opened without MPI, complete or not; see `untrusted`.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import h5py
import numpy as np

from mpi_rollout.config import read_config
from mpi_rollout.core.columns import has_last_row
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.errors import ContentError, ForeignFileError, UsageError
from mpi_rollout.storage.episode_order import first_impossible
from mpi_rollout.storage.episodes import num_reset_rows_of
from mpi_rollout.storage.file_chunks import FileChunks
from mpi_rollout.storage.schema import (
    COMMIT,
    EPISODE,
    FAULT,
    FORMAT,
    FORMAT_VERSION,
    LIST,
    RANK,
    RESET,
    check_datasets,
    digest_of,
    expected_leaves,
    expected_rows,
    is_manifest,
    is_recording,
    is_sparse,
)
from mpi_rollout.storage.untrusted import (
    Tell,
    attributes_of,
    check_room,
    checked_objects,
    count,
    linked,
    number,
    parsed,
    reading,
    table_of,
    text,
)
from mpi_rollout.storage.values import wrong_in
from mpi_rollout.text import counted, one_line

OURS = {"config", "spaces", "digest", "format_version"}  # Attributes that only files of this program have together.
AUTORESET_MODES = ("NextStep", "SameStep", "Disabled")  # Gymnasium's values; readers do without Gymnasium.


@contextmanager
def checked(path: str, tell: Tell, num_steps: int | None = None, is_rescue: bool = False) -> Iterator["CheckedFile"]:
    """Open a file that may be damaged or hostile, after checks that read its tables and none of its columns.

    What they find is enough to read a column without harm; what is in it `ChunkReader` checks, chunk by chunk.
    With `num_steps`, only so many of the committed steps count.  In a rescue, HDF5's index and /episodes, which follow
    from the rest, may be damaged.  DataError, also in the `with` block, if it is no whole file of a run.
    """
    with reading(path, tell) as (file, note):
        checks = CheckedFile(file, path, note)
        checks.check_lengths()
        checks.limit_to(num_steps)
        checks.tell("its list of chunks")
        # Those of the steps that count or, in a whole file, of all that are committed.
        num_steps = checks.num_steps if is_rescue else checks.num_committed
        checks.stored = FileChunks(file, path, num_steps, checks.is_sealed, not is_rescue, is_rescue)
        with closing(checks.stored):
            checks.check_tables(is_rescue)
            yield checks


class CheckedFile:
    """A file whose attributes and structure were checked, and what these say; its tables too, if `checked` gives it.

    Attributes
    ----------
    is_sealed
        No run goes on with the file: all its chunks have checksums, and all its datasets the same number of steps.
    num_committed
        Steps that are committed; `num_steps` of them count.
    """

    def __init__(self, file: h5py.File, path: str, tell: Tell):
        self.file, self.path, self.tell = file, path, tell
        self.root = attributes_of(file)
        check_format(self.root, path)
        check_attributes(self.root)
        self.config = read_config(self.root["config"], path)
        expected = expected_rows(self.root, self.config)
        self._virtual = expected_leaves(self.root) if is_manifest(self.root) else {}
        self.datasets = checked_objects(file, tell, expected, {f"trajectories/{name}" for name in self._virtual})
        check_datasets(self.datasets, expected, self.config.compression)
        tell("its root group")
        self.is_complete = bool(text(self.root, "finished").strip())
        self.is_sealed = self.is_complete or "recovered" in self.root
        self.has_trajectories, self.promise = self.config.trajectories, promise_of(self.root)
        steps = attributes_of(file["trajectories"]) if self.has_trajectories else {"num_steps": np.int64(0)}
        self.num_steps = self.num_committed = count(steps, "num_steps")
        self.throughput = attributes_of(file["throughput"])
        count(self.throughput, "env_steps"), number(self.throughput, "seconds")
        self.starts = count(self.throughput, "starts")
        self.stored: FileChunks
        self._tables: dict[str, np.ndarray] = {}
        self._counting_rows: dict[str, int] = {}

    def limit_to(self, num_steps: int | None) -> None:
        """Let only the first `num_steps` steps count, if that is not None."""
        check_num_steps(num_steps, self.num_committed)
        if num_steps is not None and num_steps != self.num_steps:
            self.num_steps, self.is_sealed = num_steps, False

    def check_lengths(self) -> None:
        """Check that datasets have a row for each committed step; before the file is sealed they may have more."""
        for name, dataset in self.trajectories().items():
            expected, got = self._num_rows(name), len(dataset)
            if got < expected or (got > expected and self.is_sealed):
                raise ContentError(f"trajectories/{name} has {got:,} rows, expected {expected:,}: one for each step")

    def _num_rows(self, name: str) -> int:
        """Return the number of committed rows of a dataset of /trajectories; 0 before the first commit."""
        is_begun = self.num_steps > 0 or self.is_sealed
        return self.num_steps + (has_last_row(name) and is_begun)

    def trajectories(self) -> dict[str, h5py.Dataset]:
        """Return the columns by their names."""
        columns = self.datasets.items()
        return {name[13:]: dataset for name, dataset in columns if name.startswith("trajectories/")}

    def check_tables(self, is_rescue: bool) -> None:
        """Check without reading the columns that the chunks are there which count; read and check all tables."""
        for name, num_rows in self.counting_rows().items():
            if is_rescue and name == "episodes":
                continue
            self.tell(f"where {name} is")
            if not is_sparse(self.datasets[name]):  # It has no more rows than the observations, which are not.
                check_room(self.file, name, self.datasets[name], num_rows, room=0)
            if problem := self.stored.chunks(name).missing(num_rows):
                raise ContentError(problem)
            if not name.startswith("trajectories/"):
                self._tables[name] = self.stored.chunks(name).read(0, num_rows)
        to_next = 0 if is_recording(self.root) else num_reset_rows_of(self.root)
        rows = self.table("episodes", EPISODE) if self.is_sealed else self.committed_episodes()
        row = first_impossible(rows, self.num_steps, self.config.num_envs, to_next)
        if row is not None:
            what = f"row {row:,} cannot be an episode of {counted(self.num_steps, 'step')}"
            raise ContentError(f"episodes: {what}; the table is damaged")

    def table(self, name: str, dtype: np.dtype) -> np.ndarray:
        """Return a table that was read and checked."""
        return self._tables.get(name, np.zeros(0, dtype))

    def ranks(self) -> np.ndarray:
        """Return the rows of /throughput/ranks of the last start that came to its end: their ranks rise."""
        rows = self.table("throughput/ranks", RANK)
        ends_of_starts = np.flatnonzero(np.diff(rows["rank"]) <= 0)
        return rows[ends_of_starts[-1] + 1 :] if len(ends_of_starts) else rows

    def committed_episodes(self) -> np.ndarray:
        """Return the rows of /episodes that lie in the steps that count.

        A commit writes episodes first: a writer killed amid one leaves rows of steps that do not count.
        """
        episodes = self.table("episodes", EPISODE)
        counts = episodes["start"] + episodes["length"] <= self.num_steps
        return episodes if counts.all() else episodes[counts]  # A table of many episodes is not copied.

    def faults(self) -> np.ndarray:
        """Return the rows of /faults of the steps that count."""
        faults = self.table("faults", FAULT)
        return faults[faults["step"] < self.num_steps] if self.has_trajectories else faults

    def resets(self) -> np.ndarray | None:
        """Return the rows of /resets before and after the steps that count; None where a run took them.

        ContentError if an env or a step cannot be.
        """
        if not is_recording(self.root):
            return None
        rows, num_envs = self.table("resets", RESET), self.config.num_envs
        if ((rows["env_index"] < 0) | (rows["env_index"] >= num_envs) | (rows["step"] < 0)).any():
            raise ContentError("resets names an env or a step that cannot be; the file is damaged")
        return rows[rows["step"] <= self.num_steps]

    def last_digest(self) -> str:
        """Return the digest of the last commit, in hexadecimal digits; "" before the first one."""
        commits = table_of(self.file, "commits") if "commits" in self.file else np.zeros(0, COMMIT)
        return bytes(commits["digest"][-1]).hex() if len(commits) else ""

    def columns(self) -> dict[str, dict[str, object]]:
        """Return the shape and the dtype of each column, as JSON can hold them."""
        named = self.trajectories().items()
        return {name: {"shape": list(dataset.shape), "dtype": str(dataset.dtype)} for name, dataset in named}

    def wrong_values(self) -> list[dict[str, str | int]]:
        """Return the wrong values that the attributes of columns record, in a manifest those of virtual ones."""
        columns = self.trajectories()
        for name in self._virtual if self.is_complete else ():
            columns[name] = linked(self.file["trajectories"], name, f"trajectories/{name}", is_virtual=True)
        return [wrong for name, dataset in columns.items() for wrong in wrong_in(name, attributes_of(dataset))]

    def counting_rows(self) -> dict[str, int]:
        """Return the number of committed rows of each dataset."""
        if not self._counting_rows:
            columns = {f"trajectories/{name}": self._num_rows(name) for name in self.trajectories()}
            names = sorted(self.datasets.keys() - set(LIST))
            self._counting_rows = {
                name: columns[name] if name in columns else self.stored.num_rows(name) for name in names
            }
        return self._counting_rows


def check_num_steps(num_steps: int | None, num_committed: int) -> None:
    """Raise UsageError for a number of steps to take that is given, and that a run has not committed."""
    if num_steps is not None and not 1 <= num_steps <= num_committed:
        steps = f"1 to {num_committed}, the steps that are committed"
        raise UsageError(f"--num-steps must be {steps}, got {num_steps}")


def check_format(attributes: Mapping[str, object], path: str) -> None:
    """Refuse files of other programs, and of other versions of this one.

    ContentError if it is a damaged file of this program.
    """
    got = attributes.get("format")
    if not isinstance(got, str) or got != FORMAT:  # An array has no truth.
        if len(OURS & attributes.keys()) > 1:
            raise ContentError(
                f"its attribute format is {one_line(repr(got))}, it should be {FORMAT!r}; the file is damaged"
            )
        raise ForeignFileError(f"{path} was not written by {FORMAT}")
    version = count(attributes, "format_version")
    if version != FORMAT_VERSION:
        raise ForeignFileError(
            f"{path} has format version {version}, this program reads {FORMAT_VERSION}; read it with the version of "
            "mpi_rollout that wrote it"
        )


def check_attributes(attributes: Mapping[str, object]) -> None:
    """Check that the attributes of the root group are what was written before the first step.

    ContentError if one is missing or damaged; the message says which, where that can be seen.
    """
    for name in ("config", "spaces", "versions"):
        parsed(attributes, name, dict)
    if not all(isinstance(host, str) for host in parsed(attributes, "hosts", list)):
        raise ContentError("its attribute hosts should be a list of names")
    for name in ("env_spec", "autoreset_mode", "mpi_library", "started", "finished", "digest"):
        text(attributes, name)
    for name in ("seed", "num_envs", "num_ranks"):
        count(attributes, name)
    if digest_of(attributes) != attributes["digest"]:
        raise ContentError("the attributes of its root group are not what was written: their digest does not fit")
    promise_of(attributes)
    has_seeds = attributes.get("has_episode_seeds")
    if not isinstance(has_seeds, np.bool_):
        raise ContentError(
            f"its attribute has_episode_seeds is {one_line(repr(has_seeds))}, it should be true or false"
        )
    if (mode := text(attributes, "autoreset_mode")) not in AUTORESET_MODES:
        raise ContentError(f"its attribute autoreset_mode is {mode!r:.80}; the file is damaged")


def promise_of(attributes: Mapping[str, object]) -> Reproducibility:
    """Return the promise of a file's envs."""
    promised = attributes.get("reproducibility")
    try:
        return Reproducibility(text(attributes, "reproducibility"))
    except ValueError as error:
        raise ContentError(
            f"its attribute reproducibility is {one_line(repr(promised))}; the file is damaged"
        ) from error


def identity(tell: Tell, path: str) -> dict[str, Any]:
    """Read whose file it is, see `identity_of`, and how many steps it has."""
    with reading(path, tell) as (file, note):
        checks = CheckedFile(file, path, note)
        return identity_of(checks.root) | {"num_steps": checks.num_steps}


def identity_of(attributes: Mapping[str, object]) -> dict[str, Any]:
    """Return the configuration, in JSON, policy and promise of a run, and what its file is."""
    return {
        "config": text(attributes, "config"),
        "policy_sha256": text(attributes, "policy_sha256") if "policy_sha256" in attributes else "",
        "promise": promise_of(attributes).value,
        "complete": bool(text(attributes, "finished").strip()),
        "recorded": is_recording(attributes),
        "sharded": is_manifest(attributes),
    }
