"""An env that changes its folder, as Fortran programs and licensed simulators do."""

import os
from pathlib import Path

import stopping_envs

HERE = Path.cwd()


class Moving(stopping_envs.Counting):
    """Goes into a folder of its own where `where` says: when it is made, in each reset, or in each step."""

    def __init__(self, where: str):
        super().__init__()
        self.where = where
        self.move("made")

    def move(self, place: str) -> None:
        if place == self.where:
            folder = HERE / "simulator" / str(os.getpid())
            folder.mkdir(parents=True, exist_ok=True)
            os.chdir(folder)

    def reset(self, **options):
        self.move("reset")
        return super().reset(**options)

    def step(self, action):
        self.move("step")
        return super().step(action)
