"""How ranks wait for each other before a run, and agree that all could prepare and mean the same."""

import faulthandler
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic, sleep
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import (
    AlreadyComplete,
    EnvError,
    Interrupted,
    LaunchError,
    Raised,
    RolloutError,
    SignalInterrupt,
    StorageError,
    UsageError,
    caused_by,
    without_our_frames,
)
from mpi_rollout.exchange.job_end import abort, all_or_none, place_of
from mpi_rollout.exchange.world import (
    ROOT,
    ROOT_FIRST_S,
    TELL_AFTER_S,
    claimed_size,
    comm_world,
    loaded_mpi,
    rank_and_host,
    start_mpi_on_all_ranks,
)
from mpi_rollout.process.clock import MAX_TIMEOUT_S
from mpi_rollout.process.console import STDERR, say
from mpi_rollout.process.exits import ends_forked
from mpi_rollout.process.start import shadowing
from mpi_rollout.text import words_of

if TYPE_CHECKING:
    from mpi4py import MPI

LIMIT = "--start-timeout-s"
COMMAND = "python -m mpi_rollout run"  # A rank may refuse its options alone.
Prepared = TypeVar("Prepared")
SAY_APART_S = 0.05
ARRIVAL_TAG = 32123  # The communicator may be the user's; every MPI has tags up to 32767.


@dataclass
class Preparation:
    """What a rank tells the others when it has prepared: its fingerprint, or why it could not prepare."""

    rank: int
    host: str
    fingerprint: dict[str, str] = field(default_factory=dict)
    problem: RolloutError | None = None
    raised: Raised | None = None  # By user code.


class Milestone(NamedTuple):
    """What each rank is to reach before any goes on, in words: "make its envs", "made its envs"."""

    to_do: str
    done: str
    way_out: str  # The name of the time limit follows.
    exit_code: int


MAKING_ENVS = Milestone("make its envs", "made its envs", "give it more time by", EnvError.exit_code)


def meet(comm: "MPI.Intracomm", timeout_s: float, what: str, limit: str = "timeout_s") -> None:
    """Wait until all ranks have called this, where the user calls or starts `what`.  **Collective**.

    A rank that never does would leave the others in their first collective for ever.  After `timeout_s` seconds, a
    time that the user calls `limit`, they say who is missing, and end the job.
    """
    way_out = "call it on all ranks, or give them more time by"
    _await_all(comm, timeout_s, Milestone(f"call {what}", f"called {what}", way_out, LaunchError.exit_code), limit)


def _await_all(comm: "MPI.Intracomm", timeout_s: float, milestone: Milestone, limit: str, grace_s: float = 0.0) -> None:
    peers, begin = range(1, comm.size) if comm.rank == ROOT else [ROOT], monotonic()
    deadline, tell_at = begin + timeout_s + grace_s, begin + TELL_AFTER_S
    if comm.rank != ROOT:
        comm.isend(None, ROOT, ARRIVAL_TAG).Wait()
        deadline, tell_at = deadline + ROOT_FIRST_S, inf  # The root knows best who is missing.
    missing, pause_s = {rank: comm.irecv(source=rank, tag=ARRIVAL_TAG) for rank in peers}, 0.0
    while missing := {rank: request for rank, request in missing.items() if not request.test()[0]}:
        now = monotonic()
        if now > min(deadline, tell_at):
            ranks = ", ".join(map(str, list(missing)[:8])) + (" ..." if len(missing) > 8 else "")
            place = f"mpi_rollout: {rank_and_host(comm.rank)}"
            if now > deadline:
                late = f"has not {milestone.done} within {timeout_s:g} s"
                say(f"{place}: rank {ranks} {late}; {milestone.way_out} {limit}\n")
                abort(comm, milestone.exit_code)
            tell_at = inf
            say(f"{place}: waits for rank {ranks} to {milestone.to_do}, {timeout_s:g} s at most ({limit})\n")
        sleep(pause_s)
        pause_s = min(pause_s + 1e-4, 0.02)
    if comm.rank == ROOT:
        for request in [comm.isend(None, rank, ARRIVAL_TAG) for rank in peers]:
            request.Wait()


def come_together(timeout_s: float) -> "MPI.Intracomm":
    """Start MPI and wait until all ranks have come to `run`; return COMM_WORLD.  **Collective**."""
    start_mpi_on_all_ranks(timeout_s, LIMIT)
    comm = comm_world()
    with all_or_none(comm):
        meet(comm, timeout_s, COMMAND, LIMIT)
    return comm


def agree(
    comm: "MPI.Intracomm",
    prepare: Callable[[], Prepared],
    fingerprint: Callable[[Prepared], dict[str, str]],
    timeout_s: float,
    limit: str = "timeout_s",
) -> tuple[Prepared, list[str]]:
    """Prepare on every rank and go on only if all could and all mean the same.  **Collective**.

    Return what `prepare` returns, and on the root the hosts of all ranks.  What `fingerprint` returns must be equal on
    all ranks that give it.  A rank that takes longer than `timeout_s` ends the job; `limit` is the user's name for it.

    If `prepare` raises on some rank, or fingerprints differ, all ranks raise the RolloutError of the first such rank.
    """
    own, cause = Preparation(comm.rank, os.uname().nodename), None
    try:
        with _in_time(comm, timeout_s, limit), as_refusals():
            prepared = prepare()
            own.fingerprint = fingerprint(prepared)
    except RolloutError as error:
        own.problem = error
        if error.__cause__ is not None:
            cause = without_our_frames(error.__cause__, not isinstance(error, UsageError))
            own.raised = Raised.of(cause)
    # A rank says by itself that it takes too long, unless it is in C code that lets no thread of Python run.
    _await_all(comm, timeout_s, MAKING_ENVS, limit, ROOT_FIRST_S)
    of_all = comm.gather(own, ROOT)
    failed = comm.bcast(_failed(of_all) if of_all is not None else None, ROOT)
    if failed is not None:
        if failed.raised is not None and failed.rank != comm.rank:
            cause = failed.raised.again()
        raise caused_by(failed.problem, cause)
    return prepared, [each.host for each in of_all or ()]


@contextmanager
def _in_time(comm: "MPI.Intracomm", timeout_s: float, limit: str) -> Iterator[None]:
    """End the job if this rank takes longer to prepare: what makes envs may hang, and the others would wait for it."""
    if timeout_s > MAX_TIMEOUT_S:
        yield
        return
    thread = threading.get_ident()
    # A thousand ranks that hang alike need not all say so: the first one ends the job.
    delay_s = timeout_s + min(comm.rank * SAY_APART_S, ROOT_FIRST_S / 2)
    due = monotonic() + delay_s

    def end() -> NoReturn:
        if monotonic() > due + ROOT_FIRST_S / 2:  # C code let no thread run until now: another rank has said it.
            sleep(ROOT_FIRST_S)  # It ends the job.
        place = f"mpi_rollout: {rank_and_host(comm.rank)}"
        late = f"has not {MAKING_ENVS.done} within {timeout_s:g} s: it is in {place_of(thread)}"
        say(f"{place}: {late}; {MAKING_ENVS.way_out} {limit}\n")
        abort(comm, MAKING_ENVS.exit_code)

    timer = threading.Timer(delay_s, end)
    timer.daemon = True
    timer.start()
    # Where C code lets no thread of Python run, another rank says it; if no rank can, this shows the stack.
    faulthandler.dump_traceback_later(timeout_s + 3 * ROOT_FIRST_S, exit=True, file=STDERR)
    try:
        yield
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def as_refusals() -> Iterator[None]:
    """Turn every error of user code, before a run begins, into a RolloutError."""
    try:
        with ends_forked:
            yield
    except RolloutError:
        raise
    except SignalInterrupt as error:
        raise Interrupted(f"stopped by {error} before the first step; give the same command again") from error
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted before the first step") from error
    except BaseException as error:
        words = filter(None, (words_of(error), shadowing(error, is_named=True)))
        raise EnvError("; ".join(words)) from error


def _failed(preparations: Sequence[Preparation]) -> Preparation | None:
    """Return that of the first rank that could not prepare, or means something else, its problem in words for all."""
    problems = [(own, own.problem) for own in preparations if own.problem is not None]
    if problems:
        first, problem = problems[0]
        # Output and policy concern no rank in particular.
        is_of_the_run = isinstance(problem, UsageError | StorageError | AlreadyComplete)
        is_of_the_run = is_of_the_run and len(problems) == 1 and first.rank == ROOT
        is_of_all = is_of_the_run or (len(problems) == len(preparations) and not isinstance(problem, EnvError))
        place = "" if is_of_all else f"rank {first.rank} ({first.host}): "
        return replace(first, problem=type(problem)(place, *problem.args))
    expected: dict[str, tuple[str, int]] = {}
    for own in preparations:
        for key, got in own.fingerprint.items():
            wanted, first_rank = expected.setdefault(key, (got, own.rank))
            if got != wanted:
                both = f"rank {first_rank} has {wanted}, rank {own.rank} ({own.host}) has {got}"
                way_out = "start all ranks with the same command in the same environment"
                return replace(own, problem=LaunchError(f"the ranks do not agree on {key}: {both}; {way_out}"))
    return None


def share_refusal(error: RolloutError) -> RolloutError:
    """Tell all ranks of an error from before they met; return the one that stands for all.  **Collective**.

    A rank that left by itself would make the launcher end the others, perhaps before rank 0 has said why.
    """
    if claimed_size()[0] == 1 or loaded_mpi() is not None:
        return error

    def refuse() -> None:
        raise error

    try:
        comm = come_together(RolloutConfig.start_timeout_s)
        agree(comm, refuse, lambda _: {}, RolloutConfig.start_timeout_s)
    except RolloutError as verdict:
        return verdict
    return error
