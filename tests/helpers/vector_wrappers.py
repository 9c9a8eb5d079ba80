"""Gymnasium's own wrappers for vector envs, ready to be put around any."""

from contextlib import AbstractContextManager
from types import SimpleNamespace
from unittest.mock import patch

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import vector


def without_clock() -> AbstractContextManager[object]:
    """`RecordEpisodeStatistics` says meanwhile that each episode took no time: else no two results are equal."""
    return patch.object(gymnasium.wrappers.vector.common, "time", SimpleNamespace(perf_counter=lambda: 0.0))


def doubled(array: np.ndarray) -> np.ndarray:
    return 2 * array


def statistics_in_lists(envs: VectorEnv) -> VectorEnv:
    return vector.DictInfoToList(vector.RecordEpisodeStatistics(envs))


def normalized(envs: VectorEnv) -> VectorEnv:
    """As trainers put them around each other."""
    envs = vector.ClipAction(vector.RecordEpisodeStatistics(envs))
    envs = vector.TransformObservation(vector.NormalizeObservation(envs), lambda array: np.clip(array, -10, 10))
    return vector.TransformReward(vector.NormalizeReward(envs, gamma=0.9), lambda array: np.clip(array, -10, 10))


WRAPPERS = {
    "RecordEpisodeStatistics": ("CartPole-v1", vector.RecordEpisodeStatistics),
    "NormalizeObservation": ("CartPole-v1", vector.NormalizeObservation),
    "NormalizeReward": ("Pendulum-v1", vector.NormalizeReward),
    "ClipReward": ("Pendulum-v1", lambda envs: vector.ClipReward(envs, -2.0, -0.5)),
    "DictInfoToList": ("CartPole-v1", vector.DictInfoToList),
    "TransformObservation": ("CartPole-v1", lambda envs: vector.TransformObservation(envs, doubled)),
    "TransformReward": ("CartPole-v1", lambda envs: vector.TransformReward(envs, doubled)),
    "VectorizeTransformReward": (
        "CartPole-v1",
        lambda envs: vector.VectorizeTransformReward(envs, gymnasium.wrappers.TransformReward, func=doubled),
    ),
    "FlattenObservation": ("CartPole-v1", vector.FlattenObservation),
    "DtypeObservation": ("CartPole-v1", lambda envs: vector.DtypeObservation(envs, np.float64)),
    "RescaleAction": ("Pendulum-v1", lambda envs: vector.RescaleAction(envs, -1.0, 1.0)),
    "ClipAction": ("Pendulum-v1", vector.ClipAction),
    "several": ("Pendulum-v1", normalized),
    "lists of infos with statistics": ("CartPole-v1", statistics_in_lists),
}
