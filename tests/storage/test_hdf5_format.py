"""Files can be read by any HDF5 since 1.10; one that a newer HDF5 has written is not called damaged."""

import json
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from contents import contents
from diaries import keep_diary
from gymnasium import spaces
from jobs import CLONE
from shard_sets import written_set
from written_data import Feed, digests, flip, quiet, written

import mpi_rollout
from mpi_rollout.config import RolloutConfig
from mpi_rollout.data.exports import d4rl, minari
from mpi_rollout.errors import DataError, NewerFormatError
from mpi_rollout.storage.hdf5_format import is_unknown
from mpi_rollout.storage.output import look_into
from mpi_rollout.storage.recovery import recover
from mpi_rollout.storage.torn import CHECKSUM, CHECKSUM_NBYTES, lookup3, messages
from mpi_rollout.storage.untrusted import open_unmarked
from mpi_rollout.storage.verification import verify

LAYOUT = 8  # The type of the message of an object header that says where the data of a dataset are.
OLD_PYTHON = CLONE / ".venv-oldest" / "bin" / "python"  # Of `make test-oldest`, with the oldest h5py that is allowed.
FLAT = spaces.Box(-1, 1, (2,), np.float64)
EXPORT = {
    "compression": "gzip", "float32": False, "algorithm_name": None, "dataset_id": "a/bc-v0", "env": None,
    "author": [], "author_email": [], "code_permalink": None, "description": None, "min_score": None, "max_score": None,
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of each kind that this program writes."""
    folder = tmp_path_factory.mktemp("files")
    of = {name: folder / name for name in ("complete", "stopped", "set", "recording", "flat", "minari")}
    for place in of.values():
        place.mkdir()
    made = {"run": written(of["complete"], "complete"), "stopped": written(of["stopped"], "stopped")}
    made["set"], made["single"] = written_set(of["set"], "complete", compression="gzip")
    made["recording"] = of["recording"] / "run.h5"
    keep_diary("CartPole-v1", 3, str(made["recording"]), {})
    made["recovered"], made["one of a set"] = folder / "recovered.h5", folder / "one.h5"
    recover(quiet, str(made["stopped"]), str(made["recovered"]), str(folder / "temporary"))
    recover(quiet, str(made["set"]), str(made["one of a set"]), str(folder / "temporary"))
    flat, made["d4rl"], made["minari"] = str(written(of["flat"], "complete", FLAT)), folder / "d4rl.h5", of["minari"]
    d4rl.export(quiet, flat, [flat], str(made["d4rl"]), EXPORT)
    minari.export(quiet, flat, [flat], str(made["minari"]), EXPORT)
    made["minari"] /= minari.MAIN
    return made


def read_by_old(*arguments: object) -> list[dict[str, object]]:
    """What the oldest h5py reads of files."""
    if not OLD_PYTHON.exists():
        pytest.skip("needs the environment of the oldest versions: make .venv-oldest/.installed")
    command = [OLD_PYTHON, CLONE / "tests" / "helpers" / "contents.py", *arguments]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def read_here(path: Path, swmr: bool = False) -> dict[str, object]:
    return json.loads(json.dumps(contents(str(path), swmr)))


def test_the_oldest_h5py_reads_each_kind_of_file_with_the_same_values(files: dict[str, Path]):
    for (name, path), found in zip(files.items(), read_by_old(*files.values()), strict=True):
        assert found == read_here(path), name


def test_the_oldest_h5py_reads_a_file_while_it_is_written(tmp_path: Path):
    writer, path = Feed().writer(tmp_path / "run.h5", 8), tmp_path / "run.h5.part"
    for _ in Feed().fill(writer, 21, {3, 21}):
        pass
    writer.drain()
    [found] = read_by_old("--swmr", path)
    expected = digests(Feed().expected(21))
    assert {name: found[f"trajectories/{name}"][2] for name in expected} == expected
    writer.discard()
    writer.release()


@pytest.mark.parametrize("tool", [("h5ls", "-r"), ("h5dump",)], ids=" ".join)
def test_the_systems_tools_read_each_kind_of_file(files: dict[str, Path], tool: tuple[str, ...]):
    if not shutil.which(tool[0]):
        pytest.skip(f"needs {tool[0]}: apt-get install hdf5-tools")
    for name, path in files.items():
        done = subprocess.run([*tool, str(path)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and not done.stderr and "ERROR" not in done.stdout, (name, done.stderr)
        datasets = {place.rpartition("/")[2] for place in contents(str(path)) if "@" not in place}
        assert not {dataset for dataset in datasets if dataset not in done.stdout}, name


def test_h5repack_makes_files_for_readers_of_hdf5_1_8_with_the_same_values(files: dict[str, Path], tmp_path: Path):
    if not shutil.which("h5repack"):
        pytest.skip("needs h5repack: apt-get install hdf5-tools")
    for name, path in files.items():
        older = tmp_path / name
        command = ["h5repack", "--low=0", "--high=1", "--layout=CONTI", str(path), str(older)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (name, done.stderr)
        assert older.read_bytes()[8] < 3, name  # The version of the superblock: 3 is that of HDF5 1.10.
        assert contents(str(older)) == contents(str(path)), name


def test_the_columns_of_a_set_are_those_of_its_single_file(files: dict[str, Path]):
    of_set, of_single = contents(str(files["set"])), contents(str(files["single"]))
    columns = {name for name in of_single if name.startswith("trajectories/") and "@" not in name}
    assert columns and all(of_set[name] == of_single[name] for name in columns)


def raise_version(path: Path, of: str) -> None:
    """Write the version of a superblock, or of the layout of a dataset, as a newer HDF5 may: with its checksum."""
    content = bytearray(path.read_bytes())
    if of == "superblock":
        content[8] += 1
        content[CHECKSUM] = lookup3(content[: CHECKSUM.start])
    else:
        with open_unmarked(str(path)) as file:
            start = h5py.h5o.get_info(file[of].id).addr
        place, stop = layout_of(content[start:])
        content[start + place] += 10
        content[start + stop : start + stop + CHECKSUM_NBYTES] = lookup3(content[start : start + stop])
    path.write_bytes(content)


def layout_of(header: bytes) -> tuple[int, int]:
    """Where an object header has the version of its layout message, and where its checksum is."""
    within, head_nbytes = messages(header), 4 + (header[5] >> 2 & 1) * 2
    place = within.start
    while header[place] != LAYOUT:
        place += head_nbytes + int.from_bytes(header[place + 1 : place + 3], "little")
    return place + head_nbytes, within.stop


PLACES = ["superblock", "trajectories/rewards", "commits"]


@pytest.mark.parametrize("place", PLACES)
def test_a_file_of_a_newer_hdf5_is_not_called_damaged(tmp_path: Path, place: str):
    path = written(tmp_path, "complete")
    raise_version(path, place)
    words = "has the format of a newer HDF5 than .*, and is not damaged; read it with a newer h5py than "
    with pytest.raises(NewerFormatError, match=words):
        verify(quiet, str(path))
    with pytest.raises(NewerFormatError, match=words):
        mpi_rollout.open(str(path))
    with pytest.raises(NewerFormatError, match=words):
        recover(quiet, str(path), str(tmp_path / "new.h5"), str(tmp_path / "temporary"))
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("place", PLACES)
def test_what_a_newer_hdf5_has_begun_is_not_continued_and_nobody_is_sent_to_recover(tmp_path: Path, place: str):
    feed, path = Feed(), written(tmp_path, "stopped")
    raise_version(path, place)
    with pytest.raises(NewerFormatError, match="newer h5py") as caught:
        look_into(RolloutConfig(env="CartPole-v1", num_envs=feed.num_envs, out=str(path)), str(path))
    assert "recover" not in str(caught.value)


@pytest.mark.parametrize("bits", [1, 4, 8, 255])
def test_a_version_that_does_not_fit_its_checksum_is_damage(tmp_path: Path, bits: int):
    path = written(tmp_path, "complete")
    flip(path, 8, bits)
    with pytest.raises(DataError, match="not a readable HDF5 file") as caught:
        verify(quiet, str(path))
    assert not isinstance(caught.value, NewerFormatError)


@pytest.mark.parametrize(
    ("words", "is_newer"),
    [
        ("Unable to open object (bad version number for layout message)", True),
        ("bad superblock version number", True),
        ("wrong extensible array header version", True),
        ("bad version number in global heap", False),
        ("incorrect metadata checksum after all read attempts", False),
        ("file signature not found", False),
    ],
)
def test_hdf5s_words_for_a_format_that_it_does_not_know(words: str, is_newer: bool):
    assert is_unknown(OSError(words)) == is_newer
