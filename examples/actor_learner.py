"""Train PPO in PyTorch with the policy on the ranks: they act, this learns.

    mpirun -n 2 python examples/actor_learner.py
    mpirun -n 2 python examples/actor_learner.py --ahead

All ranks have the policy and choose the actions of their own envs, a fragment at a time.  Rank 0 learns from the
fragments and sends them its parameters.  With --ahead the ranks take the next fragment while it learns: they are then
one version behind.  The loss is that of Schulman et al. (2017), arXiv:1707.06347; the advantages are those of Schulman
et al. (2015), arXiv:1506.02438.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn

import mpi_rollout

GAMMA, LAMBDA, CLIP, EPOCHS, MINIBATCH = 0.98, 0.9, 0.2, 8, 512


class ActorCritic(nn.Module):
    """What acts on the ranks and learns on rank 0."""

    num_uniforms = 1
    extras = {"log_prob": "f4", "value": "f4"}

    def __init__(self):
        super().__init__()
        self.actor, self.critic = network(2), network(1)

    def act(self, observations, env_indices, uniforms):  # (B, 4), (B,), (B, 1)
        """Draw actions: the first whose cumulative probability exceeds the uniform number."""
        with torch.no_grad():
            x = torch.from_numpy(observations)
            log_probs, values = self.actor(x).log_softmax(1).numpy(), self.critic(x)[:, 0].numpy()
        actions = (uniforms > np.exp(log_probs).cumsum(1)[:, :-1]).sum(1)
        return actions, {"log_prob": np.take_along_axis(log_probs, actions[:, None], 1)[:, 0], "value": values}


def network(num_outputs):
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, num_outputs))


def transitions(batch, model):
    """Return observations, actions, log_probs, advantages and returns of the rows that are transitions.

    The row after an episode's end only resets its env; the policy saw the last observation there, so its value is the
    one to go on from where a time limit has cut the episode.
    """
    values, rewards = batch["extras"]["value"], batch["rewards"]
    with torch.no_grad():
        last = model.critic(torch.from_numpy(batch["last_observations"]))[:, 0].numpy()
    ends = batch["terminations"] | batch["truncations"]
    after = np.concatenate([values[1:], last[None]])
    errors = rewards + GAMMA * after * ~batch["terminations"] - values
    advantages, carried = np.zeros_like(values), 0.0
    for step in reversed(range(len(errors))):
        carried = advantages[step] = errors[step] + GAMMA * LAMBDA * ~ends[step] * carried
    is_transition = np.concatenate([rewards[:1] == 1, ~ends[:-1]])  # CartPole's reward is 0 in a reset row.
    columns = batch["observations"], batch["actions"], batch["extras"]["log_prob"], advantages, advantages + values
    return [torch.from_numpy(np.asarray(column[is_transition])) for column in columns]


def learn(model, optimizer, batch):
    """Take some passes over a fragment."""
    observations, actions, old_log_probs, advantages, returns = transitions(batch, model)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(actions)).split(MINIBATCH):
            log_probs = model.actor(observations[rows]).log_softmax(1)
            ratio = (log_probs.gather(1, actions[rows, None])[:, 0] - old_log_probs[rows]).exp()
            advantage = (advantages[rows] - advantages[rows].mean()) / (advantages[rows].std() + 1e-8)
            gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
            value_loss = (model.critic(observations[rows])[:, 0] - returns[rows]).square().mean()
            optimizer.zero_grad()
            (0.5 * value_loss - gain).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()


def train(envs, options):
    """Learn until the mean return of the last 100 episodes is 475, or there were enough env steps; tell the way."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # More are slower with networks so small, and take cores from other ranks.
    model, start, num_steps = ActorCritic(), time.perf_counter(), 0
    optimizer, returns, running = torch.optim.Adam(model.parameters(), 1e-3), [], np.zeros(envs.num_envs)
    envs.set_policy(model.state_dict())
    envs.reset(seed=options.seed)
    batch = envs.collect(options.length)
    while num_steps < options.total_steps:
        if options.ahead:
            envs.collect_async(options.length)
        learn(model, optimizer, batch)
        for rewards, ends in zip(batch["rewards"], batch["terminations"] | batch["truncations"], strict=True):
            running += rewards
            returns += running[ends].tolist()
            running[ends] = 0
        num_steps += int(batch["rewards"].sum())
        mean = np.mean(returns[-100:]) if returns else 0
        print(f"{num_steps:,} env steps, {time.perf_counter() - start:.1f} s, mean return {mean:.0f}", flush=True)
        if options.ahead:
            batch = envs.collect_wait()
        envs.set_policy(model.state_dict())
        if mean >= 475:
            break
        if not options.ahead:
            batch = envs.collect(options.length)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-envs", type=int, default=64, help="number of envs on all ranks together")
    parser.add_argument("--length", type=int, default=64, help="steps of a fragment")
    parser.add_argument("--total-steps", type=int, default=500_000, help="env steps at most, over all envs")
    parser.add_argument("--ahead", action="store_true", help="learn from a fragment while the ranks take the next one")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with mpi_rollout.connect("CartPole-v1", options.num_envs, policy=ActorCritic, infos="none") as envs:
        if envs is not None:  # Rank 0.
            train(envs, options)


if __name__ == "__main__":
    main()
