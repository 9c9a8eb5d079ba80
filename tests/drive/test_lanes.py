"""Lanes as a trainer sees them: which envs, their infos, their last observations, and what lives how long."""

import numpy as np
import pytest
from envs import Agreeing, Nested
from gymnasium.vector import AutoresetMode
from single_rank import driver_of, send

from mpi_rollout.core.spaces import leaves
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.lanes import final_observations, infos_of, lanes_of
from mpi_rollout.exchange.exchange import Command
from mpi_rollout.train.steps import Outcomes

LANE_OF_ENV = np.array([0, 0, 1, 1, 2])
ACTIONS = np.array([2, 3, 4, 5, 6])


def reset(driver: Driver) -> Driver:
    driver.do(Command.RESET, 10)
    return driver


def step(driver: Driver) -> None:
    """One step of all envs."""
    send(driver, driver.lanes, ACTIONS)
    while driver.under_way:
        driver.step_and_receive()


@pytest.mark.parametrize(
    ("env_indices", "expected"),
    [([0, 1], [0]), ([2, 3, 4], [1, 2]), (slice(None), [0, 1, 2]), (slice(4, 5), [2]), ((0, 1, 4), [0, 2])],
)
def test_lanes_are_found_by_their_envs(env_indices: object, expected: list[int]):
    lanes = driver_of(num_envs=5, num_groups=3).lanes
    assert lanes_of(lanes, LANE_OF_ENV, env_indices) == [lanes[place] for place in expected]


@pytest.mark.parametrize("env_indices", [[0], [1, 0], [2, 3, 0, 1, 3], [5], ["0"], [], [0.0, 1.0], 3, slice(0, 3)])
def test_envs_that_are_not_those_of_whole_lanes_are_refused(env_indices: object):
    lanes = driver_of(num_envs=5, num_groups=3).lanes
    with pytest.raises(ValueError, match=r"^envs_slice must be what recv returned, got .*; or None for all envs"):
        lanes_of(lanes, LANE_OF_ENV, env_indices)


def test_infos_of_lanes_are_merged_in_env_order():
    driver = reset(driver_of(Agreeing, 5, num_groups=3, infos="all"))
    [of_step] = infos_of(driver.lanes)
    infos = of_step.merged()
    assert infos["text"].tolist() == ["step 0"] * 5 and infos["_third"].tolist() == [False, False, True, False, False]
    assert infos["third"]["of"][2] == 12
    assert of_step.of_each()[2]["third"]["of"] == 12
    assert infos_of(driver.lanes) == []  # They are taken.


@pytest.mark.parametrize("copy", [True, False])
def test_the_outcome_before_last_is_still_there(copy: bool):
    driver = reset(driver_of(num_envs=5))
    outcomes = Outcomes(driver, copy)
    seen = []
    for number in range(4):
        if number:
            step(driver)
        outcomes.lay(driver.lanes)
        observations = outcomes.observations(driver.lanes)
        assert observations[:, 2].tolist() == [number] * 5 and observations.flags.c_contiguous
        assert not seen or seen[-1][:, 2].tolist() == [number - 1] * 5
        seen.append(observations)
    assert seen[0][:, 2].tolist() == [0 if copy else 2] * 5


def test_results_belong_to_the_caller():
    driver = reset(driver_of(num_envs=5, num_groups=2))
    outcomes = Outcomes(driver, copy=False)
    outcomes.lay(driver.lanes)
    kept = []
    for number in range(1, 4):
        step(driver)
        outcomes.lay(driver.lanes)
        observations = outcomes.observations(driver.lanes)
        rewards, terminations, truncations = outcomes.results(driver.lanes)
        kept.append(rewards)
        assert observations[:, 2].tolist() == [number] * 5
        assert terminations.tolist() == [number == 3 and env == 0 for env in range(5)] and not truncations.any()
    assert [rewards.tolist() for rewards in kept] == [list(number + ACTIONS / 10) for number in (1, 2, 3)]


def test_lanes_at_different_steps_come_together():
    """Lane 0 is one step ahead, so its last outcome is in another row."""
    driver = reset(driver_of(num_envs=5, num_groups=3))
    outcomes = Outcomes(driver, copy=False)
    outcomes.lay(driver.lanes)
    first = driver.lanes[:1]
    send(driver, first, ACTIONS[:2])
    driver.step_and_receive()
    outcomes.lay(first)
    observations = outcomes.observations(driver.lanes)
    assert observations[:, 0].tolist() == [10, 11, 12, 13, 14] and observations[:, 2].tolist() == [1, 1, 0, 0, 0]
    assert outcomes.observations([driver.lanes[0], driver.lanes[2]])[:, 0].tolist() == [10, 11, 14]


def test_nested_observations_are_trees():
    driver = reset(driver_of(Nested, 5, num_groups=2))
    outcomes = Outcomes(driver, copy=False)
    outcomes.lay(driver.lanes)
    observations = outcomes.observations(driver.lanes)
    assert observations["id"][:, 0].tolist() == [10, 11, 12, 13, 14]
    assert all(len(leaf.of(observations)) == 5 for leaf in leaves(Nested.observation_space))


@pytest.mark.parametrize("infos", ["none", "all"])
def test_last_observations_of_episodes_come_from_slots_or_infos(infos: str):
    driver = reset(driver_of(num_envs=5, num_groups=2, autoreset_mode=AutoresetMode.SAME_STEP, infos=infos))
    infos_of(driver.lanes)
    for _ in range(3):
        step(driver)
    ended = np.array([True, False, False, False, False])
    given = {row: last for of_step in infos_of(driver.lanes) for row, last in of_step.final_observations().items()}
    observations = final_observations(driver.observation_space, driver.lanes, ended, given)
    assert observations[0].tolist() == [10, 0, 3, 2] and observations[1:].tolist() == [None] * 4
