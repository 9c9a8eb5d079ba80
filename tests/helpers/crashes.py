"""Runs that killer.c kills, or whose writes it refuses, at each of their writes: what is left of them.

killer.c kills before the n-th write, or in its middle; crash_at_every_write.py runs and looks, for every n.  Of writes
that are torn or fail, of compressed chunks and of continued runs it takes some: see its `PLACES`.
"""

import json
import math
import subprocess
import sys
from pathlib import Path

import h5py
from jobs import HELPERS, job_environment, preloadable

from mpi_rollout.storage.schema import leaf_datasets

TIMEOUT_S = 500


def crash(folder: Path, kind: str, how: str) -> list[dict]:
    """What became of a run killed or refused at each of its writes; nothing happens to the last one."""
    killer, own = preloadable("killer.c", folder), folder / f"{kind}-{how}".replace(" ", "-")
    own.mkdir()
    done = subprocess.run(
        [sys.executable, str(HELPERS / "crash_at_every_write.py"), kind, how],
        cwd=own,
        env=job_environment(LD_PRELOAD=killer),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def data_sizes(path: Path) -> set[int]:
    """How many bytes the writes of chunks have: full ones, with their checksum, and partly filled ones."""
    with h5py.File(path) as file:
        datasets = leaf_datasets(file).values()
        full = {each.id.get_chunk_info(i).size for each in datasets for i in range(each.id.get_num_chunks())}
        growing = [each for each in datasets if each.maxshape[0] is None]
        return full | {math.prod(each.chunks) * each.dtype.itemsize for each in growing}


def num_recovered(outcome: dict) -> int:
    """How many steps were recovered; 0 if there was none to be."""
    assert outcome["look"] == 0, outcome
    said = outcome["said"][-1].split()
    if said[0] == "recovered":
        return int(said[1])
    assert said[0] == "refused" and outcome["committed"] == 0, outcome
    return 0


def assert_complete(outcomes: list[dict]) -> None:
    """Check that all but the last run were killed, and that the last one is complete."""
    *killed, last = outcomes
    assert (last["code"], last["said"]) == (0, ["complete"])
    assert all(each["code"] == -9 for each in killed) and len(killed) > 10


def assert_all_committed_survives(outcomes: list[dict]) -> None:
    """Check what is left of runs killed at whole writes: what was committed, read through HDF5's index too."""
    assert len({each["committed"] for each in outcomes}) > 1
    for each in outcomes[:-1]:
        assert num_recovered(each) >= each["committed"], each
        assert "without" not in each["said"][-1], each
