"""What the file of a run says of itself: its format, its attributes, its datasets, and which of its steps count.

A file is opened without MPI, complete or not.  It may be damaged or hostile, see `untrusted`.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import h5py
import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.columns import stored_leaves
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.core.spaces import Leaf
from mpi_rollout.errors import ContentError, DataError
from mpi_rollout.storage.codecs import compression_of, is_available, pays, why_missing
from mpi_rollout.storage.schema import (
    CHUNK,
    COMMIT,
    EPISODE,
    FORMAT,
    FORMAT_VERSION,
    LIST,
    LISTED_SINCE,
    RANK,
    RESET,
    TABLES,
    digest_of,
    is_recording,
    tables_of,
)
from mpi_rollout.storage.untrusted import (
    Tell,
    attributes_of,
    check_objects,
    count,
    object_of,
    parsed,
    reading,
    table_of,
    text,
)
from mpi_rollout.storage.values import described_leaves
from mpi_rollout.stored_config import read_config

ATTEMPTS = 3
OURS = {"config", "spaces", "digest", "format_version"}  # Attributes that only files of this program have together.
Content = TypeVar("Content")
Rows = dict[str, tuple[np.dtype, tuple[int, ...]]]


@contextmanager
def opened(path: str, tell: Tell) -> Iterator[tuple[h5py.File, Tell]]:
    """Open a file of a run that may be damaged, or made to harm; see `untrusted.reading`.

    DataError if it is not one, or cannot be read, here or in the `with` block.
    """
    with reading(path, tell) as (file, note):
        attributes = attributes_of(file)
        check_format(attributes, path)
        check_attributes(attributes)
        config = read_config(attributes["config"], path)
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
    """Return the promise of a file's envs; files of older versions do not have it."""
    if (promised := promised_by(file.attrs)) is not None:
        return promised
    is_loop = parsed(file.attrs, "config", dict)["vectorization_mode"] == "sync"
    return Reproducibility.EPISODE if is_loop else Reproducibility.SLICE


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


def expected_rows(root: Mapping[str, object], config: RolloutConfig, has_list: bool) -> Rows:
    """Return for every dataset the dtype, and the shape without its first axis.

    Parameters
    ----------
    root
        The attributes of the root group.
    has_list
        The file has a list of chunks; one of an older format version may have none.
    """
    expected: Rows = {name: (TABLES[name][0], ()) for name in tables_of(root, config.trajectories)}
    expected["throughput/ranks"] = RANK, ()
    if has_list or count(root, "format_version") >= LISTED_SINCE:
        expected |= {"chunks": (CHUNK, ()), "commits": (COMMIT, ())}
    if config.trajectories:
        for name, leaf in expected_leaves(root, count(root, "format_version")).items():
            expected[f"trajectories/{name}"] = leaf.dtype, (config.num_envs, *leaf.shape)
    return expected


def expected_leaves(root: Mapping[str, object], version: int) -> dict[str, Leaf]:
    """Return the leaves of the columns below /trajectories, by their paths there, in a file of a format version."""
    spaces = parsed(root, "spaces", dict)
    names = ["observation", "action", *sorted({"extra", "info"} & spaces.keys())]
    described = {name: tuple(leaf for leaf, *_ in described_leaves(spaces.get(name))) for name in names}
    stored = stored_leaves(described, is_recording(root), version)
    return {name: leaf for group in stored.values() for name, leaf in group.items()}


def check_datasets(datasets: Mapping[str, h5py.Dataset], expected: Rows, compression: str) -> None:
    """Check that these are the datasets of a file; ContentError if one is missing or another one.

    Parameters
    ----------
    compression
        What the configuration says.
    """
    for name, (dtype, shape) in expected.items():
        if name not in datasets:
            raise ContentError(f"there is no {name}")
        _check_dataset(name, datasets[name], dtype, shape)
        _check_compression(name, datasets[name], compression if name.startswith("trajectories/") else "none")


def _check_dataset(name: str, dataset: h5py.Dataset, dtype: np.dtype, shape: tuple[int, ...]) -> None:
    got = dataset.dtype, (dataset.shape or ())[1:]
    if got != (dtype, shape):
        raise ContentError(f"{name} should be {dtype} {shape} a row, got {got[0]} {got[1]}")
    if dataset.chunks is None or dataset.chunks[2:] != tuple(max(size, 1) for size in shape[1:]):
        raise ContentError(f"{name} is not cut into chunks of whole rows")
    if dataset.fletcher32 == (name in LIST):  # Others' readers have only those of HDF5.
        raise ContentError(f"{name} has {'' if dataset.fletcher32 else 'no '}checksums")


def _check_compression(name: str, dataset: h5py.Dataset, wanted: str) -> None:
    """Refuse other filters than the configuration says: they would be called with what the file has."""
    expected, got = wanted if pays(wanted, dataset.dtype, dataset.shape[2:]) else "none", compression_of(dataset)
    if expected != got:
        raise ContentError(f"{name} should have the compression {expected}, got {got}")
    if not is_available(got):
        raise ContentError(f"{name} is compressed: {why_missing(got)}")
