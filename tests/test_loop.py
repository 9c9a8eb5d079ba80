"""The loop gives, bit for bit, what Gymnasium's `SyncVectorEnv` gives."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import envs as test_envs
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from oracle import arrays, seeded_sync

from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import DataError, EnvError, UsageError
from mpi_rollout.seeding import episode_seeds


def with_wrapper(wrap: Callable[[gymnasium.Env], gymnasium.Env], env_id: str, **kwargs: Any) -> gymnasium.Env:
    return wrap(gymnasium.make(env_id, **kwargs))


MAKES = {
    "CartPole": partial(gymnasium.make, "CartPole-v1"),
    "Acrobot": partial(gymnasium.make, "Acrobot-v1"),
    "Pendulum": partial(gymnasium.make, "Pendulum-v1"),
    "FrozenLake": partial(gymnasium.make, "FrozenLake-v1"),
    "Blackjack": partial(gymnasium.make, "Blackjack-v1"),
    "Counting": test_envs.Counting,
    "Nested": test_envs.Nested,
    "Image": test_envs.Image,
    "Reusing": test_envs.Reusing,
    "Mixed": test_envs.Mixed,
    "Keeping": test_envs.Keeping,
    "KeepingArray": test_envs.KeepingArray,
    "time limit": partial(gymnasium.make, "CartPole-v1", max_episode_steps=11),
    "time limit of one step": partial(gymnasium.make, "Pendulum-v1", max_episode_steps=1),
    "time limit as long as episodes": lambda: wrappers.TimeLimit(test_envs.Counting(), 5),
    "time limit in a time limit": lambda: wrappers.TimeLimit(gymnasium.make("CartPole-v1", max_episode_steps=9), 12),
    "statistics": partial(with_wrapper, wrappers.RecordEpisodeStatistics, "CartPole-v1", max_episode_steps=20),
    "other rewards": partial(
        with_wrapper, partial(wrappers.TransformReward, func=lambda reward: reward / 3), "Pendulum-v1"
    ),
    "other rewards below a time limit": lambda: wrappers.TimeLimit(
        wrappers.TransformReward(test_envs.Counting(), lambda reward: -reward), 4
    ),
    "stacked observations": partial(with_wrapper, partial(wrappers.FrameStackObservation, stack_size=3), "CartPole-v1"),
    "other actions": partial(
        with_wrapper, partial(wrappers.RescaleAction, min_action=-9, max_action=np.float32(4)), "Pendulum-v1"
    ),
    "sticky actions": partial(
        with_wrapper, partial(wrappers.StickyAction, repeat_action_probability=0.5), "CartPole-v1"
    ),
}  # fmt: skip
SLOW = {
    "HumanoidStandup": ("mujoco", partial(gymnasium.make, "HumanoidStandup-v5", max_episode_steps=50)),
    "Breakout": ("ale_py", partial(gymnasium.make, "ale_py:ALE/Breakout-v5", max_episode_steps=60)),
}


def assert_same(loop: VectorEnv, first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    """Compare what two `reset`s or two `step`s returned, but for infos."""
    space = loop.single_observation_space
    ours, theirs = arrays("observations", space, first[0]), arrays("observations", space, second[0])
    for name, column in ours.items():
        assert column.dtype == theirs[name].dtype and column.tobytes() == theirs[name].tobytes(), name
    for column, expected in zip(first[1:-1], second[1:-1], strict=True):
        assert column.dtype == expected.dtype and column.tobytes() == expected.tobytes()


def assert_same_steps(loop: VectorEnv, oracle: VectorEnv, num_steps: int) -> int:
    """Step both with the same random actions; return how many episodes ended."""
    oracle.action_space.seed(0)
    num_ends = 0
    for _ in range(num_steps):
        actions = oracle.action_space.sample()
        expected = oracle.step(actions)
        assert_same(loop, loop.step(actions), expected)
        num_ends += int(np.count_nonzero(expected[2] | expected[3]))
    return num_ends


@pytest.mark.parametrize("name", MAKES)
def test_the_loop_gives_what_gymnasium_gives(name: str):
    loop, oracle = LoopVectorEnv([MAKES[name]] * 3), SyncVectorEnv([MAKES[name]] * 3)
    assert_same(loop, loop.reset(seed=5), oracle.reset(seed=5))
    assert assert_same_steps(loop, oracle, 600) >= 3


@pytest.mark.parametrize("name", MAKES)
def test_the_loop_takes_an_episodes_seed_at_each_reset(name: str):
    loop = LoopVectorEnv([MAKES[name]] * 3, seeds=[episode_seeds(4, index) for index in range(3)])
    oracle = seeded_sync(MAKES[name], 3, 4)
    assert_same(loop, loop.reset(), oracle.reset())
    assert assert_same_steps(loop, oracle, 600) >= 3


@pytest.mark.parametrize("name", SLOW)
def test_the_loop_gives_what_gymnasium_gives_for_simulators(name: str):
    package, make = SLOW[name]
    pytest.importorskip(package)
    loop, oracle = LoopVectorEnv([make] * 2), SyncVectorEnv([make] * 2)
    assert_same(loop, loop.reset(seed=1), oracle.reset(seed=1))
    assert assert_same_steps(loop, oracle, 130) >= 4


@pytest.mark.parametrize("name", SLOW)
def test_the_loop_takes_an_episodes_seed_at_each_reset_of_a_simulator(name: str):
    package, make = SLOW[name]
    pytest.importorskip(package)
    loop = LoopVectorEnv([make] * 2, seeds=[episode_seeds(2, index) for index in range(2)])
    oracle = seeded_sync(make, 2, 2)
    assert_same(loop, loop.reset(), oracle.reset())
    assert assert_same_steps(loop, oracle, 130) >= 4


def test_envs_may_have_time_limits_of_their_own():
    makes = [partial(gymnasium.make, "Pendulum-v1", max_episode_steps=steps) for steps in (3, 17, 5, 200)]
    makes.append(lambda: gymnasium.make("Pendulum-v1").unwrapped)
    loop, oracle = LoopVectorEnv(makes), SyncVectorEnv(makes)
    assert_same(loop, loop.reset(seed=0), oracle.reset(seed=0))
    assert assert_same_steps(loop, oracle, 450) > 150


def test_a_reset_in_mid_episode_starts_all_episodes_and_time_limits_anew():
    make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=12)
    loop, oracle = LoopVectorEnv([make] * 3), SyncVectorEnv([make] * 3)
    for num_steps in (5, 13, 40):
        assert_same(loop, loop.reset(seed=num_steps), oracle.reset(seed=num_steps))
        assert_same_steps(loop, oracle, num_steps)


def test_a_reset_right_after_an_end_is_one_reset():
    loop, oracle = LoopVectorEnv([test_envs.Counting] * 3), SyncVectorEnv([test_envs.Counting] * 3)
    assert_same(loop, loop.reset(seed=0), oracle.reset(seed=0))
    assert_same_steps(loop, oracle, 3)
    assert_same(loop, loop.reset(), oracle.reset())
    assert_same_steps(loop, oracle, 20)


def test_reset_takes_a_seed_for_each_env_and_options():
    make = partial(gymnasium.make, "CartPole-v1")
    loop, oracle = LoopVectorEnv([make] * 3), SyncVectorEnv([make] * 3)
    given = {"seed": [7, 7, 1], "options": {"low": -0.01, "high": 0.01}}
    assert_same(loop, loop.reset(**given), oracle.reset(**given))
    assert_same_steps(loop, oracle, 100)


@pytest.mark.parametrize("make", [test_envs.Keeping, test_envs.KeepingArray])
def test_an_env_may_keep_its_action_though_the_caller_writes_to_the_array_again(make: Callable):
    loop, oracle = LoopVectorEnv([make] * 2), SyncVectorEnv([make] * 2)
    loop.reset(seed=0), oracle.reset(seed=0)
    oracle.action_space.seed(0)
    actions = oracle.action_space.sample()
    written = arrays("", oracle.action_space, actions)
    again = {"pair": (written["pair/_index_0"], written["pair/_index_1"]), **written} if len(written) > 1 else None
    for _ in range(30):
        actions = oracle.action_space.sample()
        for name, array in arrays("", oracle.action_space, actions).items():
            written[name][...] = array
        assert_same(loop, loop.step(again or written[""]), oracle.step(actions))


def test_what_is_written_over_the_returned_arrays_does_not_come_back():
    loop, oracle = LoopVectorEnv([test_envs.Reusing] * 3), SyncVectorEnv([test_envs.Reusing] * 3)
    outcome = loop.reset(seed=0)
    oracle.reset(seed=0)
    for _ in range(30):
        outcome[0][...] = -1
        actions = oracle.action_space.sample()
        outcome = loop.step(actions)
        assert_same(loop, outcome, oracle.step(actions))


def test_spaces_and_mode_are_those_of_gymnasium():
    make = partial(gymnasium.make, "CartPole-v1")
    loop, oracle = LoopVectorEnv([make] * 3), SyncVectorEnv([make] * 3)
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space", "num_envs"):
        assert getattr(loop, name) == getattr(oracle, name)
    assert loop.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert loop.spec.id == "CartPole-v1"


def test_closing_the_loop_closes_its_envs():
    closed = []

    class Closing(test_envs.Counting):
        def close(self):
            closed.append(self)

    loop = LoopVectorEnv([Closing] * 3)
    loop.close()
    assert closed == loop.envs


class Odd(test_envs.Counting):
    """Returns `outcome(step, what Counting returns)` from every step."""

    def __init__(self, outcome: Callable[[int, tuple], Any]):
        super().__init__()
        self.outcome = outcome

    def step(self, action):
        outputs = super().step(action)
        return self.outcome(self.step_number, outputs)


def stepped(outcome: Callable[[int, tuple], Any]) -> None:
    """Step envs 10, 11 and 12, of which 11 is odd, three times."""
    makes = [test_envs.Counting, partial(Odd, outcome), test_envs.Counting]
    loop = LoopVectorEnv(makes, first_env_index=10)
    loop.reset(seed=5)
    for _ in range(3):
        loop.step(np.full(3, 2))


def replaced(index: int, value: Any) -> Callable[[int, tuple], tuple]:
    """In the second step, one output is another."""
    return lambda step, outputs: outputs if step < 2 else (*outputs[:index], value, *outputs[index + 1 :])


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        (replaced(0, np.zeros(3, np.int64)), r"observation should be int64 of shape \(4,\), got int64 of shape \(3,\)"),
        (replaced(0, np.zeros((4, 1), np.int64)), r"observation should be int64 of .*, got int64 of shape \(4, 1\)"),
        (replaced(0, np.zeros((1, 4), np.int64)), r"observation should be int64 of .*, got int64 of shape \(1, 4\)"),
        (replaced(0, np.zeros(4)), r"observation should be int64 of .*, got float64 of shape \(4,\)"),
        (replaced(0, np.zeros(4, np.int32)), r"observation should be int64 of .*, got int32 of shape \(4,\)"),
        (replaced(0, [0.0, 0.0, 0.0, 0.0]), r"observation should be int64 of .*, got float64 of shape \(4,\)"),
        (replaced(0, 3), r"observation should be int64 of .*, got int64 of shape \(\)"),
        (replaced(0, None), r"observation should be int64 of .*, got object of shape \(\)"),
        (replaced(1, "much"), r"rewards should be float64 of shape \(\), got <U4 of shape \(\)"),
        (replaced(1, np.zeros(2)), r"rewards should be float64 of shape \(\), got float64 of shape \(2,\)"),
        (replaced(2, np.zeros(2, bool)), r"terminations should be bool of shape \(\), got bool of shape \(2,\)"),
        (replaced(3, np.zeros(2, bool)), r"truncations should be bool of shape \(\), got bool of shape \(2,\)"),
    ],
)
def test_an_output_that_does_not_fit_is_refused_with_the_name_of_its_env(outcome: Callable, message: str):
    with pytest.raises(DataError, match=rf"^env 11: its {message}"):
        stepped(outcome)


@pytest.mark.parametrize(
    "outcome",
    [lambda step, outputs: None, lambda step, outputs: outputs[:4], lambda step, outputs: outputs[0]],
    ids=["nothing", "four values, as before Gymnasium 0.26", "the observation alone"],
)
def test_a_step_that_returns_no_five_values_is_refused_with_the_name_of_its_env(outcome: Callable):
    with pytest.raises((DataError, EnvError), match=r"^env 11"):
        stepped(outcome)


def test_a_leaf_that_does_not_fit_is_refused_with_its_name():
    class Bent(test_envs.Nested):
        def observe(self):
            return super().observe() | {"pair": (0.5, np.zeros((2, 3), np.float32))}

    loop = LoopVectorEnv([test_envs.Nested, Bent])
    with pytest.raises(DataError, match=r"env 1: its observation 'pair/_index_0' should be int64 of shape \(\), got "):
        loop.reset(seed=0)


def test_a_leaf_that_is_missing_is_refused_with_its_name():
    class Bent(test_envs.Nested):
        def observe(self):
            return {key: value for key, value in super().observe().items() if key != "half"}

    loop = LoopVectorEnv([test_envs.Nested, Bent])
    with pytest.raises(DataError, match=r"env 1: its observation 'half' should be float16 .*\(KeyError: 'half'\)"):
        loop.reset(seed=0)


def failing(step: int, outputs: tuple) -> tuple:
    if step == 2:
        raise ZeroDivisionError("no mass")
    return outputs


def test_an_error_in_an_env_names_the_env_and_the_step_of_its_episode():
    with pytest.raises(EnvError, match=r"^env 11, step 2 of its episode: ZeroDivisionError: no mass$") as caught:
        stepped(failing)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_env_that_calls_exit_is_an_error():
    def leave(step: int, outputs: tuple) -> tuple:
        raise SystemExit(3)

    with pytest.raises(EnvError, match=r"^env 11, step 1 of its episode: called sys.exit\(3\)$"):
        stepped(leave)


def test_an_error_in_a_reset_names_the_env():
    class Stuck(test_envs.Counting):
        def reset(self, **kwargs):
            raise FileNotFoundError("no model")

    loop = LoopVectorEnv([test_envs.Counting, Stuck], first_env_index=4)
    with pytest.raises(EnvError, match=r"^env 5, reset: FileNotFoundError: no model$"):
        loop.reset()


def test_envs_with_different_spaces_are_refused():
    makes = [partial(gymnasium.make, "CartPole-v1"), partial(gymnasium.make, "Acrobot-v1")]
    with pytest.raises(UsageError, match=r"^all envs must have the same observation_space, env 6 has .* env 7 has "):
        LoopVectorEnv(makes, first_env_index=6)


def test_episode_seeds_are_taken_only_where_an_episode_begins():
    taken: list[int] = []

    def counted(seeds: Iterator[int]) -> Iterator[int]:
        for seed in seeds:
            taken.append(seed)
            yield seed

    loop = LoopVectorEnv([test_envs.Counting], seeds=[counted(iter([5, 15, 25]))])
    loop.reset()
    for num_taken in (1, 1, 1, 2, 2, 2, 2, 3):  # Episodes of three steps; the step after each takes a seed.
        loop.step(np.array([2]))
        assert len(taken) == num_taken


def test_actions_reach_the_envs_in_their_own_form():
    seen = []

    class Looking(test_envs.Counting):
        def step(self, action):
            seen.append(action)
            return super().step(action)

    loop = LoopVectorEnv([Looking] * 2)
    loop.reset(seed=0)
    loop.step(np.array([3, 6]))
    assert seen == [3, 6] and all(spaces.Discrete(5, start=2).contains(action) for action in seen)
