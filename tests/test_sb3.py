"""MPIVecEnv against Stable-Baselines3's own DummyVecEnv: same seeds and actions, exactly the same of everything.

Jobs import this file on all ranks for its envs; Stable-Baselines3 only where a function's body says so, on the root.
"""

import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import Job, Result, job_environment, mpiexec, run_job
from envs import Counting
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformReward

pytestmark = pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="pip install 'mpi_rollout[sb3]'")


class Rich(Counting):
    """Says something of every kind, of its steps and of its resets; not always the same things."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        self.history = [] if not self.episode else self.history
        began = {"episode_number": self.episode, "seed": seed, "options": options}
        return observation, began | ({"every_second": "reset"} if self.episode % 2 else {})

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        self.history.append(self.step_number)
        info = {
            "step": self.step_number,
            "share": self.step_number / 3,
            "is_odd": bool(self.step_number % 2),
            "single": np.float32(self.seed / 7),
            "short": np.int16(self.seed),
            "pair": np.array([self.seed, self.step_number], np.float32),
            "word": f"env {self.name}",
            "nothing": None,
            "empty": {},
            "history": self.history,  # Which the env goes on writing to.
            "_private": self.episode,
            "deep": {"who": self.name, "deeper": {"action": self.action}} | ({"last": 1.5} if terminated else {}),
        }
        return observation, reward, terminated, truncated, info | ({"TimeLimit.truncated": 7} if terminated else {})


class Several(Counting):
    """Observes a Dict of what Stable-Baselines3 has a use for."""

    observation_space = spaces.Dict(
        {
            "id": Counting.observation_space,
            "kind": spaces.Discrete(1000),
            "bits": spaces.MultiBinary(3),
            "many": spaces.MultiDiscrete([100, 50]),
            "image": spaces.Box(0, 255, (4, 5), np.uint8),
        }
    )
    action_space = spaces.MultiDiscrete([3, 5])

    def step(self, action):
        return super().step(action.sum())

    def observe(self):
        number, image = self.step_number, np.arange(20) + self.name + self.step_number
        return {
            "id": super().observe(),
            "kind": np.int64(number),
            "bits": np.array([number % 2, self.episode % 2, 1], np.int8),
            "many": np.array([number % 100, self.episode % 50]),
            "image": (image % 256).astype(np.uint8).reshape(4, 5),
        }


class Pair(Several):
    """The same as a Tuple, and actions that are real numbers."""

    observation_space = spaces.Tuple(tuple(Several.observation_space.values()))
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def observe(self):
        observation = super().observe()
        return tuple(observation[key] for key in Several.observation_space)


class Drawing(gymnasium.Wrapper):
    """Can be asked for much."""

    render_mode = "rgb_array"

    def __init__(self, env):
        super().__init__(env)
        self.number, self.calls = 3, []

    def render(self):
        return np.full((4, 6, 3), self.unwrapped.name, np.uint8)

    def tell(self, first, second=0, *, word="none"):
        self.calls.append(first)
        return self.unwrapped.name, first, second, word


def cart():
    """Episodes short enough for a few steps of learning to see both kinds of ends."""
    return gymnasium.make("CartPole-v1", max_episode_steps=12)


def draw(limit=4):
    """An env below wrappers."""
    return TransformReward(Drawing(TimeLimit(Counting(), limit)), lambda reward: 2 * reward)


def assert_same(found: Any, expected: Any) -> None:
    """Equal down to types and bits; but NumPy's integers and Python's are the same."""
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
        assert (found == expected and type(found) is type(expected)) or isinstance(found, np.integer), (found, expected)


def assert_same_as_dummy(envs: Any, make: Any, num_steps: int = 60) -> None:
    """Drive both; on the root."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    from mpi_rollout.sb3 import MPIVecEnv

    mine, dummy = MPIVecEnv(envs), DummyVecEnv([make] * envs.num_envs)
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


AGAINST_DUMMY = """
from functools import partial
import gymnasium
import mpi_rollout
from test_sb3 import Pair, Rich, Several, assert_same_as_dummy

cart = partial(gymnasium.make, "CartPole-v1", max_episode_steps=12)
for make, num_envs, arguments in [
    (cart, 7, {}),
    (Rich, 5, {}),
    (Several, 4, {"copy": False}),
    (Pair, 3, {}),
    *MORE,
]:
    with mpi_rollout.connect(make, num_envs, autoreset_mode="same_step", **arguments) as envs:
        if envs is not None:
            assert_same_as_dummy(envs, make)
            print("same")
"""


@pytest.mark.mpi(1, 2, 3)
def test_it_gives_what_dummy_vec_env_gives(job: Job, num_ranks: int):
    result = job.script(num_ranks, AGAINST_DUMMY.replace("*MORE,", ""))
    assert (result.out, result.code) == ("same\n" * 4, 0), result.err


def test_it_gives_all_envs_where_recv_gives_parts(job: Job):
    more = """
    (Rich, 7, {"num_groups": 2}),
    (Several, 7, {"batch_size": 1}),
    (Pair, 6, {"batch_size": 2, "dedicated_root": True}),
"""
    code = AGAINST_DUMMY.replace("*MORE,", more.strip()).replace("(cart, 7, {})", '(cart, 7, {"batch_size": 3})')
    result = job.script(3, code)
    assert (result.out, result.code) == ("same\n" * 7, 0), result.err


def test_infos_that_connect_leaves_out_are_left_out(job: Job):
    result = job.script(
        2,
        """
import mpi_rollout
from test_sb3 import Rich

for infos in ("none", {"step": int}):
    with mpi_rollout.connect(Rich, 3, autoreset_mode="same_step", infos=infos) as envs:
        if envs is not None:
            import numpy as np
            from mpi_rollout.sb3 import MPIVecEnv

            vec_env = MPIVecEnv(envs)
            vec_env.seed(0)
            vec_env.reset()
            for _ in range(3):
                _, _, dones, found = vec_env.step(np.full(3, 2))
            print([sorted(info) for info in found], [info.get("step") for info in found], vec_env.reset_infos)
""",
    )
    ends = ["TimeLimit.truncated", "terminal_observation"]
    none = [[ends, ends[:1], ends[:1]], [None] * 3, [{}] * 3]
    step = [[[*ends[:1], "step", *ends[1:]], [*ends[:1], "step"], [*ends[:1], "step"]], [3] * 3, [{}] * 3]
    expected = "".join(" ".join(map(str, each)) + "\n" for each in (none, step))
    assert (result.out, result.code) == (expected, 0), result.err


def on_two_ranks(job: Job, body: str, make: str = "draw", **arguments: Any) -> str:
    """Run code on the root with `vec_env` of 5 envs, and `dummy` of the same; return what it printed."""
    arguments = {"autoreset_mode": "same_step", **arguments}
    code = f"""
import mpi_rollout
import test_sb3
from test_sb3 import *

with mpi_rollout.connect(test_sb3.{make}, 5, **{arguments}) as envs:
    if envs is not None:
        from stable_baselines3.common.vec_env import *
        from mpi_rollout.sb3 import MPIVecEnv

        vec_env, dummy = MPIVecEnv(envs), DummyVecEnv([test_sb3.{make}] * 5)
        both = vec_env, dummy
        for each in both:
            each.seed(10)
            each.reset()
"""
    result = job.script(2, code + "".join(f"        {line}\n" for line in body.splitlines()))
    assert result.code == 0, result.err
    return result.out


def test_attributes_of_some_envs_can_be_got_and_set(job: Job):
    out = on_two_ranks(
        job,
        """
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
print(vec_env.get_attr("name"))
""",
    )
    assert out == "[10, 11, 12, 13, 14]\n"


def test_a_setting_reaches_the_env_below_its_wrappers(job: Job):
    out = on_two_ranks(
        job,
        """
vec_env.set_attr("step_number", 2)
print(vec_env.step(np.full(5, 2))[0][:, 2])
""",
    )
    assert out == "[0 3 3 3 3]\n"  # The first has ended.


def test_methods_of_envs_can_be_called(job: Job):
    out = on_two_ranks(
        job,
        """
for arguments, named in (((1,), {}), ((2, 3), {"word": "x"}), (([4],), {"second": np.ones(2)})):
    assert_same(vec_env.env_method("tell", *arguments, **named), dummy.env_method("tell", *arguments, **named))
for indices in (0, -1, [0, 2], [4, 1], [3, 4], [4, 3, 2, 1, 0], range(1, 4), []):
    assert_same(*[each.env_method("tell", str(indices), indices=indices) for each in both])
assert_same(vec_env.get_attr("calls"), dummy.get_attr("calls"))
for each in both:
    with pytest.raises(AttributeError, match="missing"):
        each.env_method("missing")
print(vec_env.env_method("tell", 5, indices=[4, 4]), vec_env.get_attr("calls")[3] == dummy.get_attr("calls")[3])
""",
    )
    assert out == "[(14, 5, 0, 'none'), (14, 5, 0, 'none')] True\n"


def test_it_tells_which_wrappers_are_around_the_envs(job: Job):
    out = on_two_ranks(
        job,
        """
from gymnasium.wrappers import OrderEnforcing
for kind in (Drawing, TimeLimit, TransformReward, gymnasium.RewardWrapper, OrderEnforcing):
    for indices in (None, 0, -1, [2, 4], []):
        assert vec_env.env_is_wrapped(kind, indices) == dummy.env_is_wrapped(kind, indices)
    print(vec_env.env_is_wrapped(kind, [3]))
""",
    )
    assert out == "[True]\n" * 4 + "[False]\n"


def test_it_draws_what_dummy_vec_env_draws(job: Job):
    out = on_two_ranks(
        job,
        """
assert_same(vec_env.get_images(), dummy.get_images())
assert_same(vec_env.render(), dummy.render())
assert_same(vec_env.render("rgb_array"), dummy.render("rgb_array"))
with pytest.warns(UserWarning):
    vec_env.render("something_else")
print(vec_env.render().shape)
""",
    )
    assert out == "(12, 12, 3)\n"


def test_without_a_render_mode_there_are_no_images(job: Job):
    out = on_two_ranks(
        job,
        """
with pytest.warns(UserWarning, match="rgb_array"):
    print(vec_env.get_images())
""",
        make="Rich",
    )
    assert out == "[None, None, None, None, None]\n"


def test_seeds_and_options_are_used_once(job: Job):
    out = on_two_ranks(
        job,
        """
for options in (None, {"a": 1}, [{"a": [2]}] * 5, [{}] * 5):
    for each in both:
        each.seed(3)
        each.set_options(options)
    for _ in range(2):
        assert_same(vec_env.reset(), dummy.reset())
        assert_same(vec_env.reset_infos, dummy.reset_infos)
        print([vec_env.reset_infos[4][name] for name in ("seed", "options")])
assert len(set(vec_env.seed())) == 5
vec_env.reset()
print(len({info["seed"] for info in vec_env.reset_infos}))
""",
        make="Rich",
    )
    lines = ["[7, None]", "[7, {'a': 1}]", "[7, {'a': [2]}]", "[7, None]"]
    assert out == "".join(f"{line}\n[None, None]\n" for line in lines) + "5\n"


def test_options_that_differ_between_envs_are_refused(job: Job):
    out = on_two_ranks(
        job,
        """
vec_env.set_options([{"a": i} for i in range(5)])
with pytest.raises(NotImplementedError, match="options must be the same for all envs"):
    vec_env.reset()
vec_env.set_options()
print(vec_env.reset().shape)
""",
    )
    assert out == "(5, 4)\n"


def test_envs_that_reset_in_another_way_are_refused(job: Job):
    result = job.script(
        2,
        """
import mpi_rollout

for mode in ("next_step", "disabled"):
    with mpi_rollout.connect("CartPole-v1", 2, autoreset_mode=mode) as envs:
        if envs is not None:
            from mpi_rollout.sb3 import MPIVecEnv

            try:
                MPIVecEnv(envs)
            except ValueError as error:
                print(error)
""",
    )
    assert result.code == 0, result.err
    first, second = result.out.splitlines()
    assert first.endswith('got autoreset mode NextStep; connect(..., autoreset_mode="same_step")')
    assert second.endswith('got autoreset mode Disabled; connect(..., autoreset_mode="same_step")')


def test_what_is_no_mpi_vector_env_is_refused():
    from mpi_rollout.sb3 import MPIVecEnv

    with pytest.raises(TypeError, match=r"got NoneType.*use it below `if envs is not None:`"):
        MPIVecEnv(None)


def test_nested_observation_spaces_are_refused_as_by_dummy_vec_env(job: Job):
    code = """
import mpi_rollout
from envs import Nested

with mpi_rollout.connect(Nested, 2, autoreset_mode="same_step") as envs:
    if envs is not None:
        from stable_baselines3.common.vec_env import DummyVecEnv
        from mpi_rollout.sb3 import MPIVecEnv

        for make in (lambda: MPIVecEnv(envs), lambda: DummyVecEnv([Nested])):
            try:
                make()
            except NotImplementedError as error:
                print(error)
"""
    result = job.script(2, code)
    assert result.code == 0, result.err
    first, second = result.out.splitlines()
    assert first == second and "Nested observation spaces" in first


def test_without_stable_baselines3_the_message_says_what_to_install():
    code = "import sys; sys.modules['stable_baselines3'] = None; import mpi_rollout.sb3"
    result = subprocess.run([sys.executable, "-c", code], env=job_environment(), capture_output=True, text=True)
    assert result.returncode == 1
    assert "pip install 'mpi_rollout[sb3]'" in result.stderr.splitlines()[-1]


LEARNING = """
import torch
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy

torch.set_num_threads(1)
few = dict(seed=4, device="cpu", batch_size=20)


def learned(model):
    model.learn(160)
    parameters = [parameter.detach().numpy() for parameter in model.policy.parameters()]
    last = [episode[key] for episode in model.ep_info_buffer for key in "rl"]
    returns = evaluate_policy(model, model.get_env(), 7, return_episode_rewards=True, warn=False)
    return parameters, last, returns


def assert_learn_the_same(make):
    found, expected = [learned(make(each)) for each in both]
    assert_same(found, expected)
    returns = found[2]
    print(len(returns[0]))
"""


def test_algorithms_and_wrappers_learn_exactly_as_with_dummy_vec_env(job: Job):
    learn = """
assert_learn_the_same(lambda envs: PPO("MlpPolicy", VecMonitor(envs), n_steps=16, **few))
wrapped = lambda envs: VecMonitor(VecNormalize(VecFrameStack(envs, 3)))
assert_learn_the_same(lambda envs: PPO("MlpPolicy", wrapped(envs), n_steps=16, **few))
assert_learn_the_same(lambda envs: DQN("MlpPolicy", envs, learning_starts=20, **few))
"""
    assert on_two_ranks(job, LEARNING + learn, make="cart") == "7\n7\n7\n"


def test_dict_observations_are_learnt_from(job: Job):
    learn = 'assert_learn_the_same(lambda envs: PPO("MultiInputPolicy", VecMonitor(envs), n_steps=16, **few))'
    assert on_two_ranks(job, LEARNING + learn, make="Several") == "7\n"


def test_closing_it_lets_the_other_ranks_out(job: Job):
    out = on_two_ranks(job, "vec_env.close()\nprint(envs.closed)")
    assert out == "True\n"


def example(job: Job, *options: str, timeout: float = 60.0) -> Result:
    command = [mpiexec(), "-n", "2", sys.executable, "-m", "mpi_rollout.examples.train_ppo", *options]
    return run_job(command, job.folder, timeout)


def test_the_example_fails_if_it_has_not_learnt(job: Job):
    result = example(job, "--num-envs", "8", "--total-steps", "2048", "--seed", "1")
    assert result.code == 1
    assert result.out.startswith("mean return ") and "of 500 over 100 episodes" in result.out, result.err


def test_the_example_learns_to_balance_the_pole_which_takes_long(job: Job):
    result = example(job, timeout=300.0)
    assert result.code == 0, result.err
    assert float(result.out.split()[2]) >= 475
