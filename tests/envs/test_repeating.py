"""Whether an env gives the same episode again from the same seed: what is seen, and that the look leaves no trace."""

import random
import signal
import threading

import forgetful_envs
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.repeating import LOOK_S, SAME, GlobalGenerators, look, look_before_run, not_repeated
from mpi_rollout.errors import EnvError

SEED = 3757552657
FORGETFUL = {
    "Unseeded": "reset twice with seed 3757552657, it gives other observations of the reset: at [0] ",
    "SeededOnce": "reset twice with seed 3757552657, it gives other observations of the reset: at [0] ",
    "OfGlobalGenerators": "reset twice with seed 3757552657, it gives other observations of the reset: at [0] ",
    "DrawnWhenMade": "made twice and reset with seed 3757552657, it gives other observations of the reset: at [0] ",
    "Rewarding": "reset twice with seed 3757552657, it gives other rewards of step 0: ",
    "Counting": "reset twice with seed 3757552657, it gives other observations of the reset: at [0] 1.0, then 2.0",
}


def loop_of(*makers) -> LoopVectorEnv:
    return LoopVectorEnv(makers, seeds=[iter(range(SEED, SEED + 99)) for _ in makers])


@pytest.mark.parametrize(("name", "words"), FORGETFUL.items())
def test_it_says_which_column_of_an_env_does_not_follow_from_the_seed(name: str, words: str):
    make = getattr(forgetful_envs, name)
    assert look(make, SEED).startswith(words)
    found = look_before_run(loop_of(make, make), SEED, GlobalGenerators())
    assert found.startswith(words) and not_repeated(found) == f"env 0 does not repeat its episodes: {found}"


@pytest.mark.parametrize(
    "make",
    [
        forgetful_envs.Seeded,
        forgetful_envs.Nested,
        lambda: gymnasium.make("CartPole-v1"),
        lambda: gymnasium.make("Taxi"),
    ],
)
def test_of_an_env_that_does_as_it_should_nothing_is_said(make):
    assert look(make, SEED) == ""
    assert look_before_run(loop_of(make), SEED, GlobalGenerators()) == SAME
    assert not_repeated(SAME) == not_repeated("") == ""


@pytest.mark.parametrize("name", ["Counting", "OfGlobalGenerators", "DrawnWhenMade", "SeededOnce"])
def test_after_a_look_envs_give_the_same_bytes_as_without(name: str):
    def first_steps(looks: bool) -> bytes:
        random.seed(5)
        np.random.seed(5)
        generators = GlobalGenerators()
        envs = loop_of(*[getattr(forgetful_envs, name)] * 3)
        if looks:
            assert look_before_run(envs, SEED, generators) not in ("", SAME)
        given = [envs.reset()[0].copy(), *(envs.step(np.zeros(3, int))[0].copy() for _ in range(30))]
        return np.concatenate(given).tobytes() + random.randbytes(8) + np.random.bytes(8)

    assert first_steps(looks=True) == first_steps(looks=False)


class Slow(forgetful_envs.Seeded):
    """Its reset takes long, as the clock of the test says."""

    now, num_resets, fails = 0.0, 0, False

    def reset(self, *, seed=None, options=None):
        Slow.num_resets += 1
        Slow.now += LOOK_S / 2
        if Slow.fails:
            raise RuntimeError("no licence")
        return super().reset(seed=seed)


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr("mpi_rollout.envs.repeating.perf_counter", lambda: Slow.now)
    monkeypatch.setattr(Slow, "num_resets", 0)
    monkeypatch.setattr(Slow, "fails", False)
    return Slow


def test_a_reset_that_takes_long_is_the_first_one_of_the_run(slow):
    envs = loop_of(slow)
    assert look_before_run(envs, SEED, GlobalGenerators()) == "" and slow.num_resets == 1
    observations = envs.reset()[0].copy()
    assert slow.num_resets == 1
    again = loop_of(slow)
    assert again.reset()[0].tobytes() == observations.tobytes() and slow.num_resets == 2
    envs.reset()
    assert slow.num_resets == 3


def test_a_reset_with_another_seed_is_a_new_one(slow):
    envs = loop_of(slow)
    look_before_run(envs, SEED, GlobalGenerators())
    envs.reset(seed=[7])
    assert slow.num_resets == 2


def test_an_env_that_fails_at_its_reset_fails_in_the_run_and_not_in_the_look(slow):
    slow.fails = True
    envs = loop_of(slow)
    assert look_before_run(envs, SEED, GlobalGenerators()) == ""
    with pytest.raises(EnvError, match="env 0, reset: RuntimeError: no licence"):
        envs.reset()
    assert slow.num_resets == 1


def test_an_env_that_takes_long_to_make_is_not_looked_at(slow):
    envs = loop_of(slow)
    envs.make_s = LOOK_S
    assert look_before_run(envs, SEED, GlobalGenerators()) == "" and slow.num_resets == 0


def test_an_env_that_fails_in_a_step_is_made_anew_for_the_run():
    class Failing(forgetful_envs.Counting):
        def step(self, action):
            raise RuntimeError("a fault in a step")

    envs = loop_of(Failing)
    assert look_before_run(envs, SEED, GlobalGenerators()) == ""
    assert envs.reset()[0].tolist() == [[1.0, 0.0]]


def test_a_step_that_waits_is_interrupted_and_the_run_gets_a_new_env(monkeypatch):
    class Waiting(forgetful_envs.Counting):
        def step(self, action):
            threading.Event().wait(600)

    monkeypatch.setattr("mpi_rollout.envs.repeating.LOOK_S", 0.2)
    envs, handler = loop_of(Waiting), signal.getsignal(signal.SIGALRM)
    assert look_before_run(envs, SEED, GlobalGenerators()) == ""
    assert envs.reset()[0].tolist() == [[1.0, 0.0]] and signal.getsignal(signal.SIGALRM) is handler


def test_an_env_that_cannot_be_made_a_second_time_names_the_way_out():
    made = []

    def only_once():
        if made:
            raise RuntimeError("one licence")
        made.append(1)
        return forgetful_envs.Seeded()

    with pytest.raises(EnvError, match=r"one licence.*--no-seed-check"):
        look_before_run(loop_of(only_once), SEED, GlobalGenerators())


def test_values_that_are_no_number_are_the_same_where_their_bytes_are():
    class Strange(forgetful_envs.Seeded):
        observation_space = spaces.Box(-np.inf, np.inf, (2,))

        def draw(self):
            return np.array([np.nan, np.inf])

    assert look(Strange, SEED) == ""
