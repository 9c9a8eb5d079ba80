"""The random policy chooses among the actions that an env's info `action_mask` allows."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from jobs import Job, Start, assert_same_bytes, datasets, files_in_ways
from masked_envs import Masked

from mpi_rollout.envs.infos import MaskColumn, mask_bits
from mpi_rollout.policies.random import RandomPolicy

SIZES = ("--num-envs", "7", "--num-steps", "60", "--seed", "3", "--progress", "none")
RUN = ("--env-factory", "masked_envs:Masked", *SIZES)
STOPS = (1, 33)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    return datasets(Job(tmp_path_factory.mktemp("whole")).collect(None, *RUN))


def test_a_run_gives_its_envs_only_actions_that_they_allow(whole: dict[str, np.ndarray]):
    """The env refuses others.  Where there is no mask, the action is that of an env without masks."""
    policy = RandomPolicy(Masked.action_space, 7, 3)
    drawn = np.array([policy() for _ in range(60)])
    is_masked = whole["observations"][:60, :, 0] % 3 != 0
    assert (whole["actions"] == drawn)[~is_masked].all()
    ends = whole["terminations"]
    assert (whole["actions"] == drawn)[ends.nonzero()[0][:-7] + 1, ends.nonzero()[1][:-7]].all()
    assert (whole["actions"] != drawn).sum() > 50


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
def test_ranks_and_modes_do_not_change_the_actions(job: Job, whole: dict[str, np.ndarray], num_ranks: int):
    modes = (), ("--batch-size", "1"), ("--num-groups", "2", "--root-envs", "0")
    for path in files_in_ways(job, num_ranks, {"masked": RUN}, lambda *_: modes)["masked"]:
        assert_same_bytes(datasets(path), whole)


def test_interruptions_do_not_change_the_actions(job: Job, whole: dict[str, np.ndarray]):
    starts = [
        Start((*RUN, "--out", f"{stop}.h5"), environment={"FAIL_AT": fail_at})
        for stop in STOPS
        for fail_at in (str(stop), "0")
    ]
    codes = [result.code for result in job.series(starts)]
    assert codes == [70, 0] * len(STOPS)
    for stop in STOPS:
        assert_same_bytes(datasets(job.folder / f"{stop}.h5"), whole)


def test_what_is_no_mask_is_said_once_and_not_heeded(job: Job):
    names = ("Wrongly", "Unmasked", "strict_taxi")
    starts = [Start(("--env-factory", f"masked_envs:{name}", *SIZES, "--out", f"{name}.h5")) for name in names]
    wrongly, unmasked, taxi = job.series(starts)
    assert [wrongly.code, unmasked.code, taxi.code] == [0, 0, 0], (wrongly.err, unmasked.err, taxi.err)
    assert wrongly.err.count("\n") == unmasked.err.count("\n") == 1
    assert "its info 'action_mask' should be 0 or 1 for each action of Discrete(5, start=2), got float64" in wrongly.err
    assert "its info 'action_mask' is heeded for Discrete and MultiDiscrete of at most 65,536 actions; " in unmasked.err
    policy = RandomPolicy(Masked.action_space, 7, 3)
    assert datasets(job.folder / "Wrongly.h5")["actions"].tolist() == [policy().tolist() for _ in range(60)]


def given(masks: MaskColumn) -> list[int]:
    """The places of the envs that say what they allow."""
    return masks.given()[0].tolist()


def bits(masks: MaskColumn) -> list[list[int]]:
    """What these envs say, of the first 3 actions."""
    return np.unpackbits(masks.given()[1], axis=1)[:, :3].tolist()


MANY = spaces.MultiDiscrete([3, 5], start=[-1, 2])
MASK = (np.array([0, 1, 1], np.int8), np.array([1, 0, 0, 0, 1], np.int8))


@pytest.mark.parametrize("mask", [MASK, list(map(list, MASK)), np.concatenate(MASK)], ids=["tuple", "lists", "flat"])
def test_each_component_has_its_mask(mask: Any):
    masks = MaskColumn(MANY, range(400))
    for place in range(399):
        masks.begin(place, {"action_mask": mask})
    places, packed = masks.given()
    assert places.tolist() == list(range(399))
    actions = RandomPolicy(MANY, 400, 0).by_masks(70, places, packed)
    assert actions.shape == (399, 2) and actions.dtype == MANY.dtype
    assert Counter(map(tuple, actions.tolist())).keys() == {(0, 2), (0, 6), (1, 2), (1, 6)}


def test_all_allowed_actions_are_alike_likely_and_depend_on_seed_env_and_step_alone():
    space = spaces.Discrete(9)
    packed = np.tile(np.packbits(np.array([0, 1, 0, 1, 1, 0, 0, 0, 0])), (3000, 1))
    policy = RandomPolicy(space, 3000, 0)
    actions = policy.by_masks(5, np.arange(3000), packed)
    assert set(actions.tolist()) == {1, 3, 4} and min(Counter(actions.tolist()).values()) > 900
    some = np.array([1000, 1003, 1100])
    for envs in (1200, range(1000, 1101), range(990, 1200)):
        assert RandomPolicy(space, envs, 0).by_masks(5, some, packed[:3]).tolist() == actions[some].tolist()
    many = np.arange(1000, 1030)
    assert policy.by_masks(6, many, packed[:30]).tolist() != actions[many].tolist()
    assert RandomPolicy(space, 1200, 1).by_masks(5, many, packed[:30]).tolist() != actions[many].tolist()


@pytest.mark.parametrize(
    ("space", "mask", "packed"),
    [
        (spaces.Discrete(8), [1, 0, 0, 0, 0, 0, 1, 1], [0b10000011]),
        (spaces.Discrete(9), [1, 0, 0, 0, 0, 0, 1, 1, 1], [0b10000011, 0b10000000]),
        (MANY, MASK, [0b01110001]),
    ],
    ids=str,
)
def test_a_mask_is_given_as_bits_eight_to_a_byte(space: spaces.Space, mask: Any, packed: list[int]):
    masks = MaskColumn(space, range(10, 12))
    masks.begin(1, {"action_mask": mask})
    places, rows = masks.given()
    assert places.tolist() == [1] and rows.tolist() == [packed] and rows.dtype == np.uint8


@pytest.mark.parametrize(
    ("mask", "sizes", "bits"),
    [
        (np.array([1, 0, 1], np.int8), [3], [1, 0, 1]),
        ([True, False], [2], [1, 0]),
        ((np.array([1, 0]), np.array([0, 1, 1])), [2, 3], [1, 0, 0, 1, 1]),
        (((np.array([1, 0]),), (np.array([1]),)), [2, 1], [1, 0, 1]),
        (np.array([1, 0, 0, 1, 1]), [2, 3], [1, 0, 0, 1, 1]),
    ],
)
def test_a_mask_is_one_array_or_one_for_each_component(mask: Any, sizes: list[int], bits: list[int]):
    assert mask_bits(mask, sizes).tolist() == [bool(bit) for bit in bits]


@pytest.mark.parametrize(
    ("mask", "sizes"),
    [
        (np.array([1.0, 0.0]), [2]),
        (np.array([1, 2]), [2]),
        (np.array([0, -1]), [2]),
        (np.array([1, 0, 1]), [2]),
        ((np.array([1, 0, 0]), np.array([0, 1])), [2, 3]),
        (np.ones((2, 2), np.int8), [4]),
        (np.array(["a", "b"]), [2]),
        ((), [2]),
    ],
    ids=str,
)
def test_what_is_no_mask_is_refused_by_itself(mask: Any, sizes: list[int]):
    with pytest.raises(ValueError):
        mask_bits(mask, sizes)


def test_the_masks_of_a_step_are_written_for_the_envs_that_have_some(capfd: pytest.CaptureFixture):
    column = MaskColumn(spaces.Discrete(9), range(10, 13))
    masks = np.eye(9, dtype=np.int8)
    column.begin(0, {"action_mask": masks[0]})
    column.begin(1, {})
    column.begin(2, {"action_mask": masks[2]})
    assert given(column) == [0, 2] and bits(column) == [[1, 0, 0], [0, 0, 1]]
    column.write([{"action_mask": masks[1]}, {"action_mask": masks[2]}, {"action_mask": masks[3]}], [2])
    assert given(column) == [0] and bits(column) == [[0, 1, 0]]
    column.write([{"action_mask": masks[1] * 2}, {}, None], [])  # The last one has no info.
    assert given(column) == [] and capfd.readouterr().err.count("env 10: its info 'action_mask' should be 0 or") == 1
    column.begin(0, {})
    assert column.places == {2}


def test_numbers_that_are_no_integers_are_no_masks_though_all_envs_give_them(capfd: pytest.CaptureFixture):
    column = MaskColumn(spaces.Discrete(3), range(2))
    for place in range(2):
        column.begin(place, {"action_mask": np.ones(3, np.int8)})
    assert given(column) == [0, 1]
    column.write([{"action_mask": np.ones(3)}, {"action_mask": np.ones(3)}], [])
    assert given(column) == []
    column.write_batch({"action_mask": np.ones((2, 3), np.float32)}, np.zeros(2, bool))
    assert given(column) == [] and "got float64: [1. 1. 1.]" in capfd.readouterr().err


def test_masks_of_natively_vectorized_envs_come_in_one_array():
    column = MaskColumn(spaces.Discrete(3), range(3))
    masks = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.int8)
    column.write_batch({"action_mask": masks}, np.array([False, True, False]))
    assert given(column) == [0, 2] and bits(column)[1] == [0, 0, 1]
    column.write_batch({"action_mask": masks, "_action_mask": np.array([False, True, False])}, np.zeros(3, bool))
    assert given(column) == [1]
    column.write_batch({}, np.zeros(3, bool))
    assert given(column) == [] and column.places == set()


@pytest.mark.parametrize("space", [spaces.Box(0, 1), spaces.Discrete(10**6)], ids=str)
def test_a_space_without_masks_is_said_once(space: spaces.Space, capfd: pytest.CaptureFixture):
    column = MaskColumn(space, range(4, 6))
    column.write_batch({"action_mask": np.ones((2, 3)), "_action_mask": np.array([False, True])}, np.zeros(2, bool))
    column.begin(0, {"action_mask": np.ones(3)})
    assert capfd.readouterr().err.count("env 5: its info 'action_mask' is heeded for Discrete") == 1
