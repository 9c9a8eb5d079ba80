"""The ranks come together before a run: all of them are there, can do their part, and mean the same."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic, sleep
from typing import Any

from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import (
    AlreadyComplete,
    Interrupted,
    LaunchError,
    RolloutError,
    StorageError,
    UsageError,
    words_of,
)
from mpi_rollout.exchange.job_end import abort, all_or_none
from mpi_rollout.exchange.world import GRACE_S, ROOT, TELL_AFTER_S, claimed_size, comm_world, start_mpi_on_all_ranks
from mpi_rollout.process.console import say
from mpi_rollout.process.exits import ends_forked

COMMAND, LIMIT = "python -m mpi_rollout run", "--start-timeout-s"  # Whose options a rank may refuse alone.
MEETING_TAG = 32123  # On a communicator that may be the user's; every MPI has tags up to 32767.


def meet(comm: Any, timeout_s: float, what: str, limit: str = "timeout_s") -> None:
    """Wait until all ranks have called this.  **Collective.**

    A rank that never does would leave the others in their first collective for ever: after `timeout_s` seconds they
    say who is missing, and end the job.

    Parameters
    ----------
    what
        What the user calls, or starts, on all ranks.
    limit
        What the user calls the time limit.
    """
    begin = monotonic()
    deadline, tell_at = begin + timeout_s, begin + TELL_AFTER_S
    if comm.rank == ROOT:
        awaited = {rank: comm.irecv(source=rank, tag=MEETING_TAG) for rank in range(1, comm.size)}
    else:
        comm.isend(None, ROOT, MEETING_TAG).Wait()
        awaited = {ROOT: comm.irecv(source=ROOT, tag=MEETING_TAG)}
        deadline, tell_at = deadline + GRACE_S, inf  # The root knows best who is missing.
    pause_s = 0.0
    while awaited:
        awaited = {rank: request for rank, request in awaited.items() if not request.test()[0]}
        now = monotonic()
        if awaited and now > min(deadline, tell_at):
            place = f"mpi_rollout: rank {comm.rank} ({os.uname().nodename})"
            ranks = ", ".join(map(str, list(awaited)[:8])) + (" ..." if len(awaited) > 8 else "")
            if now > deadline:
                say(
                    f"{place}: rank {ranks} has not called {what} within {timeout_s:g} s; call it on all ranks, or "
                    f"give them more time by {limit}\n"
                )
                abort(comm, LaunchError.exit_code)
            tell_at = inf
            say(f"{place}: waits for rank {ranks} to call {what}, {timeout_s:g} s at most ({limit})\n")
        sleep(pause_s)
        pause_s = min(pause_s + 1e-4, 0.02)
    if comm.rank == ROOT:
        for request in [comm.isend(None, rank, MEETING_TAG) for rank in range(1, comm.size)]:
            request.Wait()


def come_together(timeout_s: float) -> Any:
    """Start MPI and wait until all ranks have come to `run`; return COMM_WORLD.  **Collective.**"""
    start_mpi_on_all_ranks(timeout_s, LIMIT)
    comm = comm_world()
    with all_or_none(comm):
        meet(comm, timeout_s, COMMAND, LIMIT)
    return comm


def agree(comm: Any, prepare: Callable[[], Any], fingerprint: Callable[[Any], dict[str, str]]) -> tuple[Any, list[str]]:
    """Prepare on every rank and go on only if all could and all mean the same.  **Collective.**

    Parameters
    ----------
    prepare
        Gives this rank's part; may raise, on some ranks or on all.
    fingerprint
        Of a prepared part, what must be equal wherever it is given.

    Returns
    -------
    The prepared part, and on the root the hosts of all ranks.

    Raises
    ------
    RolloutError
        On all ranks alike; the first rank's reason stands for all.
    """
    part, problem, marks = None, None, {}
    try:
        with as_refusals():
            part = prepare()
            marks = fingerprint(part)
    except RolloutError as error:
        problem = error
    reports = comm.gather((problem, marks, os.uname().nodename), ROOT)
    verdict = comm.bcast(_verdict(reports) if comm.rank == ROOT else None, ROOT)
    if verdict is not None:
        raise verdict
    return part, [host for *_, host in reports or ()]


@contextmanager
def as_refusals() -> Iterator[None]:
    """Have whatever others' code raises before a run begins be a RolloutError."""
    try:
        with ends_forked:
            yield
    except RolloutError:
        raise
    except KeyboardInterrupt as error:
        raise Interrupted("interrupted before the first step") from error
    except BaseException as error:
        stack = "".join(traceback.format_exception(error)).rstrip()
        raise RolloutError(f"{words_of(error)}\n{stack}") from error


def _verdict(reports: list[tuple[RolloutError | None, dict[str, str], str]]) -> RolloutError | None:
    failed = [rank for rank, (problem, *_) in enumerate(reports) if problem is not None]
    if failed:
        problem, _, host = reports[failed[0]]
        # Output and policy concern no rank in particular.
        is_of_the_run = failed == [ROOT] and isinstance(problem, UsageError | StorageError | AlreadyComplete)
        where = "" if len(failed) == len(reports) or is_of_the_run else f"rank {failed[0]} ({host}): "
        return type(problem)(where, *problem.args)
    expected: dict[str, tuple[str, int]] = {}
    for rank, (_, marks, host) in enumerate(reports):
        for key, got in marks.items():
            first, first_rank = expected.setdefault(key, (got, rank))
            if got != first:
                return LaunchError(
                    f"the ranks do not agree on {key}: rank {first_rank} has {first}, rank {rank} ({host}) has {got}; "
                    "start all ranks with the same command in the same environment"
                )
    return None


def share_refusal(error: RolloutError) -> RolloutError:
    """Tell all ranks of an error from before MPI was started; return the one that stands for all.  **Collective.**

    A rank that left by itself would make the launcher end the others, rank 0 perhaps before it has told why.
    """
    if claimed_size()[0] == 1 or "mpi4py.MPI" in sys.modules:
        return error

    def refuse() -> None:
        raise error

    comm = come_together(RolloutConfig.start_timeout_s)
    try:
        agree(comm, refuse, lambda part: {})
    except RolloutError as verdict:
        return verdict
    return error
