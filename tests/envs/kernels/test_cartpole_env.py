"""The env in Python, against Gymnasium's own; and which device a rank takes."""

import os

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv as GymnasiumsCartPole
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from kernel_checks import KNOWN_ANSWERS
from noticing import note_only, noted

from mpi_rollout.envs.kernels.cartpole import (
    THETA_LIMIT,
    X_LIMIT,
    CartPoleEnv,
    is_outside,
    key_words,
    own_device,
    philox,
)
from mpi_rollout.errors import ActionError, UsageError

pytestmark = pytest.mark.any_mpi


def random_states(number: int) -> np.ndarray:
    """States (number, 4) that go on, half of them near an end."""
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (number, 4)) * (2.4, 3, 12 * np.pi / 180, 3)
    states[::4, 0] = np.sign(states[::4, 0]) * (2.4 - rng.uniform(0, 0.05, len(states[::4])))
    states[::6, 2] = np.sign(states[::6, 2]) * (12 * np.pi / 180 - rng.uniform(0, 0.05, len(states[::6])))
    return states


@pytest.mark.parametrize("sutton_barto_reward", [False, True])
def test_single_steps_equal_those_of_gymnasium_bit_for_bit(sutton_barto_reward: bool):
    theirs, ours = GymnasiumsCartPole(sutton_barto_reward), CartPoleEnv(sutton_barto_reward=sutton_barto_reward)
    theirs.reset(), ours.reset()
    ends = {(False, False): 0, (False, True): 0, (True, False): 0, (True, True): 0}
    for number, state in enumerate(random_states(4000)):
        theirs.state, theirs.steps_beyond_terminated = state, None
        ours._state, ours._is_running = tuple(state.tolist()), True
        expected, result = theirs.step(number % 2), ours.step(number % 2)
        assert expected[0].tobytes() == result[0].tobytes()
        assert expected[1:] == result[1:] and list(map(type, expected[1:])) == list(map(type, result[1:]))
        np.testing.assert_array_max_ulp(np.array(ours._state), np.array(theirs.state), maxulp=64)
        x, _, theta, _ = ours._state
        ends[abs(x) > 2.4, abs(theta) > 12 * np.pi / 180] += 1
    assert min(ends.values()) > 20, "the states lead to each kind of end"
    assert not any(is_outside(sign * X_LIMIT, sign * THETA_LIMIT) for sign in (-1, 1)), "the limits are inside"


def test_whole_episodes_equal_those_of_gymnasium():
    theirs, ours = GymnasiumsCartPole(), CartPoleEnv(seed=3)
    theirs.reset()
    rng = np.random.default_rng(0)
    for _ in range(200):
        observation, _ = ours.reset()
        theirs.state, theirs.steps_beyond_terminated = np.array(ours._state), None
        terminated = False
        while not terminated:
            action = int(rng.integers(2))
            observation, _, terminated, _, _ = ours.step(action)
            expected = theirs.step(action)
            assert observation.tobytes() == expected[0].tobytes() and terminated == expected[2]


@pytest.mark.filterwarnings("ignore:.*A Box observation space m")
def test_gymnasium_finds_nothing_wrong_with_the_single_env():
    check_env(gymnasium.make("mpi_rollout/CartPoleNumba-v0").unwrapped, skip_render_check=True)


def test_a_reset_begins_the_next_episode_and_a_seed_the_first_one():
    env, other = CartPoleEnv(seed=5), CartPoleEnv()
    first, second = env.reset()[0], env.reset()[0]
    assert not np.array_equal(first, second) and np.all(np.abs(first) < 0.05)
    assert np.array_equal(other.reset(seed=5)[0], first) and np.array_equal(other.reset()[0], second)
    assert not np.array_equal(CartPoleEnv(seed=5, first_env=1).reset()[0], first)


def test_seeds_and_envs_have_starts_of_their_own():
    starts = {CartPoleEnv(seed, env).reset()[0].tobytes() for seed in (0, 1, 2**32, 2**64 - 1) for env in range(50)}
    assert len(starts) == 200


def test_first_states_are_uniform():
    env = CartPoleEnv()
    values = np.sort(np.array([env.reset()[0] for _ in range(2000)]), axis=0)
    expected = np.linspace(-0.05, 0.05, 2000)[:, np.newaxis]
    assert np.max(np.abs(values - expected)) < 0.1 * 1.95 / np.sqrt(2000), "Kolmogorov and Smirnov, at 0.1 %"


def test_steps_need_a_reset_and_an_action_of_the_space():
    env = CartPoleEnv()
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset()
    with pytest.raises(ActionError, match="the action must be 0 or 1, got 2"):
        env.step(2)
    terminated = False
    while not terminated:
        terminated = env.step(0)[2]
    with pytest.raises(ResetNeeded):
        env.step(0)


def test_wrong_arguments_are_named():
    with pytest.raises(UsageError, match=r"seed of CartPole must be an integer from 0 to .*, got -1"):
        CartPoleEnv(seed=-1)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_random_numbers_are_those_of_random123(counter, key, words):
    """Devices are compared with the env in Python; so their numbers are these as well."""
    assert philox(*counter, *key) == words


def test_a_seed_of_64_bits_is_two_words():
    assert key_words(0x0123456789ABCDEF) == (0x89ABCDEF, 0x01234567)


@pytest.mark.parametrize(
    ("num_devices", "local_rank", "device"), [(0, "3", None), (1, "3", None), (4, "3", 3), (4, "5", 1), (2, "", 0)]
)
def test_each_rank_of_a_host_takes_a_device(
    monkeypatch: pytest.MonkeyPatch, num_devices: int, local_rank: str, device: int | None
):
    for name in ("MPI_LOCALRANKID", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", local_rank)
    assert own_device(num_devices) == device


def test_ranks_that_share_devices_are_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "3")
    note_only()
    assert own_device(4) == 3 and noted() == []
    assert own_device(2) == 1
    assert noted() == [f"host {os.uname().nodename}: 4 ranks share 2 devices"]
