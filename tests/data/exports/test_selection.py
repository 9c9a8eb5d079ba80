"""Which episodes a rank exports, and in what order."""

import numpy as np
import pytest

from mpi_rollout.data.exports.selection import envs_per_group, share_of


@pytest.mark.parametrize("num_shares", [1, 2, 3, 7, 40])
def test_every_episode_is_in_one_share(num_shares: int):
    rows = np.zeros(25, [("length", "i8"), ("number", "i8")])
    rows["length"], rows["number"] = np.random.default_rng(0).integers(1, 500, 25), np.arange(25)
    shares = [share_of(rows, share, num_shares, 100)["number"] for share in range(num_shares)]
    assert np.array_equal(np.concatenate(shares), rows["number"])


def test_shares_take_about_as_long():
    rows = np.zeros(1000, [("length", "i8")])
    rows["length"] = np.random.default_rng(0).integers(1, 500, 1000)
    works = [(share_of(rows, share, 4, 100)["length"] * 100 + 2**13).sum() for share in range(4)]
    assert max(works) < 1.05 * min(works)


@pytest.mark.parametrize(("nbytes", "envs"), [(1, 2**28), (2**27, 2), (2**27 + 1, 1), (2**40, 1), (0, 2**28)])
def test_running_episodes_of_a_group_fit_into_memory(nbytes: int, envs: int):
    assert envs_per_group(nbytes) == envs
