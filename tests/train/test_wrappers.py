"""Gymnasium's own wrappers for vector envs do around ours what they do around its own."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from jobs import Job
from oracle import differences, record
from vector_wrappers import WRAPPERS, without_clock

pytestmark = pytest.mark.any_mpi

NUM_ENVS, NUM_STEPS = 5, 20
OF_OBSERVATIONS = ("NormalizeObservation", "TransformObservation", "FlattenObservation", "DtypeObservation", "several")
CASES = [(name, "next_step") for name in WRAPPERS]
CASES += [(name, "same_step") for name in WRAPPERS if name not in OF_OBSERVATIONS]  # Gymnasium's do not take these.
WAYS: dict[str, dict[str, Any]] = {"lockstep": {}, "views of two groups": {"copy": False, "num_groups": 2}}


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], Any]:
    """What envs in wrappers return, for each wrapper, mode and way to connect."""
    keys = [(name, mode, way) for name, mode in CASES for way in WAYS]
    cases = [(name, {"autoreset_mode": mode, **WAYS[way]}) for name, mode, way in keys]
    found = Job(tmp_path_factory.mktemp("wrapped")).train(2, "wrapped", cases, NUM_ENVS, NUM_STEPS)
    return dict(zip(keys, found, strict=True))


@pytest.mark.mpi
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_a_wrapper_gives_what_it_gives_around_gymnasiums_envs(wrapped, name: str, mode: str):
    env, wrap = WRAPPERS[name]
    make = partial(gymnasium.make, env, max_episode_steps=7)
    with without_clock():
        oracle = wrap(SyncVectorEnv([make] * NUM_ENVS, autoreset_mode=AutoresetMode[mode.upper()]))
        expected = record(oracle, NUM_STEPS)
    for way in WAYS:
        assert differences(wrapped[name, mode, way], expected) == [], way


@pytest.mark.mpi(2)
def test_statistics_of_envs_that_are_reset_by_a_mask_count_each_episode_by_itself(job: Job, num_ranks: int):
    """Around Gymnasium's own they count on over other envs' resets, as it takes the mask out of the caller's dict."""
    cases = [("RecordEpisodeStatistics", {"autoreset_mode": "disabled"})]
    [found] = job.train(num_ranks, "wrapped", cases, NUM_ENVS, NUM_STEPS)
    lengths, num_episodes = np.zeros(NUM_ENVS, int), 0
    for outputs in found:
        if len(outputs) == 2:  # Of a reset.
            continue
        _, _, terminations, truncations, infos = outputs
        ended = terminations | truncations
        lengths += 1
        if ended.any():
            assert infos["_episode"].tolist() == ended.tolist()
            assert infos["episode"]["l"][ended].tolist() == lengths[ended].tolist()
        num_episodes += ended.sum()
        lengths[ended] = 0
    assert num_episodes >= 2 * NUM_ENVS
