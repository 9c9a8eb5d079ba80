"""What a continued or recovered file takes over from the one before."""

from pathlib import Path

import h5py
import numpy as np
import pytest
from written_data import LARGE_ROWS, NUM_STEPS, Feed, ending, quiet, written

from mpi_rollout.storage.checked_file import checked
from mpi_rollout.storage.chunks import FileDatasets
from mpi_rollout.storage.recovery import copy_prefix, recover, schema_of
from mpi_rollout.storage.schema import leaf_datasets

INTERVALS = [(0.5, 30, 60.0), (0.7, 40, 50.0), (1.0, 55, 50.0)]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """What a start leaves that has noted its throughput three times, and was killed after step 10."""
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
    out, signs = str(killed.with_name("new.h5")), list[str]()
    recover(signs.append, str(killed), out, f"{out}.new")
    assert sum("rewards and ends" in sign for sign in signs) == 2  # For the new /episodes, and to verify them.
    assert intervals_of(out) == INTERVALS
    with h5py.File(out) as file:
        totals = file["throughput"].attrs
        assert (totals["env_steps"], totals["seconds"]) == (55, 1.0)
        assert np.issubdtype(totals["env_steps"].dtype, np.integer)


@pytest.mark.parametrize(
    ("kind", "num_steps", "is_finished"), [("complete", None, True), ("complete", 9, False), ("ended", None, False)]
)
def test_a_recovered_file_is_finished_only_if_it_is_all_of_a_finished_run(
    tmp_path: Path, kind: str, num_steps: int | None, is_finished: bool
):
    path, out = written(tmp_path, kind), str(tmp_path / "new.h5")
    verified = recover(quiet, str(path), out, f"{out}.new", num_steps)
    assert verified["complete"] == is_finished and verified["recovered"] != is_finished
    assert verified["num_steps"] == (num_steps or NUM_STEPS)
    with h5py.File(out) as file:
        assert bool(file.attrs["finished"].strip()) == is_finished and ("recovered" in file.attrs) != is_finished


@pytest.mark.parametrize("num_steps", [8, 9, 10])
def test_lost_envs_are_truncated_and_faulted_in_the_last_step_that_is_kept(tmp_path: Path, num_steps: int):
    source = written(tmp_path, "complete")
    with h5py.File(source) as file:
        before = file["trajectories/truncations"][:num_steps]
        with schema_of(file).create(str(tmp_path / "new.h5"), swmr_mode=False) as new:
            with checked(str(source), quiet, num_steps) as checks:
                copy_prefix(checks, FileDatasets(new), lost={1: 5})
            after, faults = new["trajectories/truncations"][:num_steps], new["faults"][...]
            rows = new["episodes"][...]
    before[-1, 1] = True
    assert after.tolist() == before.tolist()
    assert [(row["env_index"], row["step"]) for row in faults] == [(1, num_steps - 1)]
    assert faults["message"][0] == b"did not reproduce step 5"
    last = rows[rows["env_index"] == 1][-1]
    assert last["start"] + last["length"] == num_steps and last["truncated"] and last["faulted"]


def test_a_recovered_file_is_no_larger_than_what_is_in_it(tmp_path: Path):
    """Its last chunks are written once: rewritten in another size, each would leave a hole."""
    feed, out = Feed(LARGE_ROWS, compression="gzip", bits=3), tmp_path / "new.h5"
    writer = feed.writer(tmp_path / "run.h5", 8)
    for _ in feed.fill(writer, NUM_STEPS, {NUM_STEPS}):
        pass
    recover(quiet, writer.finish(ending(NUM_STEPS, complete=False)), str(out), f"{out}.new")
    with h5py.File(out) as file:
        nbytes = sum(dataset.id.get_storage_size() for dataset in leaf_datasets(file).values())
    assert nbytes > 1_000_000 > 5 * (out.stat().st_size - nbytes)
