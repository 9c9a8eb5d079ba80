"""What is held of a file with many episodes does not depend on how many there are."""

import gc
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from written_data import Feed, ending, quiet

from mpi_rollout.storage import recovery, verification
from mpi_rollout.storage.checked_file import checked
from mpi_rollout.storage.chunks import FileDatasets
from mpi_rollout.storage.episodes import stored_results
from mpi_rollout.storage.recovery import copy_prefix, schema_of
from mpi_rollout.storage.schema import EPISODE
from mpi_rollout.storage.verification import verify
from mpi_rollout.storage.writer import Writer

NUM_ENVS, NUM_ROWS = 64, 64


def write(writer: Writer, num_blocks: int, first: int = 0) -> None:
    """Write blocks in which every second step ends all episodes."""
    for number in range(first, first + num_blocks):
        block = writer.acquire()
        block.start = number * NUM_ROWS
        block.terminations[::2] = True
        writer.submit(block, NUM_ROWS // 2)
        writer.submit(block, NUM_ROWS)
        writer.add_interval(float(number), number, 1.0)
    writer.drain()


def traced(action: Callable[[], object]) -> tuple[int, int]:
    """By how many bytes what Python and NumPy hold has grown, and the most that they held more meanwhile."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        action()
        gc.collect()  # Python keeps lists of what is free.
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before, peak - before


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """A file with 98,000 episodes, 5 MB of them, whose run can go on."""
    writer = Feed(spaces.Discrete(2), NUM_ENVS).writer(tmp_path / "run.h5", NUM_ROWS)
    write(writer, 48)
    return Path(writer.finish(ending(48 * NUM_ROWS, complete=False)))


def test_a_writer_holds_as_much_after_many_episodes_as_after_few(tmp_path: Path):
    writer = Feed(spaces.Discrete(2), NUM_ENVS).writer(tmp_path / "run.h5", NUM_ROWS)
    write(writer, 10)
    # 120,000 episodes.  h5py's own table of open objects may grow meanwhile: by 150 kB where a process had many.
    growth, _ = traced(lambda: write(writer, 60, first=10))
    writer.discard()
    assert growth < 0.1 * 60 * NUM_ROWS // 2 * NUM_ENVS * EPISODE.itemsize


def test_verification_holds_the_episodes_of_the_file_alone(unfinished: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verification, "stored_results", partial(stored_results, nbytes=2**16))
    found: dict[str, object] = {}
    _, peak = traced(lambda: found.update(verify(quiet, str(unfinished))))
    assert found["episodes"] == 48 * NUM_ROWS * NUM_ENVS // 2
    assert peak < 1.5 * found["episodes"] * EPISODE.itemsize


def test_a_copy_of_a_run_holds_few_of_its_episodes(unfinished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recovery, "stored_results", partial(stored_results, nbytes=2**16))

    def copied() -> None:
        with checked(str(unfinished), quiet, is_rescue=True) as source:
            copy_prefix(source, FileDatasets(copy), {})

    with h5py.File(unfinished) as file, schema_of(file).create(str(tmp_path / "copy.h5")) as copy:
        _, peak = traced(copied)
        assert np.array_equal(copy["episodes"][...], file["episodes"][...])
        assert peak < 0.7 * file["episodes"].size * EPISODE.itemsize  # 0.44, and what h5py has of older files.
