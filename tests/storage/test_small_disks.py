"""Each writer of HDF5 on a disk that gets full says so in one line: nothing crashes, nothing is called damaged."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from jobs import Job, Result, Start
from shard_sets import write
from small_disks import small_disk
from written_data import Feed

MEGABYTES = (1, 3, 6)
ROWS = spaces.Box(-np.inf, np.inf, (16,), np.float64)
TO_FILE = {
    "d4rl": ("export", "d4rl", "{file}", "{folder}/new.h5"),
    "d4rl, plain": ("export", "d4rl", "{file}", "{folder}/new.h5", "--compression", "none"),
    "minari": ("export", "minari", "{file}", "lab/data-v0", "--compression", "gzip"),
    "recovered": ("recover", "{file}", "{folder}/new.h5"),
}
RUN = ("--env-factory", "envs:Image", "--num-envs", "6", "--num-steps", "1000000", "--progress", "none")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of many rows that can be compressed: a chunk is then filled in two writes, and read in between."""
    path = tmp_path_factory.mktemp("files") / "run.h5"
    write(Feed(ROWS, 64, bits=1), path, 3000, "complete")
    return path


def assert_full(result: Result, file: Path) -> None:
    assert result.code == 74 and len(result.messages) == 1 and result.num_tracebacks == 0, result.err
    assert "No space left on device" in result.messages[0] or "MB free" in result.messages[0], result.err
    assert "damaged" not in result.err and f"cannot write {file}" not in result.err


@pytest.mark.parametrize("megabytes", MEGABYTES)
def test_what_is_made_of_a_file_is_made_whole_or_not_at_all(job: Job, file: Path, megabytes: int):
    with small_disk(job.folder / "small", megabytes) as folder:
        sets = {"MINARI_DATASETS_PATH": str(folder), "MPI_ROLLOUT_ANY_SIZE": "1"}
        starts = [[part.format(file=file, folder=folder) for part in command] for command in TO_FILE.values()]
        for result in [job.series([Start(start, environment=sets)])[0] for start in starts]:
            assert_full(result, file)
            assert not [*folder.iterdir()]


@pytest.mark.parametrize("megabytes", [1, 6])
@pytest.mark.parametrize("more", [(), ("--storage", "sharded")], ids=["file", "shards"])
def test_a_run_keeps_what_is_committed(job: Job, megabytes: int, more: tuple[str, ...]):
    with small_disk(job.folder / "small", megabytes) as folder:
        result = job(None, *RUN, *more, "--out", str(folder / "run.h5"), MPI_ROLLOUT_ANY_SIZE="1")
        assert_full(result, Path("none"))
        if (part := folder / "run.h5.part").exists():
            assert job(None, "verify", str(part)).code == 0
