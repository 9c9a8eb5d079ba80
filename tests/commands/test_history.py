"""Replays of natively vectorized envs: what they are refused for."""

from pathlib import Path

import h5py
import pytest
from native_envs import drift, seeded
from single_rank import drive, root_of

from mpi_rollout.collect import resuming
from mpi_rollout.commands.history import check_promise
from mpi_rollout.commands.replay import Consent, replay
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.errors import UsageError


def test_envs_that_promise_something_else_than_those_of_the_file_are_refused():
    with h5py.File("run.h5", "w", driver="core", backing_store=False) as file:
        file.attrs["reproducibility"] = "env"
        check_promise(file, EnvMaker(drift, vectorization_mode="native").native(range(2)))
        with pytest.raises(UsageError, match=r"promised env .* here they promise episode"):
            check_promise(file, EnvMaker(seeded, vectorization_mode="native").native(range(2)))


def test_a_history_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run.h5"
    assert drive(root_of(path, env_factory="native_envs:drift", vectorization_mode="native")) == 0
    trusting = Consent(trust=True)
    assert replay(str(path), 1, 0, trusting)["replayed_steps"] == 60
    monkeypatch.setattr(resuming, "LEARNING_S", 0.0)
    monkeypatch.setattr(resuming, "LONGEST_HISTORY_S", 0.0)
    with pytest.raises(UsageError, match=r"all of their 20 steps, .*; without --replay the file can be verified"):
        replay(str(path), 1, 0, trusting)
