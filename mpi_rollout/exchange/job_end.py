"""How all ranks of a job end: together after a failure, and each of them in time when the work is done.

A process that never ends would hold its whole allocation, because its launcher waits for all ranks.
"""

import atexit
import faulthandler
import fcntl
import os
import stat
import sys
import termios
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, NoReturn, TypeVar

from mpi_rollout.errors import Interrupted, RolloutError
from mpi_rollout.exchange.world import ROOT_FIRST_S, claimed_rank, loaded_mpi, rank_and_host
from mpi_rollout.process import exits
from mpi_rollout.process.clock import MAX_TIMEOUT_S
from mpi_rollout.process.console import STDERR, say, settle
from mpi_rollout.process.launcher import is_guarded, release
from mpi_rollout.process.rank_variables import variable
from mpi_rollout.text import first_line, in_seconds, traceback_of

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

END_VARIABLE = "MPI_ROLLOUT_END_S"
END_TIMEOUT_S = 10.0  # Programs that end at all need less; an allocation costs more.
MOST_CROWD = 2.0  # So many times longer a process may take where cores are crowded: load has no bound, and people wait.
SAME_S = 0.3  # Between signals of a launcher to its ranks.
LAST_WORDS_S = 5.0  # The time for the message and MPI's end after that.
_notes: list[Callable[[int], object]] = []  # Called with the exit code before this rank ends the job.
_STDLIB = os.path.dirname(os.__file__) + os.sep


@contextmanager
def all_or_none(comm: "MPI.Comm") -> Iterator[None]:
    """End all ranks when this one leaves by an exception that the others do not know of.

    An exception alone would hang the job: this rank would wait in MPI_Finalize, the others for their next message.
    `RolloutError`s pass, because the rank that raises one has told the others.
    """
    try:
        yield
    except RolloutError:
        raise
    except KeyboardInterrupt as error:
        # The root says it for all, if all were interrupted.  Open MPI's launcher also sends SIGTERM, and soon SIGKILL,
        # when another rank has ended the job and said why.
        if comm.rank or (error.args == ("SIGTERM",) and variable("OMPI_COMM_WORLD_RANK")):
            sleep(SAME_S)
        interrupt(comm, f"stopped by {error}" if error.args else "interrupted")
    except BaseException as error:
        exits.end_if_forked(error)
        lost_ranks = _lost_ranks(comm, error)
        if is_loss(error):
            what = first_line(error).removesuffix(", error stack:")
            say(f"mpi_rollout: {rank_and_host(comm.rank)}: another rank is gone; MPI says: {what}\n")
        elif not lost_ranks:
            say(f"mpi_rollout: {rank_and_host(comm.rank)} failed:\n{traceback_of(error)}")
        elif comm.rank == min({*range(comm.size)} - {*lost_ranks}):
            say(f"mpi_rollout: lost rank {', '.join(map(str, lost_ranks))}, and the job ends with it\n")
        else:
            sleep(ROOT_FIRST_S)
        abort(comm, RolloutError.exit_code)


@contextmanager
def no_early_end(comm: "MPI.Comm", others_go_on: bool = False) -> Iterator[None]:
    """End the job, with a message, when an env, a policy or a library would end this rank or its MPI; see `exits`.

    If `others_go_on`, such a call ends this rank alone.
    """

    def refuse(what: str) -> NoReturn:
        place, end = rank_and_host(comm.rank), "it is lost" if others_go_on else "the job ends"
        say(f"mpi_rollout: {place}: an env, a policy or a library called {what} before the run was over; {end}\n")
        if others_go_on:
            settle()
            exits.leave_now(RolloutError.exit_code)
        abort(comm, RolloutError.exit_code)

    with _no_finalize(), exits.no_early_end(refuse):
        yield


@contextmanager
def _no_finalize() -> Iterator[None]:
    """Refuse MPI_Finalize, which deletes the attributes of COMM_SELF while all of MPI still works."""
    mpi = loaded_mpi()
    if mpi is None:
        yield
        return
    is_over = False
    key = mpi.Comm.Create_keyval(delete_fn=lambda *_: None if is_over else exits.refuse("MPI.Finalize()"))
    mpi.COMM_SELF.Set_attr(key, None)
    try:
        yield
    finally:
        is_over = True  # An outer one still refuses.
        mpi.COMM_SELF.Delete_attr(key)
        mpi.Comm.Free_keyval(key)


def is_loss(error: BaseException) -> bool:
    """Tell whether MPICH reports by this error that a rank is gone, right before its launcher ends the others.

    Who waits for several requests at once is told that one of them has failed.
    """
    mpi = loaded_mpi()
    if mpi is None or not isinstance(error, mpi.Exception):
        return False
    return error.Get_error_class() in (mpi.ERR_OTHER, mpi.ERR_IN_STATUS)


def _lost_ranks(comm: "MPI.Comm", error: BaseException) -> list[int]:
    """Return the ranks that are gone, if that caused the error; only Open MPI's ULFM tells."""
    mpi = loaded_mpi()
    if mpi is None or not isinstance(error, mpi.Exception) or error.Get_error_class() != mpi.ERR_PROC_FAILED:
        return []
    return [*comm.Get_failed().Translate_ranks(None, comm.Get_group())]


def interrupt(comm: "MPI.Comm", words: str = "interrupted", is_hanging: bool = False) -> NoReturn:
    """End all ranks at once because somebody asked for it; `is_hanging` says that the main thread hangs in C code."""
    say(f"mpi_rollout: {rank_and_host(comm.rank)}: {words}\n")
    if is_hanging and comm.size == 1:  # MPICH's MPI_Abort may wait for that thread, and nobody else has to hear of it.
        exits.leave_now(Interrupted.exit_code)
    abort(comm, Interrupted.exit_code)


@contextmanager
def noting_abort(note: Callable[[int], object]) -> Iterator[None]:
    """Call `note` with the exit code before this rank ends the job by `abort`."""
    _notes.append(note)
    try:
        yield
    finally:
        _notes.remove(note)


def abort(comm: "MPI.Comm", code: int) -> NoReturn:
    """End all ranks at once with an exit code, after the launcher has read what this one said."""
    settle()
    for note in _notes:  # In a thread: their file system may hang.
        thread = threading.Thread(target=note, args=(code,), daemon=True)
        thread.start()
        thread.join(ROOT_FIRST_S)
    _await_reader(STDERR)
    release()
    exits.allow_all()  # MPI_Abort may call exit().
    mpi = loaded_mpi()
    if mpi is not None and is_guarded() and mpi.COMM_WORLD.Get_failed().size == mpi.COMM_WORLD.size - 1:
        exits.leave_now(code)  # With --with-ft ulfm, mpirun (5.0.11) makes 0 of the code of the last rank's MPI_Abort.
    comm.Abort(code)
    exits.leave_now(code)  # MPICH's (5.0.2) returned twice in a thousand jobs, and the rank went on.


def _await_reader(descriptor: int, timeout_s: float = 1.0) -> None:
    """Wait until all that was written to a pipe has been read.

    MPICH's launcher stops reading the pipes of its ranks as soon as it hears of an abort.  A rank's last message, which
    says why, would be lost if the launcher were slow to read it.
    """
    deadline = monotonic() + timeout_s
    unread = bytearray(4)
    with suppress(OSError):  # It is not a pipe: there is nothing to wait for.
        while stat.S_ISFIFO(os.fstat(descriptor).st_mode) and monotonic() < deadline:
            fcntl.ioctl(descriptor, termios.FIONREAD, unread)
            if not any(unread):
                return
            sleep(0.001)


def with_stacks(call: Callable[[], T]) -> T:
    """Call it so that a crash in C code (SIGSEGV, SIGABRT, ...) prints Python's stack on stderr.

    No Python code runs then, and what prints the stack does not know the rank: it is the outermost frame's file name.
    """
    faulthandler.enable(STDERR)
    name = rank_and_host(claimed_rank())
    result: T = eval(compile("call()", name, "eval"), {"call": call})
    return result


def finalize() -> None:
    """End MPI, if it was started and has not been ended.  **Collective**."""
    mpi = loaded_mpi()
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        if (petsc := sys.modules.get("petsc4py.PETSc")) is not None:
            petsc._finalize()  # At the interpreter's end it would call MPI after MPI's end, and abort.
        mpi.Finalize()


def leave(code: int, finalizes: bool = True) -> NoReturn:
    """Leave MPI in good order but without the interpreter's own end, which a broken HDF5 file would crash.

    Without `finalizes` the launcher sees to the order: after the loss of a rank, MPI_Finalize sometimes waits for it
    forever (Open MPI 5.0.11, 5 of 14 jobs of three ranks that lost two).
    """
    settle()
    if finalizes:
        finalize()
    exits.leave_now(code)


class EndWatch:
    """Ends a process that threads, `atexit` or `__del__` of envs keep from ending after its main thread is through.

    Messages call it `place`; `code` is the exit code, as far as it is known before the program is through.
    """

    def __init__(self, place: str) -> None:
        self.code, self._place = 0, place
        exits.note_exits()
        # While Python removes its modules none of our threads runs.  This ends the process then, with its stack.
        atexit.register(lambda: faulthandler.dump_traceback_later(end_timeout_s() + LAST_WORDS_S, exit=True))
        threading.Thread(target=self._watch, name="ending", daemon=True).start()

    def begin(self) -> threading.Timer:
        """Watch the main thread, which should end now, until somebody cancels the returned timer."""
        timeout_s = end_timeout_s()
        timer = threading.Timer(timeout_s, self._end, (timeout_s,))
        timer.daemon = True
        timer.start()
        return timer

    def _watch(self) -> None:
        threading.main_thread().join()  # Then the interpreter's end begins.
        timeout_s = end_timeout_s()
        sleep(timeout_s)
        self._end(timeout_s)

    def _end(self, timeout_s: float) -> NoReturn:
        code = self.code or exits.noted_code()
        say(
            f"mpi_rollout: {self._place}: all is done, but this process has not ended in {in_seconds(timeout_s)} "
            f"because of {_what_runs()}; ended it with exit code {code} ({END_VARIABLE} gives it more seconds)\n"
        )
        faulthandler.dump_traceback_later(LAST_WORDS_S, exit=True)
        with suppress(Exception):
            finalize()
        exits.leave_now(code)


_end_watches: list[EndWatch] = []  # At most one, whatever ranks this process has in its communicators.


def watch_end(comm: "MPI.Comm", code: int) -> EndWatch:
    """End this rank after its program is through, with this code if the program gives no other."""
    if not _end_watches:
        _end_watches.append(EndWatch(rank_and_host(comm.rank)))
    [watch] = _end_watches
    watch.code = code
    return watch


def end_timeout_s(default_s: float = END_TIMEOUT_S) -> float:
    """Return the seconds that a process may take to end: the user's, or the default, at most doubled by other load."""
    try:
        given_s = float(os.environ.get(END_VARIABLE, ""))
    except ValueError:
        given_s = 0.0
    crowd = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(given_s, MAX_TIMEOUT_S) if given_s > 0 else default_s * min(max(crowd, 1.0), MOST_CROWD)


def _what_runs() -> str:
    """Name what keeps this process from ending: threads that are not daemons, or what the main thread is in."""
    own_threads = (threading.main_thread(), threading.current_thread())
    threads = [thread for thread in threading.enumerate() if not thread.daemon and thread not in own_threads]
    if threads:
        names = [f"thread {thread.name} ({place_of(thread.ident)})" for thread in threads]
        return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"what the main thread is in ({place_of(threading.main_thread().ident)})"


def place_of(thread: int | None) -> str:
    """Return where a thread is: the innermost file and line of its stack outside of the standard library."""
    frame = sys._current_frames().get(thread or 0)
    stack = traceback.extract_stack(frame) if frame is not None else []
    for call in reversed(stack):
        if not call.filename.startswith((_STDLIB, "<")):
            return f"{os.path.basename(call.filename)}, line {call.lineno}, in {call.name}"
    return "place unknown"
