"""What a rank does for its envs besides stepping them."""

import pytest
from jobs import Job

SIZES = ("--num-envs", "6", "--num-steps", "5", "--progress", "none", "--out", "run.h5")


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
@pytest.mark.parametrize("way", [(), ("--batch-size", "1")], ids=["lockstep", "first ready"])
def test_all_ranks_close_their_envs_once_at_the_end(job: Job, num_ranks: int, way: tuple[str, ...]):
    # A look at env 0 would make and close it more often.
    result = job(num_ranks, "--env-factory", "exiting_envs:Noting", "--no-seed-check", *SIZES, *way)
    assert result.code == 0, result.err
    closed = {path.name: path.read_text() for path in job.folder.glob("closed.*")}
    assert closed == {f"closed.{index}": "once\n" for index in range(6)}
