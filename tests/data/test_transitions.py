"""Single transitions: those of the episodes and no others, also in other processes."""

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest
from written_data import LARGE_ROWS, PLAIN, Feed, ending, flip, written

import mpi_rollout
from mpi_rollout.errors import DataError


@pytest.mark.parametrize("kind", ["complete", "running"])
def test_transitions_are_those_of_the_episodes(tmp_path: Path, kind: str) -> None:
    data = mpi_rollout.open(written(tmp_path, kind))
    rows = np.concatenate([data.episodes, data.unfinished])
    episodes = {(episode.env_index, episode.start): episode for episode in data.iter_episodes(rows)}
    batch = data.transitions[:]
    assert len(data.transitions) == data.num_transitions == len(batch.rewards)
    place = 0
    for row in rows:
        episode = episodes[row["env_index"], row["start"]]
        part = slice(place, place + episode.length)
        assert np.array_equal(batch.rewards[part], episode.rewards)
        assert np.array_equal(batch.actions[part], episode.actions)
        assert np.array_equal(batch.terminations[part], episode.terminations)
        assert batch.observations["x"][part].tobytes() == episode.observations["x"][:-1].tobytes()
        assert batch.next_observations["x"][part].tobytes() == episode.observations["x"][1:].tobytes()
        place += episode.length


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("space", [PLAIN, LARGE_ROWS])
def test_transitions_of_compressed_chunks_are_the_same(tmp_path: Path, space: object, compression: str) -> None:
    feed = Feed(space, compression=compression, bits=3)
    writer = feed.writer(tmp_path / "run.h5", 32)
    for _ in feed.fill(writer, 100, {20, 100}):
        pass
    writer.finish(ending(100))
    expected, data = feed.expected(100), mpi_rollout.open(tmp_path / "run.h5")
    episode = data.episodes[-1]
    first = int(data.episodes["length"][:-1].sum())
    batch = data.transitions[first : first + episode["length"]]
    rows = slice(episode["start"], episode["start"] + episode["length"])
    assert np.array_equal(batch.observations, expected["observations"][rows, episode["env_index"]])
    assert np.array_equal(batch.actions, expected["actions"][rows, episode["env_index"]])


def test_a_sample_follows_from_its_generator(tmp_path: Path) -> None:
    data = mpi_rollout.open(written(tmp_path, "complete"))
    batch = data.sample_transitions(50, 7)
    assert batch.rewards.tobytes() == data.sample_transitions(50, np.random.default_rng(7)).rewards.tobytes()
    assert all(array.flags.c_contiguous and len(array) == 50 for array in (batch.rewards, batch.observations["x"]))
    with pytest.raises(IndexError, match="transitions, got numbers"):
        data.transitions[10**6]


def test_a_pickled_data_set_reads_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, "complete")
    monkeypatch.chdir(tmp_path)
    data = mpi_rollout.open("run.h5")
    expected = data.transitions[5]
    copy = pickle.dumps(data.transitions)
    monkeypatch.chdir("/")
    again = pickle.loads(copy)[5]
    assert again.rewards == expected.rewards and np.array_equal(again.actions, expected.actions)


def test_a_damaged_chunk_is_never_taken(tmp_path: Path) -> None:
    path = written(tmp_path, "complete")
    with h5py.File(path) as file:
        place = file["trajectories/rewards"].id.get_chunk_info_by_coord((0, 0)).byte_offset
    flip(path, place + 11)
    with pytest.raises(DataError, match=r"trajectories/rewards, rows 0 to 7: the checksum does not fit"):
        mpi_rollout.open(path).sample_transitions(100, 0)
    with pytest.raises(DataError, match="the checksum does not fit"):
        list(mpi_rollout.open(path).iter_episodes())


@pytest.mark.parametrize(("context", "num_workers"), [("fork", 2), ("spawn", 1)])
def test_workers_of_a_data_loader_read_the_same(tmp_path: Path, context: str, num_workers: int) -> None:
    torch = pytest.importorskip("torch")
    data = mpi_rollout.open(written(tmp_path, "running"))
    data.sample_transitions(3, 0)  # The file is open, and mapped, before workers are forked.
    got = [
        *torch.utils.data.DataLoader(
            data.transitions, batch_size=4, num_workers=num_workers, multiprocessing_context=context
        )
    ]
    assert np.array_equal(np.concatenate([batch.rewards for batch in got]), data.transitions[:].rewards)
    assert got[0].observations["x"].shape == (4, 3)
