"""A conformance test of `exchange.transports.Transport`.

Run it on all ranks, with a maker of your transport:

    from mpi4py import MPI
    from mpi_rollout.testing.transports import check_transport

    check_transport(MPI.COMM_WORLD, MyTransport)
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mpi_rollout.exchange.transports import Buffers, Slots, Transport

if TYPE_CHECKING:
    from mpi4py import MPI

ORDER_NBYTES = 200
WORD = slice(16, 24)  # Of an order.
SLOT_NBYTES = 328
WORD_OF_SLOT, MARK = slice(24, 32), slice(8, 16)
HEAD_NBYTES = 64  # What a transport may write to in a slot lies before.
ROOMS = (1, 7, 4, 1, 5)


class Round(NamedTuple):
    """An order, what follows it, and what comes back."""

    number: int
    num_bytes: int  # 0 where nothing follows the order.
    num_rows: int  # 0 where the order is not answered.

    def order(self) -> np.ndarray:
        return _drawn(ORDER_NBYTES, self.number)

    def data(self) -> np.ndarray:
        return _drawn(self.num_bytes, self.number, 1)

    def slot(self, rank: int, room: int) -> np.ndarray:
        """Return the whole slot of a rank, which may send a part of it."""
        return _drawn(room * SLOT_NBYTES, self.number, 2, rank).reshape(room, SLOT_NBYTES)


def _drawn(num_bytes: int, *key: int) -> np.ndarray:
    return np.frombuffer(np.random.default_rng(key).bytes(num_bytes), np.uint8)


def _rounds(room: int, first: int, how_many: int, seed: int) -> Iterator[Round]:
    """Yield rounds of any kind in any order, the same ones on all ranks."""
    draws = np.random.default_rng([seed, room, first])
    for number in range(first, first + how_many):
        num_bytes = int(draws.choice([0, 0, 1, 8, 4096, 100_000]))
        yield Round(number, num_bytes, int(draws.choice([0, 1, room, *range(1, room + 1)])))


class _Side:
    """One rank with its buffers: it does its part of a round, and says what is wrong with what came."""

    def __init__(self, comm: "MPI.Intracomm", make: Callable[[Buffers], Transport], ranks: range) -> None:
        self._comm, self._ranks, self._is_root = comm, ranks, comm.rank == 0
        self._order = np.zeros(ORDER_NBYTES, np.uint8)
        word = self._order[WORD].view(np.int64).data
        slots = self._slots_of(ROOMS[0])
        self.transport = make(Buffers(comm, self._order, word, slots, ranks))

    def _slots_of(self, room: int) -> Slots:
        self._room, has_own = room, self._comm.rank in self._ranks
        if not self._is_root:
            self._own: np.ndarray | None = np.zeros((room, SLOT_NBYTES), np.uint8)
            return Slots(self._own, None, self._own[:1, WORD_OF_SLOT].view(np.int64)[:, 0], None)
        self._all = np.zeros((len(self._ranks), room, SLOT_NBYTES), np.uint8)
        self._own = self._all[0] if has_own else None
        words, marks = (self._all[:, 0, part].view(np.int64)[:, 0] for part in (WORD_OF_SLOT, MARK))
        return Slots(self._own, self._all, words, marks)

    def use_room(self, room: int) -> None:
        self.transport.use_slots(self._slots_of(room))

    def take_part(self, round_: Round) -> str:
        """Do this rank's part; return what is wrong, or "" for nothing."""
        wrong = self._do_as_root(round_) if self._is_root else self._do_as_worker(round_)
        return f"rank {self._comm.rank}, {round_}: {wrong}" if wrong else ""

    def _do_as_root(self, round_: Round) -> str:
        self.transport.finish()
        self._put_order(round_)
        self.transport.send_order()
        data = round_.data()
        if round_.num_bytes:
            self.transport.send_bytes(data)
        if not round_.num_rows:
            self.transport.finish()
            return ""
        self._write_slot(round_)
        behind = self._all[:, round_.num_rows :].copy()
        self.transport.receive_slots(round_.num_rows)
        for place, rank in enumerate(self._ranks):
            expected = round_.slot(rank, self._room)[: round_.num_rows, HEAD_NBYTES:]
            if not np.array_equal(self._all[place, : round_.num_rows, HEAD_NBYTES:], expected):
                return f"the slot of rank {rank} is not what that rank has sent"
        # The rows of the others behind those that were asked for are not said to stay; the root's own are.
        if self._own is not None and not np.array_equal(behind[0], self._own[round_.num_rows :]):
            return "rows of the root's own slot have changed which were not asked for"
        return ""

    def _do_as_worker(self, round_: Round) -> str:
        self.transport.receive_order()
        wrong = "" if self._has_order(round_) else "the order is not what the root has sent"
        if round_.num_bytes:
            data = np.zeros(round_.num_bytes, np.uint8)
            self.transport.receive_bytes(data)
            if not np.array_equal(data, round_.data()):
                wrong = wrong or "the bytes after the order are not what the root has sent"
        if round_.num_rows:
            self._write_slot(round_)
            self.transport.send_slot(round_.num_rows)
        return wrong

    def _put_order(self, round_: Round) -> None:
        word = self._order[WORD].copy()  # The transport's own.
        self._order[:] = round_.order()
        self._order[WORD] = word

    def _has_order(self, round_: Round) -> bool:
        is_same = self._order == round_.order()
        is_same[WORD] = True
        return bool(is_same.all())

    def _write_slot(self, round_: Round) -> None:
        if self._own is not None:
            self._own[:, HEAD_NBYTES:] = round_.slot(self._comm.rank, self._room)[:, HEAD_NBYTES:]


def check_transport(
    comm: "MPI.Intracomm",
    make: Callable[[Buffers], Transport],
    ranks: range | None = None,
    num_rounds: int = 40,
    seed: int = 0,
) -> None:
    """Check that a transport brings orders, the bytes after them, and slots, as its contract says.

    **Collective**: all ranks of `comm` call it alike.  There are `num_rounds` rounds for each of several sizes of
    slots: with and without bytes after the order, with and without an answer, which is the whole slot or its first
    rows.

    A transport that loses a message makes this wait for ever; run it with a time limit.

    Parameters
    ----------
    make
        Makes the transport of one rank for its `Buffers`; the communicator is for it alone.
    ranks
        Those that take part, neighbours of `comm`; all of them by default.  Rank 0 always drives.
    seed
        Of the rounds: other ones with another seed.

    Raises
    ------
    AssertionError
        On all ranks alike: what came first that is not what was sent, on which rank, and in which round.
    """
    ranks = range(comm.size) if ranks is None else ranks
    carried, told = comm.Dup(), comm.Dup()
    side = _Side(carried, make, ranks) if comm.rank in ranks or comm.rank == 0 else None
    for index, room in enumerate(ROOMS):
        wrong = ""
        if side is not None:
            if index:
                side.use_room(room)
            for round_ in _rounds(room, index * num_rounds, num_rounds, seed):
                verdict = side.take_part(round_)  # Also after a fault: the others go on.
                wrong = wrong or verdict
        # Here alone, since to tell each other is a message too, which orders must not need.
        verdicts = [verdict for verdict in told.allgather(wrong) if verdict]
        assert not verdicts, verdicts[0]
    if side is not None:
        side.transport.free()
    carried.Free()
    told.Free()
