"""A system's processes, seen by who compares: started, told what to do, stopped while others have their turn, ended."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep, time_ns
from typing import Any

from mpi_rollout.bench.compare.server import nearby
from mpi_rollout.bench.compare.systems import System
from mpi_rollout.bench.jobs import LOOK_EVERY_S, JobFailed, Stop, tail
from mpi_rollout.process.interrupts import STOP_SIGNALS

ENDING_S = 3.0
KILLING_S = 30.0
MARK = "MPI_ROLLOUT_COMPARISON"  # In the environment of all that is started, and so of all that that starts.


class Processes:
    """All processes of one system: one, those that it forks, or mpirun and its ranks.

    Orders return at once; `await_answer` waits until they are done.  It raises JobFailed if the processes have failed
    or do not answer in time, and has ended them then; Interrupted if somebody asked us to stop.

    Parameters
    ----------
    folder
        Of their files.
    mark
        Of the comparison, see `leaving_nothing_behind`.
    timeout_s
        How long a set-up may take, and a turn beyond its window.
    """

    def __init__(
        self, system: System, env: str, num_cores: int, launcher: Sequence[str], folder: Path, mark: str,
        timeout_s: float, stop: Stop,
    ):  # fmt: skip
        self.system = system
        self._timeout_s, self._stop = timeout_s, stop
        self._order: tuple[str, Any] | None = None
        self._mark = f"{MARK}={mark}/{system.name}/{time_ns()}"
        self._members: set[int] = set()
        path, self._err = folder / f"{system.name}.sock", folder / f"{system.name}.err"
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        with nearby(path) as name:
            self._socket.bind(name)
        self._socket.listen(1)
        self._connection: Connection | None = None
        told = {
            "maker": system.maker, "kind": system.kind, "num_ranks": system.num_ranks, "options": system.options,
            "env": env, "num_cores": num_cores, "timeout_s": timeout_s,
        }  # fmt: skip
        ranks = [*launcher, "-n", str(system.num_ranks)] if system.num_ranks else []
        self._process = self._start(ranks, path.absolute(), json.dumps(told))
        self._end = os.pidfd_open(self._process.pid)

    def _start(self, ranks: Sequence[str], path: Path, told: str) -> subprocess.Popen:
        command = [*ranks, sys.executable, "-m", "mpi_rollout.bench.compare.server", str(path), told]
        # One thread for each process: cores are what is compared, and a thread pool in each env would want them all.
        variables = {"OMP_NUM_THREADS": "1", **os.environ, "MINARI_DATASETS_PATH": str(path.parent / "minari")}
        variables[MARK] = self._mark.partition("=")[2]
        with self._err.open("w") as err:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=err, stderr=err, start_new_session=True, env=variables
            )

    def make(self, num_envs: int) -> None:
        """Have the envs made."""
        self._tell("make", num_envs, self._timeout_s)

    def close(self) -> None:
        """Have the envs closed."""
        self._tell("close", None, self._timeout_s)

    def take_turn(self, window_s: float) -> Any:
        """Have a turn taken, to its end; the only order that waits."""
        self._tell("turn", window_s, window_s + self._timeout_s)
        return self.await_answer()

    def _tell(self, order: str, value: Any, timeout_s: float) -> None:
        self._signal(signal.SIGCONT)
        self._order, self._deadline = (order, value), monotonic() + timeout_s
        self._send()

    def _send(self) -> None:
        """Pass the order on, if they have come so far as to take one."""
        if self._connection is not None and self._order is not None:
            with suppress(OSError):  # Whoever is gone will not answer, either.
                self._connection.send(self._order)
            self._order = None

    def await_answer(self) -> Any:
        """Wait until the last order is done; stop all of them then; return what they answered."""
        while not self.has_answer(LOOK_EVERY_S):
            pass
        try:
            answer, value = self._connection.recv()
        except (EOFError, OSError):
            sleep(ENDING_S / 10)  # Until what they said last is written.
            self._fail("ended")
        if answer == "failed":
            self.kill()
            raise JobFailed(value)
        if answer == "made":
            self._members = marked(self._mark)
        self._signal(signal.SIGSTOP)
        return value

    def has_answer(self, seconds: float) -> bool:
        """Wait for the answer for some seconds; tell whether there is one."""
        source = self._connection or self._socket
        ready = select.select([source, self._end], [], [], seconds)[0]
        self._stop.check()
        if source in ready:
            if self._connection is not None:
                return True
            self._connection = Connection(self._socket.accept()[0].detach())
            self._send()
        elif ready:
            self._fail(f"ended with code {self._process.wait()}")
        elif monotonic() > self._deadline:
            self._fail(f"did not answer within {self._timeout_s:g} s")
        return False

    def _fail(self, why: str) -> None:
        self.kill()
        raise JobFailed(why + tail(self._err.read_text(errors="replace")))

    def leave(self) -> None:
        """Tell them to end."""
        self._tell("end", None, ENDING_S)

    def end(self) -> None:
        """Wait until those that were told to end have done so, and end those that do not."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, self._deadline - monotonic()) if self._connection else 0.0)
        self.kill()

    def kill(self) -> None:
        """End all of them."""
        end_all(self._mark)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_S)
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
        self._socket.close()
        if self._connection is not None:
            self._connection.close()

    def _signal(self, number: int) -> None:
        """Send a signal to those that there are; a number may be another process's by now."""
        _send_all({pid for pid in self._members if self._mark in variables_of(pid)}, number)


@contextmanager
def leaving_nothing_behind() -> Iterator[str]:
    """Give a mark for `Processes`; end all that have it when this process ends, in whatever way.

    Processes that are stopped notice nothing, least of all that there is nobody any more to continue them.  So a child
    of this process waits for its end, at the end of a pipe.
    """
    mark = f"{os.getpid()}.{time_ns()}"
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.close(writer)
        _await_end(reader, f"{MARK}={mark}/")
    os.close(reader)
    try:
        yield mark
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def _await_end(reader: int, mark: str) -> None:
    """What the child does.  Does not return."""
    os.setsid()  # What is sent to the whole session must not end both.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.read(reader, 1)
    end_all(mark)
    os._exit(0)


def end_all(mark: str) -> None:
    """End all processes with this mark, and wait until they are gone, but not for ever for what a disk holds.

    They are asked before they are killed: launchers then clean up after their ranks.
    """
    start = monotonic()
    for number in (signal.SIGTERM, signal.SIGCONT):
        _send_all(marked(mark), number)
    while (found := marked(mark)) and monotonic() - start < KILLING_S:
        if monotonic() - start > ENDING_S:
            _send_all(found, signal.SIGKILL)
        sleep(0.02)


def _send_all(pids: set[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def marked(mark: str) -> set[int]:
    """The processes with a variable in their environment that begins like this; those that have ended have none."""
    pids = (int(entry.name) for entry in Path("/proc").glob("[0-9]*"))
    return {pid for pid in pids if any(each.startswith(mark) for each in variables_of(pid))}


def variables_of(pid: int) -> list[str]:
    """A process's environment as it was when it was started; empty of one that is gone, or not ours to look at."""
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
    except OSError:
        return []
