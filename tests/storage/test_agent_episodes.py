"""Where an agent's episodes begin and end: random patterns, against a walk from step to step in plain Python."""

import numpy as np
import pytest

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st

from mpi_rollout.storage import agent_episodes as agents
from mpi_rollout.storage.schema import EPISODE

COLUMNS = "rewards/b", "terminations/b", "truncations/b", "terminations/__all__", "truncations/__all__"


@st.composite
def columns(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """The columns of an agent b in a few steps of a few envs; it acts, and things end, at random."""
    num_steps, num_envs = draw(st.integers(0, 12)), draw(st.integers(1, 3))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.1, 0.5, 0.9]))
    ends = {name: random.random((num_steps, num_envs)) < draw(st.sampled_from([0.0, 0.3])) for name in COLUMNS[1:]}
    alive = random.random((num_steps + 1, num_envs)) < share
    return {"alive/b": alive, "rewards/b": random.normal(size=(num_steps, num_envs))} | ends


def walked(stored: dict[str, np.ndarray], env: int) -> list[tuple[int, int, float, bool, bool]]:
    """Start, length, return and ends of the episodes of one env's agent."""
    alive, rewards, *ends = (stored[name][:, env].tolist() for name in ("alive/b", *COLUMNS))
    episodes, start, total = [], -1, 0.0
    for step, (reward, terminated, truncated, *of_env) in enumerate(zip(rewards, *ends, strict=True)):
        if not alive[step]:
            continue
        if start < 0:
            start, total = step, 0.0
        total += reward
        if terminated or truncated or any(of_env) or not alive[step + 1]:
            episodes.append((start, step + 1 - start, total, terminated, truncated or not terminated))
            start = -1
    return episodes + [(start, len(rewards) - start, total, False, False)] * (start >= 0)


@settings(max_examples=300, deadline=None)
@given(stored=columns(), size=st.integers(1, 20))
def test_episodes_of_an_agent_are_the_runs_of_steps_in_which_it_acts(stored: dict[str, np.ndarray], size: int):
    num_steps, num_envs = stored["rewards/b"].shape
    blocks = agents.agent_steps(lambda name, *rows: stored[name][slice(*rows)], "b", num_steps, num_envs, size)
    rows = agents.agent_episodes(blocks, num_envs)  # They go on from block to block.
    for env in range(num_envs):
        found = rows[rows["env_index"] == env][["start", "length", "return", "terminated", "truncated"]]
        assert found.tolist() == walked(stored, env)


def test_an_episode_lies_within_one_of_its_env_or_not():
    of_envs, rows = np.zeros(3, EPISODE), np.zeros(5, EPISODE)
    of_envs["env_index"], of_envs["start"], of_envs["length"], of_envs["seed"] = (
        [1, 0, 1],
        [4, 0, 8],
        [3, 5, 0],
        [7, 8, 9],
    )
    rows["env_index"], rows["start"], rows["length"] = [0, 0, 1, 1, 1], [0, 4, 0, 4, 6], [5, 2, 1, 3, 1]
    around, is_inside = agents.within(rows, of_envs, 10)
    assert is_inside.tolist() == [True, False, False, True, True]
    assert around["seed"][is_inside].tolist() == [8, 7, 7]
    assert not agents.within(rows, of_envs[:0], 10)[1].any()


def test_what_an_agent_gets_while_it_does_not_act_is_stray():
    alive, reward, end = np.array([[True], [False], [False], [True]]), np.zeros((3, 1)), np.zeros((3, 1), np.bool_)
    reward[1], end[2] = np.nan, True
    stray = agents.AgentSteps(0, alive, reward, end, end, end).is_stray
    assert stray.ravel().tolist() == [False, True, True]
