"""What is done about envs that fail: what is looked for, and what they may be forgiven."""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.layout import RESULTS, noun
from mpi_rollout.core.spaces import Bounds, Leaf, bounds_of, first_of, leaf_spaces, leaves
from mpi_rollout.errors import DataError
from mpi_rollout.exchange.world import claimed_rank

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True)
class OnFault:
    """What to do about envs that fail.

    Parameters
    ----------
    max_restarts
        How often each env may be made anew when it has failed; 0 is never: the first failure ends the run.
    check_finite
        NaN and infinity in observations and rewards are failures.
    check_bounds
        Observations outside of their space are.
    timeout_s
        A call of an env that takes longer is one; None is no limit.
    strict_dtypes
        Observations of another dtype than their space's end the run, instead of being cast.
    """

    max_restarts: int = 0
    check_finite: bool = False
    timeout_s: float | None = None
    strict_dtypes: bool = False
    check_bounds: bool = False


ABORT = OnFault()


class EnvTimeout(BaseException):
    """Raised in the midst of a call of an env that takes too long.  No `Exception`, which envs may catch."""


class WrongValue(Exception):
    """An env gave NaN, infinity, or an observation outside of its space."""


class OutputChecks:
    """Looks for wrong values in what envs give, as they will be stored; false where there is nothing to look for."""

    def __init__(self, space: spaces.Space, on_fault: OnFault):
        self._kinds = ("not_finite",) * on_fault.check_finite + ("out_of_bounds",) * on_fault.check_bounds
        infinite = np.array(-np.inf), np.array(np.inf)
        self._leaves: list[tuple[Leaf, Bounds]] = []
        for leaf, part in zip(leaves(space), leaf_spaces(space), strict=True):
            is_bounded = on_fault.check_bounds or leaf.dtype.kind != "f"
            checked = Bounds(leaf.dtype, *(bounds_of(part) if is_bounded else infinite))
            if set(checked.kinds) & set(self._kinds):
                self._leaves.append((leaf, checked))
        reward = RESULTS[0]
        self._reward = [(reward, Bounds(reward.dtype, *infinite))] if on_fault.check_finite else []

    def __bool__(self) -> bool:
        return bool(self._leaves or self._reward)

    def in_each(self, observations: Sequence[Any], rewards: Sequence[Any] = ()) -> dict[int, str]:
        """What is wrong by place, in one observation and reward per env.

        What is no array of numbers is left out: whoever stores it will say so.
        """
        found: dict[int, str] = {}
        for leaf, checked in self._leaves:
            with suppress(TypeError, LookupError):
                parts = [leaf.of(observation) for observation in observations] if leaf.keys else observations
                self._look(found, leaf, checked, parts)
        for leaf, checked in self._reward if len(rewards) else ():
            self._look(found, leaf, checked, rewards)
        return found

    def in_batch(self, observations: Any, rewards: np.ndarray) -> dict[int, str]:
        """The same in batched observations."""
        found: dict[int, str] = {}
        for leaf, checked in self._leaves:
            self._look(found, leaf, checked, leaf.of(observations))
        for leaf, checked in self._reward:
            self._look(found, leaf, checked, rewards)
        return found

    def _look(self, found: dict[int, str], leaf: Leaf, checked: Bounds, parts: Sequence[Any]) -> None:
        try:
            values = np.concatenate(parts) if leaf.shape else np.array(parts)
            values = values.astype(leaf.dtype, copy=False).reshape(len(parts), *leaf.shape)
        except (TypeError, ValueError):
            return
        if checked.hold(values):
            return
        for kind, is_wrong in checked.wrong(values).items():
            places = np.flatnonzero(is_wrong.reshape(len(parts), -1).any(axis=1)) if kind in self._kinds else ()
            for place in map(int, places):
                where = first_of(is_wrong[place])
                found.setdefault(place, f"its {noun(leaf)} is {checked.words(kind, values[place, *where], where)}")


def named(function: Callable[..., Any], env_index: int) -> Callable[..., Any]:
    """The same function, with a frame above its own whose names are the rank and the env.

    A stack that `faulthandler` writes has names alone: this is how it tells which env it was.
    """

    def calling(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    place, name = f"<rank {claimed_rank()} ({os.uname().nodename})>", f"env {env_index}"
    calling.__code__ = calling.__code__.replace(co_filename=place, co_name=name, co_qualname=name)
    return calling


def is_ours(path: str) -> bool:
    """Tell whether a frame's file is one of this program, or a name that `named` gave it."""
    return path.startswith(("<rank ", PACKAGE))


def raised_at(error: BaseException) -> str:
    """Where an error came from: the last file that is none of this program's, and the line; or nothing."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_ours(frame.filename)]
    return f" ({os.path.basename(frames[-1].filename)}, line {frames[-1].lineno})" if frames else ""


def of_old_gym() -> str:
    """How an env of the old gym becomes one of Gymnasium."""
    version = str(getattr(sys.modules.get("gym"), "__version__", "0.21"))
    api = "26" if version.startswith("0.26") else "21"
    return f"return shimmy.GymV{api}CompatibilityV0(env=env), after pip install 'shimmy[gym-v{api}]'"


def no_outcome(outcomes: Sequence[Any], first_env_index: int) -> DataError:
    """Name the first env whose step did not return what a step returns."""
    is_good = [isinstance(outcome, tuple | list) and len(outcome) == 5 for outcome in outcomes]
    index = is_good.index(False)
    got = f"{len(outcomes[index])} values" if isinstance(outcomes[index], tuple) else type(outcomes[index]).__name__
    return DataError(
        f"env {first_env_index + index}: its step should return observation, reward, terminated, truncated "
        f"and info, got {got}; return terminated and truncated in the place of done; for an env of gym itself, "
        f"{of_old_gym()}"
    )


def begun(outcome: Any) -> tuple[Any, Any]:
    """The observation and the info of a reset.

    Raises
    ------
    DataError
        It returned something else, as resets of the old gym do.
    """
    if isinstance(outcome, tuple | list) and len(outcome) == 2:
        return outcome[0], outcome[1]
    got = f"{type(outcome).__name__}; return both; for an env of gym itself, {of_old_gym()}"
    raise DataError(f"its reset should return observation and info, got {got}")
