"""`verify --replay`: episodes step again from seed and actions, byte for byte."""

import json
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from jobs import Job
from native_envs import Seeded, drift, seeded
from single_rank import drive, root_of
from stopping_envs import Counting
from written_data import relist

from mpi_rollout.collect import replay as collect_replay
from mpi_rollout.commands.consent import Consent
from mpi_rollout.commands.replay import check_promise, choose, differences_of, replay
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.envs.env_maker import EnvMaker, maker_of
from mpi_rollout.errors import UsageError
from mpi_rollout.storage.schema import EPISODE
from mpi_rollout.storage.stored_run import StoredRun

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
    ("env", "num_steps", "num_ranks"),
    [
        (("--env", "CartPole-v1"), 300, 2),
        (("--env", "MountainCar-v0"), 250, None),  # Truncated after 200 steps.
        (("--env-factory", "nested.py:Nested"), 60, None),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_every_episode_of_a_run_comes_out_the_same(
    job: Job, env: tuple[str, str], num_steps: int, num_ranks: int | None
):
    (job.folder / "nested.py").write_text(NESTED)
    path = job.collect(num_ranks, *env, "--num-envs", "3", "--num-steps", str(num_steps), "--seed", "5")
    result = job(None, "verify", str(path), "--replay", "100000", "--json", *env)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert found["replayed"] == found["episodes"] > 3
    with h5py.File(path) as file:
        assert found["replayed_steps"] == file["episodes"]["length"].sum()
        assert file.attrs["num_ranks"] == (num_ranks or 1)


@pytest.mark.parametrize("module", ["mujoco", "ale_py"])
def test_simulators_and_games_come_out_the_same(job: Job, module: str):
    pytest.importorskip(module)
    env = {"mujoco": "HumanoidStandup-v5", "ale_py": "ale_py:ALE/Breakout-v5"}[module]
    path = job.collect(None, "--env", env, "--num-envs", "2", "--num-steps", "60")
    result = job(None, "verify", str(path), "--replay", "3", "--env", env)
    assert result.code == 0, result.err
    assert "steps in all, from seed and actions: every byte the same" in result.out


def test_an_env_that_knows_its_earlier_episodes_is_found(job: Job):
    path = job.collect(None, "--env-factory", "envs:Counting", "--num-envs", "3", "--num-steps", "60")
    result = job(None, "verify", str(path), "--replay", "10", "--env-factory", "envs:Counting")
    assert result.code == 65 and "of 10 episodes come out the same; the episode of env " in result.err


def test_an_env_that_does_not_follow_from_its_seed_is_found_with_the_first_difference(job: Job):
    (job.folder / "moody.py").write_text(MOODY)
    path = job.collect(None, "--env-factory", "moody.py:make", "--num-envs", "1", "--num-steps", "300")
    result = job(None, "verify", str(path), "--replay", "10", "--trust")
    assert result.code == 65 and result.err.count("\n") == 1
    assert re.search(
        r"run\.h5: \d of 10 episodes come out the same; the episode of env 0 from step \d+ on, seed \d+, differs "
        r"in its step \d+: observations\[\d\] is .* in the file, .* in the replay",
        result.err,
    )


def test_a_changed_reward_with_a_good_checksum_is_found(job: Job):
    path = job.collect(None, "--env", "CartPole-v1", "--num-envs", "1", "--num-steps", "10")
    with h5py.File(path, "r+") as file:
        file["trajectories/rewards"][3, 0] = 2.0
        rows = file["episodes"][...]
        rows["return"][0] += 1
        file["episodes"][...] = rows
    relist(path)
    assert job(None, "verify", str(path)).code == 0
    assert "in its step 3: rewards is 2.0 in the file, 1.0 in the replay" in (
        job(None, "verify", str(path), "--replay", "1").err
    )


class Changed(StoredRun):
    """A file with one row that is not as it was written: `change` is its column and its number."""

    change = "", 0

    def read(self, name: str, rows: slice, envs: slice, into: np.ndarray | None = None) -> np.ndarray:
        array = super().read(name, rows, envs, into)
        if name == self.change[0] and rows.stop > rows.start:
            row = array[self.change[1] - rows.start]
            row[...] = ~row if row.dtype == bool else row + 1
        return array


def test_a_change_in_any_row_of_an_episode_is_found(job: Job):
    """From its reset to its last step and the observation after that."""
    path = job.collect(None, "--env", "CartPole-v1", "--num-envs", "1", "--num-steps", "9", "--progress", "none")
    stored = Changed(str(path))
    make, episodes = maker_of(stored.config), [*stored.episodes]
    assert [row["length"] for row in episodes] == [9] and list(differences_of(stored, make, episodes)) == []
    for name, num_rows in (("rewards", 9), ("terminations", 9), ("truncations", 9), ("observations", 10)):
        for row in range(num_rows):
            stored.change = name, row
            [words] = differences_of(stored, make, episodes)
            assert f"differs in its step {row}: {name}" in words
    stored.close()


class Broken(Counting):
    def step(self, action):
        if self.step_number == 2 and self.seed % 2:
            raise RuntimeError("out of fuel")
        return super().step(action)


class BrokenSlice(Seeded):
    def step(self, actions):
        if self._place.max() > 5:
            raise RuntimeError("out of fuel")
        return super().step(actions)


@pytest.mark.parametrize(
    ("factory", "broken", "mode"),
    [("stopping_envs:Counting", Broken, "sync"), ("native_envs:seeded", BrokenSlice, "native")],
)
def test_an_env_that_fails_in_some_episodes_is_told_for_each_of_them(
    tmp_path: Path, factory: str, broken: Callable, mode: str
):
    path = tmp_path / "run.h5"
    assert drive(root_of(path, env_factory=factory, vectorization_mode=mode, num_steps=60)) == 0
    with closing(StoredRun(str(path))) as stored:
        episodes = [row for row in stored.episodes if row["length"] > 3]
        told = list(differences_of(stored, EnvMaker(broken, vectorization_mode=mode), episodes))
    fails = [row for row in episodes if mode == "native" or row["seed"] % 2]
    assert 1 < len(told) == len(fails) and (mode == "native" or len(fails) < len(episodes))
    for row in fails:
        [words] = [words for words in told if f"env {row['env_index']} from step {row['start']} on" in words]
        assert "fails in the replay: " in words and "RuntimeError: out of fuel" in words


def test_an_env_that_cannot_be_made_any_more_is_told_in_one_line(job: Job):
    source = "import gymnasium\ndef make(): return gymnasium.make('CartPole-v1')\n"
    (job.folder / "gone.py").write_text(source)
    path = job.collect(None, "--env-factory", "gone.py:make", "--num-envs", "1", "--num-steps", "10")
    (job.folder / "gone.py").write_text("def make(): raise OSError('the licence server is away')\n")
    result = job(None, "verify", str(path), "--replay", "1", "--trust")
    assert (result.code, result.err) == (
        70,
        "mpi_rollout: --replay: env 0 cannot be made: OSError: the licence server is away (gone.py, line 1)\n",
    )


def test_episodes_without_seeds_are_refused_with_the_reason(job: Job):
    mode = ("--vectorization-mode", "vector_entry_point")
    path = job.collect(None, "--env", "CartPole-v1", "--num-envs", "2", "--num-steps", "30", *mode)
    assert job(None, "verify", str(path)).code == 0
    result = job(None, "verify", str(path), "--replay", "1")
    assert result.code == 64 and "have no seed of their own (-1)" in result.err


def test_envs_that_promise_something_else_than_those_of_the_file_are_refused():
    stored = SimpleNamespace(reproducibility=Reproducibility.ENV)
    check_promise(stored, EnvMaker(drift, vectorization_mode="native").native(range(2)))
    with pytest.raises(UsageError, match=r"promised env .* here they promise episode"):
        check_promise(stored, EnvMaker(seeded, vectorization_mode="native").native(range(2)))


def test_a_long_history_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    path = tmp_path / "run.h5"
    assert drive(root_of(path, env_factory="native_envs:drift", vectorization_mode="native")) == 0
    trusting = Consent(trust=True)
    assert replay(str(path), 1, 0, trusting)["replayed_steps"] == 60
    monkeypatch.setattr(collect_replay, "LEARNING_S", 0.0)
    assert "takes the steps" not in capfd.readouterr().err
    assert replay(str(path), 1, 0, trusting)["replayed_steps"] == 60
    assert capfd.readouterr().err.count("mpi_rollout: takes the steps before again: 0 of 20 steps in 0 s\n") == 1
