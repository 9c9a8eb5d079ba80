"""What a policy is that acts in blocks of envs: a model from a file, or what the user's `make_policy` returns."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpi_rollout.core.spaces import Leaf

DETERMINISTIC, SAMPLE = "deterministic", "sample"
MODES = DETERMINISTIC, SAMPLE


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


def sha256_of(path: str) -> str:
    """Return the SHA-256 of a file in hexadecimal; "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
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
        Of the content, in hexadecimal; of a policy that is made, "".
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
