"""The policy that ranks ask for the actions of their own envs, as the root sees it."""

from collections.abc import Mapping, Sequence

import numpy as np

from mpi_rollout.core.policy_kinds import MADE
from mpi_rollout.drive.driver import Driver, Lane
from mpi_rollout.errors import UsageError
from mpi_rollout.policies.memory import NONE, PastRows
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.parameters import Layout, packed
from mpi_rollout.text import shortened


class PolicyOnRanks:
    """The policy that ranks ask for the actions of their own envs.

    Each rank may have made it with random numbers of its own.  Then all get the parameters of the root's.  `actions`
    is the mode of an `ActionReader`, `version` says how many times the policy got new parameters, and `takes` what it
    takes besides observations.

    UsageError if ranks have made policies with parameters of other names, dtypes or shapes; RankError if a rank cannot
    load it.
    """

    def __init__(
        self, driver: Driver, source: PolicySource, actions: str, block: int, seed: int = 0, first_env: int = 0
    ) -> None:
        self._driver, self.version = driver, 0
        self._newest = np.zeros(0, np.uint8)
        self._version_of: dict[Lane, int] = {}  # Where ranks get new parameters with their next order.
        own = driver.worker.policy
        self.takes = NONE.union(*driver.call_ranks(own.use, source, actions, block, seed, first_env))
        is_made = source.kind == MADE
        facts = driver.call_ranks(own.parameter_facts, is_made and driver.exchanges.division.num_ranks > 1)
        layouts = [None if fact is None else fact[0] for fact in facts] if is_made else []
        for rank, layout in enumerate(layouts):
            if layout != layouts[0]:
                wrong = f"{_words(layouts[0])} on rank 0, {_words(layout)} on rank {rank}"
                raise UsageError(
                    "make_policy gave parameters of other names, dtypes or shapes on some ranks than on others: "
                    f"{wrong}; have it make the same policy everywhere"
                )
        told = [fact for fact in facts if fact is not None]
        self._layout: Layout | None = told[0][0] if told else None
        if self._layout is not None and len({digest for _, digest in told}) > 1 and own.model is not None:
            driver.call_ranks(own.load_parameters, packed(own.model.parameters() or {}, self._layout))

    def seed(self, seed: int) -> None:
        """Draw from this seed from now on."""
        self._driver.call_ranks(self._driver.worker.policy.seed, seed)

    def remind(self, rows: PastRows) -> None:
        """Remind the policy of these rows of all envs; the last of them is what envs show now."""
        self._driver.call_ranks(self._driver.worker.policy.remind, rows)

    def set_parameters(self, parameters: Mapping[str, object] | Sequence[object]) -> None:
        """Send parameters to all ranks; to each with its next order where ranks are served as they get ready.

        UsageError if they are not those of the policy; nothing was sent then.
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


def _words(layout: Layout | None) -> str:
    if not layout:
        return "none"
    return shortened(", ".join(f"{leaf.path} {leaf.dtype} {leaf.shape}" for leaf in layout), 100)
