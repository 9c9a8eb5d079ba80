"""What a process knows of its world before MPI starts, and without an MPI library."""

import mmap
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mpi_rollout.errors import LaunchError
from mpi_rollout.exchange import single_rank, world
from mpi_rollout.process import rank_variables

OF_STEP = ("SLURM_STEP_ID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID")
VARIABLES = (*rank_variables.RANK_VARIABLES, *world.SIZE_VARIABLES, *rank_variables.OF_MPIRUN, *OF_STEP)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", rank_variables.RANK_VARIABLES)
def test_each_launcher_says_the_rank_in_its_own_variable(monkeypatch: pytest.MonkeyPatch, name: str):
    assert world.claimed_rank() == 0
    monkeypatch.setenv(name, "3")
    assert world.claimed_rank() == 3
    monkeypatch.setenv(name, "three")
    assert world.claimed_rank() == 0


@pytest.mark.parametrize(
    ("variables", "spared"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, True),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_MCA_btl": "self,tcp"}, False),
        ({"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}, False),
    ],
)
def test_open_mpi_looks_for_networks_only_between_hosts_or_where_told(
    monkeypatch: pytest.MonkeyPatch, variables, spared
):
    monkeypatch.setattr(os, "environ", dict(variables))
    with world._spared_networks():
        assert os.environ == (variables | world.ONE_HOST if spared else variables)
    assert os.environ == variables


@pytest.mark.parametrize(
    ("variables", "claimed", "num_local"),
    [
        ({}, (1, ""), 1),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, (2, "OMPI_COMM_WORLD_SIZE"), 1),
        ({"OMPI_COMM_WORLD_SIZE": "many"}, (1, ""), 1),
        ({"PMI_SIZE": "4", "MPI_LOCALNRANKS": "3"}, (4, "PMI_SIZE"), 3),
        ({"SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}, (1, ""), 1),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_ID": "0"}, (4, "SLURM_NTASKS"), 2),
        (
            {"SLURM_NTASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "2(x2),3", "SLURM_STEP_ID": "0", "SLURM_NODEID": "2"},
            (7, "SLURM_NTASKS"),
            3,
        ),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}, (4, "SLURM_NTASKS"), 1),
        (
            {"PMI_SIZE": "4", "MPI_LOCALNRANKS": "3", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_ID": "0"},
            (4, "PMI_SIZE"),
            3,
        ),
        ({"OMPI_COMM_WORLD_SIZE": "1", "PMI_SIZE": "3"}, (3, "PMI_SIZE"), 1),
    ],
)
def test_the_number_of_ranks_is_what_a_launcher_of_several_says(monkeypatch, variables, claimed, num_local):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert (world.claimed_size(), world.claimed_local_size()) == (claimed, num_local)


def test_a_process_without_mpi_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    monkeypatch.setattr(world, "loaded_mpi", lambda: None)
    world.check_thread()
    single_rank.single_rank_world.cache_clear()
    comm = world.comm_world()
    assert world.comm_world() is comm and capfd.readouterr().err.count("no MPI library, so this is one rank") == 1
    assert (comm.rank, comm.size) == (0, 1) and comm.Dup() is comm
    assert (comm.bcast(5), comm.gather(5)) == (5, [5])


def fake_mpi(size: int, query: int = 3, is_main: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        COMM_WORLD=SimpleNamespace(size=size), THREAD_SINGLE=0, THREAD_FUNNELED=1, THREAD_SERIALIZED=2,
        Query_thread=lambda: query, Is_thread_main=lambda: is_main,
    )  # fmt: skip


@pytest.mark.parametrize(("size", "claimed", "is_wrong"), [(1, 1, False), (1, 2, True), (2, 2, False)])
def test_a_process_that_is_alone_though_it_was_started_with_others_is_refused(monkeypatch, size, claimed, is_wrong):
    monkeypatch.setattr(world, "loaded_mpi", lambda: fake_mpi(size))
    monkeypatch.setattr(world, "library_name", lambda: "Open MPI v5.0.0")
    monkeypatch.setenv("PMI_SIZE", str(claimed))
    if not is_wrong:
        assert world.comm_world().size == size
        return
    with pytest.raises(LaunchError, match=r"started 2 processes \(PMI_SIZE=2\) but each is alone .* --mpi=pmix$"):
        world.comm_world()
    monkeypatch.setattr(world, "library_name", lambda: "MPICH Version: 4.2")
    with pytest.raises(LaunchError, match=r"mpi4py loaded MPICH Version: 4.2; .* --mpi=pmi2$"):
        world.comm_world()


@pytest.mark.parametrize(
    ("query", "is_main", "level"), [(0, True, ""), (0, False, "single"), (1, False, "funneled"), (2, False, "")]
)
def test_a_thread_that_must_not_use_mpi_is_refused(monkeypatch, query: int, is_main: bool, level: str):
    monkeypatch.setattr(world, "loaded_mpi", lambda: fake_mpi(1, query, is_main))
    if not level:
        world.check_thread()
        return
    with pytest.raises(LaunchError, match=rf"thread_level is {level}\), and this is another one"):
        world.check_thread()


def test_another_number_of_ranks_than_expected_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(world, "library_name", lambda: "Open MPI v5.0.0")
    comm = SimpleNamespace(size=2)
    world.check_size(comm, None)
    world.check_size(comm, 2)
    with pytest.raises(LaunchError, match=r"^--expect-ranks 3, got 2 ranks; mpi4py loaded Open MPI v5\.0\.0$"):
        world.check_size(comm, 3)


class Host:
    """The ranks of one host: this one, and another that has mapped the same files but the first."""

    def __init__(self, rank: int):
        self.rank, self.is_free = rank, False

    def allgather(self, mapped: set[str]) -> list[set[str]]:
        return [mapped, {*sorted(mapped)[1:]}]

    def Free(self) -> None:  # noqa: N802
        self.is_free = True


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a /dev/shm")
@pytest.mark.parametrize(
    ("library", "rank", "num_left"), [("MPICH Version: 4.2", 0, 1), ("MPICH Version: 4.2", 1, 2), ("Open MPI v5", 0, 2)]
)
def test_the_names_of_mpichs_shared_memory_go_when_all_have_mapped_it(monkeypatch, library, rank, num_left):
    host = Host(rank)
    monkeypatch.setattr(world, "library_name", lambda: library)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=SimpleNamespace(COMM_TYPE_SHARED="shared")))
    comm = SimpleNamespace(Split_type={"shared": host}.__getitem__)
    paths = [Path(f"/dev/shm/mpich_shm_test_{os.getpid()}_{name}") for name in "ab"]
    try:
        maps = []
        for path in paths:
            path.write_bytes(bytes(mmap.PAGESIZE))
            with path.open("r+b") as file:
                maps.append(mmap.mmap(file.fileno(), 0))
        world.take_names_off_shared_memory(comm)
        assert [path.exists() for path in paths] == [True, num_left == 2] and host.is_free is ("MPICH" in library)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
