"""What a step costs on any number of ranks, as functions of numbers: alpha, beta, and the root's own work.

    step = E[slowest rank's envs] + exchange + policy
    exchange = root + alpha ceil(log2 p) + per_rank (p - 1) + per_env p n + beta bytes

for p ranks of n envs.  Sources: Hockney (1994) for alpha and beta; Thakur, Rabenseifner and Gropp (2005) for the
ceil(log2 p) of trees; the slowest of p ranks is the mean of the largest of p order statistics (David and Nagaraja,
2003).  The terms that are linear in p are the root's: it takes in all slots, and no tree makes them fewer.

In fragments of L steps, ranks exchange once in L steps: an exchange has L times as many rows, and they wait for the
slowest sum of L steps.  Each order has room for the actions of one step.  Where the root chooses those of a fragment,
L rows of them follow; where the workers do, none follow, and each acts for its own envs alone.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from mpi_rollout.studies.statistics import NEEDED_POINTS, NoFit

_MOST_RANKS = 2**40
_GRID = 4_001  # Points of an integral; its error is below 1e-4 of the spread.


@dataclass(frozen=True)
class Constants:
    """The constants of a machine and this program, in seconds; none is negative.

    `root_s...` are the root's work for an exchange: whatever its size, for each env, for each other rank.  `alpha_s` is
    a level of the tree of messages, there and back; `beta_s_per_byte` a byte that the root sends or receives;
    `policy_s...` a call of the policy, and each row of its batch.
    """

    root_s: float = 0.0
    root_s_per_env: float = 0.0
    root_s_per_rank: float = 0.0
    alpha_s: float = 0.0
    beta_s_per_byte: float = 0.0
    policy_s: float = 0.0
    policy_s_per_env: float = 0.0


NUM_EXCHANGE_PARTS = 5  # The first of them are an exchange's.
_ROOT, _MESSAGES = [0, 1], [2, 3, 4]


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
    """How many steps there are between two exchanges, and whether the workers choose the actions."""

    fragment_length: int = 1
    on_workers: bool = False

    @property
    def order_rows(self) -> int:
        """Rows of actions that the root sends for an exchange."""
        return 1 if self.on_workers or self.fragment_length == 1 else 1 + self.fragment_length


LOCKSTEP = Way()


@dataclass(frozen=True)
class Step:
    """Seconds of one step of all envs; for fragments a step's share of them."""

    env_s: float
    waiting_s: float
    exchange_s: float
    policy_s: float

    @property
    def seconds(self) -> float:
        return sum(astuple(self))

    @property
    def efficiency(self) -> float:
        """Share of the time that ranks are in their envs."""
        return self.env_s / self.seconds


def predict(constants: Constants, work: Workload, num_ranks: int, way: Way = LOCKSTEP) -> Step:
    """Compute what a step takes on so many ranks."""
    num_envs, length = num_ranks * work.envs_per_rank, way.fragment_length
    num_steps = work.envs_per_rank * length
    slowest_s = slowest(num_ranks, num_steps, work.env_step_s, work.env_step_spread_s)
    nbytes = work.order_bytes_per_env * num_envs * way.order_rows + (num_ranks - 1) * work.slot_bytes * length
    num_acted = work.envs_per_rank if way.on_workers else num_envs
    policy_s = constants.policy_s / length + constants.policy_s_per_env * num_acted
    parts = exchange_parts(num_ranks, num_envs * length, nbytes if num_ranks > 1 else 0.0)
    exchange_s = float(parts @ astuple(constants)[: len(parts)])
    env_s = work.envs_per_rank * work.env_step_s
    return Step(env_s, slowest_s / length - env_s, exchange_s / length, policy_s)


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
    """Find the least number of ranks where exchange and policy take as long as the envs; None if there is none."""

    def is_over(num_ranks: int) -> bool:
        step = predict(constants, replace(work, env_step_spread_s=0.0), num_ranks, way)
        return step.exchange_s + step.policy_s >= step.env_s

    found = bisect_left(range(1, _MOST_RANKS), True, key=is_over) + 1
    return found if found < _MOST_RANKS else None


def ceiling(constants: Constants, work: Workload, way: Way = LOCKSTEP) -> float:
    """Return the env steps per second that no number of such ranks exceeds.

    That is the rate that ever more ranks come close to, which is the root's, or the rate of a single rank, which
    sends no messages, if it is higher.  Proof: a step of p ranks takes at least A + B p seconds, where 1/B gives the
    limit of many ranks, and a step of a single rank takes at most A + B.  So if A is not negative, all rates stay
    below the limit; and if it is negative, no rate is above that of one rank.
    """
    alone = work.envs_per_rank / predict(constants, work, 1, way).seconds
    order_bytes = work.order_bytes_per_env * work.envs_per_rank * way.order_rows / way.fragment_length
    nbytes = work.slot_bytes + order_bytes
    per_env_s = constants.root_s_per_env + (0.0 if way.on_workers else constants.policy_s_per_env)
    per_rank_s = constants.root_s_per_rank / way.fragment_length
    per_rank_s += per_env_s * work.envs_per_rank + constants.beta_s_per_byte * nbytes
    return max(alone, work.envs_per_rank / per_rank_s if per_rank_s else math.inf)


@dataclass(frozen=True)
class ExchangePoint:
    """What an exchange took that was measured; `num_rows` are the envs of all ranks."""

    num_ranks: int
    num_rows: int
    nbytes: float
    exchange_s: float
    policy_s: float


@dataclass(frozen=True)
class Calibration:
    """Constants, and the largest relative error of the exchange at a point that they were fitted to."""

    constants: Constants
    num_points: int
    worst_error: float


def calibrate(points: Sequence[ExchangePoint]) -> Calibration:
    """Fit the constants to what was measured, by least squares of relative errors, none below 0.

    One rank exchanges no messages, and nobody shares its core: what the root does by itself is fitted to that
    alone, and only what is left to the jobs of several ranks.  A study with a single number of envs on one rank does
    not tell envs and ranks from bytes: then all of that is in the bytes.

    NoFit if there are too few points, or they do not tell the parts of the model apart.
    """
    alone = [point for point in points if point.num_ranks == 1]
    several = [point for point in points if point.num_ranks > 1]
    sizes = {point.num_rows for point in alone}
    if not sizes or len(several) < NEEDED_POINTS:
        raise NoFit(f"{len(several)} points of several ranks, {NEEDED_POINTS} and one of one rank are needed")
    root_parts, message_parts = (_ROOT, _MESSAGES) if len(sizes) > 1 else (_ROOT[:1], _MESSAGES[1:])
    rows, values = _exchanges(alone)
    exchange, policy = np.zeros(NUM_EXCHANGE_PARTS), np.zeros(2)
    exchange[root_parts] = non_negative(rows[:, root_parts], values)
    policy_parts = _ROOT if len(sizes) > 1 else _ROOT[1:]
    policy[policy_parts] = non_negative(rows[:, policy_parts], np.array([max(p.policy_s, 1e-9) for p in alone]))
    rows, values = _exchanges(several)
    exchange[message_parts] = non_negative(rows[:, message_parts], values, rows[:, root_parts] @ exchange[root_parts])
    rows, values = _exchanges(points)
    constants = Constants(*exchange.tolist(), *policy.tolist())
    return Calibration(constants, len(points), float(np.abs(rows @ exchange / values - 1).max()))


def non_negative(columns: np.ndarray, values: np.ndarray, known: np.ndarray | float = 0.0) -> np.ndarray:
    """Fit `values` by a sum of columns, none of them less than 0 times.  Errors are relative to `values`.

    `known` is a part of the values that is not to be fitted.  NoFit if the points do not tell the columns apart.
    """
    from scipy.optimize import nnls

    scale = np.abs(columns).max(axis=0)
    if (values <= 0).any() or (scale == 0).any():
        raise NoFit("a value is not positive")
    relative = columns / scale / values[:, None]
    if np.linalg.matrix_rank(relative, tol=1e-9 * np.linalg.norm(relative, 2)) < columns.shape[1]:
        raise NoFit("the points do not tell the parts of the model apart")
    return nnls(relative, 1 - known / values)[0] / scale


def _exchanges(points: Sequence[ExchangePoint]) -> tuple[np.ndarray, np.ndarray]:
    rows = [exchange_parts(point.num_ranks, point.num_rows, point.nbytes) for point in points]
    return np.stack(rows), np.array([point.exchange_s for point in points])
