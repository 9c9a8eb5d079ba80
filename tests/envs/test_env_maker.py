"""What makes envs: an id, a callable, callables by index; and what a file says of them."""

import json
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import Counting
from gymnasium.vector import SyncVectorEnv
from jobs import Job, assert_same_bytes, datasets

from mpi_rollout.core.seeding import Reproducibility, episode_seeds
from mpi_rollout.envs import single_makers
from mpi_rollout.envs.env_maker import EnvMaker, make_slice
from mpi_rollout.errors import UsageError
from mpi_rollout.text import pip_install

pytestmark = pytest.mark.any_mpi


class Level(gymnasium.Wrapper):
    """Says with which arguments it was made."""

    def __init__(self, **given: Any):
        super().__init__(Counting())
        self.given = given


def plain(**given: Any) -> gymnasium.Env:
    return Level(**given)


def indexed(env_index: int, level: int = 0) -> gymnasium.Env:
    return Level(env_index=env_index, level=level)


class Factory:
    def __call__(self, *, env_index: int) -> gymnasium.Env:
        return Level(env_index=env_index)


@pytest.mark.parametrize(
    ("maker", "expected"),
    [
        (EnvMaker(plain), [{}] * 3),
        (EnvMaker(plain, {"level": 4}), [{"level": 4}] * 3),
        (EnvMaker(plain, ({"level": 4}, {}, {"gain": 2})), [{"level": 4}, {}, {"gain": 2}]),
        (EnvMaker(indexed), [{"env_index": index, "level": 0} for index in range(3)]),
        (EnvMaker(indexed, {"env_index": 7}), [{"env_index": 7, "level": 0}] * 3),
        (EnvMaker(partial(indexed, level=3)), [{"env_index": index, "level": 3} for index in range(3)]),
        (EnvMaker(Factory()), [{"env_index": index} for index in range(3)]),
        (EnvMaker(tuple(partial(plain, level=n) for n in range(3))), [{"level": n} for n in range(3)]),
        (EnvMaker((plain, indexed, plain), ({}, {"level": 2}, {"a": 1})), [{}, {"env_index": 1, "level": 2}, {"a": 1}]),
    ],
)  # fmt: skip
def test_each_env_is_made_with_its_own_arguments(maker: EnvMaker, expected: list[dict[str, Any]]):
    maker.check(3)
    assert [make().given for make in maker.functions(range(3))] == expected
    assert maker.functions(range(1, 2))[0]().given == expected[1]


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (EnvMaker((plain,) * 4), "env must have one element for each of the 3 envs, got 4"),
        (EnvMaker(plain, ({}, {})), "env_kwargs must have one element for each of the 3 envs, got 2"),
        (EnvMaker((plain, plain, 5)), "envs are made by an env id or a callable, got 5"),
        (EnvMaker(plain, ({}, {}, 3)), "env_kwargs must be a dict, or a list of one for each env, got 3"),
        (EnvMaker(plain, "level"), "env_kwargs must be a dict, or a list of one for each env, got 'level'"),
    ],
)
def test_what_does_not_describe_every_env_is_refused_with_the_numbers(maker: EnvMaker, message: str):
    with pytest.raises(UsageError) as error:
        maker.check(3)
    assert str(error.value) == message


def test_a_name_stands_for_all_callables():
    assert EnvMaker((plain, indexed, plain)).name == f"{__name__}:plain, {__name__}:indexed"


REGISTERED = """
import gymnasium
from envs import Counting
gymnasium.register("Class-v0", entry_point=Counting, max_episode_steps=9)
gymnasium.register(
    "Vector-v0",
    entry_point=lambda **_: gymnasium.make("CartPole-v1"),
    vector_entry_point=lambda num_envs, **_: gymnasium.make_vec("CartPole-v1", num_envs, "vector_entry_point"),
)
"""


@pytest.mark.mpi(2)
@pytest.mark.parametrize(
    ("env_id", "mode", "entry_point"),
    [("Class-v0", "sync", "envs:Counting"), ("Vector-v0", "vector_entry_point", "own:<lambda>")],
)
def test_envs_that_are_registered_with_a_class_or_a_lambda_run(
    job: Job, num_ranks: int, env_id: str, mode: str, entry_point: str
):
    import h5py

    (job.folder / "own.py").write_text(REGISTERED)
    env = ("--env", f"own:{env_id}", "--vectorization-mode", mode)
    path = job.collect(num_ranks, *env, "--num-envs", "4", "--num-steps", "20", "--progress", "none")
    with h5py.File(path) as file:
        described = json.loads(file.attrs["env_spec"])
    assert (described["id"], described["entry_point"]) == (env_id, entry_point)
    assert job(None, "verify", path).code == 0


LEVELS = """
import gymnasium
from envs import Counting


class Level(gymnasium.RewardWrapper):
    def __init__(self, level=0, env_index=None):
        super().__init__(Counting())
        self.level = level

    def reward(self, reward):
        return float(self.level)


def by_index(env_index, gain=1):
    return Level(gain * env_index)
"""


def test_envs_differ_by_index_and_the_data_are_those_of_any_number_of_ranks(job: Job):
    (job.folder / "levels.py").write_text(LEVELS)
    sizes = ("--num-envs", "5", "--num-steps", "20", "--progress", "none", "--measure-limit", "--limit-s", "0.01")
    indexed = ("--env-factory", "levels:by_index", "--env-kwargs", '{"gain": 3}')
    listed = ("--env-factory", "levels:Level", "--env-kwargs", json.dumps([{"level": 3 * n} for n in range(5)]))
    first, other = (
        datasets(job.collect(num_ranks, *env, *sizes, out=f"{num_ranks}.h5"))
        for num_ranks, env in [(None, indexed), (3, listed)]
    )
    assert first["rewards"][0].tolist() == [0, 3, 6, 9, 12]
    assert_same_bytes(first, other)


def test_a_replay_makes_the_env_of_each_index(job: Job):
    (job.folder / "levels.py").write_text(LEVELS.replace("Counting()", 'gymnasium.make("CartPole-v1")'))
    kwargs = ("--env-kwargs", json.dumps([{"level": n} for n in range(3)]))
    env = ("--env-factory", "levels:Level", *kwargs)
    path = job.collect(None, *env, "--num-envs", "3", "--num-steps", "99", "--progress", "none")
    result = job(None, "verify", path, "--replay", "9", *env)
    assert result.code == 0 and "9 episodes" in result.out, result.err


def test_a_callable_that_gives_the_same_env_again_is_refused(job: Job):
    (job.folder / "once.py").write_text("import gymnasium\nENV = gymnasium.make('CartPole-v1')\ndef make(): return ENV")
    result = job(None, "--env-factory", "once:make", "--num-envs", "2", "--out", "run.h5")
    assert result.code == 64 and result.messages[0].startswith("env 0 and env 1 are the same object; ")


def test_a_package_that_an_env_needs_is_to_be_installed_and_one_that_is_named_may_be_misspelt():
    def needy() -> gymnasium.Env:
        raise gymnasium.error.DependencyNotInstalled("moviepy is not installed, run `pip install moviepy`")

    with pytest.raises(UsageError, match=r"`pip install moviepy`; install it$"):
        EnvMaker(needy)()
    with pytest.raises(UsageError, match=r"No module named 'no_such'.*; install it, or correct the name before the"):
        EnvMaker("no_such:Env-v0")()


@pytest.mark.parametrize(
    ("env_id", "way_out"),
    [
        ("ALE/Pong-v5", "; " + pip_install("[atari]")),
        ("PandaReach-v3", "; pip install panda-gym"),
        ("dm_control/walker-walk-v0", "; " + pip_install("[dm]")),
        ("Unknown/Env-v0", "; if a package registers it, put its module before a colon, as in ale_py:ALE/B"),
        ("no_such:ALE/Pong-v5", ""),
    ],
)
def test_an_unknown_id_is_refused_with_the_package_that_registers_it(env_id: str, way_out: str):
    namespace = env_id.partition("/")[0]
    error = gymnasium.error.NamespaceNotFound(f"Namespace {namespace} not found. Have you installed the package?")
    words = single_makers.of_unknown_id(env_id, error)
    assert words.startswith(f"Namespace {namespace} not found{way_out}")
    assert words.endswith(way_out) or "Unknown" in env_id


def test_the_well_known_package_that_registers_an_id_is_imported(monkeypatch: pytest.MonkeyPatch):
    def register(module: str) -> None:
        assert module == "panda_gym"
        gymnasium.registry.pop("PandaNew-v0", None)
        gymnasium.register("PandaNew-v0", entry_point=Counting)

    monkeypatch.setattr(single_makers, "find_spec", lambda module: object())
    monkeypatch.setattr(single_makers, "import_module", register)
    assert isinstance(EnvMaker("PandaNew-v0")().unwrapped, Counting)
    with pytest.raises(UsageError, match="Environment `PandaOld` doesn't exist"):
        EnvMaker("PandaOld-v0")()


def test_an_id_with_a_spelling_mistake_is_refused_in_gymnasiums_words():
    with pytest.raises(UsageError, match=r"CartPol` doesn't exist\. Did you mean: `CartPole`\?$"):
        EnvMaker("CartPol-v1")()


def test_natively_vectorized_envs_have_an_id():
    envs = EnvMaker("CartPole-v1", {"sutton_barto_reward": True}, "vector_entry_point").native(range(3))
    assert envs.num_envs == 3
    with pytest.raises(UsageError) as error:
        EnvMaker(plain, vectorization_mode="vector_entry_point").native(range(3))
    assert f" vector_entry_point needs the id of a registered env, got {__name__}:plain" in str(error.value)


def test_arguments_that_do_not_fit_are_told_from_mistakes_of_the_env():
    def mistaken() -> None:
        return len(5)

    with pytest.raises(UsageError, match=r"{'level': 3} do not fit .*mistaken: .* unexpected keyword argument 'level'"):
        EnvMaker(mistaken, {"level": 3})()
    with pytest.raises(TypeError, match="has no len"):
        EnvMaker(mistaken)()


def test_envs_that_are_seeded_once_go_on_as_in_gymnasium():
    envs = make_slice(EnvMaker("CartPole-v1", has_episode_seeds=False), range(2, 5), seed=7)
    same = SyncVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 3)
    seeds = [next(episode_seeds(7, index)) for index in range(2, 5)]
    assert np.array_equal(envs.reset()[0], same.reset(seed=seeds)[0])
    for step in range(100):
        actions = np.arange(step, step + 3) % 2
        assert all(map(np.array_equal, envs.step(actions)[:4], same.step(actions)[:4]))
    assert (envs.reproducibility, envs.has_episode_seeds) == (Reproducibility.ENV, False)
