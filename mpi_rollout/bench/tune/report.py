"""The results of tuning as text: what was measured, what was left out and why, a table, and the command to use."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpi_rollout.bench.env_probe import EnvFigures
from mpi_rollout.bench.tables import aligned
from mpi_rollout.bench.tune.candidates import Candidate, Costs, Rating, Trial, choose, limit_of, rate_candidates
from mpi_rollout.errors import counted

COSTLY = 0.8  # Of the memory that is free.


@dataclass(frozen=True)
class Subject:
    """What is tuned.

    Parameters
    ----------
    num_ranks
        The most that are tried in lockstep.
    launcher, words
        What starts the ranks, and the options of the run that the user gave, for a command line.
    free_bytes
        Memory of this machine.
    """

    name: str
    num_envs: int
    num_ranks: int
    launcher: str
    words: tuple[str, ...]
    machine: str
    free_bytes: int


def env_lines(subject: Subject, env: EnvFigures) -> list[str]:
    """Say what was measured of the env by itself."""
    text = [
        f"{subject.name}, {counted(subject.num_envs, 'env')}: {subject.machine}",
        f"env step: {env.step_s * 1e6:,.1f} us (standard deviation {env.step_spread_s * 1e6:,.1f}), mean of "
        f"{counted(env.num_steps, 'step')} by itself",
    ]
    if env.steps_per_episode:
        text.append(
            f"resets: {env.reset_s * 1e6:,.1f} us after {env.steps_per_episode:,.0f} steps on average, "
            f"{100 * env.reset_share:.1f} % of an env's time"
        )
    else:
        text.append("resets: no episode ended in that time")
    text.append(f"messages: observations of {env.observation_bytes:,} bytes, actions of {env.action_bytes:,}")
    if env.policy_s:
        text.append(f"policy: {env.policy_s * 1e6:,.1f} us for all envs")
    return [*text, *memory_lines(subject, env)]


def memory_lines(subject: Subject, env: EnvFigures) -> list[str]:
    """Say what all envs need, with a warning if that is more than there is."""
    needed = subject.num_envs * env.bytes_per_env + subject.num_ranks * env.process_bytes
    need = f"memory: {size(env.bytes_per_env)} per env and at least {size(env.process_bytes)} per rank"
    lines = [f"{need}; on {_ranks(subject.num_ranks)} {size(needed)}, free {size(subject.free_bytes)}"]
    if needed > COSTLY * subject.free_bytes:
        lines.append("WARNING: so many envs do not fit into this machine's memory; take fewer by --num-envs")
    return lines


def size(nbytes: float) -> str:
    """Write bytes in a handy unit."""
    power = min(3, max(0, math.floor(math.log10(max(nbytes, 1))) // 3))
    return f"{nbytes / 1000**power:,.3g} {('bytes', 'kB', 'MB', 'GB')[power]}"


def exchange_line(costs: Costs) -> str:
    """Say what an exchange was measured to take."""
    where = f" in fragments of {costs.fragment_length}" if costs.fragment_length > 1 else ""
    parts = [f"{seconds * 1e6:,.1f} us on {_ranks(ranks)}" for ranks, seconds in sorted(costs.exchange_s.items())]
    return "exchange and the root's work: " + (", ".join(parts) or "not measured") + ", for a step of all envs" + where


def left_out_lines(left_out: Mapping[Candidate, str]) -> list[str]:
    """Say which candidates are not tried, and why."""
    return [f"left out: {candidate}: {reason}" for candidate, reason in left_out.items()]


def trial_lines(subject: Subject, trials: Sequence[Trial]) -> list[str]:
    """Return the table, then the command."""
    ratings = rate_candidates(trials)
    failed = [f"failed: {trial.candidate}: {trial.error.splitlines()[0]}" for trial in trials if trial.error]
    if not ratings:
        return [*failed, "no candidate gave a result"]
    return [*table(ratings, trials), *failed, "", *verdict(subject, ratings, trials)]


def table(ratings: Sequence[Rating], trials: Sequence[Trial]) -> list[str]:
    """Return one line for each candidate, the fastest first."""
    cells = [["options", "jobs", "env steps/s", "of the fastest", "of the limit"]]
    fastest = ratings[0]
    for rating in ratings:
        rate, limit = rating.rate, limit_of(trials, rating.candidate.is_native)
        tie = " tie" if rating.is_tie and rating is not fastest else ""
        line = [str(rating.candidate), str(rating.num_jobs), rate.shown(",.0f")]
        line.append(f"{rate.median / fastest.rate.median:.3f}{tie}")
        line.append(f"{rate.median / limit.median:.3f}" if limit else "-")
        cells.append(line)
    coverage = min(rating.rate.coverage for rating in ratings)
    if not coverage:
        return [*aligned(cells), "too few jobs to know how much they differ; give more --repeats"]
    return [
        *aligned(cells),
        f"medians over jobs; the range in brackets holds the true median with a probability of {100 * coverage:.0f} %; "
        "tie: these jobs do not tell it from the fastest",
    ]


def verdict(subject: Subject, ratings: Sequence[Rating], trials: Sequence[Trial]) -> list[str]:
    """Return the command to use, why, and how far it is from the limit."""
    chosen = choose(ratings)
    text = [f"use: {command(subject, chosen.candidate)}", f"why: {_why(chosen, ratings)}"]
    limit = limit_of(trials, chosen.candidate.is_native)
    if limit is not None:
        loops = "loops over its vectorized version" if chosen.candidate.is_native else "env.step loops"
        where = _ranks(subject.num_ranks)
        text.append(
            f"limit: {limit.median:,.0f} env steps/s, bare {loops} on {where} at once; this command "
            f"reached {chosen.rate.median / limit.median:.3f} of it"
        )
    if chosen.candidate.is_native:
        text.append("its data depend on the number of ranks: with vector_entry_point a rank's envs share one generator")
        others = rate_candidates([trial for trial in trials if not trial.candidate.is_native])
        if others:
            text.append(f"for the same data on any number of ranks: {command(subject, choose(others).candidate)}")
    return text


def _ranks(number: int) -> str:
    return counted(number, "rank")


def command(subject: Subject, candidate: Candidate) -> str:
    """Return the command line of a run, for a shell."""
    words = shlex.join([*subject.words, *candidate.words])
    return f"{subject.launcher} -n {candidate.num_ranks} python -m mpi_rollout {words}"


def _why(chosen: Rating, ratings: Sequence[Rating]) -> str:
    ties = [str(rating.candidate) for rating in ratings if rating.is_tie and rating is not chosen]
    slower = [rating for rating in ratings if not rating.is_tie]
    reasons = []
    if ties:
        reasons.append(f"as fast as {' and '.join(ties)}, as far as these jobs tell, and the simplest")
    if slower:
        ratio = chosen.rate.median / slower[0].rate.median
        reasons.append(f"{ratio:.2f} times as fast as the next, {slower[0].candidate}")
    return "; ".join(reasons) or "it is the only one that gave a result"
