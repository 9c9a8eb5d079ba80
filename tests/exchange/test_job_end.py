"""Processes whose work is done end, whatever envs have left running."""

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from jobs import Job
from stopped_runs import HOST, OUT, kwargs, outputs

from mpi_rollout.errors import DataError
from mpi_rollout.exchange import job_end

pytestmark = pytest.mark.full_start

SHORT = ("--num-envs", "4", "--num-steps", "20", "--progress", "none", *OUT)
SOON = {"MPI_ROLLOUT_END_S": "1"}


@pytest.mark.mpi(2)
@pytest.mark.parametrize(
    ("how", "who"),
    [
        ("thread", "thread viewer (exiting_envs.py, line "),
        ("atexit", "what the main thread is in (exiting_envs.py, line "),
        ("del", "what the main thread is in (exiting_envs.py, line "),
    ],
)
def test_a_complete_run_ends_with_its_own_code_and_says_what_an_env_left(job: Job, num_ranks: int, how: str, who: str):
    result = job(num_ranks, "--env-factory", "exiting_envs:Lingering", *kwargs(how=how, rank=1), *SHORT, **SOON)
    assert result.code == 0 and "run.h5" in outputs(job.folder), result.err
    [message] = result.messages
    assert message.startswith(f"rank 1 ({HOST}): all is done, but this process has not ended in 1 s because of {who}")
    assert message.endswith("ended it with exit code 0 (MPI_ROLLOUT_END_S gives it more seconds)")


@pytest.mark.mpi(2)
@pytest.mark.parametrize("rank", [0, 1])
def test_an_env_that_does_not_close_keeps_no_complete_run(job: Job, num_ranks: int, rank: int):
    result = job(num_ranks, "--env-factory", "exiting_envs:Closing", *kwargs(how="wait", rank=rank), *SHORT, **SOON)
    assert result.code == 0 and "run.h5" in outputs(job.folder), result.err
    [hanging, closed] = result.messages
    assert f"env {2 * rank}, " in hanging and "takes longer than 1 s, in" in hanging
    assert closed == f"rank {rank} ({HOST}): closing its envs: EnvTimeout: took longer than 1 s"


@pytest.mark.mpi(2)
@pytest.mark.parametrize(("last", "code"), [("", 0), ("sys.exit(3 * (envs is None))", 3)])
def test_a_rank_of_a_trainer_ends_too_with_the_code_of_its_script(job: Job, num_ranks: int, last: str, code: int):
    program = """
import exiting_envs, sys, mpi_rollout
with mpi_rollout.connect(lambda: exiting_envs.Lingering("thread", 1), 4) as envs:
    if envs is not None:
        envs.reset()
"""
    result = job.script(num_ranks, program + last, **SOON)
    assert result.code == code, result.err
    [message] = result.messages
    assert "not ended in 1 s because of thread viewer (exiting_envs.py, line " in message


@pytest.mark.mpi(1, 2)
def test_a_process_that_connects_again_and_again_has_no_more_threads(job: Job, num_ranks: int):
    program = """
import threading, mpi_rollout
for _ in range(3):
    with mpi_rollout.connect("CartPole-v1", 2) as envs:
        if envs is not None: envs.reset()
num_watching = [thread.name for thread in threading.enumerate()].count("ending")
assert num_watching == int(mpi_rollout.exchange.world.comm_world().size > 1)
"""
    result = job.script(num_ranks, program)
    assert (result.code, result.err) == (0, "")


@pytest.mark.mpi(2)
def test_a_limit_that_is_no_number_spoils_no_run(job: Job, num_ranks: int):
    result = job(num_ranks, "--env", "CartPole-v1", *SHORT, MPI_ROLLOUT_END_S="1m")
    assert (result.code, result.err) == (0, "") and "run.h5" in outputs(job.folder)


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
    monkeypatch.setattr(job_end, "finalize", lambda: noted.append("finalize"))
    for name in ("settle", "release", "_await_reader"):
        monkeypatch.setattr(job_end, name, lambda *_: None)
    monkeypatch.setattr(job_end.exits, "allow_all", lambda: noted.append("allow"))
    monkeypatch.setattr(job_end, "is_guarded", lambda: False)
    yield noted


@pytest.mark.parametrize(("finalizes", "expected"), [(True, ["finalize", 5]), (False, [5])])
def test_a_rank_leaves_mpi_in_good_order_unless_others_are_lost(calls: list, finalizes: bool, expected: list):
    with pytest.raises(Left):
        job_end.leave(5, finalizes)
    assert calls == expected


def test_mpi_is_ended_once_if_it_was_started(monkeypatch: pytest.MonkeyPatch):
    state, ends = {"is_initialized": False, "is_finalized": False}, []

    def end() -> None:
        ends.append(True)
        state["is_finalized"] = True

    mpi = SimpleNamespace(
        Is_initialized=lambda: state["is_initialized"], Is_finalized=lambda: state["is_finalized"], Finalize=end
    )
    monkeypatch.setattr(job_end, "loaded_mpi", lambda: None)
    job_end.finalize()
    monkeypatch.setattr(job_end, "loaded_mpi", lambda: mpi)
    job_end.finalize()
    assert ends == []
    state["is_initialized"] = True
    job_end.finalize(), job_end.finalize()
    assert ends == [True]


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


def test_an_error_that_all_ranks_know_of_ends_nobody(calls: list, capfd: pytest.CaptureFixture):
    with pytest.raises(DataError), job_end.all_or_none(SimpleNamespace(rank=1, size=2)):
        raise DataError("wrong")
    assert calls == [] and capfd.readouterr().err == ""


@pytest.fixture
def watch(calls: list, monkeypatch: pytest.MonkeyPatch) -> job_end.EndWatch:
    """One that waits for the end of no interpreter; its thread alone would keep no process from ending."""
    daemons: list[bool] = []
    monkeypatch.setenv(job_end.END_VARIABLE, "0.01")
    monkeypatch.setattr(job_end.EndWatch, "_watch", lambda self: daemons.append(threading.current_thread().daemon))
    monkeypatch.setattr(job_end.exits, "note_exits", lambda: None)
    monkeypatch.setattr(job_end.exits, "noted_code", lambda: 9)
    monkeypatch.setattr(job_end.atexit, "register", lambda *_, **__: None)
    monkeypatch.setattr(job_end.faulthandler, "dump_traceback_later", lambda *_, **__: calls.append("stack"))
    monkeypatch.setattr(job_end, "_end_watches", [])
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    watch = job_end.watch_end(SimpleNamespace(rank=2), 0)
    for thread in threading.enumerate():
        if thread.name == "ending":
            thread.join()
    assert daemons == [True]
    return watch


@pytest.mark.parametrize(("is_daemon", "who"), [(False, "thread viewer ("), (True, "what the main thread is in (")])
@pytest.mark.parametrize(("code", "expected"), [(0, 9), (75, 75)])
def test_what_keeps_a_process_from_ending_is_named(
    calls: list,
    watch: job_end.EndWatch,
    capfd: pytest.CaptureFixture,
    is_daemon: bool,
    who: str,
    code: int,
    expected: int,
):
    assert job_end.watch_end(SimpleNamespace(rank=2), code) is watch
    stay = threading.Event()
    viewer = threading.Thread(target=stay.wait, name="viewer", daemon=is_daemon)
    viewer.start()
    watch.begin().join()
    stay.set()
    viewer.join()
    words = capfd.readouterr().err
    begin = f"mpi_rollout: rank 2 ({HOST}): all is done, but this process has not ended in 0.01 s because of {who}"
    assert words.startswith(begin) and f"ended it with exit code {expected} " in words
    assert "watchdog" not in words and calls == ["stack", "finalize", expected]


def test_a_process_that_ends_in_time_is_not_ended(calls: list, watch: job_end.EndWatch):
    timer = watch.begin()
    timer.cancel()
    timer.join()
    assert calls == []


@pytest.mark.parametrize(("text", "expected"), [("", 3.0), ("7", 7.0), ("1m", 3.0), ("0", 3.0), ("-1", 3.0)])
def test_the_time_to_end_is_what_the_user_says(monkeypatch: pytest.MonkeyPatch, text: str, expected: float):
    monkeypatch.setenv(job_end.END_VARIABLE, text)
    assert job_end.end_timeout_s(3.0) == expected


@pytest.mark.parametrize(("rank", "is_first"), [(1, True), (2, False)])
def test_of_a_lost_rank_the_first_that_is_left_says_so_and_the_others_give_it_time(
    calls: list, monkeypatch, capfd: pytest.CaptureFixture, rank: int, is_first: bool
):
    monkeypatch.setattr(job_end, "loaded_mpi", lambda: None)
    monkeypatch.setattr(job_end, "_lost_ranks", lambda comm, error: [0])
    monkeypatch.setattr(job_end, "sleep", lambda seconds: calls.append("sleep"))
    comm = SimpleNamespace(rank=rank, size=3, Abort=lambda code: calls.append(f"abort {code}"))
    with pytest.raises(Left), job_end.all_or_none(comm):
        raise KeyError("gone")
    said = "mpi_rollout: lost rank 0, and the job ends with it\n"
    assert capfd.readouterr().err == said * is_first and ("sleep" in calls) is not is_first
    assert calls[-2:] == ["abort 70", 70]


def test_without_mpi_there_is_none_that_could_end_early(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(job_end.exits, "no_early_end", lambda refuse: nullcontext())
    asked = []
    monkeypatch.setattr(job_end, "loaded_mpi", lambda: asked.append("MPI"))
    reached = False
    with job_end.no_early_end(SimpleNamespace(rank=0)):  # It would set an attribute of the class of None.
        reached = True
    assert reached and asked == ["MPI"]


def test_an_end_of_mpi_is_refused_while_a_run_lasts(monkeypatch: pytest.MonkeyPatch):
    deletes: list = []
    refused: list[str] = []
    comm_class = SimpleNamespace(
        Create_keyval=lambda delete_fn: deletes.append(delete_fn), Free_keyval=lambda key: deletes.append("free")
    )
    comm_self = SimpleNamespace(Set_attr=lambda *_: None, Delete_attr=lambda key: deletes[0]())
    mpi = SimpleNamespace(Comm=comm_class, COMM_SELF=comm_self)
    monkeypatch.setattr(job_end, "loaded_mpi", lambda: mpi)
    monkeypatch.setattr(job_end.exits, "refuse", refused.append)
    monkeypatch.setattr(job_end.exits, "no_early_end", lambda refuse: nullcontext())
    with job_end.no_early_end(SimpleNamespace(rank=0)):
        deletes[0]()  # As MPI_Finalize does.
        assert refused == ["MPI.Finalize()"]
    assert refused == ["MPI.Finalize()"] and deletes[-1] == "free"
