"""Who asks a run to stop is heard between two steps, and loses no step that was taken."""

import os
import signal
import time

import pytest
from jobs import is_hydra, processes_in
from stopped_runs import assert_begins, assert_stopped, committed, fails, start_long


@pytest.mark.mpi(3)
@pytest.mark.parametrize("place", ["root", "other"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
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
    assert processes_in(job.folder) == []


def test_who_asks_again_after_a_second_is_not_made_to_wait_for_a_long_step(job):
    """Six envs that sleep 3 s each; what comes within the first second is the same Ctrl-C."""
    run = job.start(None, *fails("sleep"))
    run.wait_until((job.folder / "run.h5.part").exists)
    start = time.monotonic()
    for _ in range(2):
        time.sleep(1.2)
        os.kill(run.pid, signal.SIGINT)
    assert run.finish().code != 0
    assert time.monotonic() - start < 8.0
