"""What a trainer may give to `reset`: seeds, options and masks, for all envs or for each."""

import numpy as np
import pytest

from mpi_rollout.envs.inputs import options_of_each, read_seed, seed_of_each, take_reset_mask


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
    assert list(options_of_each({"level": 2}, 2)) == [{"level": 2}] * 2
    assert list(options_of_each([{"level": 1}, None], 2)) == [{"level": 1}, None]
    with pytest.raises(ValueError, match="options must be a dict or a list with one for each of 3 envs, got 2"):
        options_of_each([None, None], 3)


def test_a_mask_is_taken_out_of_a_copy():
    mask = np.array([True, False])
    options = {"reset_mask": mask, "level": 2}
    taken, rest = take_reset_mask(options, 2)
    assert taken is mask and rest == {"level": 2} and set(options) == {"reset_mask", "level"}
    assert take_reset_mask({"level": 2}, 2) == (None, {"level": 2})
