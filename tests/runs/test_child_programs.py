"""Envs that start MPI programs as children: these are worlds of their own, however the rank was started."""

import pytest
from jobs import Job, datasets
from solver_envs import RIGHT

pytestmark = pytest.mark.full_start

RUN = ("--env-factory", "solver_envs:Solving", "--num-envs", "4", "--num-steps", "1", "--progress", "none")
TRAINER = """
import sys
import numpy as np
import mpi_rollout
from solver_envs import RIGHT, Solving

if __name__ == "__main__":
    launched = {"num_ranks": 2} if "launch" in sys.argv else {}
    with getattr(mpi_rollout, sys.argv[1])(Solving, 4, **launched) as envs:
        if envs is not None:
            seen = envs.reset(seed=0)[0]
            assert np.array_equal(seen, RIGHT[0]), seen
"""


@pytest.mark.mpi(1, 2)
def test_the_solver_of_an_env_is_a_world_of_its_own(job: Job, num_ranks: int):
    assert datasets(job.collect(num_ranks, *RUN))["observations"].tolist() == RIGHT


@pytest.mark.mpi
@pytest.mark.parametrize(("how", "num_ranks"), [("connect", 2), ("launch", None)])
def test_so_it_is_for_a_trainer(job: Job, how: str, num_ranks: int | None):
    (job.folder / "program.py").write_text(TRAINER)
    result = job.python(num_ranks, "program.py", how)
    assert result.code == 0, result.err
