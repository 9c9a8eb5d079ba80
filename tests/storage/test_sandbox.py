"""Files are read in a child: how it ends decides what is said of the file, and it never outlives its parent."""

import io
import json
import os
import signal
from pathlib import Path
from resource import RLIM_INFINITY

import pytest
from jobs import Job, are_gone, processes_in

from mpi_rollout.errors import DataError, RolloutError, StorageError
from mpi_rollout.storage import sandbox
from mpi_rollout.storage.sandbox import CRASH_SIGNALS, MEMORY_NBYTES, MEMORY_PER_BYTE, in_sandbox

pytestmark = pytest.mark.full_start

STOPPED = """
from mpi_rollout.errors import SignalInterrupt
from mpi_rollout.process.interrupts import raise_on_signals
from mpi_rollout.storage.sandbox import in_sandbox
raise_on_signals()
try:
    in_sandbox("child_tasks:{task}", "run.h5")
except SignalInterrupt as error:
    print(f"stopped by {{error}}", flush=True)
"""


def test_a_child_that_hangs_is_ended_and_what_it_was_doing_told():
    with pytest.raises(DataError, match=r"run\.h5: no answer for 0\.5 s while (starting|reading its middle); the file"):
        in_sandbox("child_tasks:hang", "run.h5", patience_s=0.5)


@pytest.mark.parametrize("number", CRASH_SIGNALS)
def test_a_child_that_crashes_is_told_with_what_it_was_doing(number: signal.Signals):
    words = rf"run\.h5: HDF5 crashed while reading its end \({number.name}\); the file is damaged"
    with pytest.raises(DataError, match=words):
        in_sandbox("child_tasks:die", "run.h5", number)


def test_a_child_that_was_killed_says_nothing_about_the_file():
    with pytest.raises(
        RolloutError, match=r"was killed \(SIGKILL\) while reading its end: .* for want of memory"
    ) as caught:
        in_sandbox("child_tasks:die", "run.h5", signal.SIGKILL)
    assert caught.value.exit_code == 70 and "damaged" not in str(caught.value)


@pytest.mark.parametrize(("task", "doing"), [("err", "reading its end"), ("leave", "starting"), ("gone", "starting")])
def test_a_mistake_of_ours_is_told_as_one(task: str, doing: str, capfd: pytest.CaptureFixture):
    with pytest.raises(RolloutError, match=f"reading it failed while {doing} .* is an error of mpi_rollout") as caught:
        in_sandbox(f"child_tasks:{task}", "run.h5")
    assert caught.value.exit_code == 70 and "damaged" not in str(caught.value)
    words = {"err": "KeyError: 'a mistake of ours'", "leave": "", "gone": "has no attribute 'gone'"}
    assert words[task] in capfd.readouterr().err


def test_an_error_is_told_before_what_it_has_interrupted_is_closed():
    with pytest.raises(StorageError, match=r"cannot write run\.h5"):
        in_sandbox("child_tasks:refuse_amid_writing", "run.h5")


def test_what_asks_a_job_to_stop_does_not_end_the_child_and_is_heeded_again_after_it():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert in_sandbox("child_tasks:ask_myself", "run.h5") == "whole"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_signal_to_all_processes_of_a_job_is_no_damage_and_ends_the_child(job: Job):
    result = job.script(None, STOPPED.format(task="ask_my_group"))
    assert (result.code, result.out) == (0, "stopped by SIGUSR1\n"), result.err
    assert are_gone(job.folder)


def test_a_child_ends_with_its_parent(job: Job):
    run = job.start_script(None, STOPPED.format(task="hang"))
    run.wait_until(lambda: len(processes_in(job.folder)) == 2)
    os.kill(run.pid, signal.SIGKILL)
    assert run.finish().code == -signal.SIGKILL and are_gone(job.folder)


def test_what_takes_more_memory_than_a_file_of_its_size_is_damaged():
    with pytest.raises(DataError, match=r"run\.h5: reading it takes more memory than a file of its size can need"):
        in_sandbox("child_tasks:fill_memory", "run.h5")


@pytest.mark.parametrize(
    ("size", "most", "expected"),
    [
        (None, RLIM_INFINITY, MEMORY_NBYTES),
        (0, RLIM_INFINITY, MEMORY_NBYTES),
        (1000, RLIM_INFINITY, MEMORY_NBYTES + 1000 * MEMORY_PER_BYTE),
        (1000, 2**20, 2**20),
        (1000, 2**40, MEMORY_NBYTES + 1000 * MEMORY_PER_BYTE),
    ],
)
def test_the_memory_for_a_file_grows_with_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int | None, most: int, expected: int
):
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(sandbox.resource, "getrlimit", lambda kind: (RLIM_INFINITY, most))
    monkeypatch.setattr(sandbox.resource, "setrlimit", lambda kind, limit: limits.append(limit))
    if size is not None:
        (tmp_path / "run.h5").write_bytes(bytes(size))
    sandbox.limit_memory(str(tmp_path / "run.h5"))
    assert limits == [(expected, most)]


@pytest.mark.parametrize(
    ("now", "most", "expected"),
    [
        (RLIM_INFINITY, RLIM_INFINITY, []),
        (MEMORY_NBYTES + 5, RLIM_INFINITY, [(MEMORY_NBYTES + 1000, RLIM_INFINITY)]),
        (MEMORY_NBYTES + 5, MEMORY_NBYTES + 7, [(MEMORY_NBYTES + 7, MEMORY_NBYTES + 7)]),
        (MEMORY_NBYTES + 5000, RLIM_INFINITY, []),
    ],
)
def test_a_task_that_needs_more_memory_may_have_it(
    monkeypatch: pytest.MonkeyPatch, now: int, most: int, expected: list[tuple[int, int]]
):
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(sandbox.resource, "getrlimit", lambda kind: (now, most))
    monkeypatch.setattr(sandbox.resource, "setrlimit", lambda kind, limit: limits.append(limit))
    sandbox.allow_memory(1000)
    assert limits == expected


def test_what_is_read_is_told_when_it_changes():
    signs = io.StringIO()
    tell = sandbox.teller(signs)
    for doing in ("reading its middle", "reading its middle", "reading its end"):
        tell(doing)
    lines = signs.getvalue().splitlines()
    assert [json.loads(line) for line in lines] == [{"doing": "reading its middle"}, {"doing": "reading its end"}]
