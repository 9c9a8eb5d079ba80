"""A trainer's policy on the ranks: they make or load it, and get new parameters of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.blocks import PolicyOptions
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.parameters import Layout, packed
from mpi_rollout.ranks.driver import Driver
from mpi_rollout.ranks.lanes import Lane
from mpi_rollout.ranks.policy_start import start_policy

NO_POLICY = "there is no policy on the ranks: give connect a policy, such as policy='mine:make_policy'"
PolicyArgument = str | Callable[[], Any] | None


class PolicyOnRanks:
    """The policy that ranks ask for the actions of their own envs.

    Parameters
    ----------
    source
        Where ranks load it from; None is what each has made.
    actions
        The mode in which its actions are read, see `action_check.ActionReader`.

    Attributes
    ----------
    version
        How many times it got new parameters.
    """

    def __init__(self, driver: Driver, source: PolicySource | None, block: int, actions: str) -> None:
        self._driver, self.version = driver, 0
        self._layout: Layout | None = start_policy(driver, source, PolicyOptions(block), actions)
        self._newest = np.zeros(0, np.uint8)
        self._version_of: dict[Lane, int] = {}  # Where ranks get new parameters with their next order.

    def seed(self, seed: int) -> None:
        """Have what it draws depend on this seed."""
        self._driver.call_ranks("seed_policy", seed)

    def set_parameters(self, parameters: Mapping[str, Any] | Sequence[Any]) -> None:
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
            self._driver.give_parameters(self._driver.loading_lanes, self._newest)
        self.version += 1

    def bring(self, lane: Lane) -> None:
        """See that the ranks of a lane have the newest parameters before they take its next steps."""
        if self._driver.serves_first_ready and self._version_of.get(lane, 0) != self.version:
            self._driver.give_parameters([lane], self._newest)
            self._version_of[lane] = self.version
