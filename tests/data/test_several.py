"""Several files of one env as one data set."""

from pathlib import Path

import numpy as np
import pytest
from episode_checks import check
from written_data import NUM_STEPS, PLAIN, SMALL, Feed, ending, written

import mpi_rollout
from mpi_rollout.errors import DataError, UsageError


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Two files of one env with different data, one of a killed run."""
    (tmp_path / "other").mkdir()
    feed = Feed(SMALL, num_envs=5, seed=1)
    writer = feed.writer(tmp_path / "other/run.h5", 8)
    for _ in feed.fill(writer, 50, {50}):
        pass
    return [written(tmp_path, "running"), Path(writer.finish(ending(50)))]


def test_episodes_and_transitions_are_those_of_all_files(paths: list[Path]) -> None:
    expected = [Feed(SMALL).expected(NUM_STEPS), Feed(SMALL, num_envs=5, seed=1).expected(50)]
    with mpi_rollout.open(paths) as data:
        episodes = list(data.iter_episodes(unfinished=True))
        assert len(episodes) == len(data.episodes) + len(data.unfinished)
        assert {episode.file for episode in episodes} == {0, 1}
        for episode in episodes:
            check(episode, expected[episode.file])
        parts = [mpi_rollout.open(path).transitions[:].rewards for path in paths]
        assert data.transitions[:].rewards.tobytes() == np.concatenate(parts).tobytes()
        backwards = np.arange(len(data.transitions))[::-1]
        assert np.array_equal(data.transitions[backwards].actions, data.transitions[:].actions[::-1])
        assert data.num_transitions == len(data.transitions)


def test_rows_of_the_table_lead_to_their_episodes(paths: list[Path]) -> None:
    data = mpi_rollout.open(paths)
    rows = data.episodes[[0, -1]]
    found = {(episode.file, episode.env_index, episode.start) for episode in data.iter_episodes(rows)}
    assert found == {(row["file"], row["env_index"], row["start"]) for row in rows}


def test_files_of_other_spaces_are_no_data_set(tmp_path: Path, paths: list[Path]) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(DataError, match=r"has the observation_space Box.*open files of one env together"):
        mpi_rollout.open([*paths, written(tmp_path / "plain", "complete", PLAIN)])
    for wrong in ([], 3, [3]):
        with pytest.raises(UsageError, match="takes the path of a file, or a list"):
            mpi_rollout.open(wrong)


def test_a_file_without_a_step_may_be_among_them(tmp_path: Path, paths: list[Path]) -> None:
    (tmp_path / "begun").mkdir()
    writer = Feed(SMALL).writer(tmp_path / "begun/run.h5", 8)
    data, others = mpi_rollout.open([tmp_path / "begun/run.h5.part", *paths]), mpi_rollout.open(paths)
    assert [len(data.files[0].transitions), *data.files[0].observations["x"].shape] == [0, 0, 3, 3]
    assert data.transitions[[]].rewards.shape == (0,) and data.files[0].transitions[:].actions.shape == (0, 2)
    few, expected = data.sample_transitions(50, 1), others.sample_transitions(50, 1)
    assert few.rewards.tobytes() == expected.rewards.tobytes()
    assert len([*data.iter_episodes(unfinished=True)]) == len([*others.iter_episodes(unfinished=True)])
    writer.discard()
