"""The file of a run as the writer's thread fills it: what is committed when, and what is left of a failure."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
from written_data import ACTIONS, SMALL, Feed, ending

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.layout import Block, Contents
from mpi_rollout.core.spaces import describe
from mpi_rollout.errors import StorageError
from mpi_rollout.storage import run_file
from mpi_rollout.storage.ownership import identity
from mpi_rollout.storage.run_file import Prefix, RunFile
from mpi_rollout.storage.schema import FAULT, INTERVAL, INTERVALS_PER_CHUNK, fault_row

NUM_ENVS, ROWS_PER_BLOCK = 3, 8


def block_of(start: int, seed: int = 0) -> Block:
    """A block of a run whose steps are known; its last row's next observation is in the block after it."""
    block, feed = Block(Contents(SMALL, ACTIONS), NUM_ENVS, 1, ROWS_PER_BLOCK), Feed(seed=seed)
    block.start = start
    for row in range(ROWS_PER_BLOCK):
        feed.lay(block, row, start + row, "observations")
        feed.lay(block, row, start + row, "results")
    return block


def file_of(
    folder: Path,
    trajectories: bool = True,
    replaces: tuple[int, int] | None = None,
    prefix: Prefix | None = None,
) -> RunFile:
    """The file of a run that is not made yet."""
    config = RolloutConfig(env="CartPole-v1", num_envs=NUM_ENVS, out=str(folder / "run.h5"), trajectories=trajectories)
    attributes = {
        "config": config.to_json(), "env_spec": "", "seed": 0, "num_envs": NUM_ENVS, "num_ranks": 1,
        "spaces": json.dumps({"observation": describe(SMALL), "action": describe(ACTIONS)}),
        "autoreset_mode": "NextStep", "hosts": '["here"]', "mpi_library": "none", "started": "2000-01-01",
        "versions": "{}", "reproducibility": "episode", "has_episode_seeds": True,
    }  # fmt: skip
    return RunFile(config, attributes, ROWS_PER_BLOCK, prefix, replaces)


@pytest.fixture
def file(tmp_path: Path) -> RunFile:
    """A new file, which is closed at the end."""
    made = file_of(tmp_path)
    made.begin()
    return made


@contextmanager
def as_killed(path: Path | str) -> Iterator[h5py.File]:
    """What a reader would find if the writer were killed now."""
    with (
        tempfile.TemporaryDirectory() as folder,
        h5py.File(shutil.copy(path, folder), libver="latest", swmr=True) as read,
    ):
        yield read


def steps_in(path: Path | str) -> int:
    """How many steps a reader finds."""
    with as_killed(path) as read:
        return int(read["trajectories"].attrs["num_steps"])


def interval(time_s: float, env_steps: int) -> np.ndarray:
    return np.array([(time_s, env_steps, 12.0)], INTERVAL)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_has_a_name_when_it_has_all_its_objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = file_of(tmp_path)
    assert made.lock is None
    seen: list[list[str]] = []
    place = run_file.put_in_free_place
    monkeypatch.setattr(run_file, "put_in_free_place", lambda *paths: seen.append(names(tmp_path)) or place(*paths))
    made.begin()
    assert seen == [["run.h5.part.new"]] and names(tmp_path) == ["run.h5.part"]
    assert made.lock is not None and steps_in(made.part) == 0
    made.discard()
    assert names(tmp_path) == []


def test_rows_are_committed_but_the_last_of_a_full_block_whose_outcome_is_in_the_next(file: RunFile):
    first, second = block_of(0), block_of(8)
    for block, num_rows, expected in ((first, 3, 3), (first, 5, 5), (first, 8, 7), (second, 0, 8), (second, 8, 15)):
        file.append(block, num_rows)
        assert file.num_committed == expected == steps_in(file.part)
    assert 0 < file.worst_commit_s < 60
    columns = Feed().expected(15)
    with as_killed(file.part) as read:
        assert read["trajectories/rewards"][:15].tolist() == columns["rewards"].tolist()
        assert read["trajectories/observations/x"][:16].tobytes() == columns["observations/x"].tobytes()
    file.discard()


def test_notes_come_with_the_next_commit_and_once(file: RunFile):
    block = block_of(0)
    file.append(block, 2)
    file.note("throughput/intervals", interval(0.5, 6))
    file.note("faults", np.array([fault_row(1, 1, "it has diverged")], FAULT))
    with as_killed(file.part) as read:
        assert len(read["faults"]) == len(read["throughput/intervals"]) == 0
    file.append(block, 3)
    file.append(block, 4)
    file.note("throughput/intervals", interval(1.0, 12))
    path = file.finish(ending(4, complete=False))
    with h5py.File(path) as read:
        assert read["throughput/intervals"][...].tolist() == [(0.5, 6, 12.0), (1.0, 12, 12.0)]
        assert [row.tolist()[:2] for row in read["faults"]] == [(1, 1)]
        faulted = {int(row["env_index"]) for row in read["episodes"][...] if row["faulted"]}
    assert faulted <= {1}


@pytest.mark.parametrize("complete", [True, False])
def test_the_end_of_a_run_is_written_and_the_name_given_only_to_a_whole_file(file: RunFile, complete: bool):
    file.append(block_of(0), 6)
    end = ending(18, complete)
    end.limit.append((2.0, 4.0))
    path = Path(file.finish(end))
    assert path.name == ("run.h5" if complete else "run.h5.part") and names(path.parent) == [path.name]
    with h5py.File(path) as read:
        throughput = read["throughput"]
        assert (throughput.attrs["env_steps"], throughput.attrs["seconds"]) == (18, 1.0)
        assert throughput["limit"][...].tolist() == [(2.0, 4.0)] and throughput["ranks"]["host"][0] == b"here"
        assert read.attrs["finished"].strip() == (b"2000-01-01T00:00:01+00:00" if complete else b"")
        episodes = read["episodes"][...]
    ended = episodes["terminated"] | episodes["truncated"]
    assert ended.sum() > 0 and (ended.sum() < len(episodes)) == complete  # Those under way, if no start follows.


def test_a_file_without_trajectories_has_the_throughput(tmp_path: Path):
    made = file_of(tmp_path, trajectories=False)
    made.begin()
    made.note("throughput/intervals", interval(0.5, 6))
    with h5py.File(made.finish(ending(60))) as read:
        assert set(read) == {"chunks", "commits", "faults", "throughput"} and len(read["throughput/intervals"]) == 1
        assert read["throughput"].attrs["env_steps"] == 60


@pytest.fixture
def left(tmp_path: Path) -> RunFile:
    """What a start of a run has left after 10 steps, whose file somebody may continue."""
    made = file_of(tmp_path)
    made.begin()
    made.append(block_of(0), 8)
    made.append(block_of(8), 2)
    made.finish(ending(10, complete=False))
    made.lock.release()
    return made


def test_a_run_goes_on_behind_what_an_earlier_start_has_left(left: RunFile):
    file = file_of(Path(left.path).parent, prefix=Prefix(10, left.part))
    file.begin()
    assert file.num_committed == 10 == steps_in(file.part) and names(Path(file.part).parent) == ["run.h5.part"]
    file.append(block_of(8), 8)
    file.append(block_of(16), 4)
    with h5py.File(file.finish(ending(20))) as read:
        columns = Feed().expected(20)
        for name in ("rewards", "terminations", "actions", "observations/x"):
            assert read["trajectories"][name][...].tobytes() == columns[name].tobytes(), name
        seen = read["episodes"][...]
    assert len(np.unique(seen[["env_index", "start"]])) == len(seen)


def test_a_complete_file_that_is_extended_stays_until_the_end(left: RunFile):
    folder = Path(left.path).parent
    shutil.move(left.part, left.path)
    file = file_of(folder, replaces=identity(left.path), prefix=Prefix(10, left.path))
    file.begin()
    assert names(folder) == ["run.h5", "run.h5.part"]
    file.append(block_of(8), 6)
    assert file.finish(ending(14)) == left.path
    assert names(folder) == ["run.h5"] and steps_in(left.path) == 14


def test_a_damaged_file_gets_no_name(file: RunFile, monkeypatch: pytest.MonkeyPatch):
    def fail(path: str) -> None:
        raise StorageError(f"{path}: the checksum does not fit")

    monkeypatch.setattr(run_file, "check_index", fail)
    file.append(block_of(0), 4)
    with pytest.raises(StorageError, match="the checksum does not fit"):
        file.finish(ending(4))
    assert names(Path(file.part).parent) == ["run.h5.part"]


def test_a_file_without_trajectories_takes_its_intervals_while_the_run_goes_on(tmp_path: Path):
    file = file_of(tmp_path, trajectories=False)
    file.begin()
    for number in range(4 * INTERVALS_PER_CHUNK + 3):
        file.note("throughput/intervals", interval(float(number), number))
    with h5py.File(file.part, locking=False) as reader:
        assert reader["throughput/intervals"]["env_steps"].tolist() == list(range(4 * INTERVALS_PER_CHUNK))
    with h5py.File(file.finish(ending())) as reader:
        assert reader["throughput/intervals"]["env_steps"].tolist() == list(range(4 * INTERVALS_PER_CHUNK + 3))
