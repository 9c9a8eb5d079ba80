"""A policy that a rank asks for the actions of the envs that it steps."""

from collections.abc import Sequence
from functools import partial
from hashlib import sha256

import numpy as np

from mpi_rollout.core.spaces import Tree
from mpi_rollout.errors import ActionError, PolicyError, SignalInterrupt, UsageError
from mpi_rollout.policies.action_check import ActionReader
from mpi_rollout.policies.blocks import BlockPolicy
from mpi_rollout.policies.memory import NONE, PastRows, check_infos
from mpi_rollout.policies.model import Model, PolicySource
from mpi_rollout.policies.parameters import Layout, layout_of, packed, unpacked
from mpi_rollout.policies.sources import load_model
from mpi_rollout.ranks.slices import Slice
from mpi_rollout.text import words_of


class RankPolicy:
    """A rank's policy: the root makes, seeds and loads it as a `Service`, and the envs of these slices ask it.

    `model` is the policy that this rank has made; None where it loads one, or has none.
    """

    name = "policy"

    def __init__(self, slices: Sequence[Slice], model: Model | None):
        self._slices, self.model = slices, model
        self._policies: dict[Slice, BlockPolicy] = {}
        self._layout: Layout = []
        self._is_outdated = False  # It could not load the last parameters.

    def use(self, source: PolicySource, actions: str, block: int, seed: int, first_env: int) -> frozenset[str]:
        """Let this policy choose the actions of this rank's envs, read in this mode of an `ActionReader`.

        Return what it takes besides observations, see `policies.memory`.
        """
        for slice_ in self._slices:
            spaces = slice_.envs.single_observation_space, slice_.envs.single_action_space
            self.model = self.model or load_model(source, *spaces)
            check_infos(self.model.takes, bool(slice_.exchange.layout.infos), source.name, spaces[1])
            envs, has_reset_rows = slice_.env_indices, slice_.has_reset_rows
            policy = BlockPolicy(self.model, *spaces, envs, block, seed, has_reset_rows, first_env)
            choose = partial(self._choose, policy, ActionReader(spaces[1], actions))
            slice_.use_policy(choose, policy.view if policy.takes else None)
            self._policies[slice_] = policy
        return self.model.takes if self._slices and self.model is not None else NONE

    def _choose(
        self, policy: BlockPolicy, read: ActionReader, observations: Tree, step: int
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return an array (num_envs, ...) for each leaf of the actions, and one for each extra; see `BlockPolicy`.

        PolicyError if the policy fails or could not load its last parameters; ActionError if it gave what are no
        actions of these envs.
        """
        if self._is_outdated:
            raise PolicyError("policy: it could not load the last parameters; send others by set_policy")
        try:
            acted = policy(observations, step)
        except (ActionError, SignalInterrupt):
            raise
        except Exception as error:
            raise PolicyError(f"policy: {words_of(error)}") from error
        return read(acted.actions, policy.envs), acted.extras

    def remind(self, past: PastRows) -> None:
        """Remind the policy of these rows of all envs; the last of them is what envs show now."""
        for slice_, policy in self._policies.items():
            slice_.show(policy.remind(past))

    def seed(self, seed: int) -> None:
        """Draw from this seed from now on."""
        for policy in self._policies.values():
            policy.seed(seed)

    def parameter_facts(self, is_compared: bool) -> tuple[Layout, str] | None:
        """Return which parameters the policy has, and their SHA-256; None if it has none that can be set.

        The hash takes some seconds for a gigabyte; it is "" unless it `is_compared`.
        """
        parameters = self.model.parameters() if self.model is not None else None
        if parameters is None:
            return None
        try:
            layout = layout_of(parameters)
        except UsageError:  # They are not arrays: nobody can set them.
            return None
        self._layout = layout
        return layout, sha256(packed(parameters, layout).tobytes()).hexdigest() if is_compared else ""

    def load_parameters(self, buffer: np.ndarray) -> None:
        """Give the policy new parameters, which are its own then; a rank without envs may have no policy."""
        if self.model is not None:
            self._is_outdated = True
            self.model.load(unpacked(buffer, self._layout))
            self._is_outdated = False
