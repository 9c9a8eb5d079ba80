"""Action masks: which actions an env allows in its next step, as its info `action_mask` says.  Bits, in memory.

As Gymnasium's `sample(mask=...)` takes them: for Discrete an array of 0 and 1 per action, for MultiDiscrete a tuple of
such arrays, or all of them one behind the other.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.layout import Leaf

NAME = "action_mask"
MASKED = 5  # A slot's mark: there are masks in it.  Any other mark may stand for it, since the root then looks.
MOST_BITS = 2**16  # Slots have room for them, used or not.


def sizes(space: spaces.Space) -> list[int]:
    """The number of actions of each component that a mask is for; none where there are no masks."""
    if isinstance(space, spaces.Discrete):
        found = [int(space.n)]
    elif isinstance(space, spaces.MultiDiscrete):
        found = space.nvec.ravel().tolist()
    else:
        found = []
    return found if sum(found) <= MOST_BITS else []


def mask_leaves(space: spaces.Space) -> tuple[Leaf, ...]:
    """The column of a slot for masks, if there are any: eight bits to a byte."""
    num_bytes = -(-sum(sizes(space)) // 8)
    return (Leaf((NAME,), np.dtype(np.uint8), (num_bytes,)),) if num_bytes else ()


def bits_of(mask: Any, sizes: list[int]) -> np.ndarray:
    """One mask as an array of bools.

    Raises
    ------
    ValueError
        It is none for these components.
    """
    parts = list(_parts(mask))
    bits = np.concatenate(parts) if parts else np.zeros(0)
    if bits.dtype.kind not in "biu" or not ((bits == 0) | (bits == 1)).all():
        raise ValueError(f"got {bits.dtype}: {bits}"[:80])
    if [len(part) for part in parts] not in (sizes, [sum(sizes)]):
        raise ValueError(f"got {[len(part) for part in parts]} of them")
    return bits.astype(np.bool_)


def _parts(mask: Any) -> Iterator[np.ndarray]:
    """The arrays in nested tuples."""
    if isinstance(mask, tuple | list) and any(isinstance(part, tuple | list | np.ndarray) for part in mask):
        for part in mask:
            yield from _parts(part)
    else:
        array = np.asarray(mask)
        if array.ndim != 1:
            raise ValueError(f"got {array.dtype} of shape {array.shape}")
        yield array


def allowed(bits: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Choose for each row of bits one of the places with a True, all alike likely; 0 where there is none.

    Parameters
    ----------
    uniform
        A number from 0 to 1, 1 excluded, for each row.
    """
    number = np.count_nonzero(bits, axis=1)
    pick = np.minimum((uniform * number).astype(np.int64), number - 1)
    return np.count_nonzero(np.cumsum(bits, axis=1) <= pick[:, None], axis=1)
