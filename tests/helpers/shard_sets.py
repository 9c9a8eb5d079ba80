"""Sets of shards with data that are known beforehand, and the single file of the same run."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from gymnasium import spaces
from written_data import NUM_STEPS, SMALL, Feed, ending, relist

from mpi_rollout.core.layout import Block, Contents
from mpi_rollout.process.clock import PHASES
from mpi_rollout.storage.manifest import begin_manifest
from mpi_rollout.storage.schema import LATER_ATTRIBUTES, Ending, digest_of
from mpi_rollout.storage.set_end import complete_manifest
from mpi_rollout.storage.shard_files import shard_path, shards_folder
from mpi_rollout.storage.untrusted import open_unmarked

RUN, RANGES = "5eed", (range(3), range(3, 4), range(4, 7))
MORE = ("format", "format_version", *LATER_ATTRIBUTES)


class ShardFeed(Feed):
    """The data of some envs of another feed."""

    def __init__(self, whole: Feed, envs: range):
        super().__init__(whole.space, len(envs), whole.seed, whole.compression, whole.bits, first_env=envs.start)
        self._whole, self._envs, self.attributes = whole, slice(envs.start, envs.stop), {"run": RUN}
        self._row = Block(Contents(whole.space, spaces.MultiDiscrete([3, 5])), whole.num_envs, 1, 1)

    def lay(self, block: Block, row: int, step: int, kind: str) -> None:
        self._whole.lay(self._row, 0, step, kind)
        for name, array in block.named.items():
            if name.startswith("observations") == (kind == "observations"):
                array[row] = self._row.named[name][0, self._envs]


def write(feed: Feed, path: Path, num_steps: int, kind: str) -> None:
    """Write the file of a feed; a running one stays as its writer has left it at that moment."""
    writer = feed.writer(path, 8)
    writer.add_interval(1.0, 10, 10.0)
    for _ in feed.fill(writer, num_steps, {3, 11, 19, num_steps}):
        pass
    writer.drain()
    if kind == "running":
        shutil.copy(f"{path}.part", f"{path}.copy")
        writer.discard()
        Path(f"{path}.copy").rename(f"{path}.part")
    else:
        writer.finish(ending(num_steps, complete=kind == "complete"))
    writer.release()


def written_set(
    folder: Path,
    kind: str,
    space: spaces.Space = SMALL,
    ranges: Sequence[range] = RANGES,
    ahead: int = 4,
    name: str = "big.h5",
    **of_feed,
) -> tuple[Path, Path]:
    """A set, and the single file of the same run; in one that is not complete, the last shard is `ahead`."""
    whole = Feed(space, ranges[-1].stop, **of_feed)
    single, out = folder / "single.h5", folder / "set" / name
    out.parent.mkdir()
    write(whole, single, NUM_STEPS, kind)
    part = "" if kind == "complete" else ".part"
    attributes = attributes_of(Path(f"{single}{part}"))
    begin_manifest(str(out), attributes, RUN, ranges).release()
    for envs in ranges:
        more = ahead if part and envs == ranges[-1] else 0
        write(ShardFeed(whole, envs), Path(shard_path(str(out), envs)), NUM_STEPS + more, kind)
    if kind == "complete":
        complete_manifest(str(out), ending(NUM_STEPS), intervals_of(single))
    return Path(f"{out}{part}"), Path(f"{single}{part}")


def attributes_of(single: Path) -> dict[str, object]:
    """The attributes that the manifest of the same run is begun with."""
    with open_unmarked(str(single)) as file:
        return {name: value for name, value in file.attrs.items() if name not in MORE}


def intervals_of(single: Path) -> np.ndarray:
    with h5py.File(single) as file:
        return file["throughput/intervals"][...]


def as_set(out: Path, single: Path, shards: Sequence[Path]) -> Path:
    """Make a set of complete files, which some envs each of the run of a single one have written."""
    ranges, start = [], 0
    for path in shards:
        with h5py.File(path) as file:
            ranges.append(range(start, start + int(file.attrs["num_envs"])))
        start = ranges[-1].stop
    attributes = attributes_of(single)
    begin_manifest(str(out), attributes, RUN, ranges).release()
    for path, envs in zip(shards, ranges, strict=True):
        mark(Path(shutil.copy(path, shard_path(str(out), envs))))
    ranks = [
        {"rank": rank, "host": os.uname().nodename, "num_envs": 1, "seconds": dict.fromkeys(PHASES, 0.0)}
        for rank in range(int(attributes["num_ranks"]))
    ]
    complete_manifest(str(out), Ending("2000-01-01T00:00:01", 1, 1.0, ranks, [], True), intervals_of(single))
    return out


def mark(shard: Path, run: str = RUN) -> None:
    """Let a file belong to a set."""
    with h5py.File(shard, "r+") as file:
        file.attrs["run"] = run
        file.attrs["digest"] = digest_of(file.attrs)
    relist(shard)


def shards_of(path: Path) -> list[Path]:
    """The files of a set's shards, in the order of envs."""
    return sorted(Path(shards_folder(str(path))).iterdir(), key=lambda shard: int(shard.name.split("-")[1]))
