"""Policies of the user's own that act in blocks: what a `make_policy` returns."""

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Any

import numpy as np

from mpi_rollout.config import MAKE_POLICY
from mpi_rollout.core.info_types import is_name
from mpi_rollout.core.spaces import Leaf, Space, leaves, tree_of
from mpi_rollout.errors import PolicyError, UsageError, words_of
from mpi_rollout.exchange.infos import info_leaves
from mpi_rollout.policies.model import Model
from mpi_rollout.process.loading import load_callable


class MadePolicy(Model):
    """What `make_policy()` returned, as a `Model`."""

    def __init__(self, policy: Any, name: str) -> None:
        self._act: Callable[..., Any] = policy.act
        self.num_uniforms = int(getattr(policy, "num_uniforms", 0))
        self.extras = _extras_of(policy, name)
        self.policy = policy
        self._is_module = hasattr(policy, "state_dict") and hasattr(policy, "load_state_dict")

    def act(self, observations: Any, env_indices: np.ndarray, uniforms: np.ndarray) -> Any:
        return self._act(observations, env_indices, uniforms)

    def parameters(self) -> dict[str, Any] | None:
        if self._is_module:
            return dict(self.policy.state_dict())
        parameters = getattr(self.policy, "parameters", None)
        parameters = parameters() if callable(parameters) else parameters
        can_load = callable(getattr(self.policy, "load", None))
        return dict(parameters) if can_load and isinstance(parameters, Mapping) else None

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        if not self._is_module:
            self.policy.load(parameters)
            return
        from mpi_rollout.policies.torch_calls import TorchParameters  # Only who has a module has torch.

        of_module = TorchParameters()
        of_module.module = self.policy
        of_module.load(parameters)


class CalledModel(Model):
    """A callable on batches of observations, asked block by block.

    Parameters
    ----------
    space
        Of one env's observations.
    """

    def __init__(self, policy: Callable[[Any], Any], space: Space):
        self._policy, self._space = policy, space

    def act(self, observations: Any, env_indices: np.ndarray, uniforms: np.ndarray) -> Any:
        # What a callable gets is its own: it may keep it.
        return self._policy(tree_of(self._space, [np.array(leaf.of(observations)) for leaf in leaves(self._space)]))


def make_model(spec: str | Callable[[], Any]) -> Model:
    """Call what `--policy` names, or what `connect` was given.

    Raises
    ------
    UsageError
        It cannot be imported, or what it returns has no `act(observations, env_indices, uniforms)`.
    PolicyError
        It raises.
    """
    make = load_callable(spec, "--policy") if isinstance(spec, str) else spec
    spec = spec if isinstance(spec, str) else getattr(spec, "__qualname__", repr(spec))
    try:
        policy = make()
    except Exception as error:
        raise PolicyError(f"--policy {spec}: {MAKE_POLICY}() raises {words_of(error)}") from error
    if not _takes_three(getattr(policy, "act", None)):
        raise UsageError(
            f"--policy {spec} must return an object with a method act(observations, env_indices, uniforms), got "
            f"{type(policy).__name__}"
        )
    number = getattr(policy, "num_uniforms", 0)
    if not isinstance(number, int | np.integer) or number < 0:
        raise UsageError(
            f"--policy {spec}: num_uniforms must be a number of random numbers for each env, got {number!r}"
        )
    return MadePolicy(policy, spec)


def _extras_of(policy: Any, name: str) -> tuple[Leaf, ...]:
    extras = getattr(policy, "extras", {})
    try:
        if not isinstance(extras, Mapping):
            raise UsageError(f"it is {type(extras).__name__}")
        named = info_leaves(extras)
        _check_storable(named)
        return named
    except UsageError as error:
        what = f"{name} must have extras such as {{'log_prob': 'f4', 'state': ('f4', (8,))}}"
        raise UsageError(f"--policy {what}: {error}") from error


def _check_storable(extras: tuple[Leaf, ...]) -> None:
    """Refuse names and shapes that a file cannot hold."""
    for leaf in extras:
        if not all(is_name(str(key)) for key in leaf.keys):
            raise UsageError(f"{leaf.path!r} cannot be a name in HDF5")
        if any(size < 1 for size in leaf.shape):
            raise UsageError(f"{leaf.path!r} must have sizes of at least 1, got {leaf.shape}")
        if any(other.keys[: len(leaf.keys)] == leaf.keys for other in extras if other is not leaf):
            raise UsageError(f"{leaf.path!r} cannot hold others and be an extra itself")


def _takes_three(act: object) -> bool:
    if not callable(act):
        return False
    try:
        signature(act).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # C code may not tell its signature.
        return True
    return all(parameter.kind != Parameter.KEYWORD_ONLY or parameter.default is not Parameter.empty
               for parameter in signature(act).parameters.values())  # fmt: skip
