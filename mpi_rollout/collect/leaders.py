"""Messages between the roots of teams, which are few and small: how far each is, when to end, and how it has ended.

The first leader is the root of the job.  A leader tells it at each look how far its team is, in as many bytes whatever
the number of ranks and envs.  It is told once to begin, when there is a set for its shards, and once to end: because
another team has failed, or when all are through; then it says goodbye, so that all messages are received.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpi_rollout.collect.report import RunFigures

# What a team tells: the steps that it has taken, those that are committed, env steps, env steps/s (NaN before they are
# known), the longest commit in seconds.
NUM_FIGURES, NUM_COMMITTED, ENV_STEPS, RATE, COMMIT_S = 5, 1, 2, 3, 4
UP_TAG, BEGIN_TAG, STOP_TAG = range(32110, 32113)
WAIT_S = 0.005  # Between two looks where there is nothing else to do.


@dataclass
class Outcome:
    """How a team has ended: its exit code, the steps that its files have, its figures; or what has failed.

    `kept` says what its only file has.
    """

    code: int
    num_safe: int
    figures: "RunFigures | None" = None
    message: str = ""
    kept: str = ""
    stack: str = ""
    is_stopped: bool = False
    is_resumable: bool = True
    is_first_to_end: bool = True  # No other team had ended before.
    is_foreign: bool = False  # The output may be another run's.


class Leaders:
    """One leader's end of these messages; `comm` has the leaders of all teams, in the order of their envs."""

    def __init__(self, comm: "MPI.Intracomm"):
        self._comm, self.is_first = comm, comm.rank == ROOT
        # On the first leader, what all teams told last, and rows of /throughput/intervals of a set of shards.
        self.states = np.zeros((comm.size, NUM_FIGURES))
        self.states[:, RATE] = np.nan
        self.intervals: list[tuple[float, int, float]] = []
        self._outcomes: dict[int, Outcome] = {}
        self.stops: list[Outcome] = []  # What stopped the first leader or another one after its team's end.
        self._num_gone = 0
        self._sending: MPI.Request | None = None
        self._room = np.zeros(2)  # For the signs to begin and to end; their values say nothing.
        self._signs = [
            comm.Irecv(self._room[tag - BEGIN_TAG :][:1], ROOT, tag)
            for tag in (() if self.is_first else (BEGIN_TAG, STOP_TAG))
        ]
        self._signed = set[int]()  # The signs that the first leader has given.

    def past(self, num_steps: int, nbytes: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        """Return the least steps and the sums of bytes that teams have at the start, on the first leader.

        **Collective** of leaders.
        """
        pasts = self._comm.gather((num_steps, nbytes), ROOT) or [(num_steps, nbytes)]
        self.states[:, :2] = num_steps = min(least for least, _ in pasts)
        return num_steps, (sum(size for _, (size, _) in pasts), sum(copied for _, (_, copied) in pasts))

    def begin(self) -> bool:
        """Let the others begin, or wait until the first leader lets this one; tell whether the run has not ended."""
        if self.is_first:
            self._sign(BEGIN_TAG)
            return True
        while not self.is_to_end() and not self._signs[0].Test():
            sleep(WAIT_S)
        return not self.is_to_end()

    def tell(self, *figures: float) -> None:
        """Tell how far this team is, see `NUM_FIGURES`; a leader that has not been heard yet says nothing."""
        if self.is_first:
            self.states[ROOT] = figures
            self._hear()
        elif self._sending is None or self._sending.Test():
            self._tell(figures)

    def is_to_end(self) -> bool:
        """Tell whether another team has failed."""
        if self.is_first:
            self._hear()
            return bool(self.stops) or any(outcome.code for outcome in self._outcomes.values())
        return bool(self._signs[1].Test())

    @property
    def is_alone(self) -> bool:
        """Whether all envs are those of one team."""
        return len(self.states) == 1

    @property
    def num_committed(self) -> int:
        """The steps that all teams have committed, on the first leader."""
        return int(self.states[:, NUM_COMMITTED].min())

    @property
    def worst_commit_s(self) -> float:
        """The longest that a commit of any team has taken, on the first leader."""
        return float(self.states[:, COMMIT_S].max())

    @property
    def steps(self) -> tuple[int, int]:
        """The steps that the slowest and the fastest team have taken, on the first leader."""
        taken = self.states[:, 0]
        return int(taken.min()), int(taken.max())

    @property
    def throughput(self) -> tuple[int, float]:
        """The env steps that all teams have taken, and their rate: NaN until each team that collects has told its own.

        On the first leader.
        """
        env_steps, rate = self.states[:, [ENV_STEPS, RATE]].sum(axis=0)
        return int(env_steps), float(rate)

    def settle(self, outcome: Outcome, look: Callable[[], Outcome | None]) -> list[Outcome] | None:
        """Wait until all teams have ended; return how, in their order, on the first leader, elsewhere None.

        All are told to end if one of them has failed, or if `look` returns how somebody stops this leader meanwhile.
        """
        if not self.is_first:
            self._tell(outcome)
            # Other teams may take hours more, and signals are heard between two looks only.
            while not all(request.Test() for request in self._signs):
                if not self.stops and (stop := look()):
                    self.stops.append(stop)
                    self._tell(stop)
                sleep(WAIT_S)
            self._tell(None)
            return None
        self._note_end(ROOT, outcome)
        while len(self._outcomes) < self._comm.size:
            if not self.stops and (stop := look()):
                self.stops.append(stop)
            if self.is_to_end():
                self._sign(BEGIN_TAG, STOP_TAG)
            sleep(WAIT_S)
        self._sign(BEGIN_TAG, STOP_TAG)
        outcomes = [self._outcomes[rank] for rank in sorted(self._outcomes)]
        while self._num_gone < self._comm.size - 1:
            self._hear()
        return outcomes

    def _tell(self, told: Sequence[float] | Outcome | None) -> None:
        """Tell the first leader figures, this team's end, what stopped this leader after that, or goodbye."""
        if self._sending is not None:
            self._sending.Wait()
        self._sending = self._comm.isend((self._comm.rank, told), ROOT, UP_TAG)

    def agree_on(self, code: int) -> int:
        """Return the job's exit code, which the first leader gives, when all leaders may let their ranks out."""
        if self._sending is not None:
            self._sending.Wait()
        return int(self._comm.bcast(code, ROOT))

    def free(self, comm: "MPI.Intracomm") -> None:
        """Give back the communicator, unless it is the job's own.  **Collective** of leaders."""
        if self._comm is not comm:
            self._comm.Free()

    def _sign(self, *tags: int) -> None:
        """Give the others signs, each once."""
        for tag in filter(lambda tag: tag not in self._signed, tags):
            self._signed.add(tag)
            for rank in range(1, self._comm.size):
                self._comm.Send(self._room[:1], rank, tag)

    def _hear(self) -> None:
        """Take in what others have told."""
        while not self.is_alone and self._comm.iprobe(tag=UP_TAG):
            rank, told = self._comm.recv(tag=UP_TAG)
            if told is None:
                self._num_gone += 1
            elif not isinstance(told, Outcome):
                self.states[rank] = told
            elif rank in self._outcomes:
                self.stops.append(told)
            else:
                self._note_end(rank, told)

    def _note_end(self, rank: int, outcome: Outcome) -> None:
        self._outcomes[rank] = outcome
        self.states[rank, :2], self.states[rank, RATE] = outcome.num_safe, 0.0
