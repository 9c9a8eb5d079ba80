"""Runs of natively vectorized envs, and of envs that are seeded once: the same bytes on any ranks, after a stop too."""

import re
from importlib.util import find_spec

import h5py
import numpy as np
import pytest
from jobs import Collected, Job, assert_same_bytes, collected_in_ways, datasets

from mpi_rollout.envs.native_makers import env_seeds

LIBRARIES = ("numba", "envpool", "ale_py")
pytestmark = [pytest.mark.any_mpi, pytest.mark.imports(*LIBRARIES)]

NATIVE = ("--vectorization-mode", "native", "--num-envs", "7", "--num-steps", "100")
POOL = ("--vectorization-mode", "envpool", "--num-envs", "7")
RUNS = {
    "kernel": ("--env", "mpi_rollout/CartPoleNumba-v0", "--num-envs", "70", "--num-steps", "100"),
    "envpool": ("--env", "CartPole-v1", "--vectorization-mode", "envpool", "--num-envs", "10", "--num-steps", "100"),
    "players": ("--env", "IntersectionMultiAgent-v0", *POOL, "--num-steps", "100"),
    "game": ("--env", "TicTacToe-v1", *POOL, "--num-steps", "100"),
    "ale": (
        *("--env", "ale_py:ALE/Breakout-v5", "--vectorization-mode", "vector_entry_point", "--env-kwargs"),
        '{"max_num_frames_per_episode": 90, "repeat_action_probability": 0.25, "episodic_life": true}',
        *("--num-envs", "3", "--num-steps", "60"),
    ),
    "factory": ("--env-factory", "native_envs:drift", *NATIVE),
    "same step": ("--env-factory", "native_envs:drift_on", *NATIVE),
    "jax": ("--env-factory", "jax_envs:hops", *NATIVE),
    "seeded once": ("--env", "CartPole-v1", "--no-episode-seeds", "--num-envs", "7", "--num-steps", "100"),
}
BY_HISTORY = {"envpool", "players", "game", "factory", "same step", "seeded once"}  # They promise ENV.
OF_POOL = dict.fromkeys(("envpool", "players", "game"), "envpool")
NEEDS = OF_POOL | {"kernel": "numba", "ale": "ale_py", "jax": "jax"}
WAYS = [(), ("--fragment-length", "1"), ("--fragment-length", "7", "--batch-size", "1", "--policy-on", "workers")]
QUIET = ("--wait", "sleep", "--progress", "none")
INSTALLED = {name: run for name, run in RUNS.items() if name not in NEEDS or find_spec(NEEDS[name])}
each_run = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.skipif(name not in INSTALLED, reason="extra")) for name in RUNS]
)


def ways_of(name: str, num_ranks: int) -> list[tuple[str, ...]]:
    return [WAYS[num_ranks - 1]]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    return collected_in_ways(tmp_path_factory, INSTALLED, ways_of, libraries=LIBRARIES)


@pytest.mark.mpi(2, 3)
@each_run
def test_the_data_do_not_depend_on_the_ranks(collected: Collected, num_ranks: int, name: str):
    first = datasets(collected(1)[name][0])
    for path in collected(num_ranks)[name]:
        assert_same_bytes(datasets(path), first)


@pytest.mark.mpi(2)
@each_run
def test_a_run_is_extended_by_its_episodes_or_by_its_history(job: Job, collected: Collected, num_ranks: int, name: str):
    if name in ("kernel", "factory", "game"):
        pytest.skip("ale, same step and players promise the same")
    *same, num_steps = RUNS[name]
    assert job(3, *same, "47", *QUIET, "--out", "run.h5").code == 0
    result = job(num_ranks, *same, num_steps, *QUIET, "--out", "run.h5")
    taken = re.search(r"took (\d+) steps? again", result.err)
    assert result.code == 0 and taken and (int(taken[1]) == 47) == (name in BY_HISTORY)
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(collected(1)[name][0]))
    replayed = job(None, "verify", "--replay", "5", "run.h5", "--trust")
    assert replayed.code == 0 and "every byte the same" in replayed.out
    assert ("5 episodes, " in replayed.out) == (name not in BY_HISTORY)


@pytest.mark.parametrize("name", ["players", "game"])
def test_runs_of_several_players_have_what_a_pool_gives_that_is_stepped_by_hand(collected: Collected, name: str):
    envpool = pytest.importorskip("envpool")
    stored, env_ids = datasets(collected(1)[name][0]), np.arange(7, dtype=np.int32)
    pool = envpool.make_gymnasium(RUNS[name][1], num_envs=7, num_threads=1, seed=env_seeds(0, range(7)))
    (seen, infos), acting = pool.reset(), env_ids.repeat(2)
    over = np.zeros(7, np.bool_)
    actions = np.stack([stored["actions/player_0"], stored["actions/player_1"]], axis=2).astype(np.int32)
    for step, chosen in enumerate(actions):
        for place, player in enumerate(("player_0", "player_1")):
            assert (stored[f"observations/{player}"][step] == seen[place::2]).all()
            assert (stored[f"alive/{player}"][step] == ~over).all()
        if name == "game":
            outcome = pool.step(chosen[env_ids, infos["current_player"]], env_ids)
        else:
            outcome = pool.step({"players.action": chosen.ravel(), "env_id": env_ids, "players.env_id": acting})
        seen, rewards, *ends, infos = outcome
        over = ends[0] | ends[1]
        of_each = {"player_0": rewards[0::2], "player_1": rewards[1::2]}
        for agent, own in (of_each | {"__all__": sum(of_each.values())}).items():
            assert (stored[f"rewards/{agent}"][step] == own).all()
            assert (stored[f"terminations/{agent}"][step] == ends[0]).all()
            assert (stored[f"truncations/{agent}"][step] == ends[1]).all()
    assert stored["terminations/__all__"].any() and stored["rewards/player_1"].any()


@pytest.mark.mpi(2)
def test_where_episodes_begin_in_the_step_of_an_end_each_row_is_a_step(collected: Collected, num_ranks: int):
    for path in collected(num_ranks)["same step"]:
        with h5py.File(path) as file:
            assert file.attrs["autoreset_mode"] == "SameStep"
            assert file["throughput"].attrs["env_steps"] == 7 * 100 == file["episodes"]["length"].sum()
            assert len(file["episodes"]) == 7 + file["trajectories/terminations"][:-1].sum()


@pytest.mark.mpi(1)
def test_envs_that_do_not_come_back_are_refused(job: Job, num_ranks: int):
    changed = ("--env-factory", "native_envs:Changed", "--vectorization-mode", "native", "--num-envs", "3")
    assert job(num_ranks, *changed, "--num-steps", "9", *QUIET, "--out", "run.h5").code == 0
    before = (job.folder / "run.h5").read_bytes()
    result = job(num_ranks, *changed, "--num-steps", "20", *QUIET, "--out", "run.h5")
    assert result.code == 65 and "env 0 did not reproduce step 0" in result.err
    assert (job.folder / "run.h5").read_bytes() == before
    replayed = job(None, "verify", "--replay", "1", "run.h5", "--trust")
    assert replayed.code == 65 and "env 0 differs in row 0" in replayed.err


@pytest.mark.mpi(2)
def test_a_slice_of_the_wrong_size_is_refused_on_all_ranks(job: Job, num_ranks: int):
    result = job(num_ranks, "--env-factory", "native_envs:too_few", "--vectorization-mode", "native", "--num-envs", "9")
    assert result.code == 64 and "must return 5 envs for these indices, got 4" in result.err
