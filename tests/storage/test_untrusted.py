"""Damaged and hostile files: whatever reads one says in one line, and soon, what is wrong, and reads nothing else."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import h5py
import numpy as np
import pytest
from crafted_files import REFUSED, attribute, craft, dataset
from jobs import Job, Start, preloadable
from written_data import flip, quiet, written

from mpi_rollout.commands.run_summary import summary
from mpi_rollout.errors import DataError
from mpi_rollout.storage.filters import MOST_SMALLER
from mpi_rollout.storage.untrusted import ContentError, check_room, open_unmarked
from mpi_rollout.storage.verification import verify

READERS = {"inspect": summary, "verify": verify}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A complete file and one of a run that still goes on."""
    return {kind: written(tmp_path_factory.mktemp(kind), kind) for kind in ("complete", "running")}


def refused(reader: str, path: Path) -> str:
    with pytest.raises(DataError) as caught:
        READERS[reader](quiet, str(path))
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    return message


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_was_made_to_harm_is_refused(tmp_path: Path, whole: dict[str, Path], case: str):
    path, (change, words) = Path(shutil.copy(whole["complete"], tmp_path)), REFUSED[case]
    craft(path, change)
    for reader in READERS:
        assert words in refused(reader, path)


def test_a_list_of_chunks_that_claims_more_than_its_file_has_is_not_read(tmp_path: Path, whole: dict[str, Path]):
    path = Path(shutil.copy(whole["complete"], tmp_path))
    with h5py.File(path, "r+") as file:
        file["chunks"].resize(2**22, axis=0)
    for reader in READERS:
        assert "chunks claims 4,194,304 rows" in refused(reader, path)


def test_one_damaged_byte_in_what_a_run_has_left_does_not_hang(job: Job, whole: dict[str, Path]):
    """HDF5 in SWMR mode takes it for a byte that is about to be written, and tries again for minutes."""
    with h5py.File(whole["running"], libver="latest", swmr=True) as file:
        place = h5py.h5o.get_info(file["episodes"].id).addr
    path = Path(shutil.copy(whole["running"], job.folder))
    flip(path, place + 20)
    for result in job.series([Start(["inspect", path]), Start(["inspect", path, "--plot", "run.png"])]):
        assert (result.code, result.out) == (65, "")
        assert result.err.startswith(f"mpi_rollout: {path}: cannot read ") and result.err.count("\n") == 1
        assert result.seconds < 60


def test_attributes_of_every_object_are_read(whole: dict[str, Path], tmp_path: Path):
    path = Path(shutil.copy(whole["complete"], tmp_path))
    with h5py.File(path, "r+") as file:
        file["trajectories/truncations"].attrs["note"] = "precious " * 1000
    data = path.read_bytes()
    heap = data.rindex(b"GCOL", 0, data.index(b"precious precious"))
    path.write_bytes(data[:heap] + b"LOCG" + data[heap + 4 :])
    assert "/trajectories/truncations: the attribute note cannot be read" in refused("verify", path)


def test_a_filter_that_a_file_names_is_not_loaded(job: Job, whole: dict[str, Path]):
    path = Path(shutil.copy(whole["complete"], job.folder))
    options = {"chunks": (2,), "compression": 32999, "allow_unknown_filter": True}
    with h5py.File(path, "r+") as file:
        dtype = file["throughput/limit"].dtype
        dataset("throughput/limit", shape=(2,), dtype=dtype, **options)(file)
        file["throughput/limit"].id.write_direct_chunk((0,), np.zeros(2, dtype))
    plugins = job.folder / "plugins"
    plugins.mkdir()
    preloadable("libplugin.c", plugins)
    result = job(None, "inspect", str(path), HDF5_PLUGIN_PATH=str(plugins))
    assert (result.code, result.err.count("\n")) == (65, 1) and not (job.folder / "loaded").exists()
    plain = f"import h5py; h5py.File({str(path)!r})['throughput/limit'][...]"
    job.script(None, plain, HDF5_PLUGIN_PATH=str(plugins))
    assert (job.folder / "loaded").exists()


def test_no_command_reads_what_lies_outside_of_a_file(job: Job, whole: dict[str, Path]):
    path = Path(shutil.copy(whole["complete"], job.folder))
    craft(path, REFUSED["external link"][0])
    starts = [["inspect", path], ["inspect", path, "--plot", "x.png"], ["verify", path], ["recover", path, "new.h5"]]
    for result in job.series([Start(each) for each in starts]):
        assert (result.code, result.out) == (65, "") and result.err.count("\n") == 1
        assert "/trajectories/rewards is a link to another file, other.h5; it is not followed" in result.err


DAMAGED = ["config that is no JSON", "external link"]


def test_a_run_is_not_started_onto_a_damaged_file(job: Job, whole: dict[str, Path]):
    starts = []
    for name in ("run.h5", "run.h5.part"):
        for case in DAMAGED:
            folder = job.folder / f"{name} {case}"
            folder.mkdir()
            craft(Path(shutil.copy(whole["complete"], folder / name)), REFUSED[case][0])
            starts.append(Start(["--env", "CartPole-v1", "--num-envs", "3", "--out", "run.h5"], folder))
    for result, start in zip(job.series(starts), starts, strict=True):
        name, _, case = start.folder.name.partition(" ")
        code, way_out = (64, "exists; move it away") if name == "run.h5" else (65, "cannot be continued: ")
        assert result.code == code and result.err.count("\n") == 1, result.err
        assert way_out in result.err and REFUSED[case][1] in result.err


def test_a_file_does_not_control_the_terminal_of_who_reads_what_is_said_of_it(job: Job, whole: dict[str, Path]):
    config = json.loads(h5py.File(whole["complete"]).attrs["config"]) | {"env": "\x1b]0;title\x07"}
    path = Path(shutil.copy(whole["complete"], job.folder))
    craft(path, attribute("config", json.dumps(config)))
    result = job(None, "verify", path, "--replay", "1")
    assert result.code == 64 and r"'\x1b]0;title\x07'" in result.err and "\x1b" not in result.err


@pytest.mark.parametrize(("share", "is_refused"), [(0.9, False), (1.1, True), (1.9, True)])
@pytest.mark.parametrize(("compression", "times"), [(None, 1), ("gzip", MOST_SMALLER["gzip"])])
def test_a_dataset_that_claims_more_than_its_file_can_hold_is_refused(
    tmp_path: Path, share: float, is_refused: bool, compression: str | None, times: int
):
    with h5py.File(tmp_path / "one.h5", "w") as file:
        dataset = file.create_dataset("data", (0, 10), np.int8, maxshape=(None, 10), compression=compression)
        file.flush()
        num_rows = int(share * times * (file.id.get_filesize() + 5000) / 10)
        words = rf"^data claims {num_rows:,} rows, {10 * num_rows:,} bytes, the file has [\d,]+$"
        with pytest.raises(ContentError, match=words) if is_refused else nullcontext():
            check_room(file, "data", dataset, num_rows, room=5000)


def test_a_file_of_others_is_opened_as_it_is(tmp_path: Path):
    """Its superblock is of another version, has no mark and another checksum, or none."""
    with h5py.File(tmp_path / "other.h5", "w", libver="earliest") as file:
        file["data"] = [1, 2]
    with open_unmarked(str(tmp_path / "other.h5")) as file:
        assert file["data"][...].tolist() == [1, 2]
