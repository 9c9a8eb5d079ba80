"""Going on with a run: what is refused, what the first block has, and what the user is told."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from mpi_rollout.collect.resuming import check_promise, load, say_resumed
from mpi_rollout.core.layout import Block
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import UsageError

NUM_STEPS, SPACE = 9, spaces.Box(0, 1e6, (), np.float64)
ROWS, ENVS = np.arange(NUM_STEPS + 1)[:, None], np.arange(3)
DATA = {"observations": 10.0 * ROWS + ENVS, "actions": (ROWS + ENVS)[:-1] % 5, "rewards": (ROWS * 1.0 - ENVS)[:-1]}
DATA |= {name: np.zeros((NUM_STEPS, 3), bool) for name in ("terminations", "truncations")}
PAST = Past(0, NUM_STEPS, np.zeros(3, int), np.array([2, 6, 3]))


@pytest.mark.parametrize("start", [4, 8])
def test_a_block_is_filled_with_what_there_is_and_the_end_of_lost_episodes(start: int):
    block = Block(SPACE, spaces.Discrete(5), 3, 1, 8)
    block.start = start
    load(block, PAST, {2: 5, 0: 7}, {"trajectories": DATA})
    num_rows = NUM_STEPS - start
    assert block.observations[: num_rows + 1].tolist() == DATA["observations"][start:].tolist()
    assert block.rewards[:num_rows].tolist() == DATA["rewards"][start:].tolist()
    assert block.truncations[num_rows - 1].tolist() == [True, False, True] and block.truncations.sum() == 2
    assert not block.rewards[num_rows:].any()


def test_a_block_that_begins_at_the_last_observation_has_no_step():
    block = Block(SPACE, spaces.Discrete(5), 3, 1, 8)
    block.start = NUM_STEPS
    load(block, PAST, {2: 5}, {"trajectories": DATA})
    assert block.observations[0].tolist() == [90, 91, 92] and not block.truncations.any()


def test_the_user_is_told_from_where_the_run_goes_on(capfd: pytest.CaptureFixture):
    lost = dict.fromkeys(range(10), 5)
    say_resumed("run.h5.part", SimpleNamespace(num_steps=1200, first_step=1199), 5000, lost, 0.25)
    first, *others = capfd.readouterr().err.splitlines()
    assert first == "mpi_rollout: continuing run.h5.part after 1,200 of 5,000 steps; took 1 step again in 0.2 s"
    assert len(others) == 8 and others[0].startswith("mpi_rollout: env 0 did not reproduce step 5: its running episode")


def test_envs_that_promise_something_else_than_before_are_refused():
    past = Past(0, 3, np.zeros(2, int), np.zeros(2, int), Reproducibility.ENV)
    check_promise(past, Reproducibility.ENV, "run.h5.part")
    with pytest.raises(UsageError, match=r"run\.h5\.part is of envs that promised env .* these promise episode"):
        check_promise(past, Reproducibility.EPISODE, "run.h5.part")
