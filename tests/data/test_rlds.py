"""RLDS's steps of an episode."""

from pathlib import Path

import numpy as np
from written_data import written

import mpi_rollout


def test_steps_are_those_of_the_episode_and_one_more(tmp_path: Path):
    with mpi_rollout.open(written(tmp_path, "complete")) as data:
        for episode in data.iter_episodes(unfinished=True):
            steps = list(episode.steps_rlds())
            assert len(steps) == episode.length + 1
            seen = [step["observation"] for step in steps]
            assert np.array([each["x"] for each in seen]).tobytes() == episode.observations["x"].tobytes()
            assert np.array_equal([each["n"][0] for each in seen], episode.observations["n"][0])
            assert np.array_equal([step["action"] for step in steps[:-1]], episode.actions)
            assert np.array_equal([step["reward"] for step in steps[:-1]], episode.rewards)
            assert [step["is_first"] for step in steps] == [True] + [False] * episode.length
            assert [step["is_last"] for step in steps] == [False] * episode.length + [True]
            assert [step["is_terminal"] for step in steps] == [False] * episode.length + [episode.terminated]
            assert [step["discount"] for step in steps[:-1]] == list(1.0 - episode.terminations)


def test_the_last_step_has_zeros_where_it_has_no_meaning(tmp_path: Path):
    with mpi_rollout.open(written(tmp_path, "complete")) as data:
        *_, last = next(data.iter_episodes()).steps_rlds()
    assert last["reward"] == last["discount"] == 0 and not last["action"].any() and last["action"].shape == (2,)
