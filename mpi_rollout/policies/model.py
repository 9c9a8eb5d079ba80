"""A policy that is asked for blocks of envs: of a file, or what the user's `make_policy` returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from mpi_rollout.core.spaces import Leaf, Tree
from mpi_rollout.policies.parameters import load_module

DETERMINISTIC, SAMPLE = "deterministic", "sample"
Policy: TypeAlias = Callable[[Tree], Tree]  # From a batch of observations to a batch of actions.
Act: TypeAlias = Callable[[Tree, np.ndarray, np.ndarray], Tree]  # See `Model.act`.


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

    def __init__(self, act: Act, num_uniforms: int = 0, extras: tuple[Leaf, ...] = (), owner: object = None):
        """`owner` has the parameters: a torch module, or an object with `parameters` and `load`."""
        self._act, self._owner = act, owner
        self.num_uniforms, self.extras = num_uniforms, extras

    @property
    def _is_module(self) -> bool:
        return hasattr(self._owner, "state_dict") and hasattr(self._owner, "load_state_dict")

    def parameters(self) -> dict[str, Any] | None:
        """Return its parameters, arrays or tensors by their names; None if it has none that can be set."""
        owner: Any = self._owner
        if self._is_module:
            return dict(owner.state_dict())
        parameters = getattr(owner, "parameters", None)
        parameters = parameters() if callable(parameters) else parameters
        can_load = callable(getattr(owner, "load", None))
        return dict(parameters) if can_load and isinstance(parameters, Mapping) else None

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        """Take these parameters, all that there are, with the same names, dtypes and shapes; they are its own."""
        owner: Any = self._owner
        if self._is_module:
            load_module(owner, parameters)
        else:
            owner.load(parameters)

    def act(self, observations: Tree, env_indices: np.ndarray, uniforms: np.ndarray) -> Tree:
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
        return self._act(observations, env_indices, uniforms)


@dataclass(frozen=True)
class PolicySource:
    """Where a policy comes from: what one rank reads, and other ranks can load.

    Parameters
    ----------
    kind
        See `core.policy_kinds`: the kind of the file, or "random", "made" by `make_policy`, "called".
    name
        What `--policy` was given.
    content
        The bytes of the file.
    sha256
        Of the file and its weights, in hexadecimal.
    mode
        "deterministic" or "sample".
    is_trusted
        Pickled code of the file may be executed.
    call
        The callable, on the rank that has it.
    """

    kind: str
    name: str
    content: bytes = b""
    sha256: str = ""
    mode: str = DETERMINISTIC
    is_trusted: bool = False
    call: Policy | None = None
