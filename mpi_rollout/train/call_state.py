"""What of a trainer's envs may be called next, and errors for calls that may not."""

from collections.abc import Sequence

import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode

from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.lanes import Lane, indices_of
from mpi_rollout.envs.inputs import Options, Seeds, options_of_each
from mpi_rollout.process.interrupts import Interrupts
from mpi_rollout.ranks.set_up import EnvFacts


class CallState:
    """What the envs wait for.

    Attributes
    ----------
    arrived
        The lanes whose slots have come, and which the trainer has not received.
    fragments
        The lanes that have been sent a fragment, and have not been received.
    is_reset
        All envs have been reset since the last failure.
    ended
        The envs whose episodes have ended; only without autoreset.
    """

    def __init__(self, driver: Driver, facts: EnvFacts, mode: AutoresetMode, interrupts: Interrupts):
        self._driver, self._interrupts = driver, interrupts
        self.arrived: list[Lane] = []
        self.fragments: set[Lane] = set()
        self._is_native, self._has_autoreset = facts.is_native, mode != AutoresetMode.DISABLED
        self._enforces_order = facts.spec is not None and facts.spec.order_enforce  # Others may be stepped at once.
        self.is_reset = False
        self.ended = np.zeros(driver.num_envs, np.bool_)

    def note_reset(self, mask: np.ndarray | None) -> None:
        """Note a reset of the envs of a mask; None is all."""
        self.is_reset = True
        self.ended[slice(None) if mask is None else mask] = False

    def note_ends(self, lanes: Sequence[Lane], ended: np.ndarray) -> None:
        """Note which envs of some lanes ended in their last step."""
        if not self._has_autoreset:
            self.ended[indices_of(lanes)] = ended

    def is_pending(self) -> bool:
        """Tell whether some envs have been sent actions and not been received."""
        return bool(self._driver.under_way or self.arrived)

    def drop(self) -> None:
        """Forget what is under way: from now on all envs must be reset."""
        self.is_reset = False
        self.fragments.clear()
        self.arrived.clear()

    def needs_reset(self) -> bool:
        """Tell whether an env failed, or its step was interrupted, and all envs must be reset."""
        return self._driver.has_fault or self._interrupts.is_broken

    def needs_new_beginning(self) -> bool:
        """Tell whether a reset must drop what is under way: after a failure or an interrupt."""
        return self.needs_reset() or (self._interrupts.has_interrupted and self.is_pending())

    def check_open(self, is_closed: bool) -> None:
        """Raise ClosedEnvironmentError where no rank would answer."""
        if is_closed:
            raise ClosedEnvironmentError("these envs are closed: the ranks have left; connect again for more")
        if self._interrupts.is_broken and self._driver.exchanges.division.num_ranks > 1:
            raise ClosedEnvironmentError("an exchange with the ranks was left half done; leave the with statement")

    def check_whole(self) -> None:
        """Raise ResetNeeded where nothing can come before a reset."""
        if self.needs_reset():
            raise ResetNeeded("an env failed, or was interrupted during its step; call reset() to begin anew")

    def check_idle(self, what: str) -> None:
        """Raise AlreadyPendingCallError where envs are stepping."""
        if self.is_pending():
            under_way = "envs are stepping; call recv() until all have come"
            if self.fragments:
                under_way = "a fragment is under way; call collect_wait()"
            raise AlreadyPendingCallError(f"{what} while {under_way}", what)

    def check_sent(self, what: str) -> None:
        """Check that a step can be received."""
        self.check_whole()
        if not self.is_pending():
            raise NoAsyncCallError(f"{what} without send; call send(actions) first", what)
        if self.fragments:
            self.check_idle(what)

    def check_sent_fragments(self, what: str, lanes: Sequence[Lane] = ()) -> None:
        """Check that fragments can be received, of each of these lanes."""
        self.check_whole()
        if not self.fragments:
            raise NoAsyncCallError(f"{what} without collect_async; call collect_async first", what)
        if absent := [lane for lane in lanes if lane not in self.fragments]:
            envs = absent[0].envs
            raise NoAsyncCallError(
                f"{what}, and envs {envs.start} to {envs.stop - 1} have no fragment under way; call collect_some()",
                what,
            )

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

    def check_ready(self, lanes: Sequence[Lane], what: str) -> None:
        """Check that the envs of these lanes wait for actions, and that no fragment is under way."""
        self.check_whole()
        if self._driver.under_way or self.arrived:
            if self.fragments:
                self.check_idle(what)
            self._check_received(lanes)
        self._check_begun(lanes)

    def check_ready_for_fragment(self, lanes: Sequence[Lane], num_steps: object) -> None:
        """Check that the envs of these lanes wait for so many actions, and that other envs take no single step."""
        if not isinstance(num_steps, int | np.integer) or num_steps < 1:
            raise ValueError(f"num_steps must be an int of at least 1, got {repr(num_steps)[:40]}")
        self.check_whole()
        if not self.fragments or any(lane in self.fragments for lane in lanes):
            self.check_idle("collect_async")
        self._check_begun(lanes)

    def _check_received(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            if lane in self._driver.under_way or lane in self.arrived:
                raise AlreadyPendingCallError(
                    f"envs {lane.envs.start} to {lane.envs.stop - 1} have been sent actions and not been received; "
                    "call recv() between two sends",
                    "send",
                )

    def _check_begun(self, lanes: Sequence[Lane]) -> None:
        if self._enforces_order and not self.is_reset:
            raise ResetNeeded("step before reset; call reset() first")
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
