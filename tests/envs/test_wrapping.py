"""`--wrappers` and `connect(wrappers=...)`: each env in its wrappers, wherever envs are made."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from envs import Nested
from gymnasium.wrappers import FlattenObservation
from jobs import Collected, Job, Start, assert_same_bytes, collected_in_ways, datasets
from wrapping import Raised, doubled, forgetful, raising

import mpi_rollout
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.envs.wrapping import named_wrappers
from mpi_rollout.errors import EnvError, UsageError

pytestmark = pytest.mark.any_mpi

BOTH = "gymnasium.wrappers:FlattenObservation,wrapping:doubled"
SIZES = ("--num-envs", "5", "--num-steps", "40", "--seed", "4", "--progress", "none")
RUN = ("--env", "Blackjack-v1", "--wrappers", BOTH, *SIZES)
POLE = ("--env", "CartPole-v1", "--wrappers", "gymnasium.wrappers:FlattenObservation", *SIZES)


@pytest.mark.parametrize(("order", "reward"), [("doubled,wrapping:Raised", 3.0), ("Raised,wrapping:doubled", 4.0)])
def test_the_first_wrapper_is_the_innermost(order: str, reward: float):
    env = EnvMaker("CartPole-v1", wrappers=named_wrappers(f"wrapping:{order}"))()
    env.reset(seed=1)
    assert env.step(0)[1] == reward


@pytest.mark.parametrize(
    ("wrappers", "kind", "message"),
    [
        (forgetful, UsageError, "wrappers wrapping:forgetful must return an env, got None; does it lack a return?"),
        ("wrapping:raising", EnvError, "wrappers wrapping:raising raises ZeroDivisionError: no luck (wrapping.py, "),
        ([doubled, raising], EnvError, "wrappers wrapping:raising raises ZeroDivisionError"),
        ("gymnasium.wrappers:TimeLimit", UsageError, "wrappers gymnasium.wrappers:TimeLimit takes other arguments "
         "than an env (missing a required argument: 'max_episode_steps'); give a callable of your own that"),
        ("wrapping:doubld", UsageError, "wrappers wrapping:doubld: module 'wrapping' has no attribute 'doubld'; did "
         "you mean doubled?"),
        ("wrapping:doubled,", UsageError, "wrappers must be MODULE:CALLABLE or FILE.py:CALLABLE, got ''"),
        ([doubled, 3], UsageError, "wrappers must be callables, or their names, got 3"),
        (3, UsageError, "wrappers must be callables, or their names, got 3"),
    ],
)  # fmt: skip
def test_a_wrapper_that_cannot_work_is_named_in_one_line(wrappers: Any, kind: type[Exception], message: str):
    with pytest.raises(kind) as raised:
        mpi_rollout.connect("CartPole-v1", 2, wrappers=wrappers)
    assert message in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("mode", ["envpool", "vector_entry_point"])
def test_natively_vectorized_envs_have_no_wrappers(mode: str):
    with pytest.raises(UsageError, match=f"are for single envs, got {mode}; leave .* vectorization_mode sync$"):
        mpi_rollout.connect("CartPole-v1", 2, wrappers=doubled, vectorization_mode=mode)


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    """Two runs in one process, and half of the first; the first alone on some ranks."""

    def ways_of(name: str, num_ranks: int | None) -> list[tuple[str, ...]]:
        return [()] * (name == "cards" or not num_ranks) + [("--num-steps", "20")] * (not num_ranks)

    return collected_in_ways(tmp_path_factory, {"cards": RUN, "pole": POLE}, ways_of)


@pytest.mark.mpi(2, 3)
def test_wrapped_envs_give_the_same_bytes_on_any_number_of_ranks(collected: Collected, num_ranks: int):
    [path] = collected(num_ranks)["cards"]
    data = datasets(path)
    assert_same_bytes(data, datasets(collected(None)["cards"][0]))
    assert data["observations"].shape == (41, 5, 32 + 11 + 2) and {*np.unique(data["rewards"])} <= {-2.0, 0.0, 2.0}
    with h5py.File(path) as file:
        assert json.loads(file.attrs["config"])["wrappers"] == BOTH


def test_commands_that_make_the_envs_of_a_file_wrap_them_if_the_user_names_the_wrappers(job: Job, collected: Collected):
    (whole, half), (pole, _) = collected(None).values()
    make = RUN[:4]
    (job.folder / "half.h5").write_bytes(half.read_bytes())
    other_wrappers, alone, same, gymnasiums, other, extended = job.series(
        [
            Start(("verify", whole, "--replay", "4", *make[:2])),
            Start(("verify", whole, "--replay", "4")),
            Start(("verify", whole, "--replay", "4", *make)),
            Start(("verify", pole, "--replay", "4")),
            Start((*RUN[:3], "wrapping:doubled", *SIZES, "--out", "half.h5")),
            Start((*RUN, "--out", "half.h5")),
        ]
    )
    assert f"is of --env Blackjack-v1 --wrappers {BOTH}, got --env Blackjack-v1; give the same" in other_wrappers.err
    assert alone.code == 64 and f"--wrappers {BOTH}; add that if it is what you expect" in alone.err
    assert (same.code, gymnasiums.code) == (0, 0) and "every byte the same" in same.out, same.err + gymnasiums.err
    assert other.code == 64 and f'--wrappers was "{BOTH}", is "wrapping:doubled"' in other.messages[0]
    assert extended.code == 0, extended.err
    assert_same_bytes(datasets(job.folder / "half.h5"), datasets(whole))


def test_a_trainers_envs_are_those_of_gymnasium_in_these_wrappers(tmp_path: Path):
    path = tmp_path / "trainer.h5"
    wrappers = ["gymnasium.wrappers:FlattenObservation", Raised]
    with mpi_rollout.connect(Nested, 3, wrappers=wrappers, record=path) as envs:
        expected = gymnasium.vector.SyncVectorEnv([lambda: Raised(FlattenObservation(Nested()))] * 3)
        assert envs.single_observation_space == expected.single_observation_space
        assert (envs.reset(seed=3)[0] == expected.reset(seed=3)[0]).all()
        expected.action_space.seed(0)
        for actions in [expected.action_space.sample() for _ in range(20)]:
            for ours, theirs in zip(envs.step(actions)[:4], expected.step(actions)[:4], strict=True):
                np.testing.assert_array_equal(ours, theirs)
    with h5py.File(path) as file:
        assert json.loads(file.attrs["config"])["wrappers"] == "gymnasium.wrappers:FlattenObservation,wrapping:Raised"
