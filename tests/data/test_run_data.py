"""A file as `mpi_rollout.open` gives it: attributes, columns, what is refused, and what a run adds meanwhile."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from crafted_files import attribute, craft
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st
from written_data import ACTIONS, NUM_STEPS, SMALL, Feed, ending, relist, written

import mpi_rollout
from mpi_rollout.core.spaces import describe
from mpi_rollout.data import reading
from mpi_rollout.errors import DataError
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.storage.values import space_of


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("run"), "complete")


def test_attributes_and_spaces_are_those_of_the_run(path: Path) -> None:
    with mpi_rollout.open(str(path)) as data:
        assert (data.num_envs, data.num_steps, data.seed, data.env_id) == (3, NUM_STEPS, 0, "CartPole-v1")
        assert data.autoreset_mode == AutoresetMode.NEXT_STEP and data.is_complete
        assert describe(data.observation_space) == describe(SMALL) and data.action_space == ACTIONS
        assert data.attributes["num_ranks"] == 1 and data.config.num_envs == 3
        assert data.final_observations is None and data.extras == {} and data.infos == {}


def test_a_column_gives_what_its_dataset_gives(path: Path) -> None:
    data = mpi_rollout.open(path)
    with h5py.File(path) as file:
        for column in (data.rewards, data.actions, data.observations["x"], data.observations["n"][0]):
            dataset = file["trajectories"][column.name]
            assert (column.shape, column.dtype, len(column)) == (dataset.shape, dataset.dtype, len(dataset))
            for key in (*np.s_[3:7, ::2, -3:, 5, -2], np.s_[3:7, 1:], np.s_[::4, 0], np.s_[...], np.s_[..., 0]):
                assert column[key].tobytes() == dataset[...][key].tobytes()
            assert np.asarray(column).tobytes() == dataset[...].tobytes()
            assert column[[2, 5]].tobytes() == dataset[...][[2, 5]].tobytes()
    for wrong in (NUM_STEPS, -NUM_STEPS - 1, [0, NUM_STEPS]):
        with pytest.raises(IndexError, match="out of range"):
            data.rewards[wrong]


def indices_of(size: int) -> st.SearchStrategy[Any]:
    """An index of an axis: a number, a slice, a list or an array of any shape, or a mask; a few do not fit."""
    numbers = st.integers(-size, size - 1)
    lists = st.lists(numbers, max_size=3)
    bound = st.none() | st.integers(-size - 2, size + 2)
    return st.one_of(
        numbers,
        numbers.map(np.int16),
        st.integers(-size - 1, size),
        st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, 3, -1, -2, -size])),
        lists,
        lists.map(lambda values: np.array(values, ">i4")),
        st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=1, max_size=2),
        st.lists(st.booleans(), min_size=size, max_size=size),
        st.lists(st.booleans(), min_size=size, max_size=size).map(np.array),
        st.just([True]),
    )


@pytest.fixture(scope="module")
def columns(path: Path) -> dict[str, tuple[Any, np.ndarray]]:
    """Two columns, and all that each has."""
    run = mpi_rollout.open(path)
    return {name: (column, column[...]) for name, column in (("reward", run.rewards), ("x", run.observations["x"]))}


@given(st.data(), st.sampled_from(["reward", "x"]))
def test_any_index_gives_what_numpy_gives(columns: dict, data: st.DataObject, name: str) -> None:
    column, whole = columns[name]
    others = st.sampled_from([None, Ellipsis, np.ones(whole.shape[:2], bool), np.arange(3) > 0])
    parts = [data.draw(indices_of(size)) for size in whole.shape[: data.draw(st.integers(0, whole.ndim))]]
    for _ in range(data.draw(st.integers(0, 2))):
        parts.insert(data.draw(st.integers(0, len(parts))), data.draw(others))
    key = parts[0] if len(parts) == 1 and data.draw(st.booleans()) else tuple(parts)
    try:
        expected = whole[key]
    except IndexError:
        with pytest.raises(IndexError):
            column[key]
        return
    found = column[key]
    assert (found.shape, found.dtype, found.tobytes()) == (expected.shape, expected.dtype, expected.tobytes())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (1.5, r"an index must be integers, slices, `...`, None, or lists or masks of these, got 1.5"),
        ("x", r"got 'x'"),
        (True, r"got True"),
        ([[1], [2, 3]], r"got \[\[1\], \[2, 3\]\]"),
        ((0, 0, 0), r"an index must be of at most 2 axes, with one ellipsis, got \(0, 0, 0\)"),
        (np.ones(2, bool), r"a mask must have the shape \(\d+,\), got \(2,\)"),
        ((0, [0, 3]), r"env index array\(\[0, 3\]\) is out of range: there are 3"),
    ],
    ids=str,
)
def test_an_index_that_means_nothing_is_refused_in_one_line(path: Path, wrong: Any, message: str) -> None:
    with pytest.raises(IndexError, match=message) as caught:
        mpi_rollout.open(path).rewards[wrong]
    assert "\n" not in str(caught.value)


def test_rows_beyond_the_last_commit_are_not_given(tmp_path: Path) -> None:
    path = written(tmp_path, "ended")
    with h5py.File(path, "r+") as file:
        file["trajectories"].attrs.modify("num_steps", np.int64(10))
    relist(path)
    data = mpi_rollout.open(path)
    assert data.rewards[...].shape == data.rewards[:99].shape == (10, 3) and len(data.observations["x"]) == 11
    assert (data.episodes["start"] + data.episodes["length"] <= 10).all()


def test_parts_of_a_pass_are_the_columns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SPAN_NBYTES", 1)
    data = mpi_rollout.open(path)
    parts = list(reading.spans_of(StoredRun(str(path)), ["observations", "rewards"], 9, NUM_STEPS, slice(0, 3)))
    assert parts[0].start == 8 and parts[-1].stop == NUM_STEPS
    for part in parts:
        assert np.array_equal(part.arrays["rewards"][:, :-1].T, data.rewards[part.start : part.stop])
        states = data.observations["x"][part.start : part.stop + 1]
        assert part.arrays["observations/x"].tobytes() == states.swapaxes(0, 1).tobytes()


def test_a_copy_in_another_process_reads_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = mpi_rollout.open(path)
    assert np.array_equal(pickle.loads(pickle.dumps(data)).rewards[...], data.rewards[...])


def test_a_file_is_followed_until_it_is_complete(tmp_path: Path) -> None:
    feed = Feed(SMALL)
    writer = feed.writer(tmp_path / "run.h5", 8)
    steps = feed.fill(writer, 60, {20, 40, 60})
    for _ in range(20):
        next(steps)
    writer.drain()
    data = mpi_rollout.open(tmp_path / "run.h5.part")
    assert data.num_steps == 20 and not data.is_complete
    starts = []
    for episode in data.follow(poll_s=0):
        starts.append((episode.env_index, episode.start))
        if len(starts) == 2:
            for _ in steps:
                pass
            writer.finish(ending(60))
            assert data.rewards[:20].any() and data.sample_transitions(5, 0).rewards.any()  # Under its new name.
    whole = mpi_rollout.open(tmp_path / "run.h5")
    assert data.path == whole.path and data.is_complete and data.num_steps == 60
    assert starts == whole.episodes[["env_index", "start"]].tolist()


def test_a_run_may_write_while_its_file_is_read(tmp_path: Path) -> None:
    feed = Feed(SMALL)
    writer = feed.writer(tmp_path / "run.h5", 8)
    expected = feed.expected(90)
    data = None
    for num_steps in feed.fill(writer, 90, range(1, 91, 3)):
        if num_steps % 5 != 2:
            continue
        writer.drain()
        data = data or mpi_rollout.open(tmp_path / "run.h5.part")
        known = data.num_steps
        assert np.array_equal(data.rewards[...], expected["rewards"][:known])
        data.refresh()
        if len(data.transitions):
            assert np.isin(data.sample_transitions(5, 0).rewards, expected["rewards"][: data.num_steps]).all()
    writer.discard()


def test_files_that_cannot_be_read_are_refused_in_one_line(tmp_path: Path, path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        mpi_rollout.open(tmp_path / "none.h5")
    for change, words in (
        (attribute("spaces", '{"observation": {"type": "Box"}, "action": {}}'), "describes no space"),
        (
            lambda file: file["episodes"].__setitem__(0, (99, *file["episodes"][0].tolist()[1:])),
            "episodes: row 0 cannot be",
        ),
        (lambda file: file["trajectories"].pop("actions"), "there is no trajectories/actions"),
    ):
        craft(Path(shutil.copy(path, tmp_path / "made.h5")), change)
        with pytest.raises(DataError, match=rf"made\.h5: .*{words}") as refused:
            mpi_rollout.open(tmp_path / "made.h5")
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (3,), np.float32),
        spaces.Box(0, 255, (4, 5, 3), np.uint8),
        spaces.Box(np.array([-1.0, 2.0]), np.array([1.0, np.inf])),
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([[2, 3], [4, 5]]),
        spaces.MultiDiscrete([2, 3], start=[1, -1]),
        spaces.MultiBinary((2, 3)),
        spaces.Dict({"b": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1))), "a": spaces.MultiBinary(4)}),
    ],
    ids=str,
)
def test_spaces_are_made_from_what_is_stored_of_them(space: spaces.Space) -> None:
    made = space_of(describe(space))
    assert made == space and made.sample() in space
