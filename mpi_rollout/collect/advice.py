"""What would make a run faster: at most one line, about what costs most of its time, with the option that helps.

`benchmarks/advice.py` follows each advice in a run, and compares what it promises with what it brings.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.core.policy_kinds import CALLED, RANDOM
from mpi_rollout.drive.fragments import LARGE_SLOT_NBYTES
from mpi_rollout.exchange.waiting import ranks_per_core
from mpi_rollout.options import POLICY_BLOCK
from mpi_rollout.process.allocation import starting
from mpi_rollout.text import counted

if TYPE_CHECKING:
    from mpi_rollout.collect.report import RunFigures

COSTLY = 0.2  # The least share of the time that is worth a line.
MOST = 0.9  # A share of a core: on a quiet machine ranks have 0.99.
CHANCE_S, FIRST_STEP_S = 2.0, 0.1  # In shorter runs, ranks differ and wait by chance; the first step decides.
SLOWER = 1.2  # How many times as long the envs of a slow rank take.
MOST_ENVS = 4096  # More envs are not advised: they take memory and time to make.
LARGE_ROW_NBYTES = 2**18  # The exchange of larger rows takes as long for each env, however many envs there are.


def advice_of(run: "RunFigures") -> str:
    """Return the advice about what costs most of a run's time; "" where nothing costs much."""
    if run.seconds < FIRST_STEP_S:
        return ""
    by_chance = [*_of_ranks(run), *_of_disk(run)] if run.seconds >= CHANCE_S else []
    causes = [*_of_cores(run), *by_chance, *_of_policy(run), *_of_envs(run)]
    cost, words, way_out = max(causes, key=lambda cause: cause[0], default=(0.0, "", ""))  # The first of the largest.
    return f"{words} {100 * cost:.0f}% of the time: {way_out}" if cost >= COSTLY else ""


# What costs time: its share of the time, words for it, and the way out.
Causes = Iterator[tuple[float, str, str]]


def _of_cores(run: "RunFigures") -> Causes:
    """Yield that ranks share cores, which makes all waits longer; other programs make the envs slower, too."""
    shares = [1.0 if rank.get("core_share") is None else float(rank["core_share"]) for rank in run.ranks]
    share = min(shares)
    waits = run.losses.get("imbalance", 0.0) + run.losses["exchange"]
    if (slow := _slow_rank(run)) and shares[slow] > MOST:  # It is slow for another reason.
        waits -= _lag(run, slow)
    if run.num_ranks > 1 and share <= MOST:
        ranks = [(rank["host"], set(rank.get("physical_cores", ())), rank.get("quota")) for rank in run.ranks]
        ratio = ranks_per_core(ranks) if all(cores for _, cores, _ in ranks) and not run.groups else 1.0
        if ratio > 1:
            crowd = f"there are {ratio:.3g} ranks for each core; waits for each other took"
            yield waits, crowd, starting(max(int(run.num_ranks / ratio), 1), run.mpi_library)
            return
        cost = waits + float(np.mean((1 - np.array(shares)) * run.step_s)) / run.seconds  # Envs waited too.
        who = "other programs" + " or ranks" * bool(run.groups)  # The cores of a group's other ranks are not known.
        other = f"{who} use the ranks' cores (one rank had {share:.2f} of its core), which cost"
        yield cost, other, f"fewer ranks, {'' if run.slept else '--wait sleep, '}or sbatch --exclusive"


def _of_disk(run: "RunFigures") -> Causes:
    faster = "--out on a faster disk (`doctor --out FOLDER` measures one), or --no-trajectories"
    way_out = "--compression none or lz4, not gzip" if run.compression == "gzip" else faster
    yield run.losses["write"], "writing the file took", way_out


def _of_ranks(run: "RunFigures") -> Causes:
    """Yield that all wait for one rank, or each time for another one."""
    if run.lost:
        return
    cost = 0.0
    if slow := _slow_rank(run):
        cost, rank, env_s = _lag(run, slow), run.ranks[slow], _env_s(run)
        others = env_s[:slow] + env_s[slow + 1 :]
        times = env_s[slow] / max(float(np.median(others)), 1e-9)
        words = f"envs of rank {rank['rank']} ({rank['host']}) took {times:.1f} times as long as others', which cost"
        yield cost, words, "spread slow envs over the ranks (a list of --env-kwargs), or leave out its host"
    elif (balanced := run.balanced_root_envs()) is not None:
        best, cost = balanced
        words = f"rank 0 had {counted(run.ranks[0]['num_envs'], 'env')} beside its own work, which cost about"
        yield cost, words, f"--root-envs {best}"
    way_out = ", or ".join(filter(None, (_fragments(run), f"--batch-size {max(len(run.ranks) // 2, 1)}")))
    uneven = run.losses.get("imbalance", 0.0) - cost
    yield uneven, "in each step ranks waited for another slow one, which cost", way_out


def _env_s(run: "RunFigures") -> list[float]:
    """Return each rank's seconds in one of its envs."""
    return [seconds / max(int(rank["num_envs"]), 1) for seconds, rank in zip(run.step_s, run.ranks, strict=True)]


def _slow_rank(run: "RunFigures") -> int:
    """Return the rank whose envs are slower than all others'; 0 where there is none, or it is the root."""
    env_s = _env_s(run)
    slow = env_s.index(max(env_s))
    others = env_s[:slow] + env_s[slow + 1 :]
    return slow if len(others) > 1 and env_s[slow] > SLOWER * float(np.median(others)) else 0


def _lag(run: "RunFigures", rank: int) -> float:
    return (run.step_s[rank] - float(np.mean(run.step_s))) / run.seconds


def _of_policy(run: "RunFigures") -> Causes:
    if run.asks_on_ranks:
        return
    num_ranks = len(run.ranks) if run.num_ranks > 1 else len(run.ranks[0].get("physical_cores", ()))
    if num_ranks > 1:
        more = "--policy MODULE:make_policy" if run.policy_kind == CALLED else "--policy-on workers"
        if run.num_ranks == 1:
            more = starting(num_ranks, run.mpi_library) + f" and {more}" * (run.policy_kind == CALLED)
        block = -(-run.num_envs // num_ranks)
        if block < POLICY_BLOCK:  # Else each rank would ask for the others' envs, too.
            more += f" --policy-block {block}"
        saved = 100 * run.losses["policy"] * (1 - 1 / num_ranks)
        yield run.losses["policy"], "the policy on rank 0 took", f"{more} would save about {saved:.0f}%"


def _of_envs(run: "RunFigures") -> Causes:
    """Yield that steps are short beside their exchanges, and how many envs would make these less than costly."""
    cost, most = run.losses["exchange"], MOST_ENVS // run.num_envs
    if not run.in_lockstep or most < 2 or run.slot_bytes > LARGE_ROW_NBYTES * run.fragment_length:
        return
    gain_of = {times: times / (times * (1 - cost) + cost) for times in (2, 4, 8, 16) if times <= most}
    enough = (times for times, gain in gain_of.items() if cost * gain / times < COSTLY)
    times = next(enough, max(gain_of))
    envs = f"--num-envs {times * run.num_envs} would give up to {gain_of[times]:.1f} times the env steps/s"
    way_out = ", or ".join(filter(None, (envs, _fragments(run)))) + "; `tune` measures it"
    yield cost, "exchanges of short steps took", way_out


def _fragments(run: "RunFigures") -> str:
    """Name what lets ranks take many steps between two exchanges; "" where they do, or where it is not known."""
    if run.policy_kind == CALLED:
        return "fragments (--policy MODULE:make_policy)"
    if run.inference == "root" and run.policy_kind != RANDOM:
        return "--policy-on workers"
    could = run.fragment_length == 1 and run.slot_bytes <= LARGE_SLOT_NBYTES // 2  # Else two steps are too large.
    return "leave out --fragment-length 1" if could else ""
