"""What the backends have in common."""

import warnings

import pytest

from mpi_rollout.envs.kernels.cartpole import own_device


@pytest.mark.parametrize(
    ("num_devices", "local_rank", "device"), [(0, "3", None), (1, "3", None), (4, "3", 3), (4, "5", 1), (2, "", 0)]
)
def test_each_rank_of_a_host_takes_a_device(
    monkeypatch: pytest.MonkeyPatch, num_devices: int, local_rank: str, device: int | None
):
    for name in ("MPI_LOCALRANKID", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", local_rank)
    assert own_device(num_devices) == device


def test_ranks_that_share_devices_are_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "3")
    with pytest.warns(UserWarning, match="4 ranks of this host share 2 devices"):
        assert own_device(2) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert own_device(4) == 3
