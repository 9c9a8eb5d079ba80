"""What the jobs of a study gave, as rows of tables: nothing is summed up over jobs here."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from mpi_rollout.bench.jobs import Summary
from mpi_rollout.config import AUTO
from mpi_rollout.errors import counted


class Point(NamedTuple):
    """One job of a study."""

    num_ranks: int
    repeat: int
    fragment_length: str = "1"

    def __str__(self) -> str:
        length = f", --fragment-length {self.fragment_length}" if self.fragment_length != AUTO else ""
        return f"{counted(self.num_ranks, 'rank')}, repeat {self.repeat}{length}"


@dataclass(frozen=True)
class Job:
    """One job.  If it failed, `error` says why, and what it did not report is 0 or empty.

    Parameters
    ----------
    env_s, idle_s, exchange_s, policy_s, write_s
        Where the run's seconds went; they add up to `seconds`.  `env_s` is what the ranks needed for their envs on
        average, `idle_s` their wait for the slowest of each step.  Where ranks step while the root does other
        things, these are the root's seconds and its waiting is in `exchange_s`.
    order_bytes, slot_bytes
        Of one exchange: what goes to every rank, and what comes back from each.
    oversubscribed
        Some host had more ranks than cores for them.
    slept
        Ranks slept while they waited: they have less than a core also where nobody disturbs them.
    asked_length, fragment_length
        What the study asked for, a number or auto; and the largest number of steps between two exchanges.
    inference
        Who chose the actions in the end: root or workers.
    """

    num_ranks: int
    repeat: int
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
    binding: str = ""
    hosts: str = ""
    mpi_library: str = ""
    asked_length: str = "1"
    fragment_length: int = 1
    inference: str = "root"

    @property
    def point(self) -> Point:
        return Point(self.num_ranks, self.repeat, self.asked_length)

    @property
    def env_steps_per_s(self) -> float:
        return self.env_steps / self.seconds

    @property
    def exchange_bytes(self) -> float:
        """What the root sends and receives in one exchange: the order as the tree's first message, a slot per rank."""
        return self.order_bytes + (self.num_ranks - 1) * self.slot_bytes if self.num_ranks > 1 else 0.0


@dataclass(frozen=True)
class Rank:
    """One rank of a job.

    Parameters
    ----------
    job
        Row of the job.
    cores
        Those that it might run on, as `0-3,8`.
    cpu_share
        Processor time over time, from its start to its end.  What spins while it waits has 1, if nobody else runs on
        its core and its envs do not sleep.
    env_s
        Its seconds in its envs' steps.
    policy_s, send_s, wait_s, gather_s, write_s
        The rest of its time, as `mpi_rollout.core.clock.PHASES` has it.
    """

    job: int
    rank: int
    host: str
    cores: str
    num_envs: int
    cpu_share: float
    env_s: float
    policy_s: float
    send_s: float
    wait_s: float
    gather_s: float
    write_s: float


@dataclass(frozen=True)
class JobPart:
    """One part of a job: its rate, and that of bare loops on all of its ranks at once, before and after it."""

    job: int
    env_steps_per_s: float
    bare_env_steps_per_s: float


@dataclass(frozen=True)
class Samples:
    """All rows of a study, in the order in which they came."""

    jobs: tuple[Job, ...] = ()
    ranks: tuple[Rank, ...] = ()
    parts: tuple[JobPart, ...] = ()

    @property
    def points(self) -> set[Point]:
        return {job.point for job in self.jobs}

    @property
    def failed(self) -> set[Point]:
        return {job.point for job in self.jobs if job.error}

    def with_outcome(
        self, repeat: int, started: str, num_cores: int, outcome: Summary, asked_length: str = "1"
    ) -> "Samples":
        """Add a job whose run printed `outcome`; a host has `num_cores`, unless the ranks report fewer."""
        place, ranks = len(self.jobs), outcome["ranks"]
        reported = {column.name: outcome[column.name] for column in fields(Job) if column.name in outcome}
        derived: Summary = {
            "hosts": ", ".join(dict.fromkeys(rank["host"] for rank in ranks)),
            "binding": _binding(ranks),
            "oversubscribed": _is_oversubscribed(ranks, num_cores),
            "asked_length": asked_length,
        }
        job = Job(repeat=repeat, started=started, **reported, **derived, **_phases(outcome))
        rows = [_rank_row(place, rank, env_s) for rank, env_s in zip(ranks, outcome["step_s"], strict=True)]
        parts = [JobPart(place, *rates) for rates in outcome["limit"]]
        return Samples((*self.jobs, job), (*self.ranks, *rows), (*self.parts, *parts))

    def with_failure(self, point: Point, num_envs: int, started: str, error: str) -> "Samples":
        """Add a job that gave no result."""
        job = Job(point.num_ranks, point.repeat, num_envs, started, error, asked_length=point.fragment_length)
        return Samples((*self.jobs, job), self.ranks, self.parts)


def of_ranks(samples: Samples, num_ranks: int) -> Samples:
    """Return the jobs on so many ranks."""
    return joined([samples], {point for point in samples.points if point.num_ranks == num_ranks})


def joined(parts: Sequence[Samples], points: set[Point] | None = None) -> Samples:
    """Join the jobs of all parts in the order in which they were started; with `points` only those.

    Where two jobs are the same point, the first part's is taken.
    """
    by_point = {
        job.point: (part, row)
        for part in reversed(parts)
        for row, job in enumerate(part.jobs)
        if points is None or job.point in points
    }
    kept = sorted(by_point.values(), key=lambda place: place[0].jobs[place[1]].started)
    new_rows = {(id(part), row): place for place, (part, row) in enumerate(kept)}
    ranks, rates = [], []
    for part in parts:
        ranks += [
            replace(rank, job=new_rows[id(part), rank.job]) for rank in part.ranks if (id(part), rank.job) in new_rows
        ]
        rates += [
            replace(rate, job=new_rows[id(part), rate.job]) for rate in part.parts if (id(part), rate.job) in new_rows
        ]
    ranks.sort(key=lambda rank: rank.job)
    rates.sort(key=lambda rate: rate.job)
    return Samples(tuple(part.jobs[row] for part, row in kept), tuple(ranks), tuple(rates))


def _phases(outcome: Summary) -> Summary:
    shares = dict(outcome["losses"])
    if not outcome["in_lockstep"]:  # See `RunFigures.losses`.
        exchange = sum(shares[name] for name in ("send", "gather", "other"))
        shares |= {"envs": shares["step"], "imbalance": 0.0, "exchange": exchange}
    names = {"env_s": "envs", "idle_s": "imbalance", "exchange_s": "exchange", "policy_s": "policy", "write_s": "write"}
    return {name: shares[share] * outcome["seconds"] for name, share in names.items()}


def _rank_row(job: int, rank: Summary, env_s: float) -> Rank:
    seconds = {f"{name}_s": rank["seconds"][name] for name in ("policy", "send", "wait", "gather", "write")}
    reported = {name: rank[name] for name in ("rank", "host", "num_envs", "cpu_share")}
    return Rank(job=job, cores=ranges(rank["cores"]), env_s=env_s, **reported, **seconds)


def _by_host(ranks: Sequence[Summary], which: str = "cores") -> list[list[set[int]]]:
    """Return host by host the hardware threads of each rank, or the physical cores that these belong to."""
    hosts: dict[str, list[set[int]]] = {}
    for rank in ranks:
        hosts.setdefault(rank["host"], []).append(set(rank[which]))
    return list(hosts.values())


def _is_oversubscribed(ranks: Sequence[Summary], num_cores: int) -> bool:
    hosts = _by_host(ranks, "physical_cores")
    return any(len(there) > min(num_cores, len(set().union(*there))) for there in hosts)


def _binding(ranks: Sequence[Summary]) -> str:
    hosts = _by_host(ranks)
    if all(len(there) == 1 for there in hosts):
        return "one rank per host"
    if all(cores == there[0] for there in hosts for cores in there):
        return "none"
    if all(sum(map(len, there)) == len(set().union(*there)) for there in hosts):
        return "cores of their own"
    return "some ranks share cores"


def ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers as `0-3,8`."""
    ends: list[list[int]] = []
    for number in numbers:
        if ends and number == ends[-1][1] + 1:
            ends[-1][1] = number
        else:
            ends.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)
