"""The end of a set: when all shards are complete, its manifest is written once more, checked, and gets its name."""

import os
from contextlib import closing
from json import dumps

import numpy as np

from mpi_rollout.errors import DataError
from mpi_rollout.storage.chunks import FileDatasets
from mpi_rollout.storage.ownership import give_name, identity, make_locked, removed
from mpi_rollout.storage.run_file import Ending
from mpi_rollout.storage.schema import LATER_ATTRIBUTES, LIMIT, Schema, padded, rank_rows
from mpi_rollout.storage.set_check import check_set, episodes_of, lay_out, wrong_values_of
from mpi_rollout.storage.shard_files import shard_path
from mpi_rollout.storage.stored_run import StoredRun


def complete_manifest(path: str, ending: Ending, intervals: np.ndarray, replaces: tuple[int, int] | None = None) -> str:
    """Make the complete manifest `path` of a set, in place of its `.part`, whose lock this process holds; return it.

    All shards must be complete; they get their names here.  Until then a complete set that is extended keeps its files.
    After a kill in between, the names from before are refused, the `.part` is whole, and this can be done once more.

    Parameters
    ----------
    intervals
        The rows of /throughput/intervals.
    replaces
        The `ownership.identity` of the complete manifest of the run before it was extended.
    """
    part, new = f"{path}.part", f"{path}.part.new"
    with closing(StoredRun(part)) as stored:
        if unfinished := [part.file.path for part in stored.parts if not part.file.is_complete]:
            raise DataError(f"{unfinished[0]} is not complete, so that its set cannot be")
        files = [(part.envs, part.file) for part in stored.parts]
        shards = [[envs.start, len(envs), file.num_steps, file.last_digest] for envs, file in files]
        attributes = {name: value for name, value in stored.attributes.items() if name not in LATER_ATTRIBUTES}
        # Of the start that ends the run, as in a single file.
        last = {"num_ranks": len(ending.ranks), "hosts": dumps([rank["host"] for rank in ending.ranks])}
        schema = Schema(attributes | last | {"shards": dumps(shards)}, 1)
        lock = make_locked(new)
        with removed(new):
            with closing(FileDatasets(schema.create(new, swmr_mode=False, is_locked=True))) as datasets:
                _fill(datasets, path, stored, ending, intervals)
            check_set(lambda doing: None, new, stored)
            for shard in (shard_path(path, envs) for envs, _ in files):
                if os.path.lexists(f"{shard}.part"):
                    give_name(f"{shard}.part", shard, identity(shard))
            os.replace(new, part)
            give_name(part, path, replaces)
        lock.release()
    return path


def _fill(datasets: FileDatasets, path: str, stored: StoredRun, ending: Ending, intervals: np.ndarray) -> None:
    file, tables, num_steps = datasets.file, datasets.tables, stored.num_steps
    for name in stored.leaves:
        lay_out(file, path, name, stored)
    for wrong in wrong_values_of(stored):
        counts = int(wrong["count"]), int(wrong["step"]), int(wrong["env_index"])
        datasets.values.of[str(wrong["dataset"])].counts[str(wrong["kind"])] = counts
    tables["episodes"].append(episodes_of(stored))
    tables["faults"].append(stored.faults)
    tables["throughput/intervals"].append(intervals)
    datasets.commit(num_steps)
    tables["throughput/limit"].append(np.array(ending.limit, LIMIT))
    datasets.end(num_steps, ending.env_steps, ending.seconds, rank_rows(ending.ranks), is_last=True)
    for name, words in (("finished", ending.finished), ("advice", ending.advice)):
        file.attrs.modify(name, padded(name, words))
