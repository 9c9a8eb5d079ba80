"""Steps of a run once more, by the driver of all ranks, compared byte by byte with what is stored.

A run that is continued brings its envs back so, or loses them; `verify --replay` and `render` do it with a driver on
one rank.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.core.columns import column_of, has_last_row
from mpi_rollout.core.layout import Block, Contents
from mpi_rollout.core.partition import Division
from mpi_rollout.core.seeding import RankGenerators, Reproducibility
from mpi_rollout.core.spaces import describe_leaves
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.recall import rows_at_a_time
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import DataError, RankLost, UsageError
from mpi_rollout.exchange.orders import Command
from mpi_rollout.exchange.single_rank import SingleRankComm
from mpi_rollout.process.console import say
from mpi_rollout.ranks.set_up import EnvFacts, Plan, RankEnvs, assemble
from mpi_rollout.text import counted

if TYPE_CHECKING:
    from mpi_rollout.data.columns import Column  # For the root alone: imports are the job's start-up time.

OTHER_DATA = "continue it with the versions that began it, move it away, or use another --out"
MOST_SAID = 8  # Envs that are named one by one.
LEARNING_S = 5.0  # Then it is known how long the whole takes.
Columns: TypeAlias = "Mapping[str, Column | np.ndarray]"  # Of shape (num_steps, num_envs, ...), by name.


def driver_of(make: EnvMaker, envs: VectorEnv) -> Driver:
    """Return a driver of these envs in this process, as the root of a job drives all envs."""
    plan = Plan(make, Division(envs.num_envs, 1), wait="spin")
    parts = assemble(SingleRankComm(), RankEnvs(plan, (envs,), EnvFacts.of(envs)))  # type: ignore[arg-type]
    worker = parts.worker()
    return Driver(worker.exchanges, worker, "pass")


@dataclass(frozen=True)
class Difference:
    """What an env gave in step `step`, where row `row` of the column `name` has something else."""

    step: int
    row: int
    name: str
    stored: np.ndarray
    replayed: np.ndarray

    def __str__(self) -> str:
        """Describe it in one line: of an array its first component that differs."""
        stored, replayed = np.atleast_1d(self.stored), np.atleast_1d(self.replayed)
        differs = (stored != replayed) & ~((stored != stored) & (replayed != replayed))
        place = tuple(int(index) for index in np.argwhere(differs)[0]) if differs.any() else (0,) * stored.ndim
        name = f"{self.name}{list(place)}" if stored.size > 1 else self.name
        values = f"{stored[place].item()!r} in the file, {replayed[place].item()!r} in the replay"
        return f"{self.row:,}: {name} is {values}"


class Replay:
    """Takes the steps of a past again, with the recorded actions.

    `columns` are what is stored, by name; of observations there is one row more than of the others.
    """

    def __init__(self, driver: Driver, past: Past, columns: Columns):
        self._driver, self._past = driver, past
        # An order that is sent again, after the loss of a rank, has no second message.
        self._room = 1 if driver.exchanges.is_surviving else driver.lanes[0].exchange.room
        self._block = driver.block(self._room + 1)
        self._unpackers = driver.unpackers(self._block)
        names = {name: name.partition("/")[0] for name in self._block.named}
        self._actions = [name for name, group in names.items() if group == "actions"]
        by_ranks = [name for name in names if column_of(name).leaf is not None and name in columns]
        self._results = [name for name in by_ranks if not has_last_row(name)]
        self._observations = [name for name, group in names.items() if group == "observations"]
        self._observations += [name for name in by_ranks if has_last_row(name)]
        self._stored = {
            name: StoredRows(columns[name], past.num_steps + has_last_row(name))
            for name in (*self._actions, *self._observations, *self._results)
        }
        self.num_steps = past.first_step  # The step up to which the envs have come.
        self.differences: dict[int, Difference] = {}  # The first one of each env that has one.

    @property
    def is_over(self) -> bool:
        """Whether all steps have been taken; or one went wrong, of envs that cannot come back without it."""
        return self.num_steps == self._past.num_steps or bool(self.differences and not self._past.is_by_episodes)

    def run(self, on_steps: Callable[[], None] = lambda: None) -> dict[int, Difference]:
        """Take all steps again; return `differences`.

        `on_steps` is called before steps are taken; it may raise to end the run.
        """
        self.begin()
        start_s, is_told = perf_counter(), False
        while not self.is_over:
            on_steps()
            taken_s = perf_counter() - start_s
            if not is_told and taken_s > LEARNING_S:
                is_told, first = True, self._past.first_step  # Nothing else shows that the program works.
                steps = f"{self.num_steps - first:,} of {counted(self._past.num_steps - first, 'step')}"
                say(f"mpi_rollout: takes the steps before again: {steps} in {taken_s:.0f} s\n")
            self.advance()
        return self.differences

    def begin(self) -> None:
        """Reset the envs, and compare what they observe."""
        self._driver.do(Command.RESTORE, self._past)
        for unpacker in self._unpackers.values():
            unpacker.lay_observations(0)
        self._compare(self._observations, 0, self.num_steps, 1)

    def advance(self) -> None:
        """Take as many steps again as slots have room for, and compare what comes."""
        first, num_steps = self.num_steps, min(self._room, self._past.num_steps - self.num_steps)
        self._take([self._stored[name].between(first, first + num_steps) for name in self._actions])
        self.num_steps += num_steps
        self._compare([*self._results, *self._observations], 1, first, num_steps)

    def _take(self, actions: list[np.ndarray]) -> None:
        """Step all envs.  A rank may cut the steps short to serve others; it then takes the rest."""
        driver, done = self._driver, dict.fromkeys(self._driver.lanes, 0)
        while waiting := [lane for lane in driver.lanes if done[lane] < len(actions[0])]:
            for lane in waiting:
                if lane not in driver.under_way:
                    rest = [array[done[lane] :, lane.envs] for array in actions]
                    driver.send(lane, rest, len(rest[0]), self.num_steps + done[lane])
            lanes = driver.step_and_receive()
            if driver.lost_ranks:  # What their envs gave is in no slot.
                ranks = ", ".join(map(str, driver.lost_ranks))
                raise RankLost(f"lost rank {ranks} while envs took their steps again; the same command continues")
            for lane in lanes:
                row, num_rows, unpacker = done[lane], lane.num_rows, self._unpackers[lane]
                unpacker.lay_observations(row + 1, 0, num_rows)
                unpacker.lay_results(row, num_rows)
                done[lane] += num_rows

    def _compare(self, names: Iterable[str], offset: int, first: int, num_steps: int) -> None:
        """Compare steps from `first` on with what is stored; their observations are `offset` rows further on."""
        pairs, differs = dict[str, tuple[np.ndarray, np.ndarray]](), dict[str, np.ndarray]()
        for name in names:
            shift = offset if name in self._observations else 0
            stored = self._stored[name].between(first + shift, first + shift + num_steps)
            pairs[name] = stored, self._block.named[name][shift : shift + num_steps]
            rows = np.arange(first + shift, first + shift + num_steps)[:, None]
            differs[name] = rows_differ(*pairs[name]) & (self._past.first_steps <= rows)
        in_steps = np.logical_or.reduce(list(differs.values()))
        for env in np.flatnonzero(in_steps.any(axis=0)).tolist():
            place = int(in_steps[:, env].argmax()), env
            name = next(name for name in differs if differs[name][place])
            row = first + place[0] + (offset if name in self._observations else 0)
            step = max(first + place[0], int(self._past.first_steps[env]))
            values = [array[place].copy() for array in pairs[name]]  # The next steps overwrite them.
            self.differences.setdefault(env, Difference(step, row, name, *values))


def earliest(differences: Mapping[int, Difference]) -> tuple[int, Difference]:
    """Return the env that differs first, and where."""
    return min(differences.items(), key=lambda item: (item[1].step, item[0]))


class StoredRows:
    """The first rows of a column, read many at a time: HDF5 reads and checks a whole chunk for each read."""

    def __init__(self, rows: "Column | np.ndarray", num_rows: int):
        self._source, self._num_rows = rows, num_rows
        self._first, self._rows = 0, np.asarray(rows[:0])
        self._most = rows_at_a_time([rows])

    def between(self, start: int, stop: int) -> np.ndarray:
        if not self._first <= start <= stop <= self._first + len(self._rows):
            last = min(self._num_rows, max(stop, start + self._most))
            self._first, self._rows = start, np.asarray(self._source[start:last])
        return self._rows[start - self._first : stop - self._first]


def rows_differ(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Compare the bytes of each env in each row: NaN is equal to itself, 0.0 is not -0.0."""
    flat = [np.ascontiguousarray(array).reshape(*array.shape[:2], -1).view(np.uint8) for array in (first, second)]
    return (flat[0] != flat[1]).any(axis=2)


def check_promise(past: Past, promised: Reproducibility, source: str) -> None:
    """Refuse to go on with envs that promise something else than those of before: they give other data."""
    if promised != past.reproducibility:
        raise UsageError(
            f"{source} is of envs that promised {past.reproducibility} ({past.reproducibility.words}), these promise "
            f"{promised} ({promised.words}), which gives other data; {OTHER_DATA}"
        )


def check_columns(contents: Contents, spaces: str, source: str) -> None:
    """Refuse to go on with other infos or extras: they follow from what envs say at first, and from the policy."""
    described, none = json.loads(spaces), describe_leaves(())
    for name, group in (("info", contents.kept_infos), ("extra", contents.extras)):
        before, now = (_columns_text(columns) for columns in (described.get(name, none), describe_leaves(group)))
        if before != now:
            raise UsageError(f"{source} has the {name}s {before:.200}, now they are {now:.200}; {OTHER_DATA}")


def _columns_text(described: dict[str, Any]) -> str:
    parts = sorted(described["subspaces"].items())  # In whatever order a policy or an env names them.
    return ", ".join(f"{path} ({part['dtype']}, shape {part['shape']})" for path, part in parts) or "none"


def bring_back(
    driver: Driver, past: Past, columns: Columns, on_steps: Callable[[], None], why: str = ""
) -> dict[int, int]:
    """Take steps again until the envs are where they were; return the first lost step of each env that is not.

    Random generators of all ranks go on from there.  `on_steps` is as in `Replay.run`.  DataError if an env gave
    something else than before, and these envs come back by all of their steps only; `why` says a likely cause.
    """
    differences = Replay(driver, past, columns).run(on_steps)
    if differences and not past.is_by_episodes:
        index, first = earliest(differences)
        raise DataError(
            f"env {past.first_env + index} did not reproduce step {first.step:,}, and envs without a seed for each "
            "episode go on from where they were or not at all; is another version of them, or of what they use, "
            f"installed?{f' ({why})' if why else ''}"
        )
    driver.call_ranks(driver.worker.control.end_replay, sorted(differences))
    driver.restarts = []  # Envs that failed meanwhile are among the lost.
    driver.call_ranks(driver.service(RankGenerators).seed_again, past.num_steps)
    return {index: differences[index].step for index in sorted(differences)}


def say_resumed(
    source: str, past: Past, steps: tuple[int, int], lost: Mapping[int, int], seconds: float, why: str = ""
) -> None:
    """Tell the user after which of all steps the run goes on, and which envs did not come back; `why`, if known."""
    num_again = past.num_steps - past.first_step
    say(
        f"mpi_rollout: continuing {source} after {steps[0]:,} of {counted(steps[1], 'step')}; took "
        f"{counted(num_again, 'step')} again in {seconds:.1f} s\n"
    )
    for index, step in list(lost.items())[:MOST_SAID]:
        say(
            f"mpi_rollout: env {past.first_env + index} did not reproduce step {step}: its running episode is ended as "
            f"truncated and faulted{f' ({why})' if why else ''}\n"
        )


def load(block: Block, past: Past, lost: Collection[int], columns: Columns) -> None:
    """Fill a block with what there is of its rows; of the lost envs with the end of their episodes."""
    for name, array in block.named.items():
        rows = columns[name][block.start : past.num_steps + has_last_row(name)]
        array[: len(rows)] = rows
    if past.num_steps > block.start:
        block.truncations[past.num_steps - 1 - block.start, sorted(lost)] = True
        for array in block.alive_arrays:
            array[past.num_steps - block.start, sorted(lost)] = False
