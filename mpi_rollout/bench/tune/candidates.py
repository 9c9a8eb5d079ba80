"""Ways to run an env: which of them cannot win, by the model, and which to take, by what their jobs gave.

A candidate is left out only if it could not win even at the model's best: where ranks do not wait for each other, the
model gives it the least time that is possible.  What is left is few enough to be tried.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields

from mpi_rollout.bench.model import slowest
from mpi_rollout.bench.plan import Options
from mpi_rollout.bench.statistics import Interval, median_interval
from mpi_rollout.collect.fragments import FRAGMENT_S
from mpi_rollout.config import AUTO, flag
from mpi_rollout.errors import counted

LEAST_RATE = 0.75  # Of the best lockstep's, computed: the model is not that wrong.
LENGTHS = ("1", "16", "64")  # Of fragments.
LEAST_GAIN = 0.02  # Over it, at most: less than what jobs differ by.


@dataclass(frozen=True)
class Candidate:
    """Options of a run; as many as possible have their defaults."""

    num_ranks: int
    dedicated_root: bool = False
    mode: str = "sync"
    batch_size: int = 1
    num_groups: int = 1
    vectorization_mode: str = "sync"
    fragment_length: str = AUTO
    inference: str = AUTO

    @property
    def num_workers(self) -> int:
        """Ranks that step envs."""
        return self.num_ranks - self.dedicated_root

    @property
    def is_native(self) -> bool:
        return self.vectorization_mode != "sync"

    @property
    def is_lockstep(self) -> bool:
        return self.mode == "sync" and self.num_groups == 1

    @property
    def simplicity(self) -> tuple[bool, int, int]:
        """Less is simpler: the same data on any number of ranks, few options, few ranks."""
        return self.is_native, len(self.options), self.num_ranks

    @property
    def options(self) -> Options:
        """The options of the run that have another value than their default."""
        defaults = {column.name: column.default for column in fields(self)}
        options = {name: value for name, value in asdict(self).items() if value != defaults[name]}
        del options["num_ranks"]
        return options

    @property
    def words(self) -> list[str]:
        """Its options as words of a command line."""
        pairs = [(flag(name), value) for name, value in self.options.items()]
        return [word for name, value in pairs for word in ([name] if value is True else [name, str(value)])]

    def __str__(self) -> str:
        return " ".join([f"-n {self.num_ranks}", *self.words])


def candidates(ranks: Sequence[int], num_envs: int, is_native: bool, is_random: bool = False) -> list[Candidate]:
    """Return all ways with these numbers of ranks, ascending; one rank more where the root steps no envs.

    Random actions can be sent for several steps at a time, and be chosen by the ranks.
    """
    most = ranks[-1]
    ways = [Candidate(num_ranks) for num_ranks in ranks]
    if is_random and most > 1:
        ways += [Candidate(most, fragment_length=length) for length in LENGTHS] + [Candidate(most, inference="workers")]
    if most > 1:
        batch = max(1, most // 2)
        ways += [Candidate(most, num_groups=2), Candidate(most, mode="async", batch_size=batch)]
        for num_ranks in (most, most + 1) if most > 2 else (most + 1,):
            ways += [Candidate(num_ranks, True, num_groups=2), Candidate(num_ranks, True, "async", batch)]
    if is_native:
        native = [Candidate(num_ranks, vectorization_mode="vector_entry_point") for num_ranks in (1, most)]
        ways += dict.fromkeys(native)
    return [way for way in ways if way.num_workers * way.num_groups <= num_envs]  # As `Division` has it.


@dataclass(frozen=True)
class Costs:
    """What one step of all envs is made of.

    Parameters
    ----------
    env_s, env_spread_s
        Mean and standard deviation of one env's step with the reset after it, if there is one.
    exchange_s
        By number of ranks: seconds of an exchange, and of what else the root does in a step; interpolated between
        numbers of ranks.  Empty if it was not measured.
    policy_s
        Seconds of all envs' actions; 0 for the random policy, which is in `exchange_s`.
    fragment_length
        The largest number of steps between two exchanges, where a candidate leaves it to the program.
    """

    num_envs: int
    env_s: float
    env_spread_s: float
    policy_s: float
    exchange_s: dict[int, float] = field(default_factory=dict)
    fragment_length: int = 1

    def root_s(self, num_ranks: int) -> float:
        """Return the seconds of what the root does in a step besides its envs."""
        ranks = sorted(self.exchange_s)
        if not ranks:
            return self.policy_s
        low = max((known for known in ranks if known <= num_ranks), default=ranks[0])
        high = min((known for known in ranks if known >= num_ranks), default=ranks[-1])
        share = (num_ranks - low) / (high - low) if high > low else 0.0
        return self.policy_s + self.exchange_s[low] + share * (self.exchange_s[high] - self.exchange_s[low])

    def lockstep_s(self, candidate: Candidate) -> float:
        """Compute the seconds of a step of all envs, where all ranks exchange together, after each fragment."""
        num_envs = math.ceil(self.num_envs / candidate.num_workers)
        length = self.fragment_length
        if candidate.fragment_length != AUTO:
            length = int(candidate.fragment_length)
        elif self.env_s:
            length = max(1, min(length, int(FRAGMENT_S / (num_envs * self.env_s))))
        slowest_s = slowest(candidate.num_workers, num_envs * length, self.env_s, self.env_spread_s) / length
        return slowest_s + self.root_s(candidate.num_ranks)

    def bound_s(self, candidate: Candidate) -> float:
        """Return the least seconds that a step of all envs could take: no rank waits for messages or another rank.

        The root does its own work while others step; where it has envs too, it steps them besides.
        """
        envs_s, own_s = self.num_envs / candidate.num_workers * self.env_s, self.root_s(1)
        return max(envs_s, own_s) if candidate.dedicated_root else envs_s + own_s

    def seconds(self, candidate: Candidate) -> float:
        """Estimate the seconds of a step, to choose how many steps a trial has."""
        return self.lockstep_s(candidate) if candidate.is_lockstep else self.bound_s(candidate)


def narrow(ways: Sequence[Candidate], costs: Costs) -> tuple[list[Candidate], dict[Candidate, str]]:
    """Return the candidates that may win, and of the others why they cannot.

    All ranks without more options always stay: the others are judged by them, and they measure the limit.
    """
    plain = [way for way in ways if not way.options]
    best = min(plain, key=costs.lockstep_s)
    left_out = {}
    for way in ways:
        reason = _reason(way, costs, best)
        if reason and way != plain[-1] and not way.is_native:
            left_out[way] = reason
    return [way for way in ways if way not in left_out], left_out


def _reason(candidate: Candidate, costs: Costs, best: Candidate) -> str:
    """Say why it cannot win; empty if it may."""
    best_s = costs.lockstep_s(best)
    if (
        costs.exchange_s
        and candidate.fragment_length != AUTO
        and 1 < int(candidate.fragment_length) >= costs.fragment_length
    ):
        return f"{best} has fragments of {counted(costs.fragment_length, 'step')} at most"
    if candidate.is_lockstep:
        rate = best_s / costs.lockstep_s(candidate)
        return f"computed {rate:.2f} of the rate of {best}" if rate < LEAST_RATE else ""
    if not costs.exchange_s:
        return ""
    gain = best_s / costs.bound_s(candidate) - 1
    return f"could win at most {100 * max(0.0, gain):.1f} % over {best}" if gain < LEAST_GAIN else ""


@dataclass(frozen=True)
class Trial:
    """One job of a candidate.  If it failed, `error` says why."""

    candidate: Candidate
    repeat: int
    env_steps_per_s: float = 0.0
    limit_env_steps_per_s: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Rating:
    """A candidate's rate over its jobs; a tie if it is not known to be slower than the best one."""

    candidate: Candidate
    num_jobs: int
    rate: Interval
    is_tie: bool


def rate_candidates(trials: Sequence[Trial]) -> list[Rating]:
    """Rate the candidates without a failed job, the fastest median first.

    Two are a tie where their intervals overlap: these jobs do not show which is faster.  But a candidate is no tie
    if its median is below that of another one that is surely slower than the best: a wide interval makes it no faster.
    """
    failed = {trial.candidate for trial in trials if trial.error}
    rates: dict[Candidate, list[float]] = {}
    for trial in trials:
        if trial.candidate not in failed:
            rates.setdefault(trial.candidate, []).append(trial.env_steps_per_s)
    intervals = {candidate: median_interval(samples) for candidate, samples in rates.items()}
    if not intervals:
        return []
    best = max(intervals.values(), key=lambda rate: rate.median)
    surely_slower = max((rate.median for rate in intervals.values() if rate.high < best.low), default=0.0)
    ratings = []
    for candidate, rate in intervals.items():
        is_tie = rate.high >= best.low and rate.median > surely_slower
        ratings.append(Rating(candidate, len(rates[candidate]), rate, is_tie))
    return sorted(ratings, key=lambda rating: -rating.rate.median)


def choose(ratings: Sequence[Rating]) -> Rating:
    """Return the simplest of those that tie with the fastest."""
    return min((rating for rating in ratings if rating.is_tie), key=lambda rating: rating.candidate.simplicity)


def limit_of(trials: Sequence[Trial], is_native: bool) -> Interval | None:
    """Return the env steps per second of bare loops on all cores at once; None where no job measured it."""
    limits = [trial.limit_env_steps_per_s for trial in trials if trial.candidate.is_native == is_native]
    samples = [limit for limit in limits if limit]
    return median_interval(samples) if samples else None
