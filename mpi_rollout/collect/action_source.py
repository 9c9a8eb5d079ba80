"""Where the actions of a run come from: rank 0 or each rank draws them, or a policy is asked on either."""

from functools import partial

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.policy_kinds import MAKE_POLICY
from mpi_rollout.drive.actions import (
    ActionSource,
    ModelActions,
    PolicyActions,
    PolicyOnRanks,
    RandomActions,
    RankActions,
    ranks_draw,
    too_short,
)
from mpi_rollout.drive.driver import Driver
from mpi_rollout.policies.blocks import BlockPolicy
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.policies.sources import load_model


def make_source(
    config: RolloutConfig, policy: PolicySource, driver: Driver, most: int, has_reset_rows: bool
) -> ActionSource:
    """Load the policy, on all ranks if they ask it; return where the actions come from.

    `most` is the largest number of steps between two exchanges.
    """
    if config.is_random:
        random = RandomPolicy(driver.action_space, config.num_envs, config.seed, config.first_env)
        return RankActions(driver) if ranks_draw(config, driver, most) else RandomActions(driver, random)
    if config.asks_on_ranks:
        on_ranks = PolicyOnRanks(driver, policy, config.actions, config.block, config.seed, config.first_env)
        return RankActions(driver, on_ranks)
    spaces = driver.observation_space, driver.action_space
    model = driver.worker.policy.model or load_model(policy, *spaces)
    if policy.call is not None and not config.asks_in_blocks and not model.takes:
        return PolicyActions(driver, policy.call, most)
    if most > 1:
        raise too_short(most, "leave out --policy-on root" if config.has_model else f"give a {MAKE_POLICY}")
    make = partial(
        BlockPolicy,
        model,
        *spaces,
        block=config.block,
        seed=config.seed,
        has_reset_rows=has_reset_rows,
        first_env=config.first_env,
    )
    return ModelActions(driver, make, policy.name)
