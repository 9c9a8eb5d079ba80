"""Observations whose dtype is not that of their space: cast as by Gymnasium's `SyncVectorEnv`, or refused."""

import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from casual_envs import FLOATS, Casual
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from jobs import Job, datasets
from noticing import note_only, noted
from oracle import record

from mpi_rollout.core.spaces import leaves
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.outputs import is_exact
from mpi_rollout.errors import DataError, as_argument, as_flag

NEXT_STEP, SAME_STEP = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP


BYTES = spaces.Box(0, 255, (2,), np.uint8)
INTS = spaces.Box(-100, 100, (2,), np.int16)
NESTED = spaces.Dict(a=FLOATS, b=spaces.Tuple((INTS, spaces.Discrete(9))))
CAST: dict[str, tuple[spaces.Space, Callable[[int], Any], str]] = {  # Space, observation, what is warned of.
    "float64": (FLOATS, lambda n: np.array([n / 3, 0.1]), "observation is float64, its space is float32"),
    "big-endian": (FLOATS, lambda n: np.array([n / 3, 0.1], ">f4"), "observation is >f4, its space is float32"),
    "ints as floats": (FLOATS, lambda n: np.array([n, 7]), "observation is int64, its space is float32"),
    "bools as floats": (FLOATS, lambda n: np.array([n > 1, True]), "observation is bool, its space is float32"),
    "list of floats": (FLOATS, lambda n: [n / 3, 0.1], "observation is float64, its space is float32"),
    "tuple of ints": (FLOATS, lambda n: (n, 7), "observation is int64, its space is float32"),
    "small ints": (INTS, lambda n: np.array([n, -7]), "observation is int64, its space is int16"),
    "a leaf": (
        NESTED,
        lambda n: {"a": np.array([n / 3, 0.1]), "b": (np.zeros(2, np.int16), n)},
        "observation 'a' is float64, its space is float32",
    ),
}


def recorded(envs: Any, num_steps: int = 9) -> tuple[list[Any], list[str]]:
    """What envs give in some steps, and what is said about them meanwhile."""
    note_only()
    returned = record(envs, num_steps)
    return returned, noted()


def bytes_of(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: bytes_of(value) for key, value in tree.items()}
    return tuple(map(bytes_of, tree)) if isinstance(tree, tuple) else (tree.dtype, tree.tobytes())


@pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP], ids=lambda mode: mode.name)
@pytest.mark.parametrize("name", CAST)
def test_it_is_cast_as_by_gymnasium_with_one_warning(name: str, mode: AutoresetMode):
    space, convert, warned = CAST[name]
    makes = [partial(Casual, space, convert)] * 3
    ours, said = recorded(LoopVectorEnv(makes, autoreset_mode=mode, first_env_index=4, infos=False))
    theirs, _ = recorded(SyncVectorEnv(makes, autoreset_mode=mode))
    assert [bytes_of(each[0]) for each in ours] == [bytes_of(each[0]) for each in theirs]
    assert len(said) == 1 and said[0].startswith(f"env 4: its {warned}; it is cast from now on; --env-checks dtypes")


def test_an_env_that_differs_only_later_is_named():
    makes = [
        partial(Casual, FLOATS, lambda n, at=at: np.zeros(2, np.float64 if n == at else np.float32)) for at in (7, 2)
    ]
    assert [each[:24] for each in recorded(LoopVectorEnv(makes, infos=False))[1]] == ["env 1: its observation is"[:24]]


REFUSED: dict[str, tuple[spaces.Space, Any, str]] = {
    "floats as ints": (INTS, np.zeros(2), r"int16 of shape \(2,\), got float64 of .*, or wrap .*DtypeObservation$"),
    "complex": (
        FLOATS,
        np.zeros(2, complex),
        r"float32 of shape \(2,\), got complex128 of shape \(2,\); .* its space$",
    ),
    "text": (FLOATS, ["a", "b"], r"float32 of shape \(2,\), got <U1 of shape \(2,\); correct the env or its space$"),
    "a large int": (INTS, np.array([0, 2**15]), r"got int64 of shape \(2,\) with values that int16 cannot hold; "),
    "a negative int": (BYTES, np.array([-1, 0]), r"got int64 of shape \(2,\) with values that uint8 cannot hold; "),
    "a large scalar": (
        spaces.Box(0, 9, (), np.uint8),
        300,
        r"got int64 of shape \(\) with values that uint8 cannot hold",
    ),
    "a shape": (FLOATS, np.zeros((1, 2)), r"got float64 of shape \(1, 2\); correct the env or its space$"),
    "another shape": (FLOATS, np.zeros(3), r"got float64 of shape \(3,\); correct the env or its space$"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_kinds_and_shapes_and_lost_values_are_refused_with_the_env(name: str):
    space, observation, message = REFUSED[name]
    convert = lambda n: space.low if n < 2 else observation  # noqa: E731
    loop = LoopVectorEnv([partial(Casual, space, lambda n: space.low), partial(Casual, space, convert)], infos=False)
    with pytest.raises(DataError, match=f"^env 1: its observation should be .*{message}"):
        record(loop, 5)


def test_integers_of_another_sign_are_cast_if_they_fit():
    """Gymnasium refuses these, also lists of small numbers for an image."""
    loop = LoopVectorEnv([partial(Casual, BYTES, lambda n: [n, 255])], infos=False)
    assert recorded(loop)[0][1][0].tolist() == [[1, 255]]


@pytest.mark.parametrize("name", CAST)
def test_strict_dtypes_refuses_what_has_another_dtype(name: str):
    space, convert, _ = CAST[name]
    loop = LoopVectorEnv([partial(Casual, space, convert)] * 2, on_fault=OnFault(strict_dtypes=True))
    with pytest.raises(
        DataError, match=r"^env 0: its observation .*should be .*, got .* of shape \(2,\); correct the env"
    ):
        loop.reset()


class Objectives(Casual):
    """Gives a reward for each of two objectives."""

    def step(self, action: Any) -> tuple[Any, ...]:
        observation, _, *others = super().step(action)
        return observation, np.zeros(2, np.float32), *others


def test_a_vector_of_rewards_is_refused_with_the_wrapper_that_makes_one_number_of_it(monkeypatch: pytest.MonkeyPatch):
    loop = LoopVectorEnv([partial(Objectives, FLOATS, lambda n: FLOATS.low)] * 2, infos=False)
    loop.reset()
    by_wrapper = "make one number of it by a wrapper such as gymnasium.wrappers.TransformReward; "
    linear, parts = "mo_gymnasium.wrappers:LinearReward", '{"vector_reward": ["float64", 2]}'
    for library, flags, arguments in (
        ("another", f"{by_wrapper}--store-infos stores", f"{by_wrapper}infos stores"),
        (
            "mo_gymnasium",
            f"--wrappers {linear} makes one number of it, and --store-infos '{parts}' stores",
            f"wrappers={linear} makes one number of it, and infos={parts} stores",
        ),
    ):
        monkeypatch.setitem(sys.modules, library, types.ModuleType("empty"))
        with pytest.raises(DataError) as refused:
            loop.step(loop.action_space.sample())
        for spell, way_out in ((as_flag, flags), (as_argument, arguments)):
            assert f"got float32 of shape (2,); {way_out} its parts" in refused.value.shown(spell)


def test_scalars_of_python_are_no_other_dtype():
    makes = [partial(Casual, spaces.Box(-9, 9, (), np.float32), lambda n: n / 3)] * 2
    returned, said = recorded(LoopVectorEnv(makes, infos=False, on_fault=OnFault(strict_dtypes=True)))
    assert returned[1][0].tolist() == [float(np.float32(1 / 3))] * 2 and said == []


def test_what_is_infinite_only_as_it_is_stored_is_not_finite():
    convert = lambda n: np.array([1e300 if n == 2 else 0.0, 1.0])  # noqa: E731
    loop = LoopVectorEnv([partial(Casual, FLOATS, convert)], on_fault=OnFault(check_finite=True))
    with np.errstate(over="ignore"), pytest.raises(DataError, match=r"its observation is inf at \[0\], which is not"):
        record(loop, 5)


class Ending(Casual):
    """Returns rewards and ends as arrays of one element."""

    def __init__(self, shape: Sequence[int]):
        super().__init__(FLOATS, lambda n: np.zeros(2, np.float32))
        self.shape = shape

    def step(self, action):
        observation, reward, *ends, info = super().step(action)
        return observation, np.full(self.shape, reward), *(np.full(self.shape, end) for end in ends), info


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_rewards_and_ends_may_be_arrays_of_one_element(num_envs: int, shape: tuple[int, ...]):
    ours = record(LoopVectorEnv([partial(Ending, shape)] * num_envs, infos=False), 4)
    for step, (_, rewards, terminations, truncations, _) in enumerate(ours[1:], 1):
        assert rewards.tolist() == [1.5 * (step < 4)] * num_envs and not truncations.any()
        assert terminations.tolist() == [step == 3] * num_envs


class Paying(Casual):
    """Its reward is what it is told."""

    def __init__(self, reward: Any):
        super().__init__(FLOATS, lambda n: np.zeros(2, np.float32))
        self.reward = reward

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, self.reward, *rest


@pytest.mark.parametrize("reward", [True, np.float32(0.1), np.int8(-3), -0.0, np.nan, 2**70, np.uint64(9)])
def test_a_reward_is_stored_as_by_numpy(reward: Any):
    [_, (_, rewards, *_)] = record(LoopVectorEnv([partial(Paying, reward)], infos=False), 1)
    assert rewards.tobytes() == np.asarray(reward, np.float64).tobytes()


FEW = ("--num-envs", "3", "--num-steps", "5", "--progress", "none")
NATIVE = ("--vectorization-mode", "vector_entry_point")


@pytest.mark.parametrize(
    ("env", "who"),
    [
        (("--env-factory", "casual_envs:casual_float64"), "env 0: its observation"),
        (("--env", "registered_envs:DoubleCartPole-v0", *NATIVE), "envs 0 to 2: its observation"),
    ],
    ids=["single envs", "natively vectorized envs"],
)
def test_a_run_casts_and_says_so_in_one_line_of_one_rank_unless_it_is_strict(job: Job, env: tuple[str, ...], who: str):
    cast = job(3, *env, "--num-envs", "9", *FEW[2:], "--out", "cast.h5")
    strict = job(1, *env, *FEW, "--out", "strict.h5", "--env-checks", "dtypes")
    assert cast.code == 0 and "UserWarning" not in cast.err, cast.err
    what = "is float64, its space is float32; it is cast from now on; --env-checks dtypes refuses it instead"
    assert cast.messages == [f"{who} {what}; the same on 2 other ranks"]
    assert datasets(job.folder / "cast.h5")["observations"].dtype == np.float32
    assert strict.code == 65 and "should be float32 of shape" in strict.err, strict.err


LATE = """
import sys
import numpy as np
from functools import partial
from casual_envs import late
from mpi_rollout import connect

WAYS = {  # Each has a notice of its own.
    "steps": (("float64", "float32"), {"infos": "none"}),
    "fragment": (("float64", "float16"), {}),
    "first ready": (("float32", "float16"), {"batch_size": 1}),
}
for way, (dtypes, options) in WAYS.items():
    with connect([partial(late, *dtypes, step=2 if index > 1 else 9) for index in range(6)], **options) as envs:
        if envs is not None:
            envs.reset(seed=0)
            print(way, file=sys.stderr)
            if way == "steps":
                for number in (1, 2, 3):
                    print("step", number, file=sys.stderr)
                    envs.step(np.zeros(6, int))
            elif way == "fragment":
                envs.collect(3)
                print("collected", file=sys.stderr)
            else:  # Some envs are always stepping.
                envs.send(np.zeros(6, int))
                for _ in range(9):
                    *_, where = envs.recv()
                    envs.send(np.zeros(len(where), int), where)
"""


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 3)
def test_a_trainer_hears_in_that_step_of_a_cast_that_begins_in_a_step_on_any_rank(job: Job, num_ranks: int):
    result = job.script(num_ranks, LATE)
    others = "; the same on 1 other rank" if num_ranks == 3 else ""
    said = [
        f"mpi_rollout: env 2: its observation is {observed}, its space is {declared}; it is cast from now on; "
        f"env_checks=dtypes refuses it instead{others}"
        for observed, declared in (("float64", "float32"), ("float64", "float16"), ("float32", "float16"))
    ]
    *lines, last = result.err.splitlines()
    steps = ["steps", "step 1", "step 2", said[0], "step 3"]
    assert (result.code, lines) == (0, [*steps, "fragment", said[1], "collected", "first ready"]), result.err
    assert last.removesuffix(others) == said[2].removesuffix(others)  # Of the ranks that had stepped by then.


@pytest.mark.parametrize(
    ("observation", "is_as_stored"),
    [
        (np.zeros(2, np.float32), True),
        (np.zeros(2), False),
        ([0.0, 0.0], False),
        (np.ma.zeros(2, np.float32), False),
    ],
)
def test_only_arrays_of_the_spaces_dtype_are_as_they_come_out_of_columns(observation: Any, is_as_stored: bool):
    assert is_exact(leaves(spaces.Box(-1, 1, (2,), np.float32)), observation) is is_as_stored
