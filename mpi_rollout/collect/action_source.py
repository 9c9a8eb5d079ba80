"""Where the actions of a run come from: rank 0 or each rank draws them, or a policy is asked on either."""

from functools import partial

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.policy_kinds import MAKE_POLICY
from mpi_rollout.core.spaces import leaves
from mpi_rollout.drive.actions import ModelActions, PolicyActions, RandomActions, RankActions, too_short
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.policy_on_ranks import PolicyOnRanks
from mpi_rollout.drive.source import Source
from mpi_rollout.exchange.orders import actions_nbytes
from mpi_rollout.options import AUTO
from mpi_rollout.policies.blocks import BlockPolicy
from mpi_rollout.policies.memory import check_infos
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.policies.sources import load_model

# The most bytes of random actions that rank 0 sends for a fragment: those of kernels, which take less time to step than
# to send, have more.
SENT_NBYTES = 2**20


def make_source(config: RolloutConfig, policy: PolicySource, driver: Driver, most: int, has_reset_rows: bool) -> Source:
    """Load the policy, on all ranks if they ask it; return where the actions come from.

    `most` is the largest number of steps between two exchanges.
    """
    if config.is_random:
        random = RandomPolicy(driver.action_space, config.num_envs, config.seed, config.first_env)
        return RankActions() if ranks_draw(config, driver, most) else RandomActions(random)
    if config.asks_on_ranks:
        on_ranks = PolicyOnRanks(driver, policy, config.actions, config.block, config.seed, config.first_env)
        return RankActions(on_ranks)
    spaces, envs_of_lanes = (driver.observation_space, driver.action_space), [lane.env_range for lane in driver.lanes]
    model = driver.worker.policy.model or load_model(policy, *spaces)
    if policy.call is not None and not config.asks_in_blocks and not model.takes:
        return PolicyActions(policy.call, envs_of_lanes, driver.action_space, driver.read, most)
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
    source = ModelActions(make, envs_of_lanes, driver.read)
    check_infos(source.takes, bool(driver.exchanges.contents.kept_infos), policy.name, driver.action_space)
    return source


def ranks_draw(config: RolloutConfig, driver: Driver, most: int) -> bool:
    """Tell whether each rank draws the random actions of its own envs; else rank 0 draws and sends those of all.

    `most` is the number of steps of the longest fragment.
    """
    if config.policy_on != AUTO:
        return config.policy_on == "workers"
    nbytes = actions_nbytes(leaves(driver.action_space), most * driver.num_envs)
    return config.on_rank_loss == "shrink" or nbytes > SENT_NBYTES
