"""Wrappers for `--wrappers`, and some that are none."""

from typing import Any

import gymnasium


def doubled(env: gymnasium.Env) -> gymnasium.Env:
    """Rewards twice as high."""
    return gymnasium.wrappers.TransformReward(env, lambda reward: 2.0 * reward)


class Raised(gymnasium.RewardWrapper):
    """Rewards that are higher by one."""

    def reward(self, reward: Any) -> float:
        return reward + 1.0


def forgetful(env: gymnasium.Env) -> None:
    """Returns nothing."""


def raising(env: gymnasium.Env) -> gymnasium.Env:
    raise ZeroDivisionError("no luck")
