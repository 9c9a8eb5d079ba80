"""`scaling` does a whole study, whatever its jobs do, and continues one that was stopped."""

import json
import os
import shlex
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
from jobs import Job, Running, are_gone
from studies import ALL, LAUNCHER, STUDY, start, started, stored, study

from mpi_rollout.studies.statistics import median_interval
from mpi_rollout.studies.study import Point


def test_a_study_runs_all_jobs_in_its_stored_order_after_a_warm_up(job: Job):
    result = study(job, "--order-seed", "3")
    assert result.code == 0, result.err
    file = stored(job)
    assert started(job) == ["4", *(str(point.num_ranks) for point in file.study.order())]
    assert [each.point for each in file.samples] == file.study.order()
    assert file.study.jobs.order_seed == 3 and file.study.num_ranks == (1, 2, 4)  # 1 is for the base case.
    assert file.origin["command"].startswith("python -m mpi_rollout scaling strong --env CartPole-v1")
    assert result.out.splitlines()[-1] == "file: study.json"
    assert sorted(each.name for each in job.folder.iterdir()) == ["log", "study.json"]
    # When it is complete it is told again, and no job is started.
    before = (job.folder / "study.json").read_bytes(), started(job)
    second = study(job, "--order-seed", "3")
    assert (second.code, second.out) == (0, result.out)
    # Another study does not touch it.
    other = study(job, "--repeats", "3", "--num-steps", "7")
    assert other.code == 64 and other.messages == [
        "--out study.json: it is of another study: --repeats was 2, is 3; --order-seed was 3, is 0; --num-steps was "
        "1000, is 7; give the same to continue it, or use another --out"
    ]
    assert ((job.folder / "study.json").read_bytes(), started(job)) == before


def test_a_job_that_fails_is_kept_with_its_error_and_the_study_goes_on(job: Job):
    result = study(job, FAIL="4", GARBLE="2")
    assert result.code == 70
    assert result.messages[0].startswith("the warm-up, 4 ranks, failed: exit code 70: rank 1 (node7)")
    assert result.messages[-1].startswith("4 of 6 jobs failed; study.json has their errors, ")
    error = "exit code 70: rank 1 (node7): the env has lost its licence"
    errors = {(each.point.num_ranks, each.error) for each in stored(job).samples}
    assert errors == {(1, ""), (2, "exit code 0, but it printed no summary"), (4, error)}
    assert stored(job).done == set(stored(job).study.order())
    assert f"failed: -n 4, repeat 0: {error}" in result.out


def test_a_job_that_hangs_is_ended_with_all_its_processes_and_kept_as_failed(job: Job):
    result = study(job, "--timeout-s", "6", "--repeats", "1", ZOMBIE="2")
    assert result.code == 70
    errors = {each.error for each in stored(job).samples if each.point.num_ranks == 2}
    assert errors == {"did not end within 6 s: rank 0: still going"}
    assert [each for each in stored(job).samples if each.point.num_ranks == 4 and each.error] == []
    assert are_gone(job.folder)


def test_what_no_job_can_do_is_refused_before_the_first(job: Job):
    result = study(job, REFUSE="4")
    assert (result.code, result.messages) == (64, ["env Acrobat-v1: no such env"])
    assert not (job.folder / "study.json").exists() and started(job) == ["4"]


def test_a_study_that_is_stopped_is_continued_by_the_same_command_with_the_same_mpi_library(job: Job):
    running = start(job, HANG="2")
    running.wait_until(lambda: (job.folder / "log").exists() and "2" in started(job))
    os.kill(running.pid, signal.SIGTERM)
    result = running.finish()
    assert result.code == 75
    num_done = [point.num_ranks for point in stored(job).study.order()].index(2)
    told = f"the study was stopped by SIGTERM; {num_done} of 6 jobs are done; the same command continues"
    assert result.messages[-1] == told and len(stored(job).samples) == num_done > 0
    assert are_gone(job.folder) and not (job.folder / "study.json.job").exists()
    before = (job.folder / "study.json").read_bytes()
    result = study(job, LIBRARY="Another MPI v2")
    assert (result.code, (job.folder / "study.json").read_bytes()) == (64, before)
    assert "the MPI library was Some MPI v1, is Another MPI v2" in result.messages[-1]
    (job.folder / "log").unlink()
    again = study(job)
    assert again.code == 0, again.err
    assert len(started(job)) == 1 + 6 - num_done  # And a warm-up.
    assert Counter(str(each.point.num_ranks) for each in stored(job).samples) == ALL
    assert stored(job).failed == set()


def test_a_study_is_not_done_by_two_processes_and_is_continued_when_it_was_killed(job: Job):
    running = start(job, HANG="2")
    running.wait_until(lambda: (job.folder / "log").exists() and "2" in started(job))
    second = study(job)
    assert second.code == 64 and "another process does this study" in second.messages[0]
    running.kill()
    running.finish()
    again = study(job)
    assert again.code == 0, again.err
    assert [each.point for each in stored(job).samples] == stored(job).study.order()


def test_a_dry_run_prints_the_commands_and_starts_none(job: Job):
    policy = ("--policy", "mine:make_net", "--policy-kwargs", '{"gain": 2}')
    result = study(job, "--actions", "clip", "--env-checks", "dtypes", *policy, "--dry-run")
    assert (result.code, result.err) == (0, "") and list(job.folder.iterdir()) == []
    commands = [shlex.split(line) for line in result.out.splitlines()]
    assert len(commands) == 7
    for command in commands:
        assert command[:3] == [*shlex.split(LAUNCHER), "-n"]
        assert {"--env=CartPole-v1", "--actions=clip", '--policy-kwargs={"gain": 2}'} <= {*command}
    assert Counter(command[3] for command in commands[1:]) == ALL


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--launcher", "no-such-mpirun"], 78, "there is no program no-such-mpirun; module load its MPI"),
        (["--ranks", "1,two"], 64, "--ranks must be numbers of ranks such as 1,2,4,8, got '1,two'"),
        (["--ranks", "0,1"], 64, "--ranks must be numbers of ranks"),
        (["--timeout-s", "0"], 64, "--timeout-s must be more than 0 s and at most 1e+06, got 0.0"),
        (["--json"], 64, "--json is for --dry-run"),
        (["--num-steps", "0"], 64, "--num-steps must be at least 1, got 0"),
        (["--num-envs", "3"], 64, "--num-envs must be at least the largest of --ranks, got 3 envs for 4 ranks"),
        (["--ranks-per-env", "3"], 64, "--ranks must be multiples of --ranks-per-env 3, got 2, 4"),
        (["--envs-per-rank", "3"], 64, "there is no option --envs-per-rank; see "),
        (["--out", "new/study.json"], 74, "mkdir -p new"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_in_one_line(job: Job, arguments, code, words):
    result = study(job, *arguments)
    assert (result.code, len(result.messages), result.num_tracebacks) == (code, 1, 0)
    assert words in result.messages[0]
    assert list(job.folder.iterdir()) == []


def test_without_an_mpirun_the_ways_to_get_one_are_told(job: Job):
    """A Python of its own, with nothing beside it and nothing on PATH."""
    python = job.folder / "python"
    python.symlink_to(sys.executable)
    code = f"import sys; sys.path[:0] = {sys.path!r}; from mpi_rollout.cli import main; sys.exit(main(sys.argv[1:]))"
    running = Running([str(python), "-c", code, "scaling", "strong", *STUDY], job.folder, PATH="/nonexistent")
    result = running.finish()
    assert result.code == 78, result.err
    assert result.messages[0].startswith("there is no mpirun, neither beside this Python nor on PATH; ")


def test_a_study_is_not_started_under_a_launcher(job: Job):
    result = study(job, OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="0")
    assert result.code == 78
    assert "a study starts mpirun by itself, but a launcher started 2 of it" in result.messages[0]


@pytest.mark.any_mpi
@pytest.mark.mpi
def test_a_real_study_measures_what_its_jobs_print(job: Job):
    arguments = ("--env", "CartPole-v1", "--envs-per-rank", "4", "--num-steps", "1", "--ranks", "1,2", "--repeats", "1")
    result = job(None, "scaling", "weak", *arguments, "--limit-s", "0.1", "--no-trajectories", "--out", "study.json")
    assert result.code == 0, result.err
    file = stored(job)
    assert {each.point for each in file.samples} == {Point(ranks, (("fragment_length", "auto"),)) for ranks in (1, 2)}
    for each in file.samples:
        assert (each.num_envs, each.num_steps, each.env_steps) == (
            4 * each.point.num_ranks,
            1,
            4 * each.point.num_ranks,
        )
        parts = each.env_s + each.idle_s + each.exchange_s + each.policy_s + each.write_s
        assert parts == pytest.approx(each.seconds) and each.env_s > 0
        assert each.slot_bytes >= 4 * 16 and each.order_bytes >= 4 * 8 * each.point.num_ranks
        assert 0 < each.cpu_share < 2  # Threads count too.
    bare = [rate for each in file.samples if each.point.num_ranks == 1 for _, rate in each.limit]
    assert f"one rank: {median_interval(bare).median:,.0f} (" in result.out
    assert file.facts["cpu_model"] and file.facts["num_cores"] == len(os.sched_getaffinity(0))
    assert {each.hosts for each in file.samples} == {os.uname().nodename}
    assert not (job.folder / "study.json.job").exists()


def test_the_study_and_its_pictures_load_no_mpi(job: Job):
    """Not even while jobs run: mpi4py would start MPI in the process that starts mpirun."""
    code = (
        "import sys\nfrom mpi_rollout.cli import main\n"
        f"assert main(['scaling', 'strong', *{STUDY!r}, '--launcher', {LAUNCHER!r}]) == 0\n"
        "assert main(['plot', 'study.json']) == 0\n"
        "assert not any(name.startswith('mpi4py') for name in sys.modules)\n"
    )
    result = job.script(None, code)
    assert result.code == 0, result.err
    assert sorted(Path(each).name for each in result.out.splitlines()[-2:]) == ["study.png", "study.svg"]


@pytest.mark.mpi
def test_a_study_that_is_stopped_while_real_ranks_hang_leaves_nothing_behind(job: Job):
    kwargs = json.dumps({"how": "hang", "rank": 1, "after": 0})
    env = ("--env-factory", "failing_envs:failing", "--env-kwargs", kwargs, "--num-envs", "2", "--num-steps", "4")
    running = job.start(None, "scaling", "strong", *env, "--ranks", "1,2", "--out", "study.json")
    running.wait_until((job.folder / "failed_at").exists)
    os.kill(running.pid, signal.SIGTERM)
    result = running.finish()
    assert result.code == 75 and "the study was stopped by SIGTERM" in result.messages[-1], result.err
    assert are_gone(job.folder) and not (job.folder / "study.json.job").exists()
