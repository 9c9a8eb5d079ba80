"""`<name>.status.json`: what a batch script can ask."""

import errno
import json
import os
from datetime import datetime
from pathlib import Path

import pytest
from jobs import Job

from mpi_rollout.storage.status import Status, read_status, status_path

pytestmark = pytest.mark.any_mpi

RUN = ("--env-factory", "stopping_envs:Counting", "--num-envs", "4", "--num-steps", "30", "--progress", "none")
RUN += ("--policy", "stopping_envs:counting", "--out", "run.h5")


def status(job: Job) -> dict:
    return json.loads((job.folder / "run.status.json").read_text())


def test_it_stands_beside_the_output():
    assert status_path("results/run.h5") == "results/run.status.json"
    assert status_path("run") == "run.status.json"


@pytest.mark.mpi(2)
def test_it_says_how_each_start_ended(job: Job, num_ranks):
    result = job(num_ranks, *RUN, STOP_AT="raise:12")
    failed = status(job)
    assert (failed["state"], failed["exit_code"], failed["resumable"]) == ("failed", 70, True)
    assert (failed["num_steps"], failed["of_num_steps"], failed["file"]) == (11, 30, f"{job.folder / 'run.h5.part'}")
    assert failed["starts"] == 1 and failed["message"] in result.messages[0]
    assert job(num_ranks, *RUN, "--seed", "8").code == 64
    assert status(job) == failed  # One that is refused says nothing.
    job(num_ranks, *RUN, STOP_AT="usr1:5")
    interrupted = status(job)
    assert (interrupted["state"], interrupted["exit_code"], interrupted["resumable"]) == ("interrupted", 75, True)
    assert interrupted["starts"] == 2 and 11 < interrupted["num_steps"] < 30
    assert "stopped by SIGUSR1" in interrupted["message"]
    assert job(num_ranks, *RUN).code == 0
    complete = status(job)
    assert (complete["state"], complete["exit_code"], complete["resumable"]) == ("complete", 0, False)
    assert (complete["num_steps"], complete["file"], complete["starts"]) == (30, str(job.folder / "run.h5"), 3)
    assert complete["host"] == os.uname().nodename and datetime.fromisoformat(complete["updated"]).tzinfo


@pytest.mark.full_start
def test_while_a_run_goes_on_it_says_so_and_by_which_process(job: Job):
    arguments = ("--env-factory", "stopping_envs:Slow", *RUN[2:4], "--num-steps", "100000", *RUN[6:])
    run = job.start(None, *arguments)
    run.wait_until(lambda: read_status(str(job.folder / "run.h5")).get("state") == "running")
    assert status(job)["pid"] == run.pid and "exit_code" not in status(job)
    run.kill()
    run.finish()
    assert status(job)["state"] == "running"  # Nobody was there to say anything else.


@pytest.mark.parametrize("batch", [{}, {"PBS_JOBID": "7"}], ids=["by hand", "batch job"])
def test_a_first_start_that_comes_to_nothing_leaves_nothing_but_what_a_batch_script_reads(job: Job, batch):
    assert job(None, *RUN, STOP_AT="raise:1", **batch).code == 70
    assert [path.name for path in job.folder.iterdir() if path.name.startswith("run.")] == ["run.status.json"] * len(
        batch
    )
    if batch:
        found = status(job)
        assert (found["state"], found["resumable"], found["num_steps"], found["file"]) == ("failed", False, 0, None)


def test_a_status_that_cannot_be_written_does_not_harm_the_run(job: Job):
    (job.folder / "run.status.json").mkdir()
    assert job(2, *RUN).code == 0
    assert sorted(path.name for path in job.folder.iterdir()) == ["run.h5", "run.status.json"]


def test_it_is_replaced_in_one_piece(tmp_path: Path):
    """Who has opened the old one reads all of it."""
    out = str(tmp_path / "run.h5")
    each = Status(out, 10)
    each.tell("running", num_steps=1)
    with open(status_path(out)) as file:
        each.tell("complete", num_steps=10)
        assert json.load(file)["num_steps"] == 1
    assert read_status(out)["num_steps"] == 10
    assert os.listdir(tmp_path) == ["run.status.json"]


def test_a_full_disk_has_room_for_how_the_run_ended(tmp_path: Path, monkeypatch):
    """It has none for a new file: then the old one is written in its place, be it longer or shorter."""
    out = str(tmp_path / "run.h5")
    status = Status(out, 10)
    status.tell("running", message="as far as it is")

    def refuse(path: str, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("mpi_rollout.storage.status.replace", refuse)
    for message in ("it is full " * 20, "it is full"):
        status.tell("failed", exit_code=74, message=message)
        found = read_status(out)
        assert (found["state"], found["exit_code"], found["message"]) == ("failed", 74, message)
    monkeypatch.setattr("mpi_rollout.storage.status.open_regular", refuse)
    status.tell("complete")
    assert os.listdir(tmp_path) == []  # Rather none than one that is not true.


def test_what_stands_in_its_way_is_not_followed_and_not_waited_for(tmp_path: Path):
    out, victim = str(tmp_path / "run.h5"), tmp_path / "victim"
    victim.write_text("precious")
    new = Path(f"{status_path(out)}.new")
    for place in (new, Path(status_path(out))):
        place.symlink_to(victim)
        Status(out, 10).tell("running")
        assert read_status(out)["state"] == "running" and victim.read_text() == "precious"
        os.mkfifo(new)
        Status(out, 10).tell("failed")
        assert read_status(out)["state"] == "failed"
        Path(status_path(out)).unlink()
        os.mkfifo(status_path(out))
        assert read_status(out) == {}
        Path(status_path(out)).unlink()
    assert os.listdir(tmp_path) == ["victim"]


@pytest.mark.mpi(2)
def test_a_start_that_another_one_outran_leaves_the_status_of_that_one(job: Job, num_ranks):
    """The envs of this one are made after it has looked what there is: they play the other start."""
    arguments = ("--env-factory", "unruly_envs:Outrunning", *RUN[2:])
    result = job(num_ranks, *arguments)
    assert result.code == 64
    part = job.folder / "run.h5.part"
    assert result.messages == [f"{part}: another run is writing it; wait for its end or use another --out"]
    assert status(job) == {"state": "running"}
    assert sorted(path.name for path in job.folder.iterdir()) == ["run.h5.part", "run.status.json"]


@pytest.mark.parametrize("text", ["", "[" * 100000, "{", "[1]", '{"starts": "many"}', "\0\1"])
def test_what_cannot_be_read_is_as_good_as_none(tmp_path: Path, text):
    out = str(tmp_path / "run.h5")
    Path(status_path(out)).write_text(text)
    Status(out, 10).tell("running")
    assert read_status(out)["starts"] == 1


def test_starts_are_counted_anew_when_another_run_was_complete(tmp_path: Path):
    out = str(tmp_path / "run.h5")
    for state, starts in (("running", 1), ("failed", 2), ("complete", 3), ("running", 1)):
        Status(out, 10).tell(state)
        assert read_status(out)["starts"] == starts
