"""Scaling studies as batch jobs: in one allocation, as a job for each number of ranks, as an array."""

import shlex
from collections import Counter
from itertools import pairwise

import pytest
from slurm_cluster import NODES
from submissions import SCRIPTS, Submissions, one_mpi, with_srun

from mpi_rollout.studies.study import Point
from mpi_rollout.studies.study_file import StudyFile, read_study

RANKS = (1, 2, 3)
# One step a job: what counts is which jobs there are, not what they measure.
ENV = ("--env", "CartPole-v1", "--num-steps", "1", "--limit-s", "0.02", "--repeats", "2", "--ranks", "2,3")
STRONG = ("strong", *ENV, "--num-envs", "6", "--out", "study.json")
WEAK = ("weak", *ENV, "--envs-per-rank", "2", "--out", "study.json")
PICTURES = ("study.png", "study.svg")


def submitted(submit: Submissions, *arguments: str, site: str = "") -> dict[str, str]:
    """The numbers of the jobs that submit_scaling.sh submits, by their names."""
    done = submit.submit_scaling(*arguments, site=site)
    assert done.returncode == 0, done.stderr
    told = (line.removeprefix("submit_scaling.sh: ").split(": ") for line in done.stderr.splitlines())
    return {name: number for number, name in told}


def logs(submit: Submissions) -> str:
    return submit.log + "".join(path.read_text() for path in sorted(submit.folder.glob("*.out")))


def study_of(submit: Submissions) -> StudyFile:
    """The study, when it is known that it has all its jobs and its picture."""
    file = read_study(str(submit.folder / "study.json"))
    assert file.done == {Point(ranks, (("fragment_length", "auto"),), repeat) for ranks in RANKS for repeat in range(2)}
    assert file.failed == set() and {submit.mpi in each.mpi_library for each in file.samples} == {True}
    assert [name for name in PICTURES if (submit.folder / name).exists()] == [*PICTURES]
    assert "there is no picture of study.json" not in logs(submit)
    return file


def test_a_study_is_submitted_as_a_job_for_each_number_of_ranks_and_one_that_puts_them_together(submit):
    jobs = submitted(submit, "--serial", *WEAK)
    assert [*jobs] == ["weak-1", "weak-2", "weak-3", "weak-gather"]
    states = {name: submit.slurm.finish(number) for name, number in jobs.items()}
    assert {(job["JobState"], job["ExitCode"]) for job in states.values()} == {("COMPLETED", "0:0")}, logs(submit)
    assert [states[f"weak-{ranks}"]["NumTasks"] for ranks in RANKS] == ["1", "2", "3"]
    times = [(job["StartTime"], job["EndTime"]) for job in states.values()]
    assert all(end <= start for (_, end), (start, _) in pairwise(times))
    file = study_of(submit)
    assert [each.point.num_ranks for each in file.samples] == [1, 1, 2, 2, 3, 3]
    assert {job.num_envs == 2 * job.point.num_ranks for job in file.samples} == {True}
    assert "weak scaling of CartPole-v1, 2 envs per rank" in logs(submit)


@one_mpi
def test_jobs_of_their_own_nodes_run_at_the_same_time(submit):
    jobs = submitted(submit, *STRONG)
    states = {name: submit.slurm.finish(number) for name, number in jobs.items()}
    assert {job["JobState"] for job in states.values()} == {"COMPLETED"}, logs(submit)
    assert states["strong-1"]["NodeList"] != states["strong-2"]["NodeList"]
    assert states["strong-1"]["OverSubscribe"] == "NO"
    study_of(submit)


@one_mpi
def test_a_study_is_submitted_as_one_array(submit):
    jobs = submitted(submit, "--one-array", "--serial", *STRONG)
    assert [*jobs] == ["strong", "strong-gather"]
    assert submit.slurm.finish(jobs["strong-gather"])["JobState"] == "COMPLETED", logs(submit)
    assert sorted(path.name.rpartition("-")[0] for path in submit.folder.glob("strong-[0-9]-*.out")) == [
        "strong-1", "strong-2", "strong-3",
    ]  # fmt: skip
    file = study_of(submit)
    assert [each.point.num_ranks for each in file.samples] == [1, 1, 2, 2, 3, 3]


def test_a_whole_study_is_done_in_one_allocation(submit):
    """Of two nodes, where the ranks of a small job are on one of them, as in an allocation of their own."""
    options = ("--ntasks=3", "--nodes=2", "--ntasks-per-node=2")
    state = submit.run(*STRONG, script="scaling.sbatch", options=options)
    assert state == ("COMPLETED", "0:0"), submit.log
    hosts = {each.point.num_ranks: each.hosts for each in study_of(submit).samples}
    assert hosts == {1: NODES[0], 2: NODES[0], 3: ", ".join(NODES)}
    assert "strong scaling of CartPole-v1, 6 envs in all" in submit.log


@one_mpi
def test_a_job_that_was_told_to_stop_goes_back_into_the_queue_and_what_puts_them_together_waits_for_it(submit):
    jobs = submitted(submit, "--serial", *STRONG, "--limit-s", "0.2")
    part = submit.folder / "study.json.parts" / "2.json"
    submit.slurm.wait_until(part.exists, "a job of 2 ranks is done")
    submit.slurm.run("scancel", "--batch", "--signal=USR1", jobs["strong-2"])
    found = submit.slurm.finish(jobs["strong-gather"])
    assert found["JobState"] == "COMPLETED", logs(submit)
    assert submit.slurm.job(jobs["strong-2"])["Restarts"] == "1"
    study_of(submit)
    told = logs(submit)
    assert "the study was stopped by SIGUSR1" in told and "jobs left: 1; back into the queue" in told
    assert "study.json.parts/2.json has 1 of 2 jobs already" in told


@one_mpi
def test_what_a_cancelled_job_has_not_done_is_told_and_the_same_command_submits_it(submit):
    jobs = submitted(submit, "--serial", *STRONG, site='[ "${SLURM_JOB_NAME:-}" != strong-2 ] || sleep 100\n')
    submit.slurm.wait_until(lambda: submit.slurm.job(jobs["strong-2"])["JobState"] == "RUNNING", "it runs")
    second = submit.submit_scaling(*STRONG)
    assert second.returncode == 78 and all(
        number in second.stderr for name, number in jobs.items() if name != "strong-1"
    )
    assert "jobs of study.json are in the queue already: " in second.stderr
    submit.slurm.run("scancel", jobs["strong-2"])
    found = submit.slurm.finish(jobs["strong-gather"])
    assert (found["JobState"], found["ExitCode"]) == ("FAILED", "75:0"), logs(submit)
    assert "2 of 6 jobs are missing, of 2 ranks" in logs(submit)
    again = submitted(submit, *STRONG)
    assert [*again] == ["strong-2", "strong-gather"]
    assert submit.slurm.finish(again["strong-gather"])["JobState"] == "COMPLETED", logs(submit)
    study_of(submit)
    done = submit.submit_scaling(*STRONG)
    assert (done.returncode, done.stdout) == (0, "") and "nothing of study.json is left to measure" in done.stderr


@one_mpi
def test_a_study_of_more_ranks_than_the_job_has_is_refused_at_once(submit):
    """srun would wait for room until the time of each job is over."""
    state = submit.run(*STRONG, script="scaling.sbatch", options=("--ntasks=2",))
    assert state == ("FAILED", "78:0")
    assert submit.messages == ["scaling.sbatch: --ranks has 3, and this job 2; sbatch --ntasks=3, or fewer --ranks"]


@one_mpi
def test_what_failed_is_submitted_again_if_one_asks_for_it(submit):
    failing = with_srun(submit.folder, 'case "$*" in *" -n 1 "*) ;; *"mpi_rollout run"*) exit 1 ;; esac')
    jobs = submitted(submit, "--serial", *STRONG, site=failing)
    found = submit.slurm.finish(jobs["strong-gather"])
    assert (found["JobState"], found["ExitCode"]) == ("FAILED", "70:0"), logs(submit)
    assert "4 of 6 jobs failed" in logs(submit)
    told = submit.submit_scaling(*STRONG).stderr
    assert (
        "nothing of study.json is left to measure, but 4 of its jobs failed: the same command with --redo-failed"
        in told
    )
    again = submit.submit_scaling(*STRONG, "--redo-failed", "--dry-run").stdout
    assert "strong-1 " not in again and "strong-2 " in again and "strong-3 " in again


@one_mpi
def test_a_dry_run_prints_what_would_be_submitted(submit):
    done = submit.submit_scaling("--partition=test", *STRONG, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    assert Counter(each[0] for each in commands) == {"sbatch": 4}
    assert [each[2:5] for each in commands[:3]] == [
        [f"--job-name=strong-{ranks}", f"--ntasks={ranks}", "--exclusive"] for ranks in RANKS
    ]
    assert commands[1][-2:] == ["--only", "2"] and commands[1][6] == str(SCRIPTS / "scaling.sbatch")
    assert "--dependency=afterany:strong-1:strong-2:strong-3" in commands[3] and commands[3][-2:] == [
        "gather",
        "study.json",
    ]
    assert all("--partition=test" in each for each in commands)
    assert submit.slurm.run("squeue", "--noheader").stdout == ""


@one_mpi
@pytest.mark.parametrize(
    "arguments, words",
    [
        (STRONG[1:], "strong or weak is missing before CartPole-v1"),
        ((), "strong or weak is missing; submit_scaling.sh strong|weak --ranks"),
        ((*STRONG, "--num-envs", "2"), "--num-envs must be at least the largest of --ranks, got 2 envs for 3 ranks"),
        ((*STRONG, "--num-stops", "2"), "there is no option --num-stops; did you mean --num-steps?"),
        (("--partition=none", *STRONG), "sbatch refuses strong-1, see above; nothing is left in the queue"),
        (("--ntasks-per-node=1", *STRONG), "sbatch refuses strong-3, see above; nothing is left in the queue"),
        (("--dependency=singleton", *STRONG), "--dependency=singleton is this script's own to choose; leave it out"),
        (
            ("--partition", "test", *STRONG),
            "strong or weak is missing before test; options of sbatch stand before it, as --name=value",
        ),
        ((*STRONG[:-1], "no/study.json"), "mkdir -p no"),
    ],
)
def test_a_study_that_cannot_be_is_refused_before_it_is_in_the_queue(submit, arguments, words):
    done = submit.submit_scaling(*arguments)
    assert done.returncode != 0 and words in done.stderr.splitlines()[-1]
    # What was cancelled may still be there for a moment, as COMPLETING.
    assert submit.slurm.run("squeue", "--noheader", "--states=PENDING,RUNNING").stdout == ""
    assert [*submit.folder.glob("study*")] == []
