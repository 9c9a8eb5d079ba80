"""Processes whose work is done end, whatever envs have left running."""

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from jobs import Job
from stopped_runs import HOST, OUT, kwargs, outputs

from mpi_rollout.exchange import job_end

pytestmark = pytest.mark.full_start

SHORT = ("--num-envs", "4", "--num-steps", "20", "--progress", "none", *OUT)
SOON = {"MPI_ROLLOUT_END_S": "1"}


@pytest.mark.mpi(2)
@pytest.mark.parametrize("how", ["thread", "atexit", "del"])
def test_a_complete_run_ends_with_its_own_code_and_says_what_envs_left(job: Job, num_ranks: int, how: str):
    """On one rank at a time: MPICH's launcher ends the others once one has left so."""
    result = job(num_ranks, "--env-factory", "exiting_envs:Lingering", *kwargs(hows={"1": how}), *SHORT, **SOON)
    assert result.code == 0 and "run.h5" in outputs(job.folder), result.err
    who = "thread viewer" if how == "thread" else "what the main thread is in"
    late = f"rank 1 ({HOST}): all is done, but this process has not ended in 1 s because of {who}"
    [message] = result.messages
    assert message.startswith(f"{late} (exiting_envs.py, line ")
    assert message.endswith("ended it with exit code 0 (MPI_ROLLOUT_END_S gives it more seconds)")


@pytest.mark.mpi(3)
def test_envs_that_do_not_close_keep_no_complete_run(job: Job, num_ranks: int):
    result = job(num_ranks, "--env-factory", "exiting_envs:Closing", *kwargs(ranks=[0, 2]), *SHORT, **SOON)
    assert result.code == 0 and "run.h5" in outputs(job.folder), result.err
    hanging = [message for message in result.messages if "takes longer than 1 s, in" in message]
    assert sorted(message.partition("envs ")[2][:1] for message in hanging) == ["0", "3"]
    closed = sorted({*result.messages} - {*hanging})
    assert closed == [f"rank {rank} ({HOST}): closing its envs: EnvTimeout: took longer than 1 s" for rank in (0, 2)]


@pytest.mark.mpi(2)
def test_a_rank_of_a_trainer_ends_too_with_the_code_of_its_script(job: Job, num_ranks: int):
    """However often it connects, one thread watches its end."""
    program = """
import exiting_envs, sys, threading, mpi_rollout
with mpi_rollout.connect("CartPole-v1", 2) as envs:
    if envs is not None:
        envs.reset()
with mpi_rollout.connect(lambda: exiting_envs.Lingering({"1": "thread"}), 4) as envs:
    if envs is not None:
        envs.reset()
assert [thread.name for thread in threading.enumerate()].count("ending") == 1
sys.exit(3 * (envs is None))
"""
    result = job.script(num_ranks, program, **SOON)
    assert result.code == 3, result.err
    [message] = result.messages
    assert "not ended in 1 s because of thread viewer (exiting_envs.py, line " in message


@pytest.mark.parametrize(("text", "expected"), [("", 3.0), ("7", 7.0), ("1m", 3.0), ("0", 3.0)])
def test_the_time_to_end_is_what_the_user_says(monkeypatch: pytest.MonkeyPatch, text: str, expected: float):
    monkeypatch.setenv(job_end.END_VARIABLE, text)
    monkeypatch.setattr(job_end.os, "getloadavg", lambda: (0.1, 0.0, 0.0))
    assert job_end.end_timeout_s(3.0) == expected
    monkeypatch.setattr(job_end.os, "getloadavg", lambda: (4.0 * (job_end.os.cpu_count() or 1), 0.0, 0.0))
    assert job_end.end_timeout_s(3.0) == (7.0 if text == "7" else 6.0)


# Without a job: what would end this process is noted.


class Left(BaseException):
    """This process would be gone."""


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """What a rank does on its way out."""
    noted: list[object] = []

    def leave(code: int) -> None:
        noted.append(code)
        raise Left

    monkeypatch.setattr(job_end.exits, "leave_now", leave)
    for name in ("settle", "release", "_await_reader"):
        monkeypatch.setattr(job_end, name, lambda *_: None)
    monkeypatch.setattr(job_end.exits, "allow_all", lambda: noted.append("allow"))
    monkeypatch.setattr(job_end, "is_guarded", lambda: False)
    yield noted


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 75, f"mpi_rollout: rank 1 ({HOST}): interrupted\n"),
        (KeyError("gone"), 70, f"mpi_rollout: rank 1 ({HOST}) failed:\nTraceback (most recent call last):\n"),
    ],
)
def test_a_rank_that_fails_alone_says_so_and_ends_all(
    calls: list,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture,
    error: BaseException,
    code: int,
    words: str,
):
    monkeypatch.setattr(job_end, "loaded_mpi", lambda: None)
    comm = SimpleNamespace(rank=1, size=2, Abort=lambda code: calls.append(f"abort {code}"))
    with pytest.raises(Left), job_end.all_or_none(comm):
        raise error
    assert calls == ["allow", f"abort {code}", code] and capfd.readouterr().err.startswith(words)


def test_a_note_that_hangs_keeps_no_rank_from_ending_all(calls: list, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_end, "loaded_mpi", lambda: None), monkeypatch.setattr(job_end, "ROOT_FIRST_S", 0.01)
    comm, hung = SimpleNamespace(Abort=lambda code: calls.append(f"abort {code}")), threading.Event()
    with pytest.raises(Left), job_end.noting_abort(lambda _: hung.wait(5) or calls.append("waited")):
        job_end.abort(comm, 70)
    hung.set()
    assert calls == ["allow", "abort 70", 70]


@pytest.mark.parametrize("name", ["ERR_OTHER", "ERR_IN_STATUS"])
def test_a_rank_that_mpich_finds_gone_is_told_in_one_line(calls: list, capfd: pytest.CaptureFixture, name: str):
    """The second comes to a rank that waits for several messages at once."""
    mpi = pytest.importorskip("mpi4py.MPI")
    comm = SimpleNamespace(rank=0, size=2, Abort=lambda code: calls.append(f"abort {code}"))
    with pytest.raises(Left), job_end.all_or_none(comm):
        raise mpi.Exception(getattr(mpi, name))
    [line] = capfd.readouterr().err.splitlines()
    assert line.startswith(f"mpi_rollout: rank 0 ({HOST}): another rank is gone; MPI says: ")
    assert calls == ["allow", "abort 70", 70]


def test_petsc_ends_before_mpi(monkeypatch: pytest.MonkeyPatch):
    ended: list[str] = []
    mpi = SimpleNamespace(Is_initialized=lambda: True, Is_finalized=lambda: False)
    mpi.Finalize = lambda: ended.append("MPI")
    monkeypatch.setattr(job_end, "loaded_mpi", lambda: mpi)
    monkeypatch.setitem(sys.modules, "petsc4py.PETSc", SimpleNamespace(_finalize=lambda: ended.append("PETSc")))
    job_end.finalize()
    assert ended == ["PETSc", "MPI"]
