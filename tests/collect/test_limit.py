"""One rank's part of the limit."""

import pytest
from gymnasium import spaces

from mpi_rollout.collect import limit as limit_module
from mpi_rollout.collect.limit import Limit
from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import EnvError
from mpi_rollout.policies.random import BLOCK_STEPS, RandomPolicy

CONFIG = RolloutConfig(env="CartPole-v1", num_envs=6, seed=3)
SPACE = spaces.Discrete(100)


class Comm:
    """Counts its barriers."""

    num_barriers = 0

    def Barrier(self) -> None:  # noqa: N802
        self.num_barriers += 1


def test_envs_are_made_once_with_the_actions_of_the_run(monkeypatch: pytest.MonkeyPatch):
    made = []

    def make_bare(maker, envs, seed, actions):
        made.append((envs, seed, [row.tolist() for row in actions]))
        return lambda seconds: 10 * seconds

    monkeypatch.setattr(limit_module, "make_bare", make_bare)
    comm = Comm()
    limit = Limit(CONFIG, comm, range(2, 4), SPACE)
    assert [limit(1.0), limit(2.0)] == [10.0, 20.0] and comm.num_barriers == 2
    drawn = RandomPolicy(SPACE, 6, 3)
    assert made == [(range(2, 4), 3, [drawn.at(step)[2:4].tolist() for step in range(BLOCK_STEPS)])]


def test_a_rank_without_envs_sleeps_as_long(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(limit_module.time, "sleep", slept.append)
    comm = Comm()
    assert Limit(CONFIG, comm, range(0), SPACE)(1.5) == 0.0 and slept == [1.5] and comm.num_barriers == 1


def test_a_rank_whose_envs_cannot_be_made_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch):
    def make_bare(*arguments: object) -> None:
        raise ConnectionError("no licence")

    monkeypatch.setattr(limit_module, "make_bare", make_bare)
    comm = Comm()
    with pytest.raises(ConnectionError):
        Limit(CONFIG, comm, range(2), SPACE)(1.0)
    assert comm.num_barriers == 1


def test_an_env_that_fails_meanwhile_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch):
    def measure(seconds: float) -> float:
        raise ValueError("diverged")

    monkeypatch.setattr(limit_module, "make_bare", lambda *arguments: measure)
    with pytest.raises(EnvError, match=r"^measuring the limit: ValueError: diverged; leave out --measure-limit$"):
        Limit(CONFIG, Comm(), range(2), SPACE)(1.0)
