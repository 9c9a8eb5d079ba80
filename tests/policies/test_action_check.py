"""What is done with actions on their way in."""

import math
from typing import Any

import numpy as np
import pytest
from action_spaces import INF, LEAVES, batch
from envs import Nested
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from mpi_rollout.core.spaces import bounds_of, leaves
from mpi_rollout.errors import ActionError
from mpi_rollout.options import ACTION_MODES as MODES
from mpi_rollout.policies.action_check import ActionReader


@pytest.mark.parametrize("kind", LEAVES)
@pytest.mark.parametrize("mode", MODES)
def test_what_is_in_the_space_stays_as_it_is(kind: str, mode: str):
    actions = batch(LEAVES[kind])
    assert ActionReader(LEAVES[kind], mode)(actions, range(4))[0] is actions


@pytest.mark.parametrize(
    ("space", "actions"),
    [
        (spaces.Discrete(3), [0, 1, 2, 0]),
        (spaces.Discrete(3), np.array([True, False, True, False])),
        (spaces.Box(-1, 1, (2,), np.float32), np.full((4, 2), 0.3)),
        (spaces.Box(-1, 1, (2,), np.float32), np.ones((4, 2), np.int64)),
        (spaces.Box(-INF, INF, (2,), np.float32), np.full((4, 2), INF)),
        (spaces.Box(0, 255, (2,), np.uint8), np.full((4, 2), 255.0)),
        (spaces.Box(-(2**62), 2**62, (2,), np.int64), np.full((4, 2), -(2.0**62))),
        (spaces.Box(0, 2**64 - 1, (2,), np.uint64), np.full((4, 2), 2.0**63, np.float32)),
        (spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2))), [[0, 1, 2, 0], [0, 1, 1, 0]]),
    ],
    ids=str,
)
def test_the_check_accepts_what_can_be_cast_without_loss_of_meaning(space: spaces.Space, actions: Any):
    [array, *_] = ActionReader(space)(actions, range(4))
    assert array.tolist() == np.asarray(leaves(space)[0].of(actions), leaves(space)[0].dtype).tolist()


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (spaces.Discrete(3), np.zeros((4, 1), int), r"got int64 of shape \(4, 1\); give actions\[:, 0\]$"),
        (spaces.Discrete(3), np.zeros(4), r"got float64 of shape \(4,\); give actions.astype\(np.int64\)$"),
        (spaces.Box(0, 1, (2,)), np.zeros((2, 4)), r"got float64 of shape \(2, 4\); give one action for each of 4"),
        (spaces.Box(0, 1, (2,)), np.zeros((4, 2), "c8"), r"must be float32 .*, got complex64"),
        (spaces.MultiBinary(2), np.zeros((4, 2), "f4"), r"must be int8 .*, got float32"),
        (spaces.Box(0, 9, (2,), np.uint8), np.full((4, 2), "1"), r"must be uint8 .*, got <U1"),
        (spaces.Discrete(3), None, r"action must be int64 of shape \(4,\), got None; return the actions$"),
        (spaces.Discrete(3), {"pi": [0, 1]}, r"got a dict of pi; return the actions$"),
        (spaces.Discrete(3), np.zeros((4, 1), "f4"), r"give actions\[:, 0\].astype\(np.int64\)$"),
        (spaces.Discrete(3), np.zeros((4, 3)), r"where these are scores, give actions.argmax\(axis=-1\)$"),
        (spaces.Box(0, 1, (1,)), np.zeros(4), r"give actions\[:, None\]$"),
        (spaces.Dict(a=spaces.Discrete(2)), {"a": np.zeros(4)}, r"give actions\['a'\].astype\(np.int64\)$"),
        (spaces.Box(0, 1, (2,)), [[0.0], [0.0, 1.0]], r"action cannot be read: ValueError"),
        (Nested.action_space, {}, r"action 'bits' cannot be read: KeyError: 'bits'"),
    ],
)  # fmt: skip
def test_the_check_refuses_a_wrong_shape_or_dtype(space: spaces.Space, actions: Any, message: str):
    with pytest.raises(ActionError, match=message):
        ActionReader(space)(actions, range(4))


@pytest.mark.parametrize(
    ("kind", "place", "value", "message"),
    [
        ("discrete", (2,), 2, r"action for env 2 must be in -1 to 1, got 2; clip it in the policy"),
        ("multi_binary", (1, 0, 1), 2, r"action for env 1, component \[0, 1\] must be in 0 to 1, got 2"),
        ("multi_discrete_start", (0, 1, 0), 7, r"for env 0, component \[1, 0\] must be in 2 to 6, got 7"),
        ("box", (3, 1), 3.5, r"for env 3, component \[1\] must be in -2.0 to 3.0, got 3.5"),
        ("box", (0, 0), np.nan, r"for env 0, component \[0\] must be in -2.0 to 3.0, got nan"),
        ("box_unbounded", (1, 1), np.nan, r"for env 1, component \[1\] must be in -inf to inf, got nan"),
        ("box_from_below", (1, 1), 4.9, r"for env 1, component \[1\] must be in 5.0 to inf, got 4.9"),
        ("box_by_component", (2, 1), 1.0, r"for env 2, component \[1\] must be in 10.0 to 30.0, got 1.0"),
        ("box_by_component", (2, 0), np.nan, r"for env 2, component \[0\] must be in -1.0 to 1.0, got nan"),
        ("box_int", (2, 0), 5, r"for env 2, component \[0\] must be in -3 to 4, got 5"),
    ],
)
def test_the_check_names_the_env_and_the_component_out_of_the_space(kind: str, place: tuple, value: Any, message: str):
    actions = batch(LEAVES[kind])
    actions[place] = value
    with pytest.raises(ActionError, match=message):
        ActionReader(LEAVES[kind])(actions, range(4))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [0.5, np.nan, 2**30 + 0.5])
def test_floats_with_a_fraction_are_no_integers(mode: str, value: float):
    actions = np.zeros((4, 2))
    actions[2, 1] = value
    words = (
        rf"^the action for env 12, component \[1\] must be uint8, got float64 {value}, which is no whole .*; give uint8"
    )
    with pytest.raises(ActionError, match=words):
        ActionReader(spaces.Box(0, 255, (2,), np.uint8), mode, "the action")(actions, range(10, 14))


@pytest.mark.parametrize("value", [256.0, -1.0, np.inf, 1e30])
def test_whole_floats_outside_of_the_space_are_treated_as_integers_are(value: float):
    space = spaces.Box(np.zeros(2, np.uint8), np.array([9, 255], np.uint8), dtype=np.uint8)
    actions = np.zeros((4, 2))
    actions[2, 1] = value
    for mode in ("check", "pass"):
        with pytest.raises(ActionError, match=r"env 2, component \[1\] must be in 0 to 255, got "):
            ActionReader(space, mode)(actions, range(4))
    [clipped] = ActionReader(space, "clip")(actions, range(4))
    assert clipped.dtype == np.uint8 and clipped[2].tolist() == [0, 0 if value < 0 else 255]


@pytest.mark.parametrize("value", [2.0**63, -(2.0**64)])
def test_floats_beyond_the_largest_integer_never_wrap_around(value: float):
    space = spaces.Box(np.array([-5, -(2**63)]), np.array([5, 2**63 - 1]), dtype=np.int64)
    actions = np.full((2, 2), value)
    actions[:, 0] = 0
    for mode in ("check", "pass"):
        with pytest.raises(ActionError, match=r"env 0, component \[1\] must be in -9223372036854775808 to 92"):
            ActionReader(space, mode)(actions, range(2))
    [clipped] = ActionReader(space, "clip")(actions, range(2))
    assert clipped[:, 1].tolist() == [2**63 - 1 if value > 0 else -(2**63)] * 2


@pytest.mark.parametrize(
    ("value", "told"),
    [(np.nan, "correct what chooses it"), (3.5, "clip it or by gymnasium.wrappers.ClipAction, or use actions=clip")],
)
def test_messages_call_an_action_what_the_reader_is_told(value: float, told: str):
    actions = np.full((4, 2), value)
    with pytest.raises(ActionError, match=f"^the action for env 0, component .*; {told}"):
        ActionReader(spaces.Box(0, 1, (2,)), "check", "the action")(actions, range(4))


def test_the_check_names_the_leaf_of_a_nested_action():
    actions = batch(Nested.action_space)
    actions["move"][1][3, 0] = 2
    with pytest.raises(ActionError, match=r"action 'move/_index_1' for env 3, component \[0\] must be in -1.0 to 1.0"):
        ActionReader(Nested.action_space)(actions, range(4))


def scaled_to_bounds(low: float, high: float) -> np.ndarray:
    """What Stable-Baselines3's SAC makes of the largest action: 1, scaled to the bounds in float32."""
    low, high = np.float32(low), np.float32(high)
    return np.full((4, 1), low + np.float32(0.5) * np.float32(2) * (high - low))


ASYMMETRIC = [(low / 10, high / 10) for low in range(-40, 0, 3) for high in range(1, 40, 3)]


def test_a_float_that_rounding_has_put_outside_is_set_to_its_bound():
    num_outside = 0
    for low, high in ASYMMETRIC:
        space, actions = spaces.Box(low, high, (1,), np.float32), scaled_to_bounds(low, high)
        [checked] = ActionReader(space)(actions, range(4))
        assert (checked == np.minimum(actions, space.high)).all() and space.contains(checked[0])
        num_outside += int(actions[0, 0] > space.high[0])
    assert num_outside > 20


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_float_further_outside_than_rounding_is_refused(dtype: type):
    space = spaces.Box(-3, 1, (2,), dtype)
    actions = np.zeros((4, 2), dtype)
    actions[1] = dtype(-3) - 4 * np.spacing(dtype(3)), dtype(1) + 4 * np.spacing(dtype(3))
    assert ActionReader(space)(actions, range(4))[0][1].tolist() == [-3, 1]
    actions[1, 1] += np.spacing(dtype(3))
    with pytest.raises(ActionError, match=r"in -3.0 to 1.0, got 1.0.*ClipAction, or use actions=clip or actions=pass$"):
        ActionReader(space)(actions, range(4))


def test_rounding_is_forgiven_beside_infinite_values_and_one_sided_bounds():
    space = spaces.Box(np.array([-INF, 0.5, -INF]), np.array([INF, INF, 3.0]), dtype=np.float64)
    actions = np.tile([INF, np.nextafter(0.5, 0), np.nextafter(3, 4)], (4, 1))
    assert ActionReader(space)(actions, range(4))[0][0].tolist() == [INF, 0.5, 3.0]


@pytest.mark.parametrize(
    ("kind", "far", "expected"),
    [
        ("box", 1e30, 3.0),
        ("box", -INF, -2.0),
        ("box_16", 7.0, 1.0),
        ("box_from_below", -4.0, 5.0),
        ("discrete", 9, 1),
        ("box_bytes", 256 + 5, 255),
        ("box_bytes", -1, 0),
        ("box_int", 2**40, 4),
    ],
)
def test_clip_sets_what_is_outside_to_the_nearest_bound(kind: str, far: Any, expected: Any):
    space = LEAVES[kind]
    inside = batch(space)
    actions = inside.astype(np.float64 if inside.dtype.kind == "f" else np.int64)
    actions.flat[1] = far
    [clipped] = ActionReader(space, "clip")(actions, range(4))
    assert clipped.dtype == space.dtype and clipped.flat[1] == expected
    clipped.flat[1] = inside.flat[1]
    assert (clipped == inside).all()


@pytest.mark.parametrize("values", [[2**64 - 1, 2**63 - 2, 0], [2**64 - 1, 7, 2**63]])
def test_clip_keeps_large_integers_exact(values: list[int]):
    [clipped] = ActionReader(spaces.Box(0, 2**63 - 1, (3,), np.int64), "clip")(np.array([values], np.uint64), [0])
    assert clipped.tolist() == [[min(value, 2**63 - 1) for value in values]]


@pytest.mark.parametrize("mode", ["check", "clip"])
def test_nan_is_refused_where_actions_are_checked_or_clipped(mode: str):
    actions = batch(LEAVES["box"])
    actions[2, 1] = np.nan
    with pytest.raises(
        ActionError, match=r"for env 2, component \[1\] must be in -2.0 to 3.0, got nan; correct the pol"
    ):
        ActionReader(LEAVES["box"], mode)(actions, range(4))


def test_pass_leaves_all_floats_as_they_are():
    actions = np.array([[5.5, -INF], [np.nan, 1e30], [0.0, -2.5], [3.0, -2.0]], np.float32)
    assert ActionReader(LEAVES["box"], "pass")(actions, range(4))[0] is actions


@pytest.mark.parametrize("mode", ["check", "pass"])
@pytest.mark.parametrize(("kind", "value"), [("discrete", 2), ("multi_discrete", 300), ("box_bytes", 256)])
def test_no_integer_leaves_its_range(mode: str, kind: str, value: int):
    actions = batch(LEAVES[kind]).astype(np.int64)
    actions.flat[1] = value
    with pytest.raises(ActionError, match=rf"got {value}; clip it in the policy, or use actions=clip"):
        ActionReader(LEAVES[kind], mode)(actions, range(4))


def test_a_wrong_number_of_actions_is_an_error_that_gymnasiums_users_expect():
    for mode in MODES:
        with pytest.raises(ValueError, match=r"must be int64 of shape \(4,\), got int64 of shape \(3,\)"):
            ActionReader(spaces.Discrete(3), mode)(np.zeros(3, np.int64), range(4))


@pytest.mark.parametrize("sequence", [list, tuple])
@pytest.mark.parametrize(
    "space",
    [Nested.action_space, spaces.Tuple((LEAVES["discrete"], LEAVES["box"])), spaces.Dict(only=LEAVES["multi_binary"])],
    ids=["nested", "tuple", "dict"],
)
def test_actions_of_dict_and_tuple_may_be_a_list_of_samples(space: spaces.Space, sequence: type):
    samples = [space.sample() for _ in range(5)]
    arrays = ActionReader(space)(sequence(samples), range(5))
    for leaf, array in zip(leaves(space), arrays, strict=True):
        assert array.dtype == leaf.dtype
        assert all(np.array_equal(row, leaf.of(sample)) for row, sample in zip(array, samples, strict=True))
    with pytest.raises(ActionError):
        ActionReader(space)(sequence(samples[:4]), range(5))


def test_what_gymnasium_reads_as_a_tuple_of_batches_is_one():
    pair = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))
    assert [array.tolist() for array in ActionReader(pair)([(0, 2), (1, 1)], range(2))] == [[0, 2], [1, 1]]


# Integers of any type.

INTEGERS = [order + kind for order in "<>" for kind in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]
EDGES = [2**bits + change for bits in (0, 1, 7, 8, 15, 16, 24, 31, 32, 56, 62, 63) for change in (-1, 0, 1)]
OF_INTEGERS = st.one_of(
    st.builds(spaces.Discrete, st.integers(1, 300), start=st.integers(-300, 300)),
    st.builds(spaces.Discrete, st.integers(1, 2**40), start=st.sampled_from([0, 1, -1, 2**40])),
    st.builds(lambda sizes: spaces.MultiDiscrete(sizes), st.lists(st.integers(1, 300), min_size=1, max_size=3)),
    st.builds(lambda n, start: spaces.MultiDiscrete([n, n], start=[start, 0]), st.integers(1, 9), st.integers(-9, 9)),
    st.builds(
        lambda dtype, low, size: spaces.Box(low, low + size, (2,), dtype),
        st.sampled_from([np.int16, np.int32, np.int64]),
        st.integers(-200, 200),
        st.integers(0, 2**14),
    ),
    st.builds(lambda size: spaces.Box(0, size, (2,), np.uint8), st.integers(0, 255)),
)


@given(st.data(), OF_INTEGERS, st.sampled_from(INTEGERS), st.sampled_from(MODES))
def test_integers_of_any_type_reach_the_env_with_their_value_or_are_refused(
    data: st.DataObject, space: spaces.Space, kind: str, mode: str
):
    [leaf] = leaves(space)
    low, high = (np.broadcast_to(bound, leaf.shape).astype(object) for bound in bounds_of(space))
    limits, near = np.iinfo(kind), {int(edge) for bound in (low, high) for edge in np.ravel(bound)}
    numbers = {*EDGES, *near, *(edge + 1 for edge in near), *(edge - 1 for edge in near)}
    allowed = sorted({*(sign * number for number in numbers for sign in (1, -1)), *near})
    fitting = [number for number in allowed if limits.min <= number <= limits.max]
    shape = 3, *leaf.shape
    values = data.draw(st.lists(st.sampled_from(fitting), min_size=math.prod(shape), max_size=math.prod(shape)))
    given_values = np.array(values, object).reshape(shape)
    is_inside = bool(((given_values >= low) & (given_values <= high)).all())
    actions = given_values.astype(kind)
    try:
        [array] = ActionReader(space, mode)(actions, range(3))
    except ActionError as error:
        assert not is_inside and mode != "clip" and "must be in" in str(error)
        return
    assert is_inside or mode == "clip"
    sent = np.zeros(shape, leaf.dtype)
    sent[...] = array
    assert sent.tolist() == np.clip(given_values, low, high).tolist()


@given(st.sampled_from(["<f4", ">f4", ">f8", ">f2"]), st.sampled_from(MODES))
def test_floats_of_the_other_order_of_bytes_are_the_same_numbers(kind: str, mode: str):
    [array] = ActionReader(spaces.Box(-1, 1, (2,), np.float32), mode)(np.full((3, 2), 0.25, kind), range(3))
    assert array.tolist() == [[0.25] * 2] * 3 and array.dtype.isnative
