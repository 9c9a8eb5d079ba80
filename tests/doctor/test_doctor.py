"""The doctor: it says what is wrong and what to do, once for all ranks, and always comes to an end."""

import json
import os
import re
import sys

import pytest
from jobs import CLONE, Job, Result, mpiexec, run_job

from mpi_rollout.doctor.findings import BAD, OK, WARN, Finding, Report

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def findings(result: Result) -> dict[str, dict]:
    """What --json has printed, in one line, by check."""
    [line] = [line for line in result.out.splitlines() if line.startswith("{")]
    told = json.loads(line)
    assert told["exit_code"] == result.code and result.num_tracebacks == 0, result.err
    return {each["check"]: each for each in told["findings"]}


def test_alone_it_finds_nothing_bad_and_says_how_to_start_it_on_ranks(job: Job):
    result = job(None, "doctor", "--env", "CartPole-v1")
    assert result.code == 0 and result.err == "", result.err
    assert re.search(
        r"OK    env           CartPole-v1: [\d.]+ us per step with its resets, [\d.]+ us per reset, observations of 16 "
        r"bytes; the slot of a rank's 64 envs has [\d,]+\n",
        result.out,
    )
    lines = result.out.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("OK    launcher      none"))
    assert "mpiexec" in lines[start + 1] and "python -m mpi_rollout doctor" in lines[start + 1]
    assert lines[-1].endswith(" 0 BAD")
    assert list(job.folder.iterdir()) == []
    assert "OK    seeds         the same seed gives the same episode again\n" in result.out
    slow = job(None, "doctor", "--env-factory", "seeded_slowly:SlowlySeeded").out
    assert re.search(r"us per reset with a seed and [\d.,]+ without, .*\n +-> --no-episode-seeds", slow)


@pytest.mark.mpi(3)
def test_on_ranks_it_prints_one_table_that_counts_them_and_has_the_exit_code_of_files(job: Job, num_ranks: int):
    kwargs = ("--env-kwargs", '[{"seed": 1}, {"seed": 2}, {"seed": 3}, {"seed": 4}]', "--num-envs", "4")
    own = "import envs\n\ndef own(seed):\n    return envs.Image()\n"
    (job.folder / "mine.py").write_text(own)
    env = ("--env-factory", "mine.py:own", *kwargs)
    result = job(num_ranks, "doctor", "--json", "--out", "nowhere", *env, **ONE_THREAD)
    found = findings(result)
    timed = found["env"]["figures"]
    assert found["env"]["found"].startswith("mine:own: ") and timed["env_reset_us"] > 0
    assert timed["slot_bytes"] > 4 / num_ranks * timed["observation_bytes"]
    assert result.code == 74 and found["folder"]["state"] == BAD and "mkdir -p nowhere" in found["folder"]["found"]
    assert found["world"]["figures"] == {"num_ranks": num_ranks, "num_hosts": 1} and "SWMR" not in found
    assert found["exchange"]["figures"]["exchange_us"] > 0 and found["bandwidth"]["figures"]["gather_mb_per_s"] > 0
    assert found["threads"]["state"] == OK and "OMP_NUM_THREADS 1" in found["threads"]["found"]


@pytest.mark.mpi
def test_more_ranks_and_more_threads_than_cores_are_warned_of(job: Job):
    num_ranks = len(os.sched_getaffinity(0)) + 1
    if num_ranks > 8:
        pytest.skip("so many ranks would take long")
    found = findings(job(num_ranks, "doctor", "--json", OMP_NUM_THREADS="64"))
    cores, threads = found["cores"], found["threads"]
    assert cores["state"] == WARN and cores["found"].startswith("oversubscribed: ")
    assert threads["state"] == WARN and "OMP_NUM_THREADS 64" in threads["found"]
    assert threads["advice"].startswith("export OMP_NUM_THREADS=1 ")


def test_a_process_that_is_alone_though_a_launcher_claims_more_is_bad(job: Job):
    result = job(None, "doctor", "--json", SLURM_NTASKS="2", SLURM_STEP_ID="0")
    found = findings(result)["MPI_Init"]
    assert result.code == 78 and found["state"] == BAD and "each is alone in its MPI world" in found["found"]


def test_of_processes_that_are_alone_only_the_first_says_so(job: Job):
    result = job(None, "doctor", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_RANK="1")
    assert (result.code, result.out) == (0, "")


@pytest.mark.parametrize("ours, theirs", [(".venv", ".venv-mpich"), (".venv-mpich", ".venv")])
def test_under_the_launcher_of_another_mpi_it_names_the_right_one(job: Job, ours: str, theirs: str):
    """The real thing, both ways: ranks that are alone, and an MPI_Init that ends the process."""
    launcher, python = CLONE / theirs / "bin/mpiexec", CLONE / ours / "bin/python"
    if not (launcher.exists() and python.exists()):
        pytest.skip("needs both virtual environments: make install, make install MPI=mpich")
    result = run_job([str(launcher), "-n", "2", str(python), "-m", "mpi_rollout", "doctor"], job.folder)
    assert result.code == 78, result.err
    assert result.out.count("BAD   launcher") == 1 and str((CLONE / ours).resolve() / "bin/mpiexec") in result.out
    assert "OK    SWMR" in result.out


@pytest.mark.mpi
def test_a_rank_that_never_starts_mpi_does_not_hang_it(job: Job):
    doctor = [sys.executable, "-m", "mpi_rollout", "doctor", "--out", "nowhere", "--timeout-s", "8"]
    result = run_job([mpiexec(), "-n", "1", *doctor, ":", "-n", "1", "sleep", "1000"], job.folder)
    assert result.code != 0
    assert "BAD   MPI_Init      has not come to an end within 8 s" in result.out, result.out


def test_an_env_that_cannot_be_made_outweighs_a_folder_that_is_not_there(job: Job):
    result = job(None, "doctor", "--json", "--out", "nowhere", "--env", "NoSuchEnv-v0")
    found = findings(result)
    assert result.code == 78 and "NoSuchEnv" in found["env"]["found"] and found["folder"]["state"] == BAD


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--timeout-s", "x"), "doctor --help"),
        (("--env", "CartPole-v1", "--env-factory", "envs:Image"), "give one of --env ID and --env-factory"),
        (("--env-kwargs", '{"level": 3}'), "give one of --env ID and --env-factory MODULE:CALLABLE, got none"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(job: Job, options: tuple[str, ...], words: str):
    result = job(None, "doctor", *options)
    assert result.code == 64 and len(result.messages) == 1 and words in result.messages[0]


def test_a_check_that_raises_is_a_finding_and_the_next_follows(capfd):
    report = Report(10.0)
    with report.check("first", "do that"):
        _ = 1 / 0
    report.add(Finding("second", "fine"))
    assert report.findings == [Finding("first", "ZeroDivisionError: division by zero", BAD, "do that"),
                               Finding("second", "fine")]  # fmt: skip
    assert report.end() == 78 and capfd.readouterr().out.endswith("1 OK, 0 WARN, 1 BAD\n")


def test_bad_launch_outweighs_bad_files():
    report = Report(10.0)
    report.add(Finding("threads", "", WARN))
    assert report.end() == 0
    report.add(Finding("disk", "", BAD))
    assert report.end() == 74
    report.add(Finding("launcher", "", BAD))
    assert report.end() == 78
