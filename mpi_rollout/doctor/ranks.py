"""The facts that each rank sends, and what they mean for a run: versions, cores, threads, clocks, exchanges."""

import os
import platform
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from time import monotonic

from mpi_rollout.config import versions
from mpi_rollout.doctor.probe import BAD, OK, WARN, Finding, first_few, warning_if
from mpi_rollout.process.host import physical_cores, processor_quota, processor_time
from mpi_rollout.text import counted

BUSY_S = 0.1  # A system switches some tens of times in it between programs that share a core.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
THREAD_LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
SLOW_EXCHANGE_US = 200.0
SLOW_CLOCK_S = 1.0
FULL_SHARE = 0.9  # The share of a core that counts as full: on a quiet machine a busy loop gets 0.99.


@dataclass(frozen=True)
class RankFacts:
    """What one rank knows of itself.

    Parameters
    ----------
    cores, physical_cores
        The hardware threads that its host lets it run on, and the cores that these belong to.
    quota
        Processor time in cores, where a container limits it.
    core_share
        The part of a core that a busy loop got; None where the system does not say.
    """

    rank: int
    host: str
    cores: frozenset[int]
    num_host_cores: int
    quota: float | None
    threads: dict[str, str]
    versions: dict[str, str]
    library: str
    thread_level: int
    physical_cores: frozenset[int]
    core_share: float | None = None

    @property
    def place(self) -> str:
        return f"rank {self.rank} ({self.host})"

    @classmethod
    def of_this_process(cls, rank: int, library: str, mpi4py_version: str, thread_level: int) -> "RankFacts":
        """Look at this process."""
        cores = frozenset(os.sched_getaffinity(0))
        return cls(
            rank=rank,
            host=platform.node(),
            cores=cores,
            num_host_cores=os.cpu_count() or 1,
            quota=processor_quota(),
            threads={name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ},
            versions=versions() | {"mpi4py": mpi4py_version},
            library=library,
            thread_level=thread_level,
            physical_cores=physical_cores(cores),
            core_share=_measure_core_share(),
        )

    def num_threads(self, name: str) -> int:
        """Return the number of threads of a library that reads this variable, or else OMP_NUM_THREADS."""
        for value in (self.threads.get(name), self.threads.get("OMP_NUM_THREADS")):
            first = (value or "").split(",")[0].strip()
            if first.isdigit() and int(first) > 0:
                return int(first)
        return len(self.cores)


Ranks = Sequence[RankFacts]


def _measure_core_share() -> float | None:
    before, end = processor_time(), monotonic() + BUSY_S
    while monotonic() < end:
        pass
    now = processor_time()
    return None if before is None or now is None else now.since(before).share


def by_host(ranks: Ranks) -> dict[str, list[RankFacts]]:
    """Return the ranks of each host, in rank order."""
    hosts: dict[str, list[RankFacts]] = {}
    for rank in ranks:
        hosts.setdefault(rank.host, []).append(rank)
    return hosts


def judge_ranks(ranks: Ranks, how_to_bind: str) -> Iterator[Finding]:
    """Judge what the ranks know of themselves; `how_to_bind` is the option that binds them to cores."""
    hosts = by_host(ranks)
    counts = first_few(f"{host}: {counted(len(there), 'rank')}" for host, there in hosts.items())
    yield Finding("hosts", counts, figures={"num_hosts": len(hosts)})
    yield judge_versions(ranks)
    yield judge_thread_level(ranks)
    yield judge_cores(ranks)
    yield from judge_core_shares(ranks)
    yield judge_binding(ranks, how_to_bind)
    yield judge_threads(ranks)


def judge_versions(ranks: Ranks) -> Finding:
    """Check that all ranks have the same versions and the same MPI library."""
    first, expected = ranks[0], {**ranks[0].versions, "MPI library": ranks[0].library}
    for rank in ranks:
        for name, got in {**rank.versions, "MPI library": rank.library}.items():
            if got != expected.get(name):
                text = f"{name}: {first.place} has {expected.get(name)}, {rank.place} {got}"
                return Finding("versions", text, BAD, "start all ranks in the same environment, on all hosts")
    same = ", the same on all ranks" * (len(ranks) > 1)
    return Finding("versions", ", ".join(f"{name} {value}" for name, value in first.versions.items()) + same)


def judge_thread_level(ranks: Ranks) -> Finding:
    """Check that MPI lets a program have threads."""
    level = min(rank.thread_level for rank in ranks)
    text = f"MPI_THREAD_{THREAD_LEVELS[level]}, FUNNELED is enough: one thread calls MPI"
    advice = "unset MPI4PY_RC_THREAD_LEVEL, or use an MPI built with threads: the root has a thread that writes"
    return warning_if(level == 0, "thread level", text, advice)


def usable_cores(there: Ranks) -> int:
    """Return the number of cores that the ranks of one host share."""
    num_cores = len(frozenset().union(*(rank.cores for rank in there)))
    quotas = [int(rank.quota) for rank in there if rank.quota is not None]
    return max(1, min([num_cores, *quotas])) if quotas else num_cores


def judge_cores(ranks: Ranks) -> Finding:
    """Check that no host has more ranks than cores, or than hardware threads of different cores."""
    hosts = by_host(ranks)
    host, there = max(hosts.items(), key=lambda item: len(item[1]) / usable_cores(item[1]))
    num_ranks, cores, of_host = len(there), usable_cores(there), there[0].num_host_cores
    text = f"{counted(num_ranks, 'rank')} on {counted(cores, 'usable core')} of {of_host} ({host})"
    if num_ranks > cores:
        advice = (
            f"start at most {counted(cores, 'rank')} on such a host: a rank that waits spins, and slows others down"
        )
        if cores < of_host:
            advice = f"ask for more cores for the job or container, or unbind the ranks: {num_ranks} need as many cores"
        figures = {"ranks_on_host": num_ranks, "usable_cores": cores}
        return warning_if(True, "cores", f"oversubscribed: {text}", advice, **figures)
    for name, own in hosts.items():
        num_cores = len(frozenset().union(*(rank.physical_cores for rank in own)))
        if len(own) > num_cores:
            text = f"{len(own)} ranks on the hardware threads of {counted(num_cores, 'core')} ({name})"
            advice = (
                "one rank for each core: SBATCH_HINT=nomultithread in slurm/site.sh (sbatch --hint=nomultithread), or "
                f"mpirun -n {num_cores}; two on one core share what it computes with"
            )
            return warning_if(True, "cores", text, advice, ranks_on_host=len(own), usable_cores=num_cores)
    return warning_if(False, "cores", text, ranks_on_host=num_ranks, usable_cores=cores)


def judge_core_shares(ranks: Ranks) -> list[Finding]:
    """Check whether other programs run on the ranks' cores."""
    known = [(rank.core_share, rank.place) for rank in ranks if rank.core_share is not None]
    if not known:
        return []
    share, place = min(known)
    text = f"a busy loop got {share:.2f} of a core on {place}, the least"
    advice = "other programs or ranks share these cores: use fewer ranks, --wait sleep, or sbatch --exclusive"
    if len(ranks) == 1:
        advice = "other programs share its core: end them (top shows them), or sbatch --exclusive"
    return [warning_if(share < FULL_SHARE, "core shares", text, advice, core_share=share)]


def judge_binding(ranks: Ranks, how_to_bind: str) -> Finding:
    """Check whether the ranks of one host have cores of their own; `how_to_bind` is the advice if they have not."""
    hosts = by_host(ranks)
    if len(ranks) == len(hosts):
        return Finding("binding", "one rank per host: " + _core_list(ranks[0].cores))
    if all(len({rank.cores for rank in there}) == 1 for there in hosts.values()):
        crowd = max(hosts.values(), key=len)
        text = f"none: the ranks of a host may all run on {_core_list(crowd[0].cores)}"
        return Finding("binding", text, advice=f"to have ranks stay on cores of their own: {how_to_bind}")
    for host, there in hosts.items():
        for first, second in combinations(there, 2) if len(there) <= 256 else pairwise(there):
            if shared := first.cores & second.cores:
                text = f"ranks {first.rank} and {second.rank} ({host}) share core {first_few(sorted(shared), 4)}"
                return warning_if(True, "binding", text, f"give each rank cores of its own: {how_to_bind}")
    return Finding("binding", f"each rank has cores of its own: rank {ranks[0].rank} {_core_list(ranks[0].cores)}")


def _core_list(cores: Iterable[int]) -> str:
    numbers = sorted(cores)
    return f"core{'s' * (len(numbers) > 1)} {first_few(numbers)}"


def judge_threads(ranks: Ranks) -> Finding:
    """Check how many threads the libraries of numpy and of simulators would start on each rank."""
    for there in by_host(ranks).values():
        num_cores = max(1, usable_cores(there) // len(there))
        for rank in there:
            excesses = {name: number for name in THREAD_VARIABLES if (number := rank.num_threads(name)) > num_cores}
            if excesses:
                values = ", ".join(f"{name} {rank.threads.get(name, 'unset')}" for name in excesses)
                text = f"{values} on rank {rank.rank}: up to {max(excesses.values())} threads"
                advice = "export " + " ".join(f"{name}={num_cores}" for name in THREAD_VARIABLES)
                return warning_if(True, "threads", f"{text}, with {num_cores} core(s) a rank", advice)
    values = ", ".join(f"{name} {value}" for name, value in ranks[0].threads.items())
    return Finding("threads", values or "no limit set, none needed: a rank sees no more cores than are its own")


def judge_clocks(ranks: Ranks, times: Sequence[float]) -> list[Finding]:
    """Compare the hosts' clocks; `times` are the ranks' clocks at the same moment."""
    if len(by_host(ranks)) == 1:
        return []
    apart_s = max(times) - min(times)
    text, advice = f"{apart_s:.3f} s apart between hosts", "have the hosts' clocks set by NTP"
    return [warning_if(apart_s > SLOW_CLOCK_S, "clocks", text, advice, clocks_s=apart_s)]


def judge_exchange(ranks: Ranks, small_us: Sequence[float], large_us: Sequence[float], nbytes: int) -> list[Finding]:
    """Judge the times of exchanges of an order and small slots, and of slots of `nbytes` a rank."""
    median, percentile = statistics.median(small_us), statistics.quantiles(small_us, n=10)[-1]
    text = f"{median:.1f} us for an order and its slots (90 % below {percentile:.1f}; median of {len(small_us)})"
    figures = {"exchange_us": median, "exchange_90_percent_us": percentile}
    is_slow, large = median > SLOW_EXCHANGE_US, statistics.median(large_us)
    advice = _why_slow(ranks) if is_slow else "2 to 20 us is usual on one host, 10 to 100 us between hosts"
    rate = (len(ranks) - 1) * nbytes / large  # Bytes per us are MB per s.
    bandwidth = f"{large:,.0f} us for slots of {nbytes / 2**20:.3g} MiB a rank, {rate:,.0f} MB/s to the root"
    return [
        Finding("exchange", text, WARN if is_slow else OK, advice, figures=figures),
        Finding("bandwidth", bandwidth, figures={"large_exchange_us": large, "gather_mb_per_s": rate}),
    ]


def _why_slow(ranks: Ranks) -> str:
    if judge_cores(ranks).advice:
        return "start no more ranks than cores: a waiting rank spins on the core that another needs"
    if len(by_host(ranks)) == 1:
        return "look for other programs on these cores (top), and bind the ranks"
    return "see that MPI uses the fast network, not TCP (UCX_NET_DEVICES, FI_PROVIDER), and bind the ranks"
