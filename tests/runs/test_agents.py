"""Runs of envs with several agents: the columns of each agent, on any number of ranks, continued and replayed."""

import importlib
import json
import os
import sys

import numpy as np
import pytest
from jobs import Collected, Job, Start, assert_same_bytes, collected_in_ways, datasets

import mpi_rollout

pytest.importorskip("pettingzoo")
agents_envs = pytest.importorskip("agents_envs")  # It needs PettingZoo.

pytestmark = pytest.mark.any_mpi
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
FACTORIES = {
    "lives": ("agents_envs:Lives", {"longest": 9}),
    "rps": ("pettingzoo.classic.rps_v2:parallel_env", {"max_cycles": 6}),
    "tag": ("mpe2.simple_tag_v3:parallel_env", {"max_cycles": 8}),
    "knights": ("pettingzoo.butterfly.knights_archers_zombies_v11:parallel_env", {"spawn_delay": 2, "max_cycles": 120}),
}
NUM_ENVS, NUM_STEPS = 5, {"lives": 60, "rps": 20, "tag": 20, "knights": 150}
OUT = ("--out", "run.h5", "--progress", "none")


def has(name: str) -> bool:
    """The module of an env can be imported: some need PyGame, or a package of their own."""
    before = sys.dont_write_bytecode  # The knights set it: pytest would keep nothing that it makes of later files.
    try:
        return bool(importlib.import_module(FACTORIES[name][0].partition(":")[0]))
    except ImportError:
        return False
    finally:
        sys.dont_write_bytecode = before


def run_of(name: str) -> tuple[str, ...]:
    factory, kwargs = FACTORIES[name]
    sizes = ("--num-envs", str(NUM_ENVS), "--num-steps", str(NUM_STEPS[name]), "--seed", "4")
    return ("--env-factory", factory, "--env-kwargs", json.dumps(kwargs), *sizes)


RUNS = {name: run_of(name) for name in FACTORIES if has(name)}
QUICK = [name for name in RUNS if name in ("lives", "rps")]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    is_done = lambda name, num_ranks: num_ranks in (None, 3) or name in QUICK  # noqa: E731
    return collected_in_ways(tmp_path_factory, RUNS, lambda *each: [()] * is_done(*each))


@pytest.mark.mpi(2, 5)
@pytest.mark.parametrize("name", QUICK)
def test_rank_count_does_not_change_the_data(collected: Collected, num_ranks: int, name: str):
    assert_same_bytes(datasets(collected(num_ranks)[name][0]), datasets(collected(None)[name][0]))


@pytest.mark.mpi(3)
@pytest.mark.parametrize("name", RUNS)
def test_three_ranks_have_the_data_of_one_process(collected: Collected, num_ranks: int, name: str):
    assert_same_bytes(datasets(collected(num_ranks)[name][0]), datasets(collected(None)[name][0]))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_what_the_envs_give_when_they_are_stepped_by_hand(collected: Collected, name: str):
    (factory, kwargs), stored = FACTORIES[name], datasets(collected(None)[name][0])
    module, function = factory.split(":")
    make = getattr(importlib.import_module(module), function)
    actions = {path.removeprefix("actions/"): array for path, array in stored.items() if path.startswith("actions/")}
    expected = agents_envs.by_hand(lambda: make(**kwargs), NUM_ENVS, actions, agents_envs.of_run(4))
    columns = {path: array for path, array in stored.items() if not path.startswith("/")}
    assert columns.keys() == expected.keys()
    for path, array in columns.items():
        assert array.dtype == expected[path].dtype and array.tobytes() == expected[path].tobytes(), path


@pytest.mark.mpi(4)
def test_several_ranks_make_an_env_whose_members_return_nothing(job: Job, num_ranks: int, collected: Collected):
    """And rewards and ends may be arrays of one element, as those of envs without agents."""
    arguments = ("--env-factory", "agents_envs:Spread", *RUNS["lives"][2:], "--ranks-per-env", "2")
    assert_same_bytes(datasets(job.collect(num_ranks, *arguments)), datasets(collected(None)["lives"][0]))


def test_an_episode_ends_where_all_agents_have_ended_though_they_stay_in_the_list(job: Job, collected: Collected):
    arguments = ("--env-factory", "agents_envs:Staying", *RUNS["lives"][2:])
    assert_same_bytes(datasets(job.collect(None, *arguments)), datasets(collected(None)["lives"][0]))


def test_returns_are_those_of_each_agent(collected: Collected):
    with mpi_rollout.open(collected(None)["lives"][0]) as data:
        assert data.agents == agents_envs.NAMES and len(data.episodes) > 20
        for episode in data.iter_episodes():
            assert not any(flags[-1] for flags in episode.alive.values())
            for agent in data.agents:
                rewards = episode.rewards[agent]
                assert episode.row[f"return_{agent}"] == sum(rewards.tolist())
                assert (rewards[~episode.alive[agent][:-1]] == 0).all()


STOPPED = (
    "--env-factory",
    "agents_envs:Lives",
    "--num-envs",
    "5",
    "--num-steps",
    "60",
    "--policy",
    "agents_envs:by_sight",
)


def test_a_run_that_failed_is_continued_on_other_ranks_with_the_same_bytes(job: Job):
    """And each of its episodes can be replayed; it says how agents did."""
    stopped = job(2, *STOPPED, *OUT, STOP_AT="raise:23")
    assert stopped.code == 70, stopped.err
    assert job(3, *STOPPED, *OUT).code == 0
    whole = job.collect(None, *STOPPED, out="whole.h5")
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(whole))
    results = job.series(
        [
            Start(["verify", "run.h5", "--replay", "9", "--trust"]),
            Start(["inspect", "run.h5"]),
            Start(["inspect", "run.h5", "--json"]),
        ]
    )
    assert [result.code for result in results] == [0, 0, 0], results[0].err
    told = json.loads(results[2].out)
    ended = datasets(whole)["/episodes"]["terminated"] | datasets(whole)["/episodes"]["truncated"]
    for agent in agents_envs.NAMES:
        returns = datasets(whole)["/episodes"][f"return_{agent}"]
        assert f"return of {agent}" in results[1].out
        assert told["agents"][agent]["return"]["mean"] == pytest.approx(np.mean(returns[ended]))


def test_what_a_killed_run_has_committed_is_recovered(job: Job):
    assert job(1, *STOPPED, *OUT, STOP_AT="raise:41").code == 70
    assert job(None, "recover", "run.h5.part", "saved.h5").code == 0
    whole, saved = datasets(job.collect(None, *STOPPED, out="whole.h5")), datasets(job.folder / "saved.h5")
    assert len(saved["rewards/__all__"]) == 40
    for path in saved.keys() - {"/episodes"}:
        assert saved[path].tobytes() == whole[path][: len(saved[path])].tobytes(), path
    ended = saved["/episodes"][saved["/episodes"]["terminated"] | saved["/episodes"]["truncated"]]
    assert ended.tobytes() == whole["/episodes"][: len(ended)].tobytes()


def test_a_run_in_shards_has_the_data_of_one_file(job: Job):
    arguments = (*RUNS["lives"], "--storage", "sharded", "--shards-per-node", "2")
    assert job(2, *arguments, *OUT).code == 0
    whole = job.collect(None, *RUNS["lives"], out="whole.h5")
    assert job(None, "recover", "run.h5", "one.h5").code == 0
    assert_same_bytes(datasets(job.folder / "one.h5"), datasets(whole))


REFUSED = {
    "Stranger": (65, "its `agents` have 'stranger', which is not in possible_agents (walker, runner, late); name all"),
    "Bare": (65, "its reset should return observation and info, got dict; return both"),
    "Done": (65, "terminated, truncated and info, got 4 values; return terminated and truncated in the place of done"),
    "Unpaid": (65, "its agent 'runner' acted and has no reward"),
    "Numbered": (64, "must have possible_agents, a list of different names"),
    "Twins": (64, "must have possible_agents, a list of different names"),
    "changing": (64, "all envs must have the same observation_space"),
    "InTurn": (
        64,
        "a pettingzoo.AECEnv, whose agents act in turn; return pettingzoo.utils.conversions.aec_to_parallel",
    ),
    "Ragged": (64, "Sequence spaces have no fixed shape and cannot be gathered"),
}


def test_what_cannot_be_gathered_is_refused_with_one_line(job: Job):
    sizes = ("--num-envs", "2", "--num-steps", "9", "--no-trajectories", "--progress", "none")
    results = job.series([Start(["--env-factory", f"agents_envs:{name}", *sizes]) for name in REFUSED])
    for result, (code, words) in zip(results, REFUSED.values(), strict=True):
        assert (result.code, result.num_tracebacks, len(result.messages)) == (code, 0, 1), result.err
        assert words in result.messages[0]


def test_an_id_of_gymnasium_names_an_env(job: Job, collected: Collected):
    arguments = ("--env", "agents_envs:mine/Lives-v0", *RUNS["lives"][2:])
    assert_same_bytes(datasets(job.collect(None, *arguments)), datasets(collected(None)["lives"][0]))


def test_an_id_of_pettingzoo_names_an_env(job: Job, collected: Collected):
    pytest.importorskip("pettingzoo.classic.rps_v2")
    arguments = ("--env", "classic/rps-v2", *RUNS["rps"][2:])
    assert_same_bytes(datasets(job.collect(None, *arguments)), datasets(collected(None)["rps"][0]))
