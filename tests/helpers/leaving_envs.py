"""Envs that start a process and do not end it, each in a way of its own; as a program, does the same without envs."""

import os
import signal
import subprocess
import sys
import time

from envs import Counting, Image
from failing_envs import RANK

from mpi_rollout.process.leftovers import end_leftovers, keep_leftovers

SLEEP = ["sleep", "1000"]
DEAF = ["sh", "-c", "trap '' TERM; exec sleep 1000"]


def fork_in_session() -> int:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.pause()
    return pid


WAYS = {
    "child": lambda: subprocess.Popen(SLEEP).pid,
    "session": lambda: subprocess.Popen(SLEEP, start_new_session=True).pid,
    "own environment": lambda: subprocess.Popen(SLEEP, env={"PATH": os.environ["PATH"]}).pid,
    "deaf": lambda: subprocess.Popen(DEAF, start_new_session=True).pid,
    "grandchild": lambda: int(subprocess.check_output(["sh", "-c", "sleep 1000 >&2 & echo $!"])),
    "fork in a session": fork_in_session,
}


class Leaving(Counting):
    """Starts a process; in its fifth step it fails, or on rank `killed` it ends its own process.

    Three envs in a row start theirs in three ways.
    """

    def __init__(self, env_index: int, killed: int | None = None, fails: bool = False):
        super().__init__()
        self.num_steps, self.is_killed, self.fails = 0, killed == RANK, fails
        leave(("session", "own environment", "fork in a session")[env_index % 3])

    def step(self, action):
        self.num_steps += 1
        if self.num_steps == 5 and self.is_killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.num_steps == 5 and self.fails:
            raise RuntimeError("the simulator does not answer")
        return super().step(action)


class Filming(Leaving, Image):
    """The same with observations so large that a block of the file is soon full."""

    def step(self, action):
        time.sleep(0.0002)
        return super().step(action)


def leave(way: str) -> None:
    """Start a process, and write its number into a file of the folder."""
    with open("left", "a") as file:
        file.write(f"{WAYS[way]()}\n")


def main(end: str) -> None:
    """Leave processes, and end in one of three ways."""
    end_leftovers()
    for way in ("child", "session", "deaf", "grandchild"):
        leave(way)
    if end == "keeps":
        keep_leftovers()
    if end == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
