"""What every rank does with an order: it steps its slice and fills its slot.  The root obeys its own orders too.

When an env fails, the rank marks its slot and stays in the exchange, so the root learns of the failure, and gets the
steps before it.  A trainer may then reset all envs and go on.  A run commits all whole steps and ends the job with the
cause.  If the root of a run does not do that in time (another rank may be in a long step), the rank reports the failure
and aborts the job by itself.
"""

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import FrameType
from typing import TypeAlias

import numpy as np

from mpi_rollout.core.layout import FAULT, NOTED, UNDONE
from mpi_rollout.envs.env_group import EnvGroup
from mpi_rollout.errors import EnvError, Fault, PolicyError, RankError, RankLost, SignalInterrupt, as_flag, cause_of
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.exchanges import Exchanges
from mpi_rollout.exchange.job_end import abort, end_timeout_s
from mpi_rollout.exchange.orders import Command
from mpi_rollout.exchange.world import ROOT, rank_and_host
from mpi_rollout.policies.model import Model
from mpi_rollout.process.clock import Clock, now_s, process_start
from mpi_rollout.process.console import say
from mpi_rollout.process.exits import ends_forked
from mpi_rollout.process.host import physical_cores, processor_quota, processor_time
from mpi_rollout.process.interrupts import STOP_SIGNALS, Cut
from mpi_rollout.process.notices import NOTICES, Text
from mpi_rollout.ranks.rank_policy import RankPolicy
from mpi_rollout.ranks.slices import Slice
from mpi_rollout.ranks.watchdog import CLOSE_LIMIT_S, CLOSE_NOTE_S, Watchdog, Work
from mpi_rollout.text import words_of

ROOT_HEARS_S = 1.5  # The root has so long to hear of a failure; then this rank says it and ends the job.
Method: TypeAlias = Callable[..., object]


class Worker:
    """One rank's envs at the root's service: `slices`, in env order, for each exchange that it steps envs for.

    Messages call it `rank`, its number in the job.
    """

    def __init__(self, exchanges: Exchanges, slices: list[Slice], model: Model | None = None, rank: int = ROOT):
        self.exchanges, self.slices, self.policy = exchanges, slices, RankPolicy(slices, model)
        self.rank, self.clock = rank, Clock()
        ranges = [slice_.named_envs for slice_ in slices]
        self._envs = ", ".join(f"{indices.start} to {indices.stop - 1}" for indices in ranges) or "none"
        self._place = f"rank {self.rank} ({os.uname().nodename}, envs {self._envs})"
        self._slice_of = {slice_.exchange: slice_ for slice_ in slices}
        own: tuple[Method, ...] = (
            self.report,
            self.notices,
            self.call_envs,
            self.end_replay,
            self.begin_anew,
            self.make_room,
        )
        # What the root may call by name on all ranks.
        self.methods: dict[str, Method] = {method.__name__: method for method in own + self.policy.methods}
        self.stop_signal, self._stop_asked_at = 0, 0.0  # The signal by which somebody asked this rank to stop, or 0.
        self._on_stop: Callable[[int], None] = lambda signal: None  # Called at once then.
        self.is_wanted: Callable[[], bool] = lambda: False  # Something else is due: a fragment is to end here.
        self.aborts_if_unheard = False  # After a failure, end the job if the root does not learn of it soon.
        self.error: BaseException | None = None  # What user code raised here in the last failure.
        self._fault: Fault | None = None  # The earliest, where slices of several exchanges have failed.
        self._failed: set[Slice | None] = set()  # They are stepped no more; None is for exchanges without a slice.
        self.env_group: EnvGroup | None = None  # The ranks that make each of these envs together.
        self._grace = threading.Timer(ROOT_HEARS_S, lambda: None)
        self._active: Slice | None = None  # The slice whose envs are at work.
        self._is_calling = False
        self._watchdog: Watchdog | None = None
        self._processor_time = processor_time()

    def stop_on_signals(self, asked: Sequence[int], on_stop: Callable[[int], None]) -> None:
        """End the run between two steps at SIGINT, SIGTERM or SIGUSR1 on any rank, or at those that came before.

        `on_stop` is called with a signal that comes to this rank from now on, in its handler.  A second signal ends the
        run at once.  A signal marks the slot, so the root learns of it with the step's data.  Launchers deliver one
        Ctrl-C to several ranks, or twice to one: signals within a second are the same one.
        """
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._ask_to_stop)
        if asked:
            self._ask_to_stop(asked[0], None)
        if self.env_group is not None:  # Launchers signal all ranks: of several signals, the first counts.
            self.env_group.on_signal = lambda number: None if self.stop_signal else self._ask_to_stop(number, None)
        self._on_stop = on_stop

    def _ask_to_stop(self, number: int, _frame: FrameType | None) -> None:
        if self._stop_asked_at and time.monotonic() - self._stop_asked_at > 1.0:
            raise SignalInterrupt
        self._stop_asked_at = self._stop_asked_at or time.monotonic()
        self.stop_signal = number
        self._on_stop(number)

    def watch(self, timeout_s: float | None, note_s: float = inf) -> None:
        """Interrupt a call of an env that takes longer, or else end the job; None is no limit.

        After `note_s`, say once that a call is under way.
        """
        if timeout_s is not None:
            self._watchdog = Watchdog(self._at_work, timeout_s, self._say, self._give_up, note_s)

    def _at_work(self) -> Work | None:
        active = self._active  # Another thread asks.
        return None if active is None else active.at_work()

    def _say(self, what: str) -> None:
        say(f"mpi_rollout: {self._place}, {what}\n")

    def _give_up(self, why: str) -> None:
        self._say(why)
        abort(self.exchanges.control.comm, EnvError.exit_code)

    def serve(self) -> tuple[int, int]:
        """Obey the root's orders until one says stop or switches to another connection; return it and its code."""
        self.clock.restart()
        while True:
            try:
                exchange = self.exchanges.receive_order()
                self.clock.lap("wait")
                command, code = exchange.order.command, exchange.order.argument
                self._answer(exchange, command)
            except RankLost:  # What the root ordered last is void.
                continue
            if command in (Command.STOP, Command.SWITCH):
                return command, code

    def _answer(self, exchange: Exchange, command: int) -> None:
        if command == Command.STOP:
            self._grace.cancel()
            for other in self.exchanges.all:
                if other is not exchange:
                    other.receive_order()
            self.close(exchange.order.argument)
        elif command == Command.CALL:
            name, args = pickle.loads(exchange.receive_bytes().data)
            self.exchanges.control.gather(self.call(name, *args))
            self.clock.lap("other")
        elif command == Command.LOAD:
            self.load_parameters(exchange.receive_bytes())
            self.clock.lap("other")
        elif command != Command.SWITCH:
            arguments = () if command == Command.STEP else pickle.loads(exchange.receive_bytes().data)
            self.obey(exchange, arguments)
            exchange.send_slot()
            self.clock.lap("gather")

    def obey(self, exchange: Exchange, arguments: tuple[object, ...] = ()) -> None:
        """Fill this rank's slot as the order says.  Never raises: a failure is marked in the slot.

        `arguments` are for the `Slice` method that the command is for; a step has none.
        """
        slice_, marks, num_rows = self._slice_of.get(exchange), exchange.own_marks, exchange.order.num_rows
        exchange.infos.forget()
        marks.fill(0)
        num_done = 0 if slice_ in self._failed else num_rows
        if slice_ is not None and slice_ not in self._failed:
            error = self._failure_of(slice_, slice_.do, exchange.order.command, arguments, self._is_to_stop)
            if error is not None:
                self._note(error, slice_)
            for restart in slice_.restarts:
                self._say(restart)
            num_done = slice_.num_done
        if num_done < num_rows:
            marks[num_done:num_rows] = FAULT if slice_ in self._failed else UNDONE
        if slice_ not in self._failed and marks[num_done - 1] == 0:  # A mark says one thing: else a later one does.
            if self.stop_signal:
                marks[num_done - 1] = -self.stop_signal
            elif NOTICES.has_news:
                marks[num_done - 1], NOTICES.has_news = NOTED, False
        exchange.own_step_s[0] = self.clock.lap("step")
        if slice_ is not None:
            self.clock.move(slice_.asked_s, "step", "policy")
            slice_.asked_s = 0.0

    def _note(self, error: BaseException, slice_: Slice) -> None:
        """Note the failure of a slice, of which the root learns, or else the job ends."""
        self._failed.add(slice_)
        if self._fault is None or slice_.num_steps < self._fault.step:
            self._fault = Fault.of(error, f"{self._place}, step {slice_.num_steps}", slice_.num_steps)
            self.error = cause_of(error)
        if self.aborts_if_unheard:
            self._begin_grace(self._fault)

    def _failure_of(self, slice_: Slice | None, call: Callable[..., object], *args: object) -> BaseException | None:
        """Call code of others, the envs of a slice or the policy; return what it raised.

        Only the end of the whole run by a signal is raised.
        """
        try:
            self._active = slice_
            with ends_forked:
                call(*args)
            self._active = None  # From here on nothing is cut any more, see `interrupts`.
        except BaseException as error:
            self._active = None
            if is_stop(error):
                raise
            return error
        return None

    def load_parameters(self, buffer: np.ndarray) -> None:
        """Give the policy new parameters.  Never raises: if it fails, so do the next steps."""
        error = self._failure_of(None, self.policy.load_parameters, buffer)
        if error is not None:
            self._fault = Fault.of(PolicyError(f"policy: load: {words_of(error)}"), self._place)
            self._failed = {None, *self.slices}

    def _is_to_stop(self) -> bool:
        return self.stop_signal != 0 or self.is_wanted()

    def make_room(self, num_rows: int) -> None:
        """Make room in all slots for fragments of so many steps; for between two orders, on all ranks."""
        self.exchanges.make_room(num_rows)
        for slice_ in self.slices:
            slice_.use_slot()

    def call(self, name: str, *args: object) -> bytes:
        """Run one of `methods`; return its result, pickled, or a `Fault` if the method or the pickling fails."""
        try:
            with ends_forked:
                return pickle.dumps(self.methods[name](*args))
        except BaseException as error:
            if is_stop(error) or isinstance(error, RankLost):
                raise
            self.error = cause_of(error)
            return pickle.dumps(Fault.of(error, self._place))

    def call_envs(self, method: str, *args: object) -> dict[int, object]:
        """Call `call_some`, `set_some` or `render` of all slices; return results by env index."""
        results: dict[int, object] = {}
        try:
            self._is_calling = True
            for slice_ in self.slices:
                results |= getattr(slice_, method)(*args) or {}
        finally:
            self._is_calling = False
        return results

    def is_in_envs(self) -> bool:
        """Tell whether envs of this rank are at work: their step may be cut short, see `interrupts`."""
        return self._is_calling or self._active is not None

    def begin_anew(self) -> None:
        """Forget a failure, before all envs are reset."""
        self._grace.cancel()
        self._fault = self.error = None
        self._failed.clear()

    def end_replay(self, lost: Sequence[int]) -> None:
        """Go on from where the run was, see `Slice.end_replay`."""
        for slice_ in self.slices:
            slice_.end_replay(lost)

    def report(self) -> dict[str, object]:
        """Return this rank's facts for the user.  The root asks for them, so it is in charge."""
        self._grace.cancel()
        before, now = self._processor_time, processor_time()
        return {
            "rank": self.rank,
            "host": os.uname().nodename,
            "cores": sorted(os.sched_getaffinity(0)),
            "physical_cores": sorted(physical_cores(os.sched_getaffinity(0))),
            "quota": processor_quota(),
            "cpu_share": time.process_time() / (now_s() - process_start()),
            # The share of a core that this rank had while it had work; None where the system does not say.
            "core_share": None if before is None or now is None else now.since(before).share,
            "num_envs": sum(len(slice_.env_indices) for slice_ in self.slices),
            "seconds": self.clock.seconds,
            "fault": self._fault,
            "notices": NOTICES.held,
        } | ({} if self.env_group is None else {"envs": self._envs, "env_ranks": [*self.env_group.ranks]})

    def notices(self) -> Mapping[Text, str]:
        """Return what this rank has to say about its envs."""
        return NOTICES.held

    def _begin_grace(self, fault: Fault) -> None:
        def end() -> None:
            say(f"{fault.stack}mpi_rollout: {RankError(fault, 1).shown(as_flag)}\n")
            abort(self.exchanges.control.comm, fault.exit_code)

        self._grace.cancel()
        others_ms = max(exchange.order.expected_ms for exchange in self.exchanges.all)  # The time of their fragments.
        self._grace = threading.Timer(ROOT_HEARS_S + 2 * others_ms / 1000, end)
        self._grace.daemon = True
        self._grace.start()

    def close(self, code: int = 0) -> None:
        """Close the envs, in a run within a time limit.  Its data are safe: an env that cannot close is reported.

        `code` is the job's exit code.
        """
        if self.aborts_if_unheard and self._watchdog is None:
            self.watch(end_timeout_s(CLOSE_LIMIT_S), CLOSE_NOTE_S)
        for slice_ in self.slices:
            error = self._failure_of(slice_, slice_.envs.close)
            if error is not None:
                say(f"mpi_rollout: {rank_and_host(self.rank)}: closing its envs: {words_of(error)}\n")
        if self._watchdog is not None:
            self._watchdog.close()
        if self.env_group is not None:
            self.env_group.let_go(code)


def is_stop(error: BaseException) -> bool:
    """Tell whether a signal ends the whole run, and not just the call of an env that is under way."""
    return isinstance(error, SignalInterrupt) and not isinstance(error, Cut)
