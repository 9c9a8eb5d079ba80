"""Reading files of runs, complete ones and unfinished ones, without MPI.  They may be damaged or hostile.

Studies, comparisons and simulations are files of attributes and tables alone: `contents` reads them as plain data.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from shlex import quote
from typing import Any, TypeVar

import h5py
import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.errors import ContentError, DataError
from mpi_rollout.storage.objects import (
    Tell,
    attributes_of,
    check_objects,
    check_room,
    count,
    object_of,
    parsed,
    reading,
    table_of,
    text,
)
from mpi_rollout.storage.schema import (
    EPISODE,
    FORMAT,
    FORMAT_VERSION,
    RESET,
    digest_of,
    is_recording,
)
from mpi_rollout.storage.structure import expected_rows

ATTEMPTS = 3
MOST_TABLES = 16  # Of a study.
OTHERS = {f"{FORMAT}-scaling": "a study", f"{FORMAT}-simulation": "a simulation"}
OURS = {"config", "spaces", "digest", "format_version"}  # Attributes that only files of this program have together.
Content = TypeVar("Content")


@contextmanager
def opened(path: str, tell: Tell) -> Iterator[tuple[h5py.File, Tell]]:
    """Open a file of a run that may be damaged, or made to harm; see `objects.reading`.

    DataError if it is not one, or cannot be read, here or in the `with` block.
    """
    with reading(path, tell) as (file, note):
        attributes = attributes_of(file)
        check_format(attributes, path)
        check_attributes(attributes)
        config = RolloutConfig.from_json(attributes["config"], path)
        check_objects(file, note, expected_rows(attributes, config, "chunks" in file))
        note("its root group")
        yield file, note


def steadily(path: str, read: Callable[[], Content]) -> Content:
    """Read a file; read it again if that raised DataError while a run was writing it.

    The run may have changed what was being read.
    """
    for attempt in range(ATTEMPTS):
        before = _state(path)
        try:
            return read()
        except DataError:
            if attempt + 1 == ATTEMPTS or _state(path) == before:
                raise
        time.sleep(0.5)
    raise AssertionError


def _state(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def check_format(attributes: Mapping[str, object], path: str) -> None:
    """Refuse files of other programs, and of later versions of this one.

    ContentError if it is a damaged file of this program.
    """
    if attributes.get("format") != FORMAT:
        if kind := OTHERS.get(str(attributes.get("format"))):
            raise DataError(f"{path} is {kind}, not a rollout; `python -m mpi_rollout plot {quote(path)}` draws it")
        if len(OURS & attributes.keys()) > 1:
            got = attributes.get("format")
            raise ContentError(f"its attribute format is {got!r:.80}, it should be {FORMAT!r}; the file is damaged")
        raise DataError(f"{path} was not written by {FORMAT}")
    version = count(attributes, "format_version")
    if version not in range(1, FORMAT_VERSION + 1):
        raise DataError(
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
    promised_by(attributes)


def promised_by(attributes: Mapping[str, Any]) -> Reproducibility | None:
    """Return the promise in the attributes of a file; None in files of older versions."""
    if (promised := attributes.get("reproducibility")) is None:
        return None
    try:
        return Reproducibility(promised)
    except ValueError as error:
        raise ContentError(f"its attribute reproducibility is {promised!r:.80}; the file is damaged") from error


def reproducibility_of(file: h5py.File) -> Reproducibility:
    """Return what the envs of a file promise; files of older versions do not say it."""
    if (promised := promised_by(file.attrs)) is not None:
        return promised
    is_loop = parsed(file.attrs, "config", dict)["vectorization_mode"] == "sync"
    return Reproducibility.EPISODE if is_loop else Reproducibility.SLICE


def leaf_datasets(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Return the datasets below a group by path, in alphabetical order."""
    datasets: dict[str, h5py.Dataset] = {}
    group.visititems(lambda name, item: datasets.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    return dict(sorted(datasets.items()))


def num_steps_of(file: h5py.File) -> int:
    """Return the number of steps that are committed."""
    return count(attributes_of(object_of(file, "trajectories", h5py.Group)), "num_steps")


def committed_episodes(file: h5py.File) -> np.ndarray:
    """Read the rows of /episodes that lie in committed steps."""
    return within(table_of(file, "episodes", EPISODE), num_steps_of(file))


def within(episodes: np.ndarray, num_steps: int) -> np.ndarray:
    """Return the episodes that lie in the first `num_steps` steps.

    A commit writes episodes first: a writer killed amid one leaves rows of steps that do not count.
    """
    counts = episodes["start"] + episodes["length"] <= num_steps
    return episodes if counts.all() else episodes[counts]  # A table of many episodes is not copied.


def committed_resets(file: h5py.File) -> np.ndarray | None:
    """Read the rows of /resets before committed steps and after the last one; None where a run took the steps."""
    rows = table_of(file, "resets", RESET) if is_recording(file.attrs) else np.zeros(0, RESET)
    return possible_resets(attributes_of(file), rows, num_steps_of(file))


def possible_resets(root: Mapping[str, object], resets: np.ndarray, num_steps: int) -> np.ndarray | None:
    """Return the rows of /resets before the first `num_steps` steps and after them; None where a run took the steps.

    ContentError if an env or a step cannot be.
    """
    if not is_recording(root):
        return None
    num_envs = count(root, "num_envs")
    if ((resets["env_index"] < 0) | (resets["env_index"] >= num_envs) | (resets["step"] < 0)).any():
        raise ContentError("resets names an env or a step that cannot be; the file is damaged")
    return resets[resets["step"] <= num_steps]


def identity(tell: Tell, path: str) -> dict[str, Any]:
    """Read whose file it is: its run's configuration, in JSON, its policy, its format, and whether it is complete."""
    with opened(path, tell) as (file, _):
        return identity_of(attributes_of(file))


def identity_of(attributes: Mapping[str, object]) -> dict[str, Any]:
    """Return the same from attributes that have been checked."""
    return {
        "config": text(attributes, "config"),
        "policy_sha256": text(attributes, "policy_sha256") if "policy_sha256" in attributes else "",
        "version": count(attributes, "format_version"),
        "complete": bool(text(attributes, "finished").strip()),
    }


def contents(tell: Tell, path: str, names: Collection[str]) -> dict[str, object]:
    """Read the root group's attributes and the named tables that there are, and whether all is as it was written."""
    with reading(path, tell) as (file, note):
        if names and attributes_of(file).get("format") != FORMAT:  # Who reads studies refuses a rollout by its name.
            if len(members := list(islice(file, MOST_TABLES + 1))) > MOST_TABLES:
                raise ContentError(f"it has more than {MOST_TABLES} objects, which files of mpi_rollout do not have")
            check_objects(file, note, members)
        note("its tables")
        attributes = _plain_attributes(file)
        tables = {name: _plain_table(file, name) for name in names if name in file}
        # The studies of `results/measured` have no digest.
        is_as_written = "digest" not in attributes or not names or attributes["digest"] == contents_digest(file)
        return {"attributes": attributes, "tables": tables, "is_as_written": is_as_written}


def contents_digest(file: h5py.File) -> str:
    """Return the SHA-256 of all tables and of all attributes of the root group but the digest."""
    tables = {name: _plain_table(file, name) for name in sorted(file) if isinstance(file[name], h5py.Dataset)}
    attributes = {name: value for name, value in _plain_attributes(file).items() if name != "digest"}
    return hashlib.sha256(json.dumps([attributes, tables], sort_keys=True).encode()).hexdigest()


def _plain_attributes(file: h5py.File) -> dict[str, str | float | None]:
    return {name: _plain(value) for name, value in attributes_of(file).items()}


def _plain_table(file: h5py.File, name: str) -> dict[str, list[object]]:
    """Read the names of a table's columns, and its rows as lists of numbers and texts."""
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset) or dataset.dtype.names is None or dataset.ndim != 1:
        raise ContentError(f"{name} is no table")
    check_room(file, name, dataset, len(dataset), room=0)
    return {
        "columns": list(dataset.dtype.names),
        "rows": [[_plain(value) for value in row] for row in dataset[...].tolist()],
    }


def _plain(value: object) -> str | float | None:
    """Return a value that JSON can hold; None for what is neither text nor a number."""
    value = value.item() if isinstance(value, np.generic) else value
    try:
        if isinstance(value, bytes):
            return value.decode()
        if isinstance(value, str):
            value.encode()  # h5py gives bytes that are no text as lone surrogates.
    except UnicodeError:
        return None
    return value if isinstance(value, str | int | float) else None
