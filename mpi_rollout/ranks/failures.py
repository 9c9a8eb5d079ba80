"""What has failed on a rank since all envs began anew, and the end of the job if the root does not learn of it."""

import threading

from mpi_rollout.errors import Fault, PolicyError, RankError, as_flag, cause_of
from mpi_rollout.exchange.exchanges import Exchanges
from mpi_rollout.exchange.job_end import abort
from mpi_rollout.process.console import say
from mpi_rollout.ranks.slices import Slice
from mpi_rollout.text import words_of

ROOT_HEARS_S = 1.5  # The root has so long to hear of a failure; then this rank says it and ends the job.


class Failures:
    """The failures of one rank, which messages call `place`.

    With `aborts_if_unheard`, the job ends if the root does not learn of a failure soon.

    Attributes
    ----------
    fault
        The earliest one, where slices of several exchanges have failed.
    error
        What user code raised in the last one.
    slices
        Those that are stepped no more; None among them is for exchanges without a slice.
    """

    def __init__(self, place: str, exchanges: Exchanges, aborts_if_unheard: bool):
        self.place, self.aborts_if_unheard = place, aborts_if_unheard
        self.fault: Fault | None = None
        self.error: BaseException | None = None
        self.slices: set[Slice | None] = set()
        self._exchanges = exchanges
        self._grace = threading.Timer(ROOT_HEARS_S, lambda: None)

    def note(self, error: BaseException, slice_: Slice) -> None:
        """Note the failure of a slice in a step, of which the root learns, or else the job ends."""
        self.slices.add(slice_)
        if self.fault is None or slice_.num_steps < self.fault.step:
            self.fault = Fault.of(error, f"{self.place}, step {slice_.num_steps}", slice_.num_steps)
            self.error = cause_of(error)
        if self.aborts_if_unheard:
            self._begin_grace(self.fault)

    def note_loading(self, error: BaseException, slices: list[Slice]) -> None:
        """Note that the policy could not load parameters: the next steps of these slices fail."""
        self.fault = Fault.of(PolicyError(f"policy: load: {words_of(error)}"), self.place)
        self.slices.update((None, *slices))

    def of_call(self, error: BaseException) -> Fault:
        """Return the fault of a call of a service, of which the root learns at once."""
        self.error = cause_of(error)
        return Fault.of(error, self.place)

    def forget(self) -> None:
        """Forget all failures, before all envs are reset."""
        self.end_grace()
        self.fault = self.error = None
        self.slices.clear()

    def _begin_grace(self, fault: Fault) -> None:
        def end() -> None:
            say(f"{fault.stack}mpi_rollout: {RankError(fault, 1).shown(as_flag)}\n")
            abort(self._exchanges.control.comm, fault.exit_code)

        self.end_grace()
        others_ms = max(exchange.order.expected_ms for exchange in self._exchanges.all)  # The time of their fragments.
        self._grace = threading.Timer(ROOT_HEARS_S + 2 * others_ms / 1000, end)
        self._grace.daemon = True
        self._grace.start()

    def end_grace(self) -> None:
        """Let the job go on: the root is in charge."""
        self._grace.cancel()
