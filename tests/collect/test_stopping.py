"""Who asks a run to stop is heard between two steps, and loses no step that was taken."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from jobs import Job, are_gone, is_hydra, job_environment
from stopped_runs import ENVS, HOST, OUT, PACED, assert_begins, assert_stopped, committed, fails, start_long


@pytest.mark.mpi(3)
@pytest.mark.parametrize(("place", "name"), [("root", "SIGINT"), ("other", "SIGTERM")])
def test_a_signal_to_a_rank_ends_all_ranks_at_the_same_step(job, whole, num_ranks, place, name):
    run = start_long(job, num_ranks)
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    os.kill(run.pid_of(0 if place == "root" else num_ranks - 1), getattr(signal, name))
    assert_stopped(run.finish(), job, whole, name)


def test_a_signal_ends_a_run_without_launcher_in_the_same_way(job, whole):
    run = start_long(job, None)
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    os.kill(run.pid, signal.SIGINT)
    assert_stopped(run.finish(), job, whole, "SIGINT")


@pytest.mark.mpi(2)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_to_the_launcher_ends_the_job_and_loses_nothing_committed(job, whole, num_ranks, name):
    """MPICH's mpiexec forwards it and waits; Open MPI's kills the ranks 0.25 s later and tells nothing of them."""
    run = start_long(job, num_ranks)
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    os.kill(run.pid, getattr(signal, name))
    result = run.finish()
    if result.messages:
        assert_stopped(result, job, whole, name)
        return
    assert result.code != 0 and result.num_tracebacks == 0 and not is_hydra()
    assert assert_begins(job.folder / "run.h5.part", whole) >= 255
    assert are_gone(job.folder)


def test_who_asks_again_after_a_second_is_not_made_to_wait_for_a_long_step(job):
    """Six envs that sleep a minute each; what comes within the first second is the same Ctrl-C."""
    run = job.start(None, *fails("long"))
    run.wait_until((job.folder / "run.h5.part").exists)
    start = time.monotonic()
    for _ in range(2):
        time.sleep(1.2)
        os.kill(run.pid, signal.SIGINT)
    assert run.finish().code != 0
    assert time.monotonic() - start < 50.0


ON_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def press_ctrl_c(job: Job, num_ranks: int | None) -> tuple[int, str]:
    """Start a run on a terminal, press Ctrl-C there amid it; return the exit code and what the terminal showed."""
    run = job.command(num_ranks, *PACED, "--num-steps", "100000000", *ENVS, *OUT)
    terminal = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, *run],
        cwd=job.folder,
        env=job_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    while not committed(job.folder / "run.h5.part"):
        time.sleep(0.05)
    shown, _ = terminal.communicate(b"\x03", timeout=300)
    return terminal.returncode, shown.decode()


@pytest.mark.full_start
@pytest.mark.parametrize("num_ranks", [None, pytest.param(2, marks=pytest.mark.mpi)])
def test_ctrl_c_on_a_terminal_is_answered_there(job, whole, num_ranks):
    """Also where Open MPI's mpirun passes nothing on any more, and kills the ranks soon."""
    code, shown = press_ctrl_c(job, num_ranks)
    is_open_mpi = num_ranks is not None and not is_hydra()
    name = "SIGTERM, which mpirun sends after Ctrl-C" if is_open_mpi else "SIGINT"
    assert code == (1 if is_open_mpi else 75)
    status = json.loads((job.folder / "run.status.json").read_text())
    num_steps = assert_begins(job.folder / "run.h5.part", whole)
    said = f"rank 0 ({HOST}), step {num_steps}: stopped by {name}"
    assert (status["state"], status["message"]) == ("interrupted", said)
    part = job.folder / "run.h5.part"
    kept = f"the {num_steps:,} steps before are in {part}; the same command continues"
    assert shown.count(f"mpi_rollout: {said}; {kept}") == 1, shown
