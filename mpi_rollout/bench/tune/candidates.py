"""Ways to run an env, and which of them cannot win: values and the model, nothing is started.

A candidate is left out only if the model cannot let it win: where ranks do not wait for each other, it is given the
least that is possible.  What is left is few enough to be tried.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mpi_rollout.bench.model import slowest
from mpi_rollout.config import flag

LEAST_RATE = 0.75  # Of the best lockstep's, computed: the model is not that wrong.
LEAST_GAIN = 0.02  # Over it, at most: less than what jobs differ by.


@dataclass(frozen=True)
class Candidate:
    """Options of a run; as few as possible are other than the defaults."""

    num_ranks: int
    dedicated_root: bool = False
    mode: str = "sync"
    batch_size: int = 1
    num_groups: int = 1
    vectorization_mode: str = "sync"

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
        """Less is simpler: data as ever, few options, few ranks."""
        return self.is_native, len(self.options), self.num_ranks

    @property
    def options(self) -> dict[str, Any]:
        """Options of the run that are not as by default."""
        defaults = {each.name: each.default for each in fields(self)}
        return {name: value for name, value in asdict(self).items()
                if name != "num_ranks" and value != defaults[name]}  # fmt: skip

    @property
    def words(self) -> list[str]:
        """Its options as words of a command line."""
        pairs = [(flag(name), value) for name, value in self.options.items()]
        return [word for name, value in pairs for word in ([name] if value is True else [name, str(value)])]

    def __str__(self) -> str:
        return " ".join([f"-n {self.num_ranks}", *self.words])


def candidates(ranks: Sequence[int], num_envs: int, is_native: bool) -> list[Candidate]:
    """All that is thinkable with these numbers of ranks, ascending; one more where the root steps no envs."""
    most = ranks[-1]
    found = [Candidate(each) for each in ranks]
    if most > 1:
        batch = max(1, most // 2)
        found += [Candidate(most, num_groups=2), Candidate(most, mode="async", batch_size=batch)]
        for num_ranks in (most, most + 1) if most > 2 else (most + 1,):
            found += [Candidate(num_ranks, True, num_groups=2), Candidate(num_ranks, True, "async", batch)]
    if is_native:
        native = [Candidate(each, vectorization_mode="vector_entry_point") for each in (1, most)]
        found += dict.fromkeys(native)
    return [each for each in found if each.num_workers * each.num_groups <= num_envs]  # As `Division` has it.


@dataclass(frozen=True)
class Costs:
    """What one step of all envs is made of.

    Parameters
    ----------
    env_s, env_spread_s
        Mean and standard deviation of one env's step with the reset after it, if there is one.
    exchange_s
        Of an exchange, and what else the program does on the root in a step, by the number of ranks, for two of them
        at least; in between it is interpolated.
    policy_s
        Of all envs' actions; 0 for the random policy, which is in `exchange_s`.
    """

    num_envs: int
    env_s: float
    env_spread_s: float
    policy_s: float
    exchange_s: dict[int, float] = field(default_factory=dict)

    def root_s(self, num_ranks: int) -> float:
        """What the root does in a step besides its envs."""
        ranks = sorted(self.exchange_s)
        if not ranks:
            return self.policy_s
        low = max((each for each in ranks if each <= num_ranks), default=ranks[0])
        high = min((each for each in ranks if each >= num_ranks), default=ranks[-1])
        share = (num_ranks - low) / (high - low) if high > low else 0.0
        return self.policy_s + self.exchange_s[low] + share * (self.exchange_s[high] - self.exchange_s[low])

    def lockstep_s(self, candidate: Candidate) -> float:
        """Computed seconds of a step of all envs, in lockstep."""
        num_envs = math.ceil(self.num_envs / candidate.num_workers)
        slowest_s = slowest(candidate.num_workers, num_envs, self.env_s, self.env_spread_s)
        return slowest_s + self.root_s(candidate.num_ranks)

    def bound_s(self, candidate: Candidate) -> float:
        """The least that a step of all envs could take: no rank waits for messages or for another rank.

        The root's own work is done while others step; where it has envs too, it steps them besides.
        """
        envs_s, own_s = self.num_envs / candidate.num_workers * self.env_s, self.root_s(1)
        return max(envs_s, own_s) if candidate.dedicated_root else envs_s + own_s

    def seconds(self, candidate: Candidate) -> float:
        """Computed, or bounded, for choosing how many steps a trial has."""
        return self.lockstep_s(candidate) if candidate.is_lockstep else self.bound_s(candidate)


def narrow(found: Sequence[Candidate], costs: Costs) -> tuple[list[Candidate], dict[Candidate, str]]:
    """The candidates that may win, and of the others why they cannot.

    Lockstep on all ranks stays in any case: the others are told apart by it, and it measures the limit.
    """
    lockstep = [each for each in found if each.is_lockstep and not each.is_native]
    best = min(lockstep, key=costs.lockstep_s)
    left_out = {}
    for each in found:
        reason = _reason(each, costs, best)
        if reason and each != lockstep[-1] and not each.is_native:
            left_out[each] = reason
    return [each for each in found if each not in left_out], left_out


def _reason(candidate: Candidate, costs: Costs, best: Candidate) -> str:
    """Why it cannot win; empty if it may."""
    best_s = costs.lockstep_s(best)
    if candidate.is_lockstep:
        rate = best_s / costs.lockstep_s(candidate)
        return f"computed {rate:.2f} of the rate of {best}" if rate < LEAST_RATE else ""
    if not costs.exchange_s:
        return ""
    gain = best_s / costs.bound_s(candidate) - 1
    return f"could win at most {100 * max(0.0, gain):.1f} % over {best}" if gain < LEAST_GAIN else ""
