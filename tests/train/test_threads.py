"""Threads that share a connection: each call is whole, and leaving it ends the job."""

import pytest
from jobs import HELPERS, Job, are_gone

PROGRAM = HELPERS / "calling_threads.py"


@pytest.mark.mpi(1, 2)
def test_each_call_of_several_threads_gets_its_own_data(job: Job, num_ranks: int):
    result = job.python(num_ranks, PROGRAM, "share")
    assert (result.code, result.out, result.err) == (0, "[]\n", "")


@pytest.mark.mpi(1, 2)
def test_closing_while_another_thread_steps_ends_its_calls_by_an_error(job: Job, num_ranks: int):
    result = job.python(num_ranks, PROGRAM, "leave")
    assert (result.code, result.out, result.err) == (0, "closed after 1\n", "")


@pytest.mark.mpi(2)
@pytest.mark.full_start
def test_leaving_while_another_thread_is_in_a_step_that_does_not_end_ends_the_job(job: Job, num_ranks: int):
    result = job.python(num_ranks, PROGRAM, "hang")
    assert result.code == 70 and "the trainer left while ranks were stepping" in result.err
    assert are_gone(job.folder)


@pytest.mark.full_start
def test_in_one_process_leaving_while_another_thread_is_in_a_step_that_does_not_end_is_an_error(job: Job):
    result = job.python(None, PROGRAM, "hang")
    assert result.code == 1 and "AlreadyPendingCallError: close while another thread's call has been" in result.err


@pytest.mark.mpi(2)
@pytest.mark.full_start
def test_after_a_call_that_was_cut_no_other_follows_and_the_job_ends(job: Job, num_ranks: int):
    result = job.python(num_ranks, PROGRAM, "cut")
    assert result.out.startswith("1 an exchange with the ranks was left half done; leave the with statement\n")
    assert are_gone(job.folder)
