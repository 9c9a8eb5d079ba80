"""Reading files that may change meanwhile, or that are another program's."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from written_data import quiet, written

from mpi_rollout.errors import ContentError, DataError
from mpi_rollout.storage import checked_file, untrusted
from mpi_rollout.storage.schema import FORMAT, FORMAT_VERSION, digest_of


@pytest.fixture
def changing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that grows with each look at the clock that sleeps."""
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setattr(untrusted.time, "sleep", lambda seconds: None)
    return path


class Reading:
    """Fails so many times, and writes to the file each time if `grows`."""

    def __init__(self, path: Path, num_failures: int, grows: bool):
        self.path, self.num_failures, self.grows, self.num_reads = path, num_failures, grows, 0

    def __call__(self) -> str:
        self.num_reads += 1
        if self.grows:
            with self.path.open("a") as file:
                file.write("x")
        if self.num_reads <= self.num_failures:
            raise DataError("torn")
        return "whole"


@pytest.mark.parametrize(("num_failures", "num_reads"), [(0, 1), (1, 2), (2, 3)])
def test_a_file_that_was_changed_amid_a_reading_is_read_again(changing: Path, num_failures: int, num_reads: int):
    read = Reading(changing, num_failures, grows=True)
    assert untrusted.steadily(str(changing), read) == "whole" and read.num_reads == num_reads


@pytest.mark.parametrize(("grows", "num_reads"), [(True, 3), (False, 1)])
def test_a_file_that_stays_torn_is_damaged(changing: Path, grows: bool, num_reads: int):
    read = Reading(changing, 9, grows)
    with pytest.raises(DataError, match="torn"):
        untrusted.steadily(str(changing), read)
    assert read.num_reads == num_reads


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({"config": ""}, DataError, f"^x was not written by {FORMAT}$"),
        ({"config": "", "digest": ""}, ContentError, "its attribute format is None, .*; the file is damaged"),
        ({"format": FORMAT, "format_version": np.int64(FORMAT_VERSION + 1)}, DataError, "^x has format version"),
        ({"format": FORMAT, "format_version": np.int64(FORMAT_VERSION - 1)}, DataError, "^x has format version"),
    ],
)
def test_a_file_of_another_program_or_version_is_refused(attributes: dict, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        checked_file.check_format(attributes, "x")
    checked_file.check_format({"format": FORMAT, "format_version": np.int64(FORMAT_VERSION)}, "x")


@pytest.mark.parametrize(
    ("name", "value"), [("env_spec", 3), ("finished", 3), ("seed", "three"), ("hosts", "[1]"), ("config", "[]")]
)
def test_a_damaged_attribute_is_named(tmp_path: Path, name: str, value: object):
    path = written(tmp_path, "complete")
    with h5py.File(path) as file:
        attributes = checked_file.attributes_of(file)
    checked_file.check_attributes(attributes)
    with pytest.raises(ContentError, match=rf"attribute {name}\b"):
        checked_file.check_attributes({**attributes, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reproducibility", 3),
        ("reproducibility", "always"),
        ("reproducibility", np.arange(3)),
        ("autoreset_mode", "foo"),
        ("has_episode_seeds", np.arange(3)),
    ],
    ids=["a number", "a word", "an array", "a mode", "seeds"],
)
def test_a_promise_or_a_mode_that_nobody_knows_is_damage(tmp_path: Path, name: str, value: object):
    with h5py.File(written(tmp_path, "complete")) as file:
        attributes = {**checked_file.attributes_of(file), name: value}
    attributes["digest"] = digest_of(attributes)
    with pytest.raises(ContentError, match=f"its attribute {name} is"):
        checked_file.check_attributes(attributes)


@pytest.mark.parametrize("kind", ["complete", "ended"])
def test_whose_file_it_is_is_read(tmp_path: Path, kind: str):
    read = checked_file.identity(quiet, str(written(tmp_path, kind)))
    assert read["complete"] == (kind == "complete") and '"num_envs": 3' in str(read["config"])
