"""A Minari data set: `main_data.hdf5` and `metadata.json`, as Minari 0.5 loads them.

Each task here runs in a child process, see `storage.child`, and gets the folder of the new data set, which nobody else
knows yet.  Several ranks write a part of the episodes each.  The root's part becomes the file that has all of them.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from mpi_rollout.core.spaces import Tree
from mpi_rollout.data.exports.episode_groups import EpisodeGroups
from mpi_rollout.data.exports.minari_metadata import facts_of
from mpi_rollout.data.exports.selection import exported_rows, groups_of, open_files, row_nbytes, share_of
from mpi_rollout.data.exports.writing import check_room, writing
from mpi_rollout.storage.objects import Tell

MAIN, ROWS, METADATA = "main_data.hdf5", "rows.npy", "metadata.json"
GROUP_NBYTES = 2500  # What HDF5 needs for an episode besides its data.
Options = Mapping[str, Any]


def export(tell: Tell, path: str, files: Sequence[str], folder: str, options: Options) -> dict[str, Any]:
    """Write a data set, in one process; return what there is to say about it."""
    plan(tell, path, files, folder, options)
    write_share(tell, path, files, folder, options, 0, 1)
    return finish(tell, path, files, folder, options, 1)


def plan(tell: Tell, path: str, files: Sequence[str], folder: str, options: Options) -> None:
    """Note which episodes there are: a run may be writing the file, and all ranks must mean the same."""
    with open_files(files) as data:
        tell("the list of its episodes")
        facts_of(data, options)  # Refuses what Minari cannot have.
        rows = exported_rows(data)
        nbytes = int(rows["length"].sum()) * row_nbytes(data) + len(rows) * GROUP_NBYTES
        check_room(folder, nbytes, compression_of(data, options))
        with writing(folder):
            np.save(os.path.join(folder, ROWS), rows)


def write_share(
    tell: Tell, path: str, files: Sequence[str], folder: str, options: Options, share: int, num_shares: int
) -> None:
    """Write the episodes of one of several shares."""
    out = part_path(folder, share)
    with open_files(files) as data, writing(out):
        rows = share_of(_planned(folder), share, num_shares, row_nbytes(data))
        with closing(EpisodeGroups(out, compression_of(data, options))) as groups:
            for group in groups_of(rows):
                for episode in data.iter_episodes(group):
                    tell(f"the episodes from step {episode.start:,} on")
                    groups.write(int(episode.row["number"]), columns_of(episode), episode.seed)


def finish(
    tell: Tell, path: str, files: Sequence[str], folder: str, options: Options, num_shares: int
) -> dict[str, Any]:
    """Put the shares together, write the metadata; return what there is to say."""
    with open_files(files) as data, writing(folder):
        rows = _planned(folder)
        main = part_path(folder, 0)
        if num_shares > 1:
            with closing(EpisodeGroups(main, is_new=False)) as groups:
                for share in range(1, num_shares):
                    part = part_path(folder, share)
                    for numbers in _pieces(share_of(rows, share, num_shares, row_nbytes(data))["number"]):
                        tell(f"what rank {share} has written")
                        groups.take(part, numbers)
                    os.unlink(part)
        os.unlink(os.path.join(folder, ROWS))
        total_steps = int(rows["length"].sum())
        facts = facts_of(data, options)
        metadata = {
            "total_episodes": len(rows),
            "total_steps": total_steps,
            **facts.metadata,
            "dataset_size": round(os.path.getsize(main) / 1e6, 1),
        }
        _write_json(os.path.join(folder, METADATA), metadata)
        _sync(main)
        unfinished = int((~rows["terminated"] & ~rows["truncated"]).sum())
    counts = {"episodes": len(rows), "steps": total_steps, "unfinished": unfinished}
    return {**counts, "nbytes": os.path.getsize(main), "notes": facts.notes}


def part_path(folder: str, share: int) -> str:
    """Return the file of a share; the first one becomes the whole."""
    return os.path.join(folder, f"part-{share}.hdf5" if share else MAIN)


def compression_of(data: Any, options: Options) -> str:
    """Return how the data set is compressed: as the user says, else if the data are."""
    files = getattr(data, "files", [data])
    is_compressed = any(file.config.compression != "none" for file in files)
    return str(options.get("compression") or ("gzip" if is_compressed else "none"))


def columns_of(episode: Any) -> dict[str, Tree]:
    """Return the members of an episode's group, as Minari names them."""
    truncations = episode.truncations
    if not (episode.terminated or episode.truncated):  # The end of the data has cut it: Minari's way to say so.
        truncations = truncations.copy()
        truncations[-1] = True
    return {
        "observations": episode.observations,
        "actions": episode.actions,
        "rewards": episode.rewards,
        "terminations": episode.terminations,
        "truncations": truncations,
        "infos": infos_of(episode),  # An empty group, where there are none: without it Minari cannot print an episode.
    }


def infos_of(episode: Any) -> dict[str, Tree]:
    """Return infos, and what the policy gave besides actions as `extras`: arrays of length + 1, as Minari has them."""
    named = {**episode.infos, **({"extras": episode.extras} if episode.extras else {})}
    return {name: _longer(tree, episode.length) for name, tree in named.items()}


def _longer(tree: Tree, length: int) -> Tree:
    """Add a row of zeros to arrays of `length`: no policy was asked about the last observation."""
    if isinstance(tree, dict):
        return {name: _longer(part, length) for name, part in tree.items()}
    return tree if len(tree) > length else np.concatenate([tree, np.zeros_like(tree[:1])])


def _planned(folder: str) -> np.ndarray:
    return np.asarray(np.load(os.path.join(folder, ROWS), allow_pickle=False))


def _pieces(numbers: np.ndarray) -> Iterator[np.ndarray]:
    yield from np.array_split(numbers, max(len(numbers) // 1000, 1))


def _write_json(path: str, values: Mapping[str, Any]) -> None:
    with open(path, "w") as file:
        json.dump(values, file)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
