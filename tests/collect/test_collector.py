"""What a run writes: the same bytes in lockstep, in groups, and by whoever is ready first, however many blocks."""

import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import envs as test_envs
import gymnasium
import numpy as np
import pytest
from jobs import WHOLE, Job, assert_same_bytes, datasets, once
from oracle import rollout, seeded_sync
from single_rank import driver_of
from stopped_runs import (
    ENVS,
    HOST,
    OUT,
    assert_begins,
    assert_ended_soon,
    assert_stopped,
    committed,
    fails,
    is_code,
    kwargs,
    start_long,
)

from mpi_rollout.collect.collector import Collector, CollectorOptions, Tally
from mpi_rollout.collect.watcher import Progress, Watcher
from mpi_rollout.core.layout import Block
from mpi_rollout.drive.actions import RankActions
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.fragments import FragmentLengths
from mpi_rollout.drive.sink import MemorySink
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.errors import RankError
from mpi_rollout.exchange.exchange import Command
from mpi_rollout.policies.random import RandomPolicy

# Lockstep.

RUNS = {
    "CartPole-v1": ("--env", partial(gymnasium.make, "CartPole-v1"), 7, 300),
    "Pendulum-v1": ("--env", partial(gymnasium.make, "Pendulum-v1"), 3, 450),
    "Blackjack-v1": ("--env", partial(gymnasium.make, "Blackjack-v1"), 5, 100),
    "envs:Counting": ("--env-factory", test_envs.Counting, 7, 100),
    "envs:Nested": ("--env-factory", test_envs.Nested, 5, 100),
    "envs:Image": ("--env-factory", test_envs.Image, 3, 40),
}


def expected(make: Callable[[], gymnasium.Env], num_envs: int, num_steps: int, seed: int) -> dict[str, np.ndarray]:
    envs = seeded_sync(make, num_envs, seed)
    return rollout(envs, RandomPolicy(envs.single_action_space, num_envs, seed), num_steps)


@pytest.fixture(scope="module")
def lockstep(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int | None, int], dict[str, Path]]:
    """The files of all runs on some ranks, or without mpiexec, with a seed; one job for all of them."""

    @once
    def of(num_ranks: int | None, seed: int) -> dict[str, Path]:
        job = Job(tmp_path_factory.mktemp("lockstep"))
        files = {name: job.folder / f"{number}.h5" for number, name in enumerate(RUNS)}
        commands = []
        for name, (option, _, num_envs, num_steps) in RUNS.items():
            sizes = ("--num-envs", str(num_envs), "--num-steps", str(num_steps))
            commands.append((option, name, *sizes, "--seed", str(seed), "--out", files[name].name))
        assert job.train(num_ranks, "runs", commands) == [0] * len(commands)
        return files

    return of


@pytest.mark.parametrize("name", RUNS)
def test_a_file_holds_what_gymnasium_gives(lockstep, name: str):
    _, make, num_envs, num_steps = RUNS[name]
    found = datasets(lockstep(2, 11)[name])
    del found["/episodes"]
    assert_same_bytes(found, expected(make, num_envs, num_steps, 11))


@pytest.mark.parametrize("name", RUNS)
def test_the_episode_table_holds_the_episodes_that_gymnasium_gives(lockstep, name: str):
    """Found here one env after the other and step by step; the returns are added up in the same order."""
    _, make, num_envs, num_steps = RUNS[name]
    path = lockstep(None, 0)[name]
    columns = expected(make, num_envs, num_steps, 0)
    episodes = []
    for env in range(num_envs):
        seeds, start, total, is_reset = seeded_sync(make, num_envs, 0).envs[env].seeds, 0, 0.0, False
        for step in range(num_steps):
            if is_reset:
                start, total, is_reset = step + 1, 0.0, False
                continue
            total += columns["rewards"][step, env]
            ends = bool(columns["terminations"][step, env]), bool(columns["truncations"][step, env])
            is_reset = any(ends)
            if is_reset or step == num_steps - 1:
                episodes.append((env, start, step - start + 1, total, next(seeds), *ends, False))
    assert sorted(datasets(path)["/episodes"].tolist()) == episodes


# Groups, and whoever is ready first.

NUM_ROWS = 8  # Steps in a block: many blocks, and the run ends amid one.
DOZING = ("--env-factory", "envs:Dozing", "--num-envs", "16", "--num-steps", "50", "--seed", "4")
WHAT = {
    "random": DOZING,
    "by look": (*DOZING, "--policy", "policies:by_look"),
    "nested": ("--env-factory", "envs:Nested", "--num-envs", "16", "--num-steps", "40"),
}
WAYS = {
    "two groups": ("--num-groups", "2"),
    "three groups": ("--num-groups", "3"),
    "two groups, dedicated root": ("--num-groups", "2", "--root-envs", "0"),
    "two groups, limit": ("--num-groups", "2", "--measure-limit"),
    "first ready": ("--batch-size", "1"),
    "first two ready": ("--batch-size", "2"),
    "first ready, dedicated root": ("--batch-size", "1", "--root-envs", "0"),
    "first two ready, dedicated root": ("--batch-size", "2", "--root-envs", "0"),
    "first ready, limit": ("--batch-size", "1", "--measure-limit"),
}


def can_be(num_ranks: int, what: str, way: str) -> bool:
    """Each way with a policy that looks; with the others, ways whose difference they could make."""
    if num_ranks - ("dedicated root" in way) < 1 + ("two ready" in way):
        return False
    if "limit" in way:
        return num_ranks == 2 and what == "by look"
    return what == "by look" or (num_ranks in (2, 3) and way in ("three groups", "first ready"))


CASES = [
    (num_ranks, what, way) for num_ranks in (1, 2, 3) for what in WHAT for way in WAYS if can_be(num_ranks, what, way)
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, np.ndarray]]:
    """What a run gives in lockstep, without mpiexec, in blocks of the usual size."""
    return once(lambda what: datasets(Job(tmp_path_factory.mktemp("plain")).collect(None, *WHAT[what])))


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], dict[tuple[str, str], Path]]:
    """The files that all runs on some ranks have made; one job for all of them."""

    @once
    def of(num_ranks: int) -> dict[tuple[str, str], Path]:
        job, keys = Job(tmp_path_factory.mktemp("ways")), [case[1:] for case in CASES if case[0] == num_ranks]
        files = {key: job.folder / f"{index}.h5" for index, key in enumerate(keys)}
        commands = [(*WHAT[what], *WAYS[way], "--out", files[what, way].name) for what, way in keys]
        assert job.train(num_ranks, "runs", commands, NUM_ROWS) == [0] * len(keys)
        return files

    return of


@pytest.mark.mpi
@pytest.mark.parametrize(("num_ranks", "what", "way"), CASES)
def test_groups_and_first_ready_write_the_bytes_of_the_plain_run(collected, plain, num_ranks: int, what: str, way: str):
    found = datasets(collected(num_ranks)[what, way])
    assert_same_bytes(found, plain(what))
    assert len(found["rewards"]) in (50, 40)


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 3)
def test_a_policy_may_write_into_all_that_it_gets(plain, tmp_path: Path, num_ranks: int):
    """What is stored is what the envs gave; also where the policy keeps it, and writes into the actions it returned."""
    ways = [(), ("--num-groups", "3"), ("--batch-size", "1"), ("--batch-size", "2")]
    ways = [way for way in ways if num_ranks > 1 or "--batch-size" not in way]
    commands = [(*DOZING, "--policy", "policies:scribbling_by_look", *way) for way in ways]
    commands.append((*WHAT["nested"], "--policy", "policies:scribbling_nested"))
    files = [tmp_path / f"{index}.h5" for index in range(len(commands))]
    commands = [(*command, "--out", file.name) for command, file in zip(commands, files, strict=True)]
    assert Job(tmp_path).train(num_ranks, "runs", commands, NUM_ROWS) == [0] * len(files)
    for file in files[:-1]:
        assert_same_bytes(datasets(file), plain("by look"))
    assert_same_bytes(datasets(files[-1]), plain("nested"))


# They fail.

FAILING_WAYS = {
    "two groups": ("--num-groups", "2"),
    "first ready": ("--batch-size", "1"),
    "first ready, dedicated root": ("--batch-size", "1", "--root-envs", "0"),
}


@pytest.mark.mpi(3)
@pytest.mark.parametrize(("way", "rank"), [("two groups", 0), ("first ready", 2)])
def test_an_env_that_fails_is_named_and_all_whole_steps_are_kept(job: Job, whole, num_ranks: int, way: str, rank: int):
    """After more steps than one block has: no rank can be further behind than the blocks that there are."""
    result = job(num_ranks, *fails("raise", rank, after=700, num_steps=WHOLE), *FAILING_WAYS[way])
    assert result.code == 70 and result.num_tracebacks == 1
    [message] = result.messages
    told = re.match(rf"rank {rank} \({HOST}, envs .*\), step (\d+): env \d, .* the simulator has diverged", message)
    assert told, message
    num_steps = assert_begins(job.folder / "run.h5.part", whole)
    assert (
        0 < num_steps <= int(told[1])
        and f"; the {num_steps:,} steps before are in {job.folder / 'run.h5.part'}" in message
    )


@pytest.mark.mpi(3)
@pytest.mark.parametrize("way", ["two groups", "first ready, dedicated root"])
def test_ctrl_c_loses_no_whole_step(job: Job, whole, num_ranks: int, way: str):
    run = start_long(job, num_ranks, *FAILING_WAYS[way])
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    run.interrupt(rank=2)
    assert_stopped(run.finish(), job, whole, "SIGINT")


@pytest.mark.mpi(3)
@pytest.mark.parametrize(
    ("way", "hows"),
    [
        ("two groups", [None, "long", "raise"]),
        ("first ready", [None, "long", "raise"]),
    ],
    ids=["two groups", "first ready"],
)
def test_nobody_waits_for_the_long_step_of_another_rank(job: Job, num_ranks: int, way: str, hows: list[str | None]):
    """The step that nobody waits for takes a minute."""
    arguments = ("--env-factory", "failing_envs:by_rank", *kwargs(hows=hows), "--num-steps", "20")
    result = job(num_ranks, *arguments, *ENVS, *OUT, *FAILING_WAYS[way])
    assert_ended_soon(job.folder)
    assert is_code(result, 70)
    assert len(result.messages) == 1 and "RuntimeError: the simulator has diverged" in result.messages[0]


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize(
    ("way", "policy", "code"), [("two groups", "nan_later", 65), ("first ready", "raises_later", 70)]
)
def test_a_policy_that_fails_loses_no_whole_step(job: Job, num_ranks: int, way: str, policy: str, code: int):
    """In its eighth call, for a part of the envs; it may have been asked for the same part each time."""
    arguments = ("--env-factory", "failing_envs:Continuous", "--num-steps", "20", *ENVS, "--num-envs", "8")
    result = job(num_ranks, *arguments, "--policy", f"failing_envs:{policy}", *OUT, *FAILING_WAYS[way])
    assert result.code == code and len(result.messages) == 1
    num_steps = committed(job.folder / "run.h5.part")
    assert num_steps == 3 if way == "two groups" else num_steps < 8
    if num_steps:
        found = datasets(job.folder / "run.h5.part")["actions"]
        assert found.shape == (num_steps, 8, 2) and (found == 0.5).all()


# On one rank without a job.

NUM_ENVS, ROWS_PER_BLOCK, MANY_STEPS = 5, 4, 30


class Kept(MemorySink):
    """Also keeps what was submitted, and takes some time for it."""

    def __init__(self, driver: Driver, sleep_s: float = 0.0):
        super().__init__([driver.block(ROWS_PER_BLOCK) for _ in range(3)])
        self.sleep_s = sleep_s
        self.submitted: list[tuple[int, int]] = []

    def submit(self, block: Block, num_rows: int) -> None:
        time.sleep(self.sleep_s)
        self.submitted.append((block.start, num_rows))
        super().submit(block, num_rows)


class Heard(Watcher):
    """A watcher that keeps what it hears."""

    def __init__(self):
        self.looks: list[tuple[int, int]] = []
        self.faults: list[tuple[int, int]] = []

    def on_look(self, progress: Progress) -> None:
        self.looks.append((progress.num_steps, progress.env_steps))

    def on_fault(self, env_index: int, step: int, message: str) -> None:
        assert "the simulator has stumbled" in message
        self.faults.append((env_index, step))


class Collected:
    """A collector of a single rank, which stores what its sink keeps."""

    def __init__(
        self, make: Callable[..., object] = test_envs.Counting, sleep_s: float = 0.0, length: int = 1, **options: Any
    ):
        self.driver, self.heard = driver_of(make, NUM_ENVS, seed=3, is_random=True, **options), Heard()
        self.driver.make_room(length)
        self.source = RankActions()
        self.sink = Kept(self.driver, sleep_s)
        lengths = FragmentLengths(length, seconds=None)
        self.collector = Collector(
            self.driver, self.source, self.sink, CollectorOptions(3, lengths=lengths), self.heard
        )

    def assert_first(self, num_steps: int) -> None:
        """The first steps are those that Gymnasium gives."""
        whole = expected(test_envs.Counting, NUM_ENVS, MANY_STEPS, 3)
        rows = {name: num_steps + name.startswith("observations") for name in whole}
        assert_same_bytes(
            {name: self.sink.rows[name][: rows[name]] for name in whole},
            {name: column[: rows[name]] for name, column in whole.items()},
        )


def num_env_steps(num_steps: int) -> int:
    """Rows after an episode's end are none."""
    whole = expected(test_envs.Counting, NUM_ENVS, MANY_STEPS, 3)
    ends = whole["terminations"] | whole["truncations"]
    return num_steps * NUM_ENVS - int(ends[: num_steps - 1].sum())


@pytest.mark.parametrize(
    "options",
    [{}, {"num_groups": 2}, {"num_groups": 5}, {"first_ready": True}, {"length": 3}, {"length": 8, "num_groups": 2}],
    ids=str,
)
def test_all_lanes_fill_blocks_with_what_gymnasium_gives(options: dict[str, Any]):
    collected = Collected(**options)
    collector = collected.collector
    collector.start()
    for num_steps in (1, 4, 10, 15):
        collector.advance(num_steps)
        collector.hand_over()
        collected.assert_first(collector.num_steps)
        assert collector.tally.env_steps == num_env_steps(collector.num_steps)
    assert collector.num_steps == MANY_STEPS
    full = [start for start, num_rows in collected.sink.submitted if num_rows == ROWS_PER_BLOCK]
    assert full == list(range(0, 28, 4)) and collected.sink.submitted[-1] == (28, 2)
    assert collected.heard.looks[-1] == (MANY_STEPS, num_env_steps(MANY_STEPS))


def test_no_step_is_taken_that_nobody_wants():
    collected = Collected(num_groups=2)
    collected.collector.start()
    collected.collector.advance(0)
    assert collected.collector.num_steps == 0 and collected.collector.tally.env_steps == 0
    collected.collector.advance(3)
    collected.collector.advance(0)
    collected.collector.hand_over()
    assert collected.sink.submitted == [(0, 3)]
    collected.assert_first(3)


@pytest.mark.parametrize("num_ended", [0, 2])
def test_the_first_rows_of_a_continued_run_that_are_resets_are_not_counted(num_ended: int):
    """It goes on in row 1 of a block; envs whose episode had just ended would be reset in the first step."""
    collected = Collected()
    collected.driver.do(Command.RESET)  # Now the envs are somewhere.
    loaded: list[tuple[int, int]] = []
    collected.collector.resume(5, num_ended, lambda block: loaded.append((block.start, block.num_rows)))
    collected.collector.advance(1)
    assert loaded == [(4, ROWS_PER_BLOCK)] and collected.collector.num_steps == 6
    assert collected.collector.tally.env_steps == NUM_ENVS - num_ended


def test_the_time_that_the_sink_takes_is_that_of_writing():
    collected = Collected(sleep_s=0.02)
    collected.collector.start()
    before = dict(collected.driver.clock.seconds)
    collected.collector.advance(ROWS_PER_BLOCK + 1)
    assert collected.driver.clock.seconds["write"] - before["write"] >= 0.02
    assert collected.sink.submitted == [(0, ROWS_PER_BLOCK)]


def test_a_block_that_fills_slowly_is_handed_over_as_far_as_it_is():
    collected = Collected()
    options = CollectorOptions(3, look_every_s=0.0, commit_every_s=0.0)
    collector = Collector(collected.driver, collected.source, collected.sink, options, collected.heard)
    collector.start()
    collector.advance(3)
    assert (0, 1) in collected.sink.submitted and (0, 2) in collected.sink.submitted
    assert [num_steps for num_steps, _ in collected.heard.looks][:2] == [1, 2]
    collected.assert_first(2)


def failing_later(env_index: int) -> gymnasium.Env:
    return test_envs.Failing(after=6 if env_index == 3 else 1000)


@pytest.mark.parametrize("num_groups", [1, 3])
def test_all_whole_steps_before_a_failure_are_handed_over(num_groups: int):
    collected = Collected(failing_later, num_groups=num_groups)
    collector = collected.collector
    collector.start()
    with pytest.raises(RankError, match=r"env 3, .*the simulator has diverged"):
        collector.advance(MANY_STEPS)
    collector.hand_over()
    assert 6 <= collector.num_steps < 12 and collected.sink.submitted[-1][0] + collected.sink.submitted[-1][1] >= 6
    collected.assert_first(collector.num_steps)


def test_a_restart_is_heard_of_with_its_step_and_leaves_the_observation_before(capfd: pytest.CaptureFixture):
    failures = {0: "reset", 4: "step"}  # Of the first env of an index; the one after it does not fail.

    def make(env_index: int) -> gymnasium.Env:
        env = test_envs.Stumbling()
        env.fails = failures.pop(env_index, "")
        return env

    collected = Collected(make, num_groups=2, on_fault=OnFault(max_restarts=1))
    collected.collector.start()
    assert collected.heard.faults == [(0, -1)]
    collected.collector.advance(2)
    collected.collector.hand_over()
    assert collected.heard.faults == [(0, -1), (4, 0)] and collected.driver.restarts == []
    columns = collected.sink.rows
    assert columns["truncations"][:2].tolist() == [[False] * 4 + [True], [False] * 5]
    assert (columns["observations"][1] == columns["observations"][0]).all(axis=1).tolist() == [False] * 4 + [True]


def test_the_slowest_rank_is_that_of_each_step_or_of_the_whole_run_where_ranks_do_not_wait():
    block = SimpleNamespace(num_ended=np.zeros((2, 2), np.int64), step_s=np.array([[1.0, 3.0], [5.0, 1.0]]))
    for first_ready, slowest_s in ((False, 3.0 + 5.0), (True, 1.0 + 5.0)):
        division = SimpleNamespace(num_ranks=2, num_envs=2, first_ready=first_ready)
        exchanges = SimpleNamespace(
            division=division,
            rank_of_slot=np.arange(2),
            all=[SimpleNamespace(slot_columns=slice(0, 2))],
            num_stepping=2,
        )
        tally = Tally(exchanges)
        tally.add(block, 0, 2)
        assert (tally.step_s.tolist(), tally.slowest_s, tally.mean_s) == ([6.0, 4.0], slowest_s, 5.0)
