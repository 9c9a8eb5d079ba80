"""`--overwrite`: the old file stays until the new one is complete, and nothing but files of runs is replaced."""

import hashlib
import json
import os
from pathlib import Path

import h5py
import pytest
from jobs import Job, Start, assert_same_bytes, datasets

from mpi_rollout.storage.ownership import lock

pytestmark = pytest.mark.any_mpi

ENVS = ("--num-envs", "6", "--progress", "none")
RUN = ("--env-factory", "stopping_envs:Paced", *ENVS, "--out", "run.h5", "--num-steps")
OVER = "--overwrite"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.mpi(1, 2, 3)
def test_a_complete_file_is_replaced_by_one_of_another_run(job: Job, num_ranks: int):
    job.collect(None, *RUN, "20", "--seed", "1")
    assert job(num_ranks, *RUN, "10", OVER, "--json").code == 0
    plain = job.collect(None, *RUN, "10", out="plain.h5")
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(plain))
    status = json.loads((job.folder / "run.status.json").read_text())
    assert (status["state"], status["num_steps"], status["starts"]) == ("complete", 10, 1)
    assert sorted(os.listdir(job.folder)) == ["plain.h5", "plain.status.json", "run.h5", "run.status.json"]


def test_a_killed_run_leaves_the_old_file_and_the_same_command_continues(job: Job):
    old = job.collect(None, *RUN, "30", "--seed", "1")
    before, part = digest(old), job.folder / "run.h5.part"
    command = (*RUN, "400", OVER, "--policy", "stopping_envs:counting", "--env-factory", "stopping_envs:Counting")
    for at in ("kill:40", "raise:30"):
        assert job(None, *command, STOP_AT=at, STOP_PAUSE="0.1").code != 0
        assert digest(old) == before and part.exists()
    assert json.loads((job.folder / "run.status.json").read_text())["state"] == "failed"
    refused, finished, whole = job.series(
        [
            Start([word for word in command if word != OVER]),
            Start(command),
            Start((*command, "--out", "whole.h5")),
        ]
    )
    assert refused.code == 64 and "use another --out, or replace it with --overwrite" in refused.messages[0]
    assert finished.code == whole.code == 0 and "run.h5.part after 29 of 400 steps" in finished.messages[0]
    assert_same_bytes(datasets(old), datasets(job.folder / "whole.h5"))


def test_an_unfinished_file_of_another_run_is_dropped_when_the_new_one_is_made(job: Job):
    command = (*RUN, "400", "--policy", "stopping_envs:counting", "--env-factory", "stopping_envs:Counting")
    part = job.folder / "run.h5.part"
    assert job(None, *command, STOP_AT="raise:24").code == 70
    before = digest(part)
    checked, failed = job.series(
        [
            Start((*command, OVER, "--seed", "1", "--dry-run")),
            Start((*command, OVER, "--seed", "1", "--policy", "no:no")),
        ]
    )
    assert checked.code == 0 and failed.code == 64 and digest(part) == before
    held = lock(str(part))
    [refused] = job.series([Start((*command, OVER, "--seed", "1"))])
    assert refused.code == 64 and "another run is writing it" in refused.messages[0] and digest(part) == before
    held.release()
    new = job(None, *command, OVER, "--seed", "1", STOP_AT="raise:9")
    assert new.messages[0] == f"--overwrite drops {part}, 23 steps: it is of another run: --seed was 0, is 1"
    with h5py.File(part) as file:
        assert file["trajectories"].attrs["num_steps"] == 8 and file.attrs["seed"] == 1


def test_what_is_no_file_of_a_run_is_never_replaced(job: Job):
    names = ["text.h5", "other.h5", "damaged.h5", "link.h5"]
    job.collect(None, *RUN, "5")
    (job.folder / "text.h5").write_text("mine")
    with h5py.File(job.folder / "other.h5", "w") as file:
        file["data"] = [1, 2, 3]
    content = (job.folder / "run.h5").read_bytes()
    (job.folder / "damaged.h5").write_bytes(content[:3000])
    (job.folder / "run.h5").rename(job.folder / "kept.h5")
    os.symlink("kept.h5", job.folder / "link.h5")
    (job.folder / "new.h5.part").write_text("mine, too")
    before = [(job.folder / name).read_bytes() for name in (*names, "new.h5.part")]
    results = job.series([Start((*RUN, "9", OVER, "--out", name)) for name in (*names, "new.h5")])
    for result in results:
        assert result.code == 64 and len(result.messages) == 1, result.err
    assert "is a link; to replace the file give its name, --out " in results[3].messages[0]
    assert all("--overwrite replaces whole files of mpi_rollout only" in results[i].err for i in (0, 1, 2, 4))
    assert [(job.folder / name).read_bytes() for name in (*names, "new.h5.part")] == before
