"""A policy that is asked for blocks of envs: of a file, or what the user's `make_policy` returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from mpi_rollout.core.column_types import check_names
from mpi_rollout.core.columns import typed_leaves
from mpi_rollout.core.spaces import Leaf, Space, Tree, leaves, tree_of
from mpi_rollout.errors import Option, PolicyError, UsageError
from mpi_rollout.options import AUTO, SharedOptions
from mpi_rollout.policies.devices import device_here
from mpi_rollout.policies.memory import NONE, names_taken
from mpi_rollout.policies.parameters import load_module
from mpi_rollout.process.paths import load_callable, misfit
from mpi_rollout.text import words_of

if TYPE_CHECKING:
    import torch

DETERMINISTIC, SAMPLE = "deterministic", "sample"
POLICY = Option("policy")
DEFAULTS = SharedOptions()
Policy: TypeAlias = Callable[..., Tree]  # It takes a batch of observations and returns a batch of actions.


@dataclass(frozen=True)
class Model:
    """A policy that is asked for the actions of a block of envs.

    What it returns for an env depends on that env's arguments only; of earlier calls it knows by its state alone.

    Attributes
    ----------
    act
        Takes three arguments: observations of shape (num_envs, ...), or a tree of such arrays, in which rows of envs
        that are not asked for are zero; env_indices (num_envs,) int64; and uniforms (num_envs, num_uniforms) float64
        in [0, 1), which are those of (seed, env index, step), whichever rank asks.  It returns actions of shape
        (num_envs, ...), or a tree of such arrays; with `extras` also a dict of arrays (num_envs, ...); with a state
        also the new state: all of these in one tuple.
    num_uniforms
        Random numbers that it needs for each env and step; 0 where it does not draw.
    extras
        What it gives besides actions.
    owner
        Has the parameters: a torch module, or an object with `parameters` and `load`.
    takes
        Which of the keywords state, episode_starts and infos `act` takes.  The state is None at first, and then what
        `act` returned for these envs: arrays (num_envs, ...), in dicts, tuples or lists.  Where `episode_starts`
        (num_envs,) is true, an env begins with a new state.  `infos` is a dict of arrays (num_envs, ...) and of masks.
    """

    act: Policy
    num_uniforms: int = 0
    extras: tuple[Leaf, ...] = ()
    owner: object = None
    takes: frozenset[str] = NONE

    def parameters(self) -> dict[str, object] | None:
        """Return its parameters, arrays or tensors by their names; None if it has none that can be set."""
        if _is_module(self.owner):
            return dict(self.owner.state_dict())
        parameters = getattr(self.owner, "parameters", None)
        parameters = parameters() if callable(parameters) else parameters
        can_load = callable(getattr(self.owner, "load", None))
        return dict(parameters) if can_load and isinstance(parameters, Mapping) else None

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        """Take these parameters, all that there are, with the same names, dtypes and shapes; they are its own."""
        owner: Any = self.owner
        if _is_module(owner):
            load_module(owner, parameters)
        else:
            owner.load(parameters)


def _is_module(owner: object) -> TypeGuard["torch.nn.Module"]:
    return hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")


@dataclass(frozen=True)
class PolicySource:
    """Where a policy comes from: what one rank reads, and other ranks can load."""

    kind: str  # That of the file, see `core.policy_kinds`, or "random", "made" by `make_policy`, "called".
    name: str  # What `--policy` was given.
    content: bytes = b""  # Of the file.
    sha256: str = ""  # The digest of the file and its weights, in hexadecimal.
    mode: str = DETERMINISTIC  # Or SAMPLE.
    is_trusted: bool = False  # Pickled code of the file may be executed.
    device: str = AUTO  # As `--policy-device` has it; for a loader of files, this rank's own.
    call: Policy | None = None  # The callable of the kind "called", on the rank that has it.


def called_model(policy: Policy, space: Space, name: str) -> Model:
    """Return a model that asks a callable of this name for blocks; `space` is of one env's observations."""
    parts, takes = leaves(space), names_taken(policy, 1, name)
    if why := misfit(policy, None, **dict.fromkeys(takes)):
        way_out = "one that takes env_indices and uniforms is returned by a function whose name begins with make_"
        raise UsageError(POLICY, f" {name} is called with observations: {why}; {way_out}")

    def act(observations: Tree, _env_indices: np.ndarray, _uniforms: np.ndarray, **others: object) -> Tree:
        # What a callable gets is its own: it may keep it.
        return policy(tree_of(space, [np.array(leaf.of(observations)) for leaf in parts]), **others)

    return Model(act, takes=takes)


def make_model(spec: str | Callable[..., object], options: SharedOptions = DEFAULTS) -> Model:
    """Call what `--policy` names, or what `connect` was given; see `called_once` and `made_model`."""
    make = load_callable(spec, POLICY) if isinstance(spec, str) else spec
    name = spec if isinstance(spec, str) else getattr(spec, "__qualname__", repr(spec))
    return made_model(called_once(make, name, options), name)


def called_once(make: Callable[..., object], name: str, options: SharedOptions) -> object:
    """Make a policy; UsageError if what makes it takes other arguments, PolicyError if it raises."""
    given, device = options.policy_kwargs, options.policy_device
    if device != AUTO:
        given = {"device": device_here(device), **given}
    if why := misfit(make, **given):
        takes = ", ".join(signature(make).parameters) or "no arguments"
        by = Option("policy_kwargs"), " and ", Option("policy_device")
        raise UsageError(POLICY, f" {name} is called once, to make the policy: {why}; it takes {takes}, by ", *by)
    try:
        return make(**given)
    except Exception as error:
        raise PolicyError(POLICY, f" {name}: {name.rpartition(':')[2]}() raises {words_of(error)}") from error


def made_model(policy: object, name: str) -> Model:
    """Return the model that a `make_policy` of this name made; UsageError if it is none.

    It has a method `act(observations, env_indices, uniforms)`, which may take what `Model.takes` says too, and it may
    have `num_uniforms` and `extras`.
    """
    act = getattr(policy, "act", None)
    takes = names_taken(act, 3, name) if callable(act) else NONE
    if not callable(act) or misfit(act, None, None, None, **dict.fromkeys(takes)):
        raise UsageError(
            POLICY,
            f" {name} must return an object with a method act(observations, env_indices, uniforms), got "
            f"{type(policy).__name__}",
        )
    number = getattr(policy, "num_uniforms", 0)
    if not isinstance(number, int | np.integer) or number < 0:
        raise UsageError(
            POLICY, f" {name}: num_uniforms must be a number of random numbers for each env, got {number!r}"
        )
    return Model(act, int(number), _extras_of(policy, name), policy, takes)


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
        raise UsageError(POLICY, f" {what}: {error}") from error
