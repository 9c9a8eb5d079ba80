"""Policies of the user's own: a callable on rank 0, or what a `make_policy` returns on each rank."""

import os
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np

from mpi_rollout.core.column_types import check_names
from mpi_rollout.core.info_columns import typed_leaves
from mpi_rollout.core.policy_kinds import MAKE_POLICY, SUFFIXES
from mpi_rollout.core.spaces import Leaf, Space, Tree, leaves, tree_of
from mpi_rollout.errors import PolicyError, UsageError
from mpi_rollout.policies.model import Model, Policy
from mpi_rollout.process.paths import colon_hint, load_callable, load_object, located
from mpi_rollout.text import words_of


def load_policy(spec: str) -> Policy:
    """Return the policy that `--policy` names: a function, or an object that is callable or has a method `act`.

    A class is called once, without arguments.

    Raises
    ------
    UsageError
        There is no such policy.
    PolicyError
        Its class raises.
    """
    if ":" not in spec:
        hint = colon_hint(spec) or _file_hint(spec)
        raise UsageError(f"--policy must be MODULE:CALLABLE or FILE.py:CALLABLE, got {spec!r}{hint}")
    policy = load_object(spec, "--policy")
    if isinstance(policy, type):
        policy = _instance(policy, spec)
    if not callable(policy):
        policy = getattr(policy, "act", policy)
    if not callable(policy):
        name = type(policy).__name__
        raise UsageError(f"--policy {spec} is {name}, not callable; give a function of a batch of observations")
    return policy


def _file_hint(spec: str) -> str:
    """Return the end of a message: who trained with Stable-Baselines3 is used to names without `.zip`."""
    names = [spec + suffix for suffix in SUFFIXES if os.path.isfile(located(spec + suffix))]
    if names:
        return f"; did you mean {names[0]}?"
    return f"; the file of a network ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"


def _instance(kind: type, spec: str) -> object:
    try:
        signature(kind).bind()
    except ValueError:  # C code may not tell its signature.
        pass
    except TypeError as error:
        module = spec.rpartition(":")[0]
        raise UsageError(
            f"--policy {spec} is a class that needs arguments ({error}); make an instance in its module, such as "
            f"policy = {kind.__name__}(...), and give --policy {module}:policy"
        ) from error
    try:
        return kind()
    except Exception as error:
        raise PolicyError(f"--policy {spec}: {kind.__name__}() raises {words_of(error)}") from error


def called_model(policy: Policy, space: Space) -> Model:
    """Return a model that asks a callable block by block; `space` is of one env's observations."""
    parts = leaves(space)

    def act(observations: Tree, _env_indices: np.ndarray, _uniforms: np.ndarray) -> Tree:
        # What a callable gets is its own: it may keep it.
        return policy(tree_of(space, [np.array(leaf.of(observations)) for leaf in parts]))

    return Model(act)


def make_model(spec: str | Callable[[], object]) -> Model:
    """Call what `--policy` names, or what `connect` was given.

    Raises
    ------
    UsageError
        It cannot be imported, or what it returns has no `act(observations, env_indices, uniforms)`.
    PolicyError
        It raises.
    """
    make = load_callable(spec, "--policy") if isinstance(spec, str) else spec
    name = spec if isinstance(spec, str) else getattr(spec, "__qualname__", repr(spec))
    try:
        policy = make()
    except Exception as error:
        raise PolicyError(f"--policy {name}: {MAKE_POLICY}() raises {words_of(error)}") from error
    return made_model(policy, name)


def made_model(policy: Any, name: str) -> Model:
    """Return what a `make_policy` of this name returned as a model.

    Raises
    ------
    UsageError
        It has no such method, or its attributes are others than a model's.
    """
    if not _takes_three(getattr(policy, "act", None)):
        raise UsageError(
            f"--policy {name} must return an object with a method act(observations, env_indices, uniforms), got "
            f"{type(policy).__name__}"
        )
    number = getattr(policy, "num_uniforms", 0)
    if not isinstance(number, int | np.integer) or number < 0:
        raise UsageError(
            f"--policy {name}: num_uniforms must be a number of random numbers for each env, got {number!r}"
        )
    return Model(policy.act, int(number), _extras_of(policy, name), owner=policy)


def _extras_of(policy: object, name: str) -> tuple[Leaf, ...]:
    extras = getattr(policy, "extras", {})
    try:
        if not isinstance(extras, Mapping):
            raise UsageError(f"it is {type(extras).__name__}")
        named = typed_leaves(extras)
        check_names(extras)
        return named
    except (UsageError, ValueError) as error:
        what = f"{name} must have extras such as {{'log_prob': 'f4', 'state': ['f4', 8]}}"
        raise UsageError(f"--policy {what}: {error}") from error


def _takes_three(act: object) -> bool:
    if not callable(act):
        return False
    try:
        signature(act).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # C code may not tell its signature.
        pass
    return True
