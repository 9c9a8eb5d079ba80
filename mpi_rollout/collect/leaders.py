"""Messages between the roots of teams, which are few and small: how far each is, when to end, and how it has ended.

The first leader is the root of the job.  A leader tells it at each look how far its team is, in as many bytes whatever
the number of ranks and envs.  It is told once to begin, when there is a set for its shards, and once to end: because
another team has failed, or when all are through; then it says goodbye, so that all messages are received.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import sleep
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.exchange.world import ROOT

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpi_rollout.collect.report import RunFigures

# Steps that are taken, those that are committed, env steps, env steps/s (NaN before they are known), the longest commit
# in seconds; what is told: figures, the team's end, a stop after that, or goodbye.
NUM_FIGURES = 6
RATE = 3
GOES_ON, ENDED, STOPPED, GOODBYE = range(4)
STATE_TAG, OUTCOME_TAG, BEGIN_TAG, STOP_TAG = range(32110, 32114)
WAIT_S = 0.005  # Between two looks where there is nothing else to do.


@dataclass
class Outcome:
    """How a team has ended: its exit code, the steps that its shards have, its figures, or what has failed."""

    code: int
    num_safe: int
    figures: "RunFigures | None" = None
    message: str = ""
    stack: str = ""
    is_stopped: bool = False
    is_resumable: bool = True
    is_first_to_end: bool = True  # No other team had ended before.


class Leaders:
    """One leader's end of these messages; `comm` has the leaders of all teams, in the order of their envs.

    `stops` are what stopped the first leader or another one after its team's end.
    """

    def __init__(self, comm: "MPI.Intracomm"):
        self._comm, self.is_first = comm, comm.rank == ROOT
        self._states = np.zeros((comm.size, NUM_FIGURES))
        self._states[:, RATE] = np.nan
        self.intervals: list[tuple[float, int, float]] = []  # Rows of /throughput/intervals, on the first leader.
        self._others = range(1, comm.size)
        self._outcomes: dict[int, Outcome] = {}
        self.stops, self._num_gone = list[Outcome](), 0
        self._sending: MPI.Request | None = None
        self._signs = np.zeros((2, 1), np.int64)  # Room for the signs to begin and to end; their values say nothing.
        self._has_begun = self._is_told = False
        self._signed = set[int]()  # The signs that the first leader has given.
        if self.is_first:
            self._inbox = np.zeros_like(self._states)
            self._receiving = [comm.Irecv(self._inbox[rank], rank, STATE_TAG) for rank in self._others]
        else:
            tags = BEGIN_TAG, STOP_TAG
            self._receiving = [comm.Irecv(sign, ROOT, tag) for sign, tag in zip(self._signs, tags, strict=True)]

    def past(self, num_steps: int, nbytes: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        """Return the least steps and the sums of bytes that teams have at the start.  **Collective** of leaders."""
        pasts = self._comm.allgather((num_steps, nbytes))
        self._states[:, :2] = num_steps = min(least for least, _ in pasts)
        return num_steps, (sum(size for _, (size, _) in pasts), sum(copied for _, (_, copied) in pasts))

    def begin(self) -> bool:
        """Let the others begin, or wait until the first leader lets this one; tell whether the run has not ended."""
        if self.is_first:
            self._sign(BEGIN_TAG)
            return True
        while not self._has_begun and not self.is_to_end():
            self._has_begun = bool(self._receiving[0].Test())
            sleep(0.0 if self._has_begun else WAIT_S)
        return not self.is_to_end()

    def tell(self, *figures: float) -> None:
        """Tell how far this team is, see `NUM_FIGURES`; a leader that has not been heard yet says nothing."""
        state = np.array([*figures, *[0.0] * (NUM_FIGURES - len(figures))])
        if self.is_first:
            self._states[ROOT] = state
            self._hear()
        elif self._sending is None or self._sending.Test():
            self._states[0] = state
            self._sending = self._comm.Isend(self._states[0], ROOT, STATE_TAG)

    def is_to_end(self) -> bool:
        """Tell whether another team has failed."""
        if self.is_first:
            self._hear()
            return bool(self.stops) or any(outcome.code for outcome in self._outcomes.values())
        self._is_told = self._is_told or bool(self._receiving[1].Test())
        return self._is_told

    @property
    def states(self) -> np.ndarray:
        """What all teams told last, (num_teams, NUM_FIGURES), on the first leader."""
        return self._states

    @property
    def steps(self) -> tuple[int, int]:
        """The steps that the slowest and the fastest team have taken, on the first leader."""
        taken = self._states[:, 0]
        return int(taken.min()), int(taken.max())

    @property
    def throughput(self) -> tuple[int, float]:
        """The env steps that all teams have taken, and their rate: NaN until each team that collects has told its own.

        On the first leader.
        """
        env_steps, rate = self._states[:, RATE - 1 : RATE + 1].sum(axis=0)
        return int(env_steps), float(rate)

    def settle(self, outcome: Outcome, look: Callable[[], Outcome | None]) -> list[Outcome] | None:
        """Wait until all teams have ended; return how, in their order, on the first leader, elsewhere None.

        All are told to end if one of them has failed, or if `look` returns how somebody stops this leader meanwhile.
        """
        if not self.is_first:
            self._tell(ENDED, outcome)
            # Other teams may take hours more, and signals are heard between two looks only.
            while not all(request.Test() for request in self._receiving):
                if not self.stops and (stop := look()):
                    self.stops.append(stop)
                    self._tell(STOPPED, stop)
                sleep(WAIT_S)
            self._tell(GOODBYE)
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
        while self._num_gone < len(self._others):
            self._hear()
        return outcomes

    def _tell(self, kind: int, outcome: Outcome | None = None) -> None:
        """Tell the first leader something that it must hear."""
        if self._sending is not None:
            self._sending.Wait()
        self.tell(*[0.0] * (NUM_FIGURES - 1), kind)
        if outcome is not None:
            self._comm.send(outcome, ROOT, OUTCOME_TAG)

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
            for rank in self._others:
                self._comm.Send(self._signs[0], rank, tag)

    def _hear(self) -> None:
        """Take in what others have told."""
        while indices := self._receiving[0].Testsome(self._receiving) if self._others else None:
            for index in indices:
                rank, kind = self._others[index], self._inbox[self._others[index], -1]
                if kind == GOES_ON:
                    self._states[rank] = self._inbox[rank]
                elif kind == ENDED:
                    self._note_end(rank, self._comm.recv(source=rank, tag=OUTCOME_TAG))
                elif kind == STOPPED:
                    self.stops.append(self._comm.recv(source=rank, tag=OUTCOME_TAG))
                if kind == GOODBYE:
                    self._num_gone += 1
                else:
                    self._receiving[index] = self._comm.Irecv(self._inbox[rank], rank, STATE_TAG)

    def _note_end(self, rank: int, outcome: Outcome) -> None:
        self._outcomes[rank] = outcome
        self._states[rank, :2], self._states[rank, RATE] = outcome.num_safe, 0.0
