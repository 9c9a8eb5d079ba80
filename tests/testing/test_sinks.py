"""All our sinks keep the contract of `Sink`, and the test of it notices those that do not."""

import itertools
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue

import drawn_spaces
import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jobs import datasets
from written_data import ACTIONS, SMALL, Feed, ending

from mpi_rollout.core.columns import has_last_row
from mpi_rollout.core.layout import Block, Contents
from mpi_rollout.drive.sink import DiscardSink, MemorySink, Sink
from mpi_rollout.storage import writer as writing
from mpi_rollout.storage.filters import PLUGINS, why_missing
from mpi_rollout.testing import sinks
from mpi_rollout.testing.sinks import Read, check_sink

pytestmark = pytest.mark.any_mpi


def in_memory(blocks: list[Block]) -> tuple[Sink, Read]:
    sink = MemorySink(blocks)
    return sink, lambda: sink.rows


def in_a_file(blocks: list[Block], path: Path, space: spaces.Space, compression: str) -> tuple[Sink, Read]:
    writer = Feed(space, sinks.NUM_ENVS, compression=compression).writer_of(blocks, path)

    def read() -> Mapping[str, np.ndarray]:
        writer.finish(ending(writer.num_committed))
        writer.release()
        return {name: rows for name, rows in datasets(path).items() if not name.startswith("/")}

    return writer, read


def test_the_sink_in_memory_keeps_the_contract():
    check_sink(in_memory, num_programs=100)
    check_sink(in_memory, observation_space=SMALL, action_space=ACTIONS)


def test_the_sink_that_keeps_nothing_keeps_the_contract():
    check_sink(lambda blocks: (DiscardSink(blocks), None))


@pytest.mark.parametrize(
    ("compression", "leaves_it_to_the_thread"), [("none", False), ("none", True), ("gzip", True), ("lz4", False)]
)
def test_a_file_keeps_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, leaves_it_to_the_thread: bool
):
    if compression in PLUGINS and why_missing(compression):
        pytest.skip("hdf5plugin is not installed")
    if leaves_it_to_the_thread:
        monkeypatch.setattr(writing.Writer, "_do", lambda writer, task: writer._work.put(task))
    numbers = itertools.count()

    def make(blocks: list[Block]) -> tuple[Sink, Read]:
        return in_a_file(blocks, tmp_path / f"{next(numbers)}.h5", sinks.OBSERVATION_SPACE, compression)

    check_sink(make, num_programs=6)
    assert all(h5py.is_hdf5(path) for path in tmp_path.iterdir())


class Late(MemorySink):
    """Keeps the blocks that it gives out again, and not what was in them."""

    def submit(self, block: Block, num_rows: int) -> None:
        super().submit(block, num_rows)
        self._parts[-1] = block.named


class Once(MemorySink):
    """Takes what a block has when its first part is submitted for all of it."""

    def submit(self, block: Block, num_rows: int) -> None:
        num_parts = len(self._parts)
        super().submit(block, num_rows)
        if len(self._parts) > num_parts:
            self.first = {name: array.copy() for name, array in block.named.items()}
        self._parts[-1] = {name: array.copy() for name, array in self.first.items()}


class Again(MemorySink):
    """Takes each part of a block for new rows."""

    @property
    def rows(self) -> dict[str, np.ndarray]:
        return {name: np.concatenate([rows, self.again[name]]) for name, rows in super().rows.items()}

    def submit(self, block: Block, num_rows: int) -> None:
        super().submit(block, num_rows)
        self.again = {name: array[:num_rows].copy() for name, array in block.named.items()}


class Proud(MemorySink):
    """Counts the last step of a block before what came after it is there."""

    def submit(self, block: Block, num_rows: int) -> None:
        super().submit(block, num_rows)
        self.num_committed = block.start + num_rows


class Short(MemorySink):
    """Leaves out what came after the last step."""

    @property
    def rows(self) -> dict[str, np.ndarray]:
        return {name: rows[: len(rows) - has_last_row(name)] for name, rows in super().rows.items()}


class Greedy(MemorySink):
    """Gives out a block that the caller still holds."""

    def submit(self, block: Block, num_rows: int) -> None:
        super().submit(block, num_rows)
        if num_rows < block.num_rows:
            self._free.append(block)


class Spending(MemorySink):
    """Makes a new block each time."""

    def acquire(self) -> Block:
        return Block(Contents(sinks.OBSERVATION_SPACE, sinks.ACTION_SPACE), sinks.NUM_ENVS, 1, self.num_rows)


class Tidy(MemorySink):
    """Puts zeros where nothing is complete."""

    def submit(self, block: Block, num_rows: int) -> None:
        super().submit(block, num_rows)
        block.rewards[num_rows:] = 0


class Lazy(MemorySink):
    """Does the last task when the next one comes, also where it is waited for."""

    def __init__(self, blocks: list[Block]):
        super().__init__(blocks)
        self.tasks = SimpleQueue[tuple[Block, int]]()

    def acquire(self) -> Block:
        while not self._free:
            super().submit(*self.tasks.get())
        return super().acquire()

    def submit(self, block: Block, num_rows: int) -> None:
        while not self.tasks.empty():
            super().submit(*self.tasks.get())
        self.tasks.put((block, num_rows))


class Forgetful(MemorySink):
    """Loses a row where two blocks meet."""

    def submit(self, block: Block, num_rows: int) -> None:
        super().submit(block, num_rows)
        if num_rows == block.num_rows:
            self._parts[-1]["actions"][-1] = 0


WRONG = {
    Late: "a sink keeps what was submitted; .* is not what it was in row",
    Once: "a sink keeps what was submitted; .* is not what it was in row",
    Again: "observations/.* has .* rows after .* steps, got",
    Proud: "num_committed counts the steps that were submitted with what came after them",
    Short: "observations/.* has .* rows after",
    Greedy: "acquire returns a block that the caller does not hold",
    Spending: "the blocks are few objects that come again and again",
    Tidy: "a sink writes into no block",
    Lazy: "drain waits until all that was submitted is committed",
    Forgetful: "a sink keeps what was submitted; actions is not what it was in row",
}


@pytest.mark.parametrize(("wrong", "words"), WRONG.items(), ids=lambda value: getattr(value, "__name__", None))
def test_a_sink_that_breaks_the_contract_is_found(wrong: type[MemorySink], words: str):
    def make(blocks: list[Block]) -> tuple[Sink, Read]:
        sink = wrong(blocks)
        return sink, lambda: sink.rows

    with pytest.raises(AssertionError, match=rf"^run \d+, \d blocks of \d rows: {words}"):
        check_sink(make)


def test_a_sink_that_claims_to_keep_nothing_commits_nothing():
    with pytest.raises(AssertionError, match="num_committed is 0 of a sink that keeps none"):
        check_sink(lambda blocks: (MemorySink(blocks), None))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn_spaces.SPACES, st.sampled_from(["none", "gzip"]))
def test_a_file_keeps_rows_of_any_space(tmp_path: Path, space: spaces.Space, compression: str):
    path = tmp_path / "one.h5"
    path.unlink(missing_ok=True)
    check_sink(lambda blocks: in_a_file(blocks, path, space, compression), 1, space, ACTIONS)
