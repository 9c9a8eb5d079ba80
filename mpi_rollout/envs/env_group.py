"""Envs that are MPI programs: the ranks of a group make, reset and step each of them together.

The first rank of a group takes part in the job's exchanges, as any rank does.  Whatever it calls of an env, it tells
the other ranks, the members, in one message on a communicator that neither the job nor the envs use.  They call the
same of their part of the env.  When they are through, they answer: with nothing, or with what was raised.

Where a call fails on one rank, the others may wait for it in a collective of the env, where no message reaches them.
They have `GROUP_ANSWERS_S` to come out of it.  Then the first rank gives the group up, and the failure ends the job as
that of any env.  A member whose failure the first rank has not taken in by then says it, and ends the job by itself.
"""

import math
import pickle
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, TypeVar

import gymnasium
import numpy as np

from mpi_rollout.core.spaces import describe
from mpi_rollout.envs.faults import EnvTimeout
from mpi_rollout.errors import DataError, EnvError, Fault, UsageError
from mpi_rollout.process.exits import end_if_forked

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec
    from mpi4py import MPI

T = TypeVar("T")
Order = tuple[int, str, tuple[Any, ...], dict[str, Any]]  # The number of an env, a method, and its arguments.
GROUP_ANSWERS_S = 1.5  # After a failure the other ranks of a group have so long to come out of their call.
HEAD_NBYTES = 1024  # What is longer needs a second message.
ORDER, REST, LENGTH, CONTENT = range(4)  # Tags: the two messages of an order, and of an answer.
PAUSE_S, PAUSE_SHARE, LONGEST_S = 5e-5, 0.02, 0.02  # A share of the time waited; not in the first looks.
FEW_LOOKS, MANY_LOOKS = 50, 1000  # Where ranks share cores, and where each has one; a look takes about 1 us.
NO_ENV, MAKE, CALL, LET_GO = 0, "make it", "call this", "let go"  # No methods have such names.


class Pause:
    """Lets others run between looks for a message, but for the first looks.

    MPI's waits would keep this rank's core, or yield it for a whole turn of others where ranks share cores; and no
    watchdog could interrupt them.
    """

    def __init__(self, num_looks: int) -> None:
        self._begin, self._num_left = monotonic(), num_looks

    def __call__(self) -> None:
        self._num_left -= 1
        if self._num_left < 0:
            sleep(min(max(PAUSE_S, PAUSE_SHARE * (monotonic() - self._begin)), LONGEST_S))


class EnvGroup:
    """The ranks that make each env together, on one of them.  **Collective** to make.

    `ranks` are their numbers in the job, rising; with the `way` spin, members wait as MPI does.

    Attributes
    ----------
    comm
        The communicator of the envs.
    on_signal
        Called on the first rank with the signal that asked a member to stop.
    """

    def __init__(self, comm: "MPI.Intracomm", ranks: tuple[int, ...], way: str):
        self.comm, self.ranks = comm, ranks
        self._messages, self._head = comm.Dup(), np.zeros(HEAD_NBYTES, np.uint8)
        self._spins, self._num_looks = way == "spin", MANY_LOOKS if way == "adapt" else FEW_LOOKS
        self.on_signal: Callable[[int], object] = signal.raise_signal
        self._lengths = np.zeros(comm.size - 1, np.int64)
        self._requests: list[MPI.Request] = []
        self._sent: list[MPI.Request] = []
        self._missing: set[int] = set()  # Members that have not answered the last order.
        self._num_made = 0

    @property
    def is_broken(self) -> bool:
        """Whether a member has not come out of the last call."""
        return bool(self._missing)

    def make(self, env_index: int, make: Callable[[], gymnasium.Env]) -> "GroupEnv":
        """Make an env on all ranks, here by `make`; UsageError if members have other spaces."""
        self._num_made += 1
        env, answers = self.together((self._num_made, MAKE, (env_index,), {}), make)
        own = spaces_of(env)
        for member, spaces in answers.items():
            for name, expected in own.items():
                if spaces[name] != expected:
                    raise UsageError(
                        f"an env must have the same {name} on all of its ranks, rank {self.ranks[0]} has {expected}, "
                        f"rank {self.ranks[member]} has {spaces[name]}; make them equal"
                    )
        return GroupEnv(env, self, self._num_made)

    def together(self, order: Order, own: Callable[[], T]) -> tuple[T, dict[int, Any]]:
        """Let members do what an order says, and do it here by `own`; return its result, and their answers.

        Raises what was raised here or, with its rank, on a member.
        """
        if self._missing:
            self._take_answers(GROUP_ANSWERS_S)
        if self._missing:
            raise EnvError(self._who_is_missing())
        pickled = pickle.dumps(order)
        self._missing = {*range(1, self.comm.size)}
        self._post(pickled)
        try:
            result = own()
            end_if_forked()
            answers = self._take_answers()
        except BaseException as error:
            end_if_forked(error)
            self._take_answers(GROUP_ANSWERS_S)
            if self._missing and isinstance(error, EnvTimeout):
                error.args = (f"{error}; {self._who_is_missing()}",)
            raise
        for answer in answers.values():
            if isinstance(answer, Fault):
                raise _error_of(answer)
        return result, answers

    def call(self, function: Callable[..., T], envs: Sequence[Any], *args: Any) -> T:
        """Call a module's function on all ranks, with the group and each rank's parts of some envs; return its result.

        Only the first rank's parts have the wrappers of `gymnasium.make`.
        """
        order: Order = (NO_ENV, CALL, (function, [env.number for env in envs], *args), {})
        return self.together(order, partial(function, self, [env.env for env in envs], *args))[0]

    def share(self, content: bytearray) -> None:
        """Overwrite this with what the first rank has there.  **Collective**, within a function of `call`."""
        self._messages.Bcast(content, 0)

    def let_go(self, result: object = None) -> None:
        """Let members out of `serve` with this result, where they can hear it."""
        if not self._missing:
            self._post(pickle.dumps((NO_ENV, LET_GO, (result,), {})))

    def free(self) -> None:
        """Give back the communicators.  **Collective**."""
        self._end_sends()
        for comm in (self._messages, self.comm):
            if comm:  # An env may have freed its own.
                comm.Free()

    def _end_sends(self) -> None:
        """Give back the requests of the last order, which members have received: they have answered it, or are free."""
        for request in self._sent:
            request.Wait()
        self._sent = []

    def _post(self, pickled: bytes) -> None:
        self._end_sends()
        room, head = HEAD_NBYTES - 8, self._head
        first = np.frombuffer(pickled[:room], np.uint8)
        head[:8].view(np.int64)[0] = len(pickled)
        head[8 : 8 + len(first)] = first
        messages = [(head, ORDER)] + [(np.frombuffer(pickled[room:], np.uint8), REST)] * (len(pickled) > room)
        # No broadcast: where ranks share cores, its wait would give this rank's turn away.
        members = range(1, self.comm.size)
        self._sent = [self._messages.Isend(data, rank, tag) for data, tag in messages for rank in members]

    def await_order(self) -> Order:
        """Wait on a member for what the first rank does next."""
        self.wait_for([self._messages.Irecv(self._head, 0, ORDER)])
        nbytes, pickled = int(self._head[:8].view(np.int64)[0]), self._head[8:]
        if nbytes > len(pickled):
            rest = np.empty(nbytes - len(pickled), np.uint8)
            self._messages.Recv(rest, 0, REST)
            pickled = np.concatenate((pickled, rest))
        order: Order = pickle.loads(pickled[:nbytes].data)
        return order

    def wait_for(self, requests: "list[MPI.Request]") -> None:
        """Wait on a member."""
        if self._spins:
            requests[0].Waitall(requests)
            return
        pause = Pause(self._num_looks)
        while not requests[0].Testall(requests):
            pause()

    def _take_answers(self, limit_s: float = math.inf) -> dict[int, Any]:
        """Take the answers of members, in the order of ranks; after the time limit, or a failure, some stay missing."""
        if not self._requests:  # Only now: a member that has failed waits to be heard.
            places = range(self.comm.size - 1)
            self._requests = [self._messages.Irecv(self._lengths[place:][:1], place + 1, LENGTH) for place in places]
        answers, deadline, pause = dict[int, Any](), monotonic() + limit_s, Pause(self._num_looks)
        while self._missing and monotonic() < deadline:
            arrived = self._requests[0].Testsome(self._requests) or []
            if not arrived:
                pause()
            for member in (place + 1 for place in arrived):
                answers[member] = self._answer_of(member)
                self._missing.discard(member)
            if any(isinstance(answer, Fault) for answer in answers.values()):
                deadline = min(deadline, monotonic() + GROUP_ANSWERS_S)
        if not self._missing:
            self._requests = []
        return dict(sorted(answers.items()))

    def _answer_of(self, member: int) -> Any:
        length = int(self._lengths[member - 1])
        if length < 0:
            self.on_signal(-length)
        if length <= 0:
            return None
        content = bytearray(length)
        self._messages.Recv(content, member, CONTENT)
        return pickle.loads(content)

    def answer(self, answer: object, number: int = 0) -> "list[MPI.Request]":
        """Answer an order on a member; without an answer with the number of a signal, or 0.

        The requests are over when the first rank takes the answer in, and not before.
        """
        content = b"" if answer is None else pickle.dumps(answer)
        length = np.array([len(content) or -number], np.int64)
        requests = [self._messages.Issend(length, 0, LENGTH)]
        if content:
            requests.append(self._messages.Issend(content, 0, CONTENT))
        return requests

    def _who_is_missing(self) -> str:
        ranks = ", ".join(str(self.ranks[member]) for member in sorted(self._missing))
        return f"rank {ranks}, which makes the env too, has not come out of the call"


def _error_of(fault: Fault) -> BaseException:
    """Return what a member raised, with its rank in the message."""
    if fault.raised is not None:
        place = str(fault.parts[0])
        return replace(fault.raised, message=f"{place}{fault.raised.message}").again()
    kinds = {kind.exit_code: kind for kind in (UsageError, DataError)}
    return kinds.get(fault.exit_code, EnvError)(*fault.parts)


def spaces_of(env: gymnasium.Env) -> dict[str, str]:
    """Return what must be the same on all ranks of an env."""
    return {name: str(describe(getattr(env, name))) for name in ("observation_space", "action_space")}


class GroupEnv(gymnasium.Wrapper):
    """An env on the first of its ranks: what is called of it here is called on all of them."""

    def __init__(self, env: gymnasium.Env, group: EnvGroup, number: int):
        super().__init__(env)
        self._group, self.number = group, number

    def _on_all(self, name: str, *args: Any, **kwargs: Any) -> Any:
        own = partial(self.env.get_wrapper_attr(name), *args, **kwargs)
        return self._group.together((self.number, name, args, kwargs), own)[0]

    def step(self, action: Any) -> Any:
        return self._on_all("step", action)

    def reset(self, **arguments: Any) -> Any:
        return self._on_all("reset", **arguments)

    def render(self) -> Any:
        return self._on_all("render")

    def close(self) -> None:
        if not self._group.is_broken:  # It may wait for the ranks that do not come.
            self._on_all("close")

    def get_wrapper_attr(self, name: str) -> Any:
        attribute = self.env.get_wrapper_attr(name)
        return partial(self._on_all, name) if callable(attribute) else attribute

    def set_wrapper_attr(self, name: str, value: Any, **how: Any) -> Any:
        return self._on_all("set_wrapper_attr", name, value, **how)

    @property
    def spec(self) -> "EnvSpec | None":  # type: ignore[override]  # As in Gymnasium's own wrappers.
        """That of the env: on how many ranks it is made is no part of it."""
        return self.env.spec
