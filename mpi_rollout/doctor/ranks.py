"""What the ranks' facts mean for a run: versions, cores, binding, threads, clocks, the time of an exchange."""

import statistics
from collections.abc import Sequence
from itertools import combinations, pairwise

from mpi_rollout.doctor.findings import BAD, OK, WARN, Finding, shortened
from mpi_rollout.doctor.launch import MPICH, OPEN_MPI, Launcher
from mpi_rollout.doctor.rank import THREAD_VARIABLES, RankFacts
from mpi_rollout.errors import counted

THREAD_LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
SLOW_EXCHANGE_US = 200.0
SLOW_CLOCK_S = 1.0
FULL_SHARE = 0.9  # Of a core: on a quiet machine a busy loop gets 0.99.
Ranks = Sequence[RankFacts]


def by_host(ranks: Ranks) -> dict[str, list[RankFacts]]:
    """The ranks of each host, in rank order."""
    found: dict[str, list[RankFacts]] = {}
    for each in ranks:
        found.setdefault(each.host, []).append(each)
    return found


def judge_hosts(ranks: Ranks) -> list[Finding]:
    hosts = by_host(ranks)
    found = shortened(f"{host}: {counted(len(there), 'rank')}" for host, there in hosts.items())
    return [Finding("hosts", found, figures={"num_hosts": len(hosts)})]


def judge_versions(ranks: Ranks) -> list[Finding]:
    first = ranks[0]
    for each in ranks:
        for name, expected in {**first.versions, "MPI library": first.library}.items():
            got = each.library if name == "MPI library" else each.versions.get(name)
            if got != expected:
                found = f"{name}: rank {first.rank} ({first.host}) has {expected}, rank {each.rank} ({each.host}) {got}"
                return [Finding("versions", found, BAD, "start all ranks in the same environment, on all hosts")]
    same = ", the same on all ranks" if len(ranks) > 1 else ""
    return [Finding("versions", ", ".join(f"{name} {value}" for name, value in first.versions.items()) + same)]


def judge_thread_level(ranks: Ranks) -> list[Finding]:
    level = min(each.thread_level for each in ranks)
    found = f"MPI_THREAD_{THREAD_LEVELS[level]}, FUNNELED is enough: one thread calls MPI"
    if level == 0:
        advice = "unset MPI4PY_RC_THREAD_LEVEL, or use an MPI built with threads: the root has a thread that writes"
        return [Finding("thread level", found, WARN, advice)]
    return [Finding("thread level", found)]


def usable_cores(there: Ranks) -> int:
    """The cores that the ranks of one host have between them."""
    num_cores = len(frozenset().union(*(each.cores for each in there)))
    quotas = [each.quota for each in there if each.quota is not None]
    return max(1, min(num_cores, *map(int, quotas))) if quotas else num_cores


def judge_cores(ranks: Ranks) -> list[Finding]:
    host, there = max(by_host(ranks).items(), key=lambda item: len(item[1]) / usable_cores(item[1]))
    cores, of_host = usable_cores(there), there[0].num_host_cores
    num_ranks = counted(len(there), "rank")
    found = f"{num_ranks} on {cores} usable core{'s' * (cores > 1)} of {of_host} ({host})"
    figures = {"ranks_on_host": len(there), "usable_cores": cores}
    if len(there) <= cores:
        return [_shared_units(ranks) or Finding("cores", found, figures=figures)]
    if cores < of_host:
        advice = f"ask for more cores for the job or container, or unbind the ranks: {len(there)} need as many cores"
    else:
        most = counted(cores, "rank")
        advice = f"start at most {most} on such a host: a rank that waits spins, and slows down those that step"
    return [Finding("cores", f"oversubscribed: {found}", WARN, advice, figures=figures)]


def judge_core_shares(ranks: Ranks) -> list[Finding]:
    """Whether other programs run on the ranks' cores."""
    known = [each for each in ranks if each.core_share is not None]
    if not known:
        return []
    least = min(known, key=lambda each: each.core_share)
    found = f"a busy loop got {least.core_share:.2f} of a core on rank {least.rank} ({least.host}), the least"
    figures = {"core_share": least.core_share}
    if least.core_share >= FULL_SHARE:
        return [Finding("core shares", found, figures=figures)]
    advice = "other programs or ranks share these cores: use fewer ranks, --wait sleep, or sbatch --exclusive"
    if len(ranks) == 1:
        advice = "other programs share its core: end them (top shows them), or sbatch --exclusive"
    return [Finding("core shares", found, WARN, advice, figures=figures)]


def _shared_units(ranks: Ranks) -> Finding | None:
    """Ranks that have a hardware thread each, but not a core."""
    for host, there in by_host(ranks).items():
        num_cores = len(frozenset().union(*(each.physical_cores for each in there)))
        if len(there) > num_cores:
            told = f"{len(there)} ranks on the hardware threads of {num_cores} core{'s' * (num_cores > 1)} ({host})"
            advice = (
                "one rank for each core: SBATCH_HINT=nomultithread in slurm/site.sh (sbatch --hint=nomultithread), or "
                f"mpirun -n {num_cores}; two on one core share what it computes with"
            )
            return Finding(
                "cores", told, WARN, advice, figures={"ranks_on_host": len(there), "usable_cores": num_cores}
            )
    return None


def judge_binding(ranks: Ranks, launcher: Launcher | None, is_told_not_to: bool = False) -> list[Finding]:
    """Whether ranks of one host have cores of their own; `is_told_not_to`: the batch script's settings unbind them."""
    hosts = by_host(ranks)
    if len(ranks) == len(hosts):
        return [Finding("binding", "one rank per host: " + _cores_told(ranks[0]))]
    if all(len({each.cores for each in there}) == 1 for there in hosts.values()):
        crowd = max(hosts.values(), key=len)
        note = f"none: the ranks of a host may all run on {_cores_told(crowd[0])}"
        how = "leave BIND=none out of slurm/site.sh" if is_told_not_to else _how_to_bind(launcher)
        return [Finding("binding", note, advice=f"to have ranks stay on cores of their own: {how}")]
    for host, there in hosts.items():
        for first, second in combinations(there, 2) if len(there) <= 256 else pairwise(there):
            if shared := first.cores & second.cores:
                found = f"ranks {first.rank} and {second.rank} ({host}) share core {shortened(sorted(shared), 4)}"
                return [Finding("binding", found, WARN, f"give each rank cores of its own: {_how_to_bind(launcher)}")]
    return [Finding("binding", f"each rank has cores of its own: rank {ranks[0].rank} {_cores_told(ranks[0])}")]


def _cores_told(facts: RankFacts) -> str:
    return f"core{'s' * (len(facts.cores) > 1)} {shortened(sorted(facts.cores))}"


def _how_to_bind(launcher: Launcher | None) -> str:
    if launcher is None or launcher.vendor == OPEN_MPI:
        return "mpirun --map-by core --bind-to core"
    return "mpiexec -bind-to core" if launcher.vendor == MPICH else "srun --cpu-bind=cores --cpus-per-task=1"


def judge_threads(ranks: Ranks) -> list[Finding]:
    """How many threads numpy's and simulators' libraries would start on each rank."""
    for there in by_host(ranks).values():
        cores_per_rank = max(1, usable_cores(there) // len(there))
        for each in there:
            wrong = [name for name in THREAD_VARIABLES if _num_threads(each, name) > cores_per_rank]
            if wrong:
                values = ", ".join(f"{name} {each.threads.get(name, 'unset')}" for name in wrong)
                found = f"{values} on rank {each.rank}: up to {max(_num_threads(each, name) for name in wrong)} threads"
                advice = "export " + " ".join(f"{name}={cores_per_rank}" for name in THREAD_VARIABLES)
                return [Finding("threads", f"{found}, with {cores_per_rank} core(s) a rank", WARN, advice)]
    told = ", ".join(f"{name} {value}" for name, value in ranks[0].threads.items())
    return [Finding("threads", told or "no limit set, none needed: a rank sees no more cores than are its own")]


def _num_threads(facts: RankFacts, name: str) -> int:
    """What a library that reads this variable would start; unset, OMP_NUM_THREADS counts, then the cores it sees."""
    for value in (facts.threads.get(name), facts.threads.get("OMP_NUM_THREADS")):
        first = (value or "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return int(first)
    return len(facts.cores)


def judge_clocks(ranks: Ranks, times: Sequence[float]) -> list[Finding]:
    """`times` are those of the ranks' clocks at the same moment."""
    if len(by_host(ranks)) == 1:
        return []
    apart = max(times) - min(times)
    state, advice = (WARN, "have the hosts' clocks set by NTP") if apart > SLOW_CLOCK_S else (OK, "")
    return [Finding("clocks", f"{apart:.3f} s apart between hosts", state, advice, figures={"clocks_s": apart})]


def judge_exchange(ranks: Ranks, small_us: Sequence[float], large_us: Sequence[float], nbytes: int) -> list[Finding]:
    """Exchanges of an order and small slots, and of slots of `nbytes` a rank."""
    median = statistics.median(small_us)
    percentile = statistics.quantiles(small_us, n=10)[-1]
    found = f"{median:.1f} us for an order and its slots (90 % below {percentile:.1f}; median of {len(small_us)})"
    figures = {"exchange_us": median, "exchange_90_percent_us": percentile}
    state, advice = OK, "2 to 20 us is usual on one host, 10 to 100 us between hosts"
    if median > SLOW_EXCHANGE_US:
        state, advice = WARN, _why_slow(ranks)
    large = statistics.median(large_us)
    rate = (len(ranks) - 1) * nbytes / large  # Bytes per us are MB per s.
    told = f"{large:,.0f} us for slots of {nbytes / 2**20:.3g} MiB a rank, {rate:,.0f} MB/s to the root"
    return [
        Finding("exchange", found, state, advice, figures=figures),
        Finding("bandwidth", told, figures={"large_exchange_us": large, "gather_mb_per_s": rate}),
    ]


def _why_slow(ranks: Ranks) -> str:
    if judge_cores(ranks)[0].state == WARN:
        return "start no more ranks than cores: a waiting rank spins on the core that another needs"
    if len(by_host(ranks)) == 1:
        return "look for other programs on these cores (top), and bind the ranks"
    return "see that MPI uses the fast network, not TCP (UCX_NET_DEVICES, FI_PROVIDER), and bind the ranks"
