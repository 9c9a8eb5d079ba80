"""What a study asks, at which points and how often each; and what each of its jobs gave, with nothing summed up."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mpi_rollout.config import RolloutConfig, flag
from mpi_rollout.errors import ContentError, UsageError
from mpi_rollout.exchange.waiting import ranks_per_core
from mpi_rollout.options import AUTO
from mpi_rollout.studies.jobs import JobOptions, Options, Summary, in_order
from mpi_rollout.text import counted

PHASES = {"env": "envs", "idle": "imbalance", "exchange": "exchange", "policy": "policy", "write": "write"}
"""Where the time of a run goes, and what a run calls it in its `losses`."""


@dataclass(frozen=True)
class Point:
    """A job: its ranks, options of its run (hashable: `env_kwargs` is a text of JSON), and which repeat it is."""

    num_ranks: int
    options: tuple[tuple[str, object], ...] = ()
    repeat: int = 0

    @property
    def length(self) -> str:
        """The length of fragments, a number or auto."""
        return str(dict(self.options).get("fragment_length", AUTO))

    @property
    def way(self) -> str:
        """Its ranks and options as on a command line, without a length that the program chooses by itself."""
        words = [f"{flag(name)} {value}" for name, value in self.options if value != AUTO]
        return " ".join([f"-n {self.num_ranks}", *words])

    def __str__(self) -> str:
        return f"{self.way}, repeat {self.repeat}"


@dataclass(frozen=True)
class Sample:
    """One job.  If it failed, `error` says why, and what it did not report is 0 or empty.

    Parameters
    ----------
    env_s, idle_s, exchange_s, policy_s, write_s
        Where the run's seconds went; they add up to `seconds`.  `env_s` is the ranks' mean, `idle_s` their wait for the
        slowest.  Out of lockstep these are the root's seconds, with its waiting in `exchange_s`.
    order_bytes, slot_bytes
        Of one exchange: what goes to every rank, and what comes back from each.
    oversubscribed
        Some host had more ranks than cores for them.
    slept
        Ranks slept while they waited: they have less than a core also where nobody disturbs them.
    cpu_share
        Processor time over time of the rank that had the least: 1 for what spins while it waits, if nobody else runs
        on its core.
    fragment_length, inference
        The largest number of steps between two exchanges; who chose the actions in the end, root or workers.
    limit
        For each part of the run its rate, and that of bare loops on all of its ranks at once, before and after it.
    """

    point: Point
    num_envs: int
    started: str
    error: str = ""
    env_steps: int = 0
    num_steps: int = 0
    seconds: float = 0.0
    env_s: float = 0.0
    idle_s: float = 0.0
    exchange_s: float = 0.0
    policy_s: float = 0.0
    write_s: float = 0.0
    order_bytes: int = 0
    slot_bytes: int = 0
    oversubscribed: bool = False
    slept: bool = False
    hosts: str = ""
    mpi_library: str = ""
    fragment_length: int = 1
    inference: str = "root"
    cpu_share: float = 1.0
    limit: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no job can have measured, and others divide by."""
        rates = [rate for pair in self.limit for rate in pair]
        measured = [self.seconds, self.env_steps, self.num_steps, *rates]
        if not self.error and not all(0 < value < math.inf for value in measured):
            raise ContentError(f"{self.point}: no job can have measured {min(measured):g} or {max(measured):g}")

    @property
    def env_steps_per_s(self) -> float:
        return self.env_steps / self.seconds

    @property
    def result(self) -> str:
        """In one line, what came of the job."""
        return f"failed: {self.error.splitlines()[0]}" if self.error else f"{self.env_steps_per_s:,.0f} env steps/s"


_REPORTED = (
    *("num_envs", "env_steps", "num_steps", "seconds", "order_bytes", "slot_bytes", "slept", "mpi_library"),
    *("fragment_length", "inference"),
)


def sample_of(point: Point, started: str, num_cores: int, outcome: Summary) -> Sample:
    """Make a sample from the summary `outcome` of a job; a host has `num_cores`, unless the ranks report fewer."""
    ranks, losses = outcome["ranks"], outcome["losses"]
    places = [(rank["host"], set(rank["physical_cores"]), num_cores) for rank in ranks]
    for rank in (rank for rank in ranks if "env_ranks" in rank):  # It does not say where the others are.
        places += [(rank["host"], {*range(num_cores)}, num_cores)] * (len(rank["env_ranks"]) - 1)
    per_core = ranks_per_core(places)
    return Sample(
        point=point,
        started=started,
        hosts=", ".join(dict.fromkeys(rank["host"] for rank in ranks)),
        oversubscribed=per_core > 1,
        cpu_share=min(rank["cpu_share"] for rank in ranks),
        limit=tuple((float(rate), float(bare)) for rate, bare in outcome["limit"]),
        **{name: outcome[name] for name in _REPORTED if name in outcome},
        **{f"{name}_s": losses.get(share, 0.0) * outcome["seconds"] for name, share in PHASES.items()},
    )


@dataclass(frozen=True)
class Study:
    """Points, each repeated, every time as a job of its own; UsageError for a value that no study can have.

    Parameters
    ----------
    kind
        "strong", "tune": `size` envs in all on any number of ranks.  "weak": `size` envs on each rank, or on
        the ranks that make each env together.
    points
        Without repeats.  A study of scaling has `ranks_per_env` among its numbers of ranks: the base case is measured
        there.
    run
        What all jobs have in common: options of a run.
    """

    kind: str
    points: tuple[Point, ...]
    size: int
    run: Options
    jobs: JobOptions = field(default_factory=JobOptions)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UsageError(f"{self.size_option} must be at least 1, got {self.size}")
        each, most = self.ranks_per_env, self.num_ranks[-1]
        if unfit := [number for number in self.num_ranks if number % each]:
            raise UsageError(f"--ranks must be multiples of --ranks-per-env {each}, got {', '.join(map(str, unfit))}")
        if self.kind != "weak" and self.size * each < most:
            raise UsageError(
                f"--num-envs must be at least the largest of --ranks{f', over {each}' * (each > 1)}, got "
                f"{counted(self.size, 'env')} for {counted(most, 'rank')}; use more envs or fewer ranks"
            )
        for length in self.lengths:  # Refuse what every job would refuse.
            self.config(next(point for point in self.points if point.length == length), "study.json")

    @cached_property
    def num_ranks(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(sorted({point.num_ranks for point in self.points}))

    @cached_property
    def lengths(self) -> tuple[str, ...]:
        """The lengths of fragments: a curve for each."""
        return tuple(dict.fromkeys(point.length for point in self.points))

    @property
    def ranks_per_env(self) -> int:
        """The ranks of one env, on which the base case is measured."""
        return int(self.run.get("ranks_per_env", 1))  # Older files have none.

    @property
    def size_option(self) -> str:
        return "--envs-per-rank" if self.kind == "weak" else "--num-envs"

    @property
    def base_case(self) -> str:
        """In words, what speed-ups are relative to."""
        if self.run["vectorization_mode"] == "vector_entry_point":
            return f"bare step loop over the env's own vectorized version of {self.size} envs, one rank"
        ranks = f"{self.ranks_per_env} ranks" if self.ranks_per_env > 1 else "one rank"
        return f"bare env.step loop over {counted(self.size, 'env')}, {ranks}"

    @property
    def env_name(self) -> str:
        return self.run["env"] or self.run["env_factory"]

    def num_envs(self, num_ranks: int) -> int:
        """Return the number of envs of all ranks together."""
        return self.size * num_ranks // self.ranks_per_env if self.kind == "weak" else self.size

    def config(self, point: Point, out: str) -> RolloutConfig:
        """Return the run of one job."""
        own: Options = {"num_envs": self.num_envs(point.num_ranks), "out": out, "expect_ranks": point.num_ranks}
        own |= {"measure_limit": True, "json": True, "progress": "none"}
        options = dict(point.options)
        if "env_kwargs" in options:
            own |= {"env_kwargs": json.loads(str(options.pop("env_kwargs")))}
        if "num_envs" in options and "num_steps" not in options:  # As many env steps as the other jobs have.
            own |= {"num_steps": max(self.run["num_steps"] * self.size // int(str(options["num_envs"])), 1)}
        return RolloutConfig(**(self.run | own | options))

    def order(self) -> list[Point]:
        """Return all jobs in their order."""
        return [replace(point, repeat=repeat) for repeat, point in in_order(self.points, self.jobs)]


def scaling_points(num_ranks: Sequence[int], lengths: Sequence[str]) -> tuple[Point, ...]:
    """Return the points of a study of scaling: all numbers of ranks with each length of fragments."""
    return tuple(Point(ranks, (("fragment_length", length),)) for length in lengths for ranks in num_ranks)
