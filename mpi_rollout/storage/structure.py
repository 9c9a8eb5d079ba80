"""Which datasets a file should have: what follows from its configuration and its spaces."""

from collections.abc import Mapping

import h5py
import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.columns import stored_leaves
from mpi_rollout.core.spaces import Leaf
from mpi_rollout.errors import ContentError
from mpi_rollout.storage.codecs import compression_of, is_available, pays, why_missing
from mpi_rollout.storage.objects import count, parsed
from mpi_rollout.storage.schema import (
    CHUNK,
    COMMIT,
    LIST,
    LISTED_SINCE,
    RANK,
    TABLES,
    is_recording,
    tables_of,
)
from mpi_rollout.storage.values import described_leaves

Rows = dict[str, tuple[np.dtype, tuple[int, ...]]]


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
