"""Findings, and the processes that make them.

What ends such a process, or never returns, is a finding and not the doctor's own end.  MPI_Init is allowed to end the
process, and does so under a launcher of another MPI; a file system can block a process for ever.  So the doctor's own
process starts no MPI and touches no file: it forks a process that does, listens to it, and gives up on it after a time.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from time import monotonic, sleep

from mpi_rollout.errors import LaunchError, StorageError
from mpi_rollout.process.launcher import end_with
from mpi_rollout.text import first_line

OK, WARN, BAD = "OK", "WARN", "BAD"
LAUNCH, FILES = "launch", "files"
_ENDING_S = 2.0


@dataclass(frozen=True)
class Finding:
    """The result of one check, which is called `check`.

    Parameters
    ----------
    state
        OK; WARN, a run will work but less well than it could; BAD, a run will fail or lose data.
    area
        LAUNCH or FILES: a BAD finding of each has an exit code of its own.
    figures
        The numbers in `found`, for programs.
    """

    check: str
    found: str
    state: str = OK
    advice: str = ""
    area: str = LAUNCH
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """The lines that the doctor prints."""
        advice = [f"{'':20}-> {self.advice}"] if self.advice else []
        return [f"{self.state:<5} {self.check:<13} {self.found}", *advice]


def warning_if(is_bad: bool, check: str, found: str, advice: str = "", **figures: float) -> Finding:
    """Return a finding that is a warning with this advice, or all right."""
    return Finding(check, found, WARN if is_bad else OK, advice if is_bad else "", figures=figures)


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 if nothing is BAD, 74 if only file systems are, else 78."""
    areas = {finding.area for finding in findings if finding.state == BAD}
    if not areas:
        return 0
    return StorageError.exit_code if areas == {FILES} else LaunchError.exit_code


def first_few(items: Iterable[object], most: int = 8) -> str:
    """Join the first few of many items by commas, and say how many there are."""
    items = list(items)
    return ", ".join(map(str, items[:most])) + (f", ... ({len(items)} in all)" if len(items) > most else "")


class Reporter:
    """The examining process's side: what it sends to the doctor.

    A finding without words says that a check begins, and what to do if this process never says more.
    """

    def __init__(self, connection: Connection):
        self._connection = connection

    def __call__(self, *findings: Finding) -> None:
        for finding in findings:
            self._connection.send(finding)

    def doing(self, check: str, advice: str, area: str = LAUNCH) -> None:
        self(Finding(check, "", BAD, advice, area))

    def check(self, check: str, advice: str, area: str, examine: Callable[[], Iterable[Finding]]) -> None:
        """Report each finding of `examine` at once, for the next may never come; report what it raises, too.

        All of them are of this `area`.
        """
        self.doing(check, advice, area)
        try:
            for finding in examine():
                self(replace(finding, area=area))
        except Exception as error:
            self(Finding(check, f"{type(error).__name__}: {first_line(error)}", BAD, advice, area))

    def done(self, is_alone: bool = True) -> None:
        """End the examination; `is_alone`: there is no world to hold together until the root has finished."""
        self._connection.send(is_alone)

    def await_release(self) -> None:
        """Wait until the doctor has no more use for this process."""
        self._connection.recv()


class Probe:
    """The doctor's side: start `examine` in a process of its own, and listen to it.

    `is_alone` is what the process said last, see `Reporter.done`; None until it has.
    """

    def __init__(self, examine: Callable[[Reporter], None]):
        self.is_alone: bool | None = None
        self._doing = Finding("start", "", BAD, "start the doctor again")
        self._code: int | None = None
        self._connection, theirs = Pipe()
        sys.stdout.flush()
        self._pid = os.fork()
        if self._pid == 0:
            self._connection.close()
            _examine_and_leave(examine, Reporter(theirs))
        theirs.close()

    def findings(self, timeout_s: float) -> Iterator[Finding]:
        """Yield the findings until the process is done, has ended, or `timeout_s` seconds are over."""
        deadline = monotonic() + timeout_s
        while self.is_alone is None:
            if not self._connection.poll(max(0.0, deadline - monotonic())):
                yield replace(self._doing, found=f"has not come to an end within {timeout_s:g} s")
                return
            try:
                message = self._connection.recv()
            except (EOFError, ConnectionResetError):
                yield replace(self._doing, found=f"the process {self._how_it_ended()}")
                return
            if not isinstance(message, Finding):
                self.is_alone = message
            elif message.found:
                yield message
            else:
                self._doing = message

    def end(self) -> None:
        """Release the process, and kill it if it does not leave."""
        with suppress(OSError):  # It may have gone.
            self._connection.send(None)
        if self.wait(0.0 if self.is_alone is None else _ENDING_S) is None:
            os.kill(self._pid, signal.SIGKILL)
            self.wait(_ENDING_S)  # Not for ever: no signal ends a process that waits for a file system.

    def wait(self, timeout_s: float) -> int | None:
        """Wait until the process has left, and return its exit status; None if it still runs after `timeout_s`."""
        deadline = monotonic() + timeout_s
        while self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif monotonic() > deadline:
                break
            else:
                sleep(0.01)
        return self._code

    def _how_it_ended(self) -> str:
        code = self.wait(_ENDING_S)
        if code is None:
            return "has closed its pipe"
        return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"


def _examine_and_leave(examine: Callable[[Reporter], None], report: Reporter) -> None:
    """Examine, then end this process: it never returns, since all that it has inherited is the doctor's.

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
