"""`--num-episodes` ends a run after the first step in which so many episodes have ended: the bytes of `--num-steps`."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import Collected, Job, Start, assert_same_bytes, collected_in_ways, datasets

pytestmark = pytest.mark.any_mpi

MOODY = ("--env-factory", "seeded_faults:Moody", "--max-env-restarts", "1000")
COUNTING = ("--env-factory", "stopping_envs:Counting", "--num-envs", "5", "--seed", "5")
RUNS = {  # What is run, and the number of episodes.
    "random": (("--env", "CartPole-v1", "--num-envs", "7"), 60),
    "one": (("--env", "CartPole-v1", "--num-envs", "7", "--seed", "2"), 1),
    "callable": (("--env-factory", "envs:Counting", "--num-envs", "7", "--policy", "policies:by_look"), 41),
    "network": (
        ("--env", "CartPole-v1", "--num-envs", "7", "--policy", "block_policies:sampling.make_policy"),
        33,
    ),
    "faults in steps": ((*MOODY, "--num-envs", "7", "--seed", "4"), 50),
    "faults in resets": (
        (*MOODY, "--num-envs", "7", "--seed", "4", "--env-kwargs", '{"share": 0.0, "resets": 0.4}'),
        50,
    ),
    "no reset rows": (
        ("--env-factory", "native_envs:DriftOn", "--vectorization-mode", "native", "--num-envs", "7"),
        30,
    ),
    "fails later": (("--env-factory", "envs:Failing", "--env-kwargs", '{"after": 20}', "--num-envs", "7"), 9),
}  # fmt: skip
MANY = ("--num-steps", "5000")
WAYS = (), ("--fragment-length", "1"), ("--num-groups", "2"), ("--batch-size", "1"), ("--root-envs", "0")
NUM_ROWS = 16  # Steps in a block: the last episode ends in one of many.


def ways_of(name: str, num_ranks: int | None) -> list[tuple[str, ...]]:
    """On two ranks the runs take turns with two ways, and on three with three."""
    ways = {None: WAYS[:1], 1: WAYS[1:2], 2: WAYS[2:4], 3: (WAYS[0], *WAYS[3:])}[num_ranks]
    return [(*MANY, *ways[list(RUNS).index(name) % len(ways)])]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    runs = {name: (*run, "--num-episodes", str(number)) for name, (run, number) in RUNS.items()}
    return collected_in_ways(tmp_path_factory, runs, ways_of, NUM_ROWS)


def ends_of(rows: np.ndarray) -> np.ndarray:
    """The steps before which episodes have ended, in order."""
    return np.sort((rows["start"] + rows["length"])[rows["terminated"] | rows["truncated"]])


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of the same runs with so many `--num-steps`, which are known from files that are too long."""
    job = Job(tmp_path_factory.mktemp("bounded"))
    quiet = ("--fragment-length", "1", "--progress", "none")
    names = [name for name in RUNS if name != "fails later"]
    starts = [Start((*RUNS[name][0], *quiet, "--num-steps", "300", "--out", f"{name}.long.h5")) for name in names]
    starts.append(Start((*RUNS["fails later"][0], *quiet, "--num-steps", "20", "--out", "fails later.long.h5")))
    assert [each.code for each in job.series(starts)] == [0] * len(RUNS)
    starts = []
    for name, (run, number) in RUNS.items():
        ends = ends_of(datasets(job.folder / f"{name}.long.h5")["/episodes"])
        starts.append(Start((*run, *quiet, "--num-steps", ends[number - 1], "--out", f"{name}.h5")))
    assert [each.code for each in job.series(starts)] == [0] * len(RUNS)
    return {name: job.folder / f"{name}.h5" for name in RUNS}


@pytest.mark.mpi(1, 2, 3)
def test_the_data_are_those_of_so_many_steps_however_ranks_work_together(collected, bounded, num_ranks):
    for name, (_, number) in RUNS.items():
        expected = datasets(bounded[name])
        ends = ends_of(expected["/episodes"])
        assert len(ends) >= number and (ends < len(expected["rewards"])).sum() < number
        for path in [*collected(num_ranks)[name], *collected(None)[name]]:
            assert_same_bytes(datasets(path), expected)
            with h5py.File(path) as file, h5py.File(bounded[name]) as other:
                assert file["faults"][...]["step"].tolist() == other["faults"][...]["step"].tolist()
                assert sum(file["throughput/intervals"]["env_steps"][-1:]) <= file["throughput"].attrs["env_steps"]
                assert file["throughput"].attrs["env_steps"] == other["throughput"].attrs["env_steps"]


@pytest.mark.mpi(2, 3)
def test_a_rank_that_is_ahead_may_fail_in_steps_that_do_not_count(job: Job, num_ranks):
    plain = "--num-envs", "7", "--num-steps", "50", "--num-episodes", "26"
    assert job(None, "--env-factory", "envs:Counting", *plain, "--out", "plain.h5").code == 0
    kwargs = json.dumps({"rank": 1, "after": 20, "others_sleep_s": 0.01})  # Rank 1 fails when others begin.
    failing = "--env-factory", "envs:on_rank", "--env-kwargs", kwargs, *plain
    groups = *failing, "--num-groups", "2", "--fragment-length", "20"  # The first fails in step 24, the other is at 20.
    ahead = *failing, "--batch-size", "1", "--fragment-length", "8"
    for name, run in {"groups": groups, "ahead": ahead}.items():
        assert job(num_ranks, *run, "--out", f"{name}.h5").code == 0
        assert_same_bytes(datasets(job.folder / f"{name}.h5"), datasets(job.folder / "plain.h5"))
    failed = job(num_ranks, *ahead, "--out", "failed.h5", "--num-episodes", "90")
    assert failed.code == 70 and failed.err.count("Traceback") == 1
    assert re.search(r"diverged; the 2\d steps before are in ", failed.err), failed.err


def test_readers_take_the_file_for_what_it_is(collected, job: Job):
    path = collected(None)["random"][0]
    verified, inspected, exported = job.series(
        [
            Start(("verify", path, "--replay", "20", "--json")),
            Start(("inspect", path, "--json")),
            Start(("export", "d4rl", path, "out.h5")),
        ]
    )
    assert verified.code == inspected.code == exported.code == 0, verified.err + inspected.err + exported.err
    told = json.loads(verified.out)
    assert told["complete"] and told["replayed"] == 20 and told["num_steps"] < 5000
    assert json.loads(inspected.out)["complete"]


RUN = (*COUNTING, "--progress", "none", "--out", "run.h5")


def num_episodes(number: int, num_steps: int = 1000, *more: str) -> Start:
    return Start((*RUN, "--num-steps", num_steps, "--num-episodes", number, *more))


def test_a_complete_file_is_extended_by_more_and_never_cut(job: Job):
    results = job.series(
        [
            num_episodes(20),
            num_episodes(20),  # 1: Complete.
            num_episodes(20, 3000),  # 2: Complete as well, the steps were not the bound.
            num_episodes(10),  # 3: Less.
            num_episodes(20, 9),  # 4: Less, by the steps.
            num_episodes(90, 12, "--dry-run"),  # 5
            num_episodes(60, 40),  # 6: Longer, until the steps end.
            Start((*RUN, "--num-steps", "40")),  # 7: Complete.
            num_episodes(60),  # 8: Longer, by the steps.
            num_episodes(60, 1000, "--seed", "6"),  # 9: Another run.
            Start((*RUN, "--num-steps", "100")),  # 10: Longer, without a number of episodes.
            num_episodes(60, 1000, "--no-trajectories", "--out", "other.h5"),
        ]
    )
    codes = [each.code for each in results]
    assert codes == [0, 0, 0, 64, 64, 64, 0, 0, 0, 64, 0, 64], [each.err for each in results]
    assert "episodes ended, of --num-episodes 20\n" in results[0].out
    for number in (1, 2, 7):
        assert "of the same run and complete; nothing is left to do" in results[number].messages[0]
    for number in (3, 4, 5):
        assert "(more --num-steps or --num-episodes extend a complete file, fewer do not cut it)" in results[number].err
    assert "--num-episodes was 20, is 10; it is complete" in results[3].err
    assert "; all --num-steps are taken, the same command with more goes on" in results[6].out
    assert "--seed was 5, is 6" in results[9].messages[0]
    assert "--num-episodes counts the episodes that are stored, got --no-trajectories" in results[11].messages[0]
    whole = job.collect(None, *COUNTING, "--num-steps", "100", out="whole.h5")
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(whole))


@pytest.mark.mpi(2)
def test_a_run_that_was_stopped_counts_the_episodes_that_its_file_has(job: Job, num_ranks: int):
    """Also where the last of them had ended, and only the file had to be closed."""
    run = (*RUN, "--policy", "stopping_envs:counting", "--num-steps", "1000", "--num-episodes", "33")
    [whole] = job.series([Start((*run, "--out", "whole.h5"))])
    assert whole.code == 0, whole.err
    expected = datasets(job.folder / "whole.h5")
    stopped = [job(num_ranks, *run, "--batch-size", "1", STOP_AT="raise:25"), job(num_ranks, *run, STOP_AT="raise:9")]
    assert [each.code for each in stopped] == [70, 70]
    [fewer] = job.series([Start((*run, "--num-episodes", "32"))])
    assert fewer.code == 64 and "run.h5.part is of another run: --num-episodes was 33, is 32; " in fewer.messages[0]
    assert job(num_ranks, *run).code == 0
    assert_same_bytes(datasets(job.folder / "run.h5"), expected)


def test_all_episodes_may_have_ended_when_a_run_is_continued(job: Job):
    """A run of fewer steps, left unfinished as by a kill before its file was closed."""
    run = (*RUN, "--num-steps", "1000", "--num-episodes", "20")
    [result] = job.series([Start(run)])
    complete = job.folder / "run.h5"
    expected = datasets(complete)
    part = complete.rename(job.folder / "run.h5.part")
    with h5py.File(part, "r+") as file:
        file.attrs.modify("finished", np.bytes_(b" " * 32))
    [again] = job.series([Start(run)])
    assert (result.code, again.code) == (0, 0), again.err
    assert_same_bytes(datasets(complete), expected)
