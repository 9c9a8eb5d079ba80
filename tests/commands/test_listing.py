"""`list`: all runs of a folder, and whether they still run."""

import json
import os
import re
from pathlib import Path

import pytest
from jobs import Job

from mpi_rollout.commands.listing import list_runs, runs_of
from mpi_rollout.storage.ownership import make_locked
from mpi_rollout.storage.status import Status

HOST = os.uname().nodename
NOBODY = 2**22 + 1  # No process has such a number.


def tell(folder: Path, name: str, state: str, **values) -> None:
    Status(str(folder / f"{name}.h5"), 1000).tell(state, num_steps=400, **values)


def states(folder: Path) -> dict[str, str]:
    return {Path(run["run"]).stem: run["state"] for run in runs_of(str(folder))}


def test_it_lists_the_runs_of_a_folder_and_those_of_others_beside_them(job: Job):
    for name, state, values in (
        ("a", "complete", {"file": "a.h5"}),
        ("b", "interrupted", {"exit_code": 75, "message": "stopped by SIGUSR1"}),
        ("c", "failed", {"exit_code": 70, "message": "no licence\x1b[2J\nand more"}),
    ):
        tell(job.folder, name, state, **values)
    (job.folder / "d.status.json").write_text("{")
    result = job(None, "list", ".")
    lines = [line.split("  ") for line in result.out.splitlines()]
    words = [[word.strip() for word in line if word.strip()] for line in lines]
    assert words[0] == ["run", "state", "steps", "starts", "updated (UTC)", "message"]
    assert [each[:4] for each in words[1:]] == [
        [name, state, "400 of 1,000 (40%)", "1"]
        for name, state in (("a", "complete"), ("b", "interrupted"), ("c", "failed"))
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", each[4]) for each in words[1:])
    assert words[2][-1] == "stopped by SIGUSR1" and words[3][-1] == "no licence\\x1b[2J"
    found = json.loads(job(None, "list", ".", "--json").out)
    assert [(run["run"], run["state"], run["num_steps"]) for run in found] == [
        ("a.h5", "complete", 400), ("b.h5", "interrupted", 400), ("c.h5", "failed", 400),
    ]  # fmt: skip
    assert "no runs in " in job(None, "list", "/dev").out
    assert job(None, "list", "none").messages == ["there is no folder none; give the folder of --out"]


def test_a_complete_run_may_have_ended_with_its_episodes(tmp_path: Path):
    for name, state in (("a", "complete"), ("b", "running")):
        Status(str(tmp_path / f"{name}.h5"), 1000, 50).tell(state, num_steps=400)
    assert [run["of_num_episodes"] for run in runs_of(str(tmp_path))] == [50, 50]
    assert ["400 of at most 1,000" in line for line in list_runs([str(tmp_path)])] == [False, True, False]


def test_an_output_may_have_another_name_than_one_with_h5(tmp_path: Path):
    for name, file in (("a.hdf5", "a.hdf5"), ("b", "b.part"), ("c.h5", "c.h5.part"), ("d.h5", "e.h5")):
        Status(str(tmp_path / name), 1000).tell("failed")
        (tmp_path / file).touch()
    assert [Path(run["run"]).name for run in runs_of(str(tmp_path))] == ["a.hdf5", "b", "c.h5", "d.h5"]


def test_a_run_whose_process_is_gone_was_killed(tmp_path: Path):
    tell(tmp_path, "mine", "running")
    tell(tmp_path, "killed", "running", pid=NOBODY)
    tell(tmp_path, "elsewhere", "running", host="node7", pid=NOBODY)
    tell(tmp_path, "silent", "running", host="node7")
    tell(tmp_path, "locked", "running", host="node7")
    for name in ("silent", "locked"):
        path = tmp_path / f"{name}.status.json"
        path.write_text(path.read_text().replace('"updated": "20', '"updated": "19'))
    lock = make_locked(str(tmp_path / "locked.h5.part"))
    running = {"elsewhere": "running", "mine": "running", "silent": "killed", "killed": "killed"}
    assert states(tmp_path) == running | {"locked": "running"}
    lock.release()
    assert states(tmp_path) == running | {"locked": "killed"}


@pytest.mark.parametrize("values", [{"pid": None}, {"pid": "x"}, {"host": []}, {"num_steps": None}, {"starts": {}}])
def test_a_status_of_any_content_is_listed(tmp_path: Path, values):
    (tmp_path / "odd.status.json").write_text(json.dumps({"state": "running", "updated": 5} | values))
    assert states(tmp_path) == {"odd": "killed"} and len(list_runs([str(tmp_path)])) == 2
