"""The seam `Source`: where actions come from."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from mpi_rollout.core.spaces import Tree

if TYPE_CHECKING:
    from mpi_rollout.drive.recall import Recall


class Span(NamedTuple):
    """The next steps of neighbouring envs: at most `num_steps` from `step` on."""

    envs: range
    step: int
    num_steps: int


class Choice(NamedTuple):
    """The actions of a span.

    Attributes
    ----------
    span
        Which envs and steps they are for.
    actions
        For each leaf of the action space an array (num_steps, num_envs, ...), as `action_check.ActionReader` gives
        them; these may be fewer steps than the span has.  None leaves all of its steps to the ranks.
    extras
        What the policy gave besides, of one step: an array (num_envs, ...) each.
    """

    span: Span
    actions: list[np.ndarray] | None
    extras: Sequence[np.ndarray] = ()


class Shown(Protocol):
    """What envs have shown before the next steps of some spans."""

    def observations(self, spans: Sequence[Span]) -> Tree:
        """Copy the last observations of the envs of all spans, C-contiguous, one span's after the other's."""

    def ends(self, span: Span) -> tuple[np.ndarray, np.ndarray]:
        """Return the terminations and truncations of a span's envs in the step before; not before the first one."""

    def infos(self, span: Span) -> Mapping[str, np.ndarray]:
        """Return the infos that are stored, with their masks, as they came with the last observations."""


class Source(Protocol):
    """Gives the actions of the next steps of some envs, or says that the ranks choose them.

    The root calls it between two exchanges, from one thread, whenever some envs wait for actions.  It takes the choices
    one by one and sends each of them at once, so envs step while the source is asked for those of others.  It asks for
    the steps of an env in their order and leaves none out: the next span of the same envs begins where the last choice
    for them ended.  Spans never overlap, and the same envs are always asked for together.

    What it gives depends on the span, on what envs have shown, and on nothing else, so the data are the same for any
    length of spans.  Its arrays may be views of what it keeps: nobody writes to them, and they hold until it is asked
    again.  What `shown` gives it are copies of its own.

    Attributes
    ----------
    is_on_ranks
        The ranks choose: all its actions are None.
    """

    is_on_ranks: bool

    def actions(self, spans: Sequence[Span], shown: Shown) -> Iterator[Choice]:
        """Yield a choice for each span, in any order.

        PolicyError if code of the user fails; ActionError if it gives what are no actions of these envs: nothing of
        that span is sent then.  A signal that stops the run passes.
        """

    def resume(self, recall: "Recall") -> None:
        """Go on as if the run had never been stopped; called once, before the first actions of a continued run."""
