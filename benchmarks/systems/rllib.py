"""RLlib's EnvRunners, which choose random actions by themselves."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mpi_rollout.studies.compare import Setup
from systems.stepped import Stepper

FRAGMENT_ROWS = 32  # Of all envs of a runner, that it gives at a time.


def _config(setup: Setup, num_runners: int) -> Any:
    from ray.rllib.algorithms.ppo import PPOConfig

    num_envs = setup.num_envs // max(num_runners, 1)
    config = PPOConfig().environment(setup.env["env"])
    return config.env_runners(num_env_runners=num_runners, num_envs_per_env_runner=num_envs)


def _length(episodes: Any) -> int:
    return sum(len(episode) for episode in episodes)


@contextmanager
def local(setup: Setup) -> Iterator[Stepper]:
    """Make a runner in this process."""
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    runner, num_steps = SingleAgentEnvRunner(config=_config(setup, 0)), FRAGMENT_ROWS * setup.num_envs

    def sample(is_first: bool = False) -> int:
        return _length(runner.sample(num_timesteps=num_steps, random_actions=True, force_reset=is_first))

    yield Stepper(lambda: sample(True), sample)
    runner.stop()


@contextmanager
def remote(setup: Setup) -> Iterator[Stepper]:
    """Make a runner in a process of its own for each core."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    import ray
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner

    num_runners = setup.num_cores
    ray.init(num_cpus=num_runners, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    kind, config = ray.remote(num_cpus=1)(SingleAgentEnvRunner), _config(setup, num_runners)
    runners = [kind.remote(config=config, worker_index=1 + place) for place in range(num_runners)]
    num_steps = FRAGMENT_ROWS * (setup.num_envs // num_runners)

    def sample(is_first: bool = False) -> int:
        given = {"num_timesteps": num_steps, "random_actions": True, "force_reset": is_first}
        return sum(map(_length, ray.get([runner.sample.remote(**given) for runner in runners])))

    yield Stepper(lambda: sample(True), sample)
    ray.shutdown()
