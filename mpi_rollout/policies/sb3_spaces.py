"""Whether the envs have the spaces that a policy of Stable-Baselines3 has learned on, as far as its file says."""

import re
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecTransposeImage

from mpi_rollout.core.spaces import Space
from mpi_rollout.errors import UsageError


def learned_space(space: Space, saved: Any) -> Space:
    """Return the observation space that the policy has learned on: SB3 puts the channels of images first.

    Parameters
    ----------
    space
        Of the envs.
    saved
        What the file says of its observation space.

    Raises
    ------
    UsageError
        The envs have another one, or SB3 takes none such.
    """
    if isinstance(space, spaces.Tuple) or (
        isinstance(space, spaces.Dict)
        and any(isinstance(child, spaces.Dict | spaces.Tuple) for child in space.spaces.values())
    ):
        raise UsageError(f"SB3 takes no observations that are nested as {space}")
    if isinstance(space, spaces.Dict):
        check_space("observations", space, saved)
        if _has_other_parts(space, saved):
            raise _other("observations", space, saved)
        return spaces.Dict({key: _channels_first(child) for key, child in space.spaces.items()})
    for candidate in (space, _channels_first(space)):
        if candidate.shape == _shape(saved, candidate.shape):
            check_space("observations", candidate, saved)
            return candidate
    raise _other("observations", space, saved)


def _channels_first(space: Space) -> Space:
    if isinstance(space, spaces.Box) and is_image_space(space) and not is_image_space_channels_first(space):
        return VecTransposeImage.transpose_space(space)
    return space


def check_space(what: str, space: Space, saved: Any) -> None:
    """Compare the type, shape, sizes and, for actions, bounds of a space with what a file says of it.

    Raises
    ------
    UsageError
        They are others.
    """
    if not isinstance(saved, dict):
        return
    kind = re.search(r"\.(\w+)'>", str(saved.get(":type:", "")))
    is_other = kind is not None and kind[1] != type(space).__name__
    is_other |= space.shape != _shape(saved, space.shape)
    for name in ("n", "start", "nvec", *(("low", "high") if what == "actions" else ())):
        own = getattr(space, name, None)
        is_other |= own is not None and _differs(own, saved.get(name))
    dtype = saved.get("dtype")
    if isinstance(space, spaces.Box) and dtype in ("uint8", "float32", "float64"):
        is_other |= np.dtype(dtype).kind != np.dtype(space.dtype).kind
    if is_other:
        raise _other(what, space, saved)


def _has_other_parts(space: spaces.Dict, saved: Any) -> bool:
    """Tell whether a file says of a Dict space that it has parts of other names, types or shapes."""
    text = saved.get("spaces") if isinstance(saved, dict) else None
    parts = {match["name"]: match for match in _PART.finditer(text if isinstance(text, str) else "")}
    if not parts:
        return False
    if parts.keys() != space.spaces.keys():
        return True
    return any(_is_other_part(child, parts[name]) for name, child in space.spaces.items())


def _is_other_part(space: Space, told: re.Match[str]) -> bool:
    if told["type"] != type(space).__name__:
        return True
    if isinstance(space, spaces.Discrete):
        return told["n"] is not None and int(told["n"]) != space.n
    if told["shape"] is None:
        return False
    shape = tuple(map(int, re.findall(r"\d+", told["shape"])))
    return shape not in (space.shape, _channels_first(space).shape)


# A part of a Dict space in its text: 'place': Box(-1.0, 1.0, (2,), float32), or of older Gymnasium ('place', Box(...)).
_PART = re.compile(
    r"""(?P<quote>['"])(?P<name>.*?)(?P=quote)(?:: |, )"""
    r"""(?P<type>[A-Z]\w+)\((?:[^()]*\((?P<shape>[\d, ]*)\), \w+\)|(?P<n>\d+))?"""
)


def _shape(saved: Any, default: Any) -> tuple[int, ...]:
    shape = saved.get("_shape") if isinstance(saved, dict) else None
    return tuple(shape) if isinstance(shape, list) else default


def _differs(own: Any, text: object) -> bool:
    """Tell whether a text shows other numbers; texts of long arrays do not show them all."""
    numbers = re.findall(r"-?(?:inf|\d+\.?\d*(?:e[+-]?\d+)?)", str(text))
    values = np.asarray(own, np.float64).ravel()
    return len(numbers) == values.size and not np.allclose(values, np.array(numbers, np.float64), rtol=1e-5)


def _other(what: str, space: Space, saved: dict[str, Any]) -> UsageError:
    kind = str(saved.get(":type:", "")).rpartition(".")[2].strip("'>")
    told = {name: saved[key] for key, name in _TOLD.items() if saved.get(key) is not None}
    learned = f"{kind}({', '.join(f'{name}={value}' for name, value in told.items())})"
    return UsageError(f"the policy learned with {what} in {learned}, the envs have {space}")


_TOLD = {
    "spaces": "spaces",
    "n": "n",
    "start": "start",
    "nvec": "nvec",
    "low": "low",
    "high": "high",
    "_shape": "shape",
    "dtype": "dtype",
}
