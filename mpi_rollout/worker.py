"""What every rank does with an order: step its slice, fill its slot.  The root obeys its own orders too.

When an env fails, the rank does not leave: it marks its slot and stays in the exchange, so that the root learns of
it at the step where it happened, commits all that is whole, and ends the job with the cause.  Should the root not
come to that in `GRACE_S` (another rank may be in the midst of a long step), the rank tells and aborts by itself.
"""

import gc
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from mpi_rollout.deadline import process_start
from mpi_rollout.envs.faults import EnvTimeout
from mpi_rollout.errors import DataError, EnvError, RankLost, RolloutError
from mpi_rollout.exchange import FAULT, MADE_ANEW, Command, Exchange, Exchanges
from mpi_rollout.mpi import abort
from mpi_rollout.slices import Slice
from mpi_rollout.timing import Clock
from mpi_rollout.watchdog import Watchdog, Work

GRACE_S = 1.5


@dataclass(frozen=True)
class Fault:
    """Why a rank failed, as text: exceptions of user code need not survive pickling."""

    message: str
    stack: str
    exit_code: int
    type_name: str


class Worker:
    """One rank's envs at the root's service.

    Parameters
    ----------
    slices
        This rank's envs for each exchange that it steps envs for, in env order; none on a dedicated root.
    methods
        What the root may call by name on all ranks.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        slices: list[Slice],
        methods: dict[str, Callable[..., Any]] | None = None,
    ):
        self.exchanges, self.slices = exchanges, slices
        self.clock = Clock()
        self.stop_signal = 0  # The signal by which somebody asked this rank to stop.
        self._slice_of = {slice_.exchange: slice_ for slice_ in slices}
        own = {"report": self.report, "call_envs": self.call_envs, "end_replay": self.end_replay}
        self._methods = own | (methods or {})
        self._fault: Fault | None = None
        self._watch: threading.Timer | None = None
        self._active: Slice | None = None  # Whose envs are at work.
        self._watchdog: Watchdog | None = None
        self._stop_asked_at = 0.0

    @property
    def _place(self) -> str:
        envs = ", ".join(f"{each.env_indices.start} to {each.env_indices.stop - 1}" for each in self.slices) or "none"
        return f"rank {self.rank} ({os.uname().nodename}, envs {envs})"

    @property
    def rank(self) -> int:
        return self.exchanges.control.rank

    def stop_on_signals(self, asked: Sequence[int] = ()) -> None:
        """Have SIGINT, SIGTERM and SIGUSR1, to whatever rank, end the run between two steps; a second time at once.

        A signal marks the slot, so the root learns of it with the step's data.  Launchers deliver one Ctrl-C to
        several ranks, or twice to one: what comes within a second is the same one.

        Parameters
        ----------
        asked
            Signals that came before.
        """
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._ask_to_stop)
        if asked:
            self._ask_to_stop(asked[0], None)

    def _ask_to_stop(self, number: int, _frame: Any) -> None:
        if self._stop_asked_at and monotonic() - self._stop_asked_at > 1.0:
            raise KeyboardInterrupt
        self._stop_asked_at = self._stop_asked_at or monotonic()
        self.stop_signal = number

    def watch(self, timeout_s: float | None) -> None:
        """Have a call of an env that takes longer interrupted, or else the job ended; None is no limit."""
        if timeout_s is not None:
            self._watchdog = Watchdog(self._at_work, timeout_s, self._say, self._give_up)

    def _at_work(self) -> Work | None:
        active = self._active
        return None if active is None else active.at_work()

    def _say(self, what: str) -> None:
        os.write(2, f"mpi_rollout: {self._place}, {what}\n".encode(errors="backslashreplace"))

    def _give_up(self, why: str) -> None:
        self._say(why)
        abort(self.exchanges.control, EnvError.exit_code)

    def serve(self) -> int:
        """Obey orders until the root says stop; return the exit code that it gives.  For all ranks but the root."""
        self.clock.restart()
        while True:
            try:
                return self._serve()
            except RankLost:  # What the root ordered last is void.
                continue

    def _serve(self) -> int:
        while True:
            exchange = self.exchanges.await_order()
            self.clock.lap("wait")
            command, code = exchange.order
            if command == Command.STOP:
                self._end_grace()
                for other in self.exchanges.all:
                    if other is not exchange:
                        other.await_order()
                self.close()
                return code
            if command == Command.CALL:
                name, args = pickle.loads(self.exchanges.spread())
                self.exchanges.collect(self.call(name, *args))
                exchange.messages.listen()
                self.clock.lap("other")
            else:
                arguments = pickle.loads(exchange.spread()) if command != Command.STEP else ()
                self.obey(exchange, command, arguments)
                exchange.post_slot()
                self.clock.lap("gather")

    def obey(self, exchange: Exchange, command: int, arguments: tuple[Any, ...] = ()) -> None:
        """Fill this rank's slot as the order says.  Never raises: a failure is marked in the slot.

        Parameters
        ----------
        arguments
            Of the `Slice` method that the command is for.
        """
        slice_ = self._slice_of.get(exchange)
        faults: list[tuple[int, str, str]] = []
        if slice_ is not None and self._fault is None:
            self._active = slice_
            try:
                slice_.do(command, arguments)
                faults = slice_.take_faults()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._fault = self._describe(error, f", step {slice_.num_steps}")
                exchange.put_infos({})  # Those of an earlier step are not to be sent again.
                self._begin_grace()
            self._active = None
            for _, message, times in faults:
                self._say(f"step {slice_.num_steps}: {message}; {times}")
        mark = MADE_ANEW if faults and slice_.has_told else -self.stop_signal
        exchange.own_mark[0] = mark if self._fault is None else FAULT
        exchange.own_step_s[0] = self.clock.lap("step")

    def call(self, name: str, *args: Any) -> bytes:
        """Run one of `methods`; return what it returns, pickled, or a `Fault` if it fails or that cannot be."""
        try:
            return pickle.dumps(self._methods[name](*args))
        except (KeyboardInterrupt, RankLost):
            raise
        except BaseException as error:
            return pickle.dumps(self._describe(error))

    def call_envs(self, method: str, *args: Any) -> dict[int, Any]:
        """Call `call_some`, `set_some` or `render` of all slices; return results by env index."""
        found: dict[int, Any] = {}
        for slice_ in self.slices:
            found |= getattr(slice_, method)(*args) or {}
        return found

    def end_replay(self, lost: Sequence[int]) -> None:
        """See `Slice.end_replay`."""
        for slice_ in self.slices:
            slice_.end_replay(lost)

    def report(self) -> dict[str, Any]:
        """What this rank has to say at the end.  The root asks, so it is in charge."""
        self._end_grace()
        return {
            "rank": self.rank,
            "host": os.uname().nodename,
            "cores": sorted(os.sched_getaffinity(0)),
            "cpu_share": time.process_time() / (time.time() - process_start()),
            "num_envs": sum(len(slice_.env_indices) for slice_ in self.slices),
            "seconds": self.clock.seconds,
            "fault": self._fault,
        }

    def _describe(self, error: BaseException, when: str = "") -> Fault:
        place = f"{self._place}{when}"
        what = str(error) if isinstance(error, RolloutError) else f"{type(error).__name__}: {error}"
        code = error.exit_code if isinstance(error, RolloutError) else EnvError.exit_code
        cause = error.__cause__ if isinstance(error, RolloutError) else error
        stack = "" if cause is None or isinstance(error, DataError) else "".join(traceback.format_exception(cause))
        return Fault(f"{place}: {what}", stack, code, type(error).__name__)

    def _begin_grace(self) -> None:
        self._watch = threading.Timer(GRACE_S, self._tell_and_abort)
        self._watch.daemon = True
        self._watch.start()

    def _end_grace(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def _tell_and_abort(self) -> None:
        fault = self._fault
        os.write(2, f"{fault.stack}mpi_rollout: {fault.message}\n".encode(errors="backslashreplace"))
        abort(self.exchanges.control, fault.exit_code)

    def close(self) -> None:
        """Close the envs.  The run is over and its data are safe: an env that cannot close is only told of."""
        for slice_ in self.slices:
            self._active = slice_
            try:
                slice_.envs.close()
            except (Exception, SystemExit, EnvTimeout) as error:
                place = f"rank {self.rank} ({os.uname().nodename})"
                os.write(2, f"mpi_rollout: {place}: closing its envs: {type(error).__name__}: {error}\n".encode())
            self._active = None
        if self._watchdog is not None:
            self._watchdog.close()


@contextmanager
def unwatched_by_gc() -> Iterator[None]:
    """Have the garbage collector look no more at what there is: envs live as long as the run."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # Else they would not be freed at the end, which extension modules complain of.
