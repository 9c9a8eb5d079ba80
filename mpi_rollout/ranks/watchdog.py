"""A thread that finds envs that hang: it names the env and shows its stack, interrupts it, or ends the job.

Python code, and C code that waits in the system, is interrupted by a signal whose handler raises `EnvTimeout` amid the
env's call.  C code that computes cannot be interrupted: then the job ends.  While C code holds the interpreter's lock,
no thread of Python runs.  For this case the thread winds up `faulthandler`, whose own thread needs no lock, again and
again.  `faulthandler` can only write the stack and leave, so the functions by which envs are called then have the
rank and the env for names, see `named`.
"""

import faulthandler
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import inf
from time import monotonic
from types import FrameType

from mpi_rollout.envs.faults import EnvTimeout, is_ours
from mpi_rollout.process.console import STDERR
from mpi_rollout.process.interrupts import Handler
from mpi_rollout.text import in_seconds

CLOSE_LIMIT_S = 60.0  # The time for `close` in a run: an env may have a video to write.
CLOSE_NOTE_S = 5.0  # The time after which the user hears what is waited for.
COME_OUT_S = 2.0  # The time that an interrupted env has to come out of its call.
SLACK_S = 1.0  # More than the thread ever waits for its turn.


@dataclass(frozen=True)
class Work:
    """A call of an env that is under way."""

    key: Hashable  # Another one for each call.
    describe: Callable[[], str]
    patience: float = 1.0  # The call may take so many times the limit.


class Watchdog:
    """A thread that looks again and again whether the same call is still under way; made by the thread that steps.

    Any thread calls `look`, which returns the call under way in the main thread.  `give_up` also ends the job.  Where
    nothing else shows that the program waits for a call, it says so once after `note_s`.
    """

    def __init__(
        self,
        look: Callable[[], Work | None],
        timeout_s: float,
        say: Callable[[str], None],
        give_up: Callable[[str], None],
        note_s: float = inf,
    ):
        self._look, self._timeout_s, self._say, self._give_up = look, timeout_s, say, give_up
        self._note_s = note_s
        self._period_s = min(max(timeout_s / 8, 0.02), 0.5)
        self._main, self._end = threading.get_ident(), threading.Event()
        self._too_long: Hashable = None
        self._handler: Handler = None
        self._can_interrupt = threading.current_thread() is threading.main_thread()
        if self._can_interrupt:
            self._handler = signal.signal(signal.SIGALRM, self._interrupt)
        self._wind_up(1.0)
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()
        if self._can_interrupt:
            signal.signal(signal.SIGALRM, self._handler or signal.SIG_DFL)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        key, age_s, is_interrupted, seen = None, 0.0, False, monotonic()
        while not self._end.wait(self._period_s):
            work, now = self._look(), monotonic()
            patience = 1.0 if work is None else work.patience
            self._wind_up(patience)
            if work is None or work.key != key:
                key, age_s, is_interrupted = None if work is None else work.key, 0.0, False
            else:
                age_s += min(now - seen, 2 * self._period_s)  # A job that is suspended does not work meanwhile.
            seen = now
            if work is not None and age_s > self._note_s:
                self._note(work, age_s)
            if work is not None and age_s > (COME_OUT_S if is_interrupted else patience * self._timeout_s):
                self._act(work, is_interrupted)
                age_s, is_interrupted = 0.0, True

    def _wind_up(self, patience: float) -> None:
        """End the process if no thread of Python runs for longer than a call may take."""
        faulthandler.dump_traceback_later(patience * self._timeout_s + SLACK_S, exit=True, file=STDERR)

    def _note(self, work: Work, age_s: float) -> None:
        """Say that a call is waited for; one line is enough, since the calls of other envs may take as long."""
        self._note_s = inf
        under_way = f"is under way for {in_seconds(age_s)}"
        self._say(f"{work.describe()}: {under_way}, and is interrupted after {self._limit(work)}")

    def _limit(self, work: Work) -> str:
        return in_seconds(work.patience * self._timeout_s)

    def _act(self, work: Work, is_interrupted: bool) -> None:
        if is_interrupted or not self._can_interrupt:
            self._give_up(f"{work.describe()}: cannot be interrupted; ending the job\n{self._stack()}")
            return
        self._say(f"{work.describe()}: takes longer than {self._limit(work)}, in\n{self._stack()}")
        self._too_long = work.key
        signal.pthread_kill(self._main, signal.SIGALRM)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Raise in the main thread, wherever it is, if it is still in the call that takes too long."""
        work = self._look()
        if self._too_long is not None and work is not None and work.key == self._too_long:
            self._too_long = None
            raise EnvTimeout(f"took longer than {self._limit(work)}")
        if callable(self._handler):
            self._handler(number, frame)

    def _stack(self) -> str:
        """Return the stack of the main thread, from where it left this program."""
        frames = traceback.extract_stack(sys._current_frames().get(self._main))
        ours = [place for place, frame in enumerate(frames) if is_ours(frame.filename)]
        return "".join(traceback.format_list(frames[ours[-1] + 1 if ours else 0 :])).rstrip()
