"""The root's side of all exchanges: it posts orders, and takes in slots when they have come.

A *lane* is one exchange as the root sees it.  The loops of a trainer and of a run are the same for one lane over all
ranks, for groups of envs in turn, and for one lane a rank, where whichever is ready first is served first.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpi_rollout.core.layout import FAULT, LOST, MASKED, RESTARTED, SHORT, Block, Destination
from mpi_rollout.core.spaces import leaves, tree_of
from mpi_rollout.errors import DataError, RankLost, RolloutError, counted, words_of
from mpi_rollout.exchange.exchange import Command, Exchange, Exchanges
from mpi_rollout.exchange.infos import add_columns, merge_infos
from mpi_rollout.exchange.world import ROOT
from mpi_rollout.ranks.action_check import ActionReader
from mpi_rollout.ranks.worker import Fault, Worker


class RankError(RolloutError):
    """One rank's env failed; `stack` is its traceback there."""

    def __init__(self, fault: Fault, num_faults: int):
        others = f" ({counted(num_faults - 1, 'more rank')} failed too)" if num_faults > 1 else ""
        super().__init__(fault.message + others)
        self.stack, self.exit_code, self.type_name = fault.stack, fault.exit_code, fault.type_name
        self.add_note(f"There:\n{self.stack}")


class Lane:
    """The envs of one exchange: neighbours, `envs` of all."""

    def __init__(self, exchange: Exchange, slots: slice):
        self.exchange, self.slots = exchange, slots
        self.env_indices = np.arange(exchange.partition.envs.start, exchange.partition.envs.stop)
        self.envs = slice(exchange.partition.envs.start, exchange.partition.envs.stop)
        self.num_envs = len(self.env_indices)
        self.is_marked = False  # A rank has said something else with its last slot; there may be action masks.
        self.order: tuple[Any, ...] = ()  # What the root's own slice has to obey before its slots are complete.

    def put(self, arrays: Sequence[np.ndarray], start: int) -> None:
        """Fill the order with the rows from `start` on of the actions, an array for each leaf."""
        for array, target in zip(arrays, self.exchange.action_arrays, strict=True):
            target[...] = array[start : start + self.num_envs]


class Driver:
    """Drives all ranks.  Only on the root; other ranks `Worker.serve`.

    Parameters
    ----------
    actions
        The mode in which actions are read, see `actions.ActionReader`.

    Attributes
    ----------
    lanes
        In env order.
    made_anew
        Lane, env index and failure of each env that was made anew, where nobody asked for infos; for the run to take.
    under_way
        The lanes whose slots have not been taken in, in the order in which orders were posted to them.
    on_loss
        Called with the ranks that are gone, before the slots of the step in which they were lost are taken in.
    has_fault
        An env has failed, and its rank steps none of its envs until `begin_anew`; or what envs say has no place.
    """

    def __init__(self, exchanges: Exchanges, worker: Worker, actions: str):
        self.exchanges, self.worker, self.clock = exchanges, worker, worker.clock
        contents = exchanges.contents
        self.observation_space, self.action_space = contents.observation_space, contents.action_space
        pairs = zip(exchanges.all, exchanges.slots, strict=True)
        self.lanes = [Lane(exchange, slots) for exchange, slots in pairs]
        self.under_way: dict[Lane, None] = {}
        self.made_anew: list[tuple[Lane, int, str]] = []
        self.on_loss: Callable[[list[int]], None] | None = None
        self.num_envs = exchanges.division.num_envs
        self._lane_of = {lane.exchange: lane for lane in self.lanes}
        self._read = ActionReader(self.action_space, actions)
        self._action_leaves = leaves(self.action_space)
        self._serves_first_ready = exchanges.division.first_ready
        own = [lane for lane in self.lanes if lane.exchange.first_rank == ROOT]
        self._own_lane = own[0] if own and self._serves_first_ready else None
        self._num_passed = 0  # Slots of others that have come while the root's own slice waits to be stepped.
        self._told_signal = 0
        self.has_fault = self.has_stopped = False

    @property
    def stop_signal(self) -> int:
        """The signal by which somebody asked some rank to stop, or 0."""
        return self.worker.stop_signal or self._told_signal

    def block(self, num_rows: int) -> Block:
        """Make a block for all envs."""
        return Block(self.observation_space, self.action_space, self.num_envs, self.exchanges.num_slots, num_rows)

    def destinations(self, block: Block) -> dict[Lane, Destination]:
        """Prepare a block for having the slots of all lanes laid into its rows."""
        return {lane: lane.exchange.destination(block, lane.slots) for lane in self.lanes}

    def do(self, command: Command, *arguments: Any, actions: Any = None) -> None:
        """Have all envs do something else than a step, and wait for it.

        Parameters
        ----------
        arguments
            Of the `slices.Slice` method that the command is for.
        actions
            Of all envs, where they matter.
        """
        pickled = packed(arguments)
        arrays = () if actions is None else self._arrays(actions)
        try:
            for lane in self.lanes:
                if arrays:
                    lane.put(arrays, lane.envs.start)
                self._post(lane, command, arguments)
                lane.exchange.spread(pickled)
            while self.under_way:
                self.await_some()
        except RankLost:  # No slots will come.
            self.under_way.clear()
            raise

    def send(self, lanes: Sequence[Lane], actions: Any, trusted: bool = False) -> None:
        """Check the actions of some lanes' envs, and send them to the ranks.

        Parameters
        ----------
        actions
            Of shape (num_envs of these lanes, ...), a tree of such arrays, or for Dict and Tuple a list of samples.
        trusted
            They are arrays whose dtypes, shapes and values are known to be right: they are only copied.

        Raises
        ------
        ActionError
            Their shape, dtype or values are not of the action space; nothing was sent.
        """
        arrays = self._arrays(actions) if trusted else self._read(actions, indices_of(lanes))
        start = 0
        for lane in lanes:
            lane.put(arrays, start)
            self._post(lane, Command.STEP)
            start += lane.num_envs
        self.clock.lap("send")

    def _arrays(self, actions: Any) -> list[np.ndarray]:
        return [leaf.of(actions) for leaf in self._action_leaves]

    def _post(self, lane: Lane, command: Command, arguments: tuple[Any, ...] = ()) -> None:
        lane.exchange.post_order(command)
        lane.order = command, arguments
        self.under_way[lane] = None

    def await_some(self, least: int = 1) -> list[Lane]:
        """Wait for the slots of some lanes: the oldest, or with first ready `least` at least; return these lanes.

        Raises
        ------
        RankError
            An env failed on some rank.
        """
        lanes = self._arrivals(least) if self._serves_first_ready else [self._complete(next(iter(self.under_way)))]
        is_marked = False
        for lane in lanes:
            del self.under_way[lane]
            lane.is_marked = bool(np.count_nonzero(lane.exchange.marks))
            is_marked |= lane.is_marked
        if is_marked:
            self._heed(lanes)
        return lanes

    def _complete(self, lane: Lane) -> Lane:
        """Do the root's own share of a lane's order, then wait for the others'."""
        if lane.exchange.has_own_slot:
            self.worker.obey(lane.exchange, *lane.order)
        lane.exchange.await_slots()
        return lane

    def _arrivals(self, least: int) -> list[Lane]:
        """Lanes whose slots have come.

        The root's own slice is stepped while too few have come, or when as many others have come as there are: else
        fast ranks would keep it from ever being stepped.
        """
        least = min(least, len(self.under_way))
        own_waits = self._own_lane in self.under_way
        own_is_due = own_waits and self._num_passed >= len(self.lanes) - 1
        found: list[Lane] = []
        while len(found) < least:
            arrived = self.exchanges.arrived(wait=not own_waits)
            found += [self._lane_of[exchange] for exchange in arrived]
            self._num_passed += len(arrived)
            if own_waits and (own_is_due or len(found) < least):
                found.append(self._complete(self._own_lane))
                own_waits, self._num_passed = False, 0
        return found

    def take_infos(self, lanes: Sequence[Lane]) -> dict[str, Any]:
        """The infos that came with the last slots of some lanes, as one dict; to be taken once.

        Raises
        ------
        DataError
            Envs say what cannot stand in one dict, or cannot be read here.  It is as if an env had failed.
        """
        try:
            merged = self._merged_infos(lanes)
        except DataError:
            self.has_fault = True
            raise
        for index, leaf in enumerate(lanes[0].exchange.layout.infos):
            pairs = [(lane.exchange, lane.exchange.columns.info_arrays[index]) for lane in lanes]
            values, mask = (np.concatenate([exchange.take(pair[i]) for exchange, pair in pairs]) for i in (0, 1))
            add_columns(merged, leaf, values, mask)
        return merged

    def _merged_infos(self, lanes: Sequence[Lane]) -> dict[str, Any]:
        parts, start = [], 0
        for lane in lanes:
            for rows, infos in lane.exchange.take_infos():
                parts.append((slice(start + rows.start, start + rows.stop), infos))
            start += lane.num_envs
        return merge_infos(start, parts) if parts else {}

    def final_observations(self, lanes: Sequence[Lane], ended: np.ndarray) -> np.ndarray:
        """An array of objects, as Gymnasium has it: of each env that ended its last observation, else None."""
        found, start = np.full(len(ended), None, object), 0
        for lane in lanes:
            rows = np.flatnonzero(ended[start : start + lane.num_envs])
            arrays = [lane.exchange.take(column, rows) for column in lane.exchange.columns.final_observation_arrays]
            for place, row in enumerate(rows + start):
                found[row] = tree_of(self.observation_space, [array[place] for array in arrays])
            start += lane.num_envs
        return found

    def _heed(self, lanes: Sequence[Lane]) -> None:
        marks = np.concatenate([lane.exchange.marks for lane in lanes])
        if ((marks == 0) | (marks == MASKED)).all():
            return
        for lane in lanes:
            if (lane.exchange.marks == SHORT).any():
                lane.exchange.messages.note_shortage()
            if (lane.exchange.marks == RESTARTED).any():
                told = [infos["faults"] for _, infos in lane.exchange.take_infos()]
                self.made_anew += [(lane, index, message) for faults in told for index, message in faults]
        if (marks == FAULT).any():
            self._drop_infos()
            self.has_fault = True
            faults = [report["fault"] for report in self.call_ranks("report") if report["fault"] is not None]
            raise RankError(faults[0], len(faults))
        if marks.min() < 0:
            self._told_signal = -int(marks.min())
        if (marks == LOST).any():
            self.on_loss(np.flatnonzero(marks == LOST).tolist())

    def drain(self, is_void: bool = False) -> None:
        """Wait for what is under way, and leave it where it is.

        Parameters
        ----------
        is_void
            It is of no use to anybody: the root need not step its own envs for it.
        """
        while self.under_way:
            lane = next(iter(self.under_way))
            if is_void:
                lane.exchange.await_slots()
            else:
                self._complete(lane)
            lane.exchange.drop_infos()
            del self.under_way[lane]
        if is_void:
            self._drop_infos()

    def _drop_infos(self) -> None:
        """Receive infos that nobody asks for any more."""
        for lane in self.lanes:
            if lane not in self.under_way:
                lane.exchange.drop_infos()

    def switch(self, number: int) -> None:
        """Have the other ranks await the orders of another connection."""
        for exchange in self.exchanges.callers:
            exchange.post_order(Command.SWITCH, number)

    def begin_anew(self) -> None:
        """Be ready to reset all envs, whatever was under way and whichever of them have failed."""
        self.drain(is_void=True)
        self.call_ranks("begin_anew")
        self.has_fault = False

    def call_ranks(self, name: str, *args: Any) -> list[Any]:
        """Call a method of every rank's worker; return what they return, in rank order.

        Raises
        ------
        RankError
            It failed on some rank.
        """
        pickled = packed((name, args))
        self.drain()
        for exchange in self.exchanges.callers:
            exchange.post_order(Command.CALL)
        self.exchanges.spread(pickled)
        values = [pickle.loads(value) for value in self.exchanges.collect(self.worker.call(name, *args))]
        faults = [value for value in values if isinstance(value, Fault)]
        if faults:
            raise RankError(faults[0], len(faults))
        return values

    def call_envs(self, method: str, *args: Any) -> dict[int, Any]:
        """Call a method of every rank's slices; return what it returned of each env, by env index."""
        found: dict[int, Any] = {}
        for part in self.call_ranks("call_envs", method, *args):
            found |= part
        return found

    def stop(self, code: int = 0) -> None:
        """Let the other ranks out of `serve`, with the job's exit code."""
        self.has_stopped = True
        self.drain(is_void=True)
        for exchange in self.exchanges.all:
            exchange.post_order(Command.STOP, code)
        self.worker.close()


def indices_of(lanes: Sequence[Lane]) -> np.ndarray:
    """The env indices of some lanes."""
    if len(lanes) == 1:
        return lanes[0].env_indices
    return np.concatenate([lane.env_indices for lane in lanes])


def packed(value: Any) -> bytes:
    """Pickle what is for all ranks, before any order is out: they would wait for it.

    Raises
    ------
    TypeError
        It cannot be pickled.
    """
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise TypeError(f"what is sent to the ranks must be picklable, got {words_of(error)}") from error
