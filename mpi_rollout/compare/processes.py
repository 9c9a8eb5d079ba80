"""A system's processes, seen by who compares: started, told what to do, stopped while others have their turn, ended."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from mpi_rollout.compare.process import nearby
from mpi_rollout.compare.systems import System
from mpi_rollout.scaling.jobs import LOOK_EVERY_S, JobFailed, Stop, tail

ENDING_S = 3.0
STOPPED = "the comparison was"


class Member(NamedTuple):
    """A process that is no other one with the same number."""

    pid: int
    start_ticks: int


class Processes:
    """All processes of one system: one, those that it forks, or mpirun and its ranks.

    Orders return at once; `await_answer` waits until they are done.  It raises JobFailed if the processes have failed
    or do not answer in time, and has ended them then; Interrupted if somebody asked us to stop.

    Parameters
    ----------
    folder
        Of their files.
    timeout_s
        How long a set-up may take, and a turn beyond its window.
    """

    def __init__(
        self, system: System, env: str, num_cores: int, launcher: Sequence[str], folder: Path, timeout_s: float,
        stop: Stop,
    ):  # fmt: skip
        self.system = system
        self._timeout_s, self._stop = timeout_s, stop
        self._order: tuple[str, Any] | None = None
        self._members: set[Member] = set()
        path, self._err = folder / f"{system.name}.sock", folder / f"{system.name}.err"
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        with nearby(path) as name:
            self._socket.bind(name)
        self._socket.listen(1)
        self._connection: Connection | None = None
        told = {
            "maker": system.maker, "env": env, "num_cores": num_cores, "num_ranks": system.num_ranks,
            "options": system.options, "timeout_s": timeout_s,
        }  # fmt: skip
        ranks = [*launcher, "-n", str(system.num_ranks)] if system.num_ranks else []
        command = [*ranks, sys.executable, "-m", "mpi_rollout.compare.process", str(path.absolute()), json.dumps(told)]
        # One thread for each process: cores are what is compared, and a thread pool in each env would want them all.
        variables = {"OMP_NUM_THREADS": "1", **os.environ, "MINARI_DATASETS_PATH": str(folder.absolute() / "minari")}
        with self._err.open("w") as err:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=err, stderr=err, start_new_session=True, env=variables
            )
        self._end = os.pidfd_open(self._process.pid)

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
        _signal(self._members, signal.SIGCONT)
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
            self._members = self._found()
        _signal(self._members, signal.SIGSTOP)
        return value

    def has_answer(self, seconds: float) -> bool:
        """Wait for the answer for some seconds; tell whether there is one."""
        source = self._connection or self._socket
        ready = select.select([source, self._end], [], [], seconds)[0]
        self._stop.check(STOPPED)
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

    def end(self) -> None:
        """Let them end by themselves, and end what does not."""
        self._tell("end", None, ENDING_S)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_S if self._connection else 0.0)
        self.kill()

    def kill(self) -> None:
        """End all of them."""
        while found := self._found():
            _signal(found, signal.SIGKILL)
            self._process.poll()
            sleep(0.01)
        self._process.wait()
        if self._end >= 0:
            os.close(self._end)
            self._end = -1
        self._socket.close()
        if self._connection is not None:
            self._connection.close()

    def _found(self) -> set[Member]:
        """Those that there are: in the session that was started, known from before, or begotten by one of these."""
        table = _process_table()
        mine = {each for each, (_, session) in table.items() if self._process.pid in (session, each.pid)}
        mine |= self._members & table.keys()
        while True:
            pids = {each.pid for each in mine}
            more = {each for each, (parent, _) in table.items() if parent in pids} - mine
            if not more:
                return mine
            mine |= more


def _process_table() -> dict[Member, tuple[int, int]]:
    """Parent and session of all processes that have not ended."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()  # From the third on, see proc(5).
            if fields[0] not in "ZX":
                found[Member(int(entry.name), int(fields[19]))] = int(fields[1]), int(fields[3])
    return found


def _signal(members: Iterable[Member], number: int) -> None:
    for each in members:
        with suppress(ProcessLookupError):
            os.kill(each.pid, number)
