"""Failing together: whatever fails, wherever, the job ends soon, says it once, and keeps what it had."""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import Job, Result, Running, assert_same_bytes, datasets, is_hydra, processes_in, run_job

HOST = os.uname().nodename
ENVS = ("--num-envs", "6", "--progress", "none")
OUT = ("--out", "run.h5")
LATE = 800  # The fourth block of 256 steps can only be begun when the first one is committed.
WHOLE = 1000  # Steps of the run with which others are compared.
PACED = ("--env-factory", "faults:paced", "--env-kwargs", '{"sleep_s": 0.0002}')
LAUNCHED_S = 15.0  # More than a job takes to start and fail, less than any wait for a time limit.


def kwargs(**values) -> tuple[str, str]:
    return "--env-kwargs", json.dumps(values)


def fails(how: str, rank: int | None = None, after: int = 2, num_steps: int = 20, **more) -> tuple[str, ...]:
    """The arguments of a run that fails."""
    steps = ("--num-steps", str(num_steps))
    return "--env-factory", "faults:failing", *kwargs(how=how, rank=rank, after=after, **more), *steps, *ENVS, *OUT


def envs_of(rank: int, num_ranks: int) -> range:
    return range(rank * 6 // num_ranks, (rank + 1) * 6 // num_ranks)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, np.ndarray]:
    """What a run gives that nothing stops."""
    job = Job(tmp_path_factory.mktemp("whole"))
    return datasets(job.collect(None, "--env-factory", "envs:Image", "--num-steps", str(WHOLE), *ENVS))


def committed(path: Path) -> int:
    """The number of steps that a file says it has; 0 where it cannot be read yet."""
    try:
        with h5py.File(path, libver="latest", swmr=True) as file:
            return int(file["trajectories"].attrs["num_steps"])
    except (OSError, KeyError):
        return 0


def assert_begins(path: Path, whole: dict[str, np.ndarray], num_steps: int | None = None) -> int:
    """The committed steps of a file are those of the whole run, and `num_steps` in number; return the number."""
    found, count = datasets(path), committed(path)
    assert num_steps in (None, count)
    common = min(count, WHOLE)
    for name in found.keys() - {"/episodes"}:
        rows = common + name.startswith("observations")
        assert len(found[name]) >= count + name.startswith("observations")
        assert np.array_equal(found[name][:rows], whole[name][:rows]), name
    episodes, ended = found["/episodes"], found["/episodes"]["terminated"] | found["/episodes"]["truncated"]
    ends = whole["/episodes"]["start"] + whole["/episodes"]["length"]
    expected = whole["/episodes"][
        (ends <= common) & (whole["/episodes"]["terminated"] | whole["/episodes"]["truncated"])
    ]
    assert np.array_equal(episodes[ended & (episodes["start"] + episodes["length"] <= common)], expected)
    return count


def assert_ended_soon(result: Result, folder: Path, within_s: float) -> None:
    """The job was over, with all its processes, so many seconds after its first env had failed."""
    assert time.time() - float((folder / "failed_at").read_text()) < within_s
    assert result.seconds < LAUNCHED_S
    assert processes_in(folder) == []


def outputs(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("run.h5*"))


# --- Python code of an env fails


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("place", ["root", "other"])
@pytest.mark.parametrize(
    ("how", "cause"),
    [("raise", "RuntimeError: the simulator has diverged"), ("exit", "called sys.exit(0)")],
    ids=["raise", "exit"],
)
def test_a_failing_env_ends_the_job_with_its_place_its_cause_and_all_steps_before(
    job, whole, num_ranks, place, how, cause
):
    rank = 0 if place == "root" else num_ranks - 1
    envs = envs_of(rank, num_ranks)
    result = job(num_ranks, *fails(how, rank))
    assert_ended_soon(result, job.folder, 2.0)
    assert result.code == 70
    assert result.messages == [
        f"rank {rank} ({HOST}, envs {envs[0]} to {envs[-1]}), step 3: env {envs[0]}, step 3 of its episode: {cause}; "
        "the 2 steps before are in run.h5.part"
    ]
    assert result.num_tracebacks == 1
    assert outputs(job.folder) == ["run.h5.part"]
    assert_begins(job.folder / "run.h5.part", whole, num_steps=2)


def test_a_single_process_fails_in_the_same_way(job, whole):
    result = job(None, *fails("raise"))
    assert (result.code, len(result.messages), result.num_tracebacks) == (70, 1, 1)
    assert_begins(job.folder / "run.h5.part", whole, num_steps=2)


@pytest.mark.mpi(3)
def test_when_several_ranks_fail_in_one_step_one_tells_for_all(job, num_ranks):
    result = job(num_ranks, *fails("raise"))
    assert result.code == 70 and result.num_tracebacks == 1
    assert len(result.messages) == 1
    assert "rank 0" in result.messages[0] and "(2 more ranks failed too)" in result.messages[0]


@pytest.mark.mpi(2)
def test_steps_of_blocks_that_were_written_before_are_kept_too(job, whole, num_ranks):
    result = job(num_ranks, *fails("raise", rank=1, after=LATE, num_steps=WHOLE))
    num_steps = assert_begins(job.folder / "run.h5.part", whole)
    assert num_steps > LATE
    assert f"the {num_steps:,} steps before are in run.h5.part" in result.messages[0]


@pytest.mark.mpi(2)
def test_the_figures_of_a_failed_run_count_all_steps_that_it_kept(job, num_ranks):
    job(num_ranks, *fails("raise", rank=1))
    with h5py.File(job.folder / "run.h5.part") as file:
        assert file["throughput"].attrs["env_steps"] == file["episodes"]["length"].sum() == 12
        assert file["throughput"].attrs["seconds"] > 0
        assert file.attrs["finished"].strip() == b""


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("place", ["root", "other"])
def test_a_run_that_fails_in_its_first_step_leaves_nothing_behind(job, num_ranks, place):
    result = job(num_ranks, *fails("raise", 0 if place == "root" else num_ranks - 1, after=0))
    assert result.code == 70 and len(result.messages) == 1
    assert "step 1: env" in result.messages[0] and "steps before" not in result.messages[0]
    assert outputs(job.folder) == []


@pytest.mark.mpi(2)
@pytest.mark.parametrize("episode", [0, 2])
def test_a_reset_that_fails_is_told_like_a_step(job, whole, num_ranks, episode):
    arguments = ("--env-factory", "faults:InReset", *kwargs(episode=episode), "--num-steps", "40", *ENVS, *OUT)
    result = job(num_ranks, *arguments)
    assert result.code == 70 and result.num_tracebacks == 1 and len(result.messages) == 1
    assert re.search(r"rank \d \(.*\), step \d+: env \d, ", result.messages[0])
    assert "FileNotFoundError: there is no map of this level" in result.messages[0]
    assert outputs(job.folder) == (["run.h5.part"] if episode else [])
    if episode:
        assert_begins(job.folder / "run.h5.part", whole)


@pytest.mark.mpi(2)
@pytest.mark.parametrize("rank", [0, 1])
def test_an_env_that_cannot_be_made_ends_the_job_with_its_rank_and_cause(job, num_ranks, rank):
    result = job(num_ranks, "--env-factory", "faults:unlicensed", *kwargs(rank=rank), *ENVS, *OUT)
    assert result.code == 70 and result.seconds < LAUNCHED_S
    assert result.messages == [f"rank {rank} ({HOST}): PermissionError: no licence"]
    assert result.num_tracebacks == 1
    assert outputs(job.folder) == []


@pytest.mark.mpi(2)
def test_a_factory_that_leaves_the_process_is_an_error(job, num_ranks):
    result = job(num_ranks, "--env-factory", "faults:leaving", *ENVS, *OUT)
    assert result.code == 70 and "SystemExit: 0" in result.err and outputs(job.folder) == []


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("place", ["root raises", "other raises"])
def test_nobody_waits_for_the_long_step_of_another_rank(job, num_ranks, place):
    """The step that nobody waits for takes 3 s and more."""
    hows = [None] * num_ranks
    hows[0], hows[-1] = ("raise", "sleep") if place == "root raises" else ("sleep", "raise")
    steps = ("--num-steps", "20")
    result = job(num_ranks, "--env-factory", "faults:by_rank", *kwargs(hows=hows), *steps, *ENVS, *OUT)
    assert_ended_soon(result, job.folder, 2.9)
    assert result.code == 70
    assert len(result.messages) == 1 and "RuntimeError: the simulator has diverged" in result.messages[0]
    assert result.num_tracebacks == 1


# --- A process is gone


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("place", ["root", "other"])
@pytest.mark.parametrize("how", ["os_exit", "segfault", "kill"])
def test_when_a_process_is_gone_the_job_ends_and_committed_steps_can_be_read(job, whole, num_ranks, place, how):
    rank = 0 if place == "root" else num_ranks - 1
    result = job(num_ranks, *fails(how, rank, after=LATE, num_steps=WHOLE))
    assert_ended_soon(result, job.folder, 5.0)
    assert result.code not in (0, 64, 65, 70, 74, 75, 78)
    assert outputs(job.folder) == ["run.h5.part"]
    assert assert_begins(job.folder / "run.h5.part", whole) >= 255


@pytest.mark.mpi(3)
def test_when_the_launcher_is_gone_so_are_the_ranks(job, whole, num_ranks):
    run = start_long(job, num_ranks)
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    os.kill(run.pid, signal.SIGKILL)
    run.finish()
    give_up = time.monotonic() + 5.0
    while processes_in(job.folder) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert processes_in(job.folder) == []
    assert assert_begins(job.folder / "run.h5.part", whole) > 0


# --- Outputs are not what the spaces say


@pytest.mark.mpi(2)
@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("shape", "observation should be int64 of shape (4,), got int64 of shape (3,)"),
        ("column", "observation should be int64 of shape (4,), got int64 of shape (4, 1)"),
        ("dtype", "observation should be int64 of shape (4,), got float64 of shape (4,)"),
        ("float_list", "observation should be int64 of shape (4,), got float64 of shape (4,)"),
        ("reward", "rewards should be float64 of shape (), got <U4 of shape ()"),
        ("array_reward", "rewards should be float64 of shape (), got float64 of shape (2,)"),
    ],
)
def test_wrong_outputs_end_the_job_with_the_env_and_what_was_expected(job, num_ranks, how, what):
    result = job(num_ranks, *fails(how, rank=1, image=False))
    assert result.code == 65 and result.num_tracebacks == 0
    assert len(result.messages) == 1
    assert result.messages[0].startswith(f"rank 1 ({HOST}, envs 3 to 5), step 3: env 3: its {what}; correct the env")
    assert committed(job.folder / "run.h5.part") == 2


@pytest.mark.mpi(2)
@pytest.mark.parametrize("how", ["none", "four"])
def test_what_is_not_the_five_outputs_of_a_step_ends_the_job_with_the_env(job, num_ranks, how):
    result = job(num_ranks, *fails(how, rank=1, image=False))
    assert result.code in (65, 70)
    assert len(result.messages) == 1
    assert committed(job.folder / "run.h5.part") == 2
    assert "env 3" in result.messages[0].partition("step 3: ")[2]


@pytest.mark.mpi(2)
def test_a_list_that_has_the_numbers_of_the_space_is_taken(job, num_ranks):
    as_lists = datasets(job.collect(num_ranks, *fails("as_list", image=False)[:-2], out="lists.h5"))
    as_arrays = datasets(job.collect(num_ranks, "--env-factory", "envs:Counting", "--num-steps", "20", *ENVS))
    assert_same_bytes(as_lists, as_arrays)


# --- The policy


@pytest.mark.parametrize(
    ("policy", "code", "what"),
    [
        ("raises", 70, "ArithmeticError: the network has diverged"),
        ("short", 65, "the policy's action must be float32 of shape (6, 2), got float32 of shape (5, 2)"),
        ("whole", 65, "the policy's action must be float32 of shape (6, 2), got complex128 of shape (6, 2)"),
        ("nothing", 65, "the policy's action must be float32 of shape (6, 2), got object of shape ()"),
        ("nan", 65, "the policy's action for env 3, component [1] must be in -1.0 to 1.0, got nan"),
        ("large", 65, "the policy's action for env 2, component [0] must be in -1.0 to 1.0, got 1.5"),
    ],
)
@pytest.mark.parametrize("step", [1, 8])
@pytest.mark.mpi(2)
def test_a_failing_policy_ends_the_job_with_its_step_its_cause_and_all_steps_before(
    job, num_ranks, policy, code, what, step
):
    name = f"faults:{policy}" + ("" if step == 1 else "_later")
    arguments = ("--env-factory", "faults:Continuous", "--num-steps", "20", *ENVS)
    result = job(num_ranks, *arguments, "--policy", name, *OUT)
    assert result.code == code and result.seconds < LAUNCHED_S
    assert len(result.messages) == 1
    assert result.messages[0].startswith(f"rank 0 ({HOST}), step {step}: {what}")
    assert result.num_tracebacks == (policy == "raises")
    if step == 1:
        assert outputs(job.folder) == [] and "steps before" not in result.messages[0]
    else:
        assert result.messages[0].endswith("; the 7 steps before are in run.h5.part")
        assert committed(job.folder / "run.h5.part") == 7
        with h5py.File(job.folder / "run.h5.part") as file:
            assert file["trajectories/actions"].shape == (7, 6, 2) and (file["trajectories/actions"][...] == 0.5).all()


# --- Somebody asks it to stop


def start_long(job: Job, num_ranks: int | None, *more: str) -> Running:
    """Start a run that does not end by itself."""
    return job.start(num_ranks, *PACED, "--num-steps", "100000000", *ENVS, *OUT, *more)


def assert_stopped(result: Result, job: Job, whole: dict[str, np.ndarray], name: str) -> None:
    assert result.code == 75
    assert result.num_tracebacks == 0
    [message] = result.messages
    found = re.fullmatch(
        rf"rank 0 \({HOST}\), step (\d+): stopped by {name}; the ([\d,]+) steps before are in run.h5.part", message
    )
    assert found and found[1] == found[2].replace(",", "")
    assert_begins(job.folder / "run.h5.part", whole, num_steps=int(found[1]))
    h5py.File(job.folder / "run.h5.part").close()  # As it opens without SWMR, it was closed in good order.


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("place", ["root", "other"])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_to_a_rank_ends_all_ranks_at_the_same_step(job, whole, num_ranks, place, name):
    run = start_long(job, num_ranks)
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    os.kill(run.pid_of(0 if place == "root" else num_ranks - 1), getattr(signal, name))
    assert_stopped(run.finish(), job, whole, name)


def test_a_signal_ends_a_run_without_launcher_in_the_same_way(job, whole):
    run = start_long(job, None)
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    os.kill(run.pid, signal.SIGINT)
    assert_stopped(run.finish(), job, whole, "SIGINT")


@pytest.mark.mpi(2)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_to_the_launcher_ends_the_job_and_loses_nothing_committed(job, whole, num_ranks, name):
    """MPICH's mpiexec forwards it and waits; Open MPI's kills the ranks 0.25 s later and tells nothing of them."""
    run = start_long(job, num_ranks)
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    os.kill(run.pid, getattr(signal, name))
    result = run.finish()
    if result.messages:
        assert_stopped(result, job, whole, name)
        return
    assert result.code != 0 and result.num_tracebacks == 0 and not is_hydra()
    assert assert_begins(job.folder / "run.h5.part", whole) >= 255
    assert processes_in(job.folder) == []


def test_who_asks_again_after_a_second_is_not_made_to_wait_for_a_long_step(job):
    """Six envs that sleep 3 s each; what comes within the first second is the same Ctrl-C."""
    run = job.start(None, *fails("sleep"))
    run.wait_until((job.folder / "run.h5.part").exists)
    start = time.monotonic()
    for _ in range(2):
        time.sleep(1.2)
        os.kill(run.pid, signal.SIGINT)
    assert run.finish().code != 0
    assert time.monotonic() - start < 8.0


# --- The output cannot be written


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 24 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def assert_full(result: Result, path: Path, whole: dict[str, np.ndarray]) -> None:
    assert result.code == 74 and result.num_tracebacks == 0, result.err
    [message] = result.messages
    found = re.search(r"\(([\d.]+) MB free in (.*)\); its first (\d+) steps are committed", message)
    assert message.startswith("cannot write ") and found, message
    assert found[2] == str(path.parent)
    num_steps = assert_begins(path, whole)
    assert num_steps > 0 and num_steps == int(found[3])


@pytest.mark.mpi(1, 2)
def test_a_full_disk_ends_the_job_and_leaves_what_was_committed(job, whole, num_ranks, small_disk):
    arguments = ("--env-factory", "envs:Image", "--num-steps", "1000000", *ENVS)
    result = job(num_ranks, *arguments, "--out", str(small_disk / "run.h5"))
    assert_full(result, small_disk / "run.h5.part", whole)
    assert float(re.search(r"\(([\d.]+) MB free", result.messages[0])[1]) < 24.0
    assert os.listdir(small_disk) == ["run.h5.part"]


@pytest.mark.mpi(1, 2)
def test_a_limit_on_the_size_of_files_ends_the_job_in_the_same_way(job, whole, num_ranks):
    arguments = ("--env-factory", "faults:limited", *kwargs(nbytes=20_000_000), "--num-steps", "1000000", *ENVS)
    result = job(num_ranks, *arguments, *OUT)
    assert_full(result, job.folder / "run.h5.part", whole)
    assert processes_in(job.folder) == []


def test_a_disk_that_is_full_at_the_start_is_told_too(job):
    arguments = ("--env-factory", "faults:limited", *kwargs(nbytes=100), "--num-steps", "20", *ENVS)
    result = job(None, *arguments, *OUT)
    assert result.code == 74 and len(result.messages) == 1 and result.num_tracebacks == 0
    assert "cannot write run.h5.part" in result.messages[0]


@pytest.mark.mpi(2)
def test_a_second_run_with_the_same_output_is_refused_and_the_first_is_unharmed(job, whole, num_ranks):
    arguments = (*PACED, "--num-steps", str(WHOLE), *ENVS, *OUT)
    first = job.start(num_ranks, *arguments)
    first.wait_until((job.folder / "run.h5.part").exists)
    second = job(None, *arguments)
    assert second.code == 64 and len(second.messages) == 1 and "run.h5.part exists" in second.messages[0]
    assert first.finish().code == 0
    assert_same_bytes(datasets(job.folder / "run.h5"), whole)


def test_of_runs_that_start_at_the_same_moment_one_gets_the_output(job, whole):
    arguments = (*PACED, "--num-steps", str(WHOLE), *ENVS, *OUT)
    results = [run.finish() for run in [job.start(None, *arguments) for _ in range(3)]]
    assert sorted(result.code == 0 for result in results) == [False, False, True]
    assert {result.code for result in results} <= {0, 64, 74}
    assert all(len(result.messages) == 1 for result in results if result.code)
    assert_same_bytes(datasets(job.folder / "run.h5"), whole)
    assert outputs(job.folder) == ["run.h5"]


def test_an_output_that_appears_during_the_run_is_not_overwritten(job, whole):
    run = job.start(None, *PACED, "--num-steps", str(WHOLE), *ENVS, *OUT)
    run.wait_until((job.folder / "run.h5.part").exists)
    (job.folder / "run.h5").write_text("somebody else's")
    result = run.finish()
    assert result.code == 74 and len(result.messages) == 1 and "run.h5 has appeared" in result.messages[0]
    assert (job.folder / "run.h5").read_text() == "somebody else's"
    assert_same_bytes(datasets(job.folder / "run.h5.part"), whole)


@pytest.mark.mpi(2, 3)
def test_an_env_that_fails_in_the_measuring_of_the_limit_ends_the_job(job, num_ranks):
    """Made a second time, on one rank alone, while the others wait to start together."""
    result = job(num_ranks, "--env-factory", "faults:once_on_rank_1", *ENVS, *OUT, "--measure-limit")
    assert result.code == 70 and len(result.messages) == 1
    assert "rank 1 (" in result.messages[0] and "no second licence" in result.messages[0]


@pytest.mark.mpi(2)
def test_an_env_that_cannot_close_is_told_of_and_the_run_is_complete(job, num_ranks):
    result = job(num_ranks, "--env-factory", "faults:Unclosable", *ENVS, *OUT, "--num-steps", "5")
    assert result.code == 0 and "RuntimeError: the port is stuck" in result.err
    assert (job.folder / "run.h5").exists()


@pytest.mark.mpi(2)
def test_a_policy_that_calls_exit_loses_no_step(job, num_ranks):
    result = job(num_ranks, "--env", "CartPole-v1", *ENVS, *OUT, "--policy", "faults:exiting_late", "--num-steps", "20")
    assert result.code == 70 and len(result.messages) == 1 and "the 3 steps before are in" in result.messages[0]
    assert committed(job.folder / "run.h5.part") == 3


def test_a_reader_that_goes_away_does_not_fail_the_run(job):
    command = " ".join(job.command(None, "--env", "CartPole-v1", *ENVS, *OUT, "--num-steps", "5"))
    result = run_job(["bash", "-c", f"set -o pipefail; {command} | true"], job.folder)
    assert result.code == 0 and "Traceback" not in result.err
    assert (job.folder / "run.h5").exists()
