"""Trainers of envs with several agents: dicts by agent or an axis of agents, the same on any number of ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import Job, assert_same_bytes, datasets, once

import mpi_rollout
from mpi_rollout.commands.checking import verify
from mpi_rollout.errors import ActionError, UsageError

pytest.importorskip("pettingzoo")
agents_envs = pytest.importorskip("agents_envs")  # It needs PettingZoo.

pytestmark = pytest.mark.any_mpi
WAYS: dict[str, tuple[str, dict[str, Any], int]] = {
    "dicts": ("Lives", {"record": "dicts.h5"}, 1),
    "fragments": ("Lives", {"record": "fragments.h5"}, 6),
    "axis": ("even", {"agents": "axis"}, 1),
    "fragments with an axis": ("even", {"agents": "axis"}, 6),
    "same step": ("Lives", {"autoreset_mode": "same_step", "record": "same.h5"}, 1),
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What trainers are given on some ranks, and the folder of their recordings."""

    @once
    def on(num_ranks: int | None) -> tuple[dict[str, dict[str, np.ndarray]], Path]:
        job = Job(tmp_path_factory.mktemp("agents"))
        return dict(zip(WAYS, job.train(num_ranks, "agents", list(WAYS.values())), strict=True)), job.folder

    return on


@pytest.mark.parametrize("name", [name for name in WAYS if name != "same step"])
def test_a_trainer_is_given_what_the_envs_give_when_they_are_stepped_by_hand(given: Any, name: str):
    columns = given(None)[0][name]
    actions = {path.removeprefix("actions/"): array for path, array in columns.items() if path.startswith("actions/")}
    make = getattr(agents_envs, WAYS[name][0])
    expected = agents_envs.by_hand(make, 4, actions, agents_envs.of_trainer(3))
    expected["ended"] = expected["terminations/__all__"] | expected["truncations/__all__"]
    of_all = {f"{result}/__all__" for result in agents_envs.RESULT_NAMES}  # The sum of rewards is the trainer's matter.
    assert columns.keys() == expected.keys() - (of_all if "axis" in name else {"rewards/__all__", "ended"})
    for path, array in columns.items():
        assert array.tobytes() == expected[path].astype(array.dtype).tobytes(), path


@pytest.mark.mpi(2, 3)
def test_rank_count_does_not_change_what_a_trainer_is_given(given: Any, num_ranks: int):
    (here, _), (alone, _) = given(num_ranks), given(None)
    for name in WAYS:
        assert_same_bytes(here[name], alone[name])


@pytest.mark.parametrize("name", ["dicts", "fragments", "same step"])
def test_a_recording_has_what_the_trainer_was_given(given: Any, name: str):
    columns, folder = given(None)[0][name], given(None)[1]
    file = folder / WAYS[name][1]["record"]
    verify(str(file))
    stored = datasets(file)
    for path, array in columns.items():
        assert stored[path].tobytes() == array.tobytes(), path
    with mpi_rollout.open(file) as data:
        assert len(data.episodes) > 8
        for episode in data.iter_episodes():
            ends = [episode.terminations[agent].sum() + episode.truncations[agent].sum() for agent in data.agents]
            assert ends == [1, 1, 1]
            assert not any(flags[-1] for flags in episode.alive.values())


def test_an_env_that_is_restarted_truncates_the_agents_that_were_alive():
    with mpi_rollout.connect(agents_envs.Stumbling, 2, max_env_restarts=3) as envs:
        envs.reset(seed=1)
        for _ in range(2):
            *_, terminations, truncations, infos = envs.step({agent: np.zeros(2, int) for agent in envs.agents})
        assert truncations["__all__"].all() and truncations["walker"].all() and truncations["runner"].all()
        assert not any(flags.any() for flags in (*terminations.values(), *infos["alive"].values()))


def test_what_cannot_be_has_a_way_out():
    with pytest.raises(UsageError, match=r"axis needs agents with equal spaces, 'walker' has .*; use agents=dict"):
        mpi_rollout.connect(agents_envs.Lives, 2, agents="axis")
    with pytest.raises(UsageError, match="axis is for envs with several agents, these have none; leave it out"):
        mpi_rollout.connect("CartPole-v1", 2, agents="axis")
    with pytest.raises(UsageError, match="agents must be one of dict, axis, got 'rows'"):
        mpi_rollout.connect(agents_envs.Lives, 2, agents="rows")
    with mpi_rollout.connect(agents_envs.even, 2, agents="axis") as envs:
        envs.reset(seed=1)
        with pytest.raises(ActionError, match=r"must be of shape \(num_envs, 2, \.\.\.\), got \(2,\)"):
            envs.step(np.zeros(2, int))
