"""Replays of natively vectorized envs: what they are refused for."""

import h5py
import pytest
from native_envs import drift, seeded

from mpi_rollout.commands.history import check_promise
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.errors import UsageError


def test_envs_that_promise_something_else_than_those_of_the_file_are_refused():
    with h5py.File("run.h5", "w", driver="core", backing_store=False) as file:
        file.attrs["reproducibility"] = "env"
        check_promise(file, EnvMaker(drift, vectorization_mode="native").native(range(2)))
        with pytest.raises(UsageError, match=r"promised env .* here they promise episode"):
            check_promise(file, EnvMaker(seeded, vectorization_mode="native").native(range(2)))
