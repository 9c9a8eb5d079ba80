"""The infos that follow a slot, pickled, as a message of its rank; there is none where the envs say nothing."""

import pickle
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.core.partition import Partition
from mpi_rollout.errors import DataError
from mpi_rollout.exchange.infos import InfoDict
from mpi_rollout.exchange.transports import INFOS_TAG
from mpi_rollout.exchange.world import ROOT
from mpi_rollout.text import words_of

if TYPE_CHECKING:
    from mpi4py import MPI

WAY_OUT = 'name the infos that are wanted, or connect(..., infos="none")'
RowInfos = tuple[int, bytes | InfoDict]  # A row of a slot, and what its envs say.


class SlotInfos:
    """The infos of one exchange, on the rank that sends them and on the root.

    Attributes
    ----------
    has_message
        On the root, for each slot, not 0 if a message follows it.
    """

    def __init__(self, comm: "MPI.Intracomm", partition: Partition, first_rank: int):
        self._comm, self._partition, self._first_rank = comm, partition, first_rank
        self._is_root = comm.rank == ROOT
        self._own: list[RowInfos] = []
        self._sending: MPI.Request | None = None
        self.has_message = np.zeros(0, np.int64)

    def put(self, infos: InfoDict, row: int, is_kept: bool) -> None:
        """Send infos of a step with this rank's slot; if they `is_kept` as they are, the root's own are not copied."""
        self._own.append((row, infos if self._is_root and is_kept else pack_infos(infos)))

    def forget(self) -> None:
        """Begin another slot, which has no infos yet."""
        self._own = []

    def post(self) -> bool:
        """Send the infos of this rank's slot, if there are any."""
        if self._own:
            self._sending = self._comm.isend(self._own, ROOT, INFOS_TAG)
        return bool(self._own)

    def finish(self) -> None:
        """Wait until what was sent has left."""
        if self._sending is not None:
            self._sending.wait()
            self._sending = None

    def take(self) -> list[tuple[int, slice, InfoDict]]:
        """Receive the infos that follow the slots; return row, envs of the partition and infos, where there are any."""
        taken = []
        for rank, infos in self._receive():
            envs, first = self._partition.envs_of(rank), self._partition.first_env
            places = slice(envs.start - first, envs.stop - first)
            taken += [(row, places, self._unpacked(places, given)) for row, given in infos]
        return taken

    def drop(self) -> None:
        """Receive the infos and drop them: the ranks have sent them, and wait until they are received."""
        self._receive()

    def _receive(self) -> list[tuple[int, list[RowInfos]]]:
        received = [(ROOT, self._own)] if self._own else []
        self._own = []
        if np.count_nonzero(self.has_message):
            slots = np.flatnonzero(self.has_message).tolist()
            received += [(slot, self._comm.recv(source=self._first_rank + slot, tag=INFOS_TAG)) for slot in slots]
            self.has_message[:] = 0
        return received

    def _unpacked(self, places: slice, given: bytes | InfoDict) -> InfoDict:
        if isinstance(given, dict):
            return given
        try:
            infos: InfoDict = pickle.loads(given)
            return infos
        except Exception as error:
            first = self._partition.first_env
            raise DataError(
                f"envs {first + places.start} to {first + places.stop - 1}: their infos cannot be read on rank 0: "
                f"{words_of(error)}; {WAY_OUT}"
            ) from error


def pack_infos(infos: InfoDict) -> bytes:
    """Pickle the infos of a rank's envs.

    Raises
    ------
    DataError
        Something in them cannot be pickled.
    """
    try:
        return pickle.dumps(infos, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        for key, value in infos.items():
            try:
                pickle.dumps(value)
            except Exception as cause:
                raise DataError(f"info {key!r} cannot be sent: {words_of(cause)}; {WAY_OUT}") from error
        raise
