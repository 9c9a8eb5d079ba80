"""A turn of a system: it resets, warms up, and steps for a window.

`python -m mpi_rollout.studies.compare.turn MAKER WINDOW_S SETUP [rank]` takes one, and prints it as a line of JSON; the
fourth word says that it is a rank of a job.  Another Python may run this, with an old Gymnasium, for `benchmarks/`.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import cycle
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from gymnasium import Env, Space
    from gymnasium.vector import VectorEnv

SEED = 0  # The seed of the reset: env i has SEED + i.
NUM_ACTIONS = 64  # Steps for which actions are drawn; they are used in turn.
WARM_UP_SHARE = 0.1  # A share of the window.
START_S = 60.0  # The time that all ranks have to start.
LOOK_S, MOST_PER_LOOK = 0.001, 64  # Between two looks at the clock, which takes 1 % of a CartPole's step.


class Turn(NamedTuple):
    """What a turn gave: seconds of the reset of all envs, then env steps and seconds of the window."""

    reset_s: float
    env_steps: int
    seconds: float


@dataclass(frozen=True)
class Stepper:
    """How a system's envs are stepped.

    `sweep` steps all envs once, or takes what one `recv` brings; from what it returns, `count` finds the env steps of
    all sweeps since the reset.  Nothing is counted while the clock runs.
    """

    reset: Callable[[], object]
    sweep: Callable[[], object]
    count: Callable[[list], int] = sum

    def take_turn(self, window_s: float) -> Turn:
        """Reset, warm up, and step for `window_s` seconds, the last sweep whole."""
        start = perf_counter()
        self.reset()
        reset_s = perf_counter() - start
        before, warm_up_s = self._sweeps(WARM_UP_SHARE * window_s, 1)
        per_look = int(min(max(LOOK_S * len(before) / warm_up_s, 1), MOST_PER_LOOK))
        sweeps, seconds = self._sweeps(window_s, per_look)
        while (env_steps := self.count(before + sweeps) - self.count(before)) == 0:  # Nothing but resets until now.
            more, more_s = self._sweeps(0.0, 1)
            sweeps, seconds = sweeps + more, seconds + more_s
        return Turn(reset_s, env_steps, seconds)

    def _sweeps(self, window_s: float, per_look: int) -> tuple[list, float]:
        sweeps: list = []
        sweep, start = self.sweep, perf_counter()
        while True:
            for _ in range(per_look):
                sweeps.append(sweep())
            if (seconds := perf_counter() - start) >= window_s:
                return sweeps, seconds


def count_rows(sweeps: Sequence[tuple[np.ndarray, np.ndarray]]) -> int:
    """Count the env steps of rows of all envs, given as terminations and truncations; a row after an end resets."""
    ended = np.logical_or.reduce(np.array(sweeps, np.bool_), axis=1)
    return ended.size - int(np.count_nonzero(ended[:-1]))


def drawn_actions(batched_space: "Space") -> list[Any]:
    """Draw random actions of all envs for some steps: the same for all systems."""
    batched_space.seed(SEED)
    return [batched_space.sample() for _ in range(NUM_ACTIONS)]


def of_vector_env(envs: "VectorEnv") -> Stepper:
    """Step a Gymnasium vector env whose rows after an episode's end reset."""
    actions = cycle(drawn_actions(envs.action_space))
    return Stepper(lambda: envs.reset(seed=SEED), lambda: envs.step(next(actions))[2:4], count_rows)


def of_loop(envs: "Sequence[Env]", actions: Sequence[Sequence[object]], first_env: int = 0) -> Stepper:
    """Step single envs in a loop, with nothing around it: the code that a person would write."""
    steps, rows = [env.step for env in envs], cycle(actions)

    def reset() -> None:
        for index, env in enumerate(envs):
            env.reset(seed=SEED + first_env + index)

    def sweep() -> int:
        for index, (step, action) in enumerate(zip(steps, next(rows), strict=True)):
            _, _, terminated, truncated, _ = step(action)
            if terminated or truncated:
                envs[index].reset()
        return len(steps)

    return Stepper(reset, sweep)


def main(maker: str, window_s: str, given: str, is_rank: str = "") -> None:
    """Make the envs of a setup, take the turn, close them, and print it."""
    from mpi_rollout.studies.compare.systems import Setup

    comm, rank, size = None, 0, 1
    if is_rank:
        from mpi_rollout.exchange import world

        world.start_mpi_on_all_ranks(START_S)
        comm = world.comm_world()
        rank, size = comm.rank, comm.size
    module, _, function = maker.partition(":")
    with getattr(import_module(module), function)(Setup(**json.loads(given), rank=rank, size=size)) as stepper:
        turn = None if stepper is None else stepper.take_turn(float(window_s))
    turns = [turn] if comm is None else comm.gather(turn)
    if turns is not None:
        print(json.dumps({"complete": True, **summed(turns)._asdict()}))


def summed(turns: Sequence[Turn | None]) -> Turn:
    """Sum up the rates of turns at the same time, which end at different times; None is a rank that only served."""
    taken = [turn for turn in turns if turn is not None]
    seconds = max(turn.seconds for turn in taken)
    env_steps = sum(turn.env_steps / turn.seconds for turn in taken) * seconds
    return Turn(max(turn.reset_s for turn in taken), round(env_steps), seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
