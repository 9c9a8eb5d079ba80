"""Policies that Stable-Baselines3 saved: PPO, A2C, DQN, SAC and TD3; and of sb3-contrib RecurrentPPO and MaskablePPO.

In deterministic mode they act as `model.predict(observations, deterministic=True)`, bit for bit for the same batch.
What `VecNormalize` knows of observations is not in these files: a policy that learned with it acts wrongly here.
"""

import re
from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecTransposeImage
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch.overrides import TorchFunctionMode

from mpi_rollout.core.spaces import Space, Tree
from mpi_rollout.errors import ActionError, RolloutError, UsageError
from mpi_rollout.policies.devices import moving_to
from mpi_rollout.policies.memory import STATE
from mpi_rollout.policies.model import SAMPLE, Model, PolicySource
from mpi_rollout.policies.networks import WAY_OUT, Head, clipped, refuse_nan
from mpi_rollout.policies.sampling import gaussian, num_normal_uniforms
from mpi_rollout.policies.sb3_contrib import FORBIDDEN, arguments_of, swapped, takes_of
from mpi_rollout.policies.sb3_zip import ALGORITHMS, SavedPolicy, read_zip
from mpi_rollout.policies.torch_models import calling
from mpi_rollout.policies.untrusted import JsonObject
from mpi_rollout.text import first_line

Learned: TypeAlias = Any  # A policy of SB3: of four classes, which have other attributes each.


def load(source: PolicySource, observation_space: Space, action_space: Space) -> Model:
    """Load a policy."""
    saved = read_zip(source.content, source.is_trusted)
    own_space = learned_space(observation_space, saved.told("observation_space"))
    check_space("actions", action_space, saved.told("action_space"))
    if isinstance(action_space, spaces.Discrete) and action_space.start:
        raise UsageError(f"SB3's actions begin with 0, the envs have {action_space}")
    policy = _built(saved, own_space, action_space)
    with moving_to(source.device):
        policy.to(source.device)
    exploration = float(saved.data.get("exploration_rate") or 0.0)
    if source.mode == SAMPLE and (exploration or not isinstance(policy, DQNPolicy)):
        return _drawing(policy, action_space, exploration)
    return Model(partial(_greedy, policy, action_space), owner=policy, takes=takes_of(type(policy)))


def _drawing(policy: Learned, space: Any, exploration: float) -> Model:
    """Return a model that draws its actions, where the uniforms say all of it."""
    if isinstance(policy, DQNPolicy):
        return Model(partial(_exploring, policy, space, exploration), 2, owner=policy)
    if isinstance(policy, TD3Policy):
        raise UsageError("TD3 has nothing to draw from; ", *WAY_OUT)
    actor: Learned = getattr(policy, "actor", policy)
    if getattr(actor, "use_sde", False):
        raise UsageError("with use_sde the noise belongs to a batch, not to an env; ", *WAY_OUT)
    if isinstance(policy, SACPolicy):
        return Model(partial(_squashed, policy, space), num_normal_uniforms(space.low.size), owner=policy)
    if isinstance(space, spaces.MultiBinary) and not isinstance(policy, ActorCriticPolicy):
        raise UsageError(f"MaskablePPO has nothing to draw from for {space} here; ", *WAY_OUT)
    head, takes = Head(space, SAMPLE), takes_of(type(policy))
    act = partial(_drawn, policy, head, isinstance(space, spaces.Box))
    return Model(act, head.num_uniforms, owner=policy, takes=takes)


def _greedy(
    policy: Learned, space: Space, observations: Tree, env_indices: np.ndarray, _uniforms: np.ndarray, **others: Any
) -> Tree:
    """Return the likeliest actions, as `predict` does, and the new state of a policy that has one."""
    with calling():
        tensor, _ = policy.obs_to_tensor(observations)
        try:
            actions, *states = _best(policy, tensor, env_indices, others)
        except RolloutError:  # An ActionError is a ValueError, and says itself what is wrong.
            raise
        except ValueError as error:  # The distributions of torch raise it.
            raise ActionError(f"the policy has no actions for envs {env_indices[0]} to {env_indices[-1]}: "
                              f"{first_line(error)}") from error  # fmt: skip
    actions = actions.reshape(-1, *(space.shape or ()))
    if isinstance(space, spaces.Box) and policy.squash_output:
        actions = np.asarray(policy.unscale_action(actions))
    elif isinstance(space, spaces.Box):
        actions = np.clip(actions, space.low, space.high)
    return (actions, *states) if states else actions


def _best(policy: Learned, tensor: torch.Tensor, env_indices: np.ndarray, others: dict[str, Any]) -> list[Any]:
    """Return the likeliest actions, and the new state of a policy that has one."""
    if isinstance(policy, DQNPolicy):
        values = policy.q_net(tensor)
        refuse_nan(values.numpy(force=True), env_indices, "values of actions")
        return [np.asarray(values.argmax(dim=1).numpy(force=True))]
    given = policy._predict(tensor, deterministic=True, **arguments_of(policy, len(env_indices), others))
    return [given[0].numpy(force=True), swapped(given[1])] if STATE in others else [given.numpy(force=True)]


def _exploring(
    policy: Learned,
    space: spaces.Discrete,
    exploration: float,
    observations: Tree,
    env_indices: np.ndarray,
    uniforms: np.ndarray,
) -> np.ndarray:
    """Return DQN's actions: any action with the probability of exploration."""
    actions = _greedy(policy, space, observations, env_indices, uniforms)
    any_action = (uniforms[:, 1] * int(space.n)).astype(np.int64)
    return np.where(uniforms[:, 0] < exploration, any_action, actions)


def _drawn(
    policy: Learned,
    head: Head,
    is_box: bool,
    observations: Tree,
    env_indices: np.ndarray,
    uniforms: np.ndarray,
    **others: Any,
) -> Tree:
    """Return draws of PPO and A2C, and the new state of a policy that has one."""
    arguments = arguments_of(policy, len(env_indices), others)
    with calling():
        tensor, _ = policy.obs_to_tensor(observations)
        # Not the policy's own, which extracts those for its value too.
        features = BasePolicy.extract_features(policy, tensor, policy.pi_features_extractor)
        if STATE in others:
            features, states = policy._process_sequence(features, *arguments.values(), policy.lstm_actor)
        outputs = [policy.action_net(policy.mlp_extractor.forward_actor(features))]
        if "action_masks" in arguments:
            outputs[0] = torch.where(arguments["action_masks"], outputs[0], FORBIDDEN)
        if is_box:
            outputs.append(policy.log_std)
    actions = head([output.numpy(force=True) for output in outputs], env_indices, uniforms)
    return (actions, swapped(states)) if STATE in others else actions


def _squashed(
    policy: Learned, space: spaces.Box, observations: Tree, _env_indices: np.ndarray, uniforms: np.ndarray
) -> np.ndarray:
    """Return draws of SAC: of a Gaussian through tanh, scaled to the bounds."""
    with calling():
        tensor, _ = policy.obs_to_tensor(observations)
        mean, log_std, _ = policy.actor.get_action_dist_params(tensor)
    drawn = np.tanh(gaussian(mean.numpy(force=True), np.exp(log_std.numpy(force=True).astype(np.float64)), uniforms))
    return clipped(np.asarray(policy.unscale_action(drawn.reshape(-1, *space.shape))), space)


class _NoOptimizer:
    """What a policy gets that does not learn: to make one of torch's would import its compiler, for a second."""

    def __init__(self, parameters: Iterable[object], **_options: object):
        pass


class _Weightless(TorchFunctionMode):
    """Within it networks are made without memory for weights, whatever sizes a file claims."""

    def __enter__(self) -> Self:
        self._device = torch.device("meta")
        self._device.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._device.__exit__(*error)

    def __torch_function__(self, function: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        if function is torch.Tensor.to:  # SB3 puts each network on the CPU.
            return args[0]
        if function is torch.Tensor.__bool__:  # The checks of torch's distributions, which gSDE draws from.
            return True
        return function(*args, **(kwargs or {}))


def _built(saved: SavedPolicy, observation_space: Space, action_space: Space) -> Learned:
    """Make the policy with its weights.  The process's random numbers stay as they are."""
    kinds = ActorCriticPolicy, DQNPolicy, SACPolicy, TD3Policy
    is_class = isinstance(saved.policy_class, type)
    if not (is_class and (issubclass(saved.policy_class, kinds) or takes_of(saved.policy_class))):
        raise UsageError(f"the policy is {saved.policy_class}, none of {ALGORITHMS}")
    policy_class: Learned = saved.policy_class
    arguments = dict(saved.policy_kwargs, optimizer_class=_NoOptimizer)
    if issubclass(policy_class, ActorCriticPolicy):
        arguments["use_sde"] = bool(saved.data.get("use_sde"))
    if not issubclass(policy_class, kinds[1:]):
        arguments["ortho_init"] = False
    try:
        with torch.random.fork_rng(devices=[]), nullcontext() if saved.is_trusted else _Weightless():
            policy: Learned = policy_class(observation_space, action_space, lambda _progress: 0.0, **arguments)
        policy.load_state_dict(saved.weights, assign=not saved.is_trusted)
    except Exception as error:
        name, reason = policy_class.__name__, " ".join(str(error).split())[:300]
        raise UsageError(f"{name} cannot be made for {observation_space} and {action_space}: {reason}") from error
    policy.set_training_mode(False)
    return policy


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
    """Tell whether a file says of a Dict space that it has parts of other names or types; weights tell their sizes."""
    text = told.get("spaces")
    parts = {match["name"]: match["type"] for match in _PART.finditer(text if isinstance(text, str) else "")}
    return bool(parts) and parts != {name: type(part).__name__ for name, part in space.spaces.items()}


# A part of a Dict space in its text: 'place': Box(-1.0, 1.0, (2,), float32), or of older Gymnasium ('place', Box(...)).
_PART = re.compile(r"""(?P<quote>['"])(?P<name>(?:(?!(?P=quote)).)*)(?P=quote)(?:: |, )(?P<type>[A-Z]\w+)\(""")


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
