"""The random policy chooses among the actions that an env's info `action_mask` allows."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from jobs import Job, Start, assert_same_bytes, datasets
from masked_envs import Masked

from mpi_rollout.core.layout import SlotLayout
from mpi_rollout.core.spaces import mask_leaves
from mpi_rollout.envs.infos import MaskColumn, mask_bits
from mpi_rollout.policies.random import RandomPolicy

SIZES = ("--num-envs", "7", "--num-steps", "60", "--seed", "3", "--progress", "none")
RUN = ("--env-factory", "masked_envs:Masked", *SIZES)
STOPS = (1, 6, 14, 33)


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
    for number, mode in enumerate(((), ("--mode", "async"), ("--num-groups", "2", "--dedicated-root"))):
        assert_same_bytes(datasets(job.collect(num_ranks, *RUN, *mode, out=f"{number}.h5")), whole)


def test_interruptions_do_not_change_the_actions(job: Job, whole: dict[str, np.ndarray]):
    starts = [
        Start((*RUN, "--out", f"{stop}.h5"), environment={"FAIL_AT": fail_at})
        for stop in STOPS
        for fail_at in (str(stop), "0")
    ]
    codes = [result.code for result in job.series(starts, timeout=200)]
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


def column(space: spaces.Space, num_envs: int) -> tuple[MaskColumn, np.ndarray, np.ndarray]:
    """What writes masks, and where they are then."""
    layout = SlotLayout(spaces.Discrete(2), num_envs, infos=mask_leaves(space))
    [(values, flags)] = layout.columns(np.zeros(layout.nbytes, np.uint8), num_envs).info_arrays
    return MaskColumn(space, (values, flags), 0), values, flags


def test_a_step_without_an_info_limits_no_actions():
    masks, _, flags = column(spaces.Discrete(3), 2)
    masks.begin(0, {"action_mask": np.array([0, 1, 1], np.int8)})
    masks.write([None, None], [])
    assert flags.tolist() == [False, False]


MANY = spaces.MultiDiscrete([3, 5], start=[-1, 2])
MASK = (np.array([0, 1, 1], np.int8), np.array([1, 0, 0, 0, 1], np.int8))


@pytest.mark.parametrize("mask", [MASK, list(map(list, MASK)), np.concatenate(MASK)], ids=["tuple", "lists", "flat"])
def test_each_component_has_its_mask(mask: Any):
    masks, values, flags = column(MANY, 400)
    for place in range(399):
        masks.begin(place, {"action_mask": mask})
    actions = RandomPolicy(MANY, 400, 0).by_masks(70, slice(0, 400), flags, values)
    assert Counter(map(tuple, actions[:399].tolist())).keys() == {(0, 2), (0, 6), (1, 2), (1, 6)}
    assert actions[399].tolist() == RandomPolicy(MANY, 400, 0).at(70)[399].tolist()


def test_all_allowed_actions_are_alike_likely_and_depend_on_seed_env_and_step_alone():
    space = spaces.Discrete(9)
    masks, values, flags = column(space, 3000)
    for place in range(3000):
        masks.begin(place, {"action_mask": np.array([0, 1, 0, 1, 1, 0, 0, 0, 0], bool)})
    policy = RandomPolicy(space, 3000, 0)
    actions = policy.by_masks(5, slice(0, 3000), flags, values)
    assert set(actions.tolist()) == {1, 3, 4} and min(Counter(actions.tolist()).values()) > 900
    some = slice(1000, 1010)
    assert RandomPolicy(space, 1200, 0).by_masks(5, some, flags[some], values[some]).tolist() == actions[some].tolist()
    assert policy.by_masks(6, some, flags[some], values[some]).tolist() != actions[some].tolist()
    assert RandomPolicy(space, 1200, 1).by_masks(5, some, flags[some], values[some]).tolist() != actions[some].tolist()


def test_natively_vectorized_envs_have_masks_too():
    masks, values, flags = column(spaces.Discrete(3), 4)
    told = {"action_mask": np.array([[0, 0, 1]] * 4, np.int8), "_action_mask": np.array([True, True, False, True])}
    masks.write_batch(told, np.array([False, True, False, False]))
    assert flags.tolist() == [True, False, False, True] and masks.places == {0, 1, 3}
    assert RandomPolicy(spaces.Discrete(3), 4, 0).by_masks(0, slice(0, 4), flags, values)[[0, 3]].tolist() == [2, 2]
    masks.write_batch({}, np.zeros(4, bool))
    assert not flags.any() and not masks.places


def test_there_is_no_room_for_masks_where_there_are_none():
    box = spaces.Box(0, 1, (2,), np.float32)
    assert mask_leaves(box) == mask_leaves(spaces.Discrete(10**6)) == mask_leaves(spaces.Dict(a=box)) == ()
    assert mask_leaves(MANY)[0].shape == (1,)


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


def column_of(space: spaces.Space, num_envs: int, first_env_index: int = 0) -> tuple[MaskColumn, np.ndarray]:
    """A column of masks, and which envs have one in it."""
    layout = SlotLayout(spaces.Discrete(2), num_envs, infos=mask_leaves(space))
    ((values, flags),) = layout.columns(np.zeros(layout.nbytes, np.uint8), num_envs).info_arrays
    return MaskColumn(space, (values, flags), first_env_index), flags


def test_the_masks_of_a_step_are_written_for_the_envs_that_have_some(capfd: pytest.CaptureFixture):
    column, flags = column_of(spaces.Discrete(9), 3, first_env_index=10)
    masks = np.eye(9, dtype=np.int8)
    column.begin(0, {"action_mask": masks[0]})
    column.begin(1, {})
    column.begin(2, {"action_mask": masks[8]})
    assert flags.tolist() == [True, False, True] and column.info_of(1) == {}
    assert column.info_of(2)["action_mask"].tolist() == masks[8].tolist()
    column.write([{"action_mask": masks[1]}, {"action_mask": masks[2]}, {"action_mask": masks[3]}], [2])
    assert flags.tolist() == [True, False, False]
    assert column.info_of(0)["action_mask"].tolist() == masks[1].tolist()
    column.write([{"action_mask": masks[1] * 2}, {}, {}], [])
    assert (
        flags.tolist() == [False] * 3
        and capfd.readouterr().err.count("env 10: its info 'action_mask' should be 0 or") == 1
    )
    column.begin(0, {})
    assert column.places == {2}


def test_numbers_that_are_no_integers_are_no_masks_though_all_envs_give_them(capfd: pytest.CaptureFixture):
    column, flags = column_of(spaces.Discrete(3), 2)
    for place in range(2):
        column.begin(place, {"action_mask": np.ones(3, np.int8)})
    assert flags.tolist() == [True, True]
    column.write([{"action_mask": np.ones(3)}, {"action_mask": np.ones(3)}], [])
    assert flags.tolist() == [False, False]
    column.write_batch({"action_mask": np.ones((2, 3), np.float32)}, np.zeros(2, bool))
    assert flags.tolist() == [False, False] and "got float64: [1. 1. 1.]" in capfd.readouterr().err


def test_masks_of_natively_vectorized_envs_come_in_one_array():
    column, flags = column_of(spaces.Discrete(3), 3)
    masks = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.int8)
    column.write_batch({"action_mask": masks}, np.array([False, True, False]))
    assert flags.tolist() == [True, False, True] and column.info_of(2)["action_mask"].tolist() == [0, 0, 1]
    column.write_batch({"action_mask": masks, "_action_mask": np.array([False, True, False])}, np.zeros(3, bool))
    assert flags.tolist() == [False, True, False]
    column.write_batch({}, np.zeros(3, bool))
    assert flags.tolist() == [False] * 3 and column.places == set()


def test_a_space_without_masks_is_said_once(capfd: pytest.CaptureFixture):
    column = MaskColumn(spaces.Box(0, 1), None, 4)
    column.write_batch({"action_mask": np.ones((2, 3)), "_action_mask": np.array([False, True])}, np.zeros(2, bool))
    column.begin(0, {"action_mask": np.ones(3)})
    assert capfd.readouterr().err.count("env 5: its info 'action_mask' is heeded for Discrete") == 1
