"""`compare` measures all systems side by side, whatever becomes of some of them, and goes on where it was stopped."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from jobs import Job, Result, are_gone, processes_in
from made_up_studies import made_up as made_up_study
from made_up_studies import make_study

from mpi_rollout.bench.compare import processes as processes_module
from mpi_rollout.bench.compare.comparison import ComparisonFile, read_comparison
from mpi_rollout.bench.compare.processes import Processes
from mpi_rollout.bench.compare.systems import systems_of
from mpi_rollout.bench.jobs import JobRunner, Stop

COUNTING = "registered_envs:Counting-v0"
TINY = ("--ranks", "2", "--window-s", "0.02", "--out", "compare.h5")


def compare(job: Job, *arguments: str) -> Result:
    return job(None, "compare", *TINY, *arguments)


def stored(job: Job) -> ComparisonFile:
    return read_comparison(str(job.folder / "compare.h5"))


@pytest.mark.mpi(3)
def test_all_systems_are_measured_and_counted_side_by_side(job: Job):
    """The envs' episodes are known: of the rows of env i one in 4 + i % 5 resets."""
    systems = (
        "mpi-2",
        "mpi-fragments-2",
        "mpi-groups",
        "mpi-ready",
        "mpi-record-2",
        "sync",
        "async",
        "pool",
        "bare-all",
    )
    result = compare(job, "--env", COUNTING, "--num-envs", "1,4", "--repeats", "2", "--systems", ",".join(systems))
    assert result.code == 0, result.err
    turns = stored(job).samples.turns
    assert {turn.system for turn in turns if turn.num_envs == 1} == {"bare", "sync", "async"}
    assert {turn.system for turn in turns if turn.num_envs == 4} == {*systems, "bare"} and len(turns) == 2 * (3 + 10)
    assert all(turn.reset_s > 0 and turn.seconds > 0 and turn.env_steps > 0 for turn in turns)
    rows = dict.fromkeys(("mpi-2", "sync", "async", "pool"), 4) | {"mpi-groups": 2}
    loosely = {"mpi-ready": 2, "mpi-record-2": 4}  # A rank may have more turns than the other; other seeds.
    share = np.mean([length / (length + 1) for length in (3, 4, 5, 6)])
    for turn in turns:
        if turn.system in loosely:
            num_rows = loosely[turn.system] * turn.sweeps
            assert 3 / 4 * num_rows - 4 <= turn.env_steps <= 7 / 8 * num_rows + 4, turn
        if turn.num_envs == 4 and turn.system in rows:
            assert abs(turn.env_steps - share * rows[turn.system] * turn.sweeps) <= 4, turn
    assert "mpi_rollout, 2 ranks" in result.out and result.out.splitlines()[-1] == "file: compare.h5"
    assert [each.name for each in job.folder.iterdir()] == ["compare.h5"] and not processes_in(job.folder)


@pytest.mark.mpi(2)
def test_a_system_that_fails_is_kept_with_its_error_and_tried_again_with_more_envs(job: Job):
    arguments = ("--env", "registered_envs:FailingOnRank1-v0", "--num-envs", "2,4", "--repeats", "2", "--systems")
    result = compare(job, *arguments, "mpi-2,sync")
    assert result.code == 70
    assert result.messages[-1] == "2 of all systems and points failed; compare.h5 has their errors"
    samples = stored(job).samples
    assert [(each.system, each.num_envs) for each in samples.failed] == [("mpi-2", 2), ("mpi-2", 4)]
    assert all("rank 1" in each.error and "the simulator has diverged" in each.error for each in samples.failed)
    assert sum(each.system == "sync" for each in samples.turns) == 4
    assert "failed: mpi_rollout, 2 ranks, registered_envs:FailingOnRank1-v0, 2 envs: RankError: rank 1" in result.out
    assert not processes_in(job.folder)
    before = (job.folder / "compare.h5").read_bytes()
    assert compare(job, *arguments, "mpi-2,sync").code == 70  # Complete: told again, not measured.
    assert (job.folder / "compare.h5").read_bytes() == before


@pytest.mark.mpi(2)
def test_a_system_that_hangs_is_ended_with_all_its_processes(job: Job):
    arguments = ("--env", "registered_envs:HangingOnRank1-v0", "--num-envs", "2", "--repeats", "1", "--timeout-s", "5")
    result = compare(job, *arguments, "--systems", "mpi-2,sync")
    assert result.code == 70
    [failed] = stored(job).samples.failed
    assert failed.system == "mpi-2" and failed.error.startswith("did not answer within 5 s")
    assert {each.system for each in stored(job).samples.turns if not each.error} == {"bare", "sync"}
    assert not processes_in(job.folder)


def interrupted(job: Job) -> tuple[tuple[str, ...], ComparisonFile]:
    """A comparison that was stopped after its first point."""
    arguments = ("--env", COUNTING, "--num-envs", "2,4", "--repeats", "2", "--systems", "sync,pool")
    running = job.start(None, "compare", *TINY, *arguments, "--window-s", "0.15")
    running.wait_until(lambda: (job.folder / "compare.h5").exists())
    os.kill(running.pid, signal.SIGINT)
    result = running.finish()
    assert result.code == 75, result.err
    assert "the comparison was stopped by SIGINT; compare.h5 has what was measured" in result.messages[-1]
    assert not processes_in(job.folder)
    return arguments, stored(job)


def test_a_comparison_that_was_stopped_is_continued_by_the_same_command(job: Job):
    arguments, before = interrupted(job)
    assert 0 < len(before.samples.turns) < 12
    result = compare(job, *arguments, "--window-s", "0.15")
    assert result.code == 0, result.err
    after = stored(job)
    assert after.samples.turns[: len(before.samples.turns)] == before.samples.turns
    taken = {(turn.num_envs, turn.system, turn.repeat) for turn in after.samples.turns}
    assert len(taken) == len(after.samples.turns) == 12 and after.origin == before.origin
    refused = compare(job, *arguments, "--window-s", "0.1")
    assert refused.code == 64 and "--window-s was 0.15, is 0.1" in refused.messages[-1]
    assert stored(job) == after


@pytest.mark.mpi(2)
def test_a_comparison_that_is_killed_leaves_no_process_behind(job: Job):
    arguments = ("--env", COUNTING, "--num-envs", "2,4", "--systems", "mpi-2,async,pool", "--window-s", "0.15")
    running = job.start(None, "compare", *TINY, *arguments)
    running.wait_until(lambda: (job.folder / "compare.h5").exists())
    os.kill(running.pid, signal.SIGKILL)
    assert are_gone(job.folder, within_s=10)


def test_the_file_of_another_study_is_refused_and_left_as_it_is(job: Job):
    path = job.folder / "compare.h5"
    made_up_study(make_study()).write(str(path), "")
    before = path.read_bytes()
    result = compare(job, "--env", COUNTING, "--systems", "sync")
    assert result.code == 65
    assert result.messages == [
        "compare.h5 is no comparison of mpi_rollout, but of format 'mpi_rollout-scaling'; move it away or use another "
        "--out"
    ]
    assert path.read_bytes() == before


def states(processes: Processes) -> set[str]:
    """Of all of a system's processes, as the kernel has them: T is stopped."""
    stats = [Path(f"/proc/{each.pid}/stat").read_text() for each in processes._members]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


@pytest.mark.parametrize(("name", "num_processes"), [("sync", 1), ("async", 4)])
def test_who_has_no_turn_is_stopped(tmp_path: Path, name: str, num_processes: int):
    system = systems_of((1,), 2)[name]
    jobs = JobRunner(tmp_path, "", 60.0, Stop())
    processes = Processes(system, "CartPole-v1", 2, [], "mark", jobs)
    try:
        for num_envs in (3, 3):
            processes.make(num_envs)
            processes.await_answer()
            assert len(processes._members) == num_processes
            assert eventually(lambda: states(processes) == {"T"})
            turn = processes.take_turn(0.01)
            assert turn.sweeps > 0 and turn.env_steps > 0
            assert eventually(lambda: states(processes) == {"T"})
            processes.close()
            processes.await_answer()
    finally:
        processes.leave()
        processes.end()
    assert not any(Path(f"/proc/{each}").exists() for each in processes._members)


def eventually(is_so) -> bool:
    """A signal takes a moment."""
    give_up = time.monotonic() + 10
    while not is_so() and time.monotonic() < give_up:
        time.sleep(0.01)
    return is_so()


def test_processes_that_are_started_in_the_first_turn_are_stopped_with_the_others(tmp_path: Path, monkeypatch):
    """As Ray's workers are; here a system is known with none of its processes when it is made."""
    jobs = JobRunner(tmp_path, "", 60.0, Stop())
    found = processes_module.marked
    processes = Processes(systems_of((1,), 2)["sync"], "CartPole-v1", 2, [], "mark", jobs)
    try:
        monkeypatch.setattr(processes_module, "marked", lambda _mark: [])
        processes.make(3)
        processes.await_answer()
        assert not processes._members
        monkeypatch.setattr(processes_module, "marked", found)
        processes.take_turn(0.01)
        assert len(processes._members) == 1 and eventually(lambda: states(processes) == {"T"})
        processes.take_turn(0.01)
        assert eventually(lambda: states(processes) == {"T"})
    finally:
        processes.kill()
