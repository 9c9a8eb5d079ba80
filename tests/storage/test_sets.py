"""What is found wrong with a set of shards: in one line that names the file, whoever reads it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from shard_sets import RANGES, ShardFeed, mark, shards_of, write, written_set
from written_data import NUM_STEPS, SMALL, Feed, damage, quiet, relist

import mpi_rollout
from mpi_rollout.commands.run_summary import summary
from mpi_rollout.data.run_data import RunData
from mpi_rollout.errors import DataError
from mpi_rollout.storage.schema import digest_of
from mpi_rollout.storage.verification import verify

Change = Callable[[Path], object]
READERS = {"inspect": lambda path: summary(quiet, path), "verify": lambda path: verify(quiet, path), "open": RunData}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_set(tmp_path_factory.mktemp("whole"), "complete")[0]


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole.parent, tmp_path / "copy")) / whole.name


def refused(reader: str, path: Path) -> str:
    with pytest.raises(DataError) as caught:
        READERS[reader](str(path))
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    return message


def replace(path: Path, num_steps: int) -> None:
    shard = shards_of(path)[1]
    shard.unlink()
    write(ShardFeed(Feed(SMALL, RANGES[-1].stop), RANGES[1]), shard, num_steps, "complete")
    Path(f"{shard}.part").rename(shard)


def swap(path: Path) -> None:
    shards = shards_of(path)
    shutil.copy(shards[0], shards[2])


def no_commits(path: Path) -> None:
    with h5py.File(shards_of(path)[1], "r+") as file:
        del file["commits"]
        file.create_group("commits")


OTHERS: dict[str, tuple[Change, str, int]] = {
    "missing": (lambda path: shards_of(path)[1].unlink(), "no such file; it is a shard of ", 1),
    "a copy of another shard": (swap, "it has envs 0 to 2 of the run, and is a copy of another shard", 2),
    "of another run": (lambda path: mark(shards_of(path)[1], "0bad"), "but of another run; put back the shard", 1),
    "older": (lambda path: replace(path, NUM_STEPS - 4), "was completed with another one of 21 steps; put back", 1),
    "newer": (lambda path: replace(path, NUM_STEPS + 4), "was completed with another one of 21 steps; put back", 1),
    "with another list": (lambda path: mark(shards_of(path)[1]), "it has 21 steps, ", 1),
    "without commits": (no_commits, "there is no commits", 1),
    "empty": (lambda path: os.truncate(shards_of(path)[1], 0), "it is empty", 1),
    "cut": (lambda path: os.truncate(shards_of(path)[1], 2000), "truncated file", 1),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHERS)
def test_a_file_that_is_not_the_shard_is_named(path: Path, case: str):
    change, words, number = OTHERS[case]
    shard = shards_of(path)[number]
    change(path)
    for reader in READERS:
        message = refused(reader, path)
        assert words in message and message.startswith(f"{shard}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_shard_that_may_not_be_read_is_named(path: Path):
    shards_of(path)[1].chmod(0)
    for reader in READERS:
        assert "Permission denied" in refused(reader, path)


def test_all_shards_that_are_wrong_are_named(path: Path):
    shards_of(path)[0].unlink(), mark(shards_of(path)[0], "0bad")
    message = refused("verify", path)
    assert "envs-0-2.h5: no such file" in message and "envs-3-3.h5: it is no shard of" in message


def test_a_damaged_byte_in_a_shard_is_found(path: Path):
    shard = shards_of(path)[1]
    damage(shard, "trajectories/rewards", "zeros")
    assert f"{shard}: trajectories/rewards, rows 0" in refused("verify", path)
    with mpi_rollout.open(path) as data, pytest.raises(DataError, match=f"{shard}: trajectories/rewards"):
        data.rewards[...]


def craft(path: Path, change: Callable[[h5py.File], object]) -> None:
    """Change a manifest; nobody else can tell that it was not written so."""
    with h5py.File(path, "r+") as file:
        change(file)
        file.attrs["digest"] = digest_of(file.attrs)
    relist(path)


def shards(value: object) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file.attrs["shards"] = json.dumps(value)

    return change


X = "trajectories/observations/x"
END = [NUM_STEPS, "0" * 64]
MANIFESTS = {
    "overlapping": (shards([[0, 3, *END], [2, 5, *END]]), "should be consecutive ranges of envs, got [2, 5, 21"),
    "a gap": (shards([[0, 3, *END], [4, 3, *END]]), "should be consecutive ranges of envs, got [4, 3, 21"),
    "too few": (shards([[0, 3, *END]]), "has 3 envs, its run has 7"),
    "too many": (shards([[0, 3, *END], [3, 9, *END]]), "has 12 envs, its run has 7"),
    "none": (shards([]), "has 0 envs, its run has 7"),
    "an empty one": (shards([[0, 0, *END], [0, 7, *END]]), "should be consecutive ranges of envs, got [0, 0"),
    "a path": (shards([["/etc/passwd", 7, *END]]), "should be consecutive ranges of envs, got ['/etc/passwd'"),
    "no ends": (shards([[0, 7]]), "does not say how a shard was complete: [0, 7]"),
    "no list": (shards({}), "should be a list in JSON"),
}


@pytest.mark.parametrize("case", MANIFESTS)
def test_a_manifest_that_cannot_be_is_refused(path: Path, case: str):
    change, words = MANIFESTS[case]
    craft(path, change)
    for reader in READERS:
        assert words in refused(reader, path)


def elsewhere(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((NUM_STEPS, 7), "f8")
    layout[...] = h5py.VirtualSource("other.h5", "data", (NUM_STEPS, 7))
    del file["trajectories/rewards"]
    file.create_virtual_dataset("trajectories/rewards", layout)


def every_other(file: h5py.File) -> None:
    """Take every other row of each shard: other programs would read fill values between them."""
    column = file["trajectories/rewards"]
    layout = h5py.VirtualLayout(column.shape, column.dtype)
    for (_, name, dataset, _), envs in zip(column.virtual_sources(), RANGES, strict=True):
        layout[::2, envs.start : envs.stop] = h5py.VirtualSource(name, dataset, (NUM_STEPS, len(envs)))[::2]
    del file["trajectories/rewards"]
    file.create_virtual_dataset("trajectories/rewards", layout)


def changed_return(file: h5py.File) -> None:
    rows = file["episodes"][...]
    rows["return"][0] += 1
    file["episodes"][...] = rows


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (elsewhere, "trajectories/rewards is not made of its shards, but of other.h5"),
        (every_other, "trajectories/rewards is not made of its shards"),
        (lambda file: file.__delitem__("trajectories/rewards"), "there is no trajectories/rewards"),
        (changed_return, "episodes has "),
        (
            lambda file: file["trajectories/observations/x"].attrs.modify("not_finite", np.zeros(3, "i8")),
            "wrong values",
        ),
    ],
    ids=["elsewhere", "every other", "missing", "episodes", "counts"],
)
def test_what_a_manifest_says_of_its_shards_is_compared_and_nobody_follows_it(
    path: Path, whole: Path, change: Callable[[h5py.File], object], words: str
):
    with h5py.File(path.parent / "other.h5", "w") as other:
        other["data"] = np.full((NUM_STEPS, 7), 4711.0)
    craft(path, change)
    assert words in refused("verify", path)
    with mpi_rollout.open(path) as data, mpi_rollout.open(whole) as expected:
        assert np.array_equal(data.rewards[...], expected.rewards[...])


def test_a_manifest_without_a_column_is_not_whole(path: Path):
    craft(path, lambda file: file.__delitem__("trajectories/rewards"))
    assert refused("inspect", path) == f"{path}: there is no trajectories/rewards"


def test_a_column_that_is_in_the_manifest_is_refused(path: Path):
    def own(file: h5py.File) -> None:
        del file["trajectories/rewards"]
        file["trajectories/rewards"] = np.zeros((NUM_STEPS, 7))

    craft(path, own)
    for reader in READERS:
        assert "/trajectories/rewards has data in this file" in refused(reader, path)


def test_a_set_can_be_moved_and_keeps_its_name(path: Path, whole: Path, tmp_path: Path):
    with h5py.File(path) as file, mpi_rollout.open(whole) as expected:
        assert np.array_equal(file["trajectories/rewards"][...], expected.rewards[...])
    other = path.with_name("other.h5")
    path.rename(other), Path(f"{path}.shards").rename(f"{other}.shards")
    with mpi_rollout.open(other) as data, mpi_rollout.open(whole) as expected:
        assert np.array_equal(data.rewards[...], expected.rewards[...])
    assert "; call the file big.h5 and its folder big.h5.shards again, where " in refused("verify", other)
