"""What a run has acknowledged as committed survives a SIGKILL in the middle of a write.

A write of data may be torn anywhere.  One of metadata is read as it was before where its checksum proves what that was
(see `storage.torn`).  Elsewhere HDF5 refuses what it describes, at once and without handing out anything wrong.

Linux looks for a SIGKILL between the pages of a write, not within one: of the writes of metadata, some hundred bytes
each, only those that cross the end of a page can be torn so.  A loss of power can tear any.
"""

from pathlib import Path

import pytest
from crashes import assert_complete, crash, data_sizes, num_recovered


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("crashes")


@pytest.fixture(scope="module")
def nested(folder: Path) -> list[dict]:
    return crash(folder, "nested", "torn")


@pytest.fixture(scope="module")
def sizes_of_data(folder: Path, nested: list[dict]) -> set[int]:
    """Of the run that is complete."""
    return data_sizes(folder / "nested-torn" / "run.h5")


def test_the_run_that_is_not_killed_is_complete(nested: list[dict]):
    assert_complete(nested)


def test_a_start_that_goes_on_in_a_file_may_be_killed_amid_its_first_writes(tmp_path: Path):
    """The first two mark the file.  crash_at_every_write.py has completed the run by one more start."""
    outcomes = crash(tmp_path, "continued nested", "torn")
    assert_complete(outcomes)
    begun = [each for each in outcomes if each["committed"] == 3]
    assert [each for each in begun if each["write"] == ["write 48 0"]] and len(begun) > 10
    for each in begun:
        assert num_recovered(each) == 3, each


def test_every_acknowledged_step_survives_a_kill_amid_any_write_of_data(nested: list[dict], sizes_of_data: set[int]):
    *killed, _ = nested
    torn = [each for each in killed if int(each["write"][0].split()[1]) in sizes_of_data]
    assert len(torn) > 10
    for each in torn:
        assert num_recovered(each) >= each["committed"], each


def test_torn_metadata_are_refused_at_once_or_harmless(nested: list[dict], sizes_of_data: set[int]):
    """Where something is recovered, crash_at_every_write.py has compared it."""
    *killed, _ = nested
    torn = [each for each in killed if int(each["write"][0].split()[1]) not in sizes_of_data]
    assert len(torn) > 10
    for each in torn:
        assert each["look"] == 0, each
        assert each["said"][-1].startswith(("recovered ", "refused run.h5.part")), each
    begun = [each for each in torn if each["committed"]]
    recovered = [each for each in begun if each["said"][-1].startswith("recovered ")]
    kept = [each for each in recovered if num_recovered(each) >= each["committed"]]
    assert len(kept) > 0.9 * len(begun)  # The list of chunks, and where a file says what it has, are read through HDF5.
