"""Train with V-trace on envs of uneven speed: the ranks act, and nobody waits for the slowest.

    mpirun -n 5 python examples/impala.py
    mpirun -n 5 python examples/impala.py --mode fragments
    mpirun -n 5 python examples/impala.py --mode lockstep

Rank 0 learns, the others act.  The steps of the first half of the envs take four times as long as those of the others.

async      a fragment is learnt from as soon as one rank has taken it; that rank goes on with the newest parameters
fragments  all ranks take a fragment, then it is learnt from
lockstep   the same, and the ranks wait for each other in each step

A fragment is older than the parameters by what was learnt meanwhile.  V-trace corrects for that; see Espeholt et al.
(2018), arXiv:1802.01561, section 4.  The loss is that of PPO, as in RLlib's APPO.
"""

import argparse
import math
import time
from functools import partial

import gymnasium
import numpy as np
import torch
from actor_learner import LAMBDA, LEARNING_RATE, ActorCritic, learn, tell

import mpi_rollout

ENV, GAMMA, SCALE, ENOUGH = "CartPole-v1", 0.98, 0.1, 475
SLOW_S = 0.0004


class Uneven(gymnasium.Wrapper):
    """An env whose steps take a time that varies, and that depends on the env."""

    def __init__(self, env, mean_s, seed):
        super().__init__(env)
        self.mean_s, self.rng = mean_s, np.random.default_rng(seed)

    def step(self, action):
        time.sleep(self.rng.exponential(self.mean_s))  # A simulator would compute.
        return self.env.step(action)


def make_env(num_envs, env_index):
    return Uneven(gymnasium.make(ENV), SLOW_S if env_index < num_envs // 2 else SLOW_S / 4, env_index)


def transitions(batch, is_reset, model):
    """Return what `actor_learner.transitions` returns, for actions of a policy that was somewhat older: V-trace.

    The sums of errors are cut where an episode ends, and by ratios of probabilities, at most 1.
    """
    observations = np.concatenate([batch["observations"], batch["last_observations"][None]])
    rewards, old_log_probs = SCALE * batch["rewards"], batch["extras"]["log_prob"]
    with torch.no_grad():
        x = torch.from_numpy(observations)
        log_probs = model.log_prob(model.actor(x[:-1]).flatten(0, 1), torch.from_numpy(batch["actions"]).flatten())
        values = model.critic(x)[..., 0].numpy()
    ratios = np.minimum(1, np.exp(log_probs.numpy().reshape(rewards.shape) - old_log_probs))
    ends, goes_on = batch["terminations"] | batch["truncations"], ~batch["terminations"]
    errors = ratios * (rewards + GAMMA * values[1:] * goes_on - values[:-1])
    corrections, carried = np.zeros_like(errors), 0.0
    for step in reversed(range(len(errors))):
        carried = corrections[step] = errors[step] + GAMMA * LAMBDA * ratios[step] * ~ends[step] * carried
    targets = values[:-1] + corrections
    # After an end comes a row that only resets: what is worth something there is the last observation.
    after = np.where(ends, values[1:], np.concatenate([targets[1:], values[-1:]]))
    advantages = rewards + GAMMA * after * goes_on - values[:-1]
    is_transition = ~np.concatenate([is_reset[None], ends[:-1]])
    columns = batch["observations"], batch["actions"], old_log_probs, np.float32(advantages), np.float32(targets)
    return [torch.from_numpy(column[is_transition]) for column in columns]


def fragments(envs, model, length, mode):
    """Yield fragments for ever, each with the envs that it is of."""
    everybody = np.arange(envs.num_envs)
    envs.set_policy(model.state_dict())
    if mode == "async":
        envs.collect_async(length)
    while True:
        if mode == "async":
            batch = envs.collect_some()
            yield batch, batch["envs_slice"]
            envs.set_policy(model.state_dict())
            envs.collect_async(length, envs_slice=batch["envs_slice"])
        else:
            yield (
                envs.collect(length) if mode == "fragments" else joined([envs.collect(1) for _ in range(length)]),
                everybody,
            )
            envs.set_policy(model.state_dict())


def joined(batches):
    """Return fragments that follow each other as one."""
    names = "observations", "actions", "rewards", "terminations", "truncations"
    whole = {name: np.concatenate([batch[name] for batch in batches]) for name in names}
    log_probs = np.concatenate([batch["extras"]["log_prob"] for batch in batches])
    return {**whole, "extras": {"log_prob": log_probs}, "last_observations": batches[-1]["last_observations"]}


def train(envs, options, tell):
    """Learn until the mean return of the last 100 episodes is enough, or there were enough env steps."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    model, start, num_steps, returns = ActorCritic(ENV), time.perf_counter(), 0, []
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    running, is_reset = np.zeros(envs.num_envs), np.zeros(envs.num_envs, bool)
    envs.reset(seed=options.seed)
    for batch, indices in fragments(envs, model, options.length, options.mode):
        ends = batch["terminations"] | batch["truncations"]
        for rewards, ended in zip(batch["rewards"], ends, strict=True):
            running[indices] += rewards
            returns += running[indices[ended]].tolist()
            running[indices[ended]] = 0
        data = transitions(batch, is_reset[indices], model)
        is_reset[indices] = ends[-1]
        learn(model, optimizer, data)
        num_steps += len(data[0])
        mean = np.mean(returns[-100:]) if returns else math.nan
        tell(num_steps, time.perf_counter() - start, mean, model)
        if mean >= ENOUGH or num_steps >= options.total_steps:
            break


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("async", "fragments", "lockstep"), default="async")
    parser.add_argument("--num-envs", type=int, default=16, help="number of envs on all ranks together")
    parser.add_argument("--length", type=int, default=128, help="steps of a fragment")
    parser.add_argument("--total-steps", type=int, default=500_000, help="env steps at most, over all envs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    first_ready = {"batch_size": 1} if options.mode == "async" else {}
    with mpi_rollout.connect(
        partial(make_env, options.num_envs),
        options.num_envs,
        policy=partial(ActorCritic, ENV),
        root_envs=0,
        infos="none",
        wait="sleep",
        **first_ready,
    ) as envs:
        if envs is not None:  # Rank 0.
            train(envs, options, tell)


if __name__ == "__main__":
    main()
