"""Envs that are MPI programs: each rank has a part of the cells, and every call adds up all of them."""

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from mpi4py import MPI

NUM_CELLS = 12


class OneRank:
    """A communicator where there is no MPI."""

    rank, size = 0, 1

    def allgather(self, value: Any) -> list[Any]:
        return [value]


class Cells(gymnasium.Env):
    """Gives the same on any number of ranks; what ranks other than the first return is of no use to anybody.

    In step `after` of its episodes, rank `rank` (None is each rank) does what `how` says; if `late`, at its end.
    """

    observation_space = spaces.Box(0, 10**6, (3,), np.int64)
    action_space = spaces.Discrete(3)
    metadata = {"render_modes": ["rgb_array"]}

    def __init__(
        self, comm: "MPI.Intracomm | OneRank", how: str = "", rank: int | None = 1, after: int = 4, late: bool = False
    ):
        self.comm, self.how, self.after, self.late = comm, how, after, late
        self.is_chosen = rank in (None, comm.rank)
        self.own = np.arange(comm.rank, NUM_CELLS, comm.size)
        self.render_mode, self.scale = "rgb_array", 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.num_steps = 0
        self.cells = self.np_random.integers(100, size=NUM_CELLS)[self.own]
        return self._observed(), {"size": 1}

    def step(self, action: int) -> Any:
        is_due = self.is_chosen and self.num_steps == self.after
        if is_due and not self.late:
            misbehave(self.how)
        self.num_steps += 1
        self.cells = (3 * self.cells + int(action) + self.own) % 101
        observation = self._observed()
        if is_due and self.late:
            misbehave(self.how)
        if self.comm.rank > 0:
            return None
        total = int(observation[0])
        return observation, total / 8, total % 13 == 0, self.num_steps >= 9, {"total": total}

    def _observed(self) -> np.ndarray:
        assert len({*self.comm.allgather(self.num_steps)}) == 1, "all ranks are at the same step"
        return np.array([self.total() * self.scale, self.num_steps, max(self.comm.allgather(self.cells.max()))])

    def total(self) -> int:
        return sum(self.comm.allgather(int(self.cells.sum())))

    def close(self) -> None:
        if self.is_chosen and self.how == "hang in close":
            time.sleep(1000)

    def render(self) -> np.ndarray:
        return np.full((4, 4, 3), self.total() % 256, np.uint8)


def misbehave(how: str) -> None:
    if how == "raise":
        raise ValueError("the flow has diverged")
    if how == "exit":
        sys.exit(3)
    if how == "leave":
        os._exit(3)
    if how == "fork":
        pid = os.fork()
        if pid == 0:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    if how == "return in a fork" and (pid := os.fork()):
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 70
    if how == "hang":
        time.sleep(1000)
    if how == "stop" and not os.path.exists("stopped"):  # Somebody sends it to this rank alone, once.
        open("stopped", "w").close()
        os.kill(os.getpid(), signal.SIGTERM)


def make_env(comm: "MPI.Intracomm", env_index: int, how: str = "", only: int = 0, **options: Any) -> Cells:
    """Env `only` alone misbehaves."""
    return Cells(comm, how if env_index == only else "", **options)


def make_alone() -> Cells:
    """Takes no communicator."""
    return Cells(OneRank())


def make_other_spaces(comm: "MPI.Intracomm") -> Cells:
    env = Cells(comm)
    if comm.rank == 1:
        env.action_space = spaces.Discrete(4)
    return env


def make_without_solver(comm: "MPI.Intracomm") -> Cells:
    """Fails on one rank, while the others wait for it."""
    if comm.rank == 1:
        raise ConnectionError("no licence for the solver")
    comm.Barrier()
    return Cells(comm)


gymnasium.register("Cells-v0", entry_point=Cells, max_episode_steps=5)
