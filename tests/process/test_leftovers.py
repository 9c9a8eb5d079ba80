"""What a rank has started and left is ended when the rank is gone, however that came."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from jobs import GONE_S, HELPERS, Job, are_gone, job_environment
from stopped_runs import kwargs

pytestmark = pytest.mark.full_start

LEAVING = ("--env-factory", "leaving_envs:Leaving", "--num-envs", "6", "--progress", "none", "--out", "run.h5")
FEW, ENDLESS = ("--num-steps", "20"), ("--num-steps", "100000000")


def play(folder: Path, end: str) -> list[int]:
    """Run the program that leaves processes; return these."""
    program = [sys.executable, str(HELPERS / "leaving_envs.py"), end]
    subprocess.run(program, cwd=folder, env=job_environment(), stdin=subprocess.DEVNULL, timeout=300)
    return pids_in(folder)


def pids_in(folder: Path) -> list[int]:
    """The processes that were started in a folder."""
    return [int(line) for line in (folder / "left").read_text().split()]


def are_ended(pids: list[int]) -> bool:
    """Wait until these processes have ended, which takes a second; tell whether all have."""
    give_up = time.monotonic() + GONE_S
    while any(map(is_there, pids)) and time.monotonic() < give_up:
        time.sleep(0.02)
    return not any(map(is_there, pids))


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("end", ["is killed", "ends well"])
def test_what_a_process_leaves_is_ended_after_it(tmp_path: Path, end: str):
    pids = play(tmp_path, end)
    assert len(pids) == 4 and are_ended(pids)


def test_what_a_script_leaves_at_a_good_end_stays(tmp_path: Path):
    pids = play(tmp_path, "keeps")
    assert all(map(is_there, pids))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def test_who_waits_for_its_children_waits_for_none_of_ours(tmp_path: Path):
    program = "from mpi_rollout.process import leftovers; leftovers.end_leftovers(); import os; os.wait()"
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, env=job_environment(), capture_output=True, text=True, timeout=300)
    assert "ChildProcessError" in done.stderr


@pytest.mark.mpi(2)
def test_a_killed_rank_whose_envs_have_processes_ends_the_job_and_these(job: Job, num_ranks: int):
    result = job(num_ranks, *LEAVING, *kwargs(killed=1), *ENDLESS, timeout=100)
    assert result.code != 0
    assert len(pids_in(job.folder)) >= 6 and are_ended(pids_in(job.folder)) and are_gone(job.folder)


@pytest.mark.mpi(2)
def test_a_killed_launcher_leaves_no_process_of_envs(job: Job, num_ranks: int):
    run = job.start(num_ranks, *LEAVING, *ENDLESS)
    run.wait_until(lambda: (job.folder / "left").exists() and len(pids_in(job.folder)) >= 6)
    os.kill(run.pid, signal.SIGKILL)
    assert are_ended(pids_in(job.folder)) and are_gone(job.folder)
    run.finish()


@pytest.mark.mpi(2)
def test_processes_of_envs_that_were_restarted_are_ended_with_the_run(job: Job, num_ranks: int):
    result = job(num_ranks, *LEAVING, *kwargs(fails=True), *FEW, "--max-env-restarts", "9", timeout=100)
    assert result.code == 0, result.err
    assert len(pids_in(job.folder)) > 6 and are_ended(pids_in(job.folder))


TRAINER = """
import os, signal
import mpi_rollout
from leaving_envs import Leaving
with mpi_rollout.connect(Leaving, 6) as envs:
    if envs is not None:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.mpi(2)
def test_a_killed_trainer_leaves_no_process_of_envs(job: Job, num_ranks: int):
    assert job.script(num_ranks, TRAINER, timeout=100).code != 0
    assert len(pids_in(job.folder)) >= 6 and are_ended(pids_in(job.folder)) and are_gone(job.folder)
