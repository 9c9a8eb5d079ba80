"""What every rank does with an order: step its slice, fill its slot.  The root obeys its own orders too.

When an env fails, the rank does not leave: it marks its slot and stays in the exchange, so that the root learns of it
at the step where it happened.  A trainer may reset all envs then, and go on.  A run commits all that is whole, and ends
the job with the cause.  Should the root of a run not come to that in `GRACE_S` (another rank may be in the midst of a
long step), the rank tells and aborts by itself.
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

from mpi_rollout.core.clock import Clock
from mpi_rollout.core.deadline import process_start
from mpi_rollout.core.host import physical_cores, processor_time
from mpi_rollout.core.layout import FAULT, MASKED, RESTARTED
from mpi_rollout.errors import DataError, EnvError, RankLost, RolloutError, SignalInterrupt, message_of, words_of
from mpi_rollout.exchange.exchange import Command, Exchange, Exchanges
from mpi_rollout.exchange.job_end import abort, end_timeout_s
from mpi_rollout.process.console import say
from mpi_rollout.process.exits import ends_forked
from mpi_rollout.process.interrupts import STOP_SIGNALS, Cut
from mpi_rollout.ranks.slices import Slice
from mpi_rollout.ranks.watchdog import Watchdog, Work

GRACE_S = 1.5
CLOSE_LIMIT_S = 60.0  # An env may have a video to write.


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

    Attributes
    ----------
    aborts_if_unheard
        After a failure end the job, if the root does not learn of it soon.
    on_stop
        Called at once by the signal that asks this rank to stop.
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
        self.on_stop: Callable[[], None] = lambda: None
        self._slice_of = {slice_.exchange: slice_ for slice_ in slices}
        own = [self.report, self.call_envs, self.end_replay, self.begin_anew]
        self._methods = {method.__name__: method for method in own} | (methods or {})
        self.aborts_if_unheard = False
        self._is_calling = False
        self._fault: Fault | None = None
        self._watch: threading.Timer | None = None
        self._active: Slice | None = None  # Whose envs are at work.
        self._watchdog: Watchdog | None = None
        self._stop_asked_at = 0.0
        self._processor_time = processor_time()

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
        for number in STOP_SIGNALS:
            signal.signal(number, self._ask_to_stop)
        if asked:
            self._ask_to_stop(asked[0], None)

    def _ask_to_stop(self, number: int, _frame: Any) -> None:
        if self._stop_asked_at and monotonic() - self._stop_asked_at > 1.0:
            raise SignalInterrupt
        self._stop_asked_at = self._stop_asked_at or monotonic()
        self.stop_signal = number
        self.on_stop()

    def watch(self, timeout_s: float | None) -> None:
        """Have a call of an env that takes longer interrupted, or else the job ended; None is no limit."""
        if timeout_s is not None:
            self._watchdog = Watchdog(self._at_work, timeout_s, self._say, self._give_up)

    def _at_work(self) -> Work | None:
        active = self._active
        return None if active is None else active.at_work()

    def _say(self, what: str) -> None:
        say(f"mpi_rollout: {self._place}, {what}\n")

    def _give_up(self, why: str) -> None:
        self._say(why)
        abort(self.exchanges.control, EnvError.exit_code)

    def serve(self) -> tuple[int, int]:
        """Obey orders until the root says stop, or switch to another connection; return this last order and its code.

        For all ranks but the root.
        """
        self.clock.restart()
        while True:
            try:
                return self._serve()
            except RankLost:  # What the root ordered last is void.
                continue

    def _serve(self) -> tuple[int, int]:
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
                return command, code
            if command == Command.SWITCH:
                exchange.messages.listen()
                return command, code
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
            step = slice_.num_steps
            try:
                self._active = slice_
                with ends_forked:
                    slice_.do(command, arguments)
                faults = slice_.take_faults()
                self._active = None  # From here on nothing is cut any more, see `interrupts`.
            except BaseException as error:
                self._active = None
                if is_stop(error):
                    raise
                self._fault = self._describe(error, f", step {slice_.num_steps}")
                exchange.put_infos({})  # Those of an earlier step are not to be sent again.
                if self.aborts_if_unheard:
                    self._begin_grace()
            for _, message, times in faults:
                self._say(f"step {step}: {message}; {times}")
        mark = RESTARTED if faults and slice_.has_told else -self.stop_signal
        if mark == 0 and slice_ is not None and slice_.masks is not None and slice_.masks.places:
            mark = MASKED
        exchange.own_mark[0] = mark if self._fault is None else FAULT
        exchange.own_step_s[0] = self.clock.lap("step")

    def call(self, name: str, *args: Any) -> bytes:
        """Run one of `methods`; return what it returns, pickled, or a `Fault` if it fails or that cannot be."""
        try:
            with ends_forked:
                return pickle.dumps(self._methods[name](*args))
        except BaseException as error:
            if is_stop(error) or isinstance(error, RankLost):
                raise
            return pickle.dumps(self._describe(error))

    def call_envs(self, method: str, *args: Any) -> dict[int, Any]:
        """Call `call_some`, `set_some` or `render` of all slices; return results by env index."""
        found: dict[int, Any] = {}
        try:
            self._is_calling = True
            for slice_ in self.slices:
                found |= getattr(slice_, method)(*args) or {}
        finally:
            self._is_calling = False
        return found

    def is_in_envs(self) -> bool:
        """Whether envs of this rank are at work: what they do may be cut short, see `interrupts`."""
        return self._is_calling or self._active is not None

    def begin_anew(self) -> None:
        """Forget a failure: all envs will be reset."""
        self._end_grace()
        self._fault = None

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
            "physical_cores": sorted(physical_cores(os.sched_getaffinity(0))),
            "cpu_share": time.process_time() / (time.time() - process_start()),
            "core_share": self._core_share(),
            "num_envs": sum(len(slice_.env_indices) for slice_ in self.slices),
            "seconds": self.clock.seconds,
            "fault": self._fault,
        }

    def _core_share(self) -> float | None:
        """Of a core, what this rank had whenever it had something to do; None where the system does not say."""
        before, now = self._processor_time, processor_time()
        return None if before is None or now is None else now.since(before).share

    def _describe(self, error: BaseException, when: str = "") -> Fault:
        place = f"{self._place}{when}"
        what = "interrupted amid its step" if isinstance(error, Cut) else message_of(error)
        if not isinstance(error, RolloutError | Cut):
            what = words_of(error)
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
        say(f"{fault.stack}mpi_rollout: {fault.message}\n")
        abort(self.exchanges.control, fault.exit_code)

    def close(self) -> None:
        """Close the envs.  The run is over and its data are safe: an env that cannot close is only told of.

        In a run there is a limit for it, as there is for all that is left to do at its end.
        """
        if self.aborts_if_unheard and self._watchdog is None:
            self.watch(end_timeout_s(CLOSE_LIMIT_S))
        for slice_ in self.slices:
            self._active = slice_
            try:
                with ends_forked:
                    slice_.envs.close()
            except BaseException as error:
                if is_stop(error):
                    raise
                place = f"rank {self.rank} ({os.uname().nodename})"
                say(f"mpi_rollout: {place}: closing its envs: {words_of(error)}\n")
            self._active = None
        if self._watchdog is not None:
            self._watchdog.close()


def is_stop(error: BaseException) -> bool:
    """Whether a signal ends the whole run, and not just the call of an env that it came amid."""
    return isinstance(error, SignalInterrupt) and not isinstance(error, Cut)


@contextmanager
def unwatched_by_gc() -> Iterator[None]:
    """Have the garbage collector look no more at what there is: envs live as long as the run."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # Else they would not be freed at the end, which extension modules complain of.
