"""The root's end of a connection: what may be called next, and how the other ranks are let out."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode

from mpi_rollout.drive.driver import Driver, Lane
from mpi_rollout.drive.lanes import indices_of
from mpi_rollout.envs.inputs import Options, Seeds, one_for_each
from mpi_rollout.errors import as_argument
from mpi_rollout.process.interrupts import Interrupts
from mpi_rollout.ranks.set_up import EnvFacts

if TYPE_CHECKING:
    from mpi_rollout.train.recorder import Recorder  # Imports h5py: a worker's imports are the job's start-up time.

LEAVE_S = 5.0  # The time that ranks, and calls of other threads, have to end when a trainer leaves.
Kind = TypeVar("Kind")
P = ParamSpec("P")
R = TypeVar("R")


class RootEnd:
    """The root's end of a connection.

    `until_closed` are contexts that are left when the other ranks are let out; None where there are no other ranks.
    """

    def __init__(
        self,
        driver: Driver,
        facts: EnvFacts,
        mode: AutoresetMode,
        interrupts: Interrupts,
        until_closed: ExitStack | None = None,
    ):
        self._driver, self.interrupts, self._until_closed = driver, interrupts, until_closed
        self._is_native, self._has_autoreset = facts.is_native, mode != AutoresetMode.DISABLED
        self._enforces_order = facts.spec is not None and facts.spec.order_enforce  # Others may be stepped at once.
        self.is_closed = self._is_unwatched = False
        self.recorder: Recorder | None = None
        self.arrived: list[Lane] = []  # Their slots have come; the trainer has not received them.
        self.fragments: set[Lane] = set()  # They have been sent a fragment, which the trainer has not received.
        self.is_reset = False  # All envs have been reset since the last failure.
        self.ended = np.zeros(driver.num_envs, np.bool_)  # Without autoreset, the envs whose episodes have ended.

    def begin_recording(self, recorder: "Recorder") -> None:
        """Store from now on what the envs show; before the first reset."""
        self.recorder = recorder

    def note_reset(self, mask: np.ndarray | None) -> None:
        """Note a reset of the envs of a mask; None is all."""
        self.is_reset = True
        self.ended[slice(None) if mask is None else mask] = False

    def note_ends(self, lanes: Sequence[Lane], ended: np.ndarray) -> None:
        """Note which envs of some lanes ended in their last step."""
        if not self._has_autoreset:
            self.ended[indices_of(lanes)] = ended

    @property
    def _is_pending(self) -> bool:
        """Whether some envs have been sent actions and not been received."""
        return bool(self._driver.under_way or self.arrived)

    def _drop(self) -> None:
        """Drop what is under way: from now on all envs must be reset."""
        self.is_reset = False
        self.fragments.clear()
        self.arrived.clear()
        self._driver.drain(is_void=True)

    def check_open(self) -> None:
        """Raise ClosedEnvironmentError where no rank would answer."""
        if self.is_closed:
            raise ClosedEnvironmentError("these envs are closed: the ranks have left; connect again for more")
        if self.interrupts.is_broken and self._driver.exchanges.division.num_ranks > 1:
            raise ClosedEnvironmentError("an exchange with the ranks was left half done; leave the with statement")

    def _check_whole(self) -> None:
        self.check_open()
        if self._driver.has_fault or self.interrupts.is_broken:
            raise ResetNeeded("an env failed, or was interrupted during its step; call reset() to begin anew")

    def check_idle(self, what: str) -> None:
        """Raise AlreadyPendingCallError where envs are stepping."""
        self.check_open()
        if self._is_pending:
            under_way = "envs are stepping; call recv() until all have come"
            if self.fragments:
                under_way = "a fragment is under way; call collect_wait()"
            raise AlreadyPendingCallError(f"{what} while {under_way}", what)

    def check_ready(self, lanes: Sequence[Lane], what: str) -> None:
        """Check that the envs of these lanes wait for actions, and that no fragment is under way."""
        self._check_whole()
        if self._driver.under_way or self.arrived:
            if self.fragments:
                self.check_idle(what)
            for lane in lanes:
                if lane in self._driver.under_way or lane in self.arrived:
                    raise AlreadyPendingCallError(
                        f"{_named(lane)} have been sent actions and not been received; call recv() between two sends",
                        "send",
                    )
        self._check_begun(lanes)

    def check_ready_for_fragment(self, lanes: Sequence[Lane], num_steps: object) -> None:
        """Check that the envs of these lanes wait for so many actions, and that other envs take no single step."""
        if not isinstance(num_steps, int | np.integer) or num_steps < 1:
            raise ValueError(f"num_steps must be an int of at least 1, got {repr(num_steps)[:40]}")
        self._check_whole()
        if not self.fragments or any(lane in self.fragments for lane in lanes):
            self.check_idle("collect_async")
        self._check_begun(lanes)

    def _check_begun(self, lanes: Sequence[Lane]) -> None:
        if not self.is_reset and (self._enforces_order or self.recorder is not None):
            why = "" if self.recorder is None else ": a recording needs the first observations"
            raise ResetNeeded(f"step before reset{why}; call reset() first")
        if self._has_autoreset or not self.ended.any():
            return
        if ended := [int(index) for index in indices_of(lanes) if self.ended[index]]:
            others = f" and {len(ended) - 1} more have" if ended[1:] else " has"
            raise ValueError(
                f"env {ended[0]}{others} ended and autoreset is disabled; reset {'them' if ended[1:] else 'it'} "
                'with reset(options={"reset_mask": terminations | truncations})'
            )

    def check_sent(self, what: str) -> None:
        """Check that a step can be received."""
        self._check_whole()
        if not self._is_pending:
            raise NoAsyncCallError(f"{what} without send; call send(actions) first", what)
        if self.fragments:
            self.check_idle(what)

    def check_sent_fragments(self, what: str, lanes: Sequence[Lane] = ()) -> None:
        """Check that fragments can be received, of each of these lanes."""
        self._check_whole()
        if not self.fragments:
            raise NoAsyncCallError(f"{what} without collect_async; call collect_async first", what)
        if absent := [lane for lane in lanes if lane not in self.fragments]:
            raise NoAsyncCallError(
                f"{what}, and {_named(absent[0])} have no fragment under way; call collect_some()", what
            )

    def prepare_reset(self) -> None:
        """See that envs can be reset; after a failure or an interrupt, drop what is under way."""
        self.check_open()
        is_broken = self._driver.has_fault or self.interrupts.is_broken
        if is_broken or (self.interrupts.has_interrupted and self._is_pending):
            self._drop()
            self._driver.begin_anew()
            self.interrupts.forget()
        self.check_idle("reset")

    def check_reset(self, seed: Seeds, mask: np.ndarray | None, options: Options) -> None:
        """Check the arguments of a reset."""
        one_for_each("options", options, self._driver.num_envs)
        lists = {"seeds": isinstance(seed, list), "options": isinstance(options, list), "reset_mask": mask is not None}
        for name, is_given in lists.items():
            if is_given and self._is_native:
                raise ValueError(f"natively vectorized envs are reset together, got {name} for each; give one for all")
        if mask is not None and not mask.any():
            raise ValueError("options['reset_mask'] must have at least one True, got none; leave it out to reset all")
        if mask is not None and not mask.all() and not self.is_reset:
            raise ResetNeeded("the first reset must be of all envs; reset without options['reset_mask'] first")

    def service(self, kind: type[Kind]) -> Kind:
        """Return the root's own object of a service, whose methods `ask` takes."""
        return self._driver.service(kind)

    def ask(self, what: str, method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Call a method of a service on every rank, see `Driver.call_ranks`; messages call the call `what`."""
        with self.interrupts:
            self.check_idle(what)
            return self._driver.call_ranks(method, *args, **kwargs)

    def say_notices(self) -> None:
        """Say what the ranks have noted about their envs, if no envs are stepping; else that waits."""
        if not self._is_pending:
            self._driver.say_notices(as_argument)

    def finish_recording(self) -> None:
        """Complete the file of `record`, if there is one; StorageError if it cannot be written."""
        if self.recorder is not None:
            with self.interrupts:
                self._finish_recording()

    def _finish_recording(self) -> None:
        if self.recorder is not None:
            self.recorder.finish()

    def close(self, code: int) -> None:
        """Let the other ranks out of `connect`, once, with the job's exit code.

        In one process, AlreadyPendingCallError if a call of another thread does not end in time; with several ranks the
        end of the with statement ends the job then.
        """
        if self._until_closed is None and not self.interrupts.are_free_within(LEAVE_S):
            raise AlreadyPendingCallError(
                f"close while another thread's call has been under way for {LEAVE_S:g} s; let that thread end first",
                "close",
            )
        try:
            with self.interrupts:
                if self.is_closed:
                    return
                try:
                    self._finish_recording()
                finally:
                    self._let_out(code)
        finally:
            if self.is_closed and not self._is_unwatched:
                self._is_unwatched = True
                self.interrupts.close()

    def _let_out(self, code: int) -> None:
        self.is_closed = True  # Also if a handler of the program raises at the end of this: all is done then.
        try:
            self._say_last_notices()
        finally:
            self._driver.stop(code)
            self._driver.exchanges.free()
            if self._until_closed is not None:
                self._until_closed.close()

    def _say_last_notices(self) -> None:
        """Say what nobody could be asked for while some envs were always stepping."""
        if self.interrupts.is_broken:
            return
        self._driver.drain(is_void=True)
        if self._driver.has_notices:
            self._driver.say_notices(as_argument)


def _named(lane: Lane) -> str:
    return f"envs {lane.envs.start} to {lane.envs.stop - 1}"
