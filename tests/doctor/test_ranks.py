"""What the doctor makes of the ranks' facts: each fault of a launch is named, with a way out."""

import pytest

from mpi_rollout.doctor.findings import BAD, OK, WARN, Finding
from mpi_rollout.doctor.launch import OPEN_MPI, how_to_bind, judge_launcher, launcher_of
from mpi_rollout.doctor.ranks import (
    RankFacts,
    judge_binding,
    judge_env_ranks,
    judge_exchange,
    judge_ranks,
)
from mpi_rollout.process.host import physical_cores, processor_quota

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
FIRST = RankFacts(0, "node1", frozenset({0, 1}), frozenset({0, 1}), None, ONE_THREAD)


def ranks(*changes: dict) -> list[RankFacts]:
    return [FIRST._replace(rank=rank, **change) for rank, change in enumerate(changes)]


@pytest.mark.parametrize(
    "environ, name",
    [
        ({"PRTE_LAUNCHED": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"}, "Open MPI's mpirun"),
        ({"HYDI_CONTROL_FD": "7", "PMI_SIZE": "2"}, "MPICH's mpiexec (hydra)"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_MPI_TYPE": "pmi2", "PMI_SIZE": "2"}, "srun --mpi=pmi2"),
        ({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2"}, None),
    ],
)
def test_the_launcher_is_known_by_its_environment(environ: dict[str, str], name: str | None):
    launcher = launcher_of(environ)
    assert launcher is None if name is None else launcher.name == name


def test_a_launcher_must_be_of_the_library_s_own_kind():
    assert judge_launcher("Open MPI v5", "", {"OMPI_COMM_WORLD_SIZE": "2"}).state == OK
    assert judge_launcher("Intel(R) MPI Library 2021", "", {"HYDI_CONTROL_FD": "7"}).state == OK
    assert judge_launcher("Open MPI v5", "", {"HYDI_CONTROL_FD": "7"}).state == BAD


def test_ranks_that_share_a_core_are_warned_of_with_the_launchers_option():
    option = how_to_bind({"HYDI_CONTROL_FD": "7"})
    found = judge_binding(ranks({"cores": frozenset({0, 1})}, {"cores": frozenset({1, 2})}), option)
    assert found.state == WARN and found.found == "ranks 0, 1 (node1) share core 1"
    assert "-bind-to core" in found.advice


def test_ranks_with_cores_of_their_own_and_unbound_ranks_are_fine():
    bound = ranks({"cores": frozenset({0})}, {"cores": frozenset({1})})
    assert judge_binding(bound, "").found == "each rank has cores of its own: rank 0 core 0"
    unbound = judge_binding(ranks({}, {}), how_to_bind({"PRTE_LAUNCHED": "1"}))
    assert launcher_of({"PRTE_LAUNCHED": "1"}).vendor == OPEN_MPI
    assert unbound.state == OK and unbound.found.startswith("none: ") and "--bind-to core" in unbound.advice
    option = how_to_bind({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "MPI_ROLLOUT_BIND": "none"})
    assert "leave BIND=none out of slurm/site.sh" in judge_binding(ranks({}, {}), option).advice


def found_of(check: str, *changes: dict) -> Finding:
    return next(finding for finding in judge_ranks(ranks(*changes), "") if finding.check == check)


def test_more_ranks_than_cores_for_them_are_warned_of():
    found = found_of("cores", {}, {}, {}, {"host": "node2"})
    assert found.state == WARN and found.found.endswith("on the fullest host: 1.5")
    assert found.advice.startswith("start fewer ranks there, ") and found_of("cores", {}, {}).state == OK


def test_hardware_threads_of_one_core_are_one(tmp_path):
    for thread in (0, 1, 64, 65):
        (tmp_path / f"cpu{thread}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{thread}" / "topology" / "thread_siblings_list").write_text(
            f"{thread % 64},{thread % 64 + 64}\n"
        )
    assert physical_cores({0, 1, 64, 65, 66}, tmp_path) == {0, 1, 66}
    facts = [{"cores": frozenset(each), "physical_cores": physical_cores(each, tmp_path)} for each in ({0}, {64})]
    found = found_of("cores", *facts)
    assert found.state == WARN and found.found.endswith(": 2") and "nomultithread" in found.advice


def test_a_containers_quota_counts_as_cores(tmp_path):
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert processor_quota(tmp_path) == 1.5
    assert found_of("cores", {"quota": 1.5}, {"quota": 1.5}).state == WARN
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert processor_quota(tmp_path) is None


def test_unset_thread_variables_matter_only_where_a_rank_sees_cores_of_others():
    bound = [{"threads": {}, "cores": frozenset({core}), "physical_cores": frozenset({core})} for core in (0, 1)]
    alone, crowd, own = (found_of("threads", *each) for each in ([{"threads": {}}], [{"threads": {}}] * 2, bound))
    assert (alone.state, crowd.state, own.state) == (OK, WARN, OK) and "OMP_NUM_THREADS unset" in crowd.found


def test_a_slow_exchange_is_warned_of():
    slow = judge_exchange([500.0] * 10)
    assert slow.state == WARN and "no more ranks than cores" in slow.advice and "network" in slow.advice
    assert judge_exchange([5.0] * 10).state == OK


def test_the_ranks_of_each_env_are_named_and_an_env_on_two_hosts_is_a_warning():
    found = judge_env_ranks(["a"] * 4, 2, None)
    assert (found.state, found.found) == (OK, "2 ranks for each env: 0-1, 2-3") and "COMM_WORLD" in found.advice
    assert judge_env_ranks(["a", "b", "b"], 2, 0).state == OK
    assert judge_env_ranks(["a", "b"], 2, None).state == WARN and judge_env_ranks(["a"] * 3, 2, None).state == BAD
