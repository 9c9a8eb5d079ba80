"""The process of one turn of a system: `python -m mpi_rollout.studies.compare.point MAKER WINDOW_S SETUP [COMM]`.

It prints the turn as a line of JSON.  With a fourth word it is a rank of a job; where ranks step envs without an
exchange, their rates are summed.  Another Python may run this for `benchmarks/`; it needs NumPy and a Gymnasium.
"""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from mpi_rollout.studies.compare.stepping import Turn
from mpi_rollout.studies.compare.systems import Setup

START_S = 60.0  # For all ranks to start.


def main(maker: str, window_s: str, given: str, is_rank: str = "") -> None:
    """Make the envs, take the turn, close them, and print it."""
    comm, place = None, dict[str, Any]()
    if is_rank:
        from mpi_rollout.exchange import world

        world.start_mpi_on_all_ranks(START_S)
        comm = world.comm_world()
        place = {"rank": comm.rank, "size": comm.size}
    module, _, function = maker.partition(":")
    with getattr(import_module(module), function)(Setup(**json.loads(given), **place)) as stepper:
        turn = None if stepper is None else stepper.take_turn(float(window_s))
    turns = [turn] if comm is None else comm.gather(turn)
    if turns is not None:
        print(json.dumps({"complete": True, **summed(turns)._asdict()}))


def summed(turns: Sequence[Turn | None]) -> Turn:
    """Sum up the rates of turns at the same time, which end at different times; None is a rank that took none."""
    taken = [turn for turn in turns if turn is not None]
    seconds = max(turn.seconds for turn in taken)
    env_steps = sum(turn.env_steps / turn.seconds for turn in taken) * seconds
    return Turn(max(turn.reset_s for turn in taken), round(env_steps), seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
