"""What a process holds does not grow with the number of episodes."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from jobs import Job
from lasting_envs import EVERY, FEW, LOOKS, MANY, Brief, held_nbytes

import mpi_rollout
from mpi_rollout.storage import schema

# In 15,000 episodes.  One Python integer for each takes 500 kB, and h5py's table of open objects may grow by 150 kB.
GROWTH_NBYTES = 300_000
BLOCK = 16  # Steps.  The writer may be behind by three blocks, and with it all that is to be written with them.


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize("options", [(), ("--no-trajectories",)], ids=["stored", "not stored"])
def test_ranks_hold_as_much_after_many_episodes_as_after_few(job: Job, num_ranks: int, options: tuple[str, ...]):
    num_steps = (MANY + LOOKS * EVERY) // 16 + 10  # Of 32 envs on each rank; every second step only resets.
    arguments = ("--env-factory", "lasting_envs:Looking", "--num-envs", "64", "--num-steps", str(num_steps), *options)
    assert job.train(num_ranks, "runs", [(*arguments, "--out", "run.h5")], BLOCK) == [0]
    after_few = sorted(job.folder.glob(f"held-*-{FEW}"))
    assert len(after_few) == num_ranks
    for path in after_few:
        assert held(path.with_name(path.name.replace(str(FEW), str(MANY)))) < held(path) + GROWTH_NBYTES


def held(path: Path) -> int:
    """The least bytes of several looks."""
    looks = [int(line) for line in path.read_text().split()]
    assert len(looks) == LOOKS
    return min(looks)


def test_a_recording_holds_as_much_after_many_resets_as_after_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(schema, "rows_per_block", lambda *_: BLOCK)
    options = {"reset_mask": np.ones(64, np.bool_)}
    with mpi_rollout.connect(Brief, 64, autoreset_mode="disabled", record=str(tmp_path / "run.h5")) as envs:
        envs.reset(seed=0)
        actions, looks = envs.action_space.sample(), []
        tracemalloc.start()
        try:
            for number in range(1, 301):
                envs.step(actions)
                envs.reset(options=options)
                if number % 15 == 0:
                    looks.append(held_nbytes())
        finally:
            tracemalloc.stop()
    assert min(looks[-LOOKS:]) < min(looks[LOOKS : 2 * LOOKS]) + GROWTH_NBYTES
