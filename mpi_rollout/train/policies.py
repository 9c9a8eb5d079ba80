"""A trainer's policy on the ranks: they make or load it, and get new parameters of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.blocks import PolicyOptions
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.parameters import Layout, packed
from mpi_rollout.ranks.driver import Driver

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
        self._layout: Layout | None = None
        driver.call_ranks("use_policy", source, PolicyOptions(block), actions)

    def seed(self, seed: int) -> None:
        """Have what it draws depend on this seed."""
        self._driver.call_ranks("seed_policy", seed)

    def set_parameters(self, parameters: Mapping[str, Any] | Sequence[Any]) -> None:
        """Send parameters to all ranks.

        Raises
        ------
        UsageError
            They are not those of the policy; nothing was sent.
        """
        if self._layout is None:
            layouts = [layout for layout in self._driver.call_ranks("parameter_layout") if layout is not None]
            if not layouts:
                raise UsageError(
                    "the policy has no parameters that can be set: give it an attribute `parameters`, arrays by name, "
                    "and a method `load`, or make it a torch.nn.Module"
                )
            self._layout = layouts[0]
        self._driver.call_ranks("load_parameters", packed(parameters, self._layout))
        self.version += 1
