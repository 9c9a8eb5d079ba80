"""Connections that a program leaves open, or leaves by a mistake."""

import atexit
import os
from typing import NoReturn

from mpi_rollout.errors import RolloutError
from mpi_rollout.exchange import job_end, world
from mpi_rollout.process import exits
from mpi_rollout.process.console import say
from mpi_rollout.text import message_of
from mpi_rollout.train.ends import LEAVE_S, RootEnd, Turns


class OfOneJob:
    """Envs that are neither copied nor pickled: to let go of a copy would close the envs of the original."""

    def __reduce_ex__(self, _protocol: object) -> NoReturn:  # The module copy calls it, too.
        raise TypeError(
            f"{type(self).__name__} is neither copied nor pickled: its envs are those of one job; use it as it is, or "
            "connect or launch again"
        )


OPEN_TURNS: list[Turns[RootEnd]] = []  # The connections whose root this rank is.


def hint(error: BaseException, rank: int) -> None:
    """Add the most frequent cause to an error of a rank that has no envs."""
    if isinstance(error, AttributeError | TypeError) and "NoneType" in message_of(error):
        error.add_note(
            f"mpi_rollout: rank {rank} has no envs: connect gives them to rank 0, and None to the other "
            "ranks; write `if envs is not None:` inside of the with statement"
        )


@atexit.register
def _check_closed() -> None:
    """End the job at the interpreter's end if ranks still serve: they would hang it."""
    for turns in OPEN_TURNS:
        if turns.open and not exits.is_forked():
            say(
                f"mpi_rollout: {world.rank_and_host(world.ROOT)}: the trainer ended without closing its envs; "
                "use `with mpi_rollout.connect(...) as envs:`, or call envs.close()\n"
            )
            for end in turns.open.values():
                if end.interrupts.are_free_within(LEAVE_S):
                    end.finish_recording()
            job_end.abort(turns.comm, RolloutError.exit_code)


def close(end: RootEnd, pid: int) -> None:
    """Close the envs of one process when nobody has them any more, or at the program's end; never in a fork."""
    if os.getpid() == pid and end.interrupts.are_free_within(LEAVE_S):  # A thread may be in an env that hangs.
        end.close(0)
