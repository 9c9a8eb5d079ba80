"""A Minari data set: `main_data.hdf5` and `metadata.json`, as Minari 0.5 loads them.

Each task here runs in a child process, see `storage.sandbox`, and gets the folder of the new data set, which nobody
else knows yet.  Several ranks write a file with a share of the episodes each, and the root copies them into the first
one, compressed as they are.
"""

import json
import os
from collections.abc import Container, Sequence
from contextlib import closing
from functools import partial

import numpy as np

from mpi_rollout.core.spaces import Tree
from mpi_rollout.data.columns import map_tree
from mpi_rollout.data.episodes import Episode
from mpi_rollout.data.exports.episode_groups import EpisodeGroups
from mpi_rollout.data.exports.minari_metadata import metadata_of
from mpi_rollout.data.exports.selection import (
    Options,
    allow_longest,
    check_room,
    counts_of,
    exported_rows,
    open_files,
    read,
    row_nbytes,
    share_of,
    writing,
)
from mpi_rollout.data.opening import SeveralRuns
from mpi_rollout.storage.untrusted import Tell

MAIN, ROWS, METADATA = "main_data.hdf5", "rows.npy", "metadata.json"
LARGE_STEP_NBYTES = 2**10  # Smaller steps are not compressed by default: it takes long, and saves little room.
GROUP_NBYTES = 3000  # What HDF5 needs for an episode besides its data.
PIECE = 20  # Episodes that are copied between two signs of life.
STATISTICS = tuple(f"rewards_{name}" for name in ("sum", "mean", "std", "max", "min"))


def export(tell: Tell, path: str, files: Sequence[str], folder: str, options: Options) -> dict[str, object]:
    """Write a data set, in one process; return what there is to say about it."""
    plan(tell, path, files, folder, options)
    write_share(tell, path, files, folder, options, 0, 1)
    return finish(tell, path, files, folder, options, 1)


def plan(tell: Tell, path: str, files: Sequence[str], folder: str, options: Options) -> None:
    """Note which episodes there are: a run may be writing the file, and all ranks must mean the same."""
    with open_files(files) as data:
        tell("reading the list of its episodes")
        metadata_of(data, options)  # Refuses what Minari cannot have.
        rows = exported_rows(data)
        nbytes = int(rows["length"].sum()) * row_nbytes(data) + len(rows) * GROUP_NBYTES
        check_room(folder, nbytes, compression_of(data, options))
        with writing(folder):
            np.save(os.path.join(folder, ROWS), rows)


def write_share(
    tell: Tell, path: str, files: Sequence[str], folder: str, options: Options, share: int, num_shares: int
) -> None:
    """Write the episodes of one of several shares."""
    part = _part(folder, share)
    with open_files(files) as data, writing(part):
        allow_longest(data, rows := _planned(folder))
        own = share_of(rows, share, num_shares, row_nbytes(data))
        compresses = compression_of(data, options) == "gzip"
        with closing(EpisodeGroups(tell, part, compresses)) as groups, np.errstate(all="ignore"):
            for episode in read(tell, data, own):
                columns = columns_of(episode)
                groups.write(columns, attributes_of(episode.row, columns["rewards"]))


def finish(
    tell: Tell, path: str, files: Sequence[str], folder: str, options: Options, num_shares: int
) -> dict[str, object]:
    """Put the shares together, write the metadata; return what there is to say."""
    main = _part(folder, 0)
    with open_files(files) as data, writing(main):
        rows, (metadata, notes) = _planned(folder), metadata_of(data, options)
        shares = [share_of(rows, share, num_shares, row_nbytes(data))["number"] for share in range(num_shares)]
        _join(tell, folder, shares)
        os.unlink(os.path.join(folder, ROWS))
        counts, nbytes = counts_of(rows), os.path.getsize(main)
        totals = {"total_episodes": counts["episodes"], "total_steps": counts["steps"]}
        with open(os.path.join(folder, METADATA), "w") as file:
            json.dump(totals | metadata | {"dataset_size": round(nbytes / 1e6, 1)}, file)
    return {**counts, "nbytes": nbytes, "notes": notes}


def _join(tell: Tell, folder: str, shares: Sequence[np.ndarray]) -> None:
    """Copy the episodes with these numbers from the files of the other shares into that of the first one."""
    if len(shares) == 1:
        return
    with closing(EpisodeGroups(tell, _part(folder, 0), False, is_new=False)) as groups:
        for share, numbers in enumerate(shares[1:], 1):
            for first in range(0, len(numbers), PIECE):
                tell(f"copying what rank {share} has written")
                groups.take(_part(folder, share), numbers[first : first + PIECE])
            os.unlink(_part(folder, share))


def _part(folder: str, share: int) -> str:
    """Return the file of a share; the first one's becomes the whole."""
    return os.path.join(folder, f"part-{share}.hdf5" if share else MAIN)


def compression_of(data: SeveralRuns, options: Options) -> str:
    """Return the compression of the data set: the user's choice; else large steps keep that of the files."""
    pays = row_nbytes(data) >= LARGE_STEP_NBYTES and any(file.config.compression != "none" for file in data.files)
    return str(options.get("compression") or ("gzip" if pays else "none"))


def _planned(folder: str) -> np.ndarray:
    return np.asarray(np.load(os.path.join(folder, ROWS), allow_pickle=False))


def columns_of(episode: Episode) -> dict[str, Tree]:
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


def infos_of(episode: Episode) -> dict[str, Tree]:
    """Return infos, further columns, and what the policy gave besides actions as `extras`, all of length + 1."""
    extras = episode.extras
    named = {**episode.further, **episode.infos, **({extras_name(episode.infos): extras} if extras else {})}
    return {name: map_tree(partial(_longer, num_rows=episode.length + 1), tree) for name, tree in named.items()}


def extras_name(infos: Container[str]) -> str:
    """Return a name for the group of extras beside infos: an env may give an info of the usual name."""
    return "extras" if "extras" not in infos else "policy_extras"


def _longer(rows: np.ndarray, num_rows: int) -> np.ndarray:
    """Add a row of zeros if there is one too few: no policy was asked about the last observation."""
    return rows if len(rows) == num_rows else np.concatenate([rows, np.zeros_like(rows[:1])])


def attributes_of(row: np.void, rewards: np.ndarray) -> dict[str, float]:
    """Return the attributes of an episode's group: what Minari's collector stores, to the last bit."""
    number, length, seed = int(row["number"]), len(rewards), int(row["seed"])
    total = np.add.reduce(rewards)
    mean = total / length
    away = rewards - mean
    std = np.sqrt(np.add.reduce(away * away) / length)
    statistics = (total, mean, std, np.maximum.reduce(rewards), np.minimum.reduce(rewards))
    values = {"id": number, "total_steps": length, **({"seed": seed} if seed >= 0 else {})}
    return values | dict(zip(STATISTICS, map(float, statistics), strict=True))
