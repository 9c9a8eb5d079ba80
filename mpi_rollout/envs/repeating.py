"""Whether an env gives the same episode again from the same seed: it is reset and stepped, and all bytes are compared.

An env may ignore the seed of its reset, heed the first one only, draw from a generator that nobody seeds, ask the
clock, or draw in its constructor what its episodes depend on.  So the beginning of an episode is taken, then twice
more in a new env.  What differs only in another process, such as the order of a set, cannot be seen so.
"""

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from time import perf_counter
from types import FrameType
from typing import NamedTuple, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces

from mpi_rollout.core.columns import RESULTS
from mpi_rollout.core.spaces import Tree, leaves
from mpi_rollout.envs.faults import Begun, EnvTimeout, Outcome, begun
from mpi_rollout.envs.infos import ActionSampler
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import EnvError, SignalInterrupt
from mpi_rollout.process.exits import end_if_forked

LOOK_S = 2.0  # A run looks at its first env where that takes less.
REPLACE_S = 10.0  # The time in which the env of a look is closed and made again.
NUM_MADE, NUM_EPISODES = 2, 3  # The envs that a look makes, and the episodes that it begins.
NUM_STEPS, STEPS_S = 200, 0.1  # The steps of an episode, and the seconds for them, at most.
SAME = "same"
ADVICE = (
    "seed every random generator of the env in reset(seed=...); if its constructor draws too, give it a fixed seed, "
    """such as --env-kwargs '{"seed": 1}'"""
)

Result = TypeVar("Result")
Row = dict[str, np.ndarray]  # What a reset or a step gave, by the names of a file's columns.


class Episode(NamedTuple):
    """The beginning of an episode: a row for the reset and for each step, and the actions."""

    rows: list[Row]
    actions: list[Tree]


class GlobalGenerators:
    """The state of Python's and NumPy's global generators at one moment, to which they can be set back."""

    def __init__(self) -> None:
        self._python, self._numpy = random.getstate(), np.random.get_state()

    def set_back(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)


def take_episode(
    env: gymnasium.Env, first: Begun, seed: int, again: Sequence[Tree] | None = None, most_s: float = STEPS_S
) -> Episode:
    """Step an env, whose reset gave `first`: with the actions `again`, or with random ones for at most `most_s`."""
    observation, info = first
    episode = Episode([_row(env.observation_space, observation)], [])
    random_actions, start, is_over = ActionSampler(env.action_space, seed), perf_counter(), False
    most = NUM_STEPS if again is None else len(again)
    while len(episode.actions) < most and not is_over and (again is not None or perf_counter() - start < most_s):
        action = random_actions.draw(info) if again is None else again[len(episode.actions)]
        episode.actions.append(deepcopy(action))
        observation, *outcome, info = env.step(action)
        end_if_forked()  # A child of the env that came back would take all other steps too.
        episode.rows.append(_row(env.observation_space, observation, tuple(outcome)))
        is_over = bool(outcome[1] or outcome[2])
    return episode


def _row(space: spaces.Space, observation: Tree, outcome: Outcome = ()) -> Row:
    """Copy what a reset or a step gave: envs may write into the same arrays again."""
    row = {
        "/".join(filter(None, ("observations", leaf.path))): np.array(leaf.of(observation), leaf.dtype)
        for leaf in leaves(space)
    }
    return row | {leaf.path: np.array(value, leaf.dtype) for leaf, value in zip(RESULTS, outcome, strict=False)}


def first_difference(one: Episode, other: Episode) -> str:
    """Return in words what differs first between two episodes; "" where every byte is the same."""
    for step, (first, second) in enumerate(zip(one.rows, other.rows, strict=False)):
        for name in first:
            if first[name].tobytes() != second[name].tobytes():
                where = f"step {step - 1}" if step else "the reset"
                return f"{name} of {where}: {_values(first[name], second[name])}"
    return ""


def _values(first: np.ndarray, second: np.ndarray) -> str:
    """Return two values that differ; of an array its first component that does."""
    if first.shape != second.shape:
        return f"of shape {first.shape}, then {second.shape}"
    one, two = np.atleast_1d(first), np.atleast_1d(second)
    differs = (one != two) & ~((one != one) & (two != two))
    place = tuple(map(int, np.argwhere(differs)[0])) if differs.any() else (0,) * one.ndim
    at = f"at {[*place]} " if first.ndim else ""
    return f"{at}{one[place].item()!r}, then {two[place].item()!r}"


def what_differs(first: Episode, second: gymnasium.Env, seed: int) -> str:
    """Take the same episode in another env twice; return in words what does not come again, or ""."""
    own, again = (take_episode(second, begun(second.reset(seed=seed)), seed, first.actions) for _ in range(2))
    if difference := first_difference(own, again):
        return f"reset twice with seed {seed}, it gives other {difference}"
    difference = first_difference(first, own)
    return f"made twice and reset with seed {seed}, it gives other {difference}" if difference else ""


def look(make: Callable[[], gymnasium.Env], seed: int) -> str:
    """Return in words what an env gives differently from the same seed, or ""."""
    with closing(make()) as env:
        first = take_episode(env, begun(env.reset(seed=seed)), seed)
    with closing(make()) as env:
        return what_differs(first, env, seed)


def not_repeated(seed_check: str) -> str:
    """Say what a look before a run has found, which its file stores; "" where it has found nothing."""
    return "" if seed_check in ("", SAME) else f"env 0 does not repeat its episodes: {seed_check}"


def look_before_run(envs: LoopVectorEnv, seed: int, generators: GlobalGenerators) -> str:
    """Look at the first of some envs that have not been reset; return SAME, what differs, or "" without a look.

    The run has the same bytes as without a look.  An env whose reset fails or takes long stays, and that reset is the
    run's first one.  Else a new env takes its place, made from the same global `generators` as that one.
    """
    if NUM_MADE * envs.make_s > LOOK_S:
        return ""
    start, env, after = perf_counter(), envs.envs[0], GlobalGenerators()
    outcome, error = _attempt(lambda: env.reset(seed=seed))
    left_s = LOOK_S - NUM_MADE * envs.make_s - NUM_EPISODES * (perf_counter() - start)
    if error is not None or left_s < 0:
        envs.begin_ahead(0, seed, outcome, error)
        return ""
    with _interrupted_after(LOOK_S):
        found, _ = _attempt(lambda: _look_at(envs, begun(outcome), seed, min(STEPS_S, left_s / NUM_EPISODES)))
    generators.set_back()
    with _interrupted_after(REPLACE_S):  # Its `close` may hang.
        _replace_first(envs)
    after.set_back()
    return "" if found is None else found or SAME


def _look_at(envs: LoopVectorEnv, first: Begun, seed: int, most_s: float) -> str:
    episode = take_episode(envs.envs[0], first, seed, most_s=most_s)
    _replace_first(envs)
    return what_differs(episode, envs.envs[0], seed)


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise EnvTimeout in what takes longer, such as a step that waits; C code that computes goes on to its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_over = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if not is_over.is_set():
            raise EnvTimeout

    before = signal.signal(signal.SIGALRM, interrupt)
    timer = threading.Timer(seconds, signal.pthread_kill, (threading.get_ident(), signal.SIGALRM))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        is_over.set()
        timer.cancel()
        timer.join()  # Its signal has come, or never will.
        signal.signal(signal.SIGALRM, before)


def _attempt(call: Callable[[], Result]) -> tuple[Result | None, BaseException | None]:
    """Return what a call returns, or None and what it raises: the run itself is to tell how its envs fail."""
    try:
        result = call()
        end_if_forked()
        return result, None
    except SignalInterrupt:
        raise
    except BaseException as error:
        end_if_forked(error)
        return None, error


def _replace_first(envs: LoopVectorEnv) -> None:
    try:
        envs.replace(0)
    except EnvError as error:
        error.args = (f"{error}; a look at its seeds had closed it: leave that out by --no-seed-check",)
        raise
