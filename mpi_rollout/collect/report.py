"""What a run says about itself when it is over: for people, and as JSON."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_rollout.collect.advice import advice_of
from mpi_rollout.collect.watcher import LostRank
from mpi_rollout.core.policy_kinds import RANDOM
from mpi_rollout.core.spaces import wrong_values_text
from mpi_rollout.process.clock import losses
from mpi_rollout.storage.values import merged_wrong
from mpi_rollout.text import counted

if TYPE_CHECKING:
    from mpi_rollout.collect.leaders import Outcome
    from mpi_rollout.collect.team import RankTeam


@dataclass(frozen=True)
class RunFigures:
    """The figures of a run, or of a team's part of it; they are also what `--json` prints."""

    file: str
    num_envs: int
    num_steps: int
    env_steps: int  # Transitions: rows that only reset are not counted.
    seconds: float  # From the first step to the last commit, without what measuring the limit took.
    phases: dict[str, float]  # The root's seconds.
    ranks: list[dict[str, Any]]  # The reports of the ranks in the exchange.
    step_s: list[float]  # The seconds of each in its envs, and in its policy.
    slowest_s: float  # The sum over steps of the slowest rank's seconds.
    mean_s: float  # The sum over steps of the ranks' mean.
    in_lockstep: bool = True
    first_ready: bool = False  # No rank waits for another one, so that rank 0 is never idle.
    num_waits: int = 0
    limit: list[tuple[float, float]] = field(default_factory=list)  # Env steps/s of a part, and of bare loops.
    restarts: dict[int, int] = field(default_factory=dict)  # How often envs were restarted, by their index.
    num_steps_before: int = 0  # Steps of earlier starts of the run.
    catch_up_s: float = 0.0  # In which the envs were brought back to there.
    complete: bool = True
    mpi_library: str = ""
    order_bytes: int = 0  # Of one exchange: what goes to every rank.
    slot_bytes: int = 0  # What comes back from each.
    lost: list[LostRank] = field(default_factory=list)
    wrong_values: list[dict[str, Any]] = field(default_factory=list)  # In the file, see `storage.values`.
    slept: bool = False  # Ranks slept while they waited for messages.
    fragment_length: int = 1  # The largest number of steps between two exchanges.
    inference: str = "root"  # Who chose the actions: root or workers.
    num_episodes: int | None = None  # With --num-episodes, those in the file that have ended.
    of_num_episodes: int | None = None
    policy_kind: str = RANDOM  # See `core.policy_kinds`.
    compression: str = "none"

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The reports of ranks that make envs together with others."""
        return [rank for rank in self.ranks if "env_ranks" in rank]

    @property
    def num_ranks(self) -> int:
        """All ranks of the job."""
        return len(self.ranks) + sum(len(rank["env_ranks"]) - 1 for rank in self.groups)

    @property
    def env_steps_per_s(self) -> float:
        return self.env_steps / self.seconds if self.seconds else 0.0

    @property
    def losses(self) -> dict[str, float]:
        """Where the root's time went, as shares of the run that add up to 1."""
        phases = self.phases
        if self.asks_on_ranks and self.in_lockstep:
            asked_s = [rank["seconds"]["policy"] for rank in self.ranks if rank["num_envs"]]
            phases = phases | {"policy": float(np.mean(asked_s))}
        return losses(self.seconds, self.mean_s, self.slowest_s, phases, self.in_lockstep, self.asks_on_ranks)

    @property
    def asks_on_ranks(self) -> bool:
        """Each rank asks the policy for the actions of its own envs."""
        return self.inference == "workers" and self.policy_kind != RANDOM

    @property
    def ratio_to_limit(self) -> float | None:
        """The median of the parts' ratios; None where the limit was not measured."""
        return float(np.median([rate / limit for rate, limit in self.limit])) if self.limit else None

    @property
    def advice(self) -> str:
        """What costs most of the time, and what helps; "" where nothing costs much."""
        return advice_of(self)

    def as_dict(self) -> dict[str, object]:
        """All of it, for `--json`."""
        derived = "num_ranks", "env_steps_per_s", "losses", "ratio_to_limit", "advice"
        return asdict(self) | {name: getattr(self, name) for name in derived}

    def balanced_root_envs(self) -> tuple[int, float] | None:
        """Return with how many envs on rank 0 all ranks would be ready together, and the share of time won.

        It follows from the measured seconds of an env on rank 0 and on the others.  Rank 0's other work counts where no
        rank waits for another; in lockstep it comes when the others have stepped.  None where it cannot be told.
        """
        num_envs = [int(rank["num_envs"]) for rank in self.ranks]
        own, others, num_others = num_envs[0], sum(num_envs[1:]), len(num_envs) - 1
        if not own or not others or self.lost:
            return None
        root_s, other_s = self.step_s[0] / own, sum(self.step_s[1:]) / others
        besides_s = max(0.0, self.seconds - self.step_s[0]) if self.first_ready else 0.0
        if not root_s or not other_s:
            return None
        best = (self.num_envs * other_s / num_others - besides_s) / (root_s + other_s / num_others)
        least = 1 if self.groups else 0  # A root without envs is in no group: then another number of ranks fits.
        best = min(max(round(best), least), self.num_envs - num_others)

        def needed_s(root_envs: int) -> float:
            return max(root_envs * root_s + besides_s, (self.num_envs - root_envs) / num_others * other_s)

        return best, (needed_s(own) - needed_s(best)) / self.seconds

    def lines(self) -> list[str]:
        """All of it, for people."""
        slowest_s, slowest = max(zip(self.step_s, self.ranks, strict=True), key=lambda pair: pair[0])
        shares = ", ".join(f"{name} {100 * share:z.1f}%" for name, share in self.losses.items())
        num_taken = self.num_steps - self.num_steps_before
        lines = [
            f"{counted(self.env_steps, 'env step')} in {self.seconds:.2f} s: {self.env_steps_per_s:,.0f} env steps/s "
            f"({counted(self.num_envs, 'env')} x {counted(num_taken, 'step')} on {counted(self.num_ranks, 'rank')})"
        ]
        if self.num_steps_before:
            lines += [
                f"this start only: earlier ones took {self.num_steps_before:,} of the {counted(self.num_steps, 'step')}"
            ]
        lines += [*self._episodes(), *self._env_ranks()]
        lines += [f"{'time' if self.in_lockstep else 'time of the root'}: {shares}"]
        if self.fragment_length > 1 or self.inference == "workers":
            who = "the ranks chose the actions" if self.inference == "workers" else "rank 0 sent the actions"
            lines += [f"fragments of {counted(self.fragment_length, 'step')} at most; {who}"]
        if len(self.ranks) > 1:
            where = "its envs" + " and its policy" * self.asks_on_ranks
            lines += [
                f"slowest rank: {slowest['rank']} ({slowest['host']}), {slowest_s:.2f} s in {where}; "
                f"ranks on average {self.mean_s:.2f} s"
            ]
        state = "complete" if self.complete else "unfinished"
        advice = [f"advice: {self.advice}"] if self.advice else []
        return [*lines, *self._limit_lines(), *self._faults(), *advice, f"file: {self.file} ({state})"]

    def _episodes(self) -> list[str]:
        """Return a line about the episodes that were asked for, if they were."""
        if self.num_episodes is None or self.of_num_episodes is None:
            return []
        line = f"{counted(self.num_episodes, 'episode')} ended, of --num-episodes {self.of_num_episodes}"
        if self.complete and self.num_episodes < self.of_num_episodes:
            line += "; all --num-steps are taken, the same command with more goes on"
        return [line]

    def _env_ranks(self) -> Iterator[str]:
        """Yield which ranks made which envs together, if they did."""
        if self.groups:
            made = [
                f"ranks {', '.join(map(str, rank['env_ranks']))} made "
                + (f"env {rank['envs'].split()[0]}" if rank["num_envs"] == 1 else f"envs {rank['envs']}")
                for rank in self.groups
            ]
            yield "; ".join(made[:8]) + "; ..." * (len(made) > 8)

    def _limit_lines(self) -> Iterator[str]:
        """Yield how far the run was from the limit."""
        if self.limit:
            ratios = [rate / limit for rate, limit in self.limit]
            limit = float(np.median([limit for _, limit in self.limit]))
            yield (
                f"limit: {limit:,.0f} env steps/s (bare env.step loops on all ranks at once); parts of the run reached "
                f"{self.ratio_to_limit:.3f} of it (median of {len(ratios)}, {min(ratios):.3f} to {max(ratios):.3f})"
            )

    def _faults(self) -> Iterator[str]:
        """Yield a line about each thing that went wrong and did not end the run."""
        if self.restarts:
            first = ", ".join(map(str, list(self.restarts)[:8])) + (", ..." if len(self.restarts) > 8 else "")
            times = counted(sum(self.restarts.values()), "time")
            yield f"restarted after failures: {times}, envs {first}; see /faults"
        if self.wrong_values:
            yield f"stored as they were: {wrong_values_text(self.wrong_values)}"
        if self.lost:
            num_lost = sum(rank.num_envs for rank in self.lost)
            yield f"lost {num_lost} of {counted(self.num_envs, 'env')}: {'; '.join(map(str, self.lost))}"
        if self.num_waits:
            yield f"waited {counted(self.num_waits, 'time')} for the disk"


def merged(team: "RankTeam", outcomes: "list[Outcome]") -> RunFigures | None:
    """Return the figures of the run from those of its teams, of which some may have had nothing to do.

    They are sums, and the seconds of a team on average.
    """
    told = [outcome.figures for outcome in outcomes if outcome.figures is not None]
    if not told:
        return None
    first, num_teams = told[0], len(told)
    times = [pair for each in told for pair in zip(each.ranks, each.step_s, strict=True)]
    times.sort(key=lambda pair: pair[0]["rank"])
    starts = [each.envs.start for each, outcome in zip(team.teams, outcomes, strict=True) if outcome.figures]
    rates = zip(*(each.limit for each in told), strict=False)
    return replace(
        first,
        file=team.whole.path,
        num_envs=team.whole.num_envs,
        env_steps=sum(each.env_steps for each in told),
        seconds=max(each.seconds for each in told),
        phases={name: sum(each.phases[name] for each in told) / num_teams for name in first.phases},
        ranks=[rank for rank, _ in times],
        step_s=[step_s for _, step_s in times],
        slowest_s=sum(each.slowest_s for each in told) / num_teams,
        mean_s=sum(each.mean_s for each in told) / num_teams,
        limit=[(sum(run for run, _ in part), sum(bare for _, bare in part)) for part in rates],
        restarts={env: num for each in told for env, num in each.restarts.items()},
        num_waits=sum(each.num_waits for each in told),
        num_steps_before=min(each.num_steps_before for each in told),
        fragment_length=max(each.fragment_length for each in told),
        catch_up_s=max(each.catch_up_s for each in told),
        wrong_values=merged_wrong([(start, each.wrong_values) for start, each in zip(starts, told, strict=True)]),
    )
