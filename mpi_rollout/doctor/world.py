"""Examining MPI itself, on all ranks: library, MPI_Init, the ranks' facts, exchanges.  Runs in a probe."""

import os
from collections.abc import Callable
from importlib import import_module
from time import monotonic, perf_counter, sleep, time
from typing import Any

import mpi4py
import numpy as np
from gymnasium import spaces

from mpi_rollout.core.partition import Division
from mpi_rollout.doctor.findings import BAD, WARN, Finding, shortened
from mpi_rollout.doctor.launch import how_to_start, judge_launcher, judge_size, launcher_of
from mpi_rollout.doctor.probe import Report
from mpi_rollout.doctor.rank import RankFacts
from mpi_rollout.doctor.ranks import (
    judge_binding,
    judge_clocks,
    judge_core_shares,
    judge_cores,
    judge_exchange,
    judge_hosts,
    judge_thread_level,
    judge_threads,
    judge_versions,
)
from mpi_rollout.errors import first_line
from mpi_rollout.exchange import world
from mpi_rollout.exchange.exchange import Command, Contents, Exchanges
from mpi_rollout.exchange.lone import INSTALL

TAG = 32124
NUM_EXCHANGES, NUM_WARM_UP, EXCHANGES_S = 500, 20, 0.5
SLOT_NBYTES, SLOTS_NBYTES = 2**20, 2**28  # Of a rank, and of all: the root has room for them.
WAY_OUT = f"module load an MPI, or {INSTALL}; python -m mpi4py --mpi-library"


def examine_world(report: Report, timeout_s: float) -> None:
    """Examine MPI.  **Collective**, of ranks of which some may never come."""
    report.doing("library", WAY_OUT)
    try:
        library, path = load_library()
    except Exception as error:
        found, is_one = f"mpi4py loads no MPI library: {first_line(error)}", world.claimed_size()[0] == 1
        advice = f"one rank needs none; for more, {WAY_OUT}" if is_one else WAY_OUT
        report(Finding("library", found, WARN if is_one else BAD, advice))
        return report.done()
    report(Finding("library", f"{library}, {path or 'path unknown'}"), *judge_launcher(library, path, os.environ))
    start = how_to_start(library, path, launcher_of(os.environ))
    report.doing("MPI_Init", f"start with {start}; if that is what you did, run: {start} hostname")
    comm, thread_level = _start_mpi()
    [alone] = judge_size(comm.size, world.claimed_size(), library, path)
    report(alone)
    report.doing("ranks", "see what the ranks print; start on fewer hosts to find the one that does not answer")
    facts = RankFacts.of(comm.rank, library, mpi4py.__version__, thread_level)
    if comm.rank == world.ROOT:
        _examine_as_root(comm, report, facts, monotonic() + timeout_s * 0.7)
    else:
        _answer(comm, facts)
    report.done(is_alone=alone.state == BAD)
    _leave_together(comm, report)


def load_library() -> tuple[str, str]:
    """Load the MPI library without starting MPI; return its name and path."""
    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    import_module("mpi4py.MPI")
    library = " ".join(world.library().split())
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/libmpi" in line}
    named = sorted(path for path in paths if os.path.basename(path).startswith(("libmpi.so", "libmpi_abi", "libmpich")))
    return library, next(iter(named), "")


def _start_mpi() -> tuple[Any, int]:
    from mpi4py import MPI

    MPI.Init_thread()  # Asks for MULTIPLE, as mpi4py's import does.
    levels = (MPI.THREAD_SINGLE, MPI.THREAD_FUNNELED, MPI.THREAD_SERIALIZED, MPI.THREAD_MULTIPLE)
    return MPI.COMM_WORLD, levels.index(MPI.Query_thread())


def _examine_as_root(comm: Any, report: Report, facts: RankFacts, deadline: float) -> None:
    requests = {rank: comm.irecv(source=rank, tag=TAG) for rank in range(1, comm.size)}
    arrived = {0: facts} | _arrivals(requests, deadline)
    missing = sorted(set(range(comm.size)) - set(arrived))
    ranks = [arrived[rank] for rank in sorted(arrived)]
    if missing:
        advice = "see what these ranks print; do all hosts have this Python environment, and enough memory"
        report(Finding("ranks", f"no answer from rank {shortened(missing)}", BAD, advice))
    for rank in arrived.keys() - {0}:
        comm.send(not missing, rank, TAG)
    launcher = launcher_of(os.environ)
    report(*judge_hosts(ranks), *judge_versions(ranks), *judge_thread_level(ranks), *judge_cores(ranks))
    is_unbound = os.environ.get("MPI_ROLLOUT_BIND") == "none"  # By slurm/launch.sh.
    report(*judge_core_shares(ranks))
    report(*judge_binding(ranks, launcher, is_unbound), *judge_threads(ranks))
    if comm.size > 1 and not missing:
        report.doing("exchange", "see whether MPI's own tests pass between these hosts, and which network it uses")
        report(*judge_clocks(ranks, _times(comm)))
        nbytes = min(SLOT_NBYTES, SLOTS_NBYTES // comm.size)
        report(*judge_exchange(ranks, measure_exchanges(comm, 16), measure_exchanges(comm, nbytes), nbytes))


def _answer(comm: Any, facts: RankFacts) -> None:
    """The other ranks' side of `_examine_as_root`."""
    comm.isend(facts, world.ROOT, TAG).Wait()
    if _arrivals({0: comm.irecv(source=world.ROOT, tag=TAG)})[0]:
        _times(comm)
        measure_exchanges(comm, 16)
        measure_exchanges(comm, min(SLOT_NBYTES, SLOTS_NBYTES // comm.size))


def _leave_together(comm: Any, report: Report) -> None:
    """End MPI when the root does: a launcher ends the job when a rank leaves before, and may forget who did not."""
    from mpi4py import MPI

    if comm.rank == world.ROOT:
        report.await_release()
        for request in [comm.isend(None, rank, TAG) for rank in range(1, comm.size)]:
            request.Wait()
    else:
        _arrivals({0: comm.irecv(source=world.ROOT, tag=TAG)})
    MPI.Finalize()


def _arrivals(requests: dict[int, Any], deadline: float = float("inf")) -> dict[int, Any]:
    """Wait for objects of some ranks without spinning: the root may be at its disk."""
    arrived: dict[int, Any] = {}
    pause_s = 0.0
    while len(arrived) < len(requests) and monotonic() < deadline:
        for rank in requests.keys() - arrived.keys():
            here, value = requests[rank].test()
            if here:
                arrived[rank] = value
        sleep(pause_s)
        pause_s = min(pause_s + 1e-4, 0.01)
    return arrived


def _times(comm: Any) -> list[float] | None:
    comm.Barrier()
    return comm.gather(time(), world.ROOT)


def measure_exchanges(comm: Any, nbytes: int) -> list[float]:
    """Exchange orders and slots of one env a rank with observations of `nbytes`, as a run does.  **Collective.**

    Returns
    -------
    On the root the time of each in us
    """
    contents = Contents(spaces.Box(0, 255, (nbytes,), np.uint8), spaces.Discrete(2))
    exchanges = Exchanges(comm, Division(comm.size, comm.size), contents)
    exchange, times_us = exchanges.all[0], []
    if comm.rank == world.ROOT:
        times_us = _timed(lambda: (exchange.post_order(Command.STEP), exchange.await_slots()))
        exchange.post_order(Command.STOP)
    else:
        exchange.await_order()
        while exchange.order[0] == Command.STEP:
            exchange.post_slot()
            exchange.await_order()
    exchanges.free()
    return times_us


def _timed(do: Callable[[], Any]) -> list[float]:
    times_us, start = [], monotonic()
    while len(times_us) < NUM_EXCHANGES + NUM_WARM_UP:
        before = perf_counter()
        do()
        times_us.append((perf_counter() - before) * 1e6)
        if monotonic() - start > EXCHANGES_S and len(times_us) > 2:
            break
    return times_us[NUM_WARM_UP:] if len(times_us) > 2 * NUM_WARM_UP else times_us[1:]
