"""Orders: what the root sends to the ranks of one partition.

An order is a header of five int64 (command, argument, how messages travel from then on, step, the milliseconds that
its steps should take) and the actions of all these envs for one step, leaf by leaf.  The actions of a fragment are a
message of their own, since its length may be another one each time.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from mpi_rollout.core.partition import Partition
from mpi_rollout.core.spaces import Leaf, Space, Tree, leaves, tree_of

HEADER_NBYTES = 40


class Command(IntEnum):
    """What an order asks of a rank."""

    RESET = 1
    STEP = 2
    CALL = 3
    STOP = 4
    RESTORE = 5
    REPLAY = 6
    SWITCH = 7
    FRAGMENT = 8  # Steps whose actions follow.
    CHOOSE = 9  # Steps whose actions the ranks choose.
    LOAD = 10  # New parameters of the ranks' policy follow.  No slot comes back.


STEPS = (Command.STEP, Command.FRAGMENT, Command.CHOOSE)  # The argument of these is the number of steps.


class Orders:
    """The buffers of orders, on the root and on a rank that receives them.

    Parameters
    ----------
    own_envs
        Those of this rank.

    Attributes
    ----------
    order
        The last order's command and argument.
    num_rows
        How many steps it asks for, else 1: as many rows of the slots come back, if any do.
    step
        The first of these steps; -1 where nobody counts them.
    expected_ms
        How long the slowest rank should need for these steps; 0 where nobody knows.
    action_arrays
        The actions of one step, for each leaf an array (num_envs, ...).
    """

    def __init__(self, partition: Partition, own_envs: range, action_space: Space) -> None:
        self.partition, self.envs = partition, own_envs
        self.order: tuple[int, int] = (0, 0)
        self.num_rows, self.step, self.expected_ms = 1, -1, 0
        self._action_space, self._action_leaves = action_space, leaves(action_space)
        num_envs, first = partition.num_envs, partition.first_env
        self.order_nbytes = HEADER_NBYTES + actions_nbytes(self._action_leaves, num_envs)
        self._order = np.zeros(self.order_nbytes, np.uint8)
        self._header = self._order[:HEADER_NBYTES].view(np.int64)
        self._actions = _columns_of(self._action_leaves, self._order[HEADER_NBYTES:], 1, num_envs)
        self._fragment, self._num_held = np.zeros(0, np.uint8), 0  # The actions of the last fragment, its steps.
        self._held: tuple[np.ndarray, ...] = ()
        self.action_arrays = tuple(array[0] for array in self._actions)
        self._own_envs = slice(self.envs.start - first, self.envs.stop - first)
        self._own_actions = self._own_part(self._actions)
        self._is_one_step = True  # The last order had its actions in itself.

    def order_nbytes_of(self, num_steps: int) -> int:
        """Return the bytes of an order with the actions of so many steps."""
        return HEADER_NBYTES + actions_nbytes(self._action_leaves, num_steps * self.partition.num_envs)

    def put_actions(self, arrays: Sequence[np.ndarray], start: int) -> None:
        """Fill the order with the rows of the actions from `start` on, an array for each leaf."""
        for array, target in zip(arrays, self.action_arrays, strict=True):
            target[...] = array[start : start + len(target)]

    def put_step(self, arrays: Sequence[np.ndarray]) -> None:
        """Fill the order with the actions of all its envs: for each leaf an array (1, num_envs, ...)."""
        for array, target in zip(arrays, self._actions, strict=True):
            target[...] = array

    def put_fragment(self, arrays: Sequence[np.ndarray]) -> None:
        """Keep the actions of a fragment for the next order: for each leaf an array (num_steps, num_envs, ...)."""
        for array, target in zip(arrays, self._hold_fragment(len(arrays[0])), strict=True):
            target[...] = array

    def _hold_fragment(self, num_rows: int) -> tuple[np.ndarray, ...]:
        if self._num_held != num_rows:
            num_envs = self.partition.num_envs
            self._fragment = np.zeros(actions_nbytes(self._action_leaves, num_rows * num_envs), np.uint8)
            self._held = _columns_of(self._action_leaves, self._fragment, num_rows, num_envs)
            self._num_held = num_rows
        return self._held

    def sent_actions(self) -> tuple[np.ndarray, ...]:
        """Return the actions of the last order: for each leaf an array (num_steps, num_envs, ...)."""
        return self._actions if self._is_one_step else self._hold_fragment(self.num_rows)

    def own_actions(self) -> list[np.ndarray]:
        """Return the actions of this rank's envs, as `sent_actions`."""
        return self._own_actions if self._is_one_step else self._own_part(self.sent_actions())

    def _own_part(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [array[:, self._own_envs] for array in arrays]

    @property
    def actions(self) -> Tree:
        """Return the actions of this rank's envs for one step, as a tree."""
        return tree_of(self._action_space, (array[self._own_envs] for array in self.action_arrays))

    def _write_order(self, command: int, argument: int, step: int) -> None:
        header = self._header.data  # Numbers are written in a third of the time that the array takes.
        header[0], header[1], header[3], header[4] = command, argument, step, self.expected_ms
        self._note_order(command, argument, step)

    def _read_order(self) -> None:
        command, argument, _, step, self.expected_ms = self._header.tolist()
        self._note_order(command, argument, step)

    def _note_order(self, command: int, argument: int, step: int) -> None:
        self.order, self.step = (command, argument), step
        self.num_rows = argument if command in STEPS else 1
        self._is_one_step = command != Command.FRAGMENT


def actions_nbytes(group: Sequence[Leaf], num_rows: int) -> int:
    """Return the bytes of so many actions, each leaf's column filled up to whole words."""
    return sum(-(-num_rows * leaf.nbytes // 8) * 8 for leaf in group)


def _columns_of(group: Sequence[Leaf], buffer: np.ndarray, num_steps: int, num_envs: int) -> tuple[np.ndarray, ...]:
    """Return views of a buffer of actions: for each leaf an array (num_steps, num_envs, ...)."""
    arrays, offset = [], 0
    for leaf in group:
        arrays.append(np.ndarray((num_steps, num_envs, *leaf.shape), leaf.dtype, buffer, offset))
        offset += actions_nbytes((leaf,), num_steps * num_envs)
    return tuple(arrays)
