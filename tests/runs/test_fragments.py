"""Fragments: the data do not depend on their length, on who chooses the actions, nor on what ends a run amid one."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import Collected, Job, assert_same_bytes, collected_in_ways, datasets
from single_rank import collector_of, driver_of
from stopped_runs import committed

from mpi_rollout.ranks.worker import Worker

RUNS = {
    "CartPole": ("--env", "CartPole-v1", "--num-envs", "7", "--num-steps", "150", "--seed", "3"),
    "Dict": ("--env-factory", "envs:Nested", "--num-envs", "7", "--num-steps", "80"),
    "images": ("--env-factory", "envs:LargeImage", "--num-envs", "5", "--num-steps", "30"),
    "masks": ("--env-factory", "masked_envs:Masked", "--num-envs", "7", "--num-steps", "90"),
    "plans": (
        *("--env-factory", "envs:Counting", "--num-envs", "7", "--num-steps", "90"),
        *("--policy", "policies:planning"),
    ),
}
LOCKSTEP = ("--fragment-length", "1")
SOME = [(), ("--fragment-length", "4"), ("--fragment-length", "64")]
OTHERS = [("--fragment-length", "16", "--batch-size", "1"), ("--fragment-length", "5", "--num-groups", "2")]
WAYS = {
    "CartPole": [LOCKSTEP, *SOME, *OTHERS],
    "Dict": [*SOME[1:], *OTHERS],
    "images": SOME[::2],
    "masks": [*SOME[1:], *OTHERS[:1]],
    "plans": [("--fragment-length", "4"), *OTHERS],
}


def ways_of(name: str, num_ranks: int | None) -> list[tuple[str, ...]]:
    """In which ways a run is done on some ranks: on two and on three in every other one."""
    return [LOCKSTEP] if num_ranks is None else WAYS[name][num_ranks % 2 :: 2]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    return collected_in_ways(tmp_path_factory, RUNS, ways_of)


@pytest.mark.mpi(2, 3)  # On one rank and on five too fragments have the usual length: test_rank_counts.
@pytest.mark.parametrize("name", RUNS)
def test_no_length_changes_the_data(collected: Collected, num_ranks: int, name: str):
    first = datasets(collected(None)[name][0])
    for path in collected(num_ranks)[name]:
        assert_same_bytes(datasets(path), first)


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
def test_a_run_whose_data_nobody_reads_takes_the_same_env_steps(job: Job, num_ranks: int):
    ways = [(), *((*way, "--no-trajectories") for way in (LOCKSTEP, *SOME, OTHERS[0]))]
    commands = [
        (*RUNS[name], *way, "--wait", "sleep", "--progress", "none", "--out", f"{name}-{number}.h5")
        for name in ("CartPole", "masks")
        for number, way in enumerate(ways)
    ]
    assert job.train(num_ranks, "runs", commands) == [0] * len(commands)
    for name in ("CartPole", "masks"):
        assert len({env_steps_of(job.folder / f"{name}-{number}.h5") for number in range(len(ways))}) == 1


def env_steps_of(path: Path) -> int:
    with h5py.File(path) as file:
        return int(file["throughput"].attrs["env_steps"])


@pytest.mark.mpi(3)
def test_a_signal_cuts_a_fragment_short(job: Job, num_ranks: int):
    arguments = ("--env-factory", "failing_envs:paced", "--env-kwargs", '{"sleep_s": 0.05}', "--num-envs", "6")
    arguments += ("--num-steps", "400", "--fragment-length", "400", "--progress", "none", "--out", "run.h5")
    running = job.start(num_ranks, *arguments)
    running.wait_until(lambda: (job.folder / "run.h5.part").exists())
    for rank in range(num_ranks):
        running.interrupt(rank)
    assert running.finish().code == 75
    assert 0 < committed(job.folder / "run.h5.part") < 400


class Calls:
    """Counts the calls of Python functions on the root, without those of its own envs."""

    def __init__(self) -> None:
        self.number = self._depth = 0

    def __call__(self, frame: object, event: str, _argument: object) -> None:
        is_obeying = frame.f_code is Worker.obey.__code__
        if event == "call":
            self._depth += bool(self._depth or is_obeying)
            self.number += self._depth == 0
        elif event == "return" and self._depth:
            self._depth -= 1


def calls_of(length: int, num_steps: int) -> int:
    """How many calls the root makes for a fragment of so many steps, once it has made one."""
    driver = driver_of(num_envs=8, seed=5, is_random=True)
    if length > 1:
        driver.make_room(length)
    collector = collector_of(driver, 256, length)
    collector.start()
    collector.advance(64)
    assert (collector.lengths.longest > 1) == (length > 1)
    for lane in 5 * driver.lanes:
        collector.lengths.note(lane, 1)
    calls = Calls()
    sys.setprofile(calls)
    try:
        collector.advance(num_steps)
    finally:
        sys.setprofile(None)
    assert collector.num_steps == 64 + num_steps
    return calls.number


def test_the_root_makes_as_many_calls_for_a_fragment_as_for_a_step():
    assert calls_of(64, 64) <= calls_of(64, 2) <= 1.5 * calls_of(1, 1) < calls_of(1, 64) / 20


def test_all_of_a_fragment_is_counted():
    """Env steps are counted for all rows at once."""
    driver = driver_of(num_envs=4, seed=1, is_random=True)
    driver.make_room(16)
    collector = collector_of(driver, 40, length=16)
    collector.start()
    collector.advance(100)
    step = collector_of(driver_of(num_envs=4, seed=1, is_random=True), 40)
    step.start()
    step.advance(100)
    assert collector.tally.env_steps == step.tally.env_steps < 400
    assert np.isclose(collector.tally.slowest_s, collector.tally.step_s[0])
