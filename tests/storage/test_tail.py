"""A run that goes on in the file of an earlier start: nothing is copied, and the data are those of one start."""

import os
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import h5py
import pytest
from jobs import assert_same_bytes, datasets
from written_data import IMAGES, LARGE_ROWS, SMALL, Feed, damage, ending, flip, quiet, written

from mpi_rollout.commands.run_summary import summary
from mpi_rollout.errors import DataError, Interrupted
from mpi_rollout.storage import run_file
from mpi_rollout.storage.checked_file import checked
from mpi_rollout.storage.run_file import Prefix
from mpi_rollout.storage.torn import MARK, is_marked
from mpi_rollout.storage.verification import LaterCheck, verify

NUM_STEPS = 30


def start(
    feed: Feed, path: Path, num_past: int, num_steps: int, complete: bool = False, ranks: range = range(1)
) -> str:
    """One start of a run, which ends in good order."""
    writer = feed.writer(path, 8, num_past=num_past or None)
    for _ in feed.fill(writer, num_steps, {num_past + 2, num_steps}, num_past):
        pass
    last = ending(num_steps, complete)
    file = writer.finish(replace(last, ranks=[{**last.ranks[0], "rank": rank} for rank in ranks]))
    writer.release()
    return file


@pytest.fixture
def never_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_file, "copy_prefix", None)


@pytest.mark.usefixtures("never_copied")
@pytest.mark.parametrize(
    ("space", "compression"),
    [(SMALL, "none"), (SMALL, "gzip"), (LARGE_ROWS, "none"), (LARGE_ROWS, "gzip"), (IMAGES, "gzip")],
    ids=["small", "small, packed", "large", "large, packed", "images, packed"],
)
@pytest.mark.parametrize("stops", [(3, 5, 21), (7, 8, 9, 16)], ids=str)
def test_a_run_of_several_starts_has_the_data_of_one(tmp_path: Path, space, compression: str, stops: tuple[int, ...]):
    feed, places = Feed(space, compression=compression, bits=3), (0, *stops, NUM_STEPS)
    files = []
    for num_past, num_steps in pairwise(places):
        files.append(start(feed, tmp_path / "run.h5", num_past, num_steps, num_steps == NUM_STEPS))
        assert verify(quiet, files[-1])["num_steps"] == num_steps
    whole = start(feed, tmp_path / "whole.h5", 0, NUM_STEPS, complete=True)
    assert_same_bytes(datasets(Path(files[-1])), datasets(Path(whole)))
    with h5py.File(files[-1]) as file:
        assert len(file["throughput/ranks"]) == len(files)


@pytest.mark.usefixtures("never_copied")
def test_a_run_that_has_only_to_be_closed_gets_its_checksums(tmp_path: Path):
    feed = Feed()
    start(feed, tmp_path / "run.h5", 0, 21)
    writer = feed.writer(tmp_path / "run.h5", 8, num_past=21)
    assert verify(quiet, writer.finish(ending(21)))["complete"]


@pytest.mark.usefixtures("never_copied")
def test_a_start_that_is_killed_before_it_writes_leaves_the_file_for_the_next_one(tmp_path: Path):
    part = Path(start(Feed(), tmp_path / "run.h5", 0, 21))
    before = part.read_bytes()
    writer = Feed().writer(tmp_path / "run.h5", 8, num_past=21)
    writer.add_interval(1.0, 10, 10.0)
    writer.drain()
    assert part.read_bytes() == before
    writer.release()
    assert verify(quiet, start(Feed(), tmp_path / "run.h5", 21, 25))["num_steps"] == 25


@pytest.mark.usefixtures("never_copied")
def test_old_rows_are_not_read_when_a_run_goes_on(tmp_path: Path):
    part = start(Feed(), tmp_path / "run.h5", 0, 21)
    damage(Path(part), "trajectories/rewards", "zeros")
    inode = os.stat(part).st_ino
    start(Feed(), tmp_path / "run.h5", 21, 25)
    assert os.stat(part).st_ino == inode
    with pytest.raises(DataError, match="trajectories/rewards, rows 0 to 7: the checksum does not fit"):
        verify(quiet, part)


@pytest.mark.usefixtures("never_copied")
def test_options_that_do_not_decide_on_the_data_are_no_reason_to_copy(tmp_path: Path):
    start(Feed(max_walltime="01:00"), tmp_path / "run.h5", 0, 13)
    file = start(Feed(max_walltime="02:00", progress="none"), tmp_path / "run.h5", 13, NUM_STEPS, complete=True)
    assert verify(quiet, file)["complete"]


@pytest.mark.usefixtures("never_copied")
@pytest.mark.parametrize("first_rank", [0, 3])
def test_another_number_of_ranks_is_no_reason_to_copy(tmp_path: Path, first_rank: int):
    nums_ranks, places = (3, 1, 5, 2), (0, 13, 15, 20, NUM_STEPS)
    for num_ranks, (num_past, num_steps) in zip(nums_ranks, pairwise(places), strict=True):
        feed, is_last = Feed(), num_steps == NUM_STEPS
        feed.attributes = {"num_ranks": num_ranks}
        ranks = range(first_rank, first_rank + num_ranks)
        file = start(feed, tmp_path / "run.h5", num_past, num_steps, is_last, ranks)
        with checked(file, quiet) as checks:
            assert checks.ranks()["rank"].tolist() == [*ranks]
    assert verify(quiet, file)["complete"] and summary(quiet, file)["num_ranks"] == nums_ranks[-1]
    with h5py.File(file) as stored:
        assert len(stored["throughput/ranks"]) == sum(nums_ranks)


def test_a_file_of_another_compression_is_copied(tmp_path: Path):
    part = start(Feed(), tmp_path / "run.h5", 0, 13)
    inode = os.stat(part).st_ino
    file = start(Feed(compression="gzip"), tmp_path / "run.h5", 13, NUM_STEPS, complete=True)
    assert os.stat(file).st_ino != inode and verify(quiet, file)["num_steps"] == NUM_STEPS


def test_a_file_that_was_not_closed_is_copied(tmp_path: Path):
    part = start(Feed(), tmp_path / "run.h5", 0, 21)
    assert not is_marked(part)
    inode = os.stat(part).st_ino
    writer = Feed().writer(tmp_path / "run.h5", 8, num_past=21)
    next(Feed().fill(writer, 22, {22}, 21))
    writer.drain()
    assert is_marked(part) and os.stat(part).st_ino == inode
    os.rename(part, f"{part}.moved")
    os.link(f"{part}.moved", part)
    Feed().writer(tmp_path / "run.h5", 8, num_past=22).discard()
    assert not os.path.exists(part)


def test_a_copy_ends_at_once_where_the_run_is_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    part = written(tmp_path, "running")

    def stop() -> None:
        raise Interrupted("stopped by SIGTERM")

    content = part.read_bytes()
    monkeypatch.setattr("written_data.Prefix", partial(Prefix, check_stop=stop))
    with pytest.raises(Interrupted, match="SIGTERM"):
        Feed().writer(part.with_suffix(""), 8, num_past=19)
    assert part.read_bytes() == content and os.listdir(tmp_path) == [part.name]


def awaited(check: LaterCheck) -> None:
    while check.poll():
        time.sleep(0.02)


def test_what_is_checked_later_is_what_was_there_before_others_appended(tmp_path: Path):
    part = start(Feed(), tmp_path / "run.h5", 0, 21)
    check = LaterCheck(part)
    start(Feed(), tmp_path / "run.h5", 21, 30)
    awaited(check)
    check.end()


@pytest.mark.parametrize("name", ["actions", "rewards"])
def test_damage_of_old_rows_is_found_later(tmp_path: Path, name: str):
    part = start(Feed(), tmp_path / "run.h5", 0, 21)
    damage(Path(part), f"trajectories/{name}", "zeros", 1)
    check = LaterCheck(part)
    with pytest.raises(DataError, match=rf"{name}, rows 8 to 15: the checksum.*cannot be continued: .* recover .*move"):
        awaited(check)
    check.end()
    assert not check.poll()


def test_a_check_that_is_ended_says_nothing(tmp_path: Path):
    check = LaterCheck(start(Feed(), tmp_path / "run.h5", 0, 21))
    check.end()
    assert not check.poll()


def test_a_mark_is_no_reason_to_fail(tmp_path: Path):
    (tmp_path / "short").write_bytes(b"x")
    assert not is_marked(str(tmp_path / "short"))
    part = start(Feed(), tmp_path / "run.h5", 0, 8)
    flip(Path(part), MARK)
    assert is_marked(part)
