"""Who draws random actions: rank 0, which broadcasts them, or each rank for its own envs.  The data are the same."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import HELPERS, Job, launcher, run_job
from single_rank import driver_of

from mpi_rollout.collect.action_source import SENT_NBYTES, ranks_draw
from mpi_rollout.config import RolloutConfig

RUN = ("--env", "CartPole-v1", "--num-envs", "64", "--num-steps", "300", "--seed", "0", "--progress", "none")
MASKED = ("--env", "Taxi-v4", "--num-envs", "5", "--num-steps", "40", "--seed", "3", "--progress", "none")
MASKED += ("--store-infos", '{"action_mask": ["int8", 6]}')


@pytest.mark.any_mpi
@pytest.mark.full_start
@pytest.mark.mpi(2)
def test_rank_0_broadcasts_the_actions_of_all_envs(tmp_path: Path):
    """Bcast itself is looked at: ranks that wait spinning send nothing directly."""
    program = [sys.executable, str(HELPERS / "noting_broadcasts.py"), *RUN, "--wait", "spin", "--out", "run.h5"]
    result = run_job([*launcher(2), *program], tmp_path)
    assert result.code == 0 and "rank 0 sent the actions" in result.out, result.err
    with h5py.File(tmp_path / "run.h5") as file:
        actions = file["trajectories/actions"][:].astype(np.int64)
    noted = (tmp_path / "noted-1.bin").read_bytes()
    assert len(noted) > actions.nbytes and noted == (tmp_path / "noted-0.bin").read_bytes()
    assert all(noted.count(row.tobytes()) >= 1 for row in actions)


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize("run", [RUN, MASKED], ids=["CartPole", "action masks"])
def test_the_data_do_not_depend_on_who_draws(job: Job, num_ranks: int, run: tuple[str, ...]):
    ways = {
        who: job.collect(num_ranks, *run, "--policy-on", who, out=f"{who}.h5") for who in ("root", "workers", "auto")
    }
    stored = []
    for path in ways.values():
        with h5py.File(path) as file:
            columns = [file["trajectories"][name] for name in ("actions", "observations", "rewards")]
            stored.append([column[:].tobytes() for column in columns] + [file["episodes"][:].tobytes()])
    assert stored[0] == stored[1] == stored[2]


@pytest.mark.parametrize(
    ("options", "most", "expected"),
    [
        ({}, 256, False),
        ({}, SENT_NBYTES // 64 + 1, True),
        ({"policy_on": "workers"}, 1, True),
        ({"policy_on": "root"}, SENT_NBYTES, False),
        ({"on_rank_loss": "shrink"}, 1, True),
    ],
)
def test_ranks_draw_where_rank_0_would_send_too_much(options: dict, most: int, expected: bool):
    config = RolloutConfig(env_factory="envs:Counting", num_envs=8, **options)
    assert ranks_draw(config, driver_of(num_envs=8), most) == expected
