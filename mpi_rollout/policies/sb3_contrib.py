"""What policies of sb3-contrib take besides observations: RecurrentPPO an LSTM's states, MaskablePPO action masks."""

from typing import Any

import numpy as np
import torch

from mpi_rollout.core.column_types import MASK_NAME, mask_name
from mpi_rollout.core.spaces import Space
from mpi_rollout.errors import ActionError
from mpi_rollout.policies.memory import INFOS, NONE, STARTS, STATE, infos_for

FORBIDDEN = -1e8  # sb3-contrib's logit of what a mask forbids.


def takes_of(policy_class: type) -> frozenset[str]:
    """Return what `Model.takes` says of policies of this class."""
    names = {base.__name__ for base in policy_class.__mro__}  # Who has no such policy may have no sb3-contrib.
    if "RecurrentActorCriticPolicy" in names:
        return frozenset({STATE, STARTS})
    return frozenset({INFOS}) if "MaskableActorCriticPolicy" in names else NONE


def arguments_of(policy: Any, num_rows: int, others: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the policy's `_predict` that say what a `Model` was given besides observations."""
    if STATE in others:
        layers, _, size = policy.lstm_hidden_state_shape
        zeros = torch.zeros(layers, num_rows, size, device=policy.device)
        states = (zeros, zeros) if others[STATE] is None else swapped(others[STATE])
        starts = torch.tensor(others[STARTS], dtype=torch.float32, device=policy.device)
        return {"lstm_states": states, "episode_starts": starts}
    infos = others.get(INFOS)
    if not infos:  # A policy that is tried gets none.
        return {}
    return {"action_masks": _masks(infos, policy.action_space).to(policy.device)}


def swapped(states: Any) -> tuple[torch.Tensor, ...]:
    """Swap the axis of the envs, the first of a state, and that of the layers, the first of an LSTM's."""
    return tuple(state.transpose(0, 1) for state in states)


def _masks(infos: dict[str, np.ndarray], action_space: Space) -> torch.Tensor:
    """Return the masks of some envs; of those without one, nothing is forbidden."""
    if MASK_NAME not in infos:
        got = ", ".join(name for name in infos if mask_name(name) in infos)
        needed = f"MaskablePPO needs the info {MASK_NAME!r}, got {got}; store it too: "
        raise ActionError(needed, *infos_for(action_space))
    has_mask = infos[mask_name(MASK_NAME)]
    return torch.from_numpy(infos[MASK_NAME].reshape(len(has_mask), -1).astype(np.bool_) | ~has_mask[:, None])
