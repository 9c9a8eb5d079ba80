"""An env for which a reset with a seed takes long, as ALE's, which loads its game."""

import time

from envs import Counting


class SlowlySeeded(Counting):
    def reset(self, *, seed=None, options=None):
        if seed is not None:
            time.sleep(0.02)
        return super().reset(seed=seed, options=options)
