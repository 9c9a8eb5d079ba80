"""Policies that Stable-Baselines3 saved: PPO, A2C, DQN, SAC and TD3.

In deterministic mode they act as `model.predict(observations, deterministic=True)`, bit for bit for the same batch.
What `VecNormalize` knows of observations is not in these files: a policy that learned with it acts wrongly here.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy

from mpi_rollout.core.spaces import Space
from mpi_rollout.errors import ActionError, UsageError, first_line
from mpi_rollout.policies.heads import WAY_OUT, Head, clipped, refuse_nan
from mpi_rollout.policies.inputs import TRIAL_ROWS
from mpi_rollout.policies.model import SAMPLE, PolicySource
from mpi_rollout.policies.sampling import gaussian, num_normal_uniforms
from mpi_rollout.policies.sb3_spaces import check_space, learned_space
from mpi_rollout.policies.sb3_zip import ALGORITHMS, SavedPolicy, read_zip
from mpi_rollout.policies.torch_calls import TorchParameters, calling


class SB3Model(TorchParameters):
    """A policy that takes its most likely actions, as its `predict` does."""

    num_uniforms = 0

    def __init__(self, policy: Any, action_space: Space):
        self._policy, self._space = policy, action_space
        self.module = policy

    def act(self, observations: Any, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        with calling():
            tensor, _ = self._policy.obs_to_tensor(observations)
            try:
                actions = self._chosen(tensor, env_indices)
            except ValueError as error:  # Of torch's distributions.
                raise ActionError(f"the policy has no actions for envs {env_indices[0]} to {env_indices[-1]}: "
                                  f"{first_line(error)}") from error  # fmt: skip
        actions = actions.reshape(-1, *(self._space.shape or ()))
        if not isinstance(self._space, spaces.Box):
            return actions
        if self._policy.squash_output:
            return np.asarray(self._policy.unscale_action(actions))
        return np.clip(actions, self._space.low, self._space.high)

    def _chosen(self, tensor: Any, env_indices: np.ndarray) -> np.ndarray:
        return np.asarray(self._policy._predict(tensor, deterministic=True).numpy())


class GreedyModel(SB3Model):
    """DQN: the action of the highest value; in sample mode any action with the probability of exploration.

    Parameters
    ----------
    exploration
        0 takes no uniforms.
    """

    def __init__(self, policy: Any, action_space: Any, exploration: float):
        super().__init__(policy, action_space)
        self._exploration, self._num_actions = exploration, int(action_space.n)
        self.num_uniforms = 2 if exploration else 0

    def act(self, observations: Any, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        actions = super().act(observations, env_indices, uniforms)
        if self.num_uniforms:
            any_action = (uniforms[:, 1] * self._num_actions).astype(np.int64)
            actions = np.where(uniforms[:, 0] < self._exploration, any_action, actions)
        return actions

    def _chosen(self, tensor: Any, env_indices: np.ndarray) -> np.ndarray:
        values = self._policy.q_net(tensor)
        refuse_nan(values.numpy(), env_indices, "values of actions")
        return np.asarray(values.argmax(dim=1).numpy())


class DrawnModel(TorchParameters):
    """PPO and A2C that draw their actions."""

    def __init__(self, policy: Any, action_space: Space):
        self._policy, self._space, self._head = policy, action_space, Head(action_space, SAMPLE)
        self.module = policy
        self.num_uniforms = self._head.num_uniforms

    def act(self, observations: Any, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        with calling():
            tensor, _ = self._policy.obs_to_tensor(observations)
            # Not the policy's own, which extracts those for its value too.
            features = BasePolicy.extract_features(self._policy, tensor, self._policy.pi_features_extractor)
            outputs = [self._policy.action_net(self._policy.mlp_extractor.forward_actor(features))]
            if isinstance(self._space, spaces.Box):
                outputs.append(self._policy.log_std)
        return self._head([output.numpy() for output in outputs], env_indices, uniforms)


class SquashedModel(TorchParameters):
    """SAC that draws its actions: a Gaussian through tanh, scaled to the bounds."""

    def __init__(self, policy: Any, action_space: Any):
        self._policy, self._space = policy, action_space
        self.module = policy
        self.num_uniforms = num_normal_uniforms(action_space.low.size)

    def act(self, observations: Any, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        with calling():
            tensor, _ = self._policy.obs_to_tensor(observations)
            mean, log_std, _ = self._policy.actor.get_action_dist_params(tensor)
        drawn = np.tanh(gaussian(mean.numpy(), np.exp(log_std.numpy().astype(np.float64)), uniforms))
        scaled = self._policy.unscale_action(drawn.reshape(-1, *self._space.shape))
        return clipped(np.asarray(scaled), self._space)


def load(source: PolicySource, observation_space: Space, action_space: Space) -> Any:
    """Load a policy and try it on zeros.

    Raises
    ------
    UsageError, ActionError
        It is damaged, of another algorithm or other spaces, has code that only a trusted file may have, or nothing to
        draw from.
    """
    saved = read_zip(source.content, source.is_trusted)
    own_space = learned_space(observation_space, saved.data.get("observation_space"))
    check_space("actions", action_space, saved.data.get("action_space"))
    if isinstance(action_space, spaces.Discrete) and action_space.start:
        raise UsageError(f"SB3's actions begin with 0, the envs have {action_space}")
    policy = _built(saved, own_space, action_space)
    model = _model(policy, source.mode, saved, action_space)
    rows = TRIAL_ROWS[0]
    arrays = {key: np.zeros((rows, *space.shape), space.dtype) for key, space in _parts(observation_space)}
    observations = arrays if isinstance(observation_space, spaces.Dict) else arrays[""]
    try:
        model.act(observations, np.arange(rows), np.zeros((rows, model.num_uniforms)))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise UsageError(f"fails on observations of {observation_space}: {first_line(error)}") from error
    return model


def _parts(space: Space) -> list[tuple[str, Any]]:
    return list(space.spaces.items()) if isinstance(space, spaces.Dict) else [("", space)]


def _model(policy: Any, mode: str, saved: SavedPolicy, action_space: Space) -> Any:
    """Return the model that acts as a policy in a mode."""
    is_sampled = mode == SAMPLE
    if isinstance(policy, DQNPolicy):
        exploration = float(saved.data.get("exploration_rate") or 0.0) if is_sampled else 0.0
        return GreedyModel(policy, action_space, exploration)
    if not is_sampled:
        return SB3Model(policy, action_space)
    if isinstance(policy, TD3Policy):
        raise UsageError(f"TD3 has nothing to draw from; {WAY_OUT}")
    if getattr(policy, "actor", policy).use_sde:
        raise UsageError(f"with use_sde the noise belongs to a batch, not to an env; {WAY_OUT}")
    return (SquashedModel if isinstance(policy, SACPolicy) else DrawnModel)(policy, action_space)


class _NoOptimizer:
    """What a policy gets that does not learn: to make one of torch's would import its compiler, for a second."""

    def __init__(self, parameters: Iterable[Any], **_options: Any):
        pass


def _built(saved: SavedPolicy, observation_space: Space, action_space: Space) -> Any:
    """Make the policy with its weights.  The process's random numbers stay as they are."""
    kinds = ActorCriticPolicy, DQNPolicy, SACPolicy, TD3Policy
    if not (isinstance(saved.policy_class, type) and issubclass(saved.policy_class, kinds)):
        raise UsageError(f"the policy is {saved.policy_class}, none of {ALGORITHMS}")
    policy_class: Any = saved.policy_class
    arguments = dict(saved.policy_kwargs, optimizer_class=_NoOptimizer)
    if issubclass(saved.policy_class, ActorCriticPolicy):
        arguments |= {"use_sde": bool(saved.data.get("use_sde")), "ortho_init": False}
    try:
        with torch.random.fork_rng(devices=[]):
            policy: Any = policy_class(observation_space, action_space, lambda _progress: 0.0, **arguments)
        policy.load_state_dict(saved.weights)
    except Exception as error:
        name = saved.policy_class.__name__
        reason = " ".join(str(error).split())[:300]
        raise UsageError(f"{name} cannot be made for {observation_space} and {action_space}: {reason}") from error
    if hasattr(policy, "lstm_actor"):
        raise UsageError(f"the policy has a memory, and is none of {ALGORITHMS}")
    policy.set_training_mode(False)
    policy.requires_grad_(False)
    return policy
