"""Drives a `Writer` as the collector does, with data that are known beforehand.

The data of step t are drawn from (seed, t) alone, so that any process can tell what a file must hold.
"""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import h5py
import numpy as np
from gymnasium import spaces

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.layout import Block, Contents
from mpi_rollout.core.spaces import describe
from mpi_rollout.process.clock import PHASES
from mpi_rollout.storage.run_file import Prefix, RunFile
from mpi_rollout.storage.schema import CHUNK, COMMIT, Ending, first_digest, leaf_datasets, next_digest
from mpi_rollout.storage.untrusted import open_unmarked
from mpi_rollout.storage.writer import Writer

SMALL = spaces.Dict({"x": spaces.Box(-1, 1, (3,), np.float32), "n": spaces.Tuple((spaces.Discrete(2**40),))})
PLAIN = spaces.Box(0, 255, (4,), np.uint8)
LARGE_ROWS = spaces.Box(0, 255, (300, 400), np.uint8)  # 3 envs: several steps to a chunk, several chunks to a block.
IMAGES = spaces.Box(0, 255, (400, 400, 3), np.uint8)  # 5 envs: 2.4 MB a step, which is split along the env axis.
ACTIONS = spaces.MultiDiscrete([3, 5])
RESULTS = ("rewards", "terminations", "truncations")


class Feed:
    """A run of `num_envs` envs with invented data, written to `path`."""

    def __init__(
        self, space: spaces.Space = SMALL, num_envs: int = 3, seed: int = 0, compression: str = "none",
        bits: int = 255, **options: object,
    ):  # fmt: skip
        self.space, self.num_envs, self.seed = space, num_envs, seed
        self.compression, self.bits = compression, bits  # Of each byte of an observation or action.
        # More of the configuration, and of the root group.
        self.options, self.attributes = options, dict[str, object]()

    def writer(self, path: Path | str, num_rows: int, num_blocks: int = 3, num_past: int | None = None) -> Writer:
        """Make a writer with small blocks; with `num_past` steps, of a run whose unfinished file is continued."""
        blocks = [Block(Contents(self.space, ACTIONS), self.num_envs, 1, num_rows) for _ in range(num_blocks)]
        return self.writer_of(blocks, path, num_past)

    def writer_of(self, blocks: list[Block], path: Path | str, num_past: int | None = None) -> Writer:
        """Make a writer with these blocks."""
        config = RolloutConfig(
            env="CartPole-v1", num_envs=self.num_envs, seed=self.seed, out=str(path), compression=self.compression,
            **self.options,
        )  # fmt: skip
        described = {"observation": describe(self.space), "action": describe(ACTIONS)}
        attributes = {
            "config": config.to_json(), "env_spec": "", "spaces": json.dumps(described),
            "seed": self.seed, "num_envs": self.num_envs, "autoreset_mode": "NextStep",
            "reproducibility": "episode", "has_episode_seeds": True,
            "hosts": '["here"]', "mpi_library": "none", "num_ranks": 1, "started": "2000-01-01T00:00:00+00:00",
            **self.attributes,
        }  # fmt: skip
        prefix = None if num_past is None else Prefix(num_past, f"{config.path}.part")
        return Writer(RunFile(config, attributes, blocks[0].num_rows, prefix), blocks)

    def ends(self, step: int) -> np.ndarray:
        """Which envs terminate, and which are truncated, in a step; never in two steps running."""
        draws = np.random.default_rng((self.seed, step, 2))
        return (draws.random((2, self.num_envs)) < 0.2) & ((step + np.arange(self.num_envs)) % 3 == 0)

    def lay(self, block: Block, row: int, step: int, kind: str) -> None:
        """Put the observations of a step, or all else of it, into a row of a block."""
        draws = np.random.default_rng((self.seed, step, kind == "observations"))
        for name, array in block.named.items():
            if name.startswith("observations") == (kind == "observations") and name not in RESULTS:
                drawn = np.frombuffer(draws.bytes(array[row].nbytes), np.uint8) & self.bits
                array[row] = drawn.view(array.dtype).reshape(array[row].shape)
        if kind != "observations":
            block.terminations[row], block.truncations[row] = self.ends(step)
            is_reset = self.ends(step - 1).any(axis=0) if step else False
            block.rewards[row] = np.where(is_reset, 0.0, draws.normal(size=self.num_envs))

    def fill(
        self, writer: Writer, num_steps: int, handed_over: Collection[int] = (), num_past: int = 0
    ) -> Iterator[int]:
        """Write steps; yield after each the number of steps so far.  After those in `handed_over` all are submitted.

        A run that is continued after `num_past` steps begins with the block that these end in.
        """
        block, row = writer.acquire(), 0
        block.start = num_past - num_past % block.num_rows
        self.lay(block, 0, block.start, "observations")
        for step in range(block.start, num_steps):
            is_last = row + 1 == block.num_rows
            following = writer.acquire() if is_last else block
            next_row = 0 if is_last else row + 1
            if is_last:
                following.start = step + 1
            self.lay(block, row, step, "results")
            self.lay(following, next_row, step + 1, "observations")
            if is_last:
                writer.submit(block, block.num_rows)
            block, row = following, next_row
            if step + 1 in handed_over:
                writer.submit(block, row)
            if step >= num_past:
                yield step + 1

    def expected(self, num_steps: int) -> dict[str, np.ndarray]:
        """What /trajectories must hold after so many steps."""
        block = Block(Contents(self.space, ACTIONS), self.num_envs, 1, num_steps + 1)
        for step in range(num_steps):
            self.lay(block, step, step, "observations")
            self.lay(block, step, step, "results")
        self.lay(block, num_steps, num_steps, "observations")
        return {
            name: array if name.startswith("observations") else array[:num_steps] for name, array in block.named.items()
        }


def ending(num_steps: int = 0, complete: bool = True) -> Ending:
    """What is known at the end of such a run."""
    rank = {"rank": 0, "host": "here", "num_envs": 1, "seconds": dict.fromkeys(PHASES, 0.0)}
    return Ending("2000-01-01T00:00:01+00:00", num_steps, 1.0, [rank], [], complete)


def digests(columns: Mapping[str, np.ndarray]) -> dict[str, str]:
    return {name: hashlib.sha256(column.tobytes()).hexdigest() for name, column in columns.items()}


def what_is_committed(file: h5py.File) -> dict:
    """What a file holds of the steps that it says it has, for JSON; all of its rows that count are read."""
    num_steps = int(file["trajectories"].attrs["num_steps"])
    datasets, episodes = leaf_datasets(file["trajectories"]), file["episodes"][...]
    return {
        "num_steps": num_steps,
        "lengths": {name: len(dataset) for name, dataset in datasets.items()},
        "digests": digests(
            {name: each[: num_steps + name.startswith("observations")] for name, each in datasets.items()}
        ),
        "episodes": [list(row) for row in episodes.tolist() if row[1] + row[2] <= num_steps],
    }


NUM_STEPS = 21


def quiet(doing: str) -> None:
    pass


def written(folder: Path, kind: str, space: spaces.Space = SMALL) -> Path:
    """A complete file, one of a run that ended badly, or one of a run that still goes on."""
    writer = Feed(space).writer(folder / "run.h5", 8)
    for _ in Feed(space).fill(writer, NUM_STEPS, {3, 11, 19, NUM_STEPS}):
        pass
    writer.drain()
    if kind == "running":
        shutil.copy(folder / "run.h5.part", folder / "killed.h5.part")
        writer.discard()
        return folder / "killed.h5.part"
    return Path(writer.finish(ending(NUM_STEPS, complete=kind == "complete")))


def flip(path: Path, place: int, bits: int = 1) -> None:
    with open(path, "r+b") as file:
        byte = os.pread(file.fileno(), 1, place)[0]
        os.pwrite(file.fileno(), bytes([byte ^ bits]), place)


def damage(path: Path, name: str, kind: str, number: int = 0) -> None:
    """Damage a chunk so that its Fletcher-32 stays: all zero, or 40 words of zeros become ffff."""
    with open_unmarked(str(path)) as file:
        info = file[name].id.get_chunk_info(number)
    with open(path, "r+b") as file:
        chunk = np.frombuffer(os.pread(file.fileno(), info.size, info.byte_offset), np.uint8).copy()
        if kind == "zeros":
            chunk[:] = 0
        else:
            words = chunk[: info.size // 2 * 2].view("u2")
            words[np.flatnonzero(words == 0)[:40]] = 0xFFFF
        os.pwrite(file.fileno(), chunk.tobytes(), info.byte_offset)


def relist(path: Path) -> None:
    """Write the list of chunks that a file's own writer would have written, had it written what the file now has."""
    with h5py.File(path, "r+") as file:
        if "chunks" not in file or "trajectories" not in file:
            return
        names, rows = json.loads(file["chunks"].attrs["datasets"]), []
        content = path.read_bytes()
        for number, name in enumerate(names):
            dataset = file.get(name)
            for index in range(dataset.id.get_num_chunks() if dataset is not None else 0):
                info = dataset.id.get_chunk_info(index)
                row, env = (*info.chunk_offset, 0)[:2]
                crc32 = zlib.crc32(content[info.byte_offset : info.byte_offset + info.size])
                rows.append((number, row, env, info.byte_offset, info.size, info.filter_mask, info.size, crc32))
        listed, num_steps = np.array(rows, CHUNK), int(file["trajectories"].attrs["num_steps"])
        digest = next_digest(first_digest({"digest": file.attrs.get("digest", "")}), num_steps, listed)
        commit = np.array([(num_steps, len(listed), np.frombuffer(digest, "u1"))], COMMIT)
        for name, table in (("chunks", listed), ("commits", commit)):
            file[name].resize(len(table), axis=0)
            file[name][...] = table
