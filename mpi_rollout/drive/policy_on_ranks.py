"""The root's side of a policy on the ranks: each has it, and all have it with the same parameters."""

from collections.abc import Mapping, Sequence

import numpy as np

from mpi_rollout.core.policy_kinds import MADE
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.lanes import Lane
from mpi_rollout.errors import UsageError
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.parameters import Layout, packed
from mpi_rollout.text import shortened


class PolicyOnRanks:
    """The policy that ranks ask for the actions of their own envs.

    Each rank may have made it with random numbers of its own.  Then all get the parameters of the root's.  `actions`
    is the mode of an `ActionReader`, and `version` says how many times the policy got new parameters.

    Raises
    ------
    UsageError
        The ranks have made policies with parameters of other names, dtypes or shapes.
    RankError
        A rank cannot load it.
    """

    def __init__(self, driver: Driver, source: PolicySource, actions: str, block: int, seed: int = 0) -> None:
        self._driver, self.version = driver, 0
        self._newest = np.zeros(0, np.uint8)
        self._version_of: dict[Lane, int] = {}  # Where ranks get new parameters with their next order.
        driver.call_ranks("use_policy", source, actions, block, seed)
        is_made = source.kind == MADE
        facts = driver.call_ranks("parameter_facts", is_made and driver.exchanges.division.num_ranks > 1)
        if is_made:
            _refuse_others([None if told is None else told[0] for told in facts])
        told = [fact for fact in facts if fact is not None]
        self._layout: Layout | None = told[0][0] if told else None
        model = driver.worker.policy.model
        if self._layout is not None and len({digest for _, digest in told}) > 1 and model is not None:
            driver.call_ranks("load_parameters", packed(model.parameters() or {}, self._layout))

    def seed(self, seed: int) -> None:
        """Draw from this seed from now on."""
        self._driver.call_ranks("seed_policy", seed)

    def set_parameters(self, parameters: Mapping[str, object] | Sequence[object]) -> None:
        """Send parameters to all ranks; to each with its next order where ranks are served as they get ready.

        Raises
        ------
        UsageError
            They are not those of the policy; nothing was sent.
        """
        if self._layout is None:
            raise UsageError(
                "the policy has no parameters that can be set: give it an attribute `parameters`, arrays by name, "
                "and a method `load`, or make it a torch.nn.Module"
            )
        self._newest = packed(parameters, self._layout)
        if not self._driver.serves_first_ready:
            self._driver.give_parameters(self._newest)
        self.version += 1

    def bring(self, lane: Lane) -> None:
        """Send the newest parameters to the ranks of a lane that do not have them, before its next steps."""
        if self._driver.serves_first_ready and self.version_of(lane) != self.version:
            self._driver.give_parameters(self._newest, lane)
        self._version_of[lane] = self.version

    def version_of(self, lane: Lane) -> int:
        """Return the version of the policy that chose a lane's last actions: how often it had got new parameters."""
        return self._version_of.get(lane, 0)


def _refuse_others(layouts: list[Layout | None]) -> None:
    """Refuse policies whose parameters are others than those of rank 0's."""
    for rank, layout in enumerate(layouts):
        if layout != layouts[0]:
            raise UsageError(
                "make_policy gave parameters of other names, dtypes or shapes on some ranks than on others: "
                f"{_words(layouts[0])} on rank 0, {_words(layout)} on rank {rank}; have it make the same policy "
                "everywhere"
            )


def _words(layout: Layout | None) -> str:
    if not layout:
        return "none"
    return shortened(", ".join(f"{leaf.path} {leaf.dtype} {leaf.shape}" for leaf in layout), 100)
