"""A slice takes the steps of a fragment: each is as if it were the only one, on the only rank there is."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import Counting, Failing, Nested, Stumbling
from gymnasium import spaces
from masked_envs import Masked
from native_envs import Drift, DriftOn, RollingDrift, RollingOn
from single_rank import driver_of

from mpi_rollout.core.layout import FAULT, RESTARTED, UNDONE
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.errors import RankError
from mpi_rollout.exchange.exchange import Command
from mpi_rollout.policies.random import RandomPolicy

NATIVE = {"make": "CartPole-v1", "vectorization_mode": "vector_entry_point"}
ROLLING = {"make": RollingDrift, "vectorization_mode": "native"}
WAYS = {"loop": {"make": Counting}, "nested": {"make": Nested}, "native": NATIVE, "rolling": ROLLING}
STEPPED = {RollingDrift: Drift, RollingOn: DriftOn}  # What takes the same steps one by one.


def begun(room: int = 1, make: Callable[..., object] | str = Counting, **options: Any) -> Driver:
    """The root of a run whose slots have room for so many steps, its envs reset."""
    driver = driver_of(make, seed=5, is_random=True, **options)
    driver.make_room(room)
    driver.do(Command.RESET, 5)
    return driver


def take(driver: Driver, num_steps: int, step: int, is_chosen: bool = False) -> list[list[np.ndarray]]:
    """Take steps of random actions; return all columns of each step."""
    advance(driver, num_steps, step, is_chosen)
    return rows_of(driver)


def advance(driver: Driver, num_steps: int, step: int, is_chosen: bool = False) -> None:
    """Take steps of random actions."""
    [lane] = driver.lanes
    if is_chosen:
        driver.send(lane, None, num_steps, step)
    else:
        policy = RandomPolicy(driver.action_space, driver.num_envs, 5)
        driver.send(lane, policy.rows(step, num_steps, range(driver.num_envs)), num_steps, step)
    driver.step_and_receive()
    assert lane.num_rows == num_steps


def rows_of(driver: Driver) -> list[list[np.ndarray]]:
    [lane] = driver.lanes
    columns = lane.exchange.columns
    arrays = [*columns.results, *columns.observation_arrays, *columns.action_arrays]
    return [[lane.exchange.take(array, step=row) for array in arrays] for row in range(lane.num_rows)]


def assert_same(rows: list[list[np.ndarray]], expected: list[list[np.ndarray]]) -> None:
    assert [[array.tobytes() for array in row] for row in rows] == [
        [array.tobytes() for array in row] for row in expected
    ]


@pytest.mark.parametrize("is_chosen", [False, True], ids=["root", "workers"])
@pytest.mark.parametrize("way", [*WAYS.values(), ROLLING | {"make": RollingOn}], ids=[*WAYS, "same step"])
def test_a_fragment_gives_what_as_many_steps_give(way: dict[str, Any], is_chosen: bool):
    driver = begun(**way | {"make": STEPPED.get(way["make"], way["make"])})
    expected = [take(driver, 1, step)[0] for step in range(30)]
    driver = begun(room=9, **way)
    rows = []
    for num_steps in (9, 1, 4, 9, 7):
        rows += take(driver, num_steps, len(rows), is_chosen)
    assert_same(rows, expected)


class Scribbling(gymnasium.vector.VectorEnv):
    """Natively vectorized, and uses its actions as memory of its own."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int):
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(-9, 9, (2,), np.float64)
        self.single_action_space = spaces.Box(-1, 1, (2,), np.float64)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 2)), {}

    def step(self, actions):
        actions *= 2
        return actions.copy(), *np.zeros((3, self.num_envs)), {}


@pytest.mark.parametrize("is_chosen", [False, True], ids=["root", "workers"])
def test_native_envs_may_write_to_their_actions(is_chosen: bool):
    """What is stored are those that they were given."""
    gymnasium.register("Scribbling-v0", vector_entry_point=Scribbling)
    try:
        driver = begun(4, "Scribbling-v0", vectorization_mode="vector_entry_point")
    finally:
        del gymnasium.registry["Scribbling-v0"]
    rows = take(driver, 4, 0, is_chosen)
    drawn = RandomPolicy(driver.action_space, 3, 5).rows(0, 4, range(3))[0]
    assert [row[-1].tolist() for row in rows] == drawn.tolist()
    assert [row[-2].tolist() for row in rows] == (2 * drawn).tolist()


@pytest.mark.parametrize("is_chosen", [False, True], ids=["root", "workers"])
@pytest.mark.parametrize("room", [1, 7])
def test_masks_are_heeded_in_every_step(room: int, is_chosen: bool):
    """The envs refuse actions that they have not allowed, and they say so anew in each step."""
    driver = begun(room, Masked, num_envs=5)
    rows = [row for step in range(0, 70, room) for row in take(driver, room, step, is_chosen)]
    actions = np.stack([row[-1] for row in rows])
    drawn = RandomPolicy(Masked.action_space, 5, 5).rows(0, 70, range(5))[0]
    assert 50 < np.count_nonzero(actions != drawn) < 300
    whole = begun(70, Masked, num_envs=5)
    assert actions.tobytes() == np.stack([row[-1] for row in take(whole, 70, 0, True)]).tobytes()


def test_groups_choose_by_masks_what_one_group_chooses():
    actions = []
    for num_groups in (1, 2):
        driver = driver_of(Masked, 6, num_groups=num_groups, seed=5, is_random=True)
        driver.do(Command.RESET, 5)
        for step in range(20):
            for lane in driver.lanes:
                driver.send(lane, None, 1, step)
            while driver.under_way:
                driver.step_and_receive()
            exchanges = [lane.exchange for lane in driver.lanes]
            actions += [np.concatenate([each.take(each.columns.action_arrays[0]) for each in exchanges])]
    assert np.array_equal(actions[:20], actions[20:])


def test_the_steps_before_a_failure_are_there():
    """The fifth step of env 0, which has been reset once, is step 6."""
    driver = begun(8, partial(Failing, "raise", 5))
    [lane] = driver.lanes
    driver.send(lane, None, 8, 0)
    with pytest.raises(RankError, match=r"step 6: env 0.*the simulator has diverged"):
        driver.step_and_receive()
    assert driver.interrupted == [lane] and lane.num_rows == 6 and driver.has_fault
    assert lane.exchange.marks.tolist() == [[0] * 6 + [FAULT] * 2]
    assert_same(rows_of(driver), take(begun(8), 8, 0)[:6])
    driver.send(lane, None, 8, 6)
    with pytest.raises(RankError):
        driver.step_and_receive()
    assert lane.num_rows == 0 and (lane.exchange.marks == FAULT).all()


class Stopping(Counting):
    """Somebody asks the rank to stop while it takes its third step."""

    stop: Callable[[], None]

    def step(self, action):
        outcome = super().step(action)
        if self.step_number == 3:
            type(self).stop()
        return outcome


def test_a_signal_cuts_a_fragment_short_after_the_step_under_way():
    driver = begun(8, Stopping, num_envs=1)
    Stopping.stop = lambda: setattr(driver.worker, "stop_signal", 15)
    [lane] = driver.lanes
    driver.send(lane, None, 8, 0)
    assert driver.step_and_receive() == [lane] and lane.num_rows == 3 and driver.stop_signal == 15
    assert lane.marks.tolist() == [[0, 0, -15] + [UNDONE] * 5]
    assert driver.worker.slices[0].num_steps == 3
    assert_same(rows_of(driver), take(begun(8, num_envs=1), 8, 0)[:3])


def stumbling(env_index: int, at_stumble: Callable[[], object] = lambda: None) -> gymnasium.Env:
    """Env 1 fails in step 4."""
    env = Stumbling()
    step, count = env.step, iter(range(100))

    def stumble(action):
        if env_index == 1 and next(count) == 4:
            env.fails = "step"
            at_stumble()
        return step(action)

    env.step = stumble
    return env


def test_a_restart_is_told_with_its_row():
    driver = begun(8, stumbling, on_fault=OnFault(max_restarts=1))
    [lane] = driver.lanes
    driver.send(lane, None, 7, 20)
    driver.step_and_receive()
    assert [restart[:3] for restart in driver.restarts] == [(lane, 4, 1)] and lane.num_rows == 7
    assert lane.marks.tolist() == [[0, 0, 0, 0, RESTARTED, 0, 0]]
    [restart] = driver.worker.slices[0].restarts
    assert restart.startswith("step 24: ") and "the simulator has stumbled" in restart


def test_a_signal_in_a_step_with_a_restart_is_told_in_the_next_step():
    """A mark says one thing.  Were the fragment cut without a word, other ranks' envs would be ahead of their data."""
    make = partial(stumbling, at_stumble=lambda: setattr(driver.worker, "stop_signal", 15))
    driver = begun(8, make, on_fault=OnFault(max_restarts=1))
    [lane] = driver.lanes
    driver.send(lane, None, 8, 0)
    driver.step_and_receive()
    assert lane.marks.tolist() == [[0, 0, 0, 0, RESTARTED, -15, UNDONE, UNDONE]] and lane.num_rows == 6
    assert driver.stop_signal == 15 and len(driver.restarts) == 1


def test_a_slice_knows_the_step_that_the_root_counts():
    driver = begun(5)
    for step in (60, 0):
        take(driver, 5, step)
        assert driver.worker.slices[0].num_steps == step + 5


@pytest.mark.parametrize("is_chosen", [True, False])
def test_draws_of_steps_that_are_over_are_forgotten(is_chosen: bool):
    driver = begun(64, Masked)
    for step in range(0, 640, 64):
        take(driver, 64, step, is_chosen)
    [slice_] = driver.worker.slices
    uniforms = slice_._random._uniforms
    assert (uniforms is None or len(uniforms._drawn) <= 2) and len(slice_._random._drawn) <= 2


@pytest.mark.parametrize("is_chosen", [False, True], ids=["root", "workers"])
@pytest.mark.parametrize("way", WAYS)
def test_where_nobody_reads_the_data_the_same_steps_are_taken_and_ends_are_counted(way: str, is_chosen: bool):
    """Also by the next fragment, whose envs must be where they would be."""
    read, unread = (begun(40, is_read=is_read, **WAYS[way]) for is_read in (True, False))
    for step in (0, 40):
        columns = take(read, 40, step, is_chosen)
        [lane], [other] = read.lanes, unread.lanes
        ends = [int(np.count_nonzero(row[1] | row[2])) for row in columns]
        assert lane.exchange.num_ended[0].tolist() == ends
        advance(unread, 40, step, is_chosen)
        assert other.exchange.slots.nbytes == 40 * 64
        assert other.exchange.num_ended[0].tolist() == ends
    assert sum(ends) > 0 or way == "loop"


def test_where_nobody_reads_the_data_masks_are_heeded_all_the_same():
    drivers = [begun(8, make=Masked, is_read=is_read) for is_read in (True, False)]
    for driver in drivers:
        advance(driver, 8, 0)  # The env raises if an action is not allowed.
    envs = [[env.unwrapped for env in driver.worker.slices[0].envs.envs] for driver in drivers]
    assert any(env.mask is not None for env in envs[0])
    assert [(env.seed, env.total) for env in envs[1]] == [(env.seed, env.total) for env in envs[0]]


def test_the_roots_own_fragment_ends_where_others_are_to_be_served():
    came = iter([False, False, True])
    driver = begun(10, first_ready=True, is_wanted=lambda: next(came, False))
    [lane] = driver.lanes
    driver.send(lane, None, 10, 0)
    assert driver.step_and_receive() == [lane] and lane.num_rows == 3
    assert lane.marks[0].tolist() == [0, 0, 0] + [UNDONE] * 7
    assert_same(take(driver, 7, 3, is_chosen=True), take(begun(10), 10, 0, is_chosen=True)[3:])
