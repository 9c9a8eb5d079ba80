"""Whatever type an attribute has, in anybody's file, it is read as it is or refused in one line: DataError."""

import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
from diaries import keep_diary
from shard_sets import written_set
from written_data import quiet, written

from mpi_rollout.errors import DataError
from mpi_rollout.storage.checked_file import identity
from mpi_rollout.storage.manifest import is_set, read_manifest
from mpi_rollout.storage.schema import digest_of, is_manifest
from mpi_rollout.storage.verification import verify

ODD = {
    "integers": np.arange(3),
    "a table": np.zeros((2, 2)),
    "texts": np.array(["mpi_rollout", "mpi_rollout"], dtype=h5py.string_dtype()),
    "nothing": h5py.Empty("f8"),
    "no elements": np.zeros(0),
    "not a number": np.float64("nan"),
    "a large number": np.uint64(2**64 - 1),
    "a complex number": np.complex128(1j),
    "true": np.True_,
    "a row": np.array((1, 2.0), dtype=[("a", "i4"), ("b", "f8")]),
    "bytes": np.void(b"\xff\0"),
    "text": "x",
    "no text": "",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("files")
    keep_diary("CartPole-v1", 2, str(folder / "recording.h5"), {})
    return {
        "run": written(folder, "complete"),
        "set": written_set(folder, "complete")[0],
        "recording": folder / "recording.h5",
    }


def attributes_in(path: Path) -> list[tuple[str, str]]:
    """Where a file has attributes, and their names; of the columns, one has all that others have."""
    with h5py.File(path) as file:
        objects = {"/": file, "throughput": file["throughput"], "chunks": file["chunks"]}
        objects["trajectories"], columns = file["trajectories"], sorted(file["trajectories"])
        if not is_manifest(file.attrs):
            objects["trajectories/rewards"] = file[f"trajectories/{columns[columns.index('rewards')]}"]
        return [(place, name) for place, item in objects.items() for name in item.attrs]


def changed(path: Path, places: list[tuple[str, str]]) -> Iterator[str]:
    """Give each attribute each odd value, with a digest that fits; put the file back."""
    content = path.read_bytes()
    for place, name in places:
        for kind, value in ODD.items():
            with h5py.File(path, "r+") as file:
                file[place].attrs[name] = value
                if name != "digest":
                    file.attrs["digest"] = digest_of(dict(file.attrs))
            yield f"{place}@{name} is {kind}"
            path.write_bytes(content)


@pytest.mark.parametrize("kind", ["run", "set", "recording"])
def test_an_attribute_of_another_type_is_refused_in_one_line(files: dict[str, Path], kind: str):
    path, num_refused, places = files[kind], 0, attributes_in(files[kind])
    if kind != "run":  # Those that only this kind of file has.
        of_run = attributes_in(files["run"])
        places = [place for place in places if place not in of_run]
    for what in changed(path, places):
        is_set(str(path))
        try:
            identity(quiet, str(path))
            if kind == "set":
                read_manifest(str(path))
        except DataError as error:
            num_refused += 1
            assert "\n" not in str(error), what
        except Exception:
            print(what, file=sys.stderr)
            raise
    assert num_refused > (20 if kind == "run" else 8)


def test_counts_of_wrong_values_of_another_type_are_refused_in_one_line(files: dict[str, Path]):
    for what in changed(files["run"], [("trajectories/rewards", "not_finite")]):
        with pytest.raises(DataError, match=r"not_finite.*|chunks|list") as caught:
            verify(quiet, str(files["run"]))
        assert "\n" not in str(caught.value), what


@pytest.mark.parametrize("value", ODD.values(), ids=ODD)
def test_a_file_whose_format_is_of_another_type_is_somebody_elses(tmp_path: Path, value: object):
    path = tmp_path / "other.h5"
    with h5py.File(path, "w") as file:
        file.attrs["format"] = value
    with pytest.raises(DataError, match="was not written by mpi_rollout"):
        verify(quiet, str(path))
