"""The test of services that everybody can run finds what is wrong of one; all services of the package pass it."""

import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import block_policies
import numpy as np
import pytest
from envs import Telling
from single_rank import driver_of, root_of

import mpi_rollout
from mpi_rollout.collect.services import UnstoredInfos
from mpi_rollout.collect.trace import TraceLaps
from mpi_rollout.core.seeding import RankGenerators
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.bare import Limit
from mpi_rollout.exchange.orders import Command
from mpi_rollout.policies.memory import PastRows
from mpi_rollout.policies.model import PolicySource, make_model
from mpi_rollout.policies.parameters import layout_of, packed
from mpi_rollout.testing.services import check_service

PAGE = (Path(__file__).parents[2] / "docs/explanation/walk.md").read_text()


class Network(block_policies.Network):
    """Stays as CartPole is."""

    def __init__(self) -> None:
        super().__init__(4, 2)

    def act(self, observations: np.ndarray, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        return self.outputs(observations).argmax(axis=1)


class Notebook:
    """A service that is as it should be."""

    name = "notebook"

    def __init__(self) -> None:
        self._lines: list[str] = []

    def write(self, line: str, times: int = 1) -> int:
        self._lines += [line] * times
        return len(self._lines)

    def read(self) -> list[str]:
        return self._lines


class Nameless(Notebook):
    name = ""


class Renaming(Notebook):
    def write(self, line: str, times: int = 1) -> int:
        self.name = line
        return times


class Locking(Notebook):
    def read(self) -> Any:
        return threading.Lock()


class Emptying(Notebook):
    def write(self, lines: Any, times: int = 1) -> int:
        lines.clear()
        return times


class Mute:
    name = "mute"


def test_the_results_are_those_that_the_root_gets():
    notebook = Notebook()
    calls = partial(notebook.write, "a", times=2), partial(notebook.write, "b"), partial(notebook.read)
    results = check_service(notebook, calls)
    assert results == [2, 3, ["a", "a", "b"]] and results[2] is not notebook.read()


@pytest.mark.parametrize(
    ("service", "line", "words"),
    [
        (Nameless(), "a", "the name of Nameless must be a string that is not empty, got ''"),
        (Renaming(), "a", "the name of Renaming must not change, got 'a' after 'notebook'"),
        (Locking(), "a", "the result of notebook.read must be picklable, got <unlocked"),
        (Emptying(), ["a"], "notebook.write must not write into its arguments"),
        (Notebook(), threading.Lock(), "the arguments of notebook.write must be picklable"),
    ],
)
def test_what_a_service_does_not_keep_is_named(service: Any, line: Any, words: str):
    with pytest.raises(AssertionError, match=re.escape(words)):
        check_service(service, [partial(service.write, line), partial(service.read)])


def test_a_method_that_is_not_called_and_a_service_without_methods_are_named():
    notebook = Notebook()
    with pytest.raises(
        AssertionError, match="a call of each public method of Notebook must be given, got none of write"
    ):
        check_service(notebook, [partial(notebook.read)])
    with pytest.raises(AssertionError, match="Mute must have a public method"):
        check_service(Mute(), [])


@pytest.fixture
def driver() -> Driver:
    driver = driver_of(Telling)
    driver.do(Command.RESET, 10)
    return driver


def test_every_worker_has_a_service_of_its_rank_and_one_of_its_envs(driver: Driver):
    control, envs = driver.worker.control, driver.worker.env_calls
    calls = partial(control.make_room, 4), partial(control.end_replay, []), partial(control.begin_anew)
    report, notices, *_ = check_service(control, [partial(control.report), partial(control.notices), *calls])
    assert report["num_envs"] == 3 and report["notices"] == notices
    set_mass = partial(envs.set_some, [1], "mass", [7.0])
    results = check_service(envs, [set_mass, partial(envs.call_some, [2, 1], "mass", (), {}), partial(envs.render)])
    assert results[1][1] == 7.0 and list(results[2]) == [0, 1, 2] and not envs.is_under_way


def test_the_policy_of_a_rank_is_a_service():
    made = partial(make_model, Network)
    worker = driver_of("CartPole-v1", make_model=made, has_policy=True).worker
    policy, parameters = worker.policy, Network().parameters
    past = PastRows(0, 1, [np.zeros((2, 3, 4), np.float32)], {}, np.zeros(3, np.int64))
    calls = [
        partial(policy.use, PolicySource("made", "block_policies:Network"), "check", 64, seed=0, first_env=0),
        partial(policy.parameter_facts, is_compared=True),
        partial(policy.load_parameters, packed(parameters, layout_of(parameters))),
        partial(policy.remind, past),
        partial(policy.seed, 3),
    ]
    takes, (layout, digest), *_ = check_service(policy, calls)
    assert takes == frozenset() and [leaf.path for leaf in layout] == ["weight 0"] and len(digest) == 64


def test_the_services_of_a_run_are_services(tmp_path: Path):
    driver = root_of(tmp_path / "run.h5", trace=str(tmp_path / "trace.json"))._driver
    limit, generators = driver.service(Limit), driver.service(RankGenerators)
    infos, trace = driver.service(UnstoredInfos), driver.service(TraceLaps)
    assert check_service(limit, [partial(limit.measure, 0.01)])[0] > 0
    state = np.random.get_state()
    check_service(generators, [partial(generators.seed_again, 5)])
    np.random.set_state(state)
    assert check_service(infos, [partial(infos.names)]) == [[]]
    begun, (_, laps) = check_service(trace, [partial(trace.begin), partial(trace.take)])
    assert begun > 0 and laps == []


def test_the_page_names_the_services_that_runs_and_connections_have(tmp_path: Path):
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, re.MULTILINE)
    of_all, of_run = ([name for name, who in rows if who == wanted] for wanted in ("every worker", "a run"))
    root = root_of(tmp_path / "run.h5", trace=str(tmp_path / "trace.json"))
    assert str(root._driver.worker.services) == ", ".join(of_all + of_run)
    with mpi_rollout.connect("CartPole-v1", 1) as envs:
        assert str(envs._driver.worker.services) == ", ".join(of_all)
