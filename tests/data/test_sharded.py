"""A set of shards, read as the single file of the same run: the same arrays, episodes, transitions and answers."""

import pickle
from collections import deque
from pathlib import Path

import numpy as np
import pytest
from shard_sets import RANGES, RUN, ShardFeed, attributes_of, shards_of, written_set
from written_data import NUM_STEPS, SMALL, Feed, damage, ending, quiet

import mpi_rollout
from mpi_rollout.errors import DataError
from mpi_rollout.storage import stored_run
from mpi_rollout.storage.manifest import begin_manifest
from mpi_rollout.storage.recovery import recover
from mpi_rollout.storage.schema import INTERVAL
from mpi_rollout.storage.set_end import complete_manifest
from mpi_rollout.storage.shard_files import shard_path
from mpi_rollout.storage.verification import verify

KINDS = ["complete", "ended", "running"]


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return written_set(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture
def complete(tmp_path: Path) -> Path:
    return written_set(tmp_path, "complete")[0]


def assert_same_data(path: Path, single: Path) -> None:
    with mpi_rollout.open(path) as data, mpi_rollout.open(single) as expected:
        assert (data.num_steps, data.num_envs, data.is_complete) == (
            expected.num_steps, expected.num_envs, expected.is_complete,
        )  # fmt: skip
        for name in ("episodes", "unfinished"):
            assert getattr(data, name).tobytes() == getattr(expected, name).tobytes()
        assert data.num_transitions == expected.num_transitions
        source, whole = data._source, expected._source
        assert source.leaves == whole.leaves and len(source.parts) == len(RANGES)
        rows, steps = slice(3, expected.num_steps), np.array([7, 2, 2, 19])
        for name in source.leaves:
            for envs in (slice(0, 7), slice(2, 5), slice(4, 6), slice(3, 3)):
                assert source.read(name, rows, envs).tobytes() == whole.read(name, rows, envs).tobytes()
                assert source.read(name, steps, envs).tobytes() == whole.read(name, steps, envs).tobytes()
        for episode, same in zip(
            data.iter_episodes(unfinished=True), expected.iter_episodes(unfinished=True), strict=True
        ):
            assert episode.row == same.row and episode.rewards.tobytes() == same.rewards.tobytes()
            assert episode.observations["x"].tobytes() == same.observations["x"].tobytes()
        batch, same_batch = (each.sample_transitions(100, 1) for each in (data, expected))
        assert batch.rewards.tobytes() == same_batch.rewards.tobytes()
        assert batch.next_observations["x"].tobytes() == same_batch.next_observations["x"].tobytes()


def test_a_set_is_read_as_a_single_file_is(pair: tuple[Path, Path]) -> None:
    assert_same_data(*pair)


def test_many_shards_are_open_a_few_at_a_time(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_run, "MOST_OPEN", 1)
    assert_same_data(*pair)


def test_a_copy_in_another_process_reads_the_same(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path, single = pair
    monkeypatch.chdir(path.parent)
    data = mpi_rollout.open(path.name)
    pickled, transitions = pickle.dumps(data), pickle.dumps(data.transitions)
    monkeypatch.chdir(path.parent.parent)
    with mpi_rollout.open(single) as expected:
        assert np.array_equal(pickle.loads(pickled).rewards[...], expected.rewards[...])
        numbers = np.arange(0, len(expected.transitions), 5)
        assert np.array_equal(pickle.loads(transitions)[numbers].rewards, expected.transitions[numbers].rewards)
        assert np.array_equal(data.rewards[...], expected.rewards[...])  # Wherever the process went meanwhile.


def test_envs_are_read_from_their_shards_alone_whose_damage_is_then_found(complete: Path) -> None:
    damage(shards_of(complete)[0], "episodes", "zeros")
    with mpi_rollout.open(complete) as data:
        assert data.rewards[:, 3:].shape == (NUM_STEPS, 4)
        with pytest.raises(DataError, match=r"envs-0-2\.h5: episodes, rows 0 "):
            data.rewards[:, 2:]
        shards_of(complete)[0].unlink()
        with pytest.raises(DataError, match=r"envs-0-2\.h5: no such file"):
            data.rewards[:, 2:]


def test_a_set_is_verified_with_its_shards(pair: tuple[Path, Path]) -> None:
    path, single = pair
    report, expected = verify(quiet, str(path)), verify(quiet, str(single))
    assert report["shards"] == len(RANGES) and report["file"] == str(path)
    for name in ("complete", "num_steps", "recovered"):
        assert report[name] == expected[name], name
    if path.suffix != ".part":  # Else a shard is ahead, with wrong values of its own, and episodes that go on.
        assert report["episodes"] == expected["episodes"]
        kinds = [
            sorted(each["wrong_values"], key=lambda wrong: (wrong["dataset"], wrong["kind"]))
            for each in (report, expected)
        ]
        assert kinds[0] == kinds[1] != []


@pytest.mark.parametrize("num_steps", [None, 11])
def test_one_file_is_recovered_of_a_set(pair: tuple[Path, Path], tmp_path: Path, num_steps: int | None) -> None:
    for path in pair:
        recover(quiet, str(path), str(tmp_path / f"{path.name}-whole.h5"), str(tmp_path / "temporary"), num_steps)
    one, other = (mpi_rollout.open(tmp_path / f"{path.name}-whole.h5") for path in pair)
    assert one.episodes.tobytes() == other.episodes.tobytes() and one.unfinished.tobytes() == other.unfinished.tobytes()
    assert one.num_steps == other.num_steps == (num_steps or NUM_STEPS) and len(one._source.parts) == 1
    for name in other._source.leaves:
        rows, envs = slice(0, other.num_steps), slice(0, 7)
        assert one._source.read(name, rows, envs).tobytes() == other._source.read(name, rows, envs).tobytes()


def test_a_set_is_followed_until_it_is_complete(tmp_path: Path) -> None:
    whole, path = Feed(SMALL, RANGES[-1].stop), tmp_path / "big.h5"
    single = whole.writer(tmp_path / "single.h5", 8)
    steps = whole.fill(single, NUM_STEPS, {11, NUM_STEPS})
    next(steps)
    begin_manifest(str(path), attributes_of(tmp_path / "single.h5.part"), RUN, RANGES).release()
    feeds = [ShardFeed(whole, envs) for envs in RANGES]
    writers = [feed.writer(shard_path(str(path), envs), 8) for feed, envs in zip(feeds, RANGES, strict=True)]
    going = [feed.fill(writer, NUM_STEPS, {11, NUM_STEPS}) for feed, writer in zip(feeds, writers, strict=True)]
    data = mpi_rollout.open(f"{path}.part")
    assert data.num_steps == 0 and len(data.episodes) == 0
    for number in range(2):
        for _ in range(11):
            next(going[number])
        writers[number].drain()
    assert data.refresh() == 0  # The last shard has no step yet.
    for shard in going:
        deque(shard, 0)
    expected = whole.expected(NUM_STEPS)
    for writer in writers:
        writer.drain()
        writer.finish(ending(NUM_STEPS))  # It takes the `.part` away.
        writer.release()
    assert np.array_equal(data.rewards[...], expected["rewards"][:0]) and data.refresh() == NUM_STEPS
    assert np.array_equal(data.rewards[...], expected["rewards"]) and not data.is_complete
    complete_manifest(str(path), ending(NUM_STEPS), np.zeros(0, INTERVAL))
    assert data.refresh() == NUM_STEPS and data.is_complete and data.path == str(path)
    assert np.array_equal(data.rewards[...], expected["rewards"])
    single.discard()
