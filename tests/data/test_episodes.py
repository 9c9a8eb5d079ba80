"""Episodes as `mpi_rollout.open` gives them, of complete files and of killed runs, in one or many parts."""

from pathlib import Path

import numpy as np
import pytest
from episode_checks import check
from written_data import NUM_STEPS, SMALL, Feed, written

import mpi_rollout
from mpi_rollout.data import reading


@pytest.mark.parametrize("kind", ["complete", "killed", "running"])
def test_episodes_are_what_was_written(tmp_path: Path, kind: str) -> None:
    expected = Feed(SMALL).expected(NUM_STEPS)
    with mpi_rollout.open(written(tmp_path, kind)) as data:
        episodes = list(data.iter_episodes(unfinished=True))
        assert len(episodes) == len(data.episodes) + len(data.unfinished)
        assert sum(map(len, episodes)) == data.num_transitions
    for episode in episodes:
        check(episode, expected)


def test_an_episode_may_go_through_many_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SPAN_NBYTES", 1)
    expected = Feed(SMALL).expected(200)
    writer = Feed(SMALL).writer(tmp_path / "run.h5", 4)
    for _ in Feed(SMALL).fill(writer, 200, {200}):
        pass
    writer.drain()
    with mpi_rollout.open(tmp_path / "run.h5.part") as data:
        for rows in (data.episodes, data.episodes[::3], data.episodes[::-1]):
            episodes = list(data.iter_episodes(rows))
            assert len(episodes) == len(rows) > 5
            for episode in episodes:
                check(episode, expected)
    writer.discard()


def test_what_a_killed_run_has_not_written_is_what_it_writes_at_its_end(tmp_path: Path) -> None:
    (tmp_path / "killed").mkdir()
    whole, killed = written(tmp_path, "complete"), written(tmp_path / "killed", "running")
    assert len(mpi_rollout.open(killed).unfinished) == 2
    assert np.array_equal(mpi_rollout.open(whole).unfinished, mpi_rollout.open(killed).unfinished)


def test_episodes_are_chosen_by_return_length_and_end(tmp_path: Path) -> None:
    data = mpi_rollout.open(written(tmp_path, "complete"))
    middle = float(np.median(data.episodes["return"]))
    assert all(episode.return_ >= middle for episode in data.iter_episodes(min_return=middle))
    assert {episode.length for episode in data.iter_episodes(max_length=3)} == {2, 3}
    assert all(episode.truncated for episode in data.iter_episodes(terminated=False))


def test_only_named_columns_are_read(tmp_path: Path) -> None:
    data = mpi_rollout.open(written(tmp_path, "complete"))
    episode = next(data.iter_episodes(columns=["rewards"]))
    assert len(episode.rewards) == episode.length
    with pytest.raises(ValueError, match="got 'reward'"):
        data.iter_episodes(columns=["reward"])


def test_rows_of_other_data_are_refused(tmp_path: Path) -> None:
    data = mpi_rollout.open(written(tmp_path, "complete"))
    for name, value in (("start", 1000), ("env_index", 3), ("env_index", -1), ("length", 1000)):
        rows = data.episodes.copy()
        rows[name][-1] = value
        with pytest.raises(ValueError, match="has no such steps"):
            data.iter_episodes(rows)


def test_rlds_steps_are_those_of_the_episode_and_one_more(tmp_path: Path) -> None:
    with mpi_rollout.open(written(tmp_path, "complete")) as data:
        for episode in data.iter_episodes(unfinished=True):
            steps = list(episode.steps_rlds())
            assert len(steps) == episode.length + 1 and not steps[0].keys() & {"info", "extra"}  # The file has none.
            seen = [step["observation"] for step in steps]
            assert np.array([each["x"] for each in seen]).tobytes() == episode.observations["x"].tobytes()
            assert np.array_equal([each["n"][0] for each in seen], episode.observations["n"][0])
            assert np.array_equal([step["action"] for step in steps[:-1]], episode.actions)
            assert np.array_equal([step["reward"] for step in steps[:-1]], episode.rewards)
            assert [step["is_first"] for step in steps] == [True] + [False] * episode.length
            assert [step["is_last"] for step in steps] == [False] * episode.length + [True]
            assert [step["is_terminal"] for step in steps] == [False] * episode.length + [episode.terminated]
            assert [step["discount"] for step in steps[:-1]] == list(1.0 - episode.terminations)


def test_the_last_rlds_step_has_zeros_where_it_has_no_meaning(tmp_path: Path) -> None:
    with mpi_rollout.open(written(tmp_path, "complete")) as data:
        *_, last = next(data.iter_episodes()).steps_rlds()
    assert last["reward"] == last["discount"] == 0 and not last["action"].any() and last["action"].shape == (2,)
