"""What a continued or recovered file takes over from the one before."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from written_data import Feed, ending, quiet

from mpi_rollout.storage.recovery import recover

INTERVALS = [(0.5, 30, 60.0), (1.0, 55, 50.0)]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """What a start leaves that has noted its throughput twice, and was killed after step 10."""
    writer = Feed().writer(tmp_path / "run.h5", 4)
    for interval in INTERVALS:
        writer.add_interval(*interval)
    for _ in Feed().fill(writer, 10, {10}):
        pass
    writer.drain()
    (tmp_path / "killed.h5.part").write_bytes((tmp_path / "run.h5.part").read_bytes())
    writer.discard()
    return (tmp_path / "killed.h5.part").rename(tmp_path / "run.h5.part")


def intervals_of(path: Path | str) -> list[tuple]:
    with h5py.File(path) as file:
        return file["throughput/intervals"][...].tolist()


def test_a_continued_run_keeps_the_throughput_of_earlier_starts(killed: Path):
    writer = Feed().writer(killed.with_name("run.h5"), 4, num_past=10)
    writer.add_interval(1.5, 80, 50.0)
    assert intervals_of(writer.finish(ending(10))) == [*INTERVALS, (1.5, 80, 50.0)]


def test_a_recovered_file_has_the_throughput_of_the_run_that_was_killed(killed: Path):
    out = str(killed.with_name("new.h5"))
    recover(quiet, str(killed), out, f"{out}.new")
    assert intervals_of(out) == INTERVALS
    with h5py.File(out) as file:
        totals = file["throughput"].attrs
        assert (totals["env_steps"], totals["seconds"]) == (55, 1.0)
        assert np.issubdtype(totals["env_steps"].dtype, np.integer)
