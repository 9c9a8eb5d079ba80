"""What a step costs on any number of ranks, as functions of numbers: alpha, beta, and the root's own work.

    step = E[slowest rank's envs] + exchange + policy
    exchange = root + alpha ceil(log2 p) + per_rank (p - 1) + per_env p n + beta bytes

for p ranks of n envs.  Sources: Hockney (1994) for alpha and beta; Thakur, Rabenseifner and Gropp (2005) for the
ceil(log2 p) of trees; the slowest of p ranks is the mean of the largest of p order statistics (David and Nagaraja,
2003).  The terms that are linear in p are the root's: it takes in all slots, and no tree makes them fewer.

In fragments of L steps, ranks exchange once in L steps: an exchange has L times as many rows, and they wait for the
slowest sum of L steps.  Each order has room for the actions of one step.  Where the root chooses those of a fragment,
L rows of them follow; where the workers do, none follow, and each acts for its own envs alone.

Where each node writes a shard, its ranks are a team: a step is that of one team, and the root of the job hears each
other team at each look.

First ready, with a root that has no envs, is a closed queue: a rank is away for its envs, then it waits until the root
has served it.  Its time is that of mean value analysis as Bard and Schweitzer (1979) approximate it, a quadratic
equation.
"""

import math
from bisect import bisect_left
from dataclasses import astuple, dataclass, replace

import numpy as np

from mpi_rollout.collect.collector import CollectorOptions

_MOST_RANKS = 2**40
_GRID = 4_001  # Points of an integral; its error is below 1e-4 of the spread.


@dataclass(frozen=True)
class Constants:
    """The constants of a machine and this program, in seconds; none is negative.

    `root_s...` are the root's work for an exchange: whatever its size, for each env, for each other rank.  `alpha_s` is
    a level of the tree of messages, there and back; `beta_s_per_byte` a byte that the root sends or receives;
    `policy_s...` a call of the policy, and each row of its batch; `write_s_per_env` a row of a file, and `commit_s`
    what a commit takes besides.  With first ready, `serve_s` is the root's work for a rank, and `away_s` what a message
    takes that keeps nobody else waiting.
    """

    root_s: float = 0.0
    root_s_per_env: float = 0.0
    root_s_per_rank: float = 0.0
    alpha_s: float = 0.0
    beta_s_per_byte: float = 0.0
    policy_s: float = 0.0
    policy_s_per_env: float = 0.0
    write_s_per_env: float = 0.0
    commit_s: float = 0.0
    serve_s: float = 0.0
    away_s: float = 0.0


NUM_EXCHANGE_PARTS = 5  # The first of them are an exchange's.


@dataclass(frozen=True)
class Workload:
    """The envs of each rank, and bytes of messages for one step: an env's action in the order; what a rank sends.

    Steps of an env are taken as independent, with a gamma distribution: positive, and skewed where the spread, a
    standard deviation, is large.
    """

    envs_per_rank: int
    env_step_s: float
    env_step_spread_s: float
    order_bytes_per_env: float
    slot_bytes: float


@dataclass(frozen=True)
class Way:
    """How many steps there are between two exchanges, whether the workers choose the actions, and who waits for whom.

    `ranks_per_shard` is 0 where all ranks wait for each other.  With first ready, nobody does, and rank 0 has no envs.
    """

    fragment_length: int = 1
    on_workers: bool = False
    ranks_per_shard: int = 0
    is_ready: bool = False

    @property
    def order_rows(self) -> int:
        """Rows of actions that the root sends for an exchange."""
        return 1 if self.on_workers or self.fragment_length == 1 else 1 + self.fragment_length

    @property
    def kind(self) -> tuple[bool, bool, int]:
        """The same for all that belongs to one curve."""
        return self.is_ready, self.ranks_per_shard > 0, self.fragment_length

    def num_stepping(self, num_ranks: int) -> int:
        """Ranks that have envs."""
        return num_ranks - self.is_ready


LOCKSTEP = Way()


@dataclass(frozen=True)
class Network:
    """What a message between nodes takes besides what it takes within one."""

    num_nodes: int = 1
    latency_s: float = 0.0
    s_per_byte: float = 0.0

    def round_trip_s(self, nbytes: float) -> float:
        """Return the seconds from an order to its answer of so many bytes."""
        return 2 * self.latency_s + self.s_per_byte * nbytes


ONE_NODE = Network()


@dataclass(frozen=True)
class Step:
    """Seconds of one step of all envs; for fragments a step's share of them."""

    env_s: float
    waiting_s: float
    exchange_s: float
    policy_s: float
    write_s: float = 0.0

    @property
    def root_s(self) -> float:
        """What is not the envs' and not due to their spread."""
        return self.exchange_s + self.policy_s + self.write_s

    @property
    def seconds(self) -> float:
        return sum(astuple(self))

    @property
    def efficiency(self) -> float:
        """Share of the time that ranks are in their envs."""
        return self.env_s / self.seconds


def predict(
    constants: Constants, work: Workload, num_ranks: int, way: Way = LOCKSTEP, network: Network = ONE_NODE
) -> Step:
    """Compute what a step takes on so many ranks."""
    if way.is_ready:
        return _first_ready(constants, work, way.num_stepping(num_ranks), network)
    if 0 < way.ranks_per_shard < num_ranks:
        return _sharded(constants, work, num_ranks, way)
    num_envs, length = num_ranks * work.envs_per_rank, way.fragment_length
    num_steps = work.envs_per_rank * length
    slowest_s = slowest(num_ranks, num_steps, work.env_step_s, work.env_step_spread_s)
    nbytes = work.order_bytes_per_env * num_envs * way.order_rows + (num_ranks - 1) * work.slot_bytes * length
    num_acted = work.envs_per_rank if way.on_workers else num_envs
    policy_s = constants.policy_s / length + constants.policy_s_per_env * num_acted
    parts = exchange_parts(num_ranks, num_envs * length, nbytes if num_ranks > 1 else 0.0)
    exchange_s = float(parts @ astuple(constants)[: len(parts)])
    if num_ranks > 1:
        exchange_s += network.round_trip_s(work.slot_bytes * length)
    env_s = work.envs_per_rank * work.env_step_s
    step = Step(env_s, slowest_s / length - env_s, exchange_s / length, policy_s)
    if not way.ranks_per_shard:
        return step
    commits_s = constants.commit_s * step.seconds / CollectorOptions.commit_every_s
    return replace(step, write_s=constants.write_s_per_env * num_envs + commits_s)


def _sharded(constants: Constants, work: Workload, num_ranks: int, way: Way) -> Step:
    """Compute a step of the root's team.  What another team tells costs at most what a rank does in an exchange."""
    step = predict(constants, work, way.ranks_per_shard, way)
    num_others = math.ceil(num_ranks / way.ranks_per_shard) - 1
    heard_s = num_others * constants.root_s_per_rank * step.seconds / CollectorOptions.look_every_s
    return replace(step, exchange_s=step.exchange_s + heard_s)


def _first_ready(constants: Constants, work: Workload, num_stepping: int, network: Network) -> Step:
    """Compute how long it takes until a rank is served again: waiting for others is a part of the exchange."""
    env_s = work.envs_per_rank * work.env_step_s
    away_s = env_s + constants.away_s + network.round_trip_s(work.slot_bytes)
    half = (num_stepping * constants.serve_s - away_s) / 2
    served_s = half + math.sqrt(half**2 + constants.serve_s * away_s)
    return Step(env_s, 0.0, away_s - env_s + served_s, 0.0)


def exchange_parts(num_ranks: int, num_rows: int, nbytes: float) -> np.ndarray:
    """Return how often an exchange pays each of the first `NUM_EXCHANGE_PARTS` constants."""
    return np.array([1.0, num_rows, num_ranks - 1, math.ceil(math.log2(num_ranks)), nbytes])


def slowest(num_ranks: int, num_steps: int, mean_s: float, spread_s: float) -> float:
    """Return the expected seconds of the slowest of some ranks, each of which takes `num_steps` env steps.

    A sum of gamma distributed times is gamma distributed too; E[max] is the integral of 1 - F(x)**num_ranks.
    """
    total_s = num_steps * mean_s
    if num_ranks == 1 or spread_s == 0 or mean_s == 0:
        return total_s
    from scipy.integrate import trapezoid
    from scipy.special import gammaincc

    shape = num_steps * (mean_s / spread_s) ** 2
    low = math.log(shape) - min(12 / math.sqrt(shape) + 37 / shape, 30)  # What lies below adds nothing.
    high = math.log(shape + 12 * math.sqrt(shape) + 60)
    log_x = np.linspace(low, high, _GRID)  # Over log x all shapes have a smooth integrand, without a pole.
    x = np.exp(log_x)
    above = np.minimum(gammaincc(shape, x), 1 - 1e-16)  # 1 has no logarithm below.
    largest_above = -np.expm1(num_ranks * np.log1p(-above))
    expected = math.exp(low) + trapezoid(largest_above * x, log_x)
    return total_s * max(1.0, float(expected) / shape)


def saturation(constants: Constants, work: Workload, way: Way = LOCKSTEP) -> int | None:
    """Find the least number of ranks where the root's share is as large as the envs'; None if there is none."""

    def is_over(num_ranks: int) -> bool:
        step = predict(constants, replace(work, env_step_spread_s=0.0), num_ranks, way)
        return step.root_s >= step.env_s

    found = bisect_left(range(1, _MOST_RANKS), True, key=is_over) + 1
    return found if found < _MOST_RANKS else None


def ceiling(constants: Constants, work: Workload, way: Way = LOCKSTEP) -> float:
    """Return the env steps per second that no number of such ranks exceeds.

    That is the rate that ever more ranks come close to, which is the root's, or the rate of a single rank, which
    sends no messages, if it is higher.  Proof: a step of p ranks takes at least A + B p seconds, where 1/B gives the
    limit of many ranks, and a step of a single rank takes at most A + B.  So if A is not negative, all rates stay
    below the limit; and if it is negative, no rate is above that of one rank.
    """
    if way.is_ready:
        return work.envs_per_rank / constants.serve_s if constants.serve_s else math.inf
    if way.ranks_per_shard:
        one = predict(constants, work, way.ranks_per_shard, way)
        heard_s = constants.root_s_per_rank * one.seconds / CollectorOptions.look_every_s
        return way.ranks_per_shard * work.envs_per_rank / heard_s if heard_s else math.inf
    alone = work.envs_per_rank / predict(constants, work, 1, way).seconds
    order_bytes = work.order_bytes_per_env * work.envs_per_rank * way.order_rows / way.fragment_length
    nbytes = work.slot_bytes + order_bytes
    per_env_s = constants.root_s_per_env + (0.0 if way.on_workers else constants.policy_s_per_env)
    per_rank_s = constants.root_s_per_rank / way.fragment_length
    per_rank_s += per_env_s * work.envs_per_rank + constants.beta_s_per_byte * nbytes
    return max(alone, work.envs_per_rank / per_rank_s if per_rank_s else math.inf)
