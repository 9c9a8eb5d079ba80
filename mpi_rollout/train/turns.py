"""When the envs of a connection may be called: whose turn it is, and what may come after what."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode

from mpi_rollout.envs.inputs import Options, Seeds, options_of_each
from mpi_rollout.exchange.orders import Command
from mpi_rollout.process.interrupts import Interrupts
from mpi_rollout.ranks.driver import Driver
from mpi_rollout.ranks.lanes import Lane, indices_of
from mpi_rollout.ranks.set_up import EnvFacts

if TYPE_CHECKING:
    from mpi4py import MPI


class RootEnd(Protocol):
    """A connection on the root: a `MPIVectorEnv`."""

    has_turn: bool

    def yield_turn(self, number: int, is_closing: bool) -> None:
        """Have the ranks await the orders of the connection with this number."""


Endpoint = Any  # Of a connection: a `RootEnd` on the root, a `Worker` elsewhere.


class Turns:
    """The open connections of a group of ranks, as each of these ranks has them.

    The ranks await the orders of one connection at a time.  When the root goes on with another connection, it says so
    by the one whose orders the ranks await.  So a single connection costs nothing more, and of several the one that has
    the turn is as quick.

    Attributes
    ----------
    open
        By number, the `MPIVectorEnv`s on the root, the `Worker`s elsewhere, in the order in which they were opened.
    holder
        The one whose orders the ranks await.
    entering
        The connection that is being opened on the root, while others are open.
    kept
        Contexts that the root leaves when all connections are closed.
    """

    def __init__(self, comm: "MPI.Intracomm"):
        self.comm = comm
        self.entering: Any = None
        self.kept = ExitStack()
        self.open: dict[int, Endpoint] = {}
        self.holder: Endpoint = None
        self._num_opened = 0

    def add(self, one: Endpoint) -> None:
        """Add a connection; the first has the turn.  On all ranks."""
        self._num_opened += 1
        self.open[self._num_opened] = one
        self.holder = self.holder or one

    def remove(self, one: Endpoint) -> None:
        """Forget a connection that had the turn and is closed; the last of the others has it then.  On all ranks."""
        self.open = {number: other for number, other in self.open.items() if other is not one}
        self.holder = next(reversed(self.open.values()), None)

    def serve(self) -> int:
        """Obey the root's orders until all connections are closed; return the exit code of the last."""
        while True:
            command, code = self.holder.serve()
            if command == Command.SWITCH:
                self.holder = self.open[code]
                continue
            self.holder.exchanges.free()
            self.remove(self.holder)
            if not self.open:
                return code

    def give(self, envs: RootEnd, is_closing: bool = False) -> None:
        """Have the ranks await the orders of these envs, not those of the holder.  On the root.

        Raises
        ------
        AlreadyPendingCallError
            The envs of the connection that has the turn are stepping.
        """
        number = next(number for number, other in self.open.items() if other is envs)
        self.holder.yield_turn(number, is_closing)
        self.holder, envs.has_turn = envs, True

    def close(self, envs: RootEnd) -> None:
        """Forget envs that had the turn and are closed.  On the root."""
        self.remove(envs)
        if self.holder is None:
            self.kept.close()
        else:
            self.holder.has_turn = True


class CallState:
    """What may be called next, and errors for calls that may not.

    Parameters
    ----------
    arrived
        The lanes whose outcomes have come and not been received.

    Attributes
    ----------
    is_reset
        All envs have been reset since the last failure.
    ended
        The envs whose episodes have ended; only without autoreset.
    """

    def __init__(
        self, driver: Driver, facts: EnvFacts, mode: AutoresetMode, arrived: list[Lane], interrupts: Interrupts
    ):
        self._driver, self._arrived, self._interrupts = driver, arrived, interrupts
        self._is_native, self._has_autoreset = facts.is_native, mode != AutoresetMode.DISABLED
        self._enforces_order = facts.spec is not None and facts.spec.order_enforce  # Others may be stepped at once.
        self.is_reset = False
        self.ended = np.zeros(driver.num_envs, np.bool_)

    def note_ends(self, lanes: Sequence[Lane], ended: np.ndarray) -> None:
        """Note which envs of some lanes ended in their last step."""
        if not self._has_autoreset:
            self.ended[indices_of(lanes)] = ended

    def is_pending(self) -> bool:
        return bool(self._driver.under_way or self._arrived)

    def needs_reset(self) -> bool:
        return self._driver.has_fault or self._interrupts.is_broken

    def check_open(self, is_closed: bool) -> None:
        if is_closed:
            raise ClosedEnvironmentError("these envs are closed: the ranks have left; connect again for more")
        if self._interrupts.is_broken and self._driver.exchanges.division.num_ranks > 1:
            raise ClosedEnvironmentError("an exchange with the ranks was left half done; leave the with statement")

    def check_whole(self) -> None:
        if self.needs_reset():
            raise ResetNeeded("an env failed, or was interrupted during its step; call reset() to begin anew")

    def check_idle(self, what: str) -> None:
        if self.is_pending():
            raise AlreadyPendingCallError(f"{what} while envs are stepping; call recv() until all have come", what)

    def check_reset(self, seed: Seeds, mask: np.ndarray | None, options: Options) -> None:
        """Check the arguments of a reset."""
        options_of_each(options, self._driver.num_envs)
        lists = {"seeds": isinstance(seed, list), "options": isinstance(options, list), "reset_mask": mask is not None}
        for name, is_given in lists.items():
            if is_given and self._is_native:
                raise ValueError(f"natively vectorized envs are reset together, got {name} for each; give one for all")
        if mask is not None and not mask.any():
            raise ValueError("options['reset_mask'] must have at least one True, got none; leave it out to reset all")
        if mask is not None and not mask.all() and not self.is_reset:
            raise ResetNeeded("the first reset must be of all envs; reset without options['reset_mask'] first")

    def check_ready(self, lanes: Sequence[Lane]) -> None:
        """Check that the envs of these lanes wait for actions."""
        self.check_whole()
        if self._enforces_order and not self.is_reset:
            raise ResetNeeded("step before reset; call reset() first")
        for lane in lanes:
            if lane in self._driver.under_way or lane in self._arrived:
                raise AlreadyPendingCallError(
                    f"envs {lane.envs.start} to {lane.envs.stop - 1} have been sent actions and not been received; "
                    "call recv() between two sends",
                    "send",
                )
        if not self._has_autoreset and self.ended.any():
            self._check_running(lanes)

    def _check_running(self, lanes: Sequence[Lane]) -> None:
        ended = [int(index) for index in indices_of(lanes) if self.ended[index]]
        if ended:
            others = f" and {len(ended) - 1} more have" if ended[1:] else " has"
            raise ValueError(
                f"env {ended[0]}{others} ended and autoreset is disabled; reset {'them' if ended[1:] else 'it'} "
                'with reset(options={"reset_mask": terminations | truncations})'
            )
