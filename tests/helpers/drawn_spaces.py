"""Spaces at random, for hypothesis: leaves of every kind, nested in dicts and tuples."""

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

DTYPES = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"]
SHAPES = st.lists(st.integers(1, 4), max_size=3).map(tuple)


def box(dtype: str, shape: tuple[int, ...]) -> spaces.Box:
    return spaces.Box(0, 1, shape, np.dtype(dtype))


LEAVES = st.one_of(
    st.builds(box, st.sampled_from(DTYPES), SHAPES),
    st.builds(spaces.Discrete, st.integers(1, 2**40), start=st.integers(-5, 5)),
    st.builds(spaces.MultiDiscrete, st.lists(st.integers(1, 9), min_size=1, max_size=4)),
    st.builds(spaces.MultiBinary, st.integers(1, 5)),
)


def _nested(inner: st.SearchStrategy[spaces.Space]) -> st.SearchStrategy[spaces.Space]:
    tuples = st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple)
    return tuples | st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(spaces.Dict)


SPACES = st.recursive(LEAVES, _nested, max_leaves=5)
