"""Reading files that may change meanwhile, that are another program's, or that are tables alone."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from written_data import NUM_STEPS, quiet, written

from mpi_rollout.errors import ContentError, DataError
from mpi_rollout.storage import reader
from mpi_rollout.storage.schema import FORMAT, FORMAT_VERSION, digest_of


@pytest.fixture
def changing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that grows with each look at the clock that sleeps."""
    path = tmp_path / "file"
    path.touch()
    monkeypatch.setattr(reader.time, "sleep", lambda seconds: None)
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
    assert reader.steadily(str(changing), read) == "whole" and read.num_reads == num_reads


@pytest.mark.parametrize(("grows", "num_reads"), [(True, 3), (False, 1)])
def test_a_file_that_stays_torn_is_damaged(changing: Path, grows: bool, num_reads: int):
    read = Reading(changing, 9, grows)
    with pytest.raises(DataError, match="torn"):
        reader.steadily(str(changing), read)
    assert read.num_reads == num_reads


@pytest.mark.parametrize(
    ("attributes", "error", "message"),
    [
        ({}, DataError, f"^x was not written by {FORMAT}$"),
        ({"format": f"{FORMAT}-scaling"}, DataError, "^x is a study, not a rollout; .* plot x"),
        ({"config": "", "digest": ""}, ContentError, "its attribute format is None, .*; the file is damaged"),
        ({"format": FORMAT, "format_version": np.int64(FORMAT_VERSION + 1)}, DataError, "^x has format version"),
        ({"format": FORMAT, "format_version": np.int64(0)}, DataError, "^x has format version 0"),
    ],
)
def test_a_file_of_another_program_or_version_is_refused(attributes: dict, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        reader.check_format(attributes, "x")
    reader.check_format({"format": FORMAT, "format_version": np.int64(FORMAT_VERSION)}, "x")


@pytest.mark.parametrize(
    ("name", "value"), [("env_spec", 3), ("finished", 3), ("seed", "three"), ("hosts", "[1]"), ("config", "[]")]
)
def test_a_damaged_attribute_is_named(tmp_path: Path, name: str, value: object):
    path = written(tmp_path, "complete")
    with h5py.File(path) as file:
        attributes = reader.attributes_of(file)
    reader.check_attributes(attributes)
    with pytest.raises(ContentError, match=rf"attribute {name}\b"):
        reader.check_attributes({**attributes, name: value})


@pytest.mark.parametrize("promised", [3, "always", np.arange(3)], ids=["number", "word", "array"])
def test_a_promise_that_nobody_makes_is_damage(tmp_path: Path, promised: object):
    with h5py.File(written(tmp_path, "complete")) as file:
        attributes = {**reader.attributes_of(file), "reproducibility": promised}
    attributes["digest"] = digest_of(attributes)
    with pytest.raises(ContentError, match="its attribute reproducibility is"):
        reader.check_attributes(attributes)


@pytest.mark.parametrize("kind", ["complete", "ended"])
def test_whose_file_it_is_is_read(tmp_path: Path, kind: str):
    read = reader.identity(quiet, str(written(tmp_path, kind)))
    assert read["complete"] == (kind == "complete") and '"num_envs": 3' in str(read["config"])


def test_only_rows_of_committed_steps_count(tmp_path: Path):
    with h5py.File(written(tmp_path, "complete"), "r+") as file:
        assert reader.num_steps_of(file) == NUM_STEPS
        for num_steps in (NUM_STEPS, 9):
            file["trajectories"].attrs["num_steps"] = num_steps
            rows = reader.committed_episodes(file)
            assert (rows["start"] + rows["length"] <= num_steps).all() and len(rows)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    path = tmp_path / "study.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.attrs["machine"], file.attrs["count"] = "here", 3
        rows = np.array([(1, 0.5, b"one"), (2, 1.5, b"two")], [("a", "i8"), ("b", "f8"), ("c", "S3")])
        file.create_dataset("rows", data=rows)
        file.attrs["digest"] = reader.contents_digest(file)
    return path


def test_tables_are_read_as_plain_data(tables: Path):
    read = reader.contents(quiet, str(tables), ["rows", "none"])
    assert read["tables"] == {"rows": {"columns": ["a", "b", "c"], "rows": [[1, 0.5, "one"], [2, 1.5, "two"]]}}
    assert read["attributes"] == {"machine": "here", "count": 3, "digest": read["attributes"]["digest"]}
    assert read["is_as_written"]


@pytest.mark.parametrize("what", ["a row", "an attribute", "no digest", "nothing was asked for"])
def test_what_was_changed_since_it_was_written_is_seen(tables: Path, what: str):
    with h5py.File(tables, "r+") as file:
        if what == "a row":
            row = file["rows"][0]
            row["a"] = 7
            file["rows"][0] = row
        elif what == "no digest":
            del file.attrs["digest"]
        else:
            file.attrs["machine"] = "there"
    names = [] if what.startswith("nothing") else ["rows"]
    is_as_written = what in ("no digest", "nothing was asked for")
    assert reader.contents(quiet, str(tables), names)["is_as_written"] == is_as_written


def test_what_is_no_table_is_refused(tables: Path):
    with h5py.File(tables, "r+") as file:
        file["numbers"] = np.arange(3)
    with pytest.raises(DataError, match="numbers is no table"):
        reader.contents(quiet, str(tables), ["numbers"])


def test_what_no_study_has_is_refused_at_once(tables: Path):
    with h5py.File(tables, "r+") as file:
        file["more/rows"] = np.arange(3)
    with pytest.raises(DataError, match="/more/rows does not belong to it"):
        reader.contents(quiet, str(tables), ["rows"])
    with h5py.File(tables, "r+") as file:
        del file["more"]
        for number in range(20):
            file.create_group(f"more{number}")
    with pytest.raises(DataError, match="it has more than 16 objects"):
        reader.contents(quiet, str(tables), ["rows"])


def test_the_state_of_a_file_that_is_gone_is_none(tmp_path: Path):
    assert reader._state(str(tmp_path / "none")) is None
    (tmp_path / "file").write_text("abc")
    size, _ = reader._state(str(tmp_path / "file"))
    assert size == os.path.getsize(tmp_path / "file") == 3
