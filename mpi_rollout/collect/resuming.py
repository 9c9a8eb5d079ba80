"""Bringing the envs of an interrupted run back to where they were, and finding those that do not come back.

The running episodes are taken again on all ranks, with the recorded actions, and what comes is compared with what
was recorded, byte by byte.  It takes as many steps as the longest running episode has.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from mpi_rollout.core.layout import OF_STATES, Block, Destination
from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.core.spaces import Tree, describe_leaves, tree_of
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import ActionError, DataError, UsageError, counted
from mpi_rollout.exchange.orders import Command
from mpi_rollout.process.console import say
from mpi_rollout.ranks.driver import Driver

if TYPE_CHECKING:
    import h5py  # For the root alone: a worker's imports are the job's start-up time.

REPLAY_NBYTES = 2**24  # Of recorded data to be read at a time.
LEARNING_S, LONGEST_HISTORY_S = 5.0, 1800.0  # After the first, it is known how long the whole takes.
MOST_SAID = 8  # Envs that are named one by one.


def check_promise(past: Past, promised: Reproducibility, source: str) -> None:
    """Refuse to go on with envs that promise something else than those of before: they give other data."""
    if promised != past.reproducibility:
        raise UsageError(
            f"{source} is of envs that promised {past.reproducibility} ({past.reproducibility.words}), these promise "
            f"{promised} ({promised.words}), which gives other data; continue it with the versions that began it, "
            "move it away, or use another --out"
        )


def check_infos(driver: Driver, file: "h5py.File", source: str) -> None:
    """Refuse to go on with infos of other types: with `--store-infos all` they follow from what envs say at first."""
    infos = driver.exchanges.contents.kept_infos
    now = describe_leaves(infos) if infos else None
    if (before := json.loads(file.attrs["spaces"]).get("info")) != now:
        raise UsageError(
            f"{source} has the infos {json.dumps(before):.200}, now the first infos of the envs give "
            f"{json.dumps(now):.200}; continue it with the versions that began it, move it away, or use another --out"
        )


def bring_back(driver: Driver, past: Past, file: "h5py.File", on_step: Callable[[], None]) -> dict[int, int]:
    """Take the running episodes again; return the envs that did not reproduce theirs, and from which step on.

    Their random generators go on from there on all ranks.

    Parameters
    ----------
    on_step
        Called before each step; may raise to end the run.
    """
    recorded = Recorded(driver, file)
    lost: dict[int, int] = {}
    block = driver.block(1)
    destinations = driver.destinations(block).values()
    driver.do(Command.RESTORE, past)
    lay(destinations)
    differs = recorded.observations_differ(block, past.starts.clip(max=past.num_steps))
    note(lost, differs & (past.starts <= past.num_steps), past.starts)
    for step in range(past.first_step, past.num_steps):
        on_step()
        driver.do(Command.REPLAY, step, actions=recorded.actions(step))
        lay(destinations)
        note(lost, recorded.step_differs(block, step) & (past.starts <= step), np.full(len(past.starts), step))
    driver.call_ranks("end_replay", sorted(lost))
    driver.restarts = []  # Envs that failed meanwhile are among the lost.
    driver.call_ranks("seed_again", past.num_steps)
    return lost


def take_history_again(driver: Driver, past: Past, file: "h5py.File", on_step: Callable[[], None]) -> dict[int, int]:
    """Take all steps of natively vectorized envs again, in fragments, and compare each with what was recorded.

    They cannot begin amid a run as a loop's envs can, one by one.

    Parameters
    ----------
    on_step
        Called before each fragment; may raise to end the run.

    Raises
    ------
    DataError
        Some env gave something else than before.
    UsageError
        It would take longer than `LONGEST_HISTORY_S`.
    """
    recorded, room, start_s = Recorded(driver, file), driver.lanes[0].exchange.room, perf_counter()
    block = driver.block(room + 1)
    destinations = driver.destinations(block)
    driver.do(Command.RESET, past.seed)
    for destination in destinations.values():
        destination.lay_observations(0)
    refuse(recorded.observations_differ(block, np.zeros(driver.num_envs, np.int64)), 0)
    for step in range(0, past.num_steps, room):
        on_step()
        check_history(perf_counter() - start_s, step, past.num_steps, "keep what there is with mpi_rollout recover")
        num_steps = min(room, past.num_steps - step)
        actions = recorded.many_actions(step, num_steps)
        for lane in driver.lanes:
            driver.send_fragment(lane, [array[:, lane.envs] for array in actions], step)
        while driver.under_way:
            for lane in driver.await_some():
                destinations[lane].lay_observations(1, 0, num_steps)
                destinations[lane].lay_results(0, num_steps)
                destinations[lane].unpack(0, num_steps)
        for row in range(num_steps):
            refuse(recorded.step_differs(block, step + row, row), step + row)
    driver.call_ranks("seed_again", past.num_steps)
    return {}


def refuse(differs: np.ndarray, step: int) -> None:
    """Raise DataError if some env has not reproduced a step."""
    if differs.any():
        raise DataError(
            f"env {int(differs.argmax())} did not reproduce step {step:,}, and natively vectorized envs go on from "
            "where they were or not at all; is another version of them, or of what they use, installed?"
        )


def check_history(taken_s: float, num_taken: int, num_steps: int, way_out: str) -> None:
    """Raise UsageError if taking all steps again would take too long, once that can be told."""
    if taken_s > LEARNING_S and num_taken:
        whole_s = taken_s * num_steps / num_taken
        if whole_s > LONGEST_HISTORY_S:
            raise UsageError(
                f"these natively vectorized envs come back by all of their {num_steps:,} steps, which would take "
                f"{whole_s / 60:,.0f} minutes here, and {LONGEST_HISTORY_S / 60:,.0f} are the most; {way_out}"
            )


def say_resumed(source: str, past: Past, num_steps: int, lost: Mapping[int, int], seconds: float) -> None:
    """Tell the user from where the run goes on, and which envs did not come back."""
    num_again = past.num_steps - past.first_step
    say(
        f"mpi_rollout: continuing {source} after {past.num_steps:,} of {counted(num_steps, 'step')}; took "
        f"{counted(num_again, 'step')} again in {seconds:.1f} s\n"
    )
    for index, step in list(lost.items())[:MOST_SAID]:
        say(
            f"mpi_rollout: env {index} did not reproduce step {step}: its running episode is ended as truncated "
            "and faulted\n"
        )


def load(block: Block, past: Past, lost: Collection[int], file: "h5py.File") -> None:
    """Fill a block with what there is of its rows; of the lost envs with the end of their episodes."""
    for name, array in block.named.items():
        stop = past.num_steps + name.startswith(OF_STATES)
        rows = file["trajectories"][name][block.start : stop]
        array[: len(rows)] = rows
    if past.num_steps > block.start:
        block.truncations[past.num_steps - 1 - block.start, sorted(lost)] = True


def earlier_observations(driver: Driver, past: Past, file: "h5py.File") -> Callable[[int], Tree]:
    """Return what gives the observations of an earlier step, of as many of the last ones as are kept in memory."""
    datasets = _observations(driver, file)
    row_nbytes = max(1, sum(dataset.nbytes // max(1, len(dataset)) for dataset in datasets))
    first = max(0, past.num_steps - max(1, REPLAY_NBYTES // row_nbytes))
    arrays = [dataset[first : past.num_steps + 1] for dataset in datasets]

    def observations(step: int) -> Tree:
        if step < first:
            num_kept = past.num_steps - first
            raise ActionError(f"a plan of more than {num_kept} steps cannot be continued; plan fewer steps at a time")
        return tree_of(driver.observation_space, (array[step - first] for array in arrays))

    return observations


def show_observations(driver: Driver, past: Past, file: "h5py.File") -> None:
    """Have policies on the ranks see what was stored last: envs that are to begin an episode do not know it."""
    driver.call_ranks("show_observations", [dataset[past.num_steps] for dataset in _observations(driver, file)])


def _observations(driver: Driver, file: "h5py.File") -> list["h5py.Dataset"]:
    return [file["trajectories"][name] for name in driver.block(1).named if name.split("/")[0] == "observations"]


def lay(destinations: Iterable[Destination]) -> None:
    """Lay the slots of all lanes into row 0."""
    for destination in destinations:
        destination.lay_observations(0)
        destination.lay_results(0)
        destination.unpack(0, 1)


def note(lost: dict[int, int], differs: np.ndarray, steps: np.ndarray) -> None:
    """Note the envs that differ for the first time."""
    for index in np.flatnonzero(differs).tolist():
        lost.setdefault(index, int(steps[index]))


class Recorded:
    """The recorded rows of a file, read many at a time."""

    def __init__(self, driver: Driver, file: "h5py.File"):
        self._driver = driver
        self._datasets = {name: file["trajectories"][name] for name in driver.block(1).named}
        nbytes = Block.row_nbytes(driver.observation_space, driver.action_space, driver.num_envs)
        self._num_rows = max(1, REPLAY_NBYTES // nbytes)
        self._first, self._rows = 0, dict[str, np.ndarray]()

    def _row(self, name: str, step: int) -> np.ndarray:
        if not self._first <= step < self._first + self._num_rows:
            self._first, self._rows = step, {}
        if name not in self._rows:
            self._rows[name] = self._datasets[name][self._first : self._first + self._num_rows]
        return self._rows[name][step - self._first]

    def _names(self, group: str) -> list[str]:
        return [name for name in self._datasets if name.split("/")[0] == group]

    def actions(self, step: int) -> Tree:
        """Return the actions of all envs."""
        return tree_of(self._driver.action_space, (self._row(name, step) for name in self._names("actions")))

    def many_actions(self, step: int, num_steps: int) -> list[np.ndarray]:
        """Return the actions of all envs in some steps, for each leaf an array (num_steps, num_envs, ...)."""
        return [self._datasets[name][step : step + num_steps] for name in self._names("actions")]

    def step_differs(self, block: Block, step: int, row: int | None = None) -> np.ndarray:
        """Tell of each env whether its outcome in a block is another than that of a step.

        Parameters
        ----------
        row
            Of the step in the block, where its observations are in the next one; None: all is in row 0.
        """
        results_row, next_row = (0, 0) if row is None else (row, row + 1)
        differs = np.zeros(self._driver.num_envs, np.bool_)
        for name in ("rewards", "terminations", "truncations"):
            differs |= rows_differ(block.named[name][results_row], self._row(name, step))
        for name in self._names("observations"):
            differs |= rows_differ(block.named[name][next_row], self._row(name, step + 1))
        return differs

    def observations_differ(self, block: Block, steps: np.ndarray) -> np.ndarray:
        """Tell of each env whether its observation in row 0 of a block is another than that of its step of `steps`."""
        differs = np.zeros(self._driver.num_envs, np.bool_)
        for name in self._names("observations"):
            for step in np.unique(steps):
                envs = steps == step
                differs[envs] |= rows_differ(block.named[name][0], self._row(name, int(step)))[envs]
        return differs


def rows_differ(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Tell of each row whether its bytes differ: NaN is equal to itself, 0.0 is not -0.0."""
    flat = [np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8) for array in (first, second)]
    return (flat[0] != flat[1]).any(axis=1)
