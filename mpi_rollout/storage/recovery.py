"""The committed prefix of a file as a file of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np

from mpi_rollout.core.clock import utc_now
from mpi_rollout.errors import DataError, StorageError, UsageError, system_words
from mpi_rollout.storage.chunks import ChunkWriter, TableWriter, fill
from mpi_rollout.storage.objects import Tell
from mpi_rollout.storage.ownership import free_space, give_name
from mpi_rollout.storage.past import copy_prefix
from mpi_rollout.storage.reader import leaf_datasets
from mpi_rollout.storage.schema import LATER_ATTRIBUTES, Schema
from mpi_rollout.storage.values import ValueChecks
from mpi_rollout.storage.verification import Verification, verify, verifying


def recover(tell: Tell, path: str, new_path: str, temporary: str, num_steps: int | None = None) -> dict[str, Any]:
    """Make a complete, verified file of what a run has committed; the run's own file stays as it is.

    Episodes under way at the last commit become rows with none of `terminated` and `truncated`, as at the end of a
    run.  The new file's attribute `finished` stays empty where the run's is, and it has one `recovered`, the time.

    Parameters
    ----------
    temporary
        What the new file is called until it is verified.
    num_steps
        Not all of the committed steps, but the first ones.

    Returns
    -------
    What `verify` found in the new file.

    Raises
    ------
    DataError
        There is nothing to recover, or it is damaged.
    StorageError
        The new file cannot be written.
    """
    with verifying(path, tell) as source:
        source.attributes()
        source.structure()
        source.lengths()
        num_committed = source.num_steps
        source.take_only(_checked(source, num_steps))
        try:
            source.chunks()
        except DataError as error:
            raise DataError(f"{error}; with --num-steps N only the first N steps are recovered") from error
        with _writing(new_path), schema_of(source.file).create(temporary, swmr_mode=False) as destination:
            values = ValueChecks(source.root)
            table = copy_prefix(source.file, destination, source.num_steps, tell, values=values, is_all=True)
            TableWriter(destination["episodes"]).append(table.unfinished(source.num_steps))
            _finish(source.file, destination, is_all=source.num_steps == num_committed)
    found = verify(tell, temporary)
    with _writing(new_path):
        give_name(temporary, new_path)
    return found | {"file": new_path}


def _checked(source: Verification, num_steps: int | None) -> int:
    if source.num_steps == 0:
        raise DataError(f"{source.path}: no step is committed, there is nothing to recover")
    if num_steps is None:
        return source.num_steps
    if not 1 <= num_steps <= source.num_steps:
        raise UsageError(f"--num-steps must be 1 to {source.num_steps}, the steps that are committed, got {num_steps}")
    return num_steps


def schema_of(file: h5py.File) -> Schema:
    """That with which a file was made."""
    attributes = {name: value for name, value in file.attrs.items() if name not in LATER_ATTRIBUTES}
    named = {
        name: np.broadcast_to(np.zeros((), dataset.dtype), (dataset.chunks[0], *dataset.shape[1:]))
        for name, dataset in leaf_datasets(file["trajectories"]).items()
    }
    compression = file["trajectories/rewards"].compression or "none"
    return Schema(attributes, named, len(file["throughput/ranks"]), compression)


def _finish(source: h5py.File, destination: h5py.File, is_all: bool) -> None:
    """What is said at the end of a run, as far as it is known; then all checksums."""
    throughput = source["throughput"]
    env_steps, seconds = (throughput.attrs[name] for name in ("env_steps", "seconds"))
    intervals = throughput["intervals"][...]
    if seconds == 0 and len(intervals):  # The run was killed.
        env_steps, seconds = intervals["env_steps"][-1], intervals["time"][-1]
    destination["throughput"].attrs.modify("env_steps", env_steps)
    destination["throughput"].attrs.modify("seconds", seconds)
    TableWriter(destination["throughput/limit"]).append(throughput["limit"][...])
    if throughput["ranks"].id.get_num_chunks():
        fill(destination["throughput/ranks"], throughput["ranks"][...])
    if is_all and source.attrs["finished"].strip():
        destination.attrs.modify("finished", source.attrs["finished"])
    else:
        destination.attrs["recovered"] = utc_now()
    for dataset in leaf_datasets(destination).values():
        if dataset.name != "/throughput/ranks":
            ChunkWriter(dataset).seal()


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """What is read has been checked: what goes wrong now is the new file."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise StorageError(f"cannot write {path}: {system_words(error)} ({free_space(path)})") from error
