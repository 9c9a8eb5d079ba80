"""The test cluster, and collect.sbatch submitted by sbatch to it: a real SLURM of two virtual nodes."""

import json
import shutil
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import CLONE, WHOLE, Job, assert_same_bytes, datasets
from slurm_cluster import NODES
from stopped_runs import committed
from submissions import SCRIPTS, VENVS, Submissions, one_mpi, with_srun, without_plugins

ENV = ("--env-factory", "stopping_envs:Paced", "--num-envs", "6", "--progress", "none", "--out", "run.h5")
RUN = (*ENV, "--num-steps", str(WHOLE))
SHORT = (*ENV, "--num-steps", "20")
PACE_S = "0.002"  # The first start then takes five seconds or more.
PACED_AT_FIRST = f'[ -n "${{SLURM_RESTART_COUNT:-}}" ] || export PACE_S={PACE_S}\n'
PLUGIN = {"Open MPI": "pmix", "MPICH": "pmi2"}


def expected(job: Job, *arguments: str) -> dict[str, np.ndarray]:
    """What the same run gives under a plain mpirun."""
    return datasets(job.collect(2, *arguments[:-4], *arguments[-2:], out="plain.h5"))


def test_the_nodes_of_the_cluster_have_host_names_of_their_own_and_a_file_system_in_common(slurm, tmp_path):
    script = tmp_path / "hosts.sbatch"
    script.write_text("#!/bin/bash\nsrun --ntasks-per-node=1 bash -c 'hostname > $(hostname).host'\n")
    assert slurm.finish(slurm.submit(tmp_path, "--nodes=2", str(script)))["JobState"] == "COMPLETED"
    assert sorted(path.read_text().strip() for path in tmp_path.glob("*.host")) == [*NODES]


def test_shellcheck_finds_nothing():
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck; apt-get install shellcheck")
    files = [*SCRIPTS.glob("*.sh"), *SCRIPTS.glob("*.sbatch")]
    files += [*CLONE.glob("deploy/collect.*"), CLONE / "tools/try_install.sh"]
    files = [path for path in files if path.name != "site.sh"]  # Who uses the scripts here has one.
    done = subprocess.run(["shellcheck", "-x", "-e", "SC1091", *files], cwd=CLONE, capture_output=True, text=True)
    assert files and done.returncode == 0, done.stdout


def test_make_brings_what_these_tests_need():
    """Tests of an MPI that is not there are skipped, which nobody sees."""
    done = subprocess.run(["make", "--dry-run", "slurm-test"], cwd=CLONE, capture_output=True, text=True)
    assert "install MPI=openmpi" in done.stdout and "install MPI=mpich" in done.stdout


@pytest.mark.parametrize("num_nodes", [1, 2])
@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
def test_a_job_gives_the_data_of_a_plain_mpirun(submit, job, num_nodes, launcher):
    site = without_plugins(submit.folder) if launcher == "mpiexec" else ""
    options = (f"--nodes={num_nodes}", "--ntasks=3")
    assert submit.run(*SHORT, options=options, site=site) == ("COMPLETED", "0:0"), submit.log
    assert_same_bytes(datasets(submit.out), expected(job, *SHORT))
    with h5py.File(submit.out) as file:
        assert file.attrs["num_ranks"] == 3 and submit.mpi in file.attrs["mpi_library"]
        assert {*json.loads(file.attrs["hosts"])} == {*NODES[:num_nodes]}
    assert bool(submit.messages) == (launcher == "mpiexec")  # It says which it takes instead.


def test_a_job_on_two_nodes_writes_a_shard_on_each_and_goes_on_as_one_file(submit, job):
    steps = ("--num-steps", "12")
    options = ("--nodes=2", "--ntasks=3")
    assert submit.run(*SHORT, "--storage", "auto", *steps, options=options) == ("COMPLETED", "0:0"), submit.log
    assert submit.run(*SHORT, "--storage", "auto", options=("--nodes=1", "--ntasks=2")) == ("COMPLETED", "0:0"), (
        submit.log
    )
    assert_same_bytes(datasets(submit.out), expected(job, *SHORT))
    assert len([*submit.out.with_name(f"{submit.out.name}.shards").iterdir()]) == 2


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> dict[str, np.ndarray]:
    """What RUN gives that nothing stops, under a plain mpirun."""
    return expected(Job(tmp_path_factory.mktemp("whole")), *RUN)


def assert_continued(submit: Submissions, number: str, whole_run: dict[str, np.ndarray]) -> None:
    """The job has started again, once, and its data are those of an uninterrupted run."""
    found = submit.slurm.finish(number)
    assert (found["JobState"], found["ExitCode"], found["Restarts"]) == ("COMPLETED", "0:0", "1"), submit.log
    assert submit.status["starts"] == 2
    assert_same_bytes(datasets(submit.out), whole_run)


@one_mpi
def test_at_its_time_limit_a_job_stops_and_goes_back_into_the_queue_until_it_is_complete(submit, whole_run):
    """The signal comes at a half minute of SLURM's clock that is 15 to 45 s before the limit of a minute."""
    site = '[ -n "${SLURM_RESTART_COUNT:-}" ] || export PACE_S=0.03\n'
    number = submit.start(*RUN, site=site, options=("--ntasks=2", "--time=1", "--signal=B:USR1@15"))
    assert_continued(submit, number, whole_run)
    stopped, again = submit.messages[:2]
    assert "stopped by SIGUSR1" in stopped and "back into the queue" in again


@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
def test_a_job_that_was_told_to_stop_on_two_nodes_goes_on(submit, whole_run, launcher):
    site = PACED_AT_FIRST + (without_plugins(submit.folder) if launcher == "mpiexec" else "")
    number = submit.start(*RUN, site=site, options=("--ntasks=2", "--nodes=2"))
    submit.slurm.run("scancel", "--batch", "--signal=USR1", number)
    assert_continued(submit, number, whole_run)


@one_mpi
def test_a_job_that_scontrol_puts_back_goes_on(submit, whole_run):
    number = submit.start(*RUN, site=PACED_AT_FIRST)
    submit.slurm.run("scontrol", "requeue", number)
    assert_continued(submit, number, whole_run)


@one_mpi
def test_a_cancelled_job_stays_out_of_the_queue_and_the_same_command_continues_it(submit, whole_run):
    number = submit.start(*RUN, PACE_S=PACE_S)
    submit.slurm.run("scancel", number)
    assert submit.slurm.finish(number)["JobState"] == "CANCELLED"
    submit.slurm.wait_until(lambda: "the same sbatch command continues it" in submit.log, "the job has said so")
    assert submit.status["state"] == "interrupted"
    assert submit.run(*RUN) == ("COMPLETED", "0:0"), submit.log
    assert_same_bytes(datasets(submit.out), whole_run)


@one_mpi
def test_the_last_element_of_an_array_goes_back_into_the_queue_alone(submit):
    """Its number is that of the whole array.  Each element has its own seed, output and log."""
    site = '[ "$SLURM_ARRAY_TASK_ID:${SLURM_RESTART_COUNT:-}" != 2: ] || export PACE_S=0.03\n'  # It outlasts the other.
    options = ("--ntasks=2", "--array=1-2", "--output=%x-%A_%a.out")
    arguments = (*ENV[:-1], "run-%a.h5", "--num-steps", str(WHOLE), "--seed", "%a")
    number = submit(*arguments, site=site, options=options)
    first, last = (submit.folder / f"run-{element}.h5" for element in (1, 2))
    submit.slurm.wait_until(lambda: committed(Path(f"{last}.part")), "steps are committed")
    submit.slurm.wait_until(first.exists, "the other one is complete")
    before = first.stat().st_ino
    submit.slurm.run("scancel", "--batch", "--signal=USR1", f"{number}_2")
    submit.slurm.wait_until(last.exists, "the last one is complete")
    jobs = [submit.slurm.finish(f"{number}_{element}") for element in (1, 2)]
    assert [(job["JobState"], job["Restarts"]) for job in jobs] == [("COMPLETED", "0"), ("COMPLETED", "1")]
    assert first.stat().st_ino == before and [h5py.File(path).attrs["seed"] for path in (first, last)] == [1, 2]
    logs = [(submit.folder / f"collect-{number}_{element}.out").read_text() for element in (1, 2)]
    assert ["back into the queue" in log for log in logs] == [False, True]


@one_mpi
@pytest.mark.parametrize(
    ("site", "options", "words"),
    [
        ("MAX_RESTARTS=0\n", (), "after 0 restarts, and MAX_RESTARTS is 0; the same sbatch command continues it"),
        ("", ("--no-requeue",), "the job was submitted with --no-requeue, so it ends here; the same sbatch command"),
    ],
)
def test_a_job_restarts_no_more_often_than_it_may(submit, site, options, words):
    number = submit.start(*RUN, site=site, options=("--ntasks=2", *options), PACE_S=PACE_S)
    submit.slurm.run("scancel", "--batch", "--signal=USR1", number)
    found = submit.slurm.finish(number)
    assert (found["JobState"], found["ExitCode"]) == ("FAILED", "75:0")
    assert words in submit.messages[-1] and "back into the queue" not in submit.log


@one_mpi
def test_the_limit_that_a_running_job_has_counts_and_not_the_one_that_it_had(submit):
    assert submit.run(*SHORT, site="export SLURM_JOB_END_TIME=1000000000\n") == ("COMPLETED", "0:0"), submit.log


@one_mpi
@pytest.mark.parametrize("when", ["before", "while the ranks start"])
def test_a_job_that_is_to_stop_before_it_has_begun_does_not_restart_for_ever(submit, when):
    while_starting = "case $* in *'mpi_rollout run'*) trap '' USR1; kill -USR1 $PPID; sleep 1; exit 75 ;; esac"
    site = "kill -USR1 $$\n" if when == "before" else with_srun(submit.folder, while_starting)
    assert submit.run(*SHORT, site=site) == ("FAILED", "75:0")
    [line] = submit.messages
    assert "stopped by SIGUSR1 before the ranks had begun; give the job more --time" in line


@one_mpi
def test_a_job_that_took_no_step_does_not_restart_for_ever(submit):
    """Its status is that of a run which was stopped in time, as before: here by a program that only says so."""
    python = submit.folder / "python"
    told = """'{"state": "interrupted", "num_steps": 7, "of_num_steps": 20, "pid": '$$'}'"""
    run = f"echo {told} > run.status.json; exit 75"
    real = f"exec {VENVS[submit.mpi]}/bin/python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *"mpi_rollout run"*) {run} ;; *) {real} "$@" ;; esac\n')
    python.chmod(0o755)
    submit.out.with_name("run.status.json").write_text('{"state": "interrupted", "num_steps": 7}\n')
    assert submit.run(*SHORT, options=("--ntasks=1",), site="PATH=$PWD:$PATH\n") == ("FAILED", "75:0")
    [line] = submit.messages
    assert "this start got nothing done: 7 of 20 steps, as before; give the job more --time" in line


def test_a_rank_that_is_killed_ends_the_job(submit):
    """KillOnBadExit is off in this cluster, as SLURM has it."""
    state, _ = submit.run(*SHORT, "--policy", "stopping_envs:counting", STOP_AT="kill:5")
    assert state == "FAILED" and submit.status["state"] == "running"
    assert "the run was killed (exit code 137); what it had committed is kept" in submit.messages[-1]


@one_mpi
def test_a_failed_run_ends_the_job_with_its_own_exit_code_and_message(submit):
    assert submit.run(*SHORT, "--policy", "stopping_envs:counting", STOP_AT="raise:5") == ("FAILED", "70:0")
    [message] = submit.messages
    assert "RuntimeError: told to fail" in message


@one_mpi
def test_a_job_whose_output_is_complete_has_nothing_to_do(submit):
    submit.run(*SHORT)
    before = submit.out.stat()
    assert submit.run(*SHORT) == ("COMPLETED", "0:0")
    assert (submit.out.stat().st_ino, submit.out.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("launcher", ["srun", "srun --mpi=none", "srun --mpi={wrong}"])
def test_a_launcher_of_another_mpi_is_refused_with_the_right_one(submit, launcher):
    """Each rank would be alone in a world of its own, and do the whole run."""
    [wrong] = {*PLUGIN.values()} - {PLUGIN[submit.mpi]}
    ended = submit.run(*SHORT, site=f"LAUNCHER='{launcher.format(wrong=wrong)}'\n")
    assert ended == ("FAILED", "78:0") and not submit.out.exists() and not submit.status
    [line] = submit.messages
    assert "that find each other" in line and f"LAUNCHER='srun --mpi={PLUGIN[submit.mpi]}' in site.sh" in line


@one_mpi
@pytest.mark.parametrize(
    "what, options, arguments, site",
    [
        ("the number of ranks is missing; sbatch --ntasks=N", (), SHORT, ""),
        ("got 6 envs on 7 ranks; use more envs or fewer ranks", ("--ntasks=7",), SHORT, ""),
        ("must be MODULE:CALLABLE", ("--ntasks=1",), (*SHORT, "--policy", "no"), ""),
        ("No module named 'mpi_rollout'; have site.sh", ("--ntasks=1",), SHORT, "PATH=$PWD:$PATH\n"),
    ],
)
def test_what_cannot_run_fails_at_once_with_one_line_in_the_log(submit, what, options, arguments, site):
    python = submit.folder / "python"  # For the last one, which finds it first: it has no packages.
    python.write_text(f'#!/bin/sh\nexec {VENVS[submit.mpi]}/bin/python -S -E "$@"\n')
    python.chmod(0o755)
    state, code = submit.run(*arguments, options=options, site=site)
    assert state == "FAILED" and code in ("78:0", "64:0")
    [line] = submit.messages
    assert what in line
    assert not submit.out.exists()


def test_what_only_the_ranks_find_ends_the_job_with_its_own_code(submit):
    """srun ends the other ranks by SIGTERM when the first has left, and 143 would be the job's code."""
    arguments = ("--env-factory", "envs:different_space", *SHORT[2:], "--num-envs", "7")
    assert submit.run(*arguments, options=("--nodes=2", "--ntasks=7")) == ("FAILED", "78:0")
    assert "the ranks do not agree on the observation space" in submit.messages[0]


THE_RUN = 'case "$*" in *"mpi_rollout run"*)'


@one_mpi
def test_ranks_that_crash_before_they_have_begun_are_started_once_more(submit):
    site = with_srun(submit.folder, f"{THE_RUN} mkdir once 2> /dev/null && kill -SEGV $$ ;; esac")
    assert submit.run(*SHORT, site=site) == ("COMPLETED", "0:0"), submit.log
    [line] = submit.messages
    assert "the ranks were not started (exit code 139), see above; they are started once more" in line


@one_mpi
@pytest.mark.parametrize(
    ("said", "code", "what"),
    [
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
         "137:0", "a node had no memory left; sbatch --mem-per-cpu=SIZE"),
        ("ModuleNotFoundError: No module named 'numpy'", "78:0", "a node lacks a Python module"),
        ("srun: error: something else", "70:0", "see above, and try the doctor"),
    ],
)  # fmt: skip
def test_a_run_that_did_not_begin_ends_with_what_is_known_of_why(submit, said, code, what):
    """Whatever the launcher's code is: of ranks that it has ended itself it is 143."""
    site = with_srun(submit.folder, f'{THE_RUN} echo "{said}" >&2; exit 143 ;; esac')
    assert submit.run(*SHORT, site=site) == ("FAILED", code)
    assert f"the run did not begin (exit code 143): {what}" in submit.messages[-1]
    assert len(submit.messages) == (2 if code == "70:0" else 1)


@one_mpi
def test_a_node_without_the_python_modules_is_told_of(submit):
    python = submit.folder / "python"
    real = f"{VENVS[submit.mpi]}/bin/python"
    python.write_text(f'#!/bin/sh\n[ "$(hostname)" != node2 ] || exec {real} -S -E "$@"\nexec {real} "$@"\n')
    python.chmod(0o755)
    options = ("--nodes=2", "--ntasks=2")
    assert submit.run(*SHORT, options=options, site="PATH=$PWD:$PATH\n") == ("FAILED", "78:0")
    [line] = submit.messages
    assert "a node lacks a Python module (ModuleNotFoundError: No module named 'mpi4py')" in line


@one_mpi
def test_variables_of_who_submits_are_not_taken_for_settings(submit):
    """Nor is a folder removed because a variable of some name holds it."""
    (submit.folder / "mine").mkdir()
    names = dict.fromkeys(("staged", "STAGE", "IMAGE", "LAUNCHER", "BIND", "MAX_RESTARTS"), f"{submit.folder}/mine")
    number = submit(*SHORT, **names)
    assert submit.slurm.finish(number)["JobState"] == "COMPLETED", submit.log
    assert (submit.folder / "mine").exists() and submit.messages == []


@one_mpi
@pytest.mark.parametrize(
    ("site", "words"),
    [
        ("STAGE=here\n", "must be a folder such as /tmp, got here"),
        ("MAX_RESTARTS=many\n", "must be a number, got many"),
        ("return 1\n", "has failed; see above, and try it on the login node: source "),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line(submit, site, words):
    assert submit.run(*SHORT, site=site) == ("FAILED", "78:0")
    [line] = submit.messages
    assert words in line


@one_mpi
def test_a_site_file_may_have_bash_end_at_errors(submit):
    launcher = "set -euo pipefail\nLAUNCHER=\"srun --mpi=pmi2 --comment='a b' --cpu-bind=none\"\n"
    assert submit.run(*SHORT, site=launcher) == ("COMPLETED", "0:0"), submit.log
    assert submit.messages == []


@one_mpi
def test_a_job_may_have_any_name_and_comment(submit):
    """In what SLURM tells of a job in one line, they look like other fields."""
    options = ("--ntasks=1", "--job-name=a Command=/tmp/x b", "--comment=Command=/tmp/y")
    number = submit(*SHORT, options=options)
    assert submit.slurm.finish(number)["ExitCode"] == "0:0", submit.log
    assert submit.messages == []


@one_mpi
def test_a_job_is_no_component_of_a_heterogeneous_one(submit):
    state, code = submit.run(*SHORT, options=("--ntasks=1", ":", "--ntasks=2"))
    assert (state, code) == ("FAILED", "78:0")
    assert "the first component of a heterogeneous job alone" in submit.messages[0]


@one_mpi
def test_an_output_of_another_configuration_is_refused_and_left_alone(submit):
    submit.run(*SHORT, "--policy", "stopping_envs:counting", STOP_AT="raise:5")
    state, code = submit.run(*SHORT, "--policy", "stopping_envs:counting", "--seed", "5")
    assert (state, code) == ("FAILED", "64:0")
    assert "is of another run: --seed was 0, is 5" in submit.messages[1]
    assert committed(submit.folder / "run.h5.part") == 4


@one_mpi
def test_a_job_without_site_file_fails_with_the_way_to_one(submit):
    number = submit(*SHORT, MPI_ROLLOUT_SITE=f"{submit.folder}/none.sh")
    assert submit.slurm.finish(number)["ExitCode"] == "78:0"
    [line] = submit.messages
    assert f"no settings of this cluster in {submit.folder}/none.sh; cp {SCRIPTS}/site.example.sh" in line


def test_a_partition_that_does_not_exist_is_refused_by_sbatch(slurm, tmp_path):
    done = slurm.sbatch(tmp_path, "--ntasks=1", "--partition=none", str(SCRIPTS / "collect.sbatch"), *SHORT)
    assert done.returncode == 1 and "invalid partition specified: none" in done.stderr


def test_run_by_hand_the_script_says_how_to_submit_it():
    script = SCRIPTS / "collect.sbatch"
    done = subprocess.run(["bash", script], env={}, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (
        78,
        1,
    ) and "sbatch --ntasks=N .../slurm/collect.sbatch" in done.stderr


def copies(submit: Submissions) -> list[str]:
    """What is in the local folders of the nodes."""
    return sorted(path.name for path in submit.slurm.folder.glob("local.node*/*"))


@one_mpi
def test_the_environment_can_be_copied_to_each_node_first(submit):
    """With the package, which is installed as a link.  What older jobs have left is removed, and nothing else."""
    local = submit.slurm.local
    (submit.folder / "where.py").write_text(
        "import mpi_rollout, envs\ndef make():\n    print('it is', mpi_rollout.__file__)\n    return envs.Counting()\n"
    )
    for name in ("mpi_rollout-1", "mpi_rollout-1.tar", "mpi_rollout-mine"):
        (submit.slurm.folder / "local.node2" / name).mkdir()
    arguments = ("--env-factory", "where:make", *SHORT[2:])
    site = f"STAGE={local}\nexport PYTHONPATH={submit.folder}:$PYTHONPATH\n"
    assert submit.run(*arguments, options=("--nodes=2", "--ntasks=2"), site=site) == ("COMPLETED", "0:0"), submit.log
    places = {line.split()[-1] for line in submit.log.splitlines() if line.startswith("it is")}
    assert [place.startswith(f"{local}/mpi_rollout-") for place in places] == [True]
    assert copies(submit) == ["mpi_rollout-mine"]
    (submit.slurm.folder / "local.node2" / "mpi_rollout-mine").rmdir()


@one_mpi
def test_the_copy_may_be_of_an_image_and_is_removed_from_the_nodes_when_a_job_is_cancelled(submit):
    image = submit.folder / "image.tar"
    site, options = f"STAGE={submit.slurm.local}\nIMAGE={image}\n", ("--nodes=2", "--ntasks=2")
    packed = submit.slurm.run("bash", f"{SCRIPTS}/pack.sh", **submit.environment(site))
    assert packed.returncode == 0, packed.stderr
    number = submit.start(*RUN, options=options, site=site, PACE_S=PACE_S)
    assert copies(submit) == [f"mpi_rollout-{number}"] * 2 and submit.messages == []
    submit.slurm.run("scancel", number)
    submit.slurm.wait_until(lambda: copies(submit) == [], "the copies are gone", 300.0)
    assert submit.slurm.finish(number)["JobState"] == "CANCELLED" and submit.status["state"] == "interrupted"


def test_the_doctor_is_started_as_runs_are(submit):
    state, _ = submit.run("doctor", "--json", options=("--nodes=2", "--ntasks=2"))
    found = json.loads(next(line for line in submit.log.splitlines() if line.startswith("{")))
    assert state in ("COMPLETED", "FAILED") and "node1" in submit.log and "node2" in submit.log and found


@one_mpi
def test_a_job_that_loses_a_node_is_started_again_and_goes_on(submit, whole_run):
    """SLURM takes half a minute to find that a node is gone, in which the other rank waits."""
    number = submit.start(*RUN, site=PACED_AT_FIRST, options=("--ntasks=2", "--nodes=2"))
    submit.slurm.kill_node("node2")
    submit.slurm.wait_until(lambda: "down*" in submit.slurm.states(), "SLURM has found the loss")
    submit.slurm.start_node("node2")
    assert_continued(submit, number, whole_run)
