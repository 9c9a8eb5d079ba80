"""Connections that a program leaves open, or leaves by a mistake."""

import os
from typing import NoReturn

from mpi_rollout.text import message_of
from mpi_rollout.train.ends import LEAVE_S, RootEnd


class OfOneJob:
    """Envs that are neither copied nor pickled: to let go of a copy would close the envs of the original."""

    def __reduce_ex__(self, _protocol: object) -> NoReturn:  # The module copy calls it, too.
        raise TypeError(
            f"{type(self).__name__} is neither copied nor pickled: its envs are those of one job; use it as it is, or "
            "connect or launch again"
        )


def hint(error: BaseException, rank: int) -> None:
    """Add the most frequent cause to an error of a rank that has no envs."""
    if isinstance(error, AttributeError | TypeError) and "NoneType" in message_of(error):
        error.add_note(
            f"mpi_rollout: rank {rank} has no envs: connect gives them to rank 0, and None to the other "
            "ranks; write `if envs is not None:` inside of the with statement"
        )


def close(end: RootEnd, pid: int) -> None:
    """Close the envs of one process when nobody has them any more, or at the program's end; never in a fork."""
    if os.getpid() == pid and end.interrupts.are_free_within(LEAVE_S):  # A thread may be in an env that hangs.
        end.close(0)
