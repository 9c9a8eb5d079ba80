"""The loop gives, bit for bit, what Gymnasium's `SyncVectorEnv` gives."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any

import envs as test_envs
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import SeededEpisodes, arrays

from mpi_rollout.core.layout import Contents, SlotLayout
from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.core.spaces import leaves
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import DataError, EnvError, UsageError

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
in_every_mode = pytest.mark.parametrize("mode", [NEXT_STEP, SAME_STEP, DISABLED], ids=lambda mode: mode.name)


def with_wrapper(wrap: Callable[[gymnasium.Env], gymnasium.Env], env_id: str, **kwargs: Any) -> gymnasium.Env:
    return wrap(gymnasium.make(env_id, **kwargs))


MAKES = {
    "CartPole": partial(gymnasium.make, "CartPole-v1"),
    "Pendulum": partial(gymnasium.make, "Pendulum-v1"),
    "FrozenLake": partial(gymnasium.make, "FrozenLake-v1"),
    "Blackjack": partial(gymnasium.make, "Blackjack-v1"),
    "Counting": test_envs.Counting,
    "Nested": test_envs.Nested,
    "Image": test_envs.Image,
    "Reusing": test_envs.Reusing,
    "Mixed": test_envs.Mixed,
    "Loose": test_envs.Loose,
    "Keeping": test_envs.Keeping,
    "KeepingArray": test_envs.KeepingArray,
    "Telling": test_envs.Telling,
    "Defaulting": test_envs.Defaulting,
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
    "HumanoidStandup": ("mujoco", partial(gymnasium.make, "HumanoidStandup-v5", max_episode_steps=20)),
    "Breakout": ("ale_py", partial(gymnasium.make, "ale_py:ALE/Breakout-v5", max_episode_steps=20)),
}


class Copied(gymnasium.Wrapper):
    """Returns copies."""

    def reset(self, **kwargs):
        return deepcopy(self.env.reset(**kwargs))

    def step(self, action):
        return deepcopy(self.env.step(action))


# Of an env that reuses its array, `SyncVectorEnv` would give the reset's observation as the final one.
ORACLES = MAKES | {"Reusing": lambda: Copied(test_envs.Reusing())}


@pytest.fixture(autouse=True)
def _no_clock(monkeypatch: pytest.MonkeyPatch):
    """`RecordEpisodeStatistics` would say how long an episode took."""
    monkeypatch.setattr("gymnasium.wrappers.common.time", SimpleNamespace(perf_counter=lambda: 0.0))


def pair(
    make: Callable[[], gymnasium.Env], mode: AutoresetMode = NEXT_STEP, num_envs: int = 3, **kwargs: Any
) -> tuple[LoopVectorEnv, SyncVectorEnv]:
    makes = [make] * num_envs
    return LoopVectorEnv(makes, autoreset_mode=mode, **kwargs), SyncVectorEnv(makes, autoreset_mode=mode)


def assert_same_values(ours: Any, theirs: Any, place: str = "infos") -> None:
    """Compare infos and what is in them, types included."""
    assert type(ours) is type(theirs), place
    if isinstance(ours, dict):
        assert list(ours) == list(theirs), place
        for key, value in ours.items():
            assert_same_values(value, theirs[key], f"{place}[{key!r}]")
    elif isinstance(ours, np.ndarray) and ours.dtype != object:
        assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes()), place
    elif isinstance(ours, list | tuple | np.ndarray):
        assert len(ours) == len(theirs), place
        for index, value in enumerate(ours):
            assert_same_values(value, theirs[index], f"{place}[{index}]")
    else:
        assert ours == theirs, place


def assert_same(loop: LoopVectorEnv, first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    """Compare what two `reset`s or two `step`s returned; final observations are taken out of the second's infos."""
    space = loop.single_observation_space
    ours, theirs = arrays("observations", space, first[0]), arrays("observations", space, second[0])
    for name, column in ours.items():
        assert column.dtype == theirs[name].dtype and column.tobytes() == theirs[name].tobytes(), name
    for column, expected in zip(first[1:-1], second[1:-1], strict=True):
        assert column.dtype == expected.dtype and column.tobytes() == expected.tobytes()
    finals, has_final = second[-1].pop("final_obs", None), second[-1].pop("_final_obs", np.zeros(0, bool))
    for index in has_final.nonzero()[0]:
        for leaf, column in zip(leaves(space), loop.columns.final_observation_arrays, strict=True):
            assert column[index].tobytes() == np.asarray(leaf.of(finals[index]), leaf.dtype).tobytes(), leaf
    told, is_told = first[-1].pop("final_obs", ()), first[-1].pop("_final_obs", np.zeros(0, bool))
    for index in is_told.nonzero()[0]:  # Where types are not those of the space.
        assert_same_values(told[index], finals[index], "final_obs")
    assert_same_values(first[-1], second[-1])


def assert_same_steps(loop: LoopVectorEnv, oracle: SyncVectorEnv, num_steps: int) -> int:
    """Step both with the same random actions, in DISABLED mode reset what ended; return how many episodes did."""
    oracle.action_space.seed(0)
    num_ends = 0
    for _ in range(num_steps):
        actions = oracle.action_space.sample()
        expected = oracle.step(actions)
        ends = expected[2] | expected[3]
        assert_same(loop, loop.step(actions), expected)
        if loop.autoreset_mode is DISABLED and ends.any():
            assert_same(loop, *(envs.reset(options={"reset_mask": ends.copy()}) for envs in (loop, oracle)))
        num_ends += int(np.count_nonzero(ends))
    return num_ends


def assert_same_generators(loop: LoopVectorEnv, oracle: SyncVectorEnv) -> None:
    ours, theirs = ([random.bit_generator.state for random in envs.np_random] for envs in (loop, oracle))
    assert ours == theirs and loop.np_random_seed == oracle.np_random_seed


@in_every_mode
@pytest.mark.parametrize("name", MAKES)
def test_the_loop_gives_what_gymnasium_gives(name: str, mode: AutoresetMode):
    loop = LoopVectorEnv([MAKES[name]] * 3, autoreset_mode=mode)
    oracle = SyncVectorEnv([ORACLES[name]] * 3, autoreset_mode=mode)
    assert_same(loop, loop.reset(seed=5), oracle.reset(seed=5))
    assert assert_same_steps(loop, oracle, 210) >= 3
    assert_same_generators(loop, oracle)


def seeded_pair(
    make: Callable[[], gymnasium.Env], mode: AutoresetMode, num_envs: int, seed: int
) -> tuple[LoopVectorEnv, SyncVectorEnv]:
    """Both with the episode seeds of a run."""
    seeds = [episode_seeds(seed, index) for index in range(num_envs)]
    makes = [lambda i=i: SeededEpisodes(make(), episode_seeds(seed, i)) for i in range(num_envs)]
    return LoopVectorEnv([make] * num_envs, seeds=seeds, autoreset_mode=mode), SyncVectorEnv(makes, autoreset_mode=mode)


@in_every_mode
@pytest.mark.parametrize("name", ["CartPole", "Nested", "Telling", "time limit", "statistics", "Pendulum"])
def test_the_loop_takes_an_episodes_seed_at_each_reset(name: str, mode: AutoresetMode):
    loop, oracle = seeded_pair(MAKES[name], mode, 3, 4)
    assert_same(loop, loop.reset(), oracle.reset())
    assert assert_same_steps(loop, oracle, 210) >= 3
    assert_same(loop, loop.reset(seed=[3, None, 8]), oracle.reset(seed=[3, None, 8]))
    assert_same_steps(loop, oracle, 30)
    assert_same_generators(loop, oracle)


@pytest.mark.parametrize(("name", "mode"), [("HumanoidStandup", SAME_STEP), ("Breakout", NEXT_STEP)])
def test_the_loop_gives_what_gymnasium_gives_for_simulators(name: str, mode: AutoresetMode):
    package, make = SLOW[name]
    pytest.importorskip(package)
    loop, oracle = seeded_pair(make, mode, 2, 2)
    assert_same(loop, loop.reset(), oracle.reset())
    assert assert_same_steps(loop, oracle, 25) >= 2
    assert_same_generators(loop, oracle)


@in_every_mode
def test_envs_may_have_time_limits_of_their_own(mode: AutoresetMode):
    makes = [partial(gymnasium.make, "Pendulum-v1", max_episode_steps=steps) for steps in (3, 17, 5, 200)]
    makes.append(lambda: gymnasium.make("Pendulum-v1").unwrapped)
    loop, oracle = LoopVectorEnv(makes, autoreset_mode=mode), SyncVectorEnv(makes, autoreset_mode=mode)
    assert_same(loop, loop.reset(seed=0), oracle.reset(seed=0))
    assert assert_same_steps(loop, oracle, 210) > 60


@in_every_mode
def test_a_reset_in_mid_episode_starts_all_episodes_and_time_limits_anew(mode: AutoresetMode):
    loop, oracle = pair(partial(gymnasium.make, "CartPole-v1", max_episode_steps=12), mode)
    for num_steps in (5, 12, 13, 40):  # The second reset comes right after an end, and is one reset.
        assert_same(loop, loop.reset(seed=num_steps), oracle.reset(seed=num_steps))
        assert_same_steps(loop, oracle, num_steps)


@in_every_mode
def test_reset_takes_a_seed_for_each_env_and_options(mode: AutoresetMode):
    loop, oracle = pair(test_envs.Telling, mode)
    for seed in ([7, 7, 1], [None, 4, None], 3, None):
        given = {"seed": seed, "options": {"wind": 0.5, "start": "left"}}
        outcome, expected = loop.reset(**given), oracle.reset(**given)
        assert expected[1]["options"]["wind"].tolist() == [0.5] * 3
        assert_same(loop, outcome, expected)
        assert_same_steps(loop, oracle, 20)
    assert_same_generators(loop, oracle)


def masked(mask: list[bool], **options: Any) -> dict[str, Any]:
    return {"reset_mask": np.array(mask), **options}


@in_every_mode
@pytest.mark.parametrize("name", ["CartPole", "Nested", "Telling", "Reusing", "time limit in a time limit"])
def test_a_mask_resets_its_envs_in_mid_episode_too(name: str, mode: AutoresetMode):
    loop, oracle = pair(MAKES[name], mode)
    oracle = SyncVectorEnv([ORACLES.get(name, MAKES[name])] * 3, autoreset_mode=mode)
    first = [envs.reset(seed=2, options=masked([True] * 3)) for envs in (loop, oracle)]
    assert_same(loop, *first)
    masks = [[True, False, False], [False, True, True], [True] * 3, [False, False, True]]
    for number, mask in enumerate(masks * 5):
        assert_same_steps(loop, oracle, 2 + number % 4)
        given = {"seed": [None, number, [7, number, None], None][number % 4]}
        outcomes = [envs.reset(**given, options=masked(mask)) for envs in (loop, oracle)]
        assert_same(loop, *outcomes)
    assert_same_generators(loop, oracle)


def test_a_mask_clears_the_ends_of_its_envs_alone():
    loop = LoopVectorEnv([test_envs.Counting] * 3, autoreset_mode=DISABLED)
    loop.reset(seed=[0, 0, 5])
    for _ in range(3):
        _, _, terminations, truncations, _ = loop.step(np.full(3, 2))
    assert terminations.tolist() == [True] * 3
    observations, _ = loop.reset(options=masked([False, True, False]))
    assert loop.columns.terminations.tolist() == [True, False, True] and not truncations.any()
    assert observations[:, 2].tolist() == [3, 0, 3]


def test_a_mask_of_no_env_resets_none_and_returns_the_observations_of_now():
    loop = LoopVectorEnv([test_envs.Telling] * 3, autoreset_mode=DISABLED)
    loop.reset(seed=0)
    expected = loop.step(np.full(3, 2))[0].copy()
    observations, infos = loop.reset(options=masked([False] * 3))
    assert np.array_equal(observations, expected) and infos == {}


def test_seeds_of_episodes_are_taken_for_the_envs_of_a_mask_alone():
    loop, oracle = seeded_pair(test_envs.Counting, DISABLED, 3, 6)
    assert_same(loop, loop.reset(), oracle.reset())
    for mask in ([True, False, False], [False, True, True], [True, False, True]):
        assert_same(loop, loop.reset(options=masked(mask)), oracle.reset(options=masked(mask)))


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        ([True, False, True], TypeError, "must be a numpy array, got list; use np.array"),
        (np.ones(2, bool), ValueError, r"must have shape \(3,\), one for each env, got \(2,\)"),
        (np.ones((3, 1), bool), ValueError, r"must have shape \(3,\), one for each env, got \(3, 1\)"),
        (np.ones(3, np.int64), TypeError, r"must have dtype bool, got int64; use mask.astype\(np.bool_\)"),
    ],
)
def test_what_is_no_mask_is_refused(mask: Any, error: type[Exception], message: str):
    loop, oracle = pair(test_envs.Counting, DISABLED)
    loop.reset(seed=0)
    with pytest.raises(error, match=rf"^options\['reset_mask'\] {message}"):
        loop.reset(options={"reset_mask": mask})
    with pytest.raises((error, AssertionError)):  # Gymnasium before 1.2 asserts.
        oracle.reset(options={"reset_mask": mask})


def test_an_env_that_has_ended_is_not_stepped_before_its_reset():
    loop = LoopVectorEnv([test_envs.Counting] * 4, first_env_index=10, autoreset_mode=DISABLED)
    loop.reset(seed=[1, 0, 0, 0])
    for _ in range(3):
        loop.step(np.full(4, 2))
    message = (
        r"^env 11 and 2 others: its episode has ended, .* call reset\(options=\{\"reset_mask\": terminations \| trunc"
    )
    with pytest.raises(DataError, match=message):
        loop.step(np.full(4, 2))
    loop.reset(options=masked([False, True, True, False]))
    with pytest.raises(DataError, match=r"^env 13: its episode has ended"):
        loop.step(np.full(4, 2))
    loop.reset(options=masked([False, False, False, True]))
    assert loop.step(np.full(4, 2))[0][:, 2].tolist() == [4, 1, 1, 1]  # No env had been stepped before it raised.


@in_every_mode
def test_an_env_that_was_never_reset_is_not_stepped(mode: AutoresetMode):
    loop = LoopVectorEnv([partial(gymnasium.make, "CartPole-v1")] * 2, autoreset_mode=mode)
    with pytest.raises(EnvError, match=r"^env 0, .*ResetNeeded: Cannot call env.step\(\) before calling env.reset\(\)"):
        loop.step(np.zeros(2, np.int64))


@in_every_mode
def test_infos_are_not_looked_at_where_nobody_wants_them(mode: AutoresetMode):
    class Odd(test_envs.Counting):
        def step(self, action):
            return *super().step(action)[:4], {"an array": np.zeros(self.step_number)}

    loop = LoopVectorEnv([Odd] * 2, autoreset_mode=mode, infos=False)
    assert loop.reset(seed=[0, 1])[1] == {}
    assert [loop.step(np.full(2, 2))[-1] for _ in range(3)] == [{}] * 3


@in_every_mode
def test_infos_may_be_asked_for_by_name(mode: AutoresetMode):
    names = ("odd", "deep", "options", "nowhere")
    loop, oracle = pair(test_envs.Telling, mode, infos=names)
    all_names = {f"{mask}{name}" for name in names for mask in ("", "_")}

    def only(infos: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in infos.items() if name in all_names}

    given = {"seed": 0, "options": {"wind": 2}}
    expected = oracle.reset(**given)
    assert_same_values(sorted_keys(loop.reset(**given)[1]), sorted_keys(only(expected[1])))
    for _ in range(3):
        infos, expected = loop.step(np.full(3, 2))[-1], oracle.step(np.full(3, 2))[-1]
        finals = {"final_info": only(expected.pop("final_info"))} if "final_info" in expected else {}
        finals |= {"_final_info": expected["_final_info"]} if finals else {}
        assert_same_values(sorted_keys(infos), sorted_keys(only(expected) | finals))
    assert bool(finals) == (mode is SAME_STEP)


def sorted_keys(infos: Any) -> Any:
    return {key: sorted_keys(infos[key]) for key in sorted(infos)} if isinstance(infos, dict) else infos


def test_final_observations_are_in_the_columns_of_the_caller():
    loop = LoopVectorEnv([test_envs.Reusing] * 2, autoreset_mode=SAME_STEP)
    layout = SlotLayout(Contents(loop.single_observation_space, loop.single_action_space, True), 2)
    columns = layout.columns(np.zeros(layout.nbytes, np.uint8), 2)
    loop.write_to([columns])
    loop.reset(seed=[5, 1])
    for _ in range(3):
        observations, _, terminations, _, infos = loop.step(np.full(2, 2))
    assert terminations.tolist() == [True, False] and "final_obs" not in infos
    assert columns.final_observation_arrays[0].tolist() == [[5, 0, 3, 2], [0] * 4]
    assert observations is columns.observations and observations.tolist() == [[5, 1, 0, -1], [1, 0, 3, 2]]


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


@in_every_mode
def test_spaces_metadata_and_mode_are_those_of_gymnasium(mode: AutoresetMode):
    make = partial(gymnasium.make, "CartPole-v1")
    before = dict(make().metadata)  # All CartPoles share it, and `SyncVectorEnv` of Gymnasium 1.1 writes into it.
    loop = LoopVectorEnv([make] * 3, autoreset_mode=mode)
    assert loop.envs[0].metadata == before
    oracle = SyncVectorEnv([make] * 3, autoreset_mode=mode)
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space", "num_envs"):
        assert getattr(loop, name) == getattr(oracle, name)
    assert loop.metadata == oracle.metadata and loop.autoreset_mode is mode
    assert loop.spec.id == "CartPole-v1"


def test_the_mode_may_be_its_name_as_in_gymnasium():
    assert LoopVectorEnv([test_envs.Counting], autoreset_mode="SameStep").autoreset_mode is SAME_STEP
    with pytest.raises(ValueError, match="'Never' is not a valid AutoresetMode"):
        LoopVectorEnv([test_envs.Counting], autoreset_mode="Never")


def test_call_get_attr_and_set_attr_reach_the_envs_as_in_gymnasium():
    loop, oracle = pair(lambda: wrappers.TransformReward(test_envs.Telling(), lambda reward: reward))
    assert_same(loop, loop.reset(seed=0), oracle.reset(seed=0))
    for envs in (loop, oracle):
        envs.set_attr("mass", (2.0, 3.0, 4.5))
        envs.set_attr("invented", "there")
    for envs in (loop, oracle):
        assert envs.call("weigh", 2, offset=0.5) == (4.5, 7.5, 11.5)
        assert envs.get_attr("mass") == envs.call("mass") == (2.0, 3.0, 4.5)
        assert envs.get_attr("invented") == ("there",) * 3 and envs.envs[0].invented == "there"
    assert assert_same_steps(loop, oracle, 30) > 3


def test_what_an_env_raises_when_called_is_raised_as_it_is():
    loop = LoopVectorEnv([test_envs.Telling] * 2)
    with pytest.raises(ValueError, match=r"^values of set_attr must be one for all, or .* 2 envs, got 3$"):
        loop.set_attr("mass", [1, 2, 3])
    with pytest.raises(TypeError, match="weigh"):
        loop.call("weigh")
    with pytest.raises(AttributeError, match="nowhere"):
        loop.get_attr("nowhere")


@pytest.mark.parametrize("render_mode", ["ansi", "ansi_list"])
def test_envs_render_as_in_gymnasium(render_mode: str):
    loop, oracle = pair(partial(gymnasium.make, "FrozenLake-v1", render_mode=render_mode, max_episode_steps=4))
    assert_same(loop, loop.reset(seed=0), oracle.reset(seed=0))
    for _ in range(10):
        assert loop.render() == oracle.render()
        assert_same_steps(loop, oracle, 1)


def test_envs_that_were_never_reset_do_not_render():
    loop = LoopVectorEnv([partial(gymnasium.make, "FrozenLake-v1", render_mode="ansi")] * 2)
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"^Cannot call `env.render\(\)` before"):
        loop.render()


def test_generators_may_be_looked_at_before_a_reset_of_which_gymnasiums_wrappers_know():
    loop, oracle = pair(partial(gymnasium.make, "CartPole-v1"))
    for num_resets in range(2):
        for name in ("checked_reset", "has_reset"):
            assert loop.get_attr(name) == oracle.get_attr(name) == (num_resets == 1,) * 3
        assert loop.np_random == tuple(env.unwrapped.np_random for env in loop.envs)
        loop.reset(seed=0), oracle.reset(seed=0)


def limited(*limits: int) -> gymnasium.Env:
    """An env with time limits in time limits."""
    env = test_envs.Counting()
    for limit in limits:
        env = wrappers.TimeLimit(env, limit)
    return env


ELAPSED, LIMIT = "_elapsed_steps", "_max_episode_steps"


@in_every_mode
@pytest.mark.parametrize("limits", [(7,), (9, 5)])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda envs: None, id="nothing"),
        pytest.param(lambda envs: envs.set_attr(LIMIT, 3), id="limit"),
        pytest.param(lambda envs: envs.set_attr(LIMIT, [1, 0, 10]), id="limits"),
        pytest.param(lambda envs: envs.set_attr(LIMIT, 4.5), id="limit between two steps"),
        pytest.param(lambda envs: envs.set_attr(ELAPSED, [0, 3, 4]), id="elapsed"),
        pytest.param(lambda envs: envs.set_attr(ELAPSED, 100), id="elapsed beyond the limit"),
        pytest.param(lambda envs: envs.call("reset"), id="reset"),
        pytest.param(lambda envs: envs.call("reset", seed=4), id="seeded reset"),
        pytest.param(lambda envs: envs.call("step", 3), id="step"),
    ],
)
def test_time_limits_can_be_seen_and_set_as_in_gymnasium(
    limits: tuple[int, ...], change: Callable, mode: AutoresetMode
):
    loop, oracle = pair(partial(limited, *limits), mode)
    assert loop.get_attr(ELAPSED) == oracle.get_attr(ELAPSED) == (None,) * 3
    assert_same(loop, loop.reset(seed=[2, 6, 9]), oracle.reset(seed=[2, 6, 9]))
    for num_steps in (1, 3, 2, 6, 13):
        assert_same_steps(loop, oracle, num_steps)
        assert [loop.get_attr(name) for name in (ELAPSED, LIMIT)] == [
            oracle.get_attr(name) for name in (ELAPSED, LIMIT)
        ]
        change(loop), change(oracle)
        inner = [[getattr(env.env, ELAPSED, None) for env in envs.envs] for envs in (loop, oracle)]
        assert inner[0] == inner[1]
    assert_same_steps(loop, oracle, 40)


def test_what_was_done_before_a_called_method_raised_holds():
    class Stuck(test_envs.Counting):
        def reset(self, *, seed=None, options=None):
            if options and self.name == 11:
                raise FileNotFoundError("no model")
            return super().reset(seed=seed)

    loop, oracle = pair(lambda: wrappers.TimeLimit(Stuck(), 6))
    assert_same(loop, loop.reset(seed=9), oracle.reset(seed=9))
    for _ in range(5):
        assert_same_steps(loop, oracle, 4)
        for envs in (loop, oracle):
            with pytest.raises(FileNotFoundError, match="no model"):
                envs.call("reset", options={"model": "heavy"})
    assert loop.get_attr(ELAPSED) == oracle.get_attr(ELAPSED)


def test_an_env_that_knows_its_time_limit_sees_the_steps_in_it_when_it_renders():
    class Knowing(test_envs.Counting):
        def render(self):
            return self.limit._elapsed_steps

    def make() -> gymnasium.Env:
        env = wrappers.TimeLimit(Knowing(), 4)
        env.unwrapped.limit = env
        return env

    loop, oracle = pair(make)
    assert_same(loop, loop.reset(seed=0), oracle.reset(seed=0))
    for _ in range(12):
        assert_same_steps(loop, oracle, 1)
        assert loop.render() == oracle.render()


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
        (replaced(0, None), r"observation should be int64 of .*, got object of shape \(\)"),
        (replaced(1, "much"), r"reward should be float64 of shape \(\), got 'much'; correct"),
        *((replaced(1, value), r"reward should be float64 of .*, got ") for value in (None, b"1", [1.0], 1j, {})),
        (replaced(1, np.zeros(2)), r"reward should be float64 of shape \(\), got float64 of shape \(2,\)"),
        (replaced(2, np.zeros(2, bool)), r"terminated should be bool of shape \(\), got bool of shape \(2,\)"),
        (replaced(3, np.zeros(2, bool)), r"truncated should be bool of shape \(\), got bool of shape \(2,\)"),
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda leaves: leaves | {"pair": (0.5, np.zeros((2, 3), np.float32))}, r"'pair/_index_0' should be int64 of "),
        (
            lambda leaves: {key: leaves[key] for key in leaves if key != "half"},
            r"'half' should be float16 .*\(KeyError: 'half'\)",
        ),
    ],
    ids=["does not fit", "is missing"],
)
def test_a_leaf_that_is_wrong_is_refused_with_its_name(change: Callable, message: str):
    class Bent(test_envs.Nested):
        def observe(self):
            return change(super().observe())

    loop = LoopVectorEnv([test_envs.Nested, Bent])
    with pytest.raises(DataError, match=f"env 1: its observation {message}"):
        loop.reset(seed=0)


def failing(step: int, outputs: tuple) -> tuple:
    if step == 2:
        raise ZeroDivisionError("no mass")
    return outputs


def test_an_error_in_an_env_names_the_env_and_the_step_of_its_episode():
    with pytest.raises(EnvError, match=r"^env 11, step 1 of its episode: ZeroDivisionError: no mass$") as caught:
        stepped(failing)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_env_that_calls_exit_is_an_error():
    def leave(step: int, outputs: tuple) -> tuple:
        raise SystemExit(3)

    with pytest.raises(EnvError, match=r"^env 11, step 0 of its episode: called sys.exit\(3\)$"):
        stepped(leave)


def test_envs_with_different_spaces_are_refused():
    makes = [partial(gymnasium.make, "CartPole-v1"), partial(gymnasium.make, "Acrobot-v1")]
    with pytest.raises(UsageError, match=r"^all envs must have the same observation_space, env 6 has .* env 7 has "):
        LoopVectorEnv(makes, first_env_index=6)


def test_an_error_in_a_reset_after_an_end_names_the_env():
    class Stuck(test_envs.Counting):
        def reset(self, **kwargs):
            if self.episode == 0:
                raise FileNotFoundError("no model")
            return super().reset(**kwargs)

    loop = LoopVectorEnv([test_envs.Counting, Stuck], first_env_index=4)
    loop.reset()
    with pytest.raises(EnvError, match=r"^env 5, reset: FileNotFoundError: no model$"):
        loop.reset()
    for mode, num_steps in ((NEXT_STEP, 4), (SAME_STEP, 3)):
        loop = LoopVectorEnv([test_envs.Counting, Stuck], first_env_index=4, autoreset_mode=mode)
        loop.reset(seed=[1, 0])
        for _ in range(num_steps - 1):
            loop.step(np.full(2, 2))
        with pytest.raises(EnvError, match=r"^env 5, reset: FileNotFoundError: no model$"):
            loop.step(np.full(2, 2))


def test_a_reset_that_does_not_return_a_pair_is_refused_with_the_name_of_its_env():
    class Old(test_envs.Counting):
        def reset(self, **kwargs):
            return super().reset(**kwargs)[0]

    with pytest.raises(DataError, match=r"^env 1, reset: its reset should return observation and info, got ndarray"):
        LoopVectorEnv([test_envs.Counting, Old]).reset()


def test_an_env_that_raises_stop_iteration_does_not_end_the_sweep_unseen():
    def exhaust(step: int, outputs: tuple) -> tuple:
        return next(iter(())) if step == 2 else outputs

    with pytest.raises(EnvError, match=r"^env 11, step 1 of its episode: StopIteration"):
        stepped(exhaust)


def test_a_final_observation_that_does_not_fit_is_refused_with_the_name_of_its_env():
    class Bent(test_envs.Counting):
        def observe(self):
            return super().observe().astype(np.float64 if self.step_number == 3 else np.int64)

    loop = LoopVectorEnv([test_envs.Counting, Bent], first_env_index=7, autoreset_mode=SAME_STEP)
    loop.reset(seed=[1, 0])
    with pytest.raises(
        DataError, match=r"^env 8: its observation should be int64 of shape \(4,\), got float64 of shape"
    ):
        for _ in range(3):
            loop.step(np.full(2, 2))


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"step": [1, 2]}, r"got \{'step': \[1, 2\]\} \((Type|Value)Error: "),
        ({"step": 2**70}, r"got \{'step': 1180591620717411303424\} \(OverflowError: "),
        ({"step": {"deep": 1}}, r"got \{'step': \{'deep': 1\}\} \("),
        (["step"], r"got \['step'\] \(AttributeError: "),
    ],
)
def test_an_info_that_does_not_fit_is_refused_with_the_name_of_its_env(info: Any, message: str):
    with pytest.raises(DataError, match=rf"^env 11: its info should be a dict, its values of the types .*, {message}"):
        stepped(replaced(4, info))


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


def test_a_last_observation_that_is_not_of_its_space_is_in_the_infos_as_the_env_gave_it():
    loop, oracle = pair(test_envs.Loose, SAME_STEP)
    loop.reset(seed=5), oracle.reset(seed=5)
    num_ends = 0
    for _ in range(20):
        ours, expected = (repr(envs.step(np.full(3, 2))[-1].get("final_obs")) for envs in (loop, oracle))
        assert ours == expected
        num_ends += "doubles" in expected
    assert num_ends > 3


# Any program of steps and resets.

PROGRAM_MAKES = ["Nested", "Telling", "Reusing", "time limit as long as episodes", "time limit in a time limit"]
SEEDS = st.none() | st.integers(0, 9) | st.lists(st.none() | st.integers(0, 9), min_size=3, max_size=3)
MASKS = st.none() | st.lists(st.booleans(), min_size=3, max_size=3).filter(any)
PARTS = st.lists(st.tuples(st.integers(0, 25), SEEDS, MASKS, st.booleans()), min_size=1, max_size=6)


@settings(max_examples=40)
@given(st.sampled_from(PROGRAM_MAKES), PARTS)
@in_every_mode
def test_any_steps_and_resets_give_what_gymnasium_gives(mode: AutoresetMode, name: str, parts: list[tuple]):
    """Resets of all envs or of some, amid episodes and right after ends, one after the other or behind steps."""
    loop = LoopVectorEnv([MAKES[name]] * 3, autoreset_mode=mode)
    oracle = SyncVectorEnv([ORACLES.get(name, MAKES[name])] * 3, autoreset_mode=mode)
    assert_same(loop, loop.reset(seed=1), oracle.reset(seed=1))
    for num_steps, seed, mask, has_options in parts:
        assert_same_steps(loop, oracle, num_steps)
        options = {"wind": 0.5} if has_options else {}
        if mask is not None:
            options |= masked(mask)
        outcomes = [envs.reset(seed=seed, options=dict(options) or None) for envs in (loop, oracle)]
        assert_same(loop, *outcomes)
    assert_same_generators(loop, oracle)
