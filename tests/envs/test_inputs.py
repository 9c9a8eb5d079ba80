"""What envs are given: actions, and what a trainer may give to `reset`: seeds, options and masks, for all or each."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from mpi_rollout.envs.inputs import action_splitter, one_for_each, read_seed, seed_of_each, take_reset_mask


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(None, None), (0, 0), (np.int64(7), 7), (np.array(7), 7), ([3, None, np.uint8(5)], [3, None, 5])],
    ids=str,
)
def test_seeds_become_integers_of_python(seed: object, expected: object):
    read = read_seed(seed, 3)
    assert read == expected
    assert all(type(number) in (int, type(None)) for number in (read if isinstance(read, list) else [read]))


@pytest.mark.parametrize(
    ("seed", "words"),
    [(-1, "at least 0, got -1"), ([1, -2, 3], "at least 0, got -2"), ([1, 2], "each of 3 envs, got 2")],
    ids=str,
)
def test_seeds_that_no_env_can_have_are_refused(seed: object, words: str):
    with pytest.raises(ValueError, match=words):
        read_seed(seed, 3)


@pytest.mark.parametrize("seed", [1.5, "12", object(), [1, 2.5, 3]], ids=["float", "text", "object", "list"])
def test_what_is_no_seed_is_refused(seed: object):
    with pytest.raises(TypeError, match="seed must be a whole number"):
        read_seed(seed, 3)


def test_one_seed_is_counted_on_and_one_set_of_options_is_for_all():
    assert list(seed_of_each(5, 3)) == [5, 6, 7]
    assert list(seed_of_each(None, 2)) == [None, None]
    assert list(one_for_each("options", {"level": 2}, 2)) == [{"level": 2}] * 2
    assert list(one_for_each("options", [{"level": 1}, None], 2)) == [{"level": 1}, None]
    with pytest.raises(ValueError, match="options must be one for all, or a list with one for each of 3 envs, got 2"):
        one_for_each("options", [None, None], 3)


class OwnBox(Box):
    """A space of a user's own, which Gymnasium's `iterate` takes for none that it knows."""


def test_actions_of_nested_spaces_come_apart_and_are_copies():
    space = Tuple((OwnBox(0, 9, (2,)), Dict({"gear": Discrete(3)})))
    boxes, gears = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([2, 0, 1])
    first, _, last = action_splitter(space)((boxes, {"gear": gears}))
    boxes[:] = gears[:] = 0
    assert first[0].tolist() == [0, 1] and first[1] == {"gear": 2}
    assert last[0].tolist() == [4, 5] and last[1] == {"gear": 1}


def test_a_mask_is_taken_out_of_a_copy():
    mask = np.array([True, False])
    options = {"reset_mask": mask, "level": 2}
    taken, rest = take_reset_mask(options, 2)
    assert taken is mask and rest == {"level": 2} and set(options) == {"reset_mask", "level"}
    assert take_reset_mask({"level": 2}, 2) == (None, {"level": 2})
