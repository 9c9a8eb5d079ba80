"""Whether the envs have the spaces that a policy of Stable-Baselines3 has learned on, as far as its file says."""

import re

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecTransposeImage

from mpi_rollout.core.spaces import Space
from mpi_rollout.errors import UsageError
from mpi_rollout.policies.untrusted import JsonObject


def learned_space(space: Space, told: JsonObject) -> Space:
    """Return the observation space that the policy has learned on: SB3 puts the channels of images first."""
    parts = list(space.spaces.values()) if isinstance(space, spaces.Dict) else [space]
    if any(isinstance(part, spaces.Dict | spaces.Tuple) for part in parts):
        raise UsageError(f"SB3 takes no observations that are nested as {space}")
    if isinstance(space, spaces.Dict):
        check_space("observations", space, told)
        if _has_other_parts(space, told):
            raise _other("observations", space, told)
        return spaces.Dict({key: _channels_first(child) for key, child in space.spaces.items()})
    for candidate in (space, _channels_first(space)):
        if candidate.shape == _shape(told, candidate):
            check_space("observations", candidate, told)
            return candidate
    raise _other("observations", space, told)


def _channels_first(space: Space) -> Space:
    if isinstance(space, spaces.Box) and is_image_space(space) and not is_image_space_channels_first(space):
        return VecTransposeImage.transpose_space(space)
    return space


def check_space(what: str, space: Space, told: JsonObject) -> None:
    """Compare the type, shape, sizes and, for actions, bounds of a space with what a file says of it."""
    kind = re.search(r"\.(\w+)'>", str(told.get(":type:", "")))
    is_other = kind is not None and kind[1] != type(space).__name__
    is_other |= space.shape != _shape(told, space)
    for name in ("n", "start", "nvec", *(("low", "high") if what == "actions" else ())):
        own = getattr(space, name, None)
        is_other |= own is not None and _differs(own, told.get(name))
    dtype = told.get("dtype")
    if isinstance(space, spaces.Box) and dtype in ("uint8", "float32", "float64"):
        is_other |= np.dtype(dtype).kind != np.dtype(space.dtype).kind
    if is_other:
        raise _other(what, space, told)


def _has_other_parts(space: spaces.Dict, told: JsonObject) -> bool:
    """Tell whether a file says of a Dict space that it has parts of other names, types or shapes."""
    text = told.get("spaces")
    parts = {match["name"]: match for match in _PART.finditer(text if isinstance(text, str) else "")}
    is_named = not parts or parts.keys() == space.spaces.keys()
    return not is_named or any(_is_other_part(space.spaces[name], part) for name, part in parts.items())


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
    r"""(?P<quote>['"])(?P<name>(?:(?!(?P=quote)).)*)(?P=quote)(?:: |, )"""
    r"""(?P<type>[A-Z]\w+)\((?:[^()]*\((?P<shape>[\d, ]*)\), \w+\)|(?P<n>\d+))?"""
)


def _shape(told: JsonObject, space: Space) -> tuple[int, ...] | None:
    shape = told.get("_shape")
    return tuple(shape) if isinstance(shape, list) else space.shape


def _differs(own: object, text: object) -> bool:
    """Tell whether a text shows other numbers; texts of long arrays do not show them all."""
    numbers = re.findall(r"-?(?:inf|\d+\.?\d*(?:e[+-]?\d+)?)", str(text))
    values = np.asarray(own, np.float64).ravel()
    return len(numbers) == values.size and not np.allclose(values, np.array(numbers, np.float64), rtol=1e-5)


def _other(what: str, space: Space, told: JsonObject) -> UsageError:
    kind = str(told.get(":type:", "")).rpartition(".")[2].strip("'>")
    keys = "spaces", "n", "start", "nvec", "low", "high", "_shape", "dtype"
    learned = ", ".join(f"{key.removeprefix('_')}={told[key]}" for key in keys if told.get(key) is not None)
    return UsageError(f"the policy learned with {what} in {kind}({learned}), the envs have {space}")
