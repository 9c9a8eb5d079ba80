"""What every rank does with an order: it steps its slice and fills its slot.  The root obeys its own orders too.

When an env fails, the rank marks its slot and stays in the exchange, so the root learns of the failure, and gets the
steps before it.  A trainer may then reset all envs and go on.  A run commits all whole steps and ends the job with the
cause.  If the root of a run does not do that in time (another rank may be in a long step), the rank reports the failure
and aborts the job by itself.
"""

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from types import FrameType

import numpy as np

from mpi_rollout.core.layout import FAULT, NOTED, UNDONE
from mpi_rollout.envs.env_group import EnvGroup
from mpi_rollout.errors import EnvError, RankLost, SignalInterrupt
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.exchanges import Exchanges
from mpi_rollout.exchange.job_end import abort, end_timeout_s
from mpi_rollout.exchange.orders import Command
from mpi_rollout.exchange.world import ROOT, rank_and_host
from mpi_rollout.policies.model import Model
from mpi_rollout.process.clock import Clock
from mpi_rollout.process.console import say
from mpi_rollout.process.exits import ends_forked
from mpi_rollout.process.interrupts import STOP_SIGNALS, Cut
from mpi_rollout.process.notices import NOTICES
from mpi_rollout.ranks.failures import Failures
from mpi_rollout.ranks.rank_control import EnvCalls, RankControl
from mpi_rollout.ranks.rank_policy import RankPolicy
from mpi_rollout.ranks.service import Address, Service, Services
from mpi_rollout.ranks.slices import Slice
from mpi_rollout.ranks.watchdog import CLOSE_LIMIT_S, CLOSE_NOTE_S, Watchdog, Work
from mpi_rollout.text import words_of


class Worker:
    """One rank's envs at the root's service: `slices`, in env order, for each exchange that it steps envs for.

    Messages call it `rank`, its number in the job; `env_group` are the ranks that make each of these envs together.
    The root can call `control`, `env_calls`, `policy` and the `services` that are given here.  With
    `aborts_if_unheard`, the job ends if the root does not learn of a failure soon.
    """

    def __init__(
        self,
        exchanges: Exchanges,
        slices: list[Slice],
        model: Model | None = None,
        rank: int = ROOT,
        services: Iterable[Service] = (),
        clock: Clock | None = None,
        env_group: EnvGroup | None = None,
        aborts_if_unheard: bool = False,
    ):
        self.exchanges, self.slices = exchanges, slices
        self.rank, self.env_group = rank, env_group
        self.clock = clock or Clock()
        ranges = [slice_.named_envs for slice_ in slices]
        envs = ", ".join(f"{indices.start} to {indices.stop - 1}" for indices in ranges) or "none"
        self._place = f"rank {self.rank} ({os.uname().nodename}, envs {envs})"
        self._slice_of = {slice_.exchange: slice_ for slice_ in slices}
        self.failures = Failures(self._place, exchanges, aborts_if_unheard)
        self.control = RankControl(rank, envs, exchanges, slices, self.failures, self.clock, env_group)
        self.env_calls = EnvCalls(slices)
        self.policy = RankPolicy(slices, model)
        self.services = Services((self.control, self.env_calls, self.policy, *services))
        self.stop_signal, self._stop_asked_at = 0, 0.0  # The signal by which somebody asked this rank to stop, or 0.
        self._on_stop: Callable[[int], None] = lambda signal: None  # Called at once then.
        self._active: Slice | None = None  # The slice whose envs are at work.
        self._watchdog: Watchdog | None = None

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

    def serve(self) -> int:
        """Obey the root's orders until one says stop; return the job's exit code, which comes with it."""
        self.clock.restart()
        while True:
            try:
                exchange = self.exchanges.receive_order()
                self.clock.lap("wait")
                command, code = exchange.order.command, exchange.order.argument
                self._answer(exchange, command)
            except RankLost:  # What the root ordered last is void.
                continue
            if command == Command.STOP:
                return code

    def _answer(self, exchange: Exchange, command: int) -> None:
        if command == Command.STOP:
            self.failures.end_grace()
            for other in self.exchanges.all:
                if other is not exchange:
                    other.receive_order()
            self.close(exchange.order.argument)
        elif command == Command.CALL:
            self.exchanges.control.gather(self.call_pickled(exchange.receive_bytes()))
            self.clock.lap("other")
        elif command == Command.LOAD:
            self.load_parameters(exchange.receive_bytes())
            self.clock.lap("other")
        else:
            arguments = () if command == Command.STEP else pickle.loads(exchange.receive_bytes().data)
            self.obey(exchange, arguments)
            exchange.send_slot()
            self.clock.lap("gather")

    def obey(
        self, exchange: Exchange, arguments: tuple[object, ...] = (), is_wanted: Callable[[], bool] | None = None
    ) -> None:
        """Fill this rank's slot as the order says.  Never raises: a failure is marked in the slot.

        `arguments` are for the `Slice` method that the command is for; a step has none.  A fragment ends early where
        `is_wanted` says that this rank has something else to do.
        """
        is_to_stop = self._is_to_stop if is_wanted is None else lambda: self._is_to_stop() or is_wanted()
        slice_, marks, num_rows = self._slice_of.get(exchange), exchange.own_marks, exchange.order.num_rows
        exchange.infos.forget()
        marks.fill(0)
        failed = self.failures.slices
        num_done = 0 if slice_ in failed else num_rows
        if slice_ is not None and slice_ not in failed:
            error = self._failure_of(slice_, slice_.do, exchange.order.command, arguments, is_to_stop)
            if error is not None:
                self.failures.note(error, slice_)
            for restart in slice_.restarts:
                self._say(restart)
            num_done = slice_.num_done
        if num_done < num_rows:
            marks[num_done:num_rows] = FAULT if slice_ in failed else UNDONE
        if slice_ not in failed and marks[num_done - 1] == 0:  # A mark says one thing: else a later one does.
            if self.stop_signal:
                marks[num_done - 1] = -self.stop_signal
            elif NOTICES.has_news:
                marks[num_done - 1], NOTICES.has_news = NOTED, False
        exchange.own_step_s[0] = self.clock.lap("step")
        if slice_ is not None:
            self.clock.move(slice_.asked_s, "step", "policy")
            slice_.asked_s = 0.0

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
            self.failures.note_loading(error, self.slices)

    def _is_to_stop(self) -> bool:
        return self.stop_signal != 0

    def call(self, address: Address, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
        """Call a method of a service; return its result, pickled, or a `Fault` if the method or the pickling fails."""
        return self._outcome(lambda: self.services.call(address, args, kwargs))

    def call_pickled(self, pickled: np.ndarray) -> bytes:
        """Do `call` with arguments as the root sends them; that they cannot be loaded is a `Fault` too."""
        return self._outcome(lambda: self.services.call(*pickle.loads(pickled.data)))

    def _outcome(self, call: Callable[[], object]) -> bytes:
        try:
            with ends_forked:
                return pickle.dumps(call())
        except BaseException as error:
            if is_stop(error) or isinstance(error, RankLost):
                raise
            return pickle.dumps(self.failures.of_call(error))

    def is_in_envs(self) -> bool:
        """Tell whether envs of this rank are at work: their step may be cut short, see `interrupts`."""
        return self.env_calls.is_under_way or self._active is not None

    def close(self, code: int = 0) -> None:
        """Close the envs, in a run within a time limit.  Its data are safe: an env that cannot close is reported.

        `code` is the job's exit code.
        """
        if self.failures.aborts_if_unheard and self._watchdog is None:
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
