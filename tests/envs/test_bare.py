"""Bare loops: what is stepped, what is counted, by a clock that the test moves; and one rank's part of the limit."""

from collections.abc import Callable
from itertools import count, islice, repeat

import numpy as np
import pytest
from envs import Counting
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from native_envs import Rolling

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.envs import bare
from mpi_rollout.envs.env_group import EnvGroup
from mpi_rollout.envs.env_maker import EnvMaker, maker_of
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import EnvError
from mpi_rollout.policies.random import BLOCK_STEPS, RandomPolicy

ACTIONS = [np.array([2, 2])] * 2


@pytest.fixture(autouse=True)
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes with each look at the clock."""
    seconds = count()
    monkeypatch.setattr(bare, "perf_counter", lambda: float(next(seconds)))


def test_single_envs_are_stepped_and_reset_with_the_seeds_of_their_episodes():
    """Episodes of 3 steps in one env and of 4 in the other."""
    loop = LoopVectorEnv([Counting] * 2)
    measure = bare._bare_loop(loop, [repeat(0), repeat(1)], [[2, 2]] * 2)
    assert measure(12.0) == 2.0
    assert [env.episode for env in loop.envs] == [4, 3] and [env.seed for env in loop.envs] == [0, 1]
    assert measure(0.5) == 2.0


def test_envs_of_several_ranks_are_stepped_without_a_message_for_each_step(monkeypatch: pytest.MonkeyPatch):
    """One message makes an env, one resets it, and one measures."""
    shared, orders, together = [], list[str](), EnvGroup.together
    monkeypatch.setattr(EnvGroup, "share", lambda group, over: shared.append([*over]))

    def count_orders(group: EnvGroup, order: tuple, own: Callable) -> object:
        orders.append(order[1])
        return together(group, order, own)

    monkeypatch.setattr(EnvGroup, "together", count_orders)
    maker = EnvMaker(lambda comm: Counting(), group=EnvGroup(Comm(), (0,), "spin"))
    measure = bare.make_bare(maker, range(2), 0, ACTIONS)
    lengths = [3 + next(episode_seeds(0, index)) % 5 for index in range(2)]
    assert measure(9.0) == 2 * 9 / 10  # A look more at the clock.
    assert orders == ["make it", "make it", "reset", "reset", "call this"]
    assert [over.index(1) for over in zip(*shared, strict=True)] == [*(length - 1 for length in lengths), 8]


def test_resets_of_natively_vectorized_envs_are_no_steps():
    """In 12 calls the first env ends in three of them, the second in two: the next call is then a reset."""
    envs = SyncVectorEnv([Counting] * 2)
    envs.reset(seed=0)
    assert bare.bare_vector_loop(envs, ACTIONS)(12.0) == (24 - 5) / 12


def test_a_bare_pool_is_stepped_by_its_own_step(monkeypatch: pytest.MonkeyPatch):
    envs, own = SyncVectorEnv([Counting] * 2), SyncVectorEnv([Counting] * 2)
    own.reset(seed=0)
    monkeypatch.setattr(envs, "bare_step", own.step, raising=False)
    assert bare.bare_vector_loop(envs, ACTIONS)(12.0) == (24 - 5) / 12


def test_steps_of_rollouts_are_counted_whatever_their_actions_are():
    envs = Rolling(range(3), 0)
    envs.reset()
    actions = [np.zeros((3, 2), np.float32)] * 4
    assert bare._bare_rollouts(envs, actions)(2.0) == 2 * 4 * 3 / 2
    assert envs.num_rows == [4] * 3, "once before the clock runs"


@pytest.mark.parametrize(("indices", "has_seeds"), [(range(2), True), (range(4, 6), True), (range(4, 6), False)])
def test_a_rank_makes_its_own_envs_and_seeds_them_as_the_run_does(
    monkeypatch: pytest.MonkeyPatch, indices: range, has_seeds: bool
):
    given: list[list[int | None]] = []

    def loop(slice_: LoopVectorEnv, seeds: list, actions: list) -> Callable[[float], float]:
        given.extend([next(each) for each in seeds] for _ in range(2))
        assert slice_.num_envs == 2 and [list(row) for row in actions] == [[2, 2]] * 2
        return lambda seconds: seconds

    monkeypatch.setattr(bare, "_bare_loop", loop)
    maker = maker_of(RolloutConfig(env_factory="envs:Counting", num_envs=6, episode_seeds=has_seeds))
    assert bare.make_bare(maker, indices, 7, ACTIONS)(3.0) == 3.0
    seeds = [list(islice(episode_seeds(7, index), 2)) for index in indices]
    first, second = zip(*seeds, strict=True)
    assert given == [[*first], [*second] if has_seeds else [None, None]]


MAKER = EnvMaker("CartPole-v1")
SPACE = spaces.Discrete(100)


class Comm:
    """The communicator of one rank; counts its barriers."""

    num_barriers, rank, size = 0, 0, 1

    def Dup(self) -> "Comm":  # noqa: N802
        return self

    def Barrier(self) -> None:  # noqa: N802
        self.num_barriers += 1


def test_envs_are_made_once_with_the_actions_of_the_run(monkeypatch: pytest.MonkeyPatch):
    made = []

    def make_bare(maker, envs, seed, actions):
        made.append((envs, seed, [row.tolist() for row in actions]))
        return lambda seconds: 10 * seconds

    monkeypatch.setattr(bare, "make_bare", make_bare)
    comm = Comm()
    limit = bare.Limit(MAKER, 3, comm.Barrier, range(2, 4), SPACE)
    assert [limit.measure(1.0), limit.measure(2.0)] == [10.0, 20.0] and comm.num_barriers == 2
    drawn = RandomPolicy(SPACE, 6, 3)
    assert made == [(range(2, 4), 3, [drawn.at(step)[2:4].tolist() for step in range(BLOCK_STEPS)])]


def test_a_rank_without_envs_sleeps_as_long_after_the_barrier(monkeypatch: pytest.MonkeyPatch):
    """What spins in a wait instead may take the core of a bare loop."""
    events: list[object] = []
    monkeypatch.setattr(bare, "sleep", events.append)
    monkeypatch.setattr(Comm, "Barrier", lambda comm: events.append("barrier"))
    assert bare.Limit(MAKER, 3, Comm().Barrier, range(0), SPACE).measure(1.5) == 0.0 and events == ["barrier", 1.5]


def test_a_rank_whose_envs_cannot_be_made_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch):
    def make_bare(*arguments: object) -> None:
        raise ConnectionError("no licence")

    monkeypatch.setattr(bare, "make_bare", make_bare)
    comm = Comm()
    with pytest.raises(ConnectionError):
        bare.Limit(MAKER, 3, comm.Barrier, range(2), SPACE).measure(1.0)
    assert comm.num_barriers == 1


def test_an_env_that_fails_meanwhile_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch):
    def measure(seconds: float) -> float:
        raise ValueError("diverged")

    monkeypatch.setattr(bare, "make_bare", lambda *arguments: measure)
    with pytest.raises(EnvError, match=r"^measuring the limit: ValueError: diverged; leave out --measure-limit$"):
        bare.Limit(MAKER, 3, Comm().Barrier, range(2), SPACE).measure(1.0)
