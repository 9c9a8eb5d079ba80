"""Gymnasium's spaces from what `core.spaces.describe` has stored of them: nothing is unpickled."""

from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.spaces import Space
from mpi_rollout.errors import ContentError
from mpi_rollout.storage.values import described_leaves


def space_of(description: Any) -> Space:
    """Make the space that a file describes.  ContentError if it describes none."""
    described_leaves(description)
    try:
        return _space_of(description)
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ContentError(f"its attribute spaces describes no space: {description!r:.80}") from error


def _space_of(description: dict[str, Any]) -> Space:
    parts = description.get("subspaces")
    if isinstance(parts, dict):
        return spaces.Dict({key: _space_of(part) for key, part in parts.items()})
    if parts is not None:
        return spaces.Tuple(tuple(map(_space_of, parts)))
    dtype, shape = np.dtype(description["dtype"]), tuple(description["shape"])
    low, high = (np.broadcast_to(np.array(description[name], dtype), shape) for name in ("low", "high"))
    match description["type"]:
        case "Box":
            return spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            # Gymnasium before 1.2 has int64 only, and no such argument.
            of_dtype = {} if dtype == np.int64 else {"dtype": dtype.type}
            return spaces.Discrete(int(high) - int(low) + 1, start=int(low), **of_dtype)
        case "MultiDiscrete":
            return spaces.MultiDiscrete(high.astype(dtype) - low + 1, dtype=dtype.type, start=low)
        case "MultiBinary":
            return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    raise KeyError(description["type"])
