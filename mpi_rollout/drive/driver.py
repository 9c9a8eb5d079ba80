"""The root's side of all exchanges: it sends orders, steps its own envs, and receives slots.

Each exchange is a lane to it.  The loops of a trainer and of a run are the same for one lane over all ranks, for groups
of envs in turn, and for one lane a rank, where the rank that is ready first is served first.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from mpi_rollout.core.layout import FAULT, LOST, NOTED, RESTARTED, UNDONE, Block, SlotUnpacker
from mpi_rollout.errors import Fault, Option, RankError, RankLost, RolloutError, caused_by
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.exchanges import Exchanges
from mpi_rollout.exchange.orders import Command
from mpi_rollout.exchange.world import ROOT
from mpi_rollout.policies.action_check import OF_POLICY, ActionReader
from mpi_rollout.process.host import check_length
from mpi_rollout.process.notices import NOTICES
from mpi_rollout.ranks.worker import Worker
from mpi_rollout.text import words_of

P = ParamSpec("P")
R = TypeVar("R")
Kind = TypeVar("Kind")


class Lane:
    """The envs of one exchange: neighbours, `envs` of all."""

    def __init__(self, exchange: Exchange):
        self.exchange = exchange
        self.env_range = exchange.partition.envs
        self.env_indices = np.arange(self.env_range.start, self.env_range.stop)
        self.envs = slice(self.env_range.start, self.env_range.stop)
        self.num_envs = len(self.env_indices)
        self.num_rows = 1  # Steps of the last slots that are complete on all ranks.
        self.has_failed = False  # An env failed in them, as `read_marks` has seen.
        self.arguments: tuple[object, ...] = ()  # Those of the last order, if it asked for no steps.

    @property
    def marks(self) -> np.ndarray:
        """Return the marks of the last slots' rows, of shape (num_ranks, num_steps)."""
        exchange, num_rows = self.exchange, self.exchange.order.num_rows
        return exchange.marks if num_rows == exchange.room else exchange.marks[:, :num_rows]

    def has_notices(self) -> bool:
        """Tell whether a rank has marked the last slots with news for the user."""
        return bool((self.marks == NOTED).any())

    def read_marks(self) -> "tuple[int, list[LaneRestart]]":
        """Act on the marks of the last slots; return the signal that asks the run to stop, or 0, and restarts."""
        marks, restarts = self.marks, []
        self.has_failed = bool((marks == FAULT).any())
        is_missing = ((marks == FAULT) | (marks == UNDONE)).any(axis=0)
        if is_missing.any():
            self.num_rows = int(is_missing.argmax())
        if (marks == RESTARTED).any():
            for row, _, infos in self.exchange.infos.take():
                if row < self.num_rows:
                    assert isinstance(infos, dict), "a rank puts no others beside this mark"
                    restarts += [LaneRestart(self, row, *fault) for fault in infos["faults"]]
        return max(0, -int(marks.min())), restarts


class LaneRestart(NamedTuple):
    """A restart of an env in row `row` of a lane's slots."""

    lane: Lane
    row: int
    env_index: int
    message: str


class Driver:
    """The root's control of all ranks; the other ranks `Worker.serve`.

    `actions` is the mode in which actions are read, and `action` what messages call one, see `ActionReader`.

    With first ready, a fragment of the root's own envs ends early where `is_wanted`: other ranks are to be served.
    `on_cut` is called where an exchange ends in the middle: the ranks and the root no longer agree on what comes next.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        worker: Worker,
        actions: str,
        action: str = OF_POLICY,
        is_wanted: Callable[[], bool] | None = None,
        on_cut: Callable[[], None] = lambda: None,
    ):
        self.exchanges, self.worker, self.clock = exchanges, worker, worker.clock
        contents = exchanges.contents
        self.observation_space, self.action_space = contents.observation_space, contents.action_space
        self.lanes = [Lane(exchange) for exchange in exchanges.all]
        self.under_way: dict[Lane, None] = {}  # Their slots have not been taken in; in the order of their orders.
        self.restarts: list[LaneRestart] = []  # Of envs, which infos do not report.
        self.interrupted: list[Lane] = []  # After a failure: their slots have come, and nobody has taken them in.
        self.lost_ranks: list[int] = []  # In the step whose slots have come; nobody has heard of them.
        self._on_cut, self._is_wanted = on_cut, is_wanted
        self.num_envs = exchanges.division.num_envs
        self._lane_of = {lane.exchange: lane for lane in self.lanes}
        self.read = ActionReader(self.action_space, actions, action)
        self.serves_first_ready = exchanges.division.first_ready  # Each rank has a lane of its own.
        first = self.lanes[0]
        self._own_lane = first if self.serves_first_ready and first.exchange.first_rank == ROOT else None
        self._num_passed = 0  # Slots of others that have come while the root's own slice waits to be stepped.
        self._signal_of_others = 0
        self.has_notices = False  # Ranks have news for the user, which nobody has asked them for.
        self.has_fault = False  # An env has failed: its slice waits for `begin_anew`.  Or infos could not be read.

    @property
    def stop_signal(self) -> int:
        """The signal by which somebody asked some rank to stop, or 0."""
        return self.worker.stop_signal or self._signal_of_others

    def block(self, num_rows: int) -> Block:
        return Block(self.exchanges.contents, self.num_envs, self.exchanges.num_slots, num_rows)

    def unpackers(self, block: Block) -> dict[Lane, SlotUnpacker]:
        """Return the places in a block's rows into which the slots of each lane are laid."""
        return {lane: lane.exchange.unpacker(block) for lane in self.lanes}

    def do(self, command: Command, *arguments: object) -> None:
        """Order something else than a step of all envs, with the arguments of a `Slice` method, and wait for it."""
        pickled = np.frombuffer(packed(arguments), np.uint8)
        try:
            for lane in self.lanes:
                lane.arguments = arguments
                self.under_way[lane] = None
                lane.exchange.send_bytes(command, pickled)
            while self.under_way:
                self.step_and_receive()
        except RankLost:  # No slots will come.
            self.under_way.clear()
            raise
        except RolloutError:
            raise
        except BaseException:
            self._on_cut()
            raise

    def send(self, lane: Lane, actions: Sequence[np.ndarray] | None, num_steps: int = 1, step: int = -1) -> None:
        """Order steps of a lane's envs, from `step` on; -1 where nobody counts.

        `actions` are what `read` gave for the lane's envs: for each leaf an array (num_steps, num_envs, ...), for one
        step also (num_envs, ...).  None leaves them to the ranks.
        """
        exchange = lane.exchange
        if num_steps > 1:
            exchange.order.expected_ms = round(1000 * float(exchange.step_s.max()) / lane.num_rows * num_steps)
        try:
            exchange.send_steps(actions, num_steps, step)
            self.under_way[lane] = None
        except BaseException:
            self._on_cut()
            raise
        self.clock.lap("send")

    def step_and_receive(self, least: int = 1) -> list[Lane]:
        """Wait for the slots of some lanes: the oldest, or with first ready `least` at least; return these lanes.

        RankError if an env failed on some rank.
        """
        try:
            lanes = self._arrivals(least) if self.serves_first_ready else [self._complete(next(iter(self.under_way)))]
        except RolloutError:
            raise
        except BaseException:
            self._on_cut()
            raise
        is_marked = False
        for lane in lanes:
            del self.under_way[lane]
            lane.num_rows = lane.exchange.order.num_rows
            is_marked |= bool(np.count_nonzero(lane.marks))
        if is_marked:
            self._act_on_marks(lanes)
        return lanes

    def _complete(self, lane: Lane) -> Lane:
        """Do the root's part of what a lane was ordered, then wait for the slots of the other ranks."""
        self._step_own_envs(lane)
        lane.exchange.receive_slots()
        return lane

    def _step_own_envs(self, lane: Lane) -> None:
        """Obey a lane's order with the root's own envs, if it has some there."""
        if lane.exchange.has_own_slot:
            self.worker.obey(lane.exchange, lane.arguments, self._is_wanted if lane is self._own_lane else None)

    def _arrivals(self, least: int) -> list[Lane]:
        """Wait for the slots of some lanes, `least` at least; return these lanes.

        The root's own slice is stepped while too few have come.  It is also stepped when as many others have come as
        there are: else fast ranks would keep it from ever being stepped.
        """
        least = min(least, len(self.under_way))
        own_lane = self._own_lane if self._own_lane in self.under_way else None
        own_is_due = self._num_passed >= len(self.lanes) - 1
        lanes: list[Lane] = []
        while len(lanes) < least:
            arrived = self.exchanges.arrived(wait=own_lane is None)
            lanes += [self._lane_of[exchange] for exchange in arrived]
            self._num_passed += len(arrived)
            if own_lane is not None and (own_is_due or len(lanes) < least):
                lanes.append(self._complete(own_lane))
                own_lane, self._num_passed = None, 0
        return lanes

    def _act_on_marks(self, lanes: Sequence[Lane]) -> None:
        """Do what the marks of the last slots ask for."""
        self.interrupted = list(lanes)
        for lane in lanes:
            self._note(lane)
        marks = np.concatenate([lane.marks.ravel() for lane in lanes])
        if (marks == LOST).any():  # Also where envs of others have failed: what was lost is then not stored as steps.
            self.lost_ranks += np.flatnonzero((lanes[0].marks == LOST).any(axis=1)).tolist()
        if (marks == FAULT).any():
            self._drop_infos()
            self.has_fault = True
            raise self._error_of([report["fault"] for report in self.call_ranks(self.worker.control.report)])

    def _note(self, lane: Lane) -> None:
        signal, restarts = lane.read_marks()
        self._signal_of_others = signal or self._signal_of_others
        self.restarts += restarts
        self.has_notices |= lane.has_notices()

    def check_room(self, option: str, num_rows: int) -> None:
        """Raise UsageError, which names an option, where so many steps of all ranks are too many for one fragment."""
        layouts = [(lane.exchange.layout.nbytes, lane.exchange.order.nbytes) for lane in self.lanes]
        check_length(option, num_rows, max(layouts)[0], self.exchanges.num_slots, max(layouts)[1])

    def make_room(self, num_rows: int) -> None:
        """Make room in the slots of all ranks for fragments of so many steps."""
        before = self.lanes[0].exchange.room
        try:
            self.call_ranks(self.worker.control.make_room, num_rows)
        except RankError:  # All ranks must have the same.
            self.call_ranks(self.worker.control.make_room, before)
            raise

    def give_parameters(self, buffer: np.ndarray, lane: Lane | None = None) -> None:
        """Send parameters of their policy to the ranks of a lane, or to all, which wait for orders.

        What fails there fails the next steps.
        """
        lanes = [lane] if lane is not None else self.lanes if self.serves_first_ready else self.lanes[:1]
        for other in lanes:
            if other is not self._own_lane:
                other.exchange.send_bytes(Command.LOAD, buffer)
        if not self.serves_first_ready or self._own_lane in lanes:
            self.worker.load_parameters(buffer.copy())
        self.clock.lap("send")

    def drain(self, is_void: bool = False) -> None:
        """Wait for the slots under way, and leave them there; if they `is_void`, the root steps no envs for them."""
        while self.under_way:
            lane = next(iter(self.under_way))
            if is_void:
                lane.exchange.receive_slots()
                self.has_notices |= lane.has_notices()
            else:
                self._complete(lane)
                lane.num_rows = lane.exchange.order.num_rows
                self._note(lane)
                self.interrupted.append(lane)
            lane.exchange.infos.receive()
            del self.under_way[lane]
        self.exchanges.forget_arrivals()
        if is_void:
            self._drop_infos()

    def _drop_infos(self) -> None:
        """Receive infos that nobody needs any more."""
        for lane in self.lanes:
            if lane not in self.under_way:
                lane.exchange.infos.receive()

    def begin_anew(self) -> None:
        """Get ready to reset all envs, whatever was under way and whichever envs have failed."""
        self.drain(is_void=True)
        self.call_ranks(self.worker.control.begin_anew)
        self.has_fault = False

    def service(self, kind: type[Kind]) -> Kind:
        """Return the root's own object of a service, whose methods `call_ranks` takes."""
        return self.worker.services[kind]

    def call_ranks(self, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Call a method of a service on every rank, see `ranks.service`; return the results in rank order.

        `method` is one of the root's own object.  TypeError, and nothing is sent, if it is not of a service or the
        arguments cannot be pickled; RankError if the method has failed on some rank.
        """
        call = self.worker.services.address(method), args, kwargs
        pickled = np.frombuffer(packed(call), np.uint8)
        self.drain()
        try:
            for exchange in self.exchanges.callers:
                exchange.send_bytes(Command.CALL, pickled)
            gathered = self.exchanges.control.gather(self.worker.call(*call)) or ()
        except RolloutError:
            raise
        except BaseException:
            self._on_cut()
            raise
        values = [pickle.loads(value) for value in gathered]
        faults = [value if isinstance(value, Fault) else None for value in values]
        if any(faults):
            raise self._error_of(faults)
        return values

    def say_notices(self, spell: Callable[[Option], str]) -> None:
        """Tell the user what the ranks have to say about their envs.

        Call it when the infos of the last slots have been taken: ranks wait for that with the next order.
        """
        self.has_notices = False
        NOTICES.hear(self.call_ranks(self.worker.control.notices), spell)

    def _error_of(self, faults: Sequence[Fault | None]) -> RankError:
        """Return the error of the ranks' faults: what fails later in a fragment would not have been reached."""
        failed = [fault for fault in faults if fault is not None]
        first = min(failed, key=lambda fault: fault.step)
        error = RankError(first, sum(fault.step == first.step for fault in failed))
        if first is faults[ROOT]:
            return caused_by(error, self.worker.failures.error)
        return caused_by(error, None if first.raised is None else first.raised.again())

    def stop(self, code: int = 0) -> None:
        """Let the other ranks out of `serve`, with the job's exit code."""
        self.drain(is_void=True)
        for exchange in self.exchanges.all:
            exchange.send_order(Command.STOP, code)
        self.worker.close(code)


def packed(value: object) -> bytes:
    """Pickle what is for all ranks, before an order is sent, after which they would wait for it.

    TypeError if it cannot be pickled.
    """
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(f"what is sent to the ranks must be picklable, got {words_of(error)}") from error
