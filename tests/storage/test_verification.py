"""`verify` and `recover`: whatever is wrong with a file is found, named, and no reason to hang."""

import json
import multiprocessing
import os
import random
import re
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from jobs import Job, Start, assert_same_bytes, datasets
from written_data import IMAGES, LARGE_ROWS, NUM_STEPS, SMALL, Feed, flip, quiet, relist, written

from mpi_rollout.commands.run_summary import summary
from mpi_rollout.errors import DataError
from mpi_rollout.storage.checked_file import checked
from mpi_rollout.storage.chunks import FileDatasets
from mpi_rollout.storage.recovery import copy_prefix, schema_of
from mpi_rollout.storage.sandbox import in_sandbox
from mpi_rollout.storage.torn import lookup3
from mpi_rollout.storage.untrusted import open_unmarked
from mpi_rollout.storage.verification import verify


@pytest.fixture(params=["complete", "running"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return written(tmp_path, request.param)


def refused(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        verify(quiet, str(path))
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


def chunk_of(path: Path, name: str, *place: int) -> tuple[int, int]:
    """Where a chunk lies in the file, and how long it is."""
    with open_unmarked(str(path)) as file:
        found = file[name].id.get_chunk_info_by_coord(place)
    return found.byte_offset, found.size


@pytest.mark.parametrize(
    ("kind", "space"),
    [("complete", SMALL), ("ended", LARGE_ROWS), ("running", IMAGES), ("running", SMALL)],
    ids=["complete", "ended", "images", "running"],
)
def test_a_whole_file_is_found_whole(tmp_path: Path, kind: str, space: spaces.Space):
    path = written(tmp_path, kind, space)
    found = verify(quiet, str(path))
    assert (found["num_steps"], found["complete"]) == (NUM_STEPS, kind == "complete")
    assert path.stat().st_size > found["nbytes"] > 0.1 * path.stat().st_size


def test_a_changed_bit_in_data_is_found_with_dataset_and_rows(path: Path):
    for name, bits in (("observations/x", 1), ("rewards", 128), ("terminations", 255)):
        place, size = chunk_of(path, f"trajectories/{name}", 8, *[0] * (2 if name.endswith("x") else 1))
        for at in (0, size // 2, size - 1):
            flip(path, place + at, bits)
            assert f"trajectories/{name}, rows 8 to 15: the checksum does not fit" in refused(path)
            flip(path, place + at, bits)
    verify(quiet, str(path))
    for step in (0, 8):
        for name in ("rewards", "terminations"):
            flip(path, chunk_of(path, f"trajectories/{name}", step, 0)[0])
    message = refused(path)
    assert message.count("the checksum does not fit") == 3 and message.endswith("; and more")


def test_no_changed_byte_anywhere_goes_unseen(path: Path):
    """It is refused in one line, or it is in bytes that nobody reads: then all is told as it was.

    Or the change is one that a torn write of a file under way can have made, and `storage.torn` has taken it back.
    """
    original, draws = path.read_bytes(), random.Random(0)
    whole, told = everything_in(path), summary(quiet, str(path))
    superblock, size, num_regions = range(0, 48, 8), len(original), 30
    regions = [range(number * size // num_regions, (number + 1) * size // num_regions) for number in range(num_regions)]
    num_seen, unchecked = 0, range(0)
    if path.suffix == ".part":  # Its last episodes have no checksum yet that a summary compares.
        with open_unmarked(str(path)) as file:
            last = file["episodes"].id.get_chunk_info(file["episodes"].id.get_num_chunks() - 1)
        unchecked = range(last.byte_offset, last.byte_offset + last.size)
    for place in (*superblock, *map(draws.choice, regions)):
        flip(path, place, 1 << draws.randrange(8))
        for read in (summary, verify) if place not in unchecked else (verify,):
            try:
                found = read(quiet, str(path))
            except DataError as error:
                assert str(error).startswith(str(path)) and "\n" not in str(error)
                num_seen += 1
            else:
                assert read is verify or found == told, f"byte {place} of {len(original)}"
                assert read is summary or everything_in(path) == whole, f"byte {place} of {len(original)}"
        path.write_bytes(original)
    assert num_seen > 16


def everything_in(path: Path) -> dict[str, object]:
    """All that a reader is told: committed rows, episodes, attributes."""
    found: dict[str, object] = {}
    with open_unmarked(str(path)) as file:
        num_steps = int(file["trajectories"].attrs["num_steps"])
        found["/"] = {name: str(value) for name, value in file.attrs.items()}

        def add(name: str, item: h5py.HLObject) -> None:
            found[name] = {key: str(value) for key, value in item.attrs.items()}
            if isinstance(item, h5py.Dataset) and name != "throughput/ranks":
                counted = num_steps + name.startswith("trajectories/observations")
                found[name + ":"] = item[:counted].tobytes() if name.startswith("trajectories") else item[...].tobytes()

        file.visititems(add)
    return found


def test_a_truncated_file_is_found(path: Path):
    size = path.stat().st_size
    for share in (0.999, 0.9, 0.6, 0.3, 0.01, 0.001, 0.0):
        os.truncate(path, int(share * size))
        assert refused(path)


def test_a_page_of_zeros_is_found(path: Path):
    original, num_seen = path.read_bytes(), 0
    whole = everything_in(path)
    for page in range(0, len(original), 3 * 4096):
        path.write_bytes(original[:page] + bytes(len(original[page : page + 4096])) + original[page + 4096 :])
        if is_refused(path):
            num_seen += 1
        else:
            assert everything_in(path) == whole, f"page {page} of {len(original)}"
    assert num_seen > 1


def is_refused(path: Path) -> bool:
    """Whether a process of its own, as a command has it, finds the damage: some of it HDF5 reads for ever."""
    child = multiprocessing.get_context("fork").Process(target=refused_in_time, args=(path,))
    child.start()
    child.join()
    return child.exitcode in (0, -signal.SIGXCPU, -signal.SIGKILL)


def refused_in_time(path: Path) -> None:
    """The same within a second of a core; to verify the whole file takes a tenth of that."""
    resource.setrlimit(resource.RLIMIT_CPU, (1, 1))
    refused(path)


def change(path: Path, function: Callable[[h5py.File], None]) -> None:
    """Change a file, and its list of chunks with it: what then does not fit has no checksum to tell it."""
    with h5py.File(path, "r+") as file:
        function(file)
    relist(path)


def set_row(name: str, value: object) -> Callable[[h5py.File], None]:
    def function(file: h5py.File) -> None:
        rows = file["episodes"][...]
        rows[name][1] = value
        file["episodes"][...] = rows

    return function


def replace(name: str, **options: object) -> Callable[[h5py.File], None]:
    def function(file: h5py.File) -> None:
        data = file[name][...]
        del file[name]
        file.create_dataset(name, data=data, **{"chunks": True, "maxshape": (None, *data.shape[1:])} | options)

    return function


def set_reward(file: h5py.File) -> None:
    file["trajectories/rewards"][4, 1] += 1


WRONG = [
    (set_row("start", 1), r"episodes: row \d cannot be an episode of 21 steps"),
    (set_row("length", 1000), "episodes: row 1 cannot be an episode of 21 steps; the table is damaged"),
    (set_row("length", 0), "episodes: row 1 cannot be an episode of 21 steps; the table is damaged"),
    (set_row("env_index", 3), "episodes: row 1 cannot be an episode of 21 steps; the table is damaged"),
    (set_row("return", 7.5), r"episodes, row 1: return is 7\.5"),
    (set_row("seed", 3), "episodes, row 1: seed is 3"),
    (set_row("faulted", True), "episodes, row 1: faulted is True"),
    (set_reward, r"episodes, row \d: return is "),
    (lambda file: file["episodes"].resize(2, axis=0), "episodes has 2 rows, from rewards and ends follow "),
    (lambda file: file["trajectories/rewards"].resize(20, axis=0), "trajectories/rewards has 20 rows, expected 21"),
    (lambda file: file["trajectories/rewards"].resize(22, axis=0), "trajectories/rewards has 22 rows, expected 21"),
    (lambda file: file["trajectories"].attrs.modify("num_steps", np.int64(20)), "rows, expected 2[01]: one for each"),
    (lambda file: file.__delitem__("episodes"), "there is no episodes"),
    (lambda file: file.__delitem__("chunks"), "there is no chunks"),
    (lambda file: file.__delitem__("trajectories/observations/x"), "there is no trajectories/observations/x"),
    (lambda file: file.__delitem__("trajectories"), "there is no trajectories/"),
    (lambda file: file.create_dataset("more", data=[1]), "/more does not belong to it"),
    (replace("trajectories/rewards"), "trajectories/rewards has no checksums"),
    (replace("trajectories/rewards", dtype="f4", fletcher32=True), "rewards should be float64 .* got float32"),
    (lambda file: file.attrs.modify("seed", 1), "the attributes of its root group are not what was written"),
    (lambda file: file.attrs.__setitem__("config", "{}"), "the attributes of its root group are not what was"),
    (lambda file: file.attrs.__delitem__("digest"), "its attribute digest is missing"),
    (lambda file: file.attrs.__delitem__("hosts"), "its attribute hosts is missing"),
]


@pytest.mark.parametrize(("function", "words"), WRONG, ids=[words[:30] for _, words in WRONG])
def test_what_does_not_follow_from_the_rest_is_found(tmp_path: Path, function: Callable, words: str):
    path = written(tmp_path, "complete")
    change(path, function)
    assert re.search(words, refused(path))


def test_a_file_is_verified_while_it_is_written(tmp_path: Path):
    """By another process, as the command does it: some HDF5 crash that read a file which another thread writes."""
    feed, handed_over = Feed(), (1, 12, 30)
    writer = feed.writer(tmp_path / "run.h5", 8)
    for step in feed.fill(writer, 30, handed_over):
        if step in handed_over:
            report = in_sandbox("mpi_rollout.storage.verification:verify", str(tmp_path / "run.h5.part"))
            assert report["num_steps"] <= step
    writer.discard()


def test_what_is_being_read_is_told_in_turn(tmp_path: Path):
    told: list[str] = []
    verify(told.append, str(written(tmp_path, "complete")))
    parts = (
        "the list of objects in /", "its list of chunks",
        "trajectories/rewards from row 8 on",
    )  # fmt: skip
    assert {f"reading {part}" for part in parts} <= {*told}
    assert told[-2:] == ["reading rewards and ends from step 0 on", "reading episodes"]


def test_the_checksum_of_a_superblock_is_that_of_hdf5(path: Path):
    head = path.read_bytes()[:48]
    assert lookup3(head[:44]) == head[44:]


# The commands.


def test_verify_tells_what_it_has_read(job: Job):
    path = job.collect(2, "--env", "CartPole-v1", "--num-envs", "4", "--num-steps", "300")
    result, in_json = job.series([Start(["verify", path]), Start(["verify", path, "--json"])])
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{path}: complete and whole\nchecksums ")
    found = json.loads(in_json.out)
    assert found["complete"] and found["num_steps"] == 300


def test_verify_ends_with_65_and_one_line(job: Job):
    path = written(job.folder, "complete")
    flip(path, chunk_of(path, "trajectories/rewards", 0, 0)[0])
    result = job(None, "verify", str(path))
    assert (result.code, result.out) == (65, "")
    assert result.err == f"mpi_rollout: {path}: trajectories/rewards, rows 0 to 7: the checksum does not fit\n"


def test_a_file_without_trajectories_is_verified(job: Job):
    run = ["--env", "CartPole-v1", "--num-envs", "2", "--num-steps", "30", "--no-trajectories", "--out", "run.h5"]
    assert [result.code for result in job.series([Start(run), Start(["verify", "run.h5"])])] == [0, 0]


@pytest.mark.parametrize(("kind", "space"), [("ended", LARGE_ROWS), ("running", SMALL)], ids=["ended", "running"])
def test_what_a_run_has_committed_becomes_a_complete_file(job: Job, kind: str, space: spaces.Space):
    path = written(job.folder, kind, space)
    before = path.read_bytes()
    recovered = path.with_suffix("")
    inspect = ["inspect", recovered]
    result, in_json, in_words = job.series([Start(["recover", path]), Start([*inspect, "--json"]), Start(inspect)])
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"{recovered}: recovered and whole")
    assert path.read_bytes() == before and sorted(job.folder.iterdir()) == [recovered, path]
    (job.folder / "same").mkdir()
    assert_same_bytes(datasets(recovered), datasets(written(job.folder / "same", "complete", space)))
    assert not json.loads(in_json.out)["complete"]
    assert "recovered" in in_words.out.splitlines()[0]


def test_the_first_steps_of_a_file_become_a_file(job: Job):
    path = written(job.folder, "complete")
    numbers = (1, 8, 9)
    for result in job.series([Start(["recover", path, f"{n}.h5", "--num-steps", n]) for n in numbers]):
        assert result.code == 0, result.err
    for num_steps in numbers:
        found = datasets(job.folder / f"{num_steps}.h5")
        found.pop("/episodes")
        assert_same_bytes(found, Feed().expected(num_steps))


def test_what_lies_before_the_damage_can_be_recovered(job: Job):
    path = written(job.folder, "running")
    flip(path, chunk_of(path, "trajectories/rewards", 8, 0)[0])
    result, shorter = job.series([Start(["recover", path]), Start(["recover", path, "--num-steps", 8])])
    assert (result.code, shorter.code) == (65, 0)
    assert "rows 8 to 15: the checksum does not fit; with --num-steps N only the first N steps" in result.err
    assert sorted(each.name for each in job.folder.iterdir()) == ["killed.h5", "killed.h5.part"]


REFUSED = [
    (["killed.h5.part", "gone/new.h5"], 74, "there is no folder"),
    (["killed.h5.part", "old.h5"], 74, "exists; move it away"),
    (["killed.h5.part", "--num-steps", "22"], 64, "must be 1 to 21, the steps that are committed, got 22"),
    (["none.h5.part"], 65, "no such file"),
    (["killed.h5"], 65, "killed.h5: no such file; there is killed.h5.part, which is not complete"),
]


def test_what_cannot_be_recovered_is_refused_in_one_line(job: Job):
    written(job.folder, "running")
    (job.folder / "old.h5").write_text("precious")
    results = job.series([Start(["recover", *arguments]) for arguments, *_ in REFUSED])
    for result, (_, code, words) in zip(results, REFUSED, strict=True):
        assert result.code == code and words in result.err and result.err.count("\n") == 1
    assert sorted(each.name for each in job.folder.iterdir()) == ["killed.h5.part", "old.h5"]
    assert (job.folder / "old.h5").read_text() == "precious"


@pytest.mark.parametrize("num_steps", [1, 7, 8, 9, 21])
def test_writing_can_go_on_behind_a_copied_prefix(tmp_path: Path, num_steps: int):
    """As a run that is resumed does it."""
    path = written(tmp_path, "running")
    with checked(str(path), quiet, num_steps) as source:
        destination = FileDatasets(schema_of(source.file).create(str(tmp_path / "new.h5")))
        table = copy_prefix(source, destination, {})
    destination.close()
    found = verify(quiet, str(tmp_path / "new.h5"))
    assert found["num_steps"] == num_steps
    assert len(table.unfinished(num_steps)) > 0
