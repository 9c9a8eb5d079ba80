"""What a run has acknowledged as committed survives a SIGKILL at any of its writes.

killer.c kills before the n-th write, or in its middle; crash_at_every_write.py runs and looks, for every n.  Of writes
that are torn or fail, of compressed chunks and of continued runs it takes some: see its `PLACES`.

A write of data may be torn anywhere.  One of metadata is read as it was before where its checksum proves what that was
(see `storage.torn`).  Elsewhere HDF5 refuses what it describes, at once and without handing out anything wrong.

Linux looks for a SIGKILL between the pages of a write, not within one: of the writes of metadata, some hundred bytes
each, only those that cross the end of a page can be torn so.  A loss of power can tear any.

The writes at the end of a run may also fail, one or all from there on: that is told in one line.
"""

import json
import math
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import pytest
from jobs import HELPERS, job_environment, preloadable

from mpi_rollout.storage.schema import leaf_datasets

KINDS = "nested", "packed", "continued nested", "continued packed"
CASES = [*((kind, "whole") for kind in KINDS), ("nested", "torn"), ("continued nested", "torn")]
TIMEOUT_S = 500


def crash(folder: Path, killer: str, kind: str, *hows: str) -> dict[str, list[dict]]:
    """For each way, what became of a run killed or refused at each of its writes; nothing happens to the last one."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(HELPERS / "crash_at_every_write.py"), kind, *hows],
        cwd=folder, env=job_environment(LD_PRELOAD=killer), capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    return {how: [each for each in outcomes if each["how"] == how] for how in hows}


@pytest.mark.parametrize(("how", "words"), [("full", "No space left on device"), ("broken", "Input/output error")])
def test_a_write_that_fails_at_the_end_ends_the_run_in_one_line_whichever_it_is(tmp_path: Path, how: str, words: str):
    """Also where HDF5 would forget the error and crash later: nothing is on stderr, and the exit code is 74."""
    *failed, last = crash(tmp_path / how, preloadable("killer.c", tmp_path), "nested", how)[how]
    assert last["code"] == 0 and len(failed) > 7
    for each in failed:
        assert each["code"] == 74, each
        assert re.match(rf"failed cannot write \S*/run\.h5\.part: {words} \(", each["ended"]), each
        assert num_recovered(each) >= each["committed"], each


def test_a_write_that_fails_when_a_run_is_continued_loses_nothing(tmp_path: Path):
    *failed, last = crash(tmp_path / "full", preloadable("killer.c", tmp_path), "continued nested", "full")["full"]
    assert last["code"] == 0 and len(failed) > 10
    for each in failed:
        assert each["code"] == 74 and each["ended"].startswith("failed cannot write"), each
        assert num_recovered(each) >= each["committed"] >= 3, each


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[dict]]:
    folder = tmp_path_factory.mktemp("crashes")
    killer = preloadable("killer.c", folder)
    with ThreadPoolExecutor(2) as pool:
        crashes = {case: pool.submit(crash, folder / "-".join(case), killer, *case) for case in CASES}
        outcomes = {case: crashes[case].result()[case[1]] for case in CASES}
    for case in CASES:
        outcomes[case][-1]["data_sizes"] = data_sizes(folder / "-".join(case) / "run.h5")
    return outcomes


def data_sizes(path: Path) -> set[int]:
    """How many bytes the writes of chunks have: full ones, with their checksum, and partly filled ones."""
    with h5py.File(path) as file:
        datasets = leaf_datasets(file).values()
        full = {each.id.get_chunk_info(i).size for each in datasets for i in range(each.id.get_num_chunks())}
        growing = [each for each in datasets if each.maxshape[0] is None]
        return full | {math.prod(each.chunks) * each.dtype.itemsize for each in growing}


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_the_run_that_is_not_killed_is_complete(outcomes: dict, kind: str, how: str):
    *killed, last = outcomes[kind, how]
    assert (last["code"], last["said"]) == (0, ["complete"])
    assert all(each["code"] == -9 for each in killed) and len(killed) > 10


@pytest.mark.parametrize("kind", KINDS)
def test_every_acknowledged_step_survives_a_kill_at_any_write(outcomes: dict, kind: str):
    committed = {each["committed"] for each in outcomes[kind, "whole"]}
    assert len(committed) > 1
    for each in outcomes[kind, "whole"][:-1]:
        assert num_recovered(each) >= each["committed"], each
        assert "without" not in each["said"][-1], each


def test_a_start_that_goes_on_in_a_file_may_be_killed_amid_its_first_writes(outcomes: dict):
    """The first two mark the file.  crash_at_every_write.py has completed the run by one more start."""
    begun = [each for each in outcomes["continued nested", "torn"] if each["committed"] == 3]
    assert [each for each in begun if each["write"] == ["write 48 0"]] and len(begun) > 10
    for each in begun:
        assert num_recovered(each) == 3, each


def test_every_acknowledged_step_survives_a_kill_amid_any_write_of_data(outcomes: dict):
    *killed, last = outcomes["nested", "torn"]
    torn = [each for each in killed if int(each["write"][0].split()[1]) in last["data_sizes"]]
    assert len(torn) > 10
    for each in torn:
        assert num_recovered(each) >= each["committed"], each


def test_torn_metadata_are_refused_at_once_or_harmless(outcomes: dict):
    """Where something is recovered, crash_at_every_write.py has compared it."""
    *killed, last = outcomes["nested", "torn"]
    torn = [each for each in killed if int(each["write"][0].split()[1]) not in last["data_sizes"]]
    assert len(torn) > 10
    for each in torn:
        assert each["look"] == 0, each
        assert each["said"][-1].startswith(("recovered ", "refused run.h5.part")), each
    begun = [each for each in torn if each["committed"]]
    recovered = [each for each in begun if each["said"][-1].startswith("recovered ")]
    kept = [each for each in recovered if num_recovered(each) >= each["committed"]]
    assert len(kept) > 0.9 * len(begun)  # The list of chunks, and where a file says what it has, are read through HDF5.


def num_recovered(outcome: dict) -> int:
    """How many steps were recovered; 0 if there was none to be."""
    assert outcome["look"] == 0, outcome
    said = outcome["said"][-1].split()
    if said[0] == "recovered":
        return int(said[1])
    assert said[0] == "refused" and outcome["committed"] == 0, outcome
    return 0
