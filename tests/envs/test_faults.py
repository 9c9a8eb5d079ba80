"""Envs that fail, hang or give NaN: restarted if asked, and nothing of the others is touched."""

import re
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from jobs import Job
from seeded_faults import Moody, Once

from mpi_rollout.core.layout import Block, Contents
from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.envs.faults import ABORT, OnFault, OutputChecks
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import DataError, EnvError
from mpi_rollout.storage.episodes import EpisodeTable
from mpi_rollout.storage.schema import FAULT, fault_row
from mpi_rollout.text import counted

FORGIVING = OnFault(max_restarts=100)
CHECKED = OnFault(max_restarts=100, check_finite=True)

# --- What is looked at

UNBOUNDED, BOUNDED = spaces.Box(-np.inf, np.inf, (2,)), spaces.Box(-1, 1, (2,))


@pytest.mark.filterwarnings("error")  # NumPy warns of infinite bounds for integers.
@pytest.mark.parametrize(
    ("space", "on_fault", "is_looked_at"),
    [
        (BOUNDED, ABORT, False),
        (BOUNDED, OnFault(check_bounds=True), True),
        (UNBOUNDED, OnFault(check_bounds=True), False),
        (UNBOUNDED, OnFault(check_finite=True), True),
        (spaces.Box(0, 255, (2,), np.uint8), OnFault(check_bounds=True), False),
        (spaces.Box(0, 255, (2,), np.uint8), OnFault(check_finite=True), True),  # For the rewards.
    ],
)
def test_nothing_is_looked_at_where_nothing_can_be_wrong(space: spaces.Space, on_fault: OnFault, is_looked_at: bool):
    assert bool(OutputChecks(space, on_fault)) is is_looked_at


# --- The loop


def loop(
    how: str, on_fault: OnFault = FORGIVING, share: float = 0.5, num_envs: int = 5, resets: float = 0.0, **more: Any
):
    seeds = [episode_seeds(3, index) for index in range(num_envs)]
    return LoopVectorEnv([lambda: Moody(how, share, resets)] * num_envs, seeds=seeds, on_fault=on_fault, **more)


def steps_of(envs: LoopVectorEnv, num_steps: int = 60) -> Iterator[tuple[Any, ...]]:
    """Observations before, then all that each step gives, copied."""
    observations, _ = envs.reset()
    for step in range(num_steps):
        before = observations["x"].copy()
        observations, *results, infos = envs.step(np.full(envs.num_envs, step % 3))
        yield before, observations["x"].copy(), *(each.copy() for each in results), infos
        if envs.autoreset_mode is AutoresetMode.DISABLED and (results[1] | results[2]).any():
            observations, _ = envs.reset(options={"reset_mask": results[1] | results[2]})


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("how", ["raise", "exit", "stop", "nan", "inf", "reward"])
def test_an_env_that_fails_is_truncated_with_its_last_observation_and_begins_a_new_episode(mode, how: str):
    envs = loop(how, CHECKED, autoreset_mode=mode)
    num_faults = 0
    for before, after, rewards, terminations, truncations, infos in steps_of(envs):
        failed = np.flatnonzero(truncations).tolist()
        told = {index: what for index, what, _ in envs.faults[num_faults:]}
        assert sorted(told) == failed
        num_faults = len(envs.faults)
        assert not terminations[failed].any() and not rewards[failed].any()
        if failed and mode is AutoresetMode.SAME_STEP:
            last = envs.columns.final_observation_arrays[1][failed]  # Leaves are in the order of their keys: n, x.
            assert last.tobytes() == before[failed].tobytes()
            assert [infos["final_info"]["env_error"][index] for index in failed] == [told[index] for index in failed]
        elif failed:
            assert after[failed].tobytes() == before[failed].tobytes()
            assert [infos["env_error"][index] for index in failed] == [told[index] for index in failed]
        assert np.isfinite(after).all() and np.isfinite(rewards).all()
    assert num_faults > 10


def test_the_others_do_not_notice():
    """Where no episode fails, an env goes on as if none had failed."""
    moody, calm = steps_of(loop("raise", share=0.3), 40), steps_of(loop("raise", share=0.0), 40)
    until_fault = np.ones(5, np.bool_)
    for (_, *got), (_, *expected) in zip(moody, calm, strict=True):
        until_fault &= ~got[3]
        for first, second in zip(got[:4], expected[:4], strict=True):
            assert first[until_fault].tobytes() == second[until_fault].tobytes()
    assert 0 < until_fault.sum() < 5


def test_a_reset_that_fails_in_a_step_is_an_episode_without_steps():
    envs = loop("raise", share=0.0, num_envs=4, resets=0.3)
    ended = np.zeros(4, np.bool_)
    num_failed = 0
    for before, after, rewards, terminations, truncations, _ in steps_of(envs):
        assert not truncations[~ended].any()
        assert after[truncations].tobytes() == before[truncations].tobytes() and not rewards[truncations].any()
        num_failed += truncations.sum()
        ended = terminations | truncations
    assert num_failed > 3 and "reset: FileNotFoundError" in envs.faults[-1][1]


def test_the_first_reset_is_taken_again_with_the_same_seed_as_often_as_allowed():
    made = []

    class Shy(Moody):
        def __init__(self):
            super().__init__(share=0.0)
            made.append(self)

        def reset(self, *, seed=None, options=None):
            asked.append(seed)
            if len(made) < 4:
                raise ConnectionError("the licence server is busy")
            return super().reset(seed=seed, options=options)

    asked: list[int] = []
    envs = LoopVectorEnv([Shy], seeds=[episode_seeds(3, 0)], on_fault=OnFault(max_restarts=3))
    envs.reset()
    assert len(asked) == 4 and set(asked) == {next(episode_seeds(3, 0))}
    made.clear(), asked.clear()
    envs = LoopVectorEnv([Shy], seeds=[episode_seeds(3, 0)], on_fault=OnFault(max_restarts=2))
    with pytest.raises(EnvError, match=r"env 0, reset: ConnectionError: .* 2 times already"):
        envs.reset()


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_budget_bounds_it(most: int):
    envs = loop("raise", OnFault(max_restarts=most), share=1.0, num_envs=1)
    more = f"; it was restarted {counted(most, 'time')} already" if most else ""
    with pytest.raises(EnvError, match=f"diverged{more}$"):
        list(steps_of(envs))
    assert len(envs.faults) == most


@pytest.mark.parametrize(("then", "why"), [("raise", "PermissionError: no licence"), ("space", "same action_space")])
def test_an_env_that_cannot_be_restarted_says_why(then: str, why: str):
    Once.made = 0
    envs = LoopVectorEnv([lambda: Once(then)], on_fault=FORGIVING)
    with pytest.raises(EnvError, match=f"env 0 could not be restarted: .*{why}"):
        list(steps_of(envs))


def test_a_failure_says_where_it_comes_from():
    envs = loop("raise", share=1.0, num_envs=1)
    list(steps_of(envs, 5))
    (index, what, times), *_ = envs.faults
    assert index == 0 and times == "restarted, 1 of 100 times"
    expected = r"env 0, step \d of its episode: RuntimeError: the simulator has diverged \(seeded_faults.py, line \d+\)"
    assert re.fullmatch(expected, what)


@pytest.mark.parametrize(
    ("how", "what"),
    [("nan", "its observation 'x' is nan at [1]"), ("inf", "'x' is -inf at [1]"), ("reward", "reward is nan")],
)
def test_what_is_not_finite_is_named(how: str, what: str):
    with pytest.raises(DataError, match=re.escape(what)):
        list(steps_of(loop(how, OnFault(check_finite=True))))
    assert np.isnan([steps[2] for steps in steps_of(loop("reward", OnFault()))]).any()  # Nobody has asked.


def test_natively_vectorized_envs_cannot_be_restarted_one_by_one(job: Job):
    options = ("--vectorization-mode", "vector_entry_point", "--max-env-restarts", "10")
    result = job(None, "--env", "CartPole-v1", *options, "--out", "run.h5")
    assert result.code == 64 and "cannot be restarted one by one" in result.messages[0]


def test_frames_and_odd_messages_outlive_a_failure():
    class Odd(Moody):
        metadata = {"render_modes": ["rgb_array"]}
        render_mode = "rgb_array"

        def render(self):
            return np.full((2, 2, 3), self.num, np.uint8)

        def step(self, action):
            if self.num == 2:
                raise ValueError("\ud800")
            return super().step(action)

    envs = LoopVectorEnv([lambda: gymnasium.wrappers.OrderEnforcing(Odd(share=0.0))], on_fault=FORGIVING)
    envs.reset(seed=1)
    found = []
    for _ in range(5):
        envs.step(np.zeros(1, np.int64))
        found.append(int(envs.render()[0][0, 0, 0]))
    assert found == [1, 2, 2, 0, 1]
    assert fault_row(0, 1, envs.faults[0][1])[2].endswith(b")") and len(envs.faults) == 1


# --- The table of episodes

NUM_ROWS = 20
LIFE = {"ends": [2, 3, 6, *range(7, 13)], "faults": [3, 6]}  # Of an env that is lost in step 6 and back in step 13.
EPISODES = [  # start, length, seed's number, truncated, faulted
    (0, 3, 0, True, False), (4, 0, 1, True, True), (5, 2, 2, True, True), (14, 6, 3, False, False)
]  # fmt: skip


@pytest.mark.parametrize("cuts", [(), (3,), (4, 7), (5, 9, 13), tuple(range(1, NUM_ROWS))])
def test_a_failed_reset_is_an_episode_and_a_lost_env_has_none_until_it_is_back(cuts: tuple[int, ...]):
    block = Block(Contents(spaces.Discrete(2), spaces.Discrete(2)), 2, 1, NUM_ROWS)
    block.truncations[LIFE["ends"], 1] = True
    block.rewards[...] = 1.0
    table = EpisodeTable(2, 4)
    table.note_faults(np.array([fault_row(1, step, "") for step in LIFE["faults"]], FAULT))
    for start, stop in pairwise((0, *cuts, NUM_ROWS)):
        table.add(block, start, stop)
    rows = np.concatenate([table.take(NUM_ROWS), table.unfinished(NUM_ROWS)])
    found = rows[rows["env_index"] == 1][["start", "length", "seed", "truncated", "faulted"]].tolist()
    seeds = list(islice(episode_seeds(4, 1), 4))
    assert found == [(start, length, seeds[number], *ends) for start, length, number, *ends in EPISODES]
