"""Agents of envs as rows of Stable-Baselines3's envs."""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from jobs import LEARNING, Job

agents_envs = pytest.importorskip("agents_envs")  # It needs PettingZoo.

pytestmark = [
    pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="pip install 'mpi_rollout[sb3]'"),
    pytest.mark.imports(*LEARNING),
    pytest.mark.any_mpi,
]
NUM_STEPS = 40


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Any:
    job = Job(tmp_path_factory.mktemp("rows"), libraries=LEARNING)
    return job.train(2, "agent_rows", NUM_STEPS, timeout=500.0)


def test_rows_are_what_the_agents_give_when_they_are_stepped_by_hand(given: Any):
    (seen, reset_infos), *steps = given[0]
    envs = [agents_envs.even() for _ in range(3)]
    firsts = [env.reset(seed=3 + 2 * index) for index, env in enumerate(envs)]  # A seed for each row.
    names = agents_envs.NAMES[:2]
    assert np.array_equal(seen, [first[name] for first, _ in firsts for name in names])
    assert reset_infos == [infos.get(name, {}) for _, infos in firsts for name in names]
    num_ends = 0
    for actions, (seen, rewards, dones, infos) in steps:
        for index, env in enumerate(envs):
            acting = list(env.agents)
            own = {name: actions[2 * index + names.index(name)] for name in acting}
            observations, given_rewards, terminations, truncations, _ = env.step(own)
            is_over = not env.agents
            after = env.reset()[0] if is_over else observations
            for place, name in enumerate(names, 2 * index):
                has_left = terminations.get(name, False) or truncations.get(name, False)
                assert dones[place] == (has_left or is_over)
                assert rewards[place] == np.float32(given_rewards.get(name, 0.0))
                expected = after[name] if is_over or (name in acting and not has_left) else np.zeros(3)
                assert np.array_equal(seen[place], expected)
                assert infos[place]["TimeLimit.truncated"] == truncations.get(name, False)
                if dones[place]:
                    final = observations.get(name, np.zeros(3))
                    assert np.array_equal(infos[place]["terminal_observation"], final)
                    num_ends += 1
    assert num_ends > 20


def test_ppo_learns_with_agents_as_rows(given: Any):
    before, after = given[1]
    assert before < 0.6 < 0.9 < after
