"""The command that a trainer starts, on this machine or as a job of SLURM."""

import sys
from pathlib import Path

import pytest
from jobs import job_environment

import mpi_rollout
from mpi_rollout.errors import LaunchError
from mpi_rollout.launched.job import Job, batch_command, launcher_of
from mpi_rollout.process.launcher import find_launcher


@pytest.mark.parametrize(
    ("variables", "given", "is_batch", "words"),
    [
        ({}, None, False, [find_launcher()]),
        ({}, "mpirun --map-by 'a b'", False, ["mpirun", "--map-by", "a b"]),
        ({}, ["mpirun", "-x", "a b"], False, ["mpirun", "-x", "a b"]),
        ({}, None, True, ["srun", "--kill-on-bad-exit=1"]),
        ({"SLURM_JOB_ID": "7"}, None, False, ["srun", "--kill-on-bad-exit=1"]),
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, None, False, ["srun", "--overlap"]),
        ({"SLURM_JOB_ID": "7"}, "srun --mpi=pmix", False, ["srun", "--mpi=pmix"]),
    ],
)
def test_the_launcher_is_that_of_the_place(variables, given, is_batch, words, monkeypatch, tmp_path: Path):
    for name in ("srun", "sbatch", "mpirun"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = launcher_of(given, is_batch)
    assert [word for word in found if word in words] == words


def test_each_of_several_ranks_that_srun_started_but_the_first_is_refused(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"a launcher started 4 of this program \(SLURM_NTASKS=4\); start it without"):
        launcher_of(None, is_batch=False)


def test_options_of_sbatch_may_be_a_dict_or_words():
    own = ["sbatch", "--wait", "--job-name=.mpi_rollout-x", "--ntasks=4", "--output=/a/.mpi_rollout-x/log"]
    end = ["--wrap=exec srun -n 4 'a b'"]
    command = ["srun", "-n", "4", "a b"]
    options = {"time": "01:00:00", "p": "cpu", "exclusive": True, "cpus_per_task": 2, "account": None, "hold": False}
    words = ["--time=01:00:00", "-p", "cpu", "--exclusive", "--cpus-per-task=2"]
    assert batch_command(options, "/a/.mpi_rollout-x", 4, command) == [*own, *words, *end]
    assert batch_command(["--qos=high"], "/a/.mpi_rollout-x", 4, command) == [*own, "--qos=high", *end]


def test_a_job_that_is_ended_before_its_keeper_runs_leaves_nothing(tmp_path: Path):
    folder = tmp_path / "job"
    folder.mkdir()
    Job(["sleep", "1000"], str(folder)).wait(0.0)
    assert not folder.exists()


SBATCH = """#!{python}
import os, subprocess, sys
open("asked", "w").write(" ".join(sys.argv[1:-1]))
print("Submitted batch job 7", flush=True)
log = next(word.partition("=")[2] for word in sys.argv if word.startswith("--output="))
sys.exit(subprocess.run(sys.argv[-1].removeprefix("--wrap="), shell=True, stderr=open(log, "a")).returncode)
"""


def test_a_job_of_slurm_is_waited_for_and_its_ranks_are_heard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture
):
    """Without a SLURM here: an `sbatch` that runs the script at once.  `tests/slurm/cluster` has one."""
    for name, value in job_environment(PATH=f"{tmp_path}:/usr/bin:/bin").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    for name, text in {
        "sbatch": SBATCH.format(python=sys.executable),
        "scancel": '#!/bin/sh\necho "$@" > cancelled',
    }.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    options = {"env": "CartPole-v1", "num_envs": 4, "num_ranks": 2, "launcher": find_launcher()}
    with mpi_rollout.launch(**options, sbatch={"partition": "cpu"}) as envs:
        assert envs.reset(seed=1)[0].shape == (4, 4)
    assert "--ntasks=2" in (tmp_path / "asked").read_text() and "--partition=cpu" in (tmp_path / "asked").read_text()
    assert (tmp_path / "cancelled").read_text().startswith("--quiet --name=.mpi_rollout-")
    said = capfd.readouterr().err
    assert said == "mpi_rollout: submits a job of 2 ranks, and waits for it\nSubmitted batch job 7\n"
    options["launcher"] = "sh -c 'echo mpi_rollout: no plugin >&2; exit 3'"
    with pytest.raises(LaunchError, match=r"^the ranks did not start, exit code 3: no plugin$"):
        mpi_rollout.launch(**options, sbatch={})
