"""Examining in another process: what ends that process or never returns is a finding, not the doctor's own end.

MPI_Init is allowed to end the process, and does so under a launcher of another MPI; a file system can block a process
for ever.  So the doctor's own process starts no MPI and touches no file: it forks one that does, listens to it, and
gives up on it after a time.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic, sleep

from mpi_rollout.doctor.findings import BAD, LAUNCH, Finding
from mpi_rollout.errors import first_line
from mpi_rollout.process.launcher import end_with

_ENDING_S = 2.0


@dataclass(frozen=True)
class Doing:
    """What the examining process does next, and what to do if it never says more."""

    check: str
    advice: str
    area: str = LAUNCH


@dataclass(frozen=True)
class Done:
    """Nothing more will be found.  `is_alone`: there is no world to hold together until the root has finished."""

    is_alone: bool


class Report:
    """The examining side."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def __call__(self, *findings: Finding) -> None:
        for finding in findings:
            self._connection.send(finding)

    def doing(self, check: str, advice: str, area: str = LAUNCH) -> None:
        self._connection.send(Doing(check, advice, area))

    def check(self, check: str, advice: str, area: str, examine: Callable[[], Iterable[Finding]]) -> None:
        """Report what `examine` finds; if it raises, that."""
        self.doing(check, advice, area)
        try:
            self(*examine())
        except Exception as error:
            self(Finding(check, f"{type(error).__name__}: {first_line(error)}", BAD, advice, area))

    def done(self, is_alone: bool = True) -> None:
        self._connection.send(Done(is_alone))

    def await_release(self) -> None:
        """Wait until the doctor has no more use for this process."""
        self._connection.recv()


class Probe:
    """The doctor's side: start `examine` in a process of its own.

    Attributes
    ----------
    done
        What it has said in the end; None if it did not come so far.
    """

    def __init__(self, examine: Callable[[Report], None]):
        self.done: Done | None = None
        self._doing = Doing("start", "start the doctor again")
        self._connection, theirs = Pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._connection.close()
            _examine_and_leave(examine, Report(theirs))
        theirs.close()

    def findings(self, timeout_s: float) -> Iterator[Finding]:
        """Pass on what it finds, until it is done, has ended, or `timeout_s` seconds are over."""
        deadline = monotonic() + timeout_s
        while self.done is None:
            doing = self._doing
            if not self._connection.poll(max(0.0, deadline - monotonic())):
                found = f"has not come to an end within {timeout_s:g} s"
                yield Finding(doing.check, found, BAD, doing.advice, doing.area)
                return
            try:
                message = self._connection.recv()
            except (EOFError, ConnectionResetError):
                yield Finding(doing.check, f"the process {self._how_it_ended()}", BAD, doing.advice, doing.area)
                return
            if isinstance(message, Finding):
                yield message
            elif isinstance(message, Doing):
                self._doing = message
            else:
                self.done = message

    def await_end(self, timeout_s: float) -> None:
        """Wait until it has left by itself, `timeout_s` seconds at most."""
        self._wait(timeout_s)

    def end(self) -> None:
        """Release it, and kill it if it does not leave."""
        with suppress(OSError):  # It may have gone.
            self._connection.send(None)
        if self._wait(_ENDING_S if self.done else 0.0) is None:
            os.kill(self._pid, signal.SIGKILL)
            self._wait(_ENDING_S)  # Not for ever: no signal ends a process that waits for a file system.

    def _wait(self, timeout_s: float) -> int | None:
        """The exit status; None if it still runs."""
        deadline = monotonic() + timeout_s
        while True:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:
                return 0  # Waited for before.
            if pid:
                return os.waitstatus_to_exitcode(status)
            if monotonic() > deadline:
                return None
            sleep(0.01)

    def _how_it_ended(self) -> str:
        code = self._wait(_ENDING_S)
        if code is None:
            return "has closed its pipe"
        return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def _examine_and_leave(examine: Callable[[Report], None], report: Report) -> None:
    """Never returns: what this process has inherited is the doctor's.

    It leaves by C's exit, not by `os._exit`: MPICH tells its launcher of MPI_Finalize in an exit handler, and without
    it the launcher ends the job as soon as the first rank has left, with exit code 0 or 9.
    """
    end_with(os.getppid())  # No rank is left behind if a launcher ends the doctor.
    code = 0
    try:
        examine(report)
    except BaseException as error:
        try:
            report(Finding("doctor", f"{type(error).__name__}: {first_line(error)}", BAD, "please report this"))
        except OSError:
            code = 1
    finally:
        sys.stdout.flush()
        ctypes.CDLL(None).exit(code)
