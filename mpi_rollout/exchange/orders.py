"""Orders, which say what the root asks of the ranks of one partition.

An order is a header of six int64 and the actions of all these envs for one step, leaf by leaf.  The actions of a
fragment are a message of their own, since its length may be another one each time.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from mpi_rollout.core.partition import Partition
from mpi_rollout.core.spaces import Leaf, Space, leaves

HEADER_NBYTES = 48


class Command(IntEnum):
    """What an order asks of a rank, and what its argument is."""

    RESET = 1  # The bytes of the pickled arguments, which follow.
    STEP = 2  # The number of steps.
    CALL = 3  # The bytes of the pickled address and arguments of a service's method, which follow.
    STOP = 4  # The code of the job.
    RESTORE = 5  # As that of RESET.
    LOAD = 8  # The bytes of new parameters of the ranks' policy, which follow.  No slot comes back.


class Order:
    """The last order, on the root and on a rank that receives it.

    Attributes
    ----------
    num_rows
        How many steps it asks for, else 1: as many rows of the slots come back, if any do.
    step
        The first of these steps; -1 where nobody counts them.
    expected_ms
        How long the slowest rank should need for these steps; 0 where nobody knows.
    is_chosen
        The ranks choose the actions of these steps.
    word
        One int64 of the header, which is the transport's.
    buffer, fragment
        The bytes of the order, and of the actions of the last fragment.
    """

    def __init__(self, partition: Partition, own_envs: range, action_space: Space) -> None:
        self._num_envs, self._action_leaves = partition.num_envs, leaves(action_space)
        self.command, self.argument, self.num_rows, self.step, self.expected_ms, self.is_chosen = 0, 0, 1, -1, 0, False
        self.nbytes = self.nbytes_of(1)
        self.buffer = np.zeros(self.nbytes, np.uint8)
        # Numbers are written in a third of the time that the array takes.
        self._header = self.buffer[:HEADER_NBYTES].view(np.int64).data
        self.word = self._header[2:3]
        self._actions = self._columns_of(self.buffer[HEADER_NBYTES:], 1)
        self._num_held, self.fragment, self._held = 0, np.zeros(0, np.uint8), self._actions
        self._own_envs = slice(own_envs.start - partition.first_env, own_envs.stop - partition.first_env)
        self._own_actions = [array[:, self._own_envs] for array in self._actions]

    def nbytes_of(self, num_steps: int) -> int:
        """Return the bytes of an order with the actions of so many steps."""
        return HEADER_NBYTES + actions_nbytes(self._action_leaves, num_steps * self._num_envs)

    @property
    def has_fragment(self) -> bool:
        """Tell whether the actions are a message of their own."""
        return self.num_rows > 1 and not self.is_chosen

    def put(self, arrays: Sequence[np.ndarray], num_steps: int = 1) -> None:
        """Take the next order's actions: for each leaf (num_steps, num_envs, ...); (num_envs, ...) do for one step."""
        for array, target in zip(arrays, self._actions if num_steps == 1 else self.hold(num_steps), strict=True):
            target[...] = array

    def hold(self, num_steps: int) -> tuple[np.ndarray, ...]:
        """Return room for the actions of a fragment, for each leaf an array (num_steps, num_envs, ...)."""
        if self._num_held != num_steps:
            self.fragment = np.zeros(actions_nbytes(self._action_leaves, num_steps * self._num_envs), np.uint8)
            self._held, self._num_held = self._columns_of(self.fragment, num_steps), num_steps
        return self._held

    def _columns_of(self, buffer: np.ndarray, num_steps: int) -> tuple[np.ndarray, ...]:
        arrays, offset = [], 0
        for leaf in self._action_leaves:
            arrays.append(np.ndarray((num_steps, self._num_envs, *leaf.shape), leaf.dtype, buffer, offset))
            offset += actions_nbytes((leaf,), num_steps * self._num_envs)
        return tuple(arrays)

    @property
    def actions(self) -> tuple[np.ndarray, ...]:
        """Return the actions of the last order: for each leaf an array (num_steps, num_envs, ...)."""
        return self.hold(self.num_rows) if self.has_fragment else self._actions

    @property
    def own_actions(self) -> list[np.ndarray]:
        """Return the part of `actions` that is for this rank's envs."""
        if self.num_rows == 1 or self.is_chosen:  # The usual case.
            return self._own_actions
        return [array[:, self._own_envs] for array in self.actions]

    def write(self, command: int, argument: int, step: int, is_chosen: bool) -> None:
        """Write the header, on the root."""
        header = self._header
        header[0], header[1], header[3], header[4], header[5] = command, argument, step, self.expected_ms, is_chosen
        self.command, self.argument, self.step, self.is_chosen = command, argument, step, is_chosen
        self.num_rows = argument if command == Command.STEP else 1

    def read(self) -> None:
        """Read the header, which has come from the root."""
        self.command, self.argument, _, self.step, self.expected_ms, is_chosen = self._header.tolist()
        self.is_chosen = bool(is_chosen)
        self.num_rows = self.argument if self.command == Command.STEP else 1


def actions_nbytes(group: Sequence[Leaf], num_rows: int) -> int:
    """Return the bytes of so many actions, each leaf's column filled up to whole words."""
    return sum(-(-num_rows * leaf.nbytes // 8) * 8 for leaf in group)
