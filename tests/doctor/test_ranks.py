"""What the doctor makes of the ranks' facts: each fault of a launch is named, with a way out."""

from dataclasses import replace

import pytest

from mpi_rollout.doctor.probe import BAD, OK, WARN
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
from mpi_rollout.doctor.world import OPEN_MPI, how_to_bind, launcher_of
from mpi_rollout.process.host import physical_cores, processor_quota

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
FIRST = RankFacts(0, "node1", frozenset({0, 1}), 4, None, ONE_THREAD, {"python": "3.11.2"}, "Open MPI v5", 3,
                  frozenset({0, 1}))  # fmt: skip


def ranks(*changes: dict) -> list[RankFacts]:
    return [replace(FIRST, rank=rank, **change) for rank, change in enumerate(changes)]


def test_ranks_of_different_versions_or_mpi_libraries_are_bad():
    versions = judge_versions(ranks({}, {"host": "node2", "versions": {"python": "3.12.0"}}))
    assert versions.state == BAD and versions.found == "python: rank 0 (node1) has 3.11.2, rank 1 (node2) 3.12.0"
    library = judge_versions(ranks({}, {"library": "MPICH 4"}))
    assert library.state == BAD and "rank 1 (node1) MPICH 4" in library.found


def test_ranks_that_share_a_core_are_warned_of_with_the_launchers_option():
    option = how_to_bind({"HYDI_CONTROL_FD": "7"})
    found = judge_binding(ranks({"cores": frozenset({0, 1})}, {"cores": frozenset({1, 2})}), option)
    assert found.state == WARN and found.found == "ranks 0 and 1 (node1) share core 1"
    assert "-bind-to core" in found.advice


def test_ranks_with_cores_of_their_own_and_unbound_ranks_are_fine():
    bound = ranks({"cores": frozenset({0})}, {"cores": frozenset({1})})
    assert judge_binding(bound, "").found == "each rank has cores of its own: rank 0 core 0"
    unbound = judge_binding(ranks({}, {}), how_to_bind({"PRTE_LAUNCHED": "1"}))
    assert launcher_of({"PRTE_LAUNCHED": "1"}).vendor == OPEN_MPI
    assert unbound.state == OK and unbound.found.startswith("none: ") and "--bind-to core" in unbound.advice
    option = how_to_bind({"SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "MPI_ROLLOUT_BIND": "none"})
    assert "leave BIND=none out of slurm/site.sh" in judge_binding(ranks({}, {}), option).advice


def test_ranks_bound_to_one_core_between_them_are_oversubscribed_on_a_host_of_more():
    found = judge_cores(ranks({"cores": frozenset({0})}, {"cores": frozenset({0})}))
    assert found.state == WARN and found.found == "oversubscribed: 2 ranks on 1 usable core of 4 (node1)"
    assert "unbind the ranks" in found.advice


def test_more_ranks_than_a_host_has_cores_are_told_how_many_to_start():
    crowd = judge_cores(ranks({"num_host_cores": 2}, {}, {}))
    assert crowd.state == WARN and crowd.advice.startswith("start at most 2 ranks on such a host: ")
    assert crowd.advice.endswith("slows others down")


def test_ranks_on_two_hardware_threads_of_one_core_are_warned_of(tmp_path):
    for thread in (0, 1, 64, 65):
        (tmp_path / f"cpu{thread}" / "topology").mkdir(parents=True)
        (tmp_path / f"cpu{thread}" / "topology" / "thread_siblings_list").write_text(
            f"{thread % 64},{thread % 64 + 64}\n"
        )
    assert physical_cores({0, 1, 64, 65, 66}, tmp_path) == {0, 1, 66}
    threads = ({0}, {64})
    facts = [{"cores": frozenset(each), "physical_cores": physical_cores(each, tmp_path)} for each in threads]
    found = judge_cores(ranks(*facts))
    assert found.state == WARN and found.found == "2 ranks on the hardware threads of 1 core (node1)"
    assert "SBATCH_HINT=nomultithread" in found.advice
    assert judge_cores(ranks(facts[0], facts[1] | {"host": "node2"})).state == OK


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
    assert judge_cores(ranks({"quota": 1.5}, {"quota": 1.5})).figures == {"ranks_on_host": 2, "usable_cores": 1}
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert processor_quota(tmp_path) is None


def test_unset_thread_variables_matter_only_where_a_rank_sees_cores_of_others():
    alone = judge_threads(ranks({"threads": {}}))
    crowd = judge_threads(ranks({"threads": {}}, {"threads": {}}))
    bound = judge_threads([*ranks({"threads": {}, "cores": frozenset({0})}, {"cores": frozenset({1})})])
    assert (alone.state, crowd.state, bound.state) == (OK, WARN, OK)
    assert "OMP_NUM_THREADS unset" in crowd.found


def test_an_mpi_without_threads_is_warned_of():
    assert judge_thread_level(ranks({}, {"thread_level": 0})).state == WARN
    assert judge_thread_level(ranks({}, {"thread_level": 1})).state == OK


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
