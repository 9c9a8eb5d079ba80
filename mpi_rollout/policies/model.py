"""What a policy is that acts in blocks of envs: a model from a file, or what the user's `make_policy` returns."""

import errno
import hashlib
import os
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpi_rollout.core.spaces import Leaf

DETERMINISTIC, SAMPLE = "deterministic", "sample"
MODES = DETERMINISTIC, SAMPLE
TRUST_IT = "add --trust-policy, or trust_policy=True of connect, if you trust the file"


class Model:
    """A policy that is asked for the actions of a block of envs.

    It has no memory of earlier calls: what it returns for an env depends on that env's arguments only.

    Attributes
    ----------
    num_uniforms
        Random numbers that it needs for each env and step; 0 where it does not draw.
    extras
        What it gives besides actions.
    """

    num_uniforms: int = 0
    extras: tuple[Leaf, ...] = ()

    def parameters(self) -> dict[str, Any] | None:
        """Return its parameters, arrays or tensors by their names; None if it has none that can be set."""
        return None

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        """Take these parameters, all that there are, with the same names, dtypes and shapes; they are its own."""
        raise NotImplementedError

    def act(self, observations: Any, env_indices: np.ndarray, uniforms: np.ndarray) -> Any:
        """Return the actions of the envs of a block.

        Parameters
        ----------
        observations
            Of shape (num_envs, ...), or a tree of such arrays.  Rows of envs that are not asked for are zero.
        env_indices
            (num_envs,) int64.
        uniforms
            (num_envs, num_uniforms) float64 in [0, 1): of (seed, env index, step), whichever rank asks.

        Returns
        -------
        Actions of shape (num_envs, ...), or a tree of such arrays.  With `extras` a pair of these and a dict of arrays
        (num_envs, ...) by their names.
        """
        raise NotImplementedError


def weight_files(content: bytes) -> list[str]:
    """Return the names of the files in which an ONNX file has its weights, relative to its folder, if it has any.

    Of an entry `location` in it: key and value are the fields 1 and 2 of a message of protocol buffers.
    """
    names = set()
    for match in re.finditer(rb"\x0a\x08location\x12([\x80-\xff]?)([\x00-\x7f])", content):
        low, high = match[1], match[2][0]  # The length of the value, 7 bits a byte.
        size = high if not low else (low[0] & 127) + 128 * high
        names.add(content[match.end() : match.end() + size].decode(errors="replace"))
    return sorted(names)


def digest_of(content: bytes, path: str) -> str:
    """Return the SHA-256 of a policy in hexadecimal: of its file, and of those that have its weights.

    Raises
    ------
    OSError
        These cannot be read.
    """
    digest = hashlib.sha256(content)
    for name in weight_files(content) if content.startswith(b"\x08") else ():
        place = os.path.join(os.path.dirname(path), name)
        if os.path.isabs(name) or ".." in name.split("/") or not os.path.isfile(place):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        with open(place, "rb") as file:
            digest.update(file.read())
    return digest.hexdigest()


def sha256_of(spec: str) -> str:
    """Return the SHA-256 of the policy that `--policy` names, see `digest_of`; "" if it cannot be read."""
    path = os.path.expanduser(spec)
    try:
        with open(path, "rb") as file:
            return digest_of(file.read(), path)
    except (OSError, ValueError):  # A name with a null byte is no name.
        return ""


@dataclass(frozen=True)
class PolicySource:
    """A policy as one rank reads it and all ranks load it.

    Parameters
    ----------
    kind
        "sb3", "torchscript", "pt2", "onnx", or "made": by a class or function `make_policy`.
    name
        What `--policy` was given.
    content
        The bytes of the file; of a policy that is made, none.
    sha256
        Of the file, in hexadecimal, see `digest_of`; of a policy that is made, "".
    mode
        "deterministic" or "sample".
    is_trusted
        Pickled code of the file may be executed.
    """

    kind: str
    name: str
    content: bytes
    sha256: str
    mode: str = DETERMINISTIC
    is_trusted: bool = False

    @property
    def is_made(self) -> bool:
        """Each rank makes it; nothing has to be sent."""
        return self.kind == "made"
