"""Types of infos: what is a number, what is left out, and masks with their parts side by side."""

import numpy as np
import pytest

from mpi_rollout.core.column_types import checked_types, flat_mask, mask_name, read_type, read_types, types_in
from mpi_rollout.core.columns import typed_leaves, with_masks
from mpi_rollout.core.spaces import Leaf
from mpi_rollout.errors import UsageError, as_flag


def test_all_numbers_of_infos_have_types_and_the_rest_has_a_reason():
    first = {"lives": 3, "deep": {"r": np.float32(1), "name": "a"}, "place": np.zeros(3, np.int16), "late": True}
    second = {"lives": 2.5, "late": False, "ragged": np.zeros(2), "none": None, "_x": 1, "empty": np.zeros((0, 2))}
    third = {"ragged": np.zeros(3), "complex": 1j, "list": [1, 2], "a/b": 1, 5: 2}
    types, left_out = types_in([first, second, third])
    assert types == {"deep/r": "float32", "late": "bool", "lives": "float64", "place": ["int16", 3]}
    assert left_out["ragged"] == "its shape changes" and left_out["deep/name"] == "str" and left_out["_x"] == "its name"
    assert left_out["a/b"] == left_out["5"] == "its name"
    assert sorted(left_out) == ["5", "_x", "a/b", "complex", "deep/name", "empty", "list", "none", "ragged"]
    assert checked_types(types) == types


def test_words_outside_of_texts_need_no_quotation_marks():
    expected = {"lives": "int64", "position": ["float64", 3], "a/b": ["uint8", 2, 2], "int": "float32"}
    assert read_types('{"lives": int, "position": [float, 3], a: int}'.replace("a:", '"a":'))["a"] == "int64"
    given = '{"lives": int, position: [float, 3], "a/b": ["uint8", [2, 2]], "int": float32}'
    assert read_types(given) == expected and checked_types(expected) == expected
    assert read_types(" all ") == "all" and read_types("{}") == {}


@pytest.mark.parametrize(
    "kind", [(np.float32, (2, 3)), ("f4", [2, 3]), ["float32", 2, 3], ("f4", 2, np.int64(3))], ids=str
)
def test_all_ways_to_write_a_type_mean_the_same(kind: object):
    assert read_type(kind) == (np.dtype(np.float32), (2, 3)) and read_type(float) == (np.dtype(np.float64), ())
    assert typed_leaves({"deep/position": kind}) == (Leaf(("deep", "position"), np.dtype(np.float32), (2, 3)),)
    assert checked_types({"position": kind}) == {"position": ["float32", 2, 3]}


WRONG = "None", "3", '"some"', '{"a": null}', '{"a": []}', '{"a": [int, 1.5]}', '{"": int}', '{"a": "(2,"}'


@pytest.mark.parametrize("value", WRONG)
def test_other_values_are_refused(value: str):
    with pytest.raises(UsageError) as refused:
        read_types(value)
    assert refused.value.shown(as_flag).startswith("--store-infos")


def test_masks_stand_beside_their_infos():
    leaves = Leaf(("a",), np.dtype(int), (2,)), Leaf(("deep", "b"), np.dtype(float), ())
    assert [leaf.path for leaf in with_masks(leaves)] == ["a", "_a", "deep/b", "deep/_b"]
    assert mask_name("deep/b") == "deep/_b"
    parts = np.array([1, 0], np.int8), (np.array([1, 1, 0], np.int8), np.array([1], np.int8))
    assert flat_mask(parts).tolist() == [1, 0, 1, 1, 0, 1]
    assert flat_mask([1, 0, 1]).tolist() == [1, 0, 1] and flat_mask(np.ones(2)).tolist() == [1, 1]
