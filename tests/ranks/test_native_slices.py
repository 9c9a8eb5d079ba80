"""What natively vectorized envs return wrongly is refused in words that name the envs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from native_envs import Drift
from single_rank import driver_of

from mpi_rollout.errors import RankError
from mpi_rollout.exchange.exchange import Command

STEP = r"envs 0 to 2: step must return \(observations, rewards, terminations, truncations, infos\), got "
WRONG_STEPS = {
    "nothing": (lambda step: None, STEP + "NoneType"),
    "a reset": (lambda step: (step[0], {}), STEP + r"\(ndarray, dict\)"),  # Else old results would stay.
    "no truncations": (lambda step: step[:4], STEP + r"\(ndarray, ndarray, ndarray, ndarray\)"),
    "no infos": (lambda step: (*step[:4], None), STEP + r"\(.*, NoneType\)"),
    "no observations": (lambda step: (None, *step[1:]), "observation should be float32 of shape .*, got object"),
    "one reward": (lambda step: (step[0], 1.0, *step[2:]), r"reward should be float64 of shape \(3,\), got .* \(\)"),
    "no rewards": (lambda step: (step[0], None, *step[2:]), "reward should be float64 of .*, got object"),
    "columns": (lambda step: (step[0], step[1][:, None], *step[2:]), r"reward should be .* got .* \(3, 1\)"),
    "vectors": (lambda step: (step[0], np.zeros((3, 2)), *step[2:]), r"\(3, 2\); make one number of it by a wrapper"),
    "words": (lambda step: (step[0], np.array(["much"] * 3), *step[2:]), "env 0: its reward"),
    "objects": (lambda step: (step[0], np.array([None, 1.0, 2.0]), *step[2:]), "env 0: its reward"),
    "another shape": (
        lambda step: (np.ones((3, 9), np.float32), *step[1:]),
        r"envs 0 to 2: .* got float32 of shape \(3, 9\)",
    ),
    "letters": (
        lambda step: (np.full(step[0].shape, "a"), *step[1:]),
        "envs 0 to 2: .* should be float32 of .* got <U1",
    ),
    "too many": (lambda step: (*step[:2], np.zeros(4, bool), *step[3:]), r"terminated should be .* got .* \(4,\)"),
}


class Mistaken(Drift):
    """Its third step returns something else."""

    def __init__(self, env_indices: range, seed: int, change: Callable[[Any], Any]):
        super().__init__(env_indices, seed)
        self._change, self._num_steps = change, 0

    def step(self, actions: np.ndarray):
        self._num_steps += 1
        outputs = super().step(actions)
        return self._change(outputs) if self._num_steps == 3 else outputs


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("way", WRONG_STEPS)
def test_what_is_no_step_is_refused(way: str, is_read: bool):
    change, message = WRONG_STEPS[way]
    make = partial(Mistaken, change=change)
    driver = driver_of(make, vectorization_mode="native", is_random=True, is_read=is_read)
    driver.do(Command.RESET, 5)
    [lane] = driver.lanes
    for step in range(2):
        driver.send(lane, None, 1, step)
        driver.step_and_receive()
    driver.send(lane, None, 1, 2)
    with pytest.raises(RankError, match=f"step 2: .*{message}"):
        driver.step_and_receive()
