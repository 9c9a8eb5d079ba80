"""Spaces as Minari's metadata have them, and what a data set of them needs of its readers."""

import json
from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.spaces import Space, leaf_spaces
from mpi_rollout.errors import UsageError

LEAST_IMAGE = 32  # Minari takes smaller arrays of bytes for no images.


@singledispatch
def described(space: Space) -> dict[str, Any]:
    """Return a space as data for JSON.  UsageError if Minari has no words for it."""
    raise UsageError(f"Minari has no {type(space).__name__} spaces, got {space}")


@described.register
def _(space: spaces.Box) -> dict[str, Any]:
    bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
    return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape)} | bounds


@described.register
def _(space: spaces.Discrete) -> dict[str, Any]:
    return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}


@described.register
def _(space: spaces.MultiDiscrete) -> dict[str, Any]:
    values = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
    return {"type": "MultiDiscrete", "dtype": str(space.dtype)} | values


@described.register
def _(space: spaces.MultiBinary) -> dict[str, Any]:
    return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(map(int, space.n))}


@described.register
def _(space: spaces.Dict) -> dict[str, Any]:
    if wrong := [key for key in space.spaces if "/" in key]:
        raise UsageError(f"Minari cannot load a Dict space with a / in a key, got {wrong[0]!r}")
    return {"type": "Dict", "subspaces": {key: described(child) for key, child in space.spaces.items()}}


@described.register
def _(space: spaces.Tuple) -> dict[str, Any]:
    return {"type": "Tuple", "subspaces": [described(child) for child in space.spaces]}


def as_text(space: Space) -> str:
    """Return a space as the text in metadata."""
    return json.dumps(described(space))


def is_image(space: Space) -> bool:
    """Tell whether Minari takes a leaf for images, which it stores as JPEG by default."""
    return (
        isinstance(space, spaces.Box)
        and len(space.shape) in (2, 3)
        and min(space.shape[:2]) >= LEAST_IMAGE
        and space.dtype == np.uint8
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def oldest_version(*of_env: Space) -> str:
    """Return the oldest version of Minari that reads data of these spaces; others then refuse them by themselves.

    Version 0.5.4 is the first that reads images without JPEG, 0.5.3 has MultiDiscrete and MultiBinary.
    """
    parts = [leaf for space in of_env for leaf in leaf_spaces(space)]
    if any(map(is_image, parts)):
        return "0.5.4"
    return "0.5.3" if any(isinstance(part, spaces.MultiDiscrete | spaces.MultiBinary) for part in parts) else "0.5.0"
