"""An env whose making removes the folder of the run's curves, which was found to be there."""

import shutil

import gymnasium


def make(env_index: int) -> gymnasium.Env:
    shutil.rmtree("gone", ignore_errors=True)
    return gymnasium.make("CartPole-v1")
