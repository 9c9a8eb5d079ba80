"""The doctor: it says what is wrong and what to do, once for all ranks, and always comes to an end."""

import errno
import fcntl
import json
import mmap
import os
import sys
import time
from dataclasses import replace

import pytest
from jobs import CLONE, Job, Result, mpiexec, run_job

from mpi_rollout.core.host import physical_cores, processor_quota
from mpi_rollout.doctor.folder import Mount, judge_kind, judge_locks, mount_of
from mpi_rollout.doctor.host import (
    SHARED_MEMORY,
    judge_segments,
    judge_sessions,
    judge_shared_memory,
    paths_in_use,
)
from mpi_rollout.doctor.probe import BAD, FILES, OK, WARN, Finding, Probe, exit_code
from mpi_rollout.doctor.ranks import (
    RankFacts,
    judge_binding,
    judge_clocks,
    judge_core_shares,
    judge_cores,
    judge_exchange,
    judge_thread_level,
    judge_threads,
    judge_versions,
)
from mpi_rollout.doctor.world import OPEN_MPI, how_to_bind, judge_launcher, judge_slurm, launcher_of

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
FIRST = RankFacts(0, "node1", frozenset({0, 1}), 4, None, ONE_THREAD, {"python": "3.11.2"}, "Open MPI v5", 3,
                  frozenset({0, 1}))  # fmt: skip
CLAIMED = [{"OMPI_COMM_WORLD_SIZE": "2"}, {"PMI_SIZE": "2"}, {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}]


def ranks(*changes: dict) -> list[RankFacts]:
    return [replace(FIRST, rank=rank, **each) for rank, each in enumerate(changes)]


def findings(result: Result) -> dict[str, dict]:
    """What --json has printed, in one line, by check."""
    [line] = [line for line in result.out.splitlines() if line.startswith("{")]
    told = json.loads(line)
    assert told["exit_code"] == result.code and result.num_tracebacks == 0, result.err
    return {each["check"]: each for each in told["findings"]}


def test_alone_it_finds_nothing_bad_and_says_how_to_start_it_on_ranks(job: Job):
    result = job(None, "doctor")
    assert result.code == 0 and result.err == "", result.err
    lines = result.out.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("OK    launcher      none"))
    assert "mpiexec" in lines[start + 1] and "python -m mpi_rollout doctor" in lines[start + 1]
    assert lines[-1].endswith(" 0 BAD")
    assert list(job.folder.iterdir()) == []


@pytest.mark.mpi(2, 3)
def test_on_ranks_it_prints_one_table_that_counts_them(job: Job, num_ranks: int):
    result = job(num_ranks, "doctor", "--json", **ONE_THREAD)
    found = findings(result)
    assert result.code == 0 and found["world"]["figures"] == {"num_ranks": num_ranks}
    assert f"{num_ranks} ranks" in found["hosts"]["found"] and "the same on all ranks" in found["versions"]["found"]
    assert found["exchange"]["figures"]["exchange_us"] > 0 and found["bandwidth"]["figures"]["gather_mb_per_s"] > 0
    assert found["threads"]["state"] == OK and "OMP_NUM_THREADS 1" in found["threads"]["found"]


@pytest.mark.mpi
def test_more_ranks_and_more_threads_than_cores_are_warned_of(job: Job):
    num_ranks = len(os.sched_getaffinity(0)) + 1
    if num_ranks > 8:
        pytest.skip("so many ranks would take long")
    found = findings(job(num_ranks, "doctor", "--json", OMP_NUM_THREADS="64"))
    cores, threads = found["cores"], found["threads"]
    assert cores["state"] == WARN and cores["found"].startswith(f"oversubscribed: {num_ranks} ranks on ")
    assert threads["state"] == WARN and "OMP_NUM_THREADS 64" in threads["found"]
    assert threads["advice"].startswith("export OMP_NUM_THREADS=1 ")


@pytest.mark.parametrize("claimed", CLAIMED, ids=lambda each: next(iter(each)))
def test_a_process_that_is_alone_though_a_launcher_claims_more_is_bad(job: Job, claimed: dict[str, str]):
    result = job(None, "doctor", "--json", **claimed)
    world = findings(result)["world"]
    assert result.code == 78 and world["state"] == BAD and "each is alone in its MPI world" in world["found"]
    assert world["advice"].startswith("start with ")
    assert findings(result)["SWMR"]["state"] == OK  # It has gone on.


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
    doctor = [sys.executable, "-m", "mpi_rollout", "doctor", "--timeout-s", "4"]
    result = run_job([mpiexec(), "-n", "1", *doctor, ":", "-n", "1", "sleep", "50"], job.folder, timeout=30)
    assert result.code != 0
    assert "BAD   MPI_Init      has not come to an end within 4 s" in result.out, result.out
    assert "OK    SWMR" in result.out


def test_what_ends_the_examining_process_is_a_finding():
    probe = Probe(lambda report: (report.doing("this", "do that"), os._exit(3)))
    found = list(probe.findings(10.0))
    probe.end()
    assert found == [Finding("this", "the process ended with exit code 3", BAD, "do that")]


def test_what_never_returns_is_a_finding():
    probe = Probe(lambda report: (report.doing("this", "do that", FILES), time.sleep(60)))
    found = list(probe.findings(0.2))
    probe.end()
    assert found == [Finding("this", "has not come to an end within 0.2 s", BAD, "do that", FILES)]


def test_a_check_that_raises_is_a_finding_and_the_next_follows():
    def examine(report):
        report.check("first", "do that", FILES, lambda: 1 / 0)
        report.check("second", "", FILES, lambda: [Finding("second", "fine")])
        report.done()

    probe = Probe(examine)
    found = list(probe.findings(10.0))
    probe.end()
    assert found == [Finding("first", "ZeroDivisionError: division by zero", BAD, "do that", FILES),
                     Finding("second", "fine")]  # fmt: skip


def test_a_missing_folder_is_bad_and_has_the_exit_code_of_files(job: Job):
    result = job(None, "doctor", "--json", "--out", "nowhere")
    folder = findings(result)["folder"]
    assert result.code == 74 and folder["state"] == BAD and folder["advice"] == "mkdir -p nowhere"


@pytest.mark.mpi(2)
def test_on_ranks_too_the_exit_code_of_files_is_that_of_the_job(job: Job, num_ranks: int):
    assert job(num_ranks, "doctor", "--out", "nowhere").code == 74


def test_a_file_is_no_folder(job: Job):
    (job.folder / "run.h5").touch()
    result = job(None, "doctor", "--json", "--out", "run.h5")
    assert result.code == 74 and "run.h5 is no folder" in findings(result)["folder"]["found"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fdinfo"), reason="needs a folder in which nobody can make files")
def test_a_folder_that_cannot_be_written_to_is_bad(job: Job):
    result = job(None, "doctor", "--json", "--out", "/proc/self/fdinfo")
    folder = findings(result)["folder"]
    assert result.code == 74 and folder["state"] == BAD and "cannot write to" in folder["found"]


def test_an_env_is_timed_and_its_observation_measured(job: Job):
    figures = findings(job(None, "doctor", "--json", "--env", "CartPole-v1"))["env"]["figures"]
    assert figures["observation_bytes"] == 16 and figures["env_step_us"] > 0


def test_an_env_that_cannot_be_made_is_bad(job: Job):
    result = job(None, "doctor", "--json", "--env", "NoSuchEnv-v0")
    assert result.code == 78 and "NoSuchEnv" in findings(result)["env"]["found"]


def test_a_wrong_option_is_refused_in_one_line(job: Job):
    result = job(None, "doctor", "--timeout-s", "x")
    assert result.code == 64 and len(result.messages) == 1 and "doctor --help" in result.messages[0]


def test_bad_launch_outweighs_bad_files():
    bad_files, bad_launch = Finding("a", "", BAD, "", FILES), Finding("b", "", BAD)
    assert exit_code([Finding("c", "", WARN)]) == 0
    assert exit_code([bad_files]) == 74
    assert exit_code([bad_files, bad_launch]) == 78


@pytest.mark.parametrize(
    "environ, name",
    [
        ({"PRTE_LAUNCHED": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, "Open MPI's mpirun"),
        ({"HYDI_CONTROL_FD": "7", "PMI_SIZE": "2"}, "MPICH's mpiexec (hydra)"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_MPI_TYPE": "pmi2", "PMI_SIZE": "2"}, "srun --mpi=pmi2"),
    ],
)
def test_the_launcher_is_known_by_its_environment(environ: dict[str, str], name: str):
    assert launcher_of(environ).name == name


def test_without_a_launcher_there_is_none():
    assert launcher_of({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"}) is None


def test_a_launcher_of_the_library_s_own_kind_is_fine():
    assert judge_launcher("Open MPI v5", "", {"OMPI_COMM_WORLD_SIZE": "2"}).state == OK
    assert judge_launcher("Intel(R) MPI Library 2021", "", {"HYDI_CONTROL_FD": "7"}).state == OK


def test_a_slurm_job_whose_srun_may_not_take_cpus_per_task_is_warned_of():
    job = {"SLURM_JOB_ID": "5", "SLURM_CPUS_PER_TASK": "2"}
    assert judge_slurm(job)[0].advice.startswith("export SRUN_CPUS_PER_TASK=2")
    assert judge_slurm(job | {"SRUN_CPUS_PER_TASK": "2"})[0].state == OK
    assert judge_slurm({}) == []


def test_ranks_of_different_versions_are_bad():
    [found] = judge_versions(ranks({}, {"host": "node2", "versions": {"python": "3.12.0"}}))
    assert found.state == BAD
    assert found.found == "python: rank 0 (node1) has 3.11.2, rank 1 (node2) 3.12.0"


def test_ranks_of_different_mpi_libraries_are_bad():
    [found] = judge_versions(ranks({}, {"library": "MPICH 4"}))
    assert found.state == BAD and "rank 1 (node1) MPICH 4" in found.found


def test_ranks_that_share_a_core_are_warned_of_with_the_launchers_option():
    option = how_to_bind({"HYDI_CONTROL_FD": "7"})
    [found] = judge_binding(ranks({"cores": frozenset({0, 1})}, {"cores": frozenset({1, 2})}), option)
    assert found.state == WARN and found.found == "ranks 0 and 1 (node1) share core 1"
    assert "-bind-to core" in found.advice


def test_ranks_with_cores_of_their_own_and_unbound_ranks_are_fine():
    bound = ranks({"cores": frozenset({0})}, {"cores": frozenset({1})})
    assert judge_binding(bound, "")[0].found == "each rank has cores of its own: rank 0 core 0"
    [unbound] = judge_binding(ranks({}, {}), how_to_bind({"PRTE_LAUNCHED": "1"}))
    assert launcher_of({"PRTE_LAUNCHED": "1"}).vendor == OPEN_MPI
    assert unbound.state == OK and unbound.found.startswith("none: ") and "--bind-to core" in unbound.advice


def test_ranks_bound_to_one_core_between_them_are_oversubscribed_on_a_host_of_more():
    [found] = judge_cores(ranks({"cores": frozenset({0})}, {"cores": frozenset({0})}))
    assert found.state == WARN and found.found == "oversubscribed: 2 ranks on 1 usable core of 4 (node1)"
    assert "unbind the ranks" in found.advice


def test_more_ranks_than_a_host_has_cores_are_told_how_many_to_start():
    [crowd] = judge_cores(ranks({"num_host_cores": 2}, {}, {}))
    assert crowd.state == WARN and crowd.advice.startswith("start at most 2 ranks on such a host: ")
    assert crowd.advice.endswith("slows down those that step")


def test_ranks_on_two_hardware_threads_of_one_core_are_warned_of(tmp_path):
    for thread in (0, 1, 64, 65):
        (tmp_path / f"cpu{thread}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{thread}" / "topology" / "thread_siblings_list").write_text(
            f"{thread % 64},{thread % 64 + 64}\n"
        )
    assert physical_cores({0, 1, 64, 65, 66}, tmp_path) == {0, 1, 66}
    threads = ({0}, {64})
    facts = [{"cores": frozenset(each), "physical_cores": physical_cores(each, tmp_path)} for each in threads]
    [found] = judge_cores(ranks(*facts))
    assert found.state == WARN and found.found == "2 ranks on the hardware threads of 1 core (node1)"
    assert "SBATCH_HINT=nomultithread" in found.advice
    assert judge_cores(ranks(facts[0], facts[1] | {"host": "node2"}))[0].state == OK


def test_ranks_that_the_batch_script_was_told_not_to_bind_are_known():
    option = how_to_bind({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "MPI_ROLLOUT_BIND": "none"})
    [found] = judge_binding(ranks({}, {}), option)
    assert found.state == OK and "leave BIND=none out of slurm/site.sh" in found.advice


def test_ranks_whose_cores_other_programs_use_are_warned_of():
    [found] = judge_core_shares(ranks({"core_share": 0.99}, {"core_share": 0.55}, {"core_share": None}))
    assert found.state == WARN and "0.55 of a core on rank 1 (node1)" in found.found and "--wait sleep" in found.advice
    assert judge_core_shares(ranks({"core_share": 0.99}))[0].state == OK
    [alone] = judge_core_shares(ranks({"core_share": 0.55}))
    assert alone.advice == "other programs share its core: end them (top shows them), or sbatch --exclusive"
    assert judge_core_shares(ranks({"core_share": None})) == []


def test_a_containers_quota_counts_as_cores(tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert processor_quota(tmp_path) == 1.5
    assert judge_cores(ranks({"quota": 1.5}, {"quota": 1.5}))[0].figures == {"ranks_on_host": 2, "usable_cores": 1}
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert processor_quota(tmp_path) is None


def test_unset_thread_variables_matter_only_where_a_rank_sees_cores_of_others():
    [alone] = judge_threads(ranks({"threads": {}}))
    [crowd] = judge_threads(ranks({"threads": {}}, {"threads": {}}))
    [bound] = judge_threads([*ranks({"threads": {}, "cores": frozenset({0})}, {"cores": frozenset({1})})])
    assert (alone.state, crowd.state, bound.state) == (OK, WARN, OK)
    assert "OMP_NUM_THREADS unset" in crowd.found


def test_an_mpi_without_threads_is_warned_of():
    assert judge_thread_level(ranks({}, {"thread_level": 0}))[0].state == WARN
    assert judge_thread_level(ranks({}, {"thread_level": 1}))[0].state == OK


def test_clocks_matter_between_hosts():
    there = ranks({}, {"host": "node2"})
    assert judge_clocks(ranks({}, {}), [0.0, 9.0]) == []
    assert (judge_clocks(there, [0.0, 0.1])[0].state, judge_clocks(there, [0.0, 9.0])[0].state) == (OK, WARN)


@pytest.mark.parametrize(
    "change, advice",
    [({"cores": frozenset({0})}, "no more ranks than cores"), ({}, "other programs"), ({"host": "node2"}, "network")],
)
def test_a_slow_exchange_is_warned_of_with_its_likely_cause(change: dict, advice: str):
    first = {"cores": frozenset({0})} if "cores" in change else {}
    slow, _ = judge_exchange(ranks(first, change), [500.0] * 10, [900.0] * 10, 2**20)
    assert slow.state == WARN and advice in slow.advice


def test_the_file_system_is_that_of_the_innermost_mount(tmp_path):
    mounts = f"/dev/a / ext4 rw 0 0\nserver:/b {tmp_path}/a\\040b nfs4 rw 0 0\nc {tmp_path}/a tmpfs rw 0 0\n"
    (tmp_path / "a b").mkdir()
    mount = mount_of(str(tmp_path / "a b"), mounts)
    assert mount == Mount(f"{tmp_path}/a b", "nfs4")
    assert judge_kind(mount, "x").state == WARN and "SWMR" in judge_kind(mount, "x").advice
    assert mount_of("/", mounts) == Mount("/", "ext4") and judge_kind(Mount("/", "ext4"), "x").state == OK


def test_a_file_system_without_locks_is_warned_of_with_the_variable(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    assert judge_locks(str(tmp_path)).state == OK
    monkeypatch.setattr(fcntl, "flock", no_locks)
    found = judge_locks(str(tmp_path))
    assert found.state == WARN and "HDF5_USE_FILE_LOCKING=FALSE" in found.advice
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "FALSE")
    assert judge_locks(str(tmp_path)).state == OK


def test_a_segment_of_a_dead_job_is_named_and_left_alone(tmp_path):
    segment = tmp_path / "mpich_shm_12345678_0"
    segment.write_bytes(bytes(8192))
    assert judge_segments(tmp_path)[0].state == OK  # It may be in the making.
    os.utime(segment, (1, 1))
    [found] = judge_segments(tmp_path)
    assert found.state == WARN and segment.name in found.found and f"rm {tmp_path}/mpich_shm_*" in found.advice
    assert found.figures["leaked_segments"] == 1 and segment.exists()


def test_a_segment_that_a_process_has_mapped_is_in_use():
    path = SHARED_MEMORY / f"mpich_shm_test_{os.getpid()}"
    try:
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
            assert str(path) in paths_in_use(SHARED_MEMORY)
        assert str(path) not in paths_in_use(SHARED_MEMORY)
    finally:
        path.unlink()


def test_the_folder_of_a_dead_launcher_is_named_and_that_of_a_live_one_is_not(tmp_path):
    for name in (os.getpid(), 2**22 + 1, "vm.0"):  # Linux has no process of the second; the last ends in a user id.
        (tmp_path / f"ompi.{name}").mkdir()
        os.utime(tmp_path / f"ompi.{name}", (1, 1))
    [found] = judge_sessions(tmp_path)
    assert found.state == WARN and found.found == f"1 of dead launchers in {tmp_path}: ompi.{2**22 + 1}"


def test_a_host_without_shared_memory_is_warned_of(tmp_path):
    assert judge_shared_memory(tmp_path / "shm")[0].state == WARN
