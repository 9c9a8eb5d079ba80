"""What every rank does with an order: step its slice, fill its slot.  The root obeys its own orders too.

When an env fails, the rank does not leave: it marks its slot and stays in the exchange, so that the root learns of
it at the step where it happened, commits all that is whole, and ends the job with the cause.  Should the root not
come to that in `GRACE_S` (another rank may be in the midst of a long step), the rank tells and aborts by itself.
"""

import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from gymnasium.vector import VectorEnv

from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import DataError, EnvError, RolloutError
from mpi_rollout.exchange import FAULT, Command, Exchange
from mpi_rollout.layout import RESULTS
from mpi_rollout.mpi import abort
from mpi_rollout.timing import Clock

GRACE_S = 1.5


@dataclass(frozen=True)
class Fault:
    """Why a rank failed, as text: exceptions of user code need not survive pickling."""

    message: str
    stack: str
    exit_code: int


class Worker:
    """One rank's envs at the root's service.

    Parameters
    ----------
    envs
        None on a rank without envs.  A `LoopVectorEnv` writes straight into the slot, others are copied there.
    reset_seed
        What `envs.reset` is given at the run's start.
    methods
        What the root may call by name on all ranks.
    """

    def __init__(
        self,
        exchange: Exchange,
        envs: VectorEnv | None,
        reset_seed: int | None = None,
        methods: dict[str, Callable[..., Any]] | None = None,
    ):
        self.exchange = exchange
        self.envs = envs
        if isinstance(envs, LoopVectorEnv):
            envs.write_to(exchange.slot)
        self.clock = Clock()
        self._reset_seed = reset_seed
        self._methods = {"report": self.report, **(methods or {})}
        self._num_steps = 0
        self._fault: Fault | None = None
        self._watch: threading.Timer | None = None
        self._stop_asked_at = 0.0

    def stop_on_signals(self) -> None:
        """Have SIGINT and SIGTERM, to whatever rank, end the run between two steps; asked again, end it at once.

        A signal marks the slot, so the root learns of it with the step's data.  Launchers deliver one Ctrl-C to
        several ranks, or twice to one: what comes within a second is the same one.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask_to_stop)

    def _ask_to_stop(self, number: int, _frame: Any) -> None:
        if self._stop_asked_at and monotonic() - self._stop_asked_at > 1.0:
            raise KeyboardInterrupt
        self._stop_asked_at = self._stop_asked_at or monotonic()
        self.exchange.own_mark[0] = self.exchange.own_mark[0] or -number

    def serve(self) -> int:
        """Obey orders until the root says stop; return the exit code that it gives.  For all ranks but the root."""
        self.clock.restart()
        while True:
            command, code = self.exchange.await_order()
            self.clock.lap("wait")
            self._end_grace()
            if command == Command.STOP:
                self.close()
                return code
            if command == Command.CALL:
                name, args = self.exchange.spread()
                self.exchange.collect(self.call(name, *args))
                self.clock.lap("other")
            else:
                self.obey(command)
                self.exchange.post_slot()
                self.clock.lap("gather")

    def obey(self, command: int) -> None:
        """Fill this rank's slot as the order says.  Never raises: a failure is marked in the slot."""
        if self._fault is None and self.envs is not None:
            try:
                self._fill(self.envs.reset(seed=self._reset_seed)[:1] if command == Command.RESET else self._step())
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                self._fault = self._describe(error)
                self.exchange.own_mark[0] = FAULT
                self._begin_grace()
        self.exchange.own_step_s[0] = self.clock.lap("step")

    def _step(self) -> tuple[Any, ...]:
        self._num_steps += 1
        return self.envs.step(self.exchange.actions)[:4]

    def _fill(self, outputs: tuple[Any, ...]) -> None:
        """Copy what a slice has not written into the slot by itself."""
        slot = self.exchange.slot
        if outputs[0] is slot.observations:
            return
        for leaf, column in zip(self.exchange.layout.columns[len(RESULTS) :], slot.observation_arrays, strict=True):
            part = leaf.of(outputs[0])
            if part.shape != column.shape or part.dtype != column.dtype:
                raise DataError(
                    f"envs {self.exchange.envs}: observation {leaf.path!r} should be {column.dtype} of shape "
                    f"{column.shape}, got {part.dtype} of shape {part.shape}"
                )
            column[...] = part
        for column, values in zip(slot.results, outputs[1:], strict=False):
            column[...] = values

    def call(self, name: str, *args: Any) -> Any:
        """Run one of `methods`; a failure is returned as a `Fault`."""
        try:
            return self._methods[name](*args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._describe(error)

    def report(self) -> dict[str, Any]:
        """What this rank has to say at the end.  The root asks, so it is in charge."""
        self._end_grace()
        return {
            "rank": self.exchange.comm.rank,
            "host": os.uname().nodename,
            "num_envs": len(self.exchange.envs),
            "seconds": self.clock.seconds,
            "fault": self._fault,
        }

    def _describe(self, error: BaseException) -> Fault:
        envs, host = self.exchange.envs, os.uname().nodename
        place = f"rank {self.exchange.comm.rank} ({host}, envs {envs.start} to {envs.stop - 1}), step {self._num_steps}"
        what = str(error) if isinstance(error, RolloutError) else f"{type(error).__name__}: {error}"
        code = error.exit_code if isinstance(error, RolloutError) else EnvError.exit_code
        cause = error.__cause__ if isinstance(error, RolloutError) else error
        stack = "" if cause is None or isinstance(error, DataError) else "".join(traceback.format_exception(cause))
        return Fault(f"{place}: {what}", stack, code)

    def _begin_grace(self) -> None:
        self._watch = threading.Timer(GRACE_S, self._tell_and_abort)
        self._watch.daemon = True
        self._watch.start()

    def _end_grace(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def _tell_and_abort(self) -> None:
        fault = self._fault
        os.write(2, f"{fault.stack}mpi_rollout: {fault.message}\n".encode())
        abort(self.exchange.comm, fault.exit_code)

    def close(self) -> None:
        """Close the envs.  The run is over and its data are safe: an env that cannot close is only told of."""
        try:
            if self.envs is not None:
                self.envs.close()
        except Exception as error:
            place = f"rank {self.exchange.comm.rank} ({os.uname().nodename})"
            os.write(2, f"mpi_rollout: {place}: closing its envs: {type(error).__name__}: {error}\n".encode())
