"""How the code of others may end a rank's process during a run: by an exception, and in no other way.

An env or a library that calls `exit()`, `os._exit()` or `MPI_Finalize()` would end the process, or its MPI, without our
knowledge.  The launcher could take that for a good end, and the other ranks would wait forever.  So these calls end the
job, with a message.

A process that an env has forked is not a rank.  It may end as it likes, but it must not go on in our code, which would
send messages to the other ranks in the name of its parent.  So it ends where it would come back to our code.
"""

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from mpi_rollout.errors import cause_of, without_our_frames
from mpi_rollout.process.c_exit import HeardExit
from mpi_rollout.process.console import say
from mpi_rollout.process.interrupts import STOP_SIGNALS, is_main_thread
from mpi_rollout.process.start import end_with
from mpi_rollout.text import message_of, traceback_of

FORKED_EXIT_CODE = 70
# Their signal handlers stop a run.  The handlers of `interrupts` handle forks themselves.
STOPPING = "mpi_rollout.collect.run", "mpi_rollout.ranks.worker"
leave_now = os._exit  # Never refused.
_refusals: list[Callable[[str], None]] = []  # What to do about an early end; empty while anyone may end this process.
_rank_pid = 0
_is_forked = False
_ends_forks = False  # The fork under way ends with this process.
_mask: set[int] = set()  # The signals that were blocked before a fork.
_raised: SystemExit | None = None  # What `sys.exit` raised after `note_exits` was called.


@contextmanager
def no_early_end(refuse: Callable[[str], None]) -> Iterator[None]:
    """Let each call that would end this process call `refuse` instead, with its name, which does not return."""
    if not _refusals:
        _take_exits()
    _refusals.append(refuse)
    try:
        yield
    finally:
        if _refusals:
            _refusals.pop()
            if not _refusals:
                _give_exits_back()


def refuse(what: str) -> None:
    """Refuse a call that would end this process, if this is a rank during a run; else do nothing."""
    if _refusals and os.getpid() == _rank_pid:
        _refusals[-1](what)


def allow_all() -> None:
    """Refuse nothing from now on: the job is ending."""
    _refusals.clear()


def _take_exits() -> None:
    global _rank_pid
    if not _rank_pid:
        os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_become_nobody)
        atexit.register(_end_python)
    _rank_pid = os.getpid()
    os._exit = _exit
    _exit_of_c.begin()


def _give_exits_back() -> None:
    os._exit = leave_now
    _exit_of_c.end()


def _end_python() -> None:
    """Take the refusals back at the interpreter's end: after it, in C's `exit()`, no handler in Python can be called.

    A forked process leaves here: mpi4py would finalize its parent's MPI.
    """
    _refusals.clear()
    _give_exits_back()
    if _is_forked:
        _leave(noted_code())


def _exit(status: int) -> NoReturn:
    refuse(f"os._exit({status})")
    leave_now(status)


def _at_exit(code: int) -> None:
    """Refuse C's `exit()`, except that of MPICH after another rank has aborted.

    MPICH does not call it inside the code of others, and never with code 0.
    """
    if code == 0 or ends_forked.is_inside:
        refuse("exit()")


_exit_of_c = HeardExit(_at_exit)


def _become_nobody() -> None:
    """Let a process that a rank has forked end, and be stopped by signals, like any process.

    When the rank is gone, the system ends it; but not what it forks itself, as programs do that are to stay.
    """
    global _is_forked
    if _ends_forks and not _is_forked:
        end_with(_rank_pid)
    _is_forked = True
    _refusals.clear()
    _give_exits_back()
    note_exits()
    signal.set_wakeup_fd(-1)  # The rank would take signals to this process for its own.
    for number in STOP_SIGNALS:
        if getattr(signal.getsignal(number), "__module__", "") in STOPPING:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _let_signals_in()


def _hold_signals() -> None:
    """Block signals before a fork: a signal to a child that still has our handlers would be lost."""
    global _mask, _ends_forks
    _ends_forks = bool(_refusals) and is_main_thread()  # Children of another thread would end with that thread.
    _mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _let_signals_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask)


def note_exits() -> None:
    """Note from now on the code with which the program calls `sys.exit`; see `noted_code`."""
    sys.exit = _raise_exit


def noted_code() -> int:
    """Return the code with which Python leaves, as far as that is known while it ends."""
    return exit_code_of(_raised or getattr(sys, "last_value", None))


def _raise_exit(code: str | int | None = None) -> NoReturn:
    global _raised
    _raised = SystemExit(code)
    raise _raised


def is_forked() -> bool:
    """Tell whether this process is not a rank but was forked by one."""
    return _is_forked


def end_if_forked(error: BaseException | None = None) -> None:
    """End this process if it was forked by an env or a policy, and came back to our code, by an error or without."""
    if not _is_forked:
        return
    code = exit_code_of(error)
    if error is None:
        say(
            f"mpi_rollout: {os.uname().nodename}: a process that an env or policy had forked came back from its call, "
            "and was ended: it is no rank; end it in the call, by os._exit()\n"
        )
        code = FORKED_EXIT_CODE
    elif not isinstance(error, SystemExit):
        who = f"mpi_rollout: {os.uname().nodename}: a forked process, which is no rank, raised and was ended"
        say(f"{who}:\n{traceback_of(without_our_frames(cause_of(error) or error))}")
    elif not isinstance(error.code, int | None):
        say(f"{message_of(error)}\n")
    _leave(code)


def _leave(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    leave_now(code)


class EndsForked:
    """`with ends_forked:` around a call into the code of others ends the processes that it forks there."""

    def __init__(self) -> None:
        self.is_inside = False  # The code of others is running.

    def __enter__(self) -> None:
        self.is_inside = True

    def __exit__(self, kind: type | None, error: BaseException | None, _traceback: object) -> None:
        self.is_inside = False
        if _is_forked:
            end_if_forked(error)


ends_forked = EndsForked()


def exit_code_of(error: BaseException | None) -> int:
    """Return the code with which Python leaves after an exception."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 1
