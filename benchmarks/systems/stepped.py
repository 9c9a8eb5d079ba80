"""What the modules of other libraries share: envs of any Gymnasium, and actions that were drawn."""

from collections.abc import Callable
from importlib import import_module
from itertools import cycle
from typing import Any

from mpi_rollout.studies.compare.systems import Setup
from mpi_rollout.studies.compare.turn import Stepper, count_rows, drawn_actions


def make_env(env: str) -> Any:
    """Make an env with whatever Gymnasium there is."""
    import gymnasium

    if env.startswith("ALE/"):
        import_module("ale_py")
    return gymnasium.make(env)


def actions_of(setup: Setup) -> list[Any]:
    """Random actions of all envs for some steps."""
    from gymnasium.vector.utils import batch_space

    env = make_env(setup.env["env"])
    drawn = drawn_actions(batch_space(env.action_space, setup.num_envs))
    env.close()
    return drawn


def in_turn(reset: Callable[[], object], step: Callable[[Any], Any], actions: list[Any], resets_next: bool) -> Stepper:
    """Step envs with actions in turn; `step` returns terminations and truncations, which belong to the caller.

    Rows after an episode's end reset if `resets_next`; else all rows are env steps.
    """
    turns = cycle(actions)
    count = count_rows if resets_next else lambda sweeps: sum(len(terminations) for terminations, _ in sweeps)
    return Stepper(reset, lambda: step(next(turns)), count)
