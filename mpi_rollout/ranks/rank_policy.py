"""A policy that a rank asks for the actions of the envs that it steps."""

import numpy as np

from mpi_rollout.core.spaces import Space, Tree
from mpi_rollout.errors import ActionError, PolicyError, SignalInterrupt, words_of
from mpi_rollout.policies.blocks import BlockPolicy, PolicyOptions
from mpi_rollout.policies.model import Model
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
