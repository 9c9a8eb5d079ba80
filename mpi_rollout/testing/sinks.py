"""The conformance test of a `Sink`: whether the rows that it is given are those that it keeps.

It needs no MPI, no envs and no test runner:

    from mpi_rollout.drive.sink import MemorySink
    from mpi_rollout.testing.sinks import check_sink

    def make(blocks):
        sink = MemorySink(blocks)
        return sink, lambda: sink.rows

    check_sink(make)

Not tried is how a sink fails, for which a test of your own must take the disk away, nor where it goes on after an
earlier start of a run.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.columns import has_last_row
from mpi_rollout.core.layout import Block, Contents
from mpi_rollout.core.spaces import Space
from mpi_rollout.drive.sink import Sink

OBSERVATION_SPACE = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (5, 7), np.uint8),
        "place": spaces.Tuple((spaces.Box(-10, 10, (3,), np.float32), spaces.Discrete(2**40))),
    }
)
ACTION_SPACE = spaces.MultiDiscrete([3, 5])
NUM_ENVS = 3
NUM_PROGRAMS = 20
MOST_BLOCKS, MOST_STEPS = 4, 60

Rows: TypeAlias = Mapping[str, np.ndarray]
Read: TypeAlias = Callable[[], Rows]


def check_sink(
    make: Callable[[list[Block]], tuple[Sink, Read | None]],
    num_programs: int = NUM_PROGRAMS,
    observation_space: Space = OBSERVATION_SPACE,
    action_space: Space = ACTION_SPACE,
) -> None:
    """Give new sinks the rows of made-up runs, as a collector does; AssertionError where one breaks the contract.

    The runs are random, and the same each time: several blocks are held at once and fill in any order, whole blocks
    and parts of them are submitted, and what is not complete changes meanwhile.

    Parameters
    ----------
    make
        Returns a new sink for some blocks, and a function that returns all rows that it keeps, by name and from the
        first step on.  That is called once, after the last `drain`, and may end the sink.  None in its place: the sink
        keeps no rows, and says so.
    num_programs
        The number of runs.
    observation_space, action_space
        Those of the `NUM_ENVS` envs whose steps the blocks have.

    Raises
    ------
    AssertionError
        The sink does not keep the contract; the message has the sentence of it, and in which run it was.
    """
    contents = Contents(observation_space, action_space)
    for number in range(num_programs):
        draws = np.random.default_rng(number)
        num_blocks, num_rows = int(draws.integers(2, MOST_BLOCKS + 1)), 2 ** int(draws.integers(4))
        blocks = [Block(contents, NUM_ENVS, 1, num_rows) for _ in range(num_blocks)]
        sink, read = make(list(blocks))
        caller = _Caller(sink, blocks, draws, keeps=read is not None)
        try:
            caller.run()
            if read is not None:
                _compare(read(), caller.expected, caller.num_steps)
        except AssertionError as error:
            raise AssertionError(f"run {number}, {num_blocks} blocks of {num_rows} rows: {error}") from None


class _Caller:
    """A collector that knows all rows beforehand."""

    def __init__(self, sink: Sink, blocks: Sequence[Block], draws: np.random.Generator, keeps: bool) -> None:
        self._sink, self._blocks, self._draws, self._keeps = sink, blocks, draws, keeps
        self._room = blocks[0].num_rows
        self.num_steps = int(draws.integers(MOST_STEPS))
        self.expected = _drawn_rows(blocks[0], self.num_steps, draws)
        self._held: list[Block] = []  # In the order of their steps.
        self._stop = 0  # The first step without a row.
        self._step = 0  # All before are complete.
        self._num_submitted = 0  # Steps that must be committed in the end.
        self._num_committed = 0
        assert sink.num_rows == self._room, f"num_rows is that of each block, {self._room}, got {sink.num_rows}"

    def run(self) -> None:
        """Take all steps; begin, hand over, wait or run ahead at random."""
        self._extend()
        self._fill(0, "states")
        while self._step < self.num_steps:
            chosen = self._draws.integers(8)
            if chosen == 0:
                self._submit_rest()
            elif chosen == 1:
                self._drain()
            elif chosen == 2 and len(self._held) < len(self._blocks):
                self._extend()
            elif chosen == 3:
                self._run_ahead()
            else:
                self._take_step()
        self._submit_rest()
        self._drain()

    def _extend(self) -> None:
        """Acquire a block, and scramble it: whatever the sink wants of it, it has."""
        block = self._sink.acquire()
        assert block not in self._held, "acquire returns a block that the caller does not hold"
        assert block in self._blocks, "the blocks are few objects that come again and again: those that were given"
        for array in block.named.values():
            array.view(np.uint8)[...] = self._draws.integers(2, dtype=np.uint8)
        block.start, self._stop = self._stop, self._stop + block.num_rows
        self._held.append(block)

    def _take_step(self) -> None:
        """Complete a row; submit the block that it completes."""
        if self._step + 1 == self._stop:
            self._extend()
        self._fill(self._step, "steps")
        self._fill(self._step + 1, "states")
        self._step += 1
        oldest = self._held[0]
        if self._step == oldest.start + oldest.num_rows:
            self._submit(self._held.pop(0), oldest.num_rows)

    def _fill(self, step: int, kind: str, envs: slice = slice(None)) -> None:
        """Write what was before a step, `states`, or what the step gave, `steps`."""
        block = next(block for block in self._held if block.start <= step < block.start + block.num_rows)
        for name, array in block.named.items():
            if has_last_row(name) == (kind == "states"):
                array[step - block.start, envs] = self.expected[name][step, envs]

    def _run_ahead(self) -> None:
        """Write rows of one env that is faster than the others."""
        env = int(self._draws.integers(NUM_ENVS))
        for step in range(self._step, min(self._stop, self.num_steps)):
            self._fill(step, "steps", slice(env, env + 1))
            if step > self._step:  # What came after the last step is complete.
                self._fill(step, "states", slice(env, env + 1))

    def _submit_rest(self) -> None:
        self._submit(self._held[0], self._step - self._held[0].start)

    def _submit(self, block: Block, num_rows: int) -> None:
        start, before = block.start, {name: array.copy() for name, array in block.named.items()}
        self._sink.submit(block, num_rows)
        is_whole = num_rows == block.num_rows
        self._num_submitted = start + num_rows - is_whole
        if not is_whole:
            is_same = all(array.tobytes() == before[name].tobytes() for name, array in block.named.items())
            assert block.start == start and is_same, "a sink writes into no block"
        self._look()

    def _look(self) -> None:
        num_committed = self._sink.num_committed
        if not self._keeps:
            assert num_committed == 0, f"num_committed is 0 of a sink that keeps none, got {num_committed}"
        assert num_committed >= self._num_committed, f"num_committed never gets less, got {num_committed}"
        assert num_committed <= self._num_submitted, (
            f"num_committed counts the steps that were submitted with what came after them, {self._num_submitted}, "
            f"got {num_committed}"
        )
        self._num_committed = num_committed

    def _drain(self) -> None:
        self._sink.drain()
        self._look()
        if self._keeps:
            assert self._num_committed == self._num_submitted, (
                f"drain waits until all that was submitted is committed, {self._num_submitted} steps, "
                f"got {self._num_committed}"
            )


def _drawn_rows(block: Block, num_steps: int, draws: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw rows of envs: no episode ends in the step after an end, which only resets and has no reward."""
    rows = {name: _drawn(array.dtype, (num_steps + 1, *array.shape[1:]), draws) for name, array in block.named.items()}
    ends = draws.random((num_steps + 1, NUM_ENVS)) < 0.2
    for step in range(1, num_steps + 1):
        ends[step] &= ~ends[step - 1]
    is_terminated = draws.random(ends.shape) < 0.5
    rows["terminations"], rows["truncations"] = ends & is_terminated, ends & ~is_terminated
    rows["rewards"][1:][ends[:-1]] = 0
    return rows


def _drawn(dtype: np.dtype, shape: tuple[int, ...], draws: np.random.Generator) -> np.ndarray:
    if dtype.kind in "fc":
        return draws.normal(size=shape).astype(dtype)
    return draws.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)


def _compare(kept: Rows, expected: Rows, num_steps: int) -> None:
    """Compare all rows with those that were submitted."""
    names, wanted = sorted(kept), sorted(expected)
    if num_steps:
        assert names == wanted, f"a sink keeps the arrays {', '.join(wanted)}, got {', '.join(names)}"
    for name, rows in kept.items():
        num_rows = num_steps + has_last_row(name)
        assert len(rows) == num_rows, f"{name} has {num_rows} rows after {num_steps} steps, got {len(rows)}"
        whole = expected[name][:num_rows]
        assert rows.dtype == whole.dtype and rows.shape == whole.shape, (
            f"{name} is {whole.dtype} of shape {whole.shape}, got {rows.dtype} of shape {rows.shape}"
        )
        wrong = np.argwhere(rows != whole)
        place = f"row {wrong[0][0]}, env {wrong[0][1]}" if len(wrong) else ""
        assert not len(wrong), f"a sink keeps what was submitted; {name} is not what it was in {place}"
