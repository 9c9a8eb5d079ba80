"""Samples: what one job gave, as it is stored.  Nothing is summed up over jobs here."""

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from mpi_rollout.config import AUTO, flag
from mpi_rollout.errors import ContentError
from mpi_rollout.studies.jobs import Summary


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
    def words(self) -> list[str]:
        """Its options as words of a command line, without a length that the program chooses by itself."""
        pairs = [(flag(name), value) for name, value in self.options if value != AUTO]
        return [word for name, value in pairs for word in ([name] if value is True else [name, str(value)])]

    @property
    def way(self) -> str:
        return " ".join([f"-n {self.num_ranks}", *self.words])

    def __str__(self) -> str:
        return f"{self.way}, repeat {self.repeat}"


@dataclass(frozen=True)
class Rank:
    """One rank of a job.

    Parameters
    ----------
    cores
        Those that it might run on, as `0-3,8`.
    cpu_share
        Processor time over time, from its start to its end.  What spins while it waits has 1, if nobody else runs on
        its core and its envs do not sleep.
    env_s, policy_s, send_s, wait_s, gather_s, write_s
        Its seconds in its envs' steps, and the rest of its time, as `mpi_rollout.process.clock.PHASES` has it.
    """

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
class Sample:
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
    fragment_length
        The largest number of steps between two exchanges.
    inference
        Who chose the actions in the end: root or workers.
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
    binding: str = ""
    hosts: str = ""
    mpi_library: str = ""
    fragment_length: int = 1
    inference: str = "root"
    ranks: tuple[Rank, ...] = ()
    limit: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no job can have measured, and others divide by; a job that failed has measured nothing."""
        rates = [rate for pair in self.limit for rate in pair]
        measured = [self.seconds, self.env_steps, self.num_steps, *rates]
        if not self.error and not all(0 < value < math.inf for value in measured):
            raise ContentError(f"{self.point}: no job can have measured {min(measured):g} or {max(measured):g}")

    @property
    def env_steps_per_s(self) -> float:
        return self.env_steps / self.seconds

    @property
    def exchange_bytes(self) -> float:
        """What the root sends and receives in one exchange: the order as the tree's first message, a slot per rank."""
        num_ranks = self.point.num_ranks
        return self.order_bytes + (num_ranks - 1) * self.slot_bytes if num_ranks > 1 else 0.0


_REPORTED = (
    *("num_envs", "env_steps", "num_steps", "seconds", "order_bytes", "slot_bytes", "slept", "mpi_library"),
    *("fragment_length", "inference"),
)


def sample_of(point: Point, started: str, num_cores: int, outcome: Summary) -> Sample:
    """Return what a job gave whose run printed `outcome`; a host has `num_cores`, unless the ranks report fewer."""
    ranks = outcome["ranks"]
    return Sample(
        point=point,
        started=started,
        hosts=", ".join(dict.fromkeys(rank["host"] for rank in ranks)),
        binding=_binding(ranks),
        oversubscribed=_is_oversubscribed(ranks, num_cores),
        ranks=tuple(_rank_of(rank, env_s) for rank, env_s in zip(ranks, outcome["step_s"], strict=True)),
        limit=tuple((float(rate), float(bare)) for rate, bare in outcome["limit"]),
        **{name: outcome[name] for name in _REPORTED if name in outcome},
        **_phases(outcome),
    )


def _phases(outcome: Summary) -> Summary:
    shares = dict(outcome["losses"])
    if not outcome["in_lockstep"]:  # See `RunFigures.losses`.
        exchange = sum(shares[name] for name in ("send", "gather", "other"))
        shares |= {"envs": shares["step"], "imbalance": 0.0, "exchange": exchange}
    names = {"env_s": "envs", "idle_s": "imbalance", "exchange_s": "exchange", "policy_s": "policy", "write_s": "write"}
    return {name: shares[share] * outcome["seconds"] for name, share in names.items()}


def _rank_of(rank: Summary, env_s: float) -> Rank:
    seconds = {f"{name}_s": rank["seconds"][name] for name in ("policy", "send", "wait", "gather", "write")}
    reported = {name: rank[name] for name in ("rank", "host", "num_envs", "cpu_share")}
    return Rank(cores=ranges(rank["cores"]), env_s=env_s, **reported, **seconds)


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


def record(where: str, stored: dict[str, Any], kind: Any) -> Any:
    """Return an object from JSON as a dataclass; ContentError if it is none."""
    kinds = get_type_hints(kind)
    if unknown := sorted(stored.keys() - kinds.keys()):
        raise ContentError(f"{where} has an unknown {unknown[0]}")
    values = {name: _checked(f"{where}: {name}", value, kinds[name]) for name, value in stored.items()}
    for field in fields(kind):
        if field.name not in values and field.default is field.default_factory is MISSING:
            raise ContentError(f"{where} has no {field.name}")
    return kind(**values)


def _checked(where: str, value: object, kind: Any) -> Any:
    """Return a value from JSON as one of a type, a dataclass with all its fields; ContentError if it is none."""
    if is_dataclass(kind) and isinstance(value, dict):
        return record(where, value, kind)
    if get_origin(kind) is tuple and isinstance(value, list):
        kinds = get_args(kind)
        kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
        if len(kinds) == len(value):
            return tuple(_checked(f"{where}, {place}", part, kinds[place]) for place, part in enumerate(value))
    members = get_args(kind) if isinstance(kind, UnionType) else (get_origin(kind) or kind,)
    if kind is object or type(value) in members or (kind is float and type(value) is int):
        return value
    raise ContentError(f"{where} cannot be {value!r:.80}")
