"""A policy that a rank asks for the actions of the envs that it steps."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple, Protocol

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.spaces import Space, Tree
from mpi_rollout.errors import ActionError, PolicyError, SignalInterrupt, UsageError, words_of
from mpi_rollout.policies.blocks import BlockPolicy, PolicyOptions
from mpi_rollout.policies.model import Model, PolicySource
from mpi_rollout.policies.parameters import Layout, layout_of, packed, unpacked
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

    Attributes
    ----------
    is_outdated
        It could not load the parameters that it was sent last, and does not act until it has loaded others.
    """

    def __init__(
        self, model: Model, options: PolicyOptions, observation_space: Space, action_space: Space, actions: str
    ) -> None:
        self._policy = BlockPolicy(model, observation_space, action_space, options)
        self._read = ActionReader(action_space, actions)
        self.is_outdated = False

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
        if self.is_outdated:
            raise PolicyError("policy: it could not load the last parameters; send others by set_policy")
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


class ParameterFacts(NamedTuple):
    """What parameters a rank's policy has, and the SHA-256 of their bytes, or ""."""

    layout: Layout
    sha256: str


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
        self._asked: list[RankPolicy] = []  # Of each slice.
        self._layout: Layout | None = None

    @property
    def methods(self) -> tuple[Callable[..., object], ...]:
        """Return those that the root may call by name."""
        own = self.use_policy, self.seed_policy, self.show_observations, self.parameter_facts, self.load_parameters
        return own

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
            self._asked.append(RankPolicy(self.model, options, *spaces, actions))
            slice_.use_policy(self._asked[-1])

    def show_observations(self, arrays: Sequence[np.ndarray]) -> None:
        """Have the policy see these as the last observations of all envs, an array (num_envs, ...) for each leaf."""
        for slice_ in self._slices:
            slice_.show(arrays)

    def seed_policy(self, seed: int) -> None:
        """Have the policy draw from this seed from now on."""
        for slice_ in self._slices:
            slice_.seed_policy(seed)

    def parameter_facts(self, is_compared: bool) -> ParameterFacts | None:
        """Tell what parameters the policy has; None without a policy, or if they cannot be set.

        Parameters
        ----------
        is_compared
            Their hash is needed, which takes some seconds for a gigabyte.
        """
        parameters = self.model.parameters() if self.model is not None else None
        if parameters is None:
            return None
        try:
            layout = layout_of(parameters)
        except UsageError:  # They are not arrays: nobody can set them.
            return None
        self._layout = layout
        digest = sha256(packed(parameters, layout).tobytes()).hexdigest() if is_compared else ""
        return ParameterFacts(layout, digest)

    def load_parameters(self, buffer: np.ndarray) -> None:
        """Give the policy new parameters, which are its own then; a rank without envs may have no policy."""
        if self.model is not None and self._layout is not None:
            self._mark_outdated(True)
            self.model.load(unpacked(buffer, self._layout))
            self._mark_outdated(False)

    def _mark_outdated(self, is_outdated: bool) -> None:
        for policy in self._asked:
            policy.is_outdated = is_outdated
