"""`export` writes all or nothing, and says in one line what is wrong."""

import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import h5py
import pytest
from jobs import Job, Result, Start, preloadable
from written_data import LARGE_ROWS, flip, written

ID = "lab/data-v0"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A complete file, what is committed of one, and files that cannot be exported."""
    folder = tmp_path_factory.mktemp("files")
    for name in ("part", "large"):
        (folder / name).mkdir()
    complete, large = written(folder, "complete"), written(folder / "large", "complete", LARGE_ROWS)
    found = {"complete": complete, "part": written(folder / "part", "running"), "large": large}
    for name in ("damaged", "without", "other"):
        found[name] = Path(shutil.copy(complete, folder / f"{name}.h5"))
    with h5py.File(complete) as file:
        place = file["trajectories/observations/x"].id.get_chunk_info(0).byte_offset
    flip(found["damaged"], place)
    with h5py.File(found["without"], "r+") as file:
        del file["trajectories"]
    with h5py.File(found["other"], "w") as file:
        file["x"] = 1
    return found


def left(folder: Path) -> list[str]:
    """All that is in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def minari(job: Job, *starts: Sequence[object], **environment: str) -> list[Result]:
    """Export several times, with the data sets in the folder `sets` of the job."""
    sets = {"MINARI_DATASETS_PATH": str(job.folder / "sets")} | environment
    return job.series([Start(["export", "minari", *start], environment=sets) for start in starts])


def test_an_id_that_is_taken_is_refused_or_overwritten(job: Job, files: dict[str, Path]):
    starts = [[files["complete"], ID], [files["complete"], ID], [files["part"], ID, "--overwrite", "--json"]]
    first, second, third = minari(job, *starts)
    assert first.code == 0 and first.err == "" and 'minari.load_dataset("lab/data-v0")' in first.out
    assert "recover_environment() will not work: the env has no spec" in first.out
    assert second.code == 64 and second.messages == [
        f"there is a data set {ID} in {job.folder / 'sets'}; use lab/data-v1, or --overwrite"
    ]
    assert third.code == 0 and json.loads(third.out)["unfinished"] == 2
    assert left(job.folder / "sets/lab") == [
        "data-v0",
        "data-v0/data",
        "data-v0/data/main_data.hdf5",
        "data-v0/data/metadata.json",
        "namespace_metadata.json",
    ]


@pytest.mark.parametrize(
    ("name", "dataset_id", "code", "words"),
    [
        ("complete", "data", 64, "data has no version, and Minari would not load it; use data-v0"),
        ("complete", "my data-v0", 64, "is no id of Minari"),
        ("damaged", ID, 65, "trajectories/observations/x, rows 0 to 7: the checksum"),
        ("without", ID, 65, "trajectories"),
        ("other", ID, 65, "was not written by mpi_rollout"),
        ("missing", ID, 65, "no such file"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(
    job: Job, files: dict[str, Path], name: str, dataset_id: str, code: int, words: str
):
    [result] = minari(job, [files.get(name, "missing.h5"), dataset_id])
    assert result.code == code and result.num_tracebacks == 0 and len(result.messages) == 1
    assert words in result.messages[0] and not (job.folder / "sets").exists()


@pytest.mark.full_start
def test_nothing_is_left_where_the_disk_is_full(job: Job, files: dict[str, Path]):
    library = preloadable("disk.c", job.folder)
    options = {"LD_PRELOAD": library, "DISK_FAULT": "full:300000", "MINARI_DATASETS_PATH": str(job.folder / "sets")}
    for kind, name in (("minari", ID), ("d4rl", "flat.h5")):
        result = job(None, "export", kind, files["large"], name, "--compression", "none", **options)
        assert result.code == 74 and "No space left on device" in result.messages[0], result.err
        assert len(result.messages) == 1 and result.num_tracebacks == 0
    assert left(job.folder) in (["disk.so"], ["disk.so", "failed_at"])


@pytest.mark.full_start
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_where_somebody_stops_it(job: Job, files: dict[str, Path], number: int):
    library, sets = preloadable("disk.c", job.folder), job.folder / "sets"
    slow = {"LD_PRELOAD": library, "DISK_FAULT": "slow:3000000", "MINARI_DATASETS_PATH": str(sets)}
    running = job.start(None, "export", "minari", files["large"], ID, **slow)
    running.wait_until(lambda: [*sets.rglob("main_data.hdf5")])
    os.kill(running.pid, number)
    result = running.finish()
    assert result.code == 75 and len(result.messages) == 1 and result.num_tracebacks == 0, result.err
    assert left(job.folder) in (["disk.so"], ["disk.so", "failed_at"])


@pytest.mark.mpi(2)
@pytest.mark.any_mpi
def test_several_ranks_are_refused(job: Job, files: dict[str, Path]):
    result = job(2, "export", "minari", files["complete"], ID, MINARI_DATASETS_PATH=str(job.folder / "sets"))
    assert result.code == 64 and result.messages == ["export is one process; start it without mpirun"]
    assert not (job.folder / "sets").exists()


def test_d4rl_writes_a_file_and_overwrites_none(job: Job, files: dict[str, Path]):
    given = [
        [files["complete"], "flat.h5"], [files["part"], "flat.h5"], [files["part"], "flat.h5", "--overwrite"],
        [files["complete"], "no/flat.h5"], [files["complete"], files["complete"], "--overwrite"],
    ]  # fmt: skip
    first, second, third, fourth, fifth = job.series([Start(["export", "d4rl", *each]) for each in given])
    assert first.code == third.code == 0 and "nested" in first.out
    assert second.code == 64 and "flat.h5 exists; give another name, or --overwrite" in second.messages[0]
    assert fourth.code == 74 and "mkdir -p" in fourth.messages[0]
    assert fifth.code == 64 and "is the file to export" in fifth.messages[0]
    assert left(job.folder) == ["flat.h5"]
    with h5py.File(job.folder / "flat.h5") as file:
        assert len(file["rewards"]) == len(file["next_observations/x"]) == len(file["timeouts"])
