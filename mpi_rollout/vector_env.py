"""The envs of all ranks as one `gymnasium.vector.VectorEnv`, held by the root.

`send` and `recv` are the two halves of `step`; between them the other ranks are already stepping.  What `step`,
`reset` and `recv` return are views of memory that the call after the next one overwrites: the observations that
went into a policy and those that came out of the step are both alive.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from mpi_rollout.errors import DataError, RolloutError
from mpi_rollout.exchange import FAULT, Command, Destination
from mpi_rollout.layout import Block, Leaf, bounds, leaf_spaces, leaves
from mpi_rollout.worker import Fault, Worker

Row = tuple[Destination, int]


class RankError(RolloutError):
    """One rank's env failed; `stack` is its traceback there."""

    def __init__(self, fault: Fault, num_faults: int):
        others = f" ({num_faults - 1} more ranks failed too)" if num_faults > 1 else ""
        super().__init__(fault.message + others)
        self.stack, self.exit_code = fault.stack, fault.exit_code


class MPIVectorEnv(VectorEnv):
    """All ranks' envs, in env order whatever the number of ranks.  Only on the root; other ranks `Worker.serve`.

    Parameters
    ----------
    worker
        The root's own, which steps its slice between `send` and `recv`.
    observation_space, action_space
        Of a single env.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, worker: Worker, observation_space: spaces.Space, action_space: spaces.Space):
        self.exchange, self.worker, self.clock = worker.exchange, worker, worker.clock
        self.num_envs = self.exchange.partition.num_envs
        self.single_observation_space, self.single_action_space = observation_space, action_space
        self.observation_space = batch_space(observation_space, self.num_envs)
        self.action_space = batch_space(action_space, self.num_envs)
        self._check = ActionCheck(action_space, self.num_envs)
        self._action_targets = list(zip(leaves(action_space), self.exchange.action_arrays, strict=True))
        self._own = self.destination(self.block(2))
        self._turn = 0
        self.stop_signal = 0  # The signal by which somebody asked some rank to stop.

    def block(self, num_rows: int) -> Block:
        """Make a block for these envs."""
        return Block(self.single_observation_space, self.single_action_space, self.exchange.partition, num_rows)

    def destination(self, block: Block) -> Destination:
        """Prepare a block for `recv` and `reset` to lay rows into."""
        return self.exchange.destination(block)

    def _next_row(self) -> Row:
        self._turn = 1 - self._turn
        return self._own, self._turn

    def reset(self, *, seed: None = None, options: None = None, to: Row | None = None):
        """Start the first episode of every env, with the seeds of the run's configuration.

        Returns
        -------
        Observations of shape (num_envs, ...) and no infos.
        """
        if seed is not None or options is not None:
            raise ValueError("reset takes its seeds from the run's configuration, got seed or options")
        destination, row = to or self._next_row()
        self.exchange.post_order(Command.RESET)
        self._await(Command.RESET)
        destination.lay_observations(row)
        return destination.block.observations_of(row), {}

    def send(self, actions: Any, trusted: bool = False) -> None:
        """Check the actions of all envs and send them to the ranks.

        Parameters
        ----------
        actions
            Of shape (num_envs, ...), or a tree of such arrays.
        trusted
            Their dtypes, shapes and values are known to be right: they are only copied.

        Raises
        ------
        DataError
            Their shape, dtype or values are not of the action space; nothing was sent.
        """
        if not trusted:
            self._check(actions)
        for leaf, target in self._action_targets:
            target[...] = leaf.of(actions)
        self.exchange.post_order(Command.STEP)
        self.clock.lap("send")

    def recv(self):
        """Wait for all ranks to have stepped; return as Gymnasium's `step` does, without infos.

        Raises
        ------
        RankError
            An env failed on some rank.
        """
        destination, row = self._next_row()
        self.recv_into((destination, row), (destination, row))
        destination.unpack(row, row + 1)
        results = (column[row] for column in destination.block.results)
        return destination.block.observations_of(row), *results, {}

    def recv_into(self, observations_to: Row, results_to: Row) -> None:
        """`recv` into rows of the caller's blocks; results become columns when the destination's `unpack` is called."""
        self._await(Command.STEP)
        destination, row = observations_to
        destination.lay_observations(row)
        destination, row = results_to
        destination.lay_results(row)
        self.clock.lap("gather")

    def _await(self, command: Command) -> None:
        self.worker.obey(command)
        self.exchange.await_slots()
        if np.count_nonzero(self.exchange.marks):
            self._heed(self.exchange.marks)

    def _heed(self, marks: np.ndarray) -> None:
        if not (marks == FAULT).any():
            self.stop_signal = -int(marks.min())
        else:
            faults = [report["fault"] for report in self.call_ranks("report") if report["fault"] is not None]
            raise RankError(faults[0], len(faults))

    def step(self, actions: Any):
        """`send`, then `recv`."""
        self.send(actions)
        return self.recv()

    def call_ranks(self, name: str, *args: Any) -> list[Any]:
        """Call a method of every rank's worker; return what they return, in rank order.

        Raises
        ------
        RankError
            It failed on some rank.
        """
        self.exchange.post_order(Command.CALL)
        self.exchange.spread((name, args))
        values = self.exchange.collect(self.worker.call(name, *args))
        faults = [value for value in values if isinstance(value, Fault)]
        if faults:
            raise RankError(faults[0], len(faults))
        return values

    def close_extras(self, code: int = 0, **_kwargs: Any) -> None:
        """Let the other ranks out of `serve`, with the job's exit code."""
        self.exchange.post_order(Command.STOP, code)
        self.worker.close()


class ActionCheck:
    """Are these the actions of a space?  Checked once, where they enter; afterwards they are trusted."""

    def __init__(self, single_space: spaces.Space, num_envs: int):
        self._columns = [
            (leaf, (num_envs, *leaf.shape), *bounds(space), inside(space))
            for leaf, space in zip(leaves(single_space), leaf_spaces(single_space), strict=True)
        ]

    def __call__(self, actions: Any) -> None:
        """Raise DataError where the actions are not right."""
        for leaf, shape, low, high, is_inside in self._columns:
            array = self._array(leaf, actions)
            if array.shape != shape or not np.can_cast(array.dtype, leaf.dtype, "same_kind"):
                raise DataError(
                    f"the policy's {_name(leaf)} must be {leaf.dtype} of shape {shape}, "
                    f"got {array.dtype} of shape {array.shape}"
                )
            if leaf.dtype.kind == "f":  # As it will be sent: float64's 0.7 is above a float32 bound of 0.7.
                array = array.astype(leaf.dtype, copy=False)
            if not is_inside(array):
                raise self._outside(leaf, array, low, high)

    @staticmethod
    def _array(leaf: Leaf, actions: Any) -> np.ndarray:
        try:
            return np.asarray(leaf.of(actions))
        except (TypeError, ValueError, LookupError) as error:
            raise DataError(f"the policy's {_name(leaf)} cannot be read: {type(error).__name__}: {error}") from error

    @staticmethod
    def _outside(leaf: Leaf, array: np.ndarray, low: Any, high: Any) -> DataError:
        place = tuple(int(i) for i in np.argwhere(~((array >= low) & (array <= high)))[0])
        low, high = (np.broadcast_to(bound, array.shape)[place] for bound in (low, high))
        component = f", component {list(place[1:])}" if place[1:] else ""
        return DataError(
            f"the policy's {_name(leaf)} for env {place[0]}{component} must be in {low} to {high}, "
            f"got {array[place]}; clip it in the policy"
        )


def _name(leaf: Leaf) -> str:
    return f"action {leaf.path!r}" if leaf.path else "action"


def inside(space: spaces.Space) -> Callable[[np.ndarray], bool]:
    """A function that tells whether low <= array <= high everywhere, in as few passes as the bounds allow.

    It stands between the slots of one step and the order of the next, where every rank waits for it.
    """
    low, high = bounds(space)
    if low.size == 0:
        return lambda array: True
    lowest, highest = low.flat[0].item(), high.flat[0].item()
    if (low != lowest).any() or (high != highest).any():
        return lambda array: bool(((array >= low) & (array <= high)).all())
    # NaN is the smallest and the largest of all that it is among, and compares as false.
    return lambda array: array.min().item() >= lowest and array.max().item() <= highest
