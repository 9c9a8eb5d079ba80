"""The end of a process whose work is done: threads, `atexit` and `__del__` of envs keep it from ending only so long.

A process that never ends would hold its whole allocation, as its launcher waits for all of them.
"""

import atexit
import faulthandler
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from time import sleep
from typing import Any

from mpi_rollout.process import exits
from mpi_rollout.process.console import say

VARIABLE = "MPI_ROLLOUT_END_S"
LIMIT_S = 10.0  # Long for what ends at all; an allocation costs more.
GRACE_S = 5.0  # For what is said and done at the limit.
MAX_TIMEOUT_S = 1e6  # faulthandler counts microseconds in 64 bits; this is eleven days.
_STDLIB = sysconfig.get_path("stdlib") + os.sep


class Ending:
    """Ends a process that does not end by itself some time after its main thread is through.  One for a process.

    Parameters
    ----------
    place
        How messages call this process.
    finalize
        Ends MPI in good order, if that has not been done.

    Attributes
    ----------
    code
        The exit code, as far as it is known before the program is through.
    """

    def __init__(self, place: str, finalize: Callable[[], None]):
        self.code, self._place, self._finalize, self._limit_s = 0, place, finalize, limit_s()
        exits.note_exits()
        # While Python takes its modules down no thread of ours runs: this ends it then, with its stack.
        atexit.register(faulthandler.dump_traceback_later, self._limit_s + GRACE_S, exit=True)
        threading.Thread(target=self._watch, name="ending", daemon=True).start()

    def begin(self) -> threading.Timer:
        """Watch the main thread, which is to end now, until the timer that is returned is cancelled."""
        timer = threading.Timer(self._limit_s, self._end)
        timer.daemon = True
        timer.start()
        return timer

    def _watch(self) -> None:
        threading.main_thread().join()  # Then the interpreter's end begins.
        sleep(self._limit_s)
        self._end()

    def _end(self) -> None:
        code = self.code or exits.noted_code()
        say(
            f"mpi_rollout: {self._place}: all is done, but this process has not ended in {self._limit_s:g} s because "
            f"of {whose()}; ended it with exit code {code} ({VARIABLE} gives it more seconds)\n"
        )
        faulthandler.dump_traceback_later(GRACE_S, exit=True)
        with suppress(Exception):
            self._finalize()
        exits.leave_now(code)


def limit_s(default_s: float = LIMIT_S) -> float:
    """How long a process may take to end: what the user says, if that is a number of seconds."""
    try:
        given_s = float(os.environ.get(VARIABLE, ""))
    except ValueError:
        return default_s
    return min(given_s, MAX_TIMEOUT_S) if given_s > 0 else default_s


def whose() -> str:
    """Name what keeps this process from ending: threads that are no daemons, or what the main thread is in."""
    frames = sys._current_frames()
    ours = (threading.main_thread(), threading.current_thread())
    threads = [each for each in threading.enumerate() if not each.daemon and each not in ours]
    if threads:
        named = [f"thread {each.name} ({place_of(frames.get(each.ident))})" for each in threads]
        return ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    return f"what the main thread is in ({place_of(frames.get(threading.main_thread().ident))})"


def place_of(frame: Any) -> str:
    """The innermost file and line of a stack that are none of the standard library."""
    stack = traceback.extract_stack(frame) if frame is not None else []
    for each in reversed(stack):
        if not each.filename.startswith((_STDLIB, "<")):
            return f"{os.path.basename(each.filename)}, line {each.lineno}, in {each.name}"
    return "place unknown"
