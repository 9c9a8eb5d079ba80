"""What tests have `MPIVecEnv` and Stable-Baselines3's own DummyVecEnv do side by side, in one job on some ranks.

Stable-Baselines3 is imported only where a function's body says so, on the root: that takes longer than all else that
the tests of it do, so one job makes many checks.
"""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import Nested
from gymnasium.wrappers import OrderEnforcing, TimeLimit, TransformReward
from sb3_envs import Doubles, Drawing, Pair, Rich, Several, Unlike, cart, draw

import mpi_rollout


def assert_same(found: Any, expected: Any) -> None:
    """Equal down to types and bits."""
    if isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, dict):
        assert isinstance(found, dict) and found.keys() == expected.keys(), (found, expected)
        for key in expected:
            assert_same(found[key], expected[key])
    elif isinstance(expected, tuple | list):
        assert type(found) is type(expected) and len(found) == len(expected), (found, expected)
        for each in zip(found, expected, strict=True):
            assert_same(*each)
    else:
        assert found == expected and type(found) is type(expected), (found, expected)


def pair(envs: Any, make: Callable[[], gymnasium.Env]) -> tuple[Any, Any]:
    """Both around the same envs."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    from mpi_rollout.sb3 import MPIVecEnv

    return MPIVecEnv(envs), DummyVecEnv([make] * envs.num_envs)


def stepping(envs: Any, make: Callable[[], gymnasium.Env], num_steps: int = 60) -> None:
    """All that is returned is the same, in steps and in resets with seeds and without."""
    mine, dummy = pair(envs, make)
    assert (mine.observation_space, mine.action_space) == (dummy.observation_space, dummy.action_space)
    assert (mine.num_envs, mine.render_mode, mine.metadata) == (dummy.num_envs, dummy.render_mode, dummy.metadata)
    mine.action_space.seed(1)
    num_ends, before = 0, ([], [])
    for seed in (5, 6):
        assert mine.seed(seed) == dummy.seed(seed)
        for _ in range(2):  # The second time without seeds.
            assert_same(mine.reset(), dummy.reset())
            assert_same(mine.reset_infos, dummy.reset_infos)
            for _ in range(num_steps // 4):
                actions = np.array([mine.action_space.sample() for _ in range(mine.num_envs)])
                found, expected = mine.step(actions), dummy.step(actions)
                assert_same(found, expected)
                assert_same(mine.reset_infos, dummy.reset_infos)
                assert_same(*before)  # What the envs have done since does not reach it.
                before = found[3], expected[3]
                num_ends += int(found[2].sum())
    assert num_ends > mine.num_envs


def begun(envs: Any, make: Callable[[], gymnasium.Env]) -> tuple[Any, Any]:
    """Both after a reset with a seed."""
    both = pair(envs, make)
    for each in both:
        each.seed(10)
        each.reset()
    return both


def attributes(envs: Any, make: Callable[[], gymnasium.Env]) -> list[int]:
    """Attributes of some envs are got and set."""
    vec_env, dummy = both = begun(envs, make)
    for number, indices in enumerate([None, 0, 4, -1, [0, 2], [4, 1, 1], [-2, 0], range(1, 4), np.array([3]), (), []]):
        assert_same(vec_env.get_attr("name", indices), dummy.get_attr("name", indices))
        for each in both:
            assert each.set_attr("number", number, indices) is None
        assert_same(vec_env.get_attr("number"), dummy.get_attr("number"))
    for value in ([1, 2, 3, 4, 5], (1, 2), "text", {"a": np.ones(2)}):
        for each in both:
            each.set_attr("number", value, [1, -1])
        assert_same(vec_env.get_attr("number"), dummy.get_attr("number"))
    for each in both:
        each.set_attr("new", 1)
    assert_same(vec_env.get_attr("new"), dummy.get_attr("new"))
    for name in ("name", "number", "new", "tell", "spec", "missing"):
        assert vec_env.has_attr(name) == dummy.has_attr(name) == (name != "missing")
    for each in both:
        for indices in (5, [0, -6]):
            with pytest.raises(IndexError):
                each.get_attr("name", indices)
        with pytest.raises(AttributeError, match="missing"):
            each.get_attr("missing")
    return vec_env.get_attr("name")


def a_setting(envs: Any, make: Callable[[], gymnasium.Env]) -> list[int]:
    """What the env below its wrappers makes of a setting."""
    vec_env, _ = begun(envs, make)
    vec_env.set_attr("step_number", 2)
    return vec_env.step(np.full(5, 2))[0][:, 2].tolist()


def methods(envs: Any, make: Callable[[], gymnasium.Env]) -> list[Any]:
    """Methods of envs are called."""
    vec_env, dummy = both = begun(envs, make)
    for arguments, named in (((1,), {}), ((2, 3), {"word": "x"}), (([4],), {"second": np.ones(2)})):
        assert_same(*[each.env_method("tell", *arguments, **named) for each in both])
    for indices in (0, -1, [0, 2], [4, 1], [3, 4], [4, 3, 2, 1, 0], range(1, 4), []):
        assert_same(*[each.env_method("tell", str(indices), indices=indices) for each in both])
    assert_same(vec_env.get_attr("calls"), dummy.get_attr("calls"))
    for each in both:
        with pytest.raises(AttributeError, match="missing"):
            each.env_method("missing")
    told = [each.env_method("tell", 5, indices=[4, 4]) for each in both]
    assert_same(*told)
    assert vec_env.get_attr("calls")[3] == dummy.get_attr("calls")[3]
    return told[0]


def wrappers(envs: Any, make: Callable[[], gymnasium.Env]) -> list[bool]:
    """Which wrappers are around the envs."""
    vec_env, dummy = begun(envs, make)
    kinds = (Drawing, TimeLimit, TransformReward, gymnasium.RewardWrapper, OrderEnforcing)
    for kind in kinds:
        for indices in (None, 0, -1, [2, 4], []):
            assert vec_env.env_is_wrapped(kind, indices) == dummy.env_is_wrapped(kind, indices)
    return [is_wrapped for kind in kinds for is_wrapped in vec_env.env_is_wrapped(kind, [3])]


def drawing(envs: Any, make: Callable[[], gymnasium.Env]) -> tuple[int, ...]:
    """Frames of one env and of all."""
    vec_env, dummy = begun(envs, make)
    assert_same(vec_env.get_images(), dummy.get_images())
    assert_same(vec_env.render(), dummy.render())
    assert_same(vec_env.render("rgb_array"), dummy.render("rgb_array"))
    with pytest.warns(UserWarning):
        vec_env.render("something_else")
    return vec_env.render().shape


def no_drawing(envs: Any, make: Callable[[], gymnasium.Env]) -> list[Any]:
    """What there is to see of envs without a render mode."""
    vec_env, _ = begun(envs, make)
    with pytest.warns(UserWarning, match="rgb_array"):
        return vec_env.get_images()


def seeds_and_options(envs: Any, make: Callable[[], gymnasium.Env]) -> tuple[list[Any], int]:
    """What env 4 was given in two resets after each setting; how many seeds five envs get where none is said."""
    vec_env, dummy = both = begun(envs, make)
    given = []
    each_its_own = [{"a": index} for index in range(5)]
    for options in (None, {"a": 1}, [{"a": [2]}] * 5, [{}] * 5, each_its_own):
        for each in both:
            each.seed(3)
            each.set_options(options)
        for _ in range(2):
            assert_same(vec_env.reset(), dummy.reset())
            assert_same(vec_env.reset_infos, dummy.reset_infos)
            given.append([vec_env.reset_infos[4][name] for name in ("seed", "options")])
    assert len(set(vec_env.seed())) == 5
    vec_env.reset()
    return given, len({info["seed"] for info in vec_env.reset_infos})


def infos(envs: Any, make: Callable[[], gymnasium.Env]) -> tuple[list[Any], list[Any], list[Any]]:
    """Names of infos in the third step, the info `step` there, and what the reset told."""
    from mpi_rollout.sb3 import MPIVecEnv

    vec_env = MPIVecEnv(envs)
    vec_env.seed(0)
    vec_env.reset()
    for _ in range(3):
        *_, found = vec_env.step(np.full(3, 2))
    return [sorted(info) for info in found], [info.get("step") for info in found], vec_env.reset_infos


def refusal(envs: Any, make: Callable[[], gymnasium.Env]) -> str:
    """Why these envs are not taken."""
    from mpi_rollout.sb3 import MPIVecEnv

    with pytest.raises((ValueError, NotImplementedError)) as caught:
        MPIVecEnv(envs)
    return str(caught.value)


def refusal_by_both(envs: Any, make: Callable[[], gymnasium.Env]) -> str:
    """Why they are not taken, in the same words by DummyVecEnv."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    with pytest.raises(NotImplementedError) as caught:
        DummyVecEnv([make])
    assert refusal(envs, make) == str(caught.value)
    return str(caught.value)


def closing(envs: Any, make: Callable[[], gymnasium.Env]) -> bool:
    vec_env, _ = begun(envs, make)
    vec_env.close()
    return envs.closed


def learned(model: Any) -> tuple[Any, ...]:
    """All parameters after some learning, the last episodes, and what an evaluation gives."""
    from stable_baselines3.common.evaluation import evaluate_policy

    model.learn(160)
    parameters = [parameter.detach().numpy() for parameter in model.policy.parameters()]
    last = [episode[key] for episode in model.ep_info_buffer for key in "rl"]
    returns = evaluate_policy(model, model.get_env(), 7, return_episode_rewards=True, warn=False)
    return parameters, last, returns


def num_learnt_the_same(envs: Any, make: Callable[[], gymnasium.Env], algorithm: str, wrap: str, **more: Any) -> int:
    """The number of episodes of an evaluation, after both have learnt exactly the same."""
    import stable_baselines3
    import torch
    from stable_baselines3.common import vec_env

    torch.set_num_threads(1)
    policy = "MultiInputPolicy" if make is Several else "MlpPolicy"
    both = begun(envs, make)
    for name in wrap.split():
        kind = getattr(vec_env, name)
        both = [kind(each, 3) if name == "VecFrameStack" else kind(each) for each in both]
    make_model = partial(getattr(stable_baselines3, algorithm), policy, seed=4, device="cpu", batch_size=20, **more)
    found, expected = [learned(make_model(each)) for each in both]
    assert_same(found, expected)
    return len(found[2][0])


def evaluating(envs: Any, make: Callable[[], gymnasium.Env]) -> float:
    """Learning with local envs for evaluation gives what it gives with two DummyVecEnvs."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import EvalCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

    torch.set_num_threads(1)
    results = []
    for train in pair(envs, make):
        test = VecMonitor(DummyVecEnv([make] * 3))
        train.seed(3)
        test.seed(4)
        callback = EvalCallback(test, eval_freq=5, n_eval_episodes=4, verbose=0)
        model = PPO("MlpPolicy", VecMonitor(train), n_steps=16, seed=1, device="cpu").learn(160, callback=callback)
        parameters = [parameter.detach().numpy() for parameter in model.policy.parameters()]
        results.append((parameters, callback.last_mean_reward))
    assert_same(*results)
    return callback.last_mean_reward


ppo = partial(num_learnt_the_same, algorithm="PPO", n_steps=16)


@dataclass(frozen=True)
class Check:
    """A function to be called on the root with connected envs, and with what makes one of them."""

    function: Callable[[Any, Callable[[], gymnasium.Env]], Any]
    make: Callable[[], gymnasium.Env] = draw
    num_envs: int = 5
    options: dict[str, Any] = field(default_factory=dict)


CHECKS: dict[str, Check] = {
    "steps of CartPole": Check(stepping, cart, 7),
    "steps with infos": Check(stepping, Rich),
    "steps with infos of other kinds": Check(stepping, Unlike),
    "steps of a Dict": Check(stepping, Several, 4, {"copy": False}),
    "steps of a Tuple": Check(stepping, Pair, 3),
    "CartPole, ready by three": Check(stepping, cart, 7, {"batch_size": 3}),
    "infos, groups": Check(stepping, Rich, 7, {"num_groups": 2}),
    "Dict, ready singly": Check(stepping, Several, 7, {"batch_size": 1}),
    "Tuple, ready by two": Check(stepping, Pair, 6, {"batch_size": 2, "root_envs": 0}),
    "no infos": Check(infos, Rich, 3, {"infos": "none"}),
    "one info": Check(infos, Rich, 3, {"infos": {"step": int}}),
    "attributes": Check(attributes),
    "a setting": Check(a_setting),
    "methods": Check(methods),
    "wrappers": Check(wrappers),
    "drawing": Check(drawing),
    "no drawing": Check(no_drawing, Rich),
    "seeds and options": Check(seeds_and_options, Rich),
    "steps of doubles": Check(stepping, Doubles, 3),
    "next step": Check(refusal, cart, 2, {"autoreset_mode": "next_step"}),
    "disabled": Check(refusal, cart, 2, {"autoreset_mode": "disabled"}),
    "nested": Check(refusal_by_both, Nested, 2),
    "PPO": Check(partial(ppo, wrap="VecMonitor"), cart),
    "PPO in wrappers": Check(partial(ppo, wrap="VecFrameStack VecNormalize VecMonitor"), cart),
    "DQN": Check(partial(num_learnt_the_same, algorithm="DQN", wrap="", learning_starts=20), cart),
    "PPO from doubles": Check(partial(ppo, wrap="VecNormalize VecMonitor"), Doubles),
    "PPO from a Dict": Check(partial(ppo, wrap="VecMonitor"), Several),
    "evaluating": Check(evaluating, cart),
    "closing": Check(closing),
}


def checked(names: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """Make these checks, one connection after the other; on the root what each returned, and where it failed."""
    found = {}
    for name in names:
        check = CHECKS[name]
        options = {"autoreset_mode": "same_step"} | check.options
        with mpi_rollout.connect(check.make, check.num_envs, wait="sleep", **options) as envs:  # The root learns long.
            if envs is not None:
                found[name] = attempted(check, envs)
    return found


def attempted(check: Check, envs: Any) -> tuple[Any, str]:
    try:
        return check.function(envs, check.make), ""
    except BaseException:  # The ranks are to go on to the next check.
        return None, traceback.format_exc()
