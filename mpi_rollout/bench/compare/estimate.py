"""What a comparison will measure and about how long it takes, from a short look at each env."""

from time import perf_counter
from typing import NamedTuple

import gymnasium

from mpi_rollout.bench.compare.comparison import Comparison, Point
from mpi_rollout.bench.compare.steppers import WARM_UP_SHARE
from mpi_rollout.bench.compare.systems import reason_to_skip
from mpi_rollout.core.spaces import leaves
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.errors import EnvError, counted, words_of

LOOK_S, LEAST_STEPS = 0.1, 3
START_S = 2.0  # Of a system's processes on a core; imports, above all.
TURN_S = 0.02  # Of a turn, besides what it is for: stopping and continuing processes, writing the file.


class Probe(NamedTuple):
    """Seconds to make one env, to reset it and to step it once."""

    make_s: float
    reset_s: float
    step_s: float


def probe(env_id: str) -> Probe:
    """Make an env and step it a little.

    Raises
    ------
    UsageError
        There is no such env, a package is missing, or its spaces have no fixed shape.
    EnvError
        It fails at once.
    """
    start = perf_counter()
    env = EnvMaker(env_id)()
    make_s = perf_counter() - start
    leaves(env.observation_space), leaves(env.action_space)  # Or they are refused.
    try:
        return Probe(make_s, *_look_at(env))
    except Exception as error:
        raise EnvError(f"--env {env_id}: {words_of(error)}") from error
    finally:
        env.close()


def _look_at(env: gymnasium.Env) -> tuple[float, float]:
    """Seconds of a reset, and of a step."""
    start = perf_counter()
    env.reset(seed=0)
    reset_s = perf_counter() - start
    action, num_steps, start = env.action_space.sample(), 0, perf_counter()
    while num_steps < LEAST_STEPS or perf_counter() - start < LOOK_S:
        _, _, terminated, truncated, _ = env.step(action)
        num_steps += 1
        if terminated or truncated:
            env.reset()
    return reset_s, (perf_counter() - start) / num_steps


def told_plan(comparison: Comparison, probes: dict[str, Probe]) -> list[str]:
    """What will be measured, point by point, what will not be and why, and about how long it takes."""
    told, seconds = [], 0.0
    for env in comparison.envs:
        seconds += START_S * len(comparison.all_systems) / comparison.num_cores
        for num_envs in comparison.num_envs:
            names = measured(comparison, Point(env, num_envs))
            told.append(f"{Point(env, num_envs)}: {', '.join(names)}")
            seconds += point_s(comparison, num_envs, len(names), probes[env])
    reasons = {
        f"{name}: {why}": None
        for point in comparison.points
        for name, system in comparison.all_systems.items()
        if (why := reason_to_skip(system, *point, comparison.num_cores))
    }
    told += [f"skipped: {each}" for each in reasons]
    turns = f"{counted(comparison.repeats, 'turn')} of {comparison.window_s:g} s each"
    return [*told, f"{turns}; about {seconds // 60:.0f} min {seconds % 60:.0f} s in all"]


def measured(comparison: Comparison, point: Point) -> list[str]:
    """The systems that apply at a point."""
    systems = comparison.all_systems.values()
    return [each.name for each in systems if not reason_to_skip(each, *point, comparison.num_cores)]


def point_s(comparison: Comparison, num_envs: int, num_systems: int, found: Probe) -> float:
    """About how long a point takes: making envs on all cores, then turns, in which one core steps them."""
    sweep_s = num_envs * found.step_s
    turn_s = max(comparison.window_s, sweep_s) + max(WARM_UP_SHARE * comparison.window_s, sweep_s)
    turn_s += num_envs * found.reset_s + TURN_S
    return num_systems * (comparison.repeats * turn_s + num_envs * found.make_s / comparison.num_cores)
