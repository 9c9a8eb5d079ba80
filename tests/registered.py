"""Registers test envs with Gymnasium: `--env registered:Counting-v0` imports this."""

from functools import partial

import gymnasium
from envs import Counting, Failing, Gated, on_rank

for name, make in {
    "Counting-v0": Counting,
    "FailingAtOnce-v0": partial(Failing, after=0),
    "FailingOnRank1-v0": partial(on_rank, 1, after=1),
    "HangingOnRank1-v0": partial(Gated, 1),
}.items():
    gymnasium.register(name, make)
