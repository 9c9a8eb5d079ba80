"""Train PPO in PyTorch with the policy on the ranks: they act, this learns.

    mpirun -n 2 python examples/actor_learner.py
    mpirun -n 2 python examples/actor_learner.py --ahead
    mpirun -n 2 python examples/actor_learner.py --env Pendulum-v1

All ranks have the policy and choose the actions of their own envs, a fragment at a time.  Rank 0 learns from the
fragments and sends them its parameters.  With --ahead the ranks take the next fragment while it learns: they are then
one version behind.  The loss is that of Schulman et al. (2017), arXiv:1707.06347; the advantages are those of Schulman
et al. (2015), arXiv:1506.02438.
"""

import argparse
import math
import time
from functools import partial

import gymnasium
import numpy as np
import torch
from torch import nn

import mpi_rollout

LAMBDA, CLIP, EPOCHS, MINIBATCH, LEARNING_RATE = 0.9, 0.2, 8, 512, 1e-3
# For each env the discount, a factor that brings returns near to 1, and the mean return to stop at.
TASKS = {"CartPole-v1": (0.98, 0.1, 475), "Pendulum-v1": (0.9, 0.1, -200)}


class ActorCritic(nn.Module):
    """What acts on the ranks and learns on rank 0."""

    extras = {"log_prob": "f4", "value": "f4"}

    def __init__(self, env_id):
        super().__init__()
        env = gymnasium.make(env_id)
        self.is_discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
        num_inputs = env.observation_space.shape[0]
        num_outputs = env.action_space.n if self.is_discrete else env.action_space.shape[0]
        self.num_uniforms = 1 if self.is_discrete else num_outputs
        self.actor, self.critic = network(num_inputs, num_outputs), network(num_inputs, 1)
        self.log_std = nn.Parameter(torch.zeros(num_outputs))  # Of actions that are not discrete.

    def act(self, observations, env_indices, uniforms):  # (B, ...), (B,), (B, num_uniforms)
        """Draw actions from given numbers in [0, 1): those of an env and a step, whichever rank asks."""
        with torch.no_grad():
            x, uniforms = torch.from_numpy(observations), torch.from_numpy(uniforms).float()
            outputs = self.actor(x)
            if self.is_discrete:  # The first whose cumulative probability is above the uniform number.
                actions = (uniforms > outputs.softmax(1).cumsum(1)[:, :-1]).sum(1)
            else:
                actions = outputs + self.log_std.exp() * torch.special.ndtri(uniforms.clamp(1e-6, 1 - 1e-6))
            extras = {"log_prob": self.log_prob(outputs, actions).numpy(), "value": self.value(x).numpy()}
        return actions.numpy(), extras

    def log_prob(self, outputs, actions):
        """Return the logarithm of the probability, or its density, of actions, given what the actor has put out."""
        if self.is_discrete:
            return outputs.log_softmax(1).gather(1, actions[:, None])[:, 0]
        scores = (actions - outputs) / self.log_std.exp()
        return (-0.5 * scores.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(1)

    def value(self, x):
        return self.critic(x)[:, 0]


def network(num_inputs, num_outputs):
    return nn.Sequential(nn.Linear(num_inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_outputs))


def transitions(batch, is_reset, model, gamma):
    """Return observations, actions, log_probs, advantages and returns of the rows that are transitions.

    The row after an episode's end only resets its env; the policy saw the last observation there, so its value is the
    one to go on from where a time limit has cut the episode.  `is_reset`: the envs whose first row is such a one.
    """
    values, rewards = batch["extras"]["value"], batch["rewards"]
    with torch.no_grad():
        last = model.value(torch.from_numpy(batch["last_observations"])).numpy()
    ends = batch["terminations"] | batch["truncations"]
    after = np.concatenate([values[1:], last[None]])
    errors = (rewards + gamma * after * ~batch["terminations"] - values).astype(np.float32)
    advantages, carried = np.zeros_like(values), 0.0
    for step in reversed(range(len(errors))):
        carried = advantages[step] = errors[step] + gamma * LAMBDA * ~ends[step] * carried
    is_transition = ~np.concatenate([is_reset[None], ends[:-1]])
    columns = batch["observations"], batch["actions"], batch["extras"]["log_prob"], advantages, advantages + values
    return [torch.from_numpy(np.asarray(column[is_transition])) for column in columns]


def learn(model, optimizer, data):
    """Take some passes over the transitions of a fragment."""
    observations, actions, old_log_probs, advantages, returns = data
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(actions)).split(MINIBATCH):
            if len(rows) == 1:  # One row has no spread to divide by.
                continue
            ratio = (model.log_prob(model.actor(observations[rows]), actions[rows]) - old_log_probs[rows]).exp()
            advantage = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std() + 1e-8)
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            value_loss = (model.value(observations[rows]) - returns[rows]).square().mean()
            optimizer.zero_grad()
            (0.5 * value_loss - gain).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def fragments(envs, model, length, is_ahead):
    """Yield fragments for ever.  While one is learnt from, the ranks wait, or go on with the parameters before."""
    envs.set_policy(model.state_dict())
    batch = envs.collect(length)
    while True:
        if is_ahead:
            envs.collect_async(length)
        yield batch
        if is_ahead:
            batch = envs.collect_wait()
        envs.set_policy(model.state_dict())
        if not is_ahead:
            batch = envs.collect(length)


def train(envs, options, tell):
    """Learn until the mean return of the last 100 episodes is enough, or there were enough env steps."""
    gamma, scale, enough = TASKS[options.env]
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # More are slower with networks so small, and take cores from other ranks.
    model, start, num_steps = ActorCritic(options.env), time.perf_counter(), 0
    optimizer, returns = torch.optim.Adam(model.parameters(), LEARNING_RATE), []
    running, is_reset = np.zeros(envs.num_envs), np.zeros(envs.num_envs, bool)
    envs.reset(seed=options.seed)
    for batch in fragments(envs, model, options.length, options.ahead):
        ends = batch["terminations"] | batch["truncations"]
        for rewards, ended in zip(batch["rewards"], ends, strict=True):
            running += rewards
            returns += running[ended].tolist()
            running[ended] = 0
        data = transitions({**batch, "rewards": scale * batch["rewards"]}, is_reset, model, gamma)
        is_reset = ends[-1]
        learn(model, optimizer, data)
        num_steps += len(data[0])
        mean = np.mean(returns[-100:]) if returns else math.nan
        tell(num_steps, time.perf_counter() - start, mean, model)
        if mean >= enough or num_steps >= options.total_steps:
            break


def tell(num_steps, seconds, mean, model):
    print(f"{num_steps:,} env steps, {seconds:.1f} s, mean return {mean:.0f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=TASKS, default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=64, help="number of envs on all ranks together")
    parser.add_argument("--length", type=int, default=64, help="steps of a fragment")
    parser.add_argument("--total-steps", type=int, default=500_000, help="env steps at most, over all envs")
    parser.add_argument("--ahead", action="store_true", help="learn from a fragment while the ranks take the next one")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    policy = partial(ActorCritic, options.env)
    with mpi_rollout.connect(options.env, options.num_envs, policy=policy, infos="none") as envs:
        if envs is not None:  # Rank 0.
            train(envs, options, tell)


if __name__ == "__main__":
    main()
