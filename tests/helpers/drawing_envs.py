"""Envs that draw frames, and some that do not as they should."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Drawing(gymnasium.Env):
    """Each frame has the step's number as its colour.  Its sides are odd."""

    observation_space = spaces.Dict({"draw": spaces.Box(0, 1, (2,)), "pair": spaces.Tuple((spaces.Discrete(99),) * 2)})
    action_space = spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,))))
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self, render_mode=None, frame="right"):
        self.render_mode, self.frame = render_mode, frame

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = 0
        return self.observe(), {}

    def step(self, action):
        self.number += 1
        return self.observe(), float(action[0]), self.number >= 3 + self.limit, False, {}

    def observe(self):
        if self.number == 0:
            self.limit = int(self.np_random.integers(20))
        return {"draw": self.np_random.random(2, np.float32), "pair": (self.number, self.limit)}

    def render(self):
        if self.frame == "raises":
            raise OSError("there is no screen")
        if self.frame == "grey":
            return np.zeros((33, 45), np.uint8)
        side = 33 + (self.frame == "grows") * self.number
        return np.full((side, 45, 3), 5 * self.number, np.uint8)


def make(render_mode=None):
    return Drawing(render_mode)


def blind():
    return Drawing()


def grey(**kwargs):
    return Drawing(frame="grey", **kwargs)


def growing(**kwargs):
    return Drawing(frame="grows", **kwargs)


def screenless(**kwargs):
    return Drawing(frame="raises", **kwargs)


def refusing(render_mode=None):
    if render_mode:
        raise ValueError("no mode")
    return Drawing()
