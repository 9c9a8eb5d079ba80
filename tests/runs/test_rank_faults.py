"""Faults of ranks, launchers and file systems, in mid-run: the job ends soon or goes on, nothing committed is lost."""

import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from jobs import (
    Job,
    Result,
    Running,
    are_gone,
    assert_same_bytes,
    datasets,
    is_hydra,
    preloadable,
    processes_in,
)
from stopped_runs import ENVS, HOST, OUT, assert_begins, committed, fails

from mpi_rollout.storage.status import read_status

pytestmark = pytest.mark.full_start

STEPS = 340  # Of 139 kB.  A block of 9 MB is full, and can be committed, after 64.
RUN = ("--env-factory", "stopping_envs:Paced", "--num-steps", str(STEPS), *ENVS, "--num-envs", "24")
RUN += ("--policy", "stopping_envs:counting")
PACE = {"PACE_S": "0.001"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What the run gives that nothing disturbs."""
    return datasets(Job(tmp_path_factory.mktemp("expected")).collect(None, *RUN))


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> str:
    return preloadable("disk.c", tmp_path_factory.mktemp("disk"))


def start(job: Job, num_ranks: int | None) -> Running:
    """Start the run and wait until it says that a part of it is committed."""
    run = job.start(num_ranks, *RUN, *OUT, **PACE)
    run.wait_until(lambda: told(job) > 0)
    return run


def told(job: Job) -> int:
    """How many steps are committed by what the run says."""
    return read_status(str(job.folder / "run.h5")).get("num_steps", 0)


def shared_memory(folder: Path) -> set[Path]:
    """The files in /dev/shm that the processes of a job have mapped, and that have a name still."""
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in processes_in(folder)]
    return {Path(path) for text in maps for path in re.findall(r"/dev/shm/\S+$", text, re.MULTILINE)}


def tool(job: Job, *arguments: str, **extra: str) -> Result:
    """Run a command of the program that needs no ranks."""
    return Job(job.folder)(None, *arguments, **extra)


def assert_continued(job: Job, num_ranks: int, expected: dict[str, np.ndarray]) -> None:
    """Continued by forks: what it begins with is what counts."""
    result = Job(job.folder)(num_ranks, *RUN, *OUT)
    assert result.code == 0, result.err
    assert_same_bytes(datasets(job.folder / "run.h5"), expected)


def assert_no_leak(mapped: set[Path], is_cleaned: bool) -> None:
    """A killed job has left no shared memory, unless only its launcher could clean up."""
    left = {path for path in mapped if path.exists()}
    for path in left:
        path.unlink()
    assert not (left and is_cleaned)


# --- Processes


@pytest.mark.mpi(2)
@pytest.mark.parametrize("victim", ["worker", "root", "launcher"])
def test_after_a_sigkill_all_are_gone_soon_and_the_same_command_continues(job, expected, num_ranks, victim):
    run = start(job, num_ranks)
    before, mapped = told(job), shared_memory(job.folder)
    pid = run.pid if victim == "launcher" else run.pid_of(0 if victim == "root" else num_ranks - 1)
    os.kill(pid, signal.SIGKILL)
    assert are_gone(job.folder)
    result = run.finish()
    assert result.code != 0 and result.num_tracebacks == 0
    assert_no_leak(mapped, is_cleaned=is_hydra() or victim != "launcher")
    assert tool(job, "verify", "run.h5.part").code == 0
    assert before <= committed(job.folder / "run.h5.part") < STEPS
    assert_continued(job, num_ranks, expected)


@pytest.mark.mpi(2)
def test_a_crash_in_c_code_shows_the_stack_with_the_rank(job, num_ranks):
    result = job(num_ranks, *fails("segfault", rank=1))
    assert result.code != 0 and are_gone(job.folder)
    assert "Fatal Python error: Segmentation fault" in result.err
    assert "in string_at" in result.err and f'File "rank 1 ({HOST})"' in result.err


@pytest.mark.mpi(2)
def test_a_worker_that_stands_still_for_a_while_is_waited_for(job, expected, num_ranks):
    run = start(job, num_ranks)
    worker = run.pid_of(1)
    os.kill(worker, signal.SIGSTOP)
    try:
        time.sleep(2.0)
    finally:
        os.kill(worker, signal.SIGCONT)
    result = run.finish()
    assert result.code == 0 and result.messages == []
    assert_same_bytes(datasets(job.folder / "run.h5"), expected)


# --- File systems


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_quota_that_is_used_up_is_told_in_the_systems_words(job, expected, disk, num_ranks):
    result = job(num_ranks, *RUN, *OUT, LD_PRELOAD=disk, DISK_FAULT="quota:20000000")
    assert result.code == 74 and result.num_tracebacks == 0 and are_gone(job.folder)
    [message] = result.messages
    num_steps = assert_begins(job.folder / "run.h5.part", expected)
    assert message.startswith(f"cannot write {job.folder / 'run.h5.part'}: Disk quota exceeded (") and num_steps > 0
    assert message.endswith(f"its first {num_steps} steps are committed; make room, then the same command continues")


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_without_locks_a_run_says_so_and_is_whole_and_can_be_read(job, expected, disk, num_ranks):
    no_locks = {"LD_PRELOAD": disk, "DISK_FAULT": "no_locks"}
    result = job(num_ranks, *RUN, *OUT, **no_locks)
    assert result.code == 0, result.err
    [warning] = result.messages
    assert "files cannot be locked there (No locks available)" in warning and "one at a time" in warning
    assert_same_bytes(datasets(job.folder / "run.h5"), expected)
    assert tool(job, "verify", "run.h5", **no_locks).code == 0
    assert tool(job, "inspect", "run.h5", **no_locks).code == 0


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_without_locks_a_second_run_is_refused_as_long_as_the_first_lives(job, expected, disk, num_ranks):
    no_locks = {"LD_PRELOAD": disk, "DISK_FAULT": "no_locks"}
    first = job.start(num_ranks, *RUN, *OUT, **PACE, **no_locks)
    first.wait_until(lambda: committed(job.folder / "run.h5.part"))
    root = first.pid_of(0)
    second = job(None, *RUN, *OUT, **no_locks)
    assert second.code == 64 and f"another run is writing it, process {root} on {HOST}" in second.messages[-1]
    os.kill(root, signal.SIGKILL)
    first.finish()
    assert job(None, *RUN, *OUT, **no_locks).code == 0
    assert_same_bytes(datasets(job.folder / "run.h5"), expected)


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) * 1024


def test_who_asks_twice_is_not_made_to_wait_for_a_disk_that_stands_still(job, disk):
    run = job.start(None, *RUN, *OUT, **PACE, LD_PRELOAD=disk, DISK_FAULT="stuck")
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    (job.folder / "stuck").touch()
    run.wait_until(lambda: is_idle(run.pid))
    for _ in range(2):
        os.kill(run.pid, signal.SIGTERM)
        time.sleep(1.2)
    result = run.finish(20.0)
    assert result.code == 75 and result.num_tracebacks == 0
    assert [message for message in result.messages if "interrupted" in message] == result.messages[-1:]
    assert job(None, "verify", "run.h5.part").code == 0


def is_idle(pid: int) -> bool:
    """Whether a process hardly ran for a second: one that steps its sleeping envs wakes up a thousand times."""
    before = num_wakes(pid)
    time.sleep(1.0)
    return num_wakes(pid) - before < 300


def num_wakes(pid: int) -> int:
    """How often the main thread of a process has gone to sleep."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_disk_that_stands_still_makes_the_run_wait_and_not_the_memory_grow(job, expected, disk, num_ranks):
    """The run has 47 MB, its three blocks 27 MB."""
    stuck = job.folder / "stuck"
    run = job.start(num_ranks, *RUN, *OUT, "--json", **PACE, LD_PRELOAD=disk, DISK_FAULT="stuck")
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    stuck.touch()
    root = run.pid_of(0)
    before = peak_bytes(root)
    run.wait_until(lambda: is_idle(root))
    assert peak_bytes(root) - before < 32e6 and committed(job.folder / "run.h5.part") < STEPS
    stuck.unlink()
    result = run.finish(120.0)
    assert result.code == 0 and json.loads(result.out)["num_waits"] > 0
    assert_same_bytes(datasets(job.folder / "run.h5"), expected)
