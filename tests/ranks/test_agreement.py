"""Ranks that never come do not leave the others waiting for ever."""

from itertools import count
from types import SimpleNamespace

import pytest
from jobs import Job, run_job
from stopped_runs import HOST, OUT

from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import UsageError
from mpi_rollout.ranks import agreement

SHORT = ("--env", "CartPole-v1", "--num-envs", "4", "--progress", "none", "--start-timeout-s", "3", *OUT)
OTHER = "from mpi4py import MPI; import time; time.sleep(1000)"


@pytest.mark.mpi(2)
def test_a_rank_that_never_starts_mpi_ends_the_job_in_time(job: Job, num_ranks: int):
    result = run_job([*job.command(1, *SHORT), ":", "-n", "1", "true"], job.folder)
    message = f"rank 0 ({HOST}): another rank has not started MPI within 3 s; start this program on all 2 ranks"
    assert result.code == 78 and result.messages == [f"{message}, or give them more time by --start-timeout-s"]


@pytest.mark.mpi(2)
def test_a_rank_that_runs_another_mpi_program_ends_the_job_in_time(job: Job, num_ranks: int):
    command = job.command(1, *SHORT)
    result = run_job([*command, ":", "-n", "1", *command[3 : command.index("-m")], "-c", OTHER], job.folder)
    message = f"rank 0 ({HOST}): rank 1 has not called python -m mpi_rollout run within 3 s; call it on all ranks"
    assert result.code == 78 and result.messages == [f"{message}, or give them more time by --start-timeout-s"]


NATIVE = ("--vectorization-mode", "native", "--num-envs", "4", "--num-steps", "9", "--start-timeout-s", "5", *OUT)


@pytest.mark.mpi(2)
def test_a_rank_whose_envs_hang_when_they_are_made_says_where(job: Job, num_ranks: int):
    result = job(num_ranks, "--env-factory", "slow_making:asleep", *NATIVE)
    place = "it is in slow_making.py, line 11, in asleep; give it more time by --start-timeout-s"
    assert result.code == 70
    assert result.messages == [f"rank 1 ({HOST}): has not made its envs within 5 s: {place}"]


@pytest.mark.mpi(2)
def test_a_rank_that_hangs_in_c_code_while_it_makes_envs_is_named_by_another(job: Job, num_ranks: int):
    result = job(num_ranks, "--env-factory", "slow_making:locked", *NATIVE)
    late = "rank 1 has not made its envs within 5 s; give it more time by --start-timeout-s"
    assert result.code == 70 and result.messages == [f"rank 0 ({HOST}): {late}"]


def test_a_limit_that_is_none_is_refused():
    with pytest.raises(UsageError, match=r"^start_timeout_s must be more than 0 s and at most 1e.06, got 0$"):
        RolloutConfig(env="CartPole-v1", start_timeout_s=0)


def test_who_is_awaited_for_long_is_told_once(monkeypatch, capfd):
    """Time goes on by a second with each look; the ranks 2 and 3 come after 100."""
    seconds = count()
    monkeypatch.setattr(agreement, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(agreement, "sleep", lambda _: None)
    looks = count()
    late = SimpleNamespace(test=lambda: (next(looks) > 200, None))
    there = SimpleNamespace(test=lambda: (True, None))
    comm = SimpleNamespace(
        rank=0, size=4, irecv=lambda source, tag: there if source == 1 else late,
        isend=lambda *_: SimpleNamespace(Wait=lambda: None),
    )  # fmt: skip
    agreement.meet(comm, 600.0, "python -m mpi_rollout run", "--start-timeout-s")
    waits = f"rank 0 ({HOST}): waits for rank 2, 3 to call python -m mpi_rollout run, 600 s at most (--start-timeout-s)"
    assert capfd.readouterr().err == f"mpi_rollout: {waits}\n"


@pytest.mark.mpi(2)
def test_ranks_that_do_not_start_mpi_are_told_of(job: Job, num_ranks: int):
    """After a tenth of a second here, once by rank 0."""
    code = (
        "import time\nfrom mpi_rollout.exchange import job_end, world\nworld.TELL_AFTER_S = 0.1\n"
        "time.sleep(2 * world.claimed_rank())\nworld.start_mpi_on_all_ranks(60.0, 'its limit')\njob_end.finalize()"
    )
    result = job.script(num_ranks, code)
    assert result.code == 0
    assert result.messages == [f"rank 0 ({HOST}): waits for some of 2 ranks to start MPI, 60 s at most (its limit)"]
