"""Compares episodes as they are read with the columns that `written_data` has written."""

import numpy as np

from mpi_rollout.data.episodes import Episode


def check(episode: Episode, expected: dict[str, np.ndarray]) -> None:
    """Compare an episode with the columns of its run."""
    start, stop, env = episode.start, episode.start + episode.length, episode.env_index
    assert np.array_equal(episode.rewards, expected["rewards"][start:stop, env])
    assert np.array_equal(episode.actions, expected["actions"][start:stop, env])
    assert np.array_equal(episode.terminations, expected["terminations"][start:stop, env])
    assert episode.observations["x"].tobytes() == expected["observations/x"][start : stop + 1, env].tobytes()
    assert np.array_equal(episode.observations["n"][0], expected["observations/n/_index_0"][start : stop + 1, env])
