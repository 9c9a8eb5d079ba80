"""A system's processes, as the comparison sees them: started, given orders, stopped while others have turns, ended."""

import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep, time_ns
from typing import TYPE_CHECKING, NoReturn

from mpi_rollout.bench.compare.pythons import command_and_path
from mpi_rollout.bench.compare.reasons import HERE
from mpi_rollout.bench.compare.server import nearby
from mpi_rollout.bench.compare.systems import System
from mpi_rollout.bench.compare.turns import Turn
from mpi_rollout.bench.jobs import LOOK_EVERY_S, JobFailed, JobRunner, tail
from mpi_rollout.process.interrupts import STOP_SIGNALS

if TYPE_CHECKING:
    from psutil import Process

ENDING_S = 3.0
KILLING_S = 30.0
MARK = "MPI_ROLLOUT_COMPARISON"  # In the environment of all that is started, and so of all that that starts.


class Processes:
    """All processes of one system: one, those that it forks, or mpirun and its ranks.

    Orders return at once; `await_answer` waits until they are done.  It raises JobFailed if the processes have failed
    or do not answer in time, and has ended them then; Interrupted if somebody asked us to stop.

    Parameters
    ----------
    mark
        Of the comparison, see `leaving_nothing_behind`.
    jobs
        The folder of their files; how long a set-up may take, and a turn beyond its window; who stops us.
    pythons
        By package, other Pythons that have it.
    """

    def __init__(
        self,
        system: System,
        env: str,
        num_cores: int,
        launcher: Sequence[str],
        mark: str,
        jobs: JobRunner,
        pythons: Mapping[str, str] = HERE,
    ):
        self.system = system
        self._python, self._variables = command_and_path(system.needs, pythons, jobs.folder)
        self._timeout_s, self._stop = jobs.timeout_s, jobs.stop
        self._order: tuple[str, float | None] | None = None
        self._mark = f"{mark}/{system.name}/{time_ns()}"
        self._members: list[Process] = []
        self._has_had_turn = False  # Since its envs were made.
        path, self._err = jobs.folder / f"{system.name}.sock", jobs.folder / f"{system.name}.err"
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        with nearby(path) as name:
            self._socket.bind(name)
        self._socket.listen(1)
        self._connection: Connection | None = None
        ordered = {name: getattr(system, name) for name in ("maker", "kind", "form", "num_ranks", "options")}
        ordered |= {"env": env, "num_cores": num_cores, "timeout_s": jobs.timeout_s}
        ranks = [*launcher, "-n", str(system.num_ranks)] if system.num_ranks else []
        self._process = self._start(ranks, path.absolute(), json.dumps(ordered))
        self._end = os.pidfd_open(self._process.pid)

    def _start(self, ranks: Sequence[str], path: Path, system: str) -> subprocess.Popen:
        command = [*ranks, self._python, "-m", "mpi_rollout.bench.compare.server", str(path), system]
        # One thread for each process: systems share the cores, and a thread pool in each env would use them all.
        variables = {"OMP_NUM_THREADS": "1", **os.environ, "MINARI_DATASETS_PATH": str(path.parent / "minari")}
        variables |= self._variables | {MARK: self._mark}
        with self._err.open("w") as err:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=err, stderr=err, start_new_session=True, env=variables
            )

    def make(self, num_envs: int) -> None:
        """Order to make envs."""
        self._give_order("make", num_envs, self._timeout_s)

    def close(self) -> None:
        """Order to close the envs."""
        self._give_order("close", None, self._timeout_s)

    def take_turn(self, window_s: float) -> Turn:
        """Order a turn and wait for its end; the only order that waits."""
        self._give_order("turn", window_s, window_s + self._timeout_s)
        return self.await_answer()

    def _give_order(self, order: str, value: float | None, timeout_s: float) -> None:
        self._signal(signal.SIGCONT)
        self._order, self._deadline = (order, value), monotonic() + timeout_s
        self._send()

    def _send(self) -> None:
        """Send the order, as soon as the processes have connected."""
        if self._connection is not None and self._order is not None:
            with suppress(OSError):  # A process that is gone will not answer, either.
                self._connection.send(self._order)
            self._order = None

    def await_answer(self) -> Turn:
        """Wait until the last order is done; stop all of them then; return what they answered."""
        while not self.has_answer(LOOK_EVERY_S) or self._connection is None:
            pass
        try:
            answer, value = self._connection.recv()
        except (EOFError, OSError):
            sleep(ENDING_S / 10)  # Until their last words are written.
            self._fail("ended")
        if answer == "failed":
            self.kill()
            raise JobFailed(value)
        if answer == "made" or (answer == "turned" and not self._has_had_turn):  # Ray starts its workers in a turn.
            self._members = marked(self._mark)
            self._has_had_turn = answer == "turned"
        self._signal(signal.SIGSTOP)
        return value

    def has_answer(self, seconds: float) -> bool:
        """Wait some seconds for the answer; tell whether there is one."""
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

    def _fail(self, why: str) -> NoReturn:
        self.kill()
        raise JobFailed(why + tail(self._err.read_text(errors="replace")))

    def leave(self) -> None:
        """Order them to end."""
        self._give_order("end", None, ENDING_S)

    def end(self) -> None:
        """Wait until they have obeyed the order to end, and kill those that have not."""
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
        _send_all(self._members, number)


@contextmanager
def leaving_nothing_behind() -> Iterator[str]:
    """Give a mark for `Processes`; end all that have it when this process ends, in whatever way.

    Stopped processes notice nothing, least of all that nobody is left to continue them.  So a child of this process
    waits for its end, at the end of a pipe.
    """
    mark = f"{os.getpid()}.{time_ns()}"
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.close(writer)
        _await_end(reader, f"{mark}/")
    os.close(reader)
    try:
        yield mark
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def _await_end(reader: int, mark: str) -> NoReturn:
    """Wait in the child for the parent's end, then end all processes with the mark."""
    os.setsid()  # A signal to the whole session must not end both.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.read(reader, 1)
    end_all(mark)
    os._exit(0)


def end_all(mark: str) -> None:
    """End all processes with this mark, and wait until they are gone; not for ever: a disk may keep one waiting.

    They get SIGTERM before SIGKILL: launchers then clean up after their ranks.
    """
    start = monotonic()
    for number in (signal.SIGTERM, signal.SIGCONT):
        _send_all(marked(mark), number)
    while (left := marked(mark)) and monotonic() - start < KILLING_S:
        if monotonic() - start > ENDING_S:
            _send_all(left, signal.SIGKILL)
        sleep(0.02)


def _send_all(processes: "Iterable[Process]", number: int) -> None:
    """Send a signal; psutil notices where a process has ended and its number is another one's by now."""
    from psutil import NoSuchProcess

    for process in processes:
        with suppress(NoSuchProcess):
            process.send_signal(number)


def marked(mark: str) -> "list[Process]":
    """Return the processes whose mark begins like this; those that have ended, or are not ours, show none."""
    from psutil import process_iter

    processes = process_iter(["environ"], ad_value={})
    return [process for process in processes if (process.info["environ"] or {}).get(MARK, "").startswith(mark)]
