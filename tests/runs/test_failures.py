"""Failing together: whatever fails, wherever, the job ends soon, says it once, and keeps what it had."""

import json
import re
from pathlib import Path

import h5py
import pytest
from jobs import WHOLE, Result, Start, assert_same_bytes, datasets, run_job
from stopped_runs import (
    ENVS,
    HOST,
    LATE,
    LAUNCHED_S,
    OUT,
    assert_begins,
    assert_ended_soon,
    committed,
    envs_of,
    fails,
    is_code,
    kwargs,
    outputs,
)

# --- Python code of an env fails


@pytest.mark.mpi(3)
@pytest.mark.parametrize(
    ("place", "how", "cause"),
    [("other", "raise", "RuntimeError: the simulator has diverged"), ("root", "exit", "called sys.exit(0)")],
    ids=["other raises", "root exits"],
)
def test_a_failing_env_ends_the_job_with_its_place_its_cause_and_all_steps_before(
    job, whole, num_ranks, place, how, cause
):
    rank = 0 if place == "root" else num_ranks - 1
    envs = envs_of(rank, num_ranks)
    result = job(num_ranks, *fails(how, rank))
    assert_ended_soon(job.folder)
    assert result.code == 70
    assert result.messages == [
        f"rank {rank} ({HOST}, envs {envs[0]} to {envs[-1]}), step 2: env {envs[0]}, step 2 of its episode: {cause}; "
        f"the 2 steps before are in {job.folder / 'run.h5.part'}"
    ]
    assert result.num_tracebacks == 1
    assert outputs(job.folder) == ["run.h5.part"]
    assert_begins(job.folder / "run.h5.part", whole, num_steps=2)


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
def test_when_several_ranks_fail_in_one_step_one_tells_for_all(job, num_ranks):
    result = job(num_ranks, *fails("raise"))
    assert result.code == 70 and result.num_tracebacks == 1
    assert len(result.messages) == 1
    assert "rank 0" in result.messages[0] and "(2 more ranks failed too)" in result.messages[0]


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_steps_of_blocks_that_were_written_before_are_kept_too(job, whole, num_ranks):
    result = job(num_ranks, *fails("raise", rank=1, after=LATE, num_steps=WHOLE))
    num_steps = assert_begins(job.folder / "run.h5.part", whole)
    assert num_steps > LATE
    assert f"the {num_steps:,} steps before are in {job.folder / 'run.h5.part'}" in result.messages[0]


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_the_figures_of_a_failed_run_count_all_steps_that_it_kept(job, num_ranks):
    job(num_ranks, *fails("raise", rank=1))
    with h5py.File(job.folder / "run.h5.part") as file:
        assert file["throughput"].attrs["env_steps"] == 12
        assert len(file["episodes"]) == 0  # The next start may go on with those that are under way.
        assert file["throughput"].attrs["seconds"] > 0
        assert file.attrs["finished"].strip() == b""


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
def test_a_run_that_fails_in_its_first_step_leaves_nothing_behind(job, num_ranks):
    result = job(num_ranks, *fails("raise", num_ranks - 1, after=0))
    assert result.code == 70 and len(result.messages) == 1
    assert "step 0: env" in result.messages[0] and "steps before" not in result.messages[0]
    assert outputs(job.folder) == []


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize("episode", [0, 2])
def test_a_reset_that_fails_is_told_like_a_step(job, whole, num_ranks, episode):
    arguments = ("--env-factory", "failing_envs:InReset", *kwargs(episode=episode), "--num-steps", "40", *ENVS, *OUT)
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
    result = job(num_ranks, "--env-factory", "failing_envs:unlicensed", *kwargs(rank=rank), *ENVS, *OUT)
    assert result.code == 70 and result.seconds < LAUNCHED_S
    told = f"rank {rank} ({HOST}): env {3 * rank} cannot be made: PermissionError: no licence (failing_envs.py, line "
    assert len(result.messages) == 1 and result.messages[0].startswith(told)
    assert result.num_tracebacks == 1
    assert outputs(job.folder) == []


@pytest.mark.full_start
@pytest.mark.mpi(2)
def test_a_factory_that_leaves_the_process_is_an_error(job, num_ranks):
    result = job(num_ranks, "--env-factory", "failing_envs:leaving", *ENVS, *OUT)
    assert result.code == 70 and "SystemExit: 0" in result.err and outputs(job.folder) == []


@pytest.mark.mpi(3)
@pytest.mark.parametrize("place", ["root raises", "other raises"])
def test_nobody_waits_for_the_long_step_of_another_rank(job, num_ranks, place):
    """The step that nobody waits for takes a minute."""
    hows = [None] * num_ranks
    hows[0], hows[-1] = ("raise", "long") if place == "root raises" else ("long", "raise")
    steps = ("--num-steps", "20")
    result = job(num_ranks, "--env-factory", "failing_envs:by_rank", *kwargs(hows=hows), *steps, *ENVS, *OUT)
    assert_ended_soon(job.folder)
    assert is_code(result, 70)
    assert len(result.messages) == 1 and "RuntimeError: the simulator has diverged" in result.messages[0]
    assert result.num_tracebacks == 1


# --- A process is gone


@pytest.mark.mpi(3)
@pytest.mark.parametrize(("how", "place"), [("os_exit", "root"), ("os_exit", "other"), ("segfault", "root")])
def test_when_a_process_is_gone_the_job_ends_and_committed_steps_can_be_read(job, whole, num_ranks, place, how):
    """Kills of ranks and of the launcher, and the stack of a crash: test_rank_faults."""
    rank = 0 if place == "root" else num_ranks - 1
    result = job(num_ranks, *fails(how, rank, after=LATE, num_steps=WHOLE))
    assert_ended_soon(job.folder)
    assert is_code(result, 70) if how == "os_exit" else result.code not in (0, 64, 65, 70, 74, 75, 78)
    assert outputs(job.folder) == ["run.h5.part"]
    assert assert_begins(job.folder / "run.h5.part", whole) >= 255


# --- Outputs are not what the spaces say


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("shape", "observation should be int64 of shape (4,), got int64 of shape (3,)"),
        ("reward", "reward should be float64 of shape (), got 'much'"),
    ],
)
def test_wrong_outputs_end_the_job_with_the_env_and_what_was_expected(job, num_ranks, how, what):
    """All kinds of them are in test_loop."""
    result = job(num_ranks, *fails(how, rank=1, image=False))
    assert result.code == 65 and result.num_tracebacks == 0
    assert len(result.messages) == 1
    assert result.messages[0].startswith(f"rank 1 ({HOST}, envs 3 to 5), step 2: env 3: its {what}; correct the env")
    assert committed(job.folder / "run.h5.part") == 2


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_what_is_not_the_five_outputs_of_a_step_ends_the_job_with_the_env(job, num_ranks):
    result = job(num_ranks, *fails("four", rank=1, image=False))
    assert result.code in (65, 70)
    assert len(result.messages) == 1
    assert committed(job.folder / "run.h5.part") == 2
    assert "env 3" in result.messages[0].partition("step 2: ")[2]


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_list_that_has_the_numbers_of_the_space_is_taken(job, num_ranks):
    as_lists = datasets(job.collect(num_ranks, *fails("as_list", image=False)[:-2], out="lists.h5"))
    as_arrays = datasets(job.collect(num_ranks, "--env-factory", "envs:Counting", "--num-steps", "20", *ENVS))
    assert_same_bytes(as_lists, as_arrays)


# --- The policy


OF_POLICIES = [  # Other failures: test_action_check.
    ("raises", 70, "policy: ArithmeticError: the network has diverged"),
    ("raises_later", 70, "policy: ArithmeticError: the network has diverged"),
    ("short_later", 65, "the policy's action must be float32 of shape (6, 2), got float32 of shape (5, 2)"),
    ("whole_later", 65, "the policy's action must be float32 of shape (6, 2), got complex128 of shape (6, 2)"),
    ("nothing_later", 65, "the policy's action must be float32 of shape (6, 2), got None; return the actions"),
    ("nan_later", 65, "the policy's action for env 3, component [1] must be in -1.0 to 1.0, got nan"),
    ("large_later", 65, "the policy's action for env 2, component [0] must be in -1.0 to 1.0, got 1.5"),
]


def assert_policy_failed(result: Result, folder: Path, policy: str, code: int, what: str) -> None:
    assert result.code == code and len(result.messages) == 1
    assert result.num_tracebacks == policy.startswith("raises")
    [message], step = result.messages, 7 if policy.endswith("_later") else 0
    assert message.startswith(f"rank 0 ({HOST}), step {step}: {what}")
    if step == 0:
        assert outputs(folder) == [] and "steps before" not in message
        return
    assert message.endswith(f"; the 7 steps before are in {folder / 'run.h5.part'}")
    assert committed(folder / "run.h5.part") == 7
    with h5py.File(folder / "run.h5.part") as file:
        assert file["trajectories/actions"].shape == (7, 6, 2) and (file["trajectories/actions"][...] == 0.5).all()


CONTINUOUS = ("--env-factory", "failing_envs:Continuous", "--num-steps", "20", *ENVS, *OUT)


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize("failure", (OF_POLICIES[0], OF_POLICIES[2]), ids=lambda failure: failure[0])
def test_a_failing_policy_ends_the_job_with_its_step_its_cause_and_all_steps_before(job, num_ranks, failure):
    result = job(num_ranks, *CONTINUOUS, "--policy", f"failing_envs:{failure[0]}")
    assert_policy_failed(result, job.folder, *failure)
    assert result.seconds < LAUNCHED_S


def test_one_process_ends_in_the_same_way_whatever_the_policy_does_wrong(job):
    folders = [job.folder / policy for policy, *_ in OF_POLICIES]
    starts = []
    for folder, (policy, *_) in zip(folders, OF_POLICIES, strict=True):
        folder.mkdir()
        starts.append(Start((*CONTINUOUS, "--policy", f"failing_envs:{policy}"), folder))
    for result, folder, failure in zip(job.series(starts), folders, OF_POLICIES, strict=True):
        assert_policy_failed(result, folder, *failure)


# --- What is raised is no `Exception`, or cannot be told


WORDS = {
    "interrupt": "KeyboardInterrupt",
    "base": "Stop: enough",
    "exit": "GeneratorExit",
    "mute": "Mute: (its message cannot be read: str() raises RuntimeError)",
    "surrogate": "ValueError: file \\udcff is missing",
}


@pytest.mark.any_mpi
def test_whatever_an_env_or_a_policy_raises_is_named_and_loses_no_step(job):
    """A KeyboardInterrupt is one of them, if no signal came: continued by a script, such a run would fail for ever."""
    runs = {}
    for what, words in WORDS.items():
        env = ("--env-factory", "unruly_envs:Raising", *kwargs(what=what), "--num-steps", "20", *ENVS, *OUT)
        env += ("--no-seed-check",)  # The first env that is made raises: it is to be that of the run.
        policy = ("--env-factory", "envs:Counting", "--policy", f"unruly_envs:{what}", "--num-steps", "20", *ENVS, *OUT)
        runs[f"{what} env"] = (env, f"envs 0 to 5), step 4: env 0, step 4 of its episode: {words}; the 4 steps")
        runs[f"{what} policy"] = (policy, f"({HOST}), step 7: policy: {words}; the 7 steps")
        runs[f"{what} restarted"] = ((*env, "--max-env-restarts", "10"), f"{words} (unruly_envs.py, line ")
    folders = {name: job.folder / name.replace(" ", "-") for name in runs}
    for folder in folders.values():
        folder.mkdir()
    results = job.series([Start(arguments, folders[name]) for name, (arguments, _) in runs.items()])
    for (name, (_, words)), result in zip(runs.items(), results, strict=True):
        is_restarted = name.endswith("restarted")
        assert result.code == (0 if is_restarted else 70), result.err
        assert len(result.messages) == 1 and words in result.messages[0]
        assert result.num_tracebacks == (0 if is_restarted else 1)
        status = json.loads((folders[name] / "run.status.json").read_text())
        assert (status["state"], status["exit_code"]) == (("complete", 0) if is_restarted else ("failed", 70))


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_keyboard_interrupt_of_an_env_on_another_rank_is_a_failure_like_others(job, num_ranks):
    result = job(num_ranks, "--env-factory", "unruly_envs:Raising", *kwargs(what="interrupt", rank=1), *ENVS, *OUT)
    assert result.code == 70 and len(result.messages) == 1
    assert re.search(r"rank 1 \(.*, step \d: env 3, step \d of its episode: KeyboardInterrupt;", result.messages[0])
    assert committed(job.folder / "run.h5.part") >= 4


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 2)
def test_a_keyboard_interrupt_while_envs_are_made_is_a_failure_too(job, num_ranks):
    result = job(num_ranks, "--env-factory", "unruly_envs:never_made", *ENVS, *OUT)
    assert result.code == 70 and len(result.messages) == 1
    assert "an env or policy raised KeyboardInterrupt while it was made (unruly_envs.py, line " in result.messages[0]
    assert outputs(job.folder) == []


# --- What is beside the steps


@pytest.mark.mpi(3)
def test_an_env_that_fails_in_the_measuring_of_the_limit_ends_the_job(job, num_ranks):
    """Made a second time, on one rank alone, while the others wait to start together."""
    result = job(num_ranks, "--env-factory", "failing_envs:once_on_rank_1", *ENVS, *OUT, "--measure-limit")
    assert result.code == 70 and len(result.messages) == 1
    assert "rank 1 (" in result.messages[0] and "no second licence" in result.messages[0]


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_an_env_that_cannot_close_is_told_of_and_the_run_is_complete(job, num_ranks):
    result = job(num_ranks, "--env-factory", "failing_envs:Unclosable", *ENVS, *OUT, "--num-steps", "5")
    assert result.code == 0 and "RuntimeError: the port is stuck" in result.err
    assert (job.folder / "run.h5").exists()


@pytest.mark.any_mpi
@pytest.mark.full_start
@pytest.mark.mpi(2)
def test_a_policy_that_calls_exit_loses_no_step(job, num_ranks):
    result = job(
        num_ranks, "--env", "CartPole-v1", *ENVS, *OUT, "--policy", "failing_envs:exiting_late", "--num-steps", "20"
    )
    assert result.code == 70 and len(result.messages) == 1 and "the 3 steps before are in" in result.messages[0]
    assert committed(job.folder / "run.h5.part") == 3


def test_a_reader_that_goes_away_does_not_fail_the_run(job):
    command = " ".join(job.command(None, "--env", "CartPole-v1", *ENVS, *OUT, "--num-steps", "5"))
    result = run_job(["bash", "-c", f"set -o pipefail; {command} | true"], job.folder)
    assert result.code == 0 and "Traceback" not in result.err
    assert (job.folder / "run.h5").exists()
