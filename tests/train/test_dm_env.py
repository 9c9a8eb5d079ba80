"""MPIEnvironment: time steps of all envs as dm_env has them, beside EnvPool's own."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import Nested
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from jobs import Job
from single_rank import vector_env_of

dm_env = pytest.importorskip("dm_env")
from dm_env import specs  # noqa: E402

from mpi_rollout.dm_env import MPIEnvironment, spec_of  # noqa: E402

NUM_ENVS = 3
Make = Callable[..., MPIEnvironment]


def cart(max_episode_steps: int | None = None) -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=max_episode_steps)


@pytest.fixture
def made() -> Iterator[Make]:
    """Make the envs of one process; they are closed at the end."""
    environments = []

    def make(env: Callable[[], gymnasium.Env] = cart, seed: int | None = 1, **options: Any) -> MPIEnvironment:
        environments.append(MPIEnvironment(vector_env_of(env, NUM_ENVS, **options), seed))
        return environments[-1]

    yield make
    for environment in environments:
        environment.close()


def walk(environment: Any, num_steps: int, draw: Callable[[int], np.ndarray]) -> list[Any]:
    return [environment.reset()] + [environment.step(draw(step)) for step in range(num_steps)]


def falling(step: int) -> np.ndarray:
    """To the right in the first env, by turns to both sides in the others, which stay up longer."""
    return np.array([1, step % 2, (step + 1) % 2], np.int32)


def in_a_row(timesteps: list[Any], name: str) -> np.ndarray:
    return np.array([getattr(timestep, name) for timestep in timesteps])


def test_it_gives_what_gymnasium_gives_with_the_kinds_of_steps(made: Make):
    beside = SyncVectorEnv([cart] * NUM_ENVS)
    first, *others = walk(made(), 60, falling)
    assert first.observation.tobytes() == beside.reset(seed=1)[0].tobytes() and first.first().all()
    was_last = np.zeros(NUM_ENVS, np.bool_)
    for step, timestep in enumerate(others):
        observations, rewards, terminations, truncations, _ = beside.step(falling(step))
        assert timestep.observation.tobytes() == observations.tobytes()
        assert timestep.reward.tobytes() == rewards.tobytes()
        assert np.array_equal(timestep.last(), terminations | truncations)
        assert np.array_equal(timestep.first(), was_last)
        assert np.array_equal(timestep.discount, np.where(terminations, 0, 1))
        was_last = timestep.last()
    assert in_a_row(others, "step_type")[:, 0].tolist().count(2) > 4


def test_dtypes_are_those_of_the_specs(made: Make):
    environment = made()
    for timestep in walk(environment, 2, falling):
        assert (timestep.step_type.dtype, timestep.step_type.shape) == (np.int32, (NUM_ENVS,))
        for rows, spec in (
            (timestep.reward, environment.reward_spec()), (timestep.discount, environment.discount_spec()),
            (timestep.observation, environment.observation_spec()),
        ):  # fmt: skip
            for row in rows:
                spec.validate(row)
    environment.action_spec().validate(np.int64(1))


def test_step_types_rewards_and_discounts_are_those_of_envpool(made: Make):
    """Until the first env has ended twice; where episodes are cut, the discount is another one."""
    envpool = pytest.importorskip("envpool")
    for limit in (500, 8):
        theirs = envpool.make_dm("CartPole-v1", num_envs=NUM_ENVS, max_episode_steps=limit, seed=1)
        ours = made(partial(cart, limit))
        rows = [walk(environment, 40, falling) for environment in (theirs, ours)]
        if limit == 8:
            assert np.array_equal(*(in_a_row(steps, "step_type")[:, 1:] for steps in rows))
        for steps, discount_of_cut in zip(rows, (0, 1), strict=True):
            kinds = in_a_row(steps, "step_type")
            assert kinds.dtype == np.int32 and kinds.shape == (41, NUM_ENVS)
            assert np.array_equal(kinds[1:] == 0, kinds[:-1] == 2)
            assert np.array_equal(in_a_row(steps, "reward"), kinds != 0)
            discount = discount_of_cut if limit == 8 else 0
            assert np.array_equal(in_a_row(steps, "discount"), np.where(kinds == 2, discount, 1))
        for name in ("reward_spec", "discount_spec"):
            assert getattr(theirs, name)() == getattr(ours, name)()
        their_spec, spec = theirs.observation_spec().obs, ours.observation_spec()
        assert (their_spec.shape, their_spec.dtype) == (spec.shape, spec.dtype)
        assert np.allclose(their_spec.minimum, spec.minimum) and theirs.action_spec().num_values == 2


def test_the_first_step_resets_and_only_the_first_reset_seeds(made: Make):
    stepped, reset = made(), made()
    first, again = stepped.step(falling(0)), reset.reset()
    assert first.first().all() and first.observation.tobytes() == again.observation.tobytes()
    assert stepped.reset().observation.tobytes() != first.observation.tobytes()


def test_a_reset_amid_episodes_begins_all_of_them(made: Make):
    environment = made(partial(cart, 1))
    assert environment.reset().first().all() and environment.step(falling(0)).last().all()
    assert environment.reset().first().all() and environment.step(falling(0)).last().all()
    assert environment.step(falling(0)).first().all()


def test_nested_observations_and_actions_have_nested_specs(made: Make):
    environment = made(Nested)
    timestep = environment.reset()
    space = environment.envs.single_observation_space
    assert timestep.observation.keys() == environment.observation_spec().keys() == space.spaces.keys()
    assert environment.step(environment.envs.action_space.sample()).mid().all()


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (gymnasium.spaces.Discrete(3), specs.DiscreteArray(3, np.int64, "x")),
        (gymnasium.spaces.Discrete(3, start=2), specs.BoundedArray((), np.int64, 2, 4, "x")),
        (gymnasium.spaces.Box(-1, 1, (2,)), specs.BoundedArray((2,), np.float32, [-1, -1], [1, 1], "x")),
        (gymnasium.spaces.Box(-np.inf, np.inf, (2,)), specs.Array((2,), np.float32, "x")),
        (gymnasium.spaces.MultiBinary(2), specs.BoundedArray((2,), np.int8, [0, 0], [1, 1], "x")),
        (gymnasium.spaces.MultiDiscrete([2, 5]), specs.BoundedArray((2,), np.int64, [0, 0], [1, 4], "x")),
        (gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2)]), (specs.DiscreteArray(2, np.int64, "x_0"),)),
        (gymnasium.spaces.Dict(y=gymnasium.spaces.Discrete(2)), {"y": specs.DiscreteArray(2, np.int64, "y")}),
    ],
)
def test_a_space_has_a_spec(space: gymnasium.Space, expected: Any):
    assert spec_of(space, "x") == expected


def test_what_is_no_mpi_vector_env_is_refused():
    with pytest.raises(TypeError, match=r"got NoneType.*use it below `if envs is not None:`"):
        MPIEnvironment(None)


def test_envs_that_reset_in_another_way_are_refused(made: Make):
    with pytest.raises(
        ValueError, match=r"got autoreset mode SameStep; connect\(\.\.\., autoreset_mode=\"next_step\"\)"
    ):
        made(autoreset_mode=AutoresetMode.SAME_STEP)


ON_RANKS = """
import hashlib
import numpy as np
import mpi_rollout

with mpi_rollout.connect("CartPole-v1", 5) as envs:
    if envs is not None:
        from mpi_rollout.dm_env import MPIEnvironment

        with MPIEnvironment(envs, seed=3) as env:
            steps = [env.reset()] + [env.step(np.arange(5) % 2) for _ in range(50)]
            print(hashlib.sha256(b"".join(part.tobytes() for step in steps for part in step)).hexdigest())
"""


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_the_time_steps_do_not_depend_on_the_number_of_ranks(job: Job, num_ranks: int):
    few, many = job.script(None, ON_RANKS), job.script(num_ranks, ON_RANKS)
    assert (few.code, many.code) == (0, 0), many.err
    assert few.out == many.out != ""
