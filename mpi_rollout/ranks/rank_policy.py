"""A policy that a rank asks for the actions of the envs that it steps."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.spaces import Space, Tree
from mpi_rollout.errors import ActionError, PolicyError, SignalInterrupt, words_of
from mpi_rollout.policies.blocks import BlockPolicy, PolicyOptions
from mpi_rollout.policies.model import Model, PolicySource
from mpi_rollout.policies.parameters import Layout, layout_of, unpacked
from mpi_rollout.policies.sources import load_model
from mpi_rollout.ranks.action_check import ActionReader


class RankPolicy:
    """Asks a model, and reads what it gives: no action that is refused reaches an env.

    Parameters
    ----------
    observation_space, action_space
        Of a single env.
    actions
        The mode in which actions are read, see `action_check.ActionReader`.
    """

    def __init__(
        self, model: Model, options: PolicyOptions, observation_space: Space, action_space: Space, actions: str
    ) -> None:
        self._policy = BlockPolicy(model, observation_space, action_space, options)
        self._read = ActionReader(action_space, actions)

    def seed(self, seed: int) -> None:
        """Have the model draw from this seed from now on."""
        self._policy.seed(seed)

    def choose(self, observations: Tree, envs: range, step: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return an array (num_envs, ...) for each leaf of the actions, and one for each extra; see `BlockPolicy`.

        Raises
        ------
        PolicyError
            The policy raises.
        ActionError
            It gave what are no actions of these envs.
        """
        try:
            acted = self._policy(observations, envs, step)
        except (ActionError, SignalInterrupt):
            raise
        except Exception as error:
            raise PolicyError(f"policy: {words_of(error)}") from error
        return self._read(acted.actions, envs), acted.extras


class Acting(Protocol):
    """Envs whose actions a policy can choose: a `slices.Slice`."""

    envs: VectorEnv

    def use_policy(self, policy: RankPolicy) -> None:
        """Have this policy choose the actions where an order leaves that to the ranks."""

    def seed_policy(self, seed: int) -> None:
        """Have the policy draw from this seed from now on."""

    def show(self, arrays: Sequence[np.ndarray]) -> None:
        """Have the policy see these as the last observations of all envs of the job."""


class RankPolicies:
    """What the root may have ranks do with their policy.

    Parameters
    ----------
    slices
        This rank's envs.
    model
        The policy that this rank has made; None where it loads one, or has none.
    """

    def __init__(self, slices: Sequence[Acting], model: Model | None):
        self._slices, self.model = slices, model
        self._layout: Layout | None = None

    @property
    def methods(self) -> tuple[Callable[..., object], ...]:
        """Return those that the root may call by name."""
        return self.use_policy, self.seed_policy, self.show_observations, self.parameter_layout

    def use_policy(self, source: PolicySource | None, options: PolicyOptions, actions: str) -> None:
        """Have a policy choose the actions of this rank's envs.

        Parameters
        ----------
        source
            Where it comes from; None is the one that this rank has made.
        actions
            The mode in which its actions are read, see `action_check.ActionReader`.
        """
        for slice_ in self._slices:
            spaces = slice_.envs.single_observation_space, slice_.envs.single_action_space
            if source is not None:
                self.model, source = load_model(source, *spaces), None
            assert self.model is not None, "made with the envs, or loaded here"
            slice_.use_policy(RankPolicy(self.model, options, *spaces, actions))

    def show_observations(self, arrays: Sequence[np.ndarray]) -> None:
        """Have the policy see these as the last observations of all envs, an array (num_envs, ...) for each leaf."""
        for slice_ in self._slices:
            slice_.show(arrays)

    def seed_policy(self, seed: int) -> None:
        """Have the policy draw from this seed from now on."""
        for slice_ in self._slices:
            slice_.seed_policy(seed)

    def parameter_layout(self) -> Layout | None:
        """Return what parameters the policy has; None without a policy, or if they cannot be set."""
        parameters = self.model.parameters() if self.model is not None else None
        self._layout = None if parameters is None else layout_of(parameters)
        return self._layout

    def load_parameters(self, buffer: np.ndarray) -> None:
        """Give the policy new parameters, which are its own then; a rank without envs may have no policy."""
        if self.model is not None and self._layout is not None:
            self.model.load(unpacked(buffer, self._layout))
