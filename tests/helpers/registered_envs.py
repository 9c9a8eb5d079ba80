"""Registers test envs with Gymnasium: `--env registered_envs:Counting-v0` imports this."""

from functools import partial

import gymnasium
import numpy as np
from envs import Counting, Failing, Gated, on_rank
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv


class DoubleCartPole(CartPoleVectorEnv):
    """Observes float64 in a float32 space."""

    def reset(self, **kwargs):
        observations, infos = super().reset(**kwargs)
        return observations.astype(np.float64), infos

    def step(self, actions):
        observations, *rest = super().step(actions)
        return observations.astype(np.float64), *rest


for name, make in {
    "Counting-v0": Counting,
    "FailingAtOnce-v0": partial(Failing, after=0),
    "FailingOnRank1-v0": partial(on_rank, 1, after=1),
    "HangingOnRank1-v0": partial(Gated, 1),
}.items():
    gymnasium.register(name, make)
CLASSIC = "gymnasium.envs.classic_control:CartPoleEnv"
gymnasium.register("DoubleCartPole-v0", CLASSIC, vector_entry_point="registered_envs:DoubleCartPole")
