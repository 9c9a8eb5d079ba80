"""The output cannot be written: nothing of somebody else's is lost, and what was committed is kept."""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from crafted_files import attribute, craft
from jobs import WHOLE, Result, are_gone, assert_same_bytes, datasets
from small_disks import small_disk
from stopped_runs import ENVS, OUT, PACED, assert_begins, kwargs, outputs
from written_data import damage, quiet, written

from mpi_rollout.config import RolloutConfig, read_config
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.errors import AlreadyComplete, DataError, StorageError, UsageError
from mpi_rollout.policies.sources import sha256_of
from mpi_rollout.storage import output, same_run
from mpi_rollout.storage import status as status_file
from mpi_rollout.storage.output import DEFAULT_FOLDER, check_folder, warning_of
from mpi_rollout.storage.ownership import lock, make_locked
from mpi_rollout.storage.recovery import recover
from mpi_rollout.storage.same_run import check_same_run
from mpi_rollout.storage.status import refuse_running
from mpi_rollout.storage.untrusted import open_unmarked


@pytest.fixture
def disk(tmp_path):
    """A file system of 24 MB."""
    with small_disk(tmp_path / "small", 24) as folder:
        yield folder


def assert_full(result: Result, path: Path, whole: dict[str, np.ndarray]) -> None:
    assert result.code == 74 and result.num_tracebacks == 0, result.err
    [message] = result.messages
    found = re.search(r"\(([\d.]+) MB free in (.*)\); its first (\d+) steps are committed", message)
    assert message.startswith("cannot write ") and found, message
    assert found[2] == str(path.parent)
    num_steps = assert_begins(path, whole)
    assert num_steps > 0 and num_steps == int(found[3])


@pytest.mark.mpi(1, 2)
def test_a_full_disk_ends_the_job_and_leaves_what_was_committed(job, whole, num_ranks, disk):
    arguments = ("--env-factory", "envs:Image", "--num-steps", "1000000", *ENVS)
    result = job(num_ranks, *arguments, "--out", str(disk / "run.h5"))
    assert_full(result, disk / "run.h5.part", whole)
    assert float(re.search(r"\(([\d.]+) MB free", result.messages[0])[1]) < 24.0
    assert sorted(os.listdir(disk)) == ["run.h5.part", "run.status.json"]


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_limit_on_the_size_of_files_ends_the_job_in_the_same_way(job, whole, num_ranks):
    arguments = ("--env-factory", "failing_envs:limited", *kwargs(nbytes=20_000_000), "--num-steps", "1000000", *ENVS)
    result = job(num_ranks, *arguments, *OUT)
    assert_full(result, job.folder / "run.h5.part", whole)
    assert are_gone(job.folder)


def test_a_disk_that_is_full_at_the_start_is_told_too(job):
    arguments = ("--env-factory", "failing_envs:limited", *kwargs(nbytes=100), "--num-steps", "20", *ENVS)
    result = job(None, *arguments, *OUT)
    assert result.code == 74 and len(result.messages) == 1 and result.num_tracebacks == 0
    assert f"cannot write {job.folder / 'run.h5.part'}" in result.messages[0]


def test_of_runs_that_start_at_the_same_moment_one_gets_the_output(job, whole):
    arguments = (*PACED, "--num-steps", str(WHOLE), *ENVS, *OUT)
    results = [run.finish() for run in [job.start(None, *arguments) for _ in range(3)]]
    assert sorted(result.code == 0 for result in results) == [False, False, True]
    assert {result.code for result in results} <= {0, 64, 74}
    assert all(len(result.messages) == 1 for result in results if result.code)
    assert_same_bytes(datasets(job.folder / "run.h5"), whole)
    assert outputs(job.folder) == ["run.h5"]


def test_a_missing_folder_is_made_only_if_it_is_the_usual_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=r"there is no folder .*other; mkdir -p other$"):
        check_folder("other/run.h5")
    assert check_folder(f"{DEFAULT_FOLDER}/run.h5") == "" and os.listdir(tmp_path) == [DEFAULT_FOLDER]
    assert os.listdir(tmp_path / DEFAULT_FOLDER) == []
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="that is a file; use another record"):
        check_folder("file/run.h5")


def test_where_files_cannot_be_locked_the_user_is_warned():
    assert warning_of("run.h5", "") == ""
    assert warning_of("run.h5", "no locks").startswith("--out run.h5: files cannot be locked there (no locks), so a")


@pytest.mark.parametrize(
    ("status", "is_refused"),
    [
        ({}, False),
        ({"state": "running", "host": os.uname().nodename, "pid": os.getpid()}, True),
        ({"state": "running", "host": os.uname().nodename, "pid": 2**30}, False),
        ({"state": "complete", "host": os.uname().nodename, "pid": os.getpid()}, False),
        ({"state": "running", "host": "another", "pid": 1, "updated": "9999-01-01T00:00:00+00:00"}, True),
        ({"state": "running", "host": "another", "pid": 1, "updated": "2000-01-01T00:00:00+00:00"}, False),
    ],
)
def test_without_locks_a_run_that_says_that_it_is_under_way_is_believed(tmp_path, monkeypatch, status, is_refused):
    path = str(tmp_path / "run.h5")
    monkeypatch.setattr(status_file, "read_status", lambda path: status)
    if not is_refused:
        refuse_running(path)
        return
    with pytest.raises(UsageError, match=rf"another run is writing it, process {status['pid']} on {status['host']}"):
        refuse_running(path)


@pytest.mark.parametrize(("num_steps", "is_kept"), [(None, False), (0, False), (1, True), (5, True)])
def test_a_part_without_a_committed_step_is_begun_anew(tmp_path: Path, monkeypatch, num_steps: int, is_kept: bool):
    part = tmp_path / "run.h5.part"
    part.touch()
    stored = SimpleNamespace(num_steps=num_steps, reproducibility=Reproducibility.EPISODE)
    monkeypatch.setattr(output, "look_into", lambda config, path: (None if num_steps is None else stored, ()))
    config = RolloutConfig(env="CartPole-v1", out=str(tmp_path / "run.h5"))
    found = output.run_to_continue(config, str(part))
    assert found == ((stored, ()) if is_kept else None) and part.exists() == is_kept
    if is_kept:
        stored.reproducibility = Reproducibility.SLICE
        with pytest.raises(UsageError, match=r"cannot be continued: .* cannot be brought back; keep what there is"):
            output.run_to_continue(config, str(part))


@pytest.mark.parametrize(
    ("is_complete", "is_longer", "promise", "error", "message"),
    [
        (False, False, "episode", UsageError, "was recovered from this run before its end; move it away"),
        (True, False, "episode", AlreadyComplete, "of the same run and complete; nothing is left to do"),
        (True, True, "slice", UsageError, "cannot be extended, since .* cannot be brought back; move it away"),
        (True, True, "episode", None, ""),
    ],
)
def test_only_a_complete_file_with_fewer_steps_is_extended(
    monkeypatch, is_complete, is_longer, promise, error, message
):
    stored = {"config": "", "complete": is_complete, "promise": promise}
    monkeypatch.setattr(same_run, "in_sandbox", lambda task, path: stored)
    monkeypatch.setattr(same_run, "check_same_run", lambda *arguments, **options: is_longer)
    config = RolloutConfig(env="CartPole-v1", out="run.h5")
    if error is None:
        same_run.check_extends(config, "run.h5")
        with pytest.raises(UsageError, match="cannot be extended, since it has no trajectories"):
            same_run.check_extends(replace(config, trajectories=False), "run.h5")
        return
    with pytest.raises(error, match=message):
        same_run.check_extends(config, "run.h5")


def test_a_run_goes_on_with_the_policy_file_that_it_began_with(tmp_path: Path):
    policy = tmp_path / "policy.zip"
    policy.write_bytes(b"weights")
    config = RolloutConfig(env="CartPole-v1", policy=str(policy))
    stored = {
        "config": config.to_json(),
        "policy_sha256": sha256_of(str(policy)),
        "recorded": False,
        "sharded": False,
        "complete": False,
    }
    assert check_same_run(config, stored, "run.h5") is False
    policy.write_bytes(b"other weights")
    with pytest.raises(
        UsageError, match=r"run\.h5 is of a run with another .*policy\.zip \(its SHA-256 was [0-9a-f]{16}\.\.\."
    ):
        check_same_run(config, stored, "run.h5")


def config_of(folder: Path, kind: str = "running", **options: object) -> RolloutConfig:
    """Of the run whose unfinished file `written` has left in a folder."""
    left = written(folder, kind).rename(folder / "run.h5.part")
    with open_unmarked(str(left)) as file:
        config = read_config(file.attrs["config"], str(left))
    return replace(config, **options)


def test_another_runs_unfinished_file_is_refused_whole_or_not(tmp_path: Path):
    config = config_of(tmp_path, seed=1)
    for check in (output.check_output, output.claim_output):
        with pytest.raises(UsageError, match=r"run\.h5\.part is of another run: --seed was 0, is 1"):
            check(config)
    lock(f"{config.out}.part").release()  # Nobody holds it.


def test_an_output_that_another_run_writes_is_refused(tmp_path: Path):
    config = config_of(tmp_path)
    held = make_locked(f"{config.out}.part.new")
    with pytest.raises(UsageError, match=r"run\.h5\.part: another run is writing it"):
        output.check_output(config)
    held.release()
    output.check_output(config)


def foreign(path: Path) -> None:
    """Put a file of HDF5 by another program there."""
    with h5py.File(path, "w") as file:
        file["x"] = [1, 2]


LEFT: dict[str, Callable[[Path], object]] = {  # What is in the place of an unfinished file.
    "an empty file": lambda path: path.write_bytes(b""),
    "another program's text": lambda path: path.write_text("years of work"),
    "another program's HDF5": foreign,
    "a file of another version": lambda path: craft(path, attribute("format_version", 3)),
    "a file without its end": lambda path: os.truncate(path, 50_000),
    "a damaged file": lambda path: damage(path, "trajectories/rewards", "zeros", 2),
}


@pytest.mark.parametrize("left", LEFT)
def test_a_file_that_is_not_continued_gets_the_advice_to_recover_if_recover_takes_it(tmp_path: Path, left: str):
    config = config_of(tmp_path, "stopped")
    path = f"{config.out}.part"
    shutil.copy(shutil.move(path, f"{path}.old"), path)  # That one is still locked.
    LEFT[left](Path(path))
    with pytest.raises(DataError, match=r"cannot be continued: .*move it away") as caught:
        claimed = output.claim_output(config)
        while any(check.poll() for check in claimed.checks):
            pass
    refused = ""
    try:
        recover(quiet, path, str(tmp_path / "new.h5"), str(tmp_path / "temporary"), num_steps=8)
    except DataError as error:
        refused = str(error)
    is_advised = "`python -m mpi_rollout recover" in str(caught.value)
    assert is_advised == (not refused) == (left == "a damaged file")
    assert refused in str(caught.value) and ("recover refuses it too" in str(caught.value)) != is_advised


@pytest.mark.parametrize(
    ("changes", "is_complete", "words"),
    [
        (
            {"seed": 1},
            False,
            "is 1; give the same options to continue it, move it away, use another --out, or drop it with --overwrite",
        ),
        (
            {"seed": 1},
            True,
            "--seed was 0, is 1; it is complete; move it away, use another --out, or replace it with --overwrite",
        ),
        (
            {"seed": 1, "num_steps": 20},
            True,
            "is 1; give the same options to extend it, move it away, use another --out, or replace it with --overwrite",
        ),
        ({"num_steps": 9}, True, "more --num-steps or --num-episodes extend a complete file"),
        ({"num_steps": 9}, False, "--num-steps was 10, is 9; "),
        ({"num_steps": 20}, False, "--num-steps was 10, is 20; "),
        ({"num_envs": 6}, False, "--num-envs was 1, is 6; "),
        ({"policy": "mine:act"}, False, '--policy was "random", is "mine:act"; '),
        ({"env": "Acrobot-v1"}, False, '--env was "CartPole-v1", is "Acrobot-v1"; '),
        ({"vectorization_mode": "native"}, False, '--vectorization-mode was "sync", is "native"; '),
        ({"trajectories": False}, False, "--no-trajectories was not given, is given; "),
    ],
)
def test_another_run_is_refused_with_what_can_be_done_about_the_file(changes: dict, is_complete: bool, words: str):
    before = RolloutConfig(env="CartPole-v1", num_envs=1, num_steps=10)
    stored = {"config": before.to_json(), "recorded": False, "sharded": False, "complete": is_complete}
    with pytest.raises(UsageError, match=r"run\.h5 is of another run: ") as error:
        check_same_run(replace(before, **changes), stored, "run.h5")
    assert words in str(error.value) and ("extend" in str(error.value)) == ("extend" in words)
