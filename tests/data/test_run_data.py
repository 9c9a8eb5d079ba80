"""A file as `mpi_rollout.open` gives it: attributes, columns, what is refused, and what a run adds meanwhile."""

import pickle
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from crafted_files import attribute, craft
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
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
