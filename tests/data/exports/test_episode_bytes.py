"""HDF5 reads the bytes of episodes that are made here, and adds to them."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from mpi_rollout.data.exports import episode_bytes, hdf5_bytes
from mpi_rollout.data.exports.episode_bytes import START, EpisodeBytes, Template
from mpi_rollout.data.exports.minari_columns import attributes_of

ROW = np.dtype([("number", "i8"), ("seed", "i8")])


def columns(number: int) -> dict[str, object]:
    """The members of an episode, drawn from its number."""
    draws = np.random.default_rng(number)
    length = int(draws.integers(1, 30))
    return {
        "observations": {
            "a": draws.normal(size=(length + 1, 4)).astype(np.float32),
            "ü": (draws.integers(0, 9, length + 1), draws.normal(size=(length + 1, 3, 2)).astype(np.float16)),
            "big": draws.integers(0, 256, (length + 1, 4, 5), np.uint8),
            "none": np.zeros((length + 1, 0, 2)),
        },
        "actions": draws.integers(0, 2, length),
        "rewards": draws.normal(size=length),
        "truncations": draws.random(length) > 0.5,
        "infos": {},
    }


def write(path: Path, num_episodes: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    written, templates = EpisodeBytes(descriptor, START), {}
    for number in range(num_episodes):
        own = columns(number)
        seed = -1 if number % 3 else number
        if (key := seed >= 0) not in templates:
            templates[key] = Template(own, len(own["rewards"]), has_seed=key)
        row = np.array([(number, seed)], ROW)[0]
        written.append(templates[key], own, attributes_of(row, own["rewards"]))
    written.flush()
    episode_bytes.finish(descriptor, np.concatenate(written.numbers), np.concatenate(written.addresses), written.end)
    os.close(descriptor)


def check(group: h5py.Group, number: int) -> None:
    own = columns(number)
    seen = {
        "observations/a": own["observations"]["a"],
        "observations/ü/_index_0": own["observations"]["ü"][0],
        "observations/ü/_index_1": own["observations"]["ü"][1],
        "observations/big": own["observations"]["big"],
        "observations/none": own["observations"]["none"],
        **{name: own[name] for name in ("actions", "rewards", "truncations")},
    }
    for name, array in seen.items():
        assert group[name].dtype == array.dtype and group[name].shape == array.shape
        assert group[name][()].tobytes() == array.tobytes(), name
    assert sorted(group) == sorted(own) and not len(group["infos"])
    rewards, attributes = own["rewards"], dict(group.attrs)
    assert attributes.pop("seed", -1) == (-1 if number % 3 else number)
    statistics = {f"rewards_{name}": getattr(rewards, name)() for name in ("sum", "mean", "std", "max", "min")}
    assert attributes == {"id": number, "total_steps": len(rewards), **statistics}


@pytest.fixture(params=[(32, 64), (1, 1), (2, 1)], ids=str)
def fan_out(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many links nodes have: with few, few episodes make a high tree."""
    monkeypatch.setattr(hdf5_bytes, "LEAF_K", request.param[0])
    monkeypatch.setattr(hdf5_bytes, "NODE_K", request.param[1])
    monkeypatch.setattr(episode_bytes, "BATCH", 7)
    monkeypatch.setattr(episode_bytes, "LARGE_NBYTES", 500)


@pytest.mark.usefixtures("fan_out")
@pytest.mark.parametrize("num_episodes", [1, 2, 3, 4, 5, 64, 65, 150])
def test_hdf5_reads_every_episode(tmp_path: Path, num_episodes: int):
    write(tmp_path / "file.hdf5", num_episodes)
    with h5py.File(tmp_path / "file.hdf5") as file:
        assert sorted(file) == sorted(f"episode_{number}" for number in range(num_episodes))
        for number in range(num_episodes):
            check(file[f"episode_{number}"], number)


@pytest.mark.usefixtures("fan_out")
@pytest.mark.parametrize("num_episodes", [1, 65])
def test_hdf5_adds_groups_attributes_and_members(tmp_path: Path, num_episodes: int):
    write(tmp_path / "file.hdf5", num_episodes)
    with h5py.File(tmp_path / "file.hdf5", "a") as file:
        for number in range(100):
            file.create_group(f"more_{number}")["x"] = number
        file["episode_0"].attrs.update({"words": "a" * 1000, "numbers": np.arange(100)})
        file["episode_0/infos/y"] = 3
        file["episode_0/more"] = 4
        del file[f"episode_{num_episodes - 1}"]
    with h5py.File(tmp_path / "file.hdf5") as file:
        assert len(file) == num_episodes + 99
        for number in range(1, num_episodes - 1):
            check(file[f"episode_{number}"], number)
        if num_episodes > 1:
            assert len(file["episode_0"].attrs) == 10 and file["episode_0/infos/y"][()] == 3
        assert [file[f"more_{number}/x"][()] for number in range(100)] == [*range(100)]


def test_a_tree_of_a_hundred_thousand_links_is_found(tmp_path: Path):
    names = np.array([b"episode_%d" % number for number in range(100_000)])
    place = hdf5_bytes.SUPERBLOCK_NBYTES
    index, tree, heap = hdf5_bytes.links_index(names, np.full(len(names), place, np.uint64), 200)
    head = hdf5_bytes.superblock(place, tree, heap, 200 + len(index)) + hdf5_bytes.root_header(tree, heap)
    (tmp_path / "file.hdf5").write_bytes(head.ljust(200, b"\0") + index)
    with h5py.File(tmp_path / "file.hdf5") as file:
        assert len(file) == 100_000 and all(f"episode_{number}" in file for number in range(0, 100_000, 997))
        assert "episode_100000" not in file and "" not in file and "episode" not in file
