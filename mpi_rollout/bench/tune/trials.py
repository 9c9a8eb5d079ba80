"""What the jobs of the candidates gave, and which of them to take."""

from collections.abc import Sequence
from dataclasses import dataclass

from mpi_rollout.bench.statistics import Interval, median_interval
from mpi_rollout.bench.tune.candidates import Candidate


@dataclass(frozen=True)
class Trial:
    """One job of a candidate.  Of a failed one `error` says why."""

    candidate: Candidate
    repeat: int
    env_steps_per_s: float = 0.0
    limit_env_steps_per_s: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class Rated:
    """A candidate's rate over its jobs, and whether that is not known to be less than the best one's."""

    candidate: Candidate
    num_jobs: int
    rate: Interval
    is_tie: bool


def rated(trials: Sequence[Trial]) -> list[Rated]:
    """Candidates without a failed job, the fastest median first.

    Two are a tie where their intervals overlap: these jobs do not tell which is faster.  Not so one whose median is
    below that of another that is surely slower than the best: its interval is wide, which makes it no faster.
    """
    failed = {trial.candidate for trial in trials if trial.error}
    rates: dict[Candidate, list[float]] = {}
    for trial in trials:
        if trial.candidate not in failed:
            rates.setdefault(trial.candidate, []).append(trial.env_steps_per_s)
    intervals = {candidate: median_interval(each) for candidate, each in rates.items()}
    if not intervals:
        return []
    best = max(intervals.values(), key=lambda each: each.median)
    surely_slower = max((each.median for each in intervals.values() if each.high < best.low), default=0.0)
    found = [Rated(each, len(rates[each]), rate, rate.high >= best.low and rate.median > surely_slower)
             for each, rate in intervals.items()]  # fmt: skip
    return sorted(found, key=lambda each: -each.rate.median)


def choose(found: Sequence[Rated]) -> Rated:
    """The simplest of those that tie with the fastest."""
    return min((each for each in found if each.is_tie), key=lambda each: each.candidate.simplicity)


def limit_of(trials: Sequence[Trial], is_native: bool) -> Interval | None:
    """Env steps per second of bare loops on all cores at once; None where no job measured it."""
    samples = [trial.limit_env_steps_per_s for trial in trials
               if trial.limit_env_steps_per_s and trial.candidate.is_native == is_native]  # fmt: skip
    return median_interval(samples) if samples else None
