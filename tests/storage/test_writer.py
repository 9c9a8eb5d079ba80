"""The file: blocks written as they were, commits that outlive their writer."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
from episode_rows import episodes_by_hand, table_of
from gymnasium import spaces
from jobs import assert_same_bytes, job_environment
from written_data import IMAGES, LARGE_ROWS, PLAIN, RESULTS, SMALL, Feed, digests, ending, what_is_committed

from mpi_rollout.core.layout import Block
from mpi_rollout.errors import StorageError, UsageError
from mpi_rollout.storage import writer as writing
from mpi_rollout.storage.checked_file import CheckedFile, checked
from mpi_rollout.storage.chunks import FileDatasets
from mpi_rollout.storage.episodes import EpisodeTable
from mpi_rollout.storage.untrusted import open_unmarked


def contents(path: Path) -> dict[str, np.ndarray]:
    """All datasets of /trajectories, with nothing but h5py."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file["trajectories"].visititems(
            lambda name, item: found.update({name: item[...]}) if isinstance(item, h5py.Dataset) else None
        )
    return found


def episodes_length(columns: dict[str, np.ndarray]) -> int:
    """How many rows are transitions."""
    ends = columns["terminations"] | columns["truncations"]
    return ends.size - int(ends[:-1].sum())


def write(feed: Feed, path: Path, num_rows: int, num_steps: int, handed_over: set[int] = frozenset()) -> None:
    """A run from its start to a complete file."""
    writer = feed.writer(path, num_rows)
    for _ in feed.fill(writer, num_steps, {*handed_over, num_steps}):
        pass
    writer.drain()
    assert writer.num_committed == num_steps
    assert writer.finish(ending(num_steps)) == str(path)


@pytest.mark.parametrize(
    ("space", "num_rows", "chunk", "lengths"),
    [
        (SMALL, 1, None, (1, 2, 7)),
        (SMALL, 8, None, (1, 7, 8, 9, 16, 50)),
        (LARGE_ROWS, 16, (16, 1, 300, 400), (1, 5, 16, 21)),  # A block has several chunks,
        (IMAGES, 4, (2, 1, 400, 400, 3), (1, 3, 4, 5)),  # and a step.
    ],
    ids=["one row", "small", "large", "images"],
)
def test_a_file_holds_what_went_in(
    tmp_path: Path, space: spaces.Space, num_rows: int, chunk: tuple[int, ...] | None, lengths: tuple[int, ...]
):
    for num_steps in lengths:
        feed, path = Feed(space, 5 if space is IMAGES else 3), tmp_path / f"{num_steps}.h5"
        write(feed, path, num_rows, num_steps, {2, 6, 9} if num_rows > 8 else {2})
        with h5py.File(path) as file:
            assert chunk is None or file["trajectories/observations"].chunks == chunk
        assert_same_bytes(contents(path), feed.expected(num_steps))


@pytest.mark.parametrize("seed", range(3))
def test_when_steps_are_handed_over_and_who_writes_them_does_not_change_the_file(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
):
    """With seed 1 a thread writes all, with seed 2 it writes in turn with the caller."""
    monkeypatch.setattr(writing, "JUDGED_S", 0.25 if seed == 0 else 0.0)
    monkeypatch.setattr(writing, "COSTLY", 0.0)
    monkeypatch.setattr(writing, "THREAD_S", 64.0 if seed == 1 else 1e-4)
    monkeypatch.setattr(writing, "MOST_THREAD_S", 64.0 if seed == 1 else 1e-4)
    draws = random.Random(seed)
    handed_over = set(draws.sample(range(60), 12))
    write(Feed(seed=seed), tmp_path / "some.h5", 2 ** draws.randrange(1, 5), 60, handed_over)
    write(Feed(seed=seed), tmp_path / "none.h5", 2 ** draws.randrange(1, 5), 60)
    assert_same_bytes(contents(tmp_path / "some.h5"), contents(tmp_path / "none.h5"))
    with h5py.File(tmp_path / "some.h5") as some, h5py.File(tmp_path / "none.h5") as none:
        assert some["episodes"][...].tobytes() == none["episodes"][...].tobytes()


def test_a_thread_writes_only_where_the_caller_would_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    now = [0.0]
    monkeypatch.setattr(writing, "perf_counter", lambda: now[0])
    writer = Feed().writer(tmp_path / "run.h5", 4)
    append, writes = writer._file.append, list[bool]()

    def submit(number: int, stepped_s: float, takes_s: float) -> None:
        def note(block: Block, num_rows: int) -> None:
            writes.append(threading.current_thread() is threading.main_thread())
            now[0] += takes_s
            append(block, num_rows)

        monkeypatch.setattr(writer._file, "append", note)
        now[0] += stepped_s
        block = writer.acquire()
        block.start = 4 * number
        writer.submit(block, 4)

    submit(0, stepped_s=1.0, takes_s=0.1)
    submit(1, stepped_s=0.1, takes_s=0.1)  # Too little time to judge by.
    assert writer.num_waits == 0
    submit(2, stepped_s=1.0, takes_s=0.5)
    assert writes == [True] * 3 and writer.num_waits == 1
    submit(3, stepped_s=writing.THREAD_S / 2, takes_s=0.0)
    writer.drain()
    submit(4, stepped_s=writing.THREAD_S, takes_s=0.5)  # The thread's time is over.
    submit(5, stepped_s=writing.THREAD_S, takes_s=0.0)  # It has twice as much now.
    writer.drain()
    assert writes[3:] == [False, True, False] and writer.num_waits == 2
    writer.discard()


def test_the_same_steps_may_be_handed_over_twice(tmp_path: Path):
    feed = Feed()
    writer = feed.writer(tmp_path / "run.h5", 8)
    block = writer.acquire()
    block.start = 0
    for step in range(6):
        feed.lay(block, step, step, "observations")
        feed.lay(block, step, step, "results")
    for num_rows in (0, 3, 3, 5, 5):
        writer.submit(block, num_rows)
    writer.drain()
    writer.finish(ending(5))
    assert_same_bytes(contents(tmp_path / "run.h5"), feed.expected(5))
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["episodes"]["length"].sum() == episodes_length(contents(tmp_path / "run.h5"))


def test_the_episode_table_of_a_file_is_that_of_its_columns(tmp_path: Path):
    write(Feed(seed=3), tmp_path / "run.h5", 8, 100, {3, 20, 21})
    columns = contents(tmp_path / "run.h5")
    cut = {name: columns[name] for name in RESULTS}
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["episodes"][...].tobytes() == table_of(cut, [(0, 0, 100)], 3).tobytes()


def test_episodes_of_steps_that_were_not_committed_are_not_read(tmp_path: Path):
    """A writer that is killed amid a commit leaves such rows."""
    feed = Feed(num_envs=5)
    write(feed, tmp_path / "run.h5", 8, 30)
    with checked(str(tmp_path / "run.h5"), lambda doing: None, num_steps=13) as file:
        read = [list(row) for row in file.committed_episodes().tolist()]
    assert read == ended_episodes(feed, 13)
    assert len(read) > 0


# Two at the same file: see also test_output.


@pytest.mark.parametrize("name", ["run.h5", "run.h5.part"])
def test_what_another_run_has_left_or_completed_is_not_touched(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(UsageError, match=rf"{name}: another run is writing it; wait for its end"):
        Feed().writer(tmp_path / "run.h5", 4)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"precious")]


def test_a_run_that_has_no_room_to_be_continued_leaves_only_what_it_had(tmp_path: Path, monkeypatch):
    feed = Feed()
    first = feed.writer(tmp_path / "run.h5", 8)
    assert list(feed.fill(first, 10, {10}))[-1] == 10
    first.drain()
    first.release()
    before = (tmp_path / "run.h5.part").read_bytes()

    def copy(source: CheckedFile, destination: FileDatasets, *_: object, **__: object) -> EpisodeTable:
        destination.columns["rewards"].dataset.resize(8, axis=0)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mpi_rollout.storage.run_file.copy_prefix", copy)
    with pytest.raises(StorageError, match=r"No space left on device .* its first 10 steps are committed; make room"):
        feed.writer(tmp_path / "run.h5", 8, num_past=10)
    assert [path.name for path in tmp_path.iterdir()] == ["run.h5.part"]
    assert (tmp_path / "run.h5.part").read_bytes() == before


def test_a_file_that_appears_during_a_run_is_not_overwritten(tmp_path: Path):
    feed = Feed()
    writer = feed.writer(tmp_path / "run.h5", 4)
    for _ in feed.fill(writer, 6, {6}):
        pass
    (tmp_path / "run.h5").write_text("of somebody else")
    with pytest.raises(StorageError, match=r"run\.h5 has appeared meanwhile"):
        writer.finish(ending(6))
    assert (tmp_path / "run.h5").read_text() == "of somebody else"
    assert_same_bytes(contents(tmp_path / "run.h5.part"), feed.expected(6))


def test_whatever_stops_the_thread_of_a_writer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def leave(_: object) -> None:
        raise SystemExit("enough")

    writer = Feed().writer(tmp_path / "run.h5", 8)
    monkeypatch.setattr(writer._file, "finish", leave)
    with pytest.raises(StorageError, match="enough"):
        writer.finish(ending(1))


def test_a_folder_that_is_not_there_is_a_storage_error(tmp_path: Path):
    with pytest.raises(StorageError, match=r"cannot write .*gone/run\.h5\.part: "):
        Feed().writer(tmp_path / "gone" / "run.h5", 4)


# Back-pressure.


def test_a_collector_that_is_faster_than_the_disk_waits_for_a_block_and_is_counted(tmp_path: Path):
    feed = Feed()
    writer = feed.writer(tmp_path / "run.h5", 4, num_blocks=2)
    first, second = writer.acquire(), writer.acquire()
    assert first is not second and writer.num_waits == 0
    got: list[Block] = []
    waiting = threading.Thread(target=lambda: got.append(writer.acquire()))
    waiting.start()
    first.start = 0
    while writer.num_waits == 0:
        pass
    assert not got
    writer.submit(first, first.num_rows)
    waiting.join(30)
    assert got == [first] and writer.num_waits == 1
    writer.discard()


def test_memory_is_bounded_by_the_blocks_that_go_round(tmp_path: Path):
    feed = Feed(IMAGES, 2)
    writer = feed.writer(tmp_path / "run.h5", 1, num_blocks=2)
    seen = set()
    acquire = writer.acquire
    writer.acquire = lambda: seen.add(id(block := acquire())) or block
    for _ in feed.fill(writer, 20, {20}):
        pass
    assert len(seen) == 2
    writer.finish(ending(20))
    assert_same_bytes(contents(tmp_path / "run.h5"), feed.expected(20))


# Readers and killers.

READER = """
import json, sys
import h5py
from written_data import what_is_committed

for line in sys.stdin:
    with h5py.File(line.strip(), libver="latest", swmr=True, locking=False) as file:
        print(json.dumps(what_is_committed(file)), flush=True)
"""


class Reader:
    """Another process that reads a file each time it is asked."""

    def __init__(self, path: Path):
        self.path = path
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER],
            env=job_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def read(self) -> dict:
        self.process.stdin.write(f"{self.path}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def ended_episodes(feed: Feed, num_steps: int) -> list[list]:
    """Rows of /episodes without those under way, as JSON has them."""
    columns = feed.expected(num_steps)
    results = {name: columns[name] for name in RESULTS}
    return [list(row) for row in episodes_by_hand(results, feed.seed) if row[5] or row[6]]


@pytest.mark.parametrize(("space", "num_rows"), [(SMALL, 8), (PLAIN, 1)], ids=["small", "one"])
def test_another_process_reads_what_is_committed_while_the_file_is_written(
    tmp_path: Path, space: spaces.Space, num_rows: int
):
    feed, handed_over = Feed(space), {1, 5, 8, 11, 16, 23}
    writer = feed.writer(tmp_path / "run.h5", num_rows)
    reader = Reader(tmp_path / "run.h5.part")
    try:
        for step in feed.fill(writer, 25, handed_over):
            if step not in handed_over:
                continue
            writer.drain()
            found = reader.read()
            assert writer.num_committed == found["num_steps"] == step
            assert all(found["lengths"][name] == step + 1 for name in found["lengths"] if "observations" in name)
            assert all(length >= step for length in found["lengths"].values())
            assert found["digests"] == digests(feed.expected(step))
            assert found["episodes"] == ended_episodes(feed, step)
    finally:
        reader.close()
        writer.discard()


WRITING = """
import sys
from written_data import Feed, {space}

feed = Feed({space}, seed=5)
writer = feed.writer("run.h5", {num_rows})
told = 0
for step in feed.fill(writer, 10**6, range(0, 10**6, 3)):
    if writer.num_committed > told:
        told = writer.num_committed
        print(told, flush=True)
"""


@pytest.mark.parametrize(("space", "num_rows"), [("SMALL", 8), ("IMAGES", 4)])
def test_every_step_reported_committed_is_readable_after_sigkill(tmp_path: Path, space: str, num_rows: int):
    """Killed after so many reports, and some of the writer's next work."""
    draws = random.Random(num_rows)
    process = subprocess.Popen(
        [sys.executable, "-c", WRITING.format(space=space, num_rows=num_rows)],
        cwd=tmp_path, env=job_environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    reports = [process.stdout.readline() for _ in range(draws.randrange(1, 40))]
    threading.Event().wait(draws.random() / 200)
    process.send_signal(signal.SIGKILL)
    reports += process.stdout.readlines()
    process.wait(30)
    process.stdout.close()
    told = max(int(report) for report in reports if report.endswith("\n"))
    # Not by `Reader`: where a write of metadata was torn, a reader in SWMR mode waits for ever.
    with open_unmarked(str(tmp_path / "run.h5.part")) as file:
        found = what_is_committed(file)
    assert found["num_steps"] >= told > 0
    feed = Feed({"SMALL": SMALL, "PLAIN": PLAIN, "LARGE_ROWS": LARGE_ROWS, "IMAGES": IMAGES}[space], seed=5)
    assert found["digests"] == digests(feed.expected(found["num_steps"]))
    assert found["episodes"] == ended_episodes(feed, found["num_steps"])
