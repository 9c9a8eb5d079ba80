"""`verify --replay`: episodes step again from seed and actions, byte for byte."""

import json
import re

import h5py
import numpy as np
import pytest
from jobs import Job

from mpi_rollout.commands.replay import choose, differences_of
from mpi_rollout.config import RolloutConfig
from mpi_rollout.envs.env_maker import maker_of
from mpi_rollout.storage.schema import EPISODE

MOODY = """
import random
import gymnasium


class Moody(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return observation + random.randrange(2) if self.is_late() else observation

    def is_late(self):
        self.count = getattr(self, "count", 0) + 1
        return self.count > 5


def make():
    return Moody(gymnasium.make("CartPole-v1"))
"""

NESTED = """
import gymnasium
from gymnasium import spaces

ACTIONS = spaces.Dict({"go": spaces.Discrete(3), "turn": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(2)))})


class Nested(gymnasium.Env):
    observation_space = spaces.Dict({"a": spaces.Box(-9, 9, (3,), "f8"), "b": spaces.Tuple((spaces.Discrete(9),))})
    action_space = ACTIONS

    def observe(self, go):
        return {"a": self.np_random.uniform(-1, 1, 3) + self.turn, "b": (int(go + self.np_random.integers(5)),)}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0.0
        return self.observe(0), {}

    def step(self, action):
        self.turn = float(action["turn"][0].sum()) * action["turn"][1]
        return self.observe(action["go"]), self.turn, bool(self.np_random.random() < 0.1), False, {}
"""


def episodes(num_ended: int, num_under_way: int) -> np.ndarray:
    rows = np.zeros(num_ended + num_under_way, EPISODE)
    rows["start"] = np.arange(len(rows))
    rows["terminated"][:num_ended] = True
    return rows


@pytest.mark.parametrize(
    ("num_ended", "num_under_way", "number", "expected"),
    [(100, 10, 8, (4, 4)), (100, 2, 8, (6, 2)), (2, 100, 8, (2, 6)), (100, 0, 8, (8, 0)), (0, 3, 8, (0, 3)),
     (100, 10, 1, (1, 0)), (3, 2, 1000, (3, 2)), (0, 0, 4, (0, 0))],
)  # fmt: skip
def test_episodes_that_ended_and_that_were_under_way_are_chosen(
    num_ended: int, num_under_way: int, number: int, expected: tuple[int, int]
):
    chosen = [int(row["start"]) for row in choose(episodes(num_ended, num_under_way), number, 0)]
    assert len(set(chosen)) == len(chosen)
    assert (sum(row < num_ended for row in chosen), sum(row >= num_ended for row in chosen)) == expected


def test_the_choice_follows_from_the_seed_and_is_spread():
    rows = episodes(1000, 0)
    first, again, other = ([row["start"] for row in choose(rows, 10, seed)] for seed in (1, 1, 2))
    assert first == again != other
    assert [row // 100 for row in first] == list(range(10))


@pytest.mark.parametrize(
    ("env", "num_steps"),
    [
        (("--env", "CartPole-v1"), 700),
        (("--env", "MountainCar-v0"), 450),  # Truncated after 200 steps.
        (("--env-factory", "nested:Nested"), 60),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_every_episode_of_a_run_comes_out_the_same(job: Job, env: tuple[str, str], num_steps: int):
    (job.folder / "nested.py").write_text(NESTED)
    path = job.collect(2, *env, "--num-envs", "3", "--num-steps", str(num_steps), "--seed", "5")
    result = job(None, "verify", str(path), "--replay", "100000", "--json", *env)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["replayed"] == found["episodes"] > 3
    with h5py.File(path) as file:
        assert found["replayed_steps"] == file["episodes"]["length"].sum()


@pytest.mark.parametrize("module", ["mujoco", "ale_py"])
def test_simulators_and_games_come_out_the_same(job: Job, module: str):
    pytest.importorskip(module)
    env = {"mujoco": "HumanoidStandup-v5", "ale_py": "ale_py:ALE/Breakout-v5"}[module]
    path = job.collect(2, "--env", env, "--num-envs", "2", "--num-steps", "150")
    result = job(None, "verify", str(path), "--replay", "3", "--env", env)
    assert result.code == 0, result.err
    assert "steps from seed and actions: every byte the same" in result.out


def test_an_env_that_knows_its_earlier_episodes_is_found(job: Job):
    path = job.collect(2, "--env-factory", "envs:Counting", "--num-envs", "3", "--num-steps", "60")
    result = job(None, "verify", str(path), "--replay", "10", "--env-factory", "envs:Counting")
    assert result.code == 65 and "of 10 episodes come out the same; the episode of env " in result.err


def test_an_env_that_does_not_follow_from_its_seed_is_found_with_the_first_difference(job: Job):
    (job.folder / "moody.py").write_text(MOODY)
    path = job.collect(1, "--env-factory", "moody:make", "--num-envs", "1", "--num-steps", "300")
    result = job(None, "verify", str(path), "--replay", "10", "--trust")
    assert result.code == 65 and result.err.count("\n") == 1
    assert re.search(
        r"run\.h5: \d of 10 episodes come out the same; the episode of env 0 from step \d+ on, seed \d+, differs "
        r"in its step \d+: observations\[\d\] is .* in the file, .* in the replay",
        result.err,
    )


def test_a_changed_reward_with_a_good_checksum_is_found(job: Job):
    path = job.collect(1, "--env", "CartPole-v1", "--num-envs", "1", "--num-steps", "10")
    with h5py.File(path, "r+") as file:
        file["trajectories/rewards"][3, 0] = 2.0
        rows = file["episodes"][...]
        rows["return"][0] += 1
        file["episodes"][...] = rows
    assert job(None, "verify", str(path)).code == 0
    assert "in its step 3: rewards is 2.0 in the file, 1.0 in the replay" in (
        job(None, "verify", str(path), "--replay", "1").err
    )


def test_a_change_in_any_row_of_an_episode_is_found(job: Job):
    """From its reset to its last step and the observation after that."""
    path = job.collect(None, "--env", "CartPole-v1", "--num-envs", "1", "--num-steps", "9", "--progress", "none")
    with h5py.File(path, "r+") as file:
        make, episodes = maker_of(RolloutConfig.from_json(file.attrs["config"], "")), file["episodes"][...]
        assert episodes["length"].tolist() == [9] and list(differences_of(file, make, [*episodes])) == []
        for name, num_rows in (("rewards", 9), ("terminations", 9), ("truncations", 9), ("observations", 10)):
            rows = file[f"trajectories/{name}"]
            for row in range(num_rows):
                before = rows[row]
                rows[row] = ~before if before.dtype == bool else before + 1
                [words] = differences_of(file, make, [*episodes])
                assert f"differs in its step {row}: {name}" in words
                rows[row] = before


def test_an_env_that_cannot_be_made_any_more_is_told_in_one_line(job: Job):
    source = "import gymnasium\ndef make(): return gymnasium.make('CartPole-v1')\n"
    (job.folder / "gone.py").write_text(source)
    path = job.collect(1, "--env-factory", "gone:make", "--num-envs", "1", "--num-steps", "10")
    (job.folder / "gone.py").write_text("def make(): raise OSError('the licence server is away')\n")
    result = job(None, "verify", str(path), "--replay", "1", "--trust")
    assert (result.code, result.err) == (
        70,
        "mpi_rollout: --replay: env 0 cannot be made: OSError: the licence server is away (gone.py, line 1)\n",
    )


def test_episodes_without_seeds_are_refused_with_the_reason(job: Job):
    path = job.collect(
        1, "--env", "CartPole-v1", "--num-envs", "2", "--num-steps", "30", "--vectorization-mode", "vector_entry_point"
    )
    assert job(None, "verify", str(path)).code == 0
    result = job(None, "verify", str(path), "--replay", "1")
    assert result.code == 64 and "have no seed of their own (-1)" in result.err
