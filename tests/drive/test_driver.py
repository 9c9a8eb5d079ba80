"""What the root has its ranks do, on the only rank there is: orders, failures, calls of services."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
from envs import Failing, Stumbling, Telling
from single_rank import driver_of, send

from mpi_rollout.drive.driver import Driver, Lane
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.errors import ActionError, RankError
from mpi_rollout.exchange.exchange import Command

ACTIONS = np.array([2, 3, 4])


def observed(driver: Driver, lanes: list[Lane]) -> list[list[int]]:
    """The last observations of some lanes' envs."""
    pairs = [(lane.exchange, lane.exchange.columns.observation_arrays[0]) for lane in lanes]
    return np.concatenate([exchange.take(column) for exchange, column in pairs]).tolist()


def reset(driver: Driver, *arguments: object) -> Driver:
    driver.do(Command.RESET, *(arguments or (10,)))
    return driver


def test_the_oldest_order_is_awaited_first():
    driver = reset(driver_of(num_groups=3))
    first, second, third = driver.lanes
    for lane in (second, third, first):
        send(driver, [lane], ACTIONS[:1])
    assert list(driver.under_way) == [second, third, first]
    assert [driver.step_and_receive() for _ in range(3)] == [[second], [third], [first]]


def test_wrong_actions_are_not_sent():
    driver = reset(driver_of())
    with pytest.raises(ActionError, match=r"action for env 1 must be in 2 to 6, got 7"):
        send(driver, driver.lanes, np.array([2, 7, 2]))
    assert not driver.under_way
    send(driver, driver.lanes, ACTIONS)
    assert driver.step_and_receive() == driver.lanes


def failing_first(env_index: int) -> Failing:
    return Failing(after=1 if env_index == 0 else 1000)


def test_an_env_that_fails_is_named_and_all_envs_can_begin_anew():
    driver = reset(driver_of(failing_first))
    send(driver, driver.lanes, ACTIONS)
    driver.step_and_receive()
    send(driver, driver.lanes, ACTIONS)
    with pytest.raises(RankError, match=r"rank 0 \(.*, envs 0 to 2\), step 1: env 0, .*the simulator has diverged"):
        driver.step_and_receive()
    assert driver.has_fault
    driver.begin_anew()
    assert not driver.has_fault and not driver.under_way
    reset(driver)
    assert observed(driver, driver.lanes)[1][1:] == [1, 0, -1]


def test_no_env_is_stepped_after_a_failure():
    driver = reset(driver_of(failing_first))
    for _ in range(2):
        send(driver, driver.lanes, ACTIONS)
        before = observed(driver, driver.lanes)
        try:
            driver.step_and_receive()
        except RankError:
            break
    for _ in range(2):
        send(driver, driver.lanes, ACTIONS)
        with pytest.raises(RankError, match="the simulator has diverged"):
            driver.step_and_receive()
    assert observed(driver, driver.lanes)[1:] == before[1:]


def test_what_is_under_way_when_all_begin_anew_is_not_stepped():
    driver = reset(driver_of())
    send(driver, driver.lanes, ACTIONS)
    driver.begin_anew()
    assert not driver.under_way
    assert observed(driver, driver.lanes) == [[10, 0, 0, -1], [11, 0, 0, -1], [12, 0, 0, -1]]


def stumbling(env_index: int) -> Stumbling:
    env = Stumbling()
    env.fails = "step" if env_index == 1 else ""
    return env


@pytest.mark.parametrize("infos", ["none", "all"])
def test_a_restart_is_told_where_nobody_asks_for_infos(infos: str, capfd: pytest.CaptureFixture[str]):
    driver = reset(driver_of(stumbling, infos=infos, on_fault=OnFault(max_restarts=1)))
    send(driver, driver.lanes, np.zeros(3, np.int64))
    driver.step_and_receive()
    restarts = [(*restart[:3], "the simulator has stumbled" in restart.message) for restart in driver.restarts]
    assert restarts == ([(driver.lanes[0], 0, 1, True)] if infos == "none" else [])
    assert not driver.has_fault and "step 0: env 1" in capfd.readouterr().err
    driver.restarts.clear()
    send(driver, driver.lanes, np.zeros(3, np.int64))
    driver.step_and_receive()
    assert driver.restarts == []


def test_a_method_that_fails_is_the_error_of_its_rank():
    driver = reset(driver_of(Telling))
    with pytest.raises(RankError, match=r"rank 0 \(.*\): .*TypeError"):
        driver.call_ranks(driver.worker.env_calls.call_some, [0], "weigh", (), {})
    assert not driver.has_fault


class Locks:
    """A service whose result cannot be sent."""

    name = "locks"

    def make(self) -> object:
        return threading.Lock()


def test_a_result_that_cannot_be_sent_is_an_error_too():
    locks = Locks()
    driver = reset(driver_of(Telling, services=[locks]))
    with pytest.raises(RankError, match="cannot pickle"):
        driver.call_ranks(locks.make)


def test_what_is_no_method_of_a_service_of_this_rank_is_refused_before_anything_is_sent():
    driver = reset(driver_of(Telling, services=[Locks()]))
    send(driver, driver.lanes, ACTIONS)
    for method in (Locks().make, threading.Lock, driver.worker.close, driver.worker.env_calls._calling):
        with pytest.raises(TypeError, match=r"all ranks can call public methods of services only, got .* the services"):
            driver.call_ranks(method)
    assert list(driver.under_way) == driver.lanes


def test_calls_wait_for_the_steps_that_are_under_way():
    driver = reset(driver_of())
    send(driver, driver.lanes, ACTIONS)
    assert driver.call_ranks(driver.worker.control.report)[0]["num_envs"] == 3
    assert not driver.under_way and [row[2] for row in observed(driver, driver.lanes)] == [1, 1, 1]


@pytest.mark.parametrize(
    "send",
    [
        lambda driver: driver.do(Command.RESET, None, None, {"lock": threading.Lock()}),
        lambda driver: driver.call_ranks(driver.worker.control.make_room, threading.Lock()),
    ],
    ids=["order", "call"],
)
def test_what_cannot_be_sent_is_refused_before_anything_is(send: Callable[[Driver], object]):
    driver = reset(driver_of())
    with pytest.raises(TypeError, match="what is sent to the ranks must be picklable, got "):
        send(driver)
    assert not driver.under_way and reset(driver)
