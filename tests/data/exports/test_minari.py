"""Minari itself loads what is exported, and finds in it what `mpi_rollout.open` reads."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from jobs import Job
from written_data import quiet, written

import mpi_rollout
from mpi_rollout.data import reading
from mpi_rollout.data.exports import minari as minari_export
from mpi_rollout.data.exports import selection
from mpi_rollout.data.exports.minari_metadata import described, policies_of, why_not_recovered
from mpi_rollout.envs.wrapping import describe_spec
from mpi_rollout.errors import DataError, StorageError, UsageError

minari = pytest.importorskip("minari")
h5py = pytest.importorskip("h5py")

NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (32, 40, 3), np.uint8),
        "pair": spaces.Tuple((spaces.Discrete(5, start=2), spaces.Box(-np.inf, 1, (2,), np.float16))),
        "deep": spaces.Dict({"bits": spaces.MultiBinary((2, 3)), "many": spaces.MultiDiscrete([4, 5], start=[1, -1])}),
    }
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Minari looks for data sets in these tests."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def exported(*files: Path, dataset_id: str = "tests/data-v0", **options: object):
    """Export files in this process; return what Minari loads."""
    folder = Path(os.environ["MINARI_DATASETS_PATH"], dataset_id, "data")
    folder.mkdir(parents=True)
    options |= {"dataset_id": dataset_id}
    minari_export.export(quiet, str(files[0]), [*map(str, files)], str(folder), options)
    assert sorted(os.listdir(folder)) == ["main_data.hdf5", "metadata.json"]
    return minari.load_dataset(dataset_id)


def same(first: object, second: object) -> bool:
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())


def assert_same_data(dataset: "minari.MinariDataset", *files: Path) -> None:
    """Every episode of the files is in the data set, under its number, with all its bytes."""
    with mpi_rollout.open([*files] if len(files) > 1 else files[0]) as data:
        rows = np.concatenate([data.episodes, data.unfinished])
        rows = rows[rows["length"] > 0]
        if len(files) > 1:
            rows = rows[np.argsort(rows["file"], kind="stable")]
        assert (dataset.total_episodes, dataset.total_steps) == (len(rows), rows["length"].sum())
        numbers = {
            (row["file"] if len(files) > 1 else 0, row["env_index"], row["start"]): i for i, row in enumerate(rows)
        }
        for episode in data.iter_episodes(rows):
            found = dataset[numbers[episode.file, episode.env_index, episode.start]]
            truncations = episode.truncations.copy()
            truncations[-1] |= not episode.terminated
            assert same(found.observations, episode.observations) and same(found.actions, episode.actions)
            assert same(found.rewards, episode.rewards) and same(found.terminations, episode.terminations)
            assert same(found.truncations, truncations) and found.terminations[-1] | found.truncations[-1]


@pytest.mark.parametrize("kind", ["complete", "running"])
def test_minari_loads_every_episode_of_a_file(tmp_path: Path, kind: str):
    file = written(tmp_path, kind)
    dataset = exported(file)
    assert_same_data(dataset, file)
    assert len(list(dataset.sample_episodes(3))) == 3
    assert 0 < len(dataset.filter_episodes(lambda episode: bool(episode.terminations[-1]))) < len(dataset)
    metadata = [*dataset.storage.get_episode_metadata(range(len(dataset)))]
    assert [each["total_steps"] for each in metadata] == [len(episode.rewards) for episode in dataset]
    assert [each["rewards_sum"] for each in metadata] == [episode.rewards.sum() for episode in dataset]
    assert "infos" in repr(dataset[0])


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_nested_spaces_and_images_keep_every_byte(tmp_path: Path, compression: str):
    file = written(tmp_path, "complete", NESTED)
    dataset = exported(file, compression=compression)
    assert_same_data(dataset, file)
    assert dataset.observation_space == NESTED
    with h5py.File(dataset.storage.data_path / "main_data.hdf5") as main:
        assert main["episode_0/observations/image"].compression == (None if compression == "none" else compression)


def test_envs_whose_episodes_do_not_fit_into_memory_are_read_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = written(tmp_path, "complete")
    monkeypatch.setattr(selection, "RUNNING_NBYTES", 1)
    monkeypatch.setattr(reading, "SPAN_NBYTES", 1)
    with mpi_rollout.open([file]) as data:
        assert len({*selection.exported_rows(data)["group"]}) == data.files[0].num_envs
    assert_same_data(exported(file), file)


def test_several_files_become_one_data_set(tmp_path: Path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    files = written(tmp_path / "a", "complete"), written(tmp_path / "b", "running")
    assert_same_data(exported(*files), *files)


def test_minari_combines_and_splits_what_is_exported(tmp_path: Path):
    file = written(tmp_path, "complete")
    both = minari.combine_datasets([exported(file), exported(file, dataset_id="tests/more-v0")], "tests/both-v0")
    assert len(both) == 2 * len(minari.load_dataset("tests/data-v0"))
    [few, _] = minari.split_dataset(both, [2, 3])
    assert len(few) == 2


def test_episodes_can_be_added_to_what_is_exported(tmp_path: Path):
    dataset = exported(written(tmp_path, "complete", spaces.Box(0, 255, (4,), np.uint8)))
    first, num_episodes = dataset[0], len(dataset)
    more = minari.data_collector.EpisodeBuffer(
        observations=first.observations, actions=first.actions, rewards=[*first.rewards],
        terminations=[*first.terminations], truncations=[*first.truncations], infos={},
    )  # fmt: skip
    dataset.update_dataset_from_buffer([more])
    assert same(minari.load_dataset("tests/data-v0")[num_episodes].observations, first.observations)


def test_the_metadata_say_what_the_user_says(tmp_path: Path):
    said = {
        "author": ["A", "B"], "author_email": ["a@b"], "code_permalink": "https://c", "algorithm_name": "guess",
        "description": "numbers", "requirements": ["numpy>=1"], "ref_min_score": 0.0, "ref_max_score": 2.0,
    }  # fmt: skip
    dataset = exported(written(tmp_path, "complete"), **said)
    metadata = dataset.storage.metadata
    assert {name: metadata[name] for name in said} == said | {"author": {"A", "B"}, "author_email": {"a@b"}}
    assert minari.get_normalized_score(dataset, np.array([1.0])) == [0.5]


def test_unsaid_metadata_come_from_the_run(tmp_path: Path):
    metadata = exported(written(tmp_path, "complete")).storage.metadata
    assert metadata["algorithm_name"] == "random" and "CartPole-v1, policy random, 3 envs" in metadata["description"]


def test_several_files_name_each_policy_once():
    files = [SimpleNamespace(config=SimpleNamespace(policy=policy)) for policy in ("random", "best.zip", "random")]
    assert policies_of(files) == "random, best.zip"


def test_images_are_stored_as_they_are(tmp_path: Path):
    file = written(tmp_path, "complete", spaces.Box(0, 255, (32, 32), np.uint8))
    dataset = exported(file)
    assert_same_data(dataset, file)
    assert not dataset.storage.jpeg_encoding


def test_data_without_a_transition_are_refused(tmp_path: Path):
    with mpi_rollout.open([written(tmp_path, "complete")]) as data:
        vars(data).update(episodes=data.episodes[:0], unfinished=data.episodes[:0])
        with pytest.raises(DataError, match="nothing to export"):
            selection.exported_rows(data)


def test_files_of_different_envs_are_refused(tmp_path: Path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    files = written(tmp_path / "a", "complete"), written(tmp_path / "b", "complete", spaces.Discrete(3))
    with pytest.raises(DataError):
        exported(*files)


def test_an_env_whose_spec_has_objects_is_not_recovered():
    plain = gymnasium.make("CartPole-v1")
    changed = gymnasium.wrappers.TransformReward(plain, lambda reward: 2 * reward)
    assert why_not_recovered(describe_spec(plain.spec)) == ""
    assert "its wrapper TransformReward are not known" in why_not_recovered(describe_spec(changed.spec))
    spec = plain.spec
    spec.kwargs["helper"] = object()
    assert "its argument helper was an object" in why_not_recovered(describe_spec(spec))


def test_a_dict_with_a_slash_in_a_key_is_refused():
    with pytest.raises(UsageError, match="'a/b'"):
        described(spaces.Dict({"a/b": spaces.Discrete(3)}))


def test_a_full_disk_is_told_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MPI_ROLLOUT_ANY_SIZE", raising=False)
    monkeypatch.setattr("mpi_rollout.data.exports.selection.shutil.disk_usage", lambda _: type("", (), {"free": 10}))
    with pytest.raises(StorageError, match="free; use --compression gzip"):
        exported(written(tmp_path, "complete"))


def test_an_env_and_the_starts_of_its_episodes_are_recovered(job: Job, place: Path):
    file = job.collect(None, "--env", "CartPole-v1", "--num-envs", "4", "--num-steps", "60", "--seed", "3")
    result = job(None, "export", "minari", file, "cartpole/random-v0", "--json", MINARI_DATASETS_PATH=str(place))
    assert result.code == 0, result.err
    dataset = minari.load_dataset("cartpole/random-v0")
    assert json.loads(result.out)["episodes"] == len(dataset) and json.loads(result.out)["notes"] == []
    assert_same_data(dataset, file)
    env = dataset.recover_environment()
    [metadata, *_] = dataset.storage.get_episode_metadata([0])
    observation, _ = env.reset(seed=metadata["seed"])
    episode = dataset[0]
    assert observation.tobytes() == episode.observations[0].tobytes()
    for action, expected in zip(episode.actions, episode.observations[1:], strict=True):
        assert env.step(action)[0].tobytes() == expected.tobytes()
    env.close()
    assert "cartpole" in minari.namespace.list_local_namespaces() and [*minari.list_local_datasets()] == [dataset.id]


def test_the_seeds_of_episodes_are_those_that_a_trainer_gave(tmp_path: Path):
    with mpi_rollout.connect("CartPole-v1", 2, record=tmp_path / "run.h5") as envs:
        envs.reset(seed=0)
        for _ in range(30):
            envs.step(np.zeros(2, np.int64))
    dataset = exported(tmp_path / "run.h5")
    seeds = [each.get("seed") for each in dataset.storage.get_episode_metadata(range(len(dataset)))]
    assert sorted(seeds[:2]) == [0, 1] and {*seeds[2:]} == {None}


@pytest.mark.mpi(2)
def test_a_single_env_is_recovered_where_envs_were_vectorized(job: Job):
    options = ["--env", "CartPole-v1", "--vectorization-mode", "vector_entry_point", "--num-steps", "40"]
    options += ["--env-kwargs", '{"max_episode_steps": 7}']
    files = [
        job.collect(2, *options, "--num-envs", "5", out="two.h5"),
        job.collect(None, *options, "--num-envs", "2", out="one.h5"),
    ]
    dataset = exported(*files)  # Of one env, though ranks had different numbers of envs.
    assert_same_data(dataset, *files)
    env = dataset.recover_environment()
    assert env.spec.max_episode_steps == 7 and env.observation_space == dataset.observation_space
    env.close()
