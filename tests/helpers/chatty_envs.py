"""Envs and a policy that print wherever they can, and envs that ask for input."""

import atexit
import os

import numpy as np
from envs import Counting
from gymnasium.envs.classic_control import CartPoleEnv

print("imported")
atexit.register(print, "at exit")


class Chatty(CartPoleEnv):
    """Prints when it is made, in each step, through C too, and when it goes."""

    def __init__(self):
        super().__init__()
        print("made")

    def step(self, action):
        print("stepped", flush=True)
        os.write(1, b"stepped in C\n")
        return super().step(action)

    def close(self):
        print("closed")

    def __del__(self):
        print("gone")


def act(observations):
    print("asked")
    return np.ones(len(observations), int)


class Asking(Counting):
    """Asks what to do in its third step."""

    def step(self, action):
        if self.step_number == 2:
            input("Which way? ")
        return super().step(action)
