"""Envs that fail: which failures are looked for, what is done about them, and where they came from."""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.columns import RESULTS, is_result, noun
from mpi_rollout.core.spaces import Bounds, Leaf, Tree, bounds_of, first_of, leaf_spaces, leaves
from mpi_rollout.envs.inputs import Info
from mpi_rollout.errors import DataError, EnvError, RolloutError, is_ours
from mpi_rollout.exchange.world import claimed_rank, rank_and_host
from mpi_rollout.options import SharedOptions
from mpi_rollout.process.exits import end_if_forked
from mpi_rollout.process.start import shadowing
from mpi_rollout.text import message_of, words_of

Given = ParamSpec("Given")
Result = TypeVar("Result")
Outcome = tuple[Tree, ...]  # What the step of an env returned, before anybody has looked at it.
Begun = tuple[Tree, Info]  # Observation and info of a reset.
Parts = Sequence[Tree]  # One observation or reward per env, as the envs gave them.

OLD_RESET = "; it must take them: def reset(self, *, seed=None, options=None)"


@dataclass(frozen=True)
class OnFault:
    """What to do about envs that fail."""

    max_restarts: int = 0  # Of each env; with 0 the first failure ends the run.
    check_finite: bool = False  # NaN and infinity in observations and rewards are failures.
    timeout_s: float | None = None  # A call of an env that takes longer is a failure; None is no limit.
    strict_dtypes: bool = False  # Observations of another dtype than their space's end the run, instead of being cast.
    check_bounds: bool = False  # Observations outside of their space are failures.

    @classmethod
    def of(cls, options: SharedOptions) -> "OnFault":
        """Read the options of a run or of `connect`."""
        checks = options.env_checks.split(",")
        return cls(
            options.max_env_restarts, "finite" in checks, options.env_timeout_s, "dtypes" in checks, "bounds" in checks
        )


ABORT = OnFault()


class EnvTimeout(BaseException):
    """A call of an env takes too long; raised during the call.  It is no `Exception`, which envs may catch."""


class WrongValue(Exception):
    """An env gave NaN, infinity, or an observation outside of its space."""


class OutputChecks:
    """A search for wrong values in what envs give, as it will be stored; false where there is nothing to look for."""

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

    def in_parts(self, observations: Parts, rewards: Parts = ()) -> dict[int, str]:
        """Find wrong values in one observation and reward per env; return them by their place in the space.

        What is no array of numbers is left out: the writer of the columns will refuse it.
        """
        wrong: dict[int, str] = {}
        for leaf, checked in self._leaves:
            with suppress(TypeError, LookupError):
                parts = [leaf.of(observation) for observation in observations] if leaf.keys else observations
                self._look(wrong, leaf, checked, parts)
        for leaf, checked in self._reward if len(rewards) else ():
            self._look(wrong, leaf, checked, rewards)
        return wrong

    def in_batch(self, observations: object, rewards: np.ndarray) -> dict[int, str]:
        """Find wrong values in batched observations and rewards; return them by their place in the space."""
        wrong: dict[int, str] = {}
        for leaf, checked in self._leaves + self._reward:
            self._look(wrong, leaf, checked, rewards if is_result(leaf) else leaf.of(observations))
        return wrong

    def _look(self, wrong: dict[int, str], leaf: Leaf, checked: Bounds, parts: Parts | np.ndarray) -> None:
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
                wrong.setdefault(place, f"its {noun(leaf)} is {checked.words(kind, values[place, *where], where)}")


def named(function: Callable[Given, Result], env_index: int) -> Callable[Given, Result]:
    """Return the same function, below a frame with the rank and the env for names, which is all that stacks have."""

    def calling(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        return function(*args, **kwargs)

    place, name = f"<{rank_and_host(claimed_rank())}>", f"env {env_index}"
    calling.__code__ = calling.__code__.replace(co_filename=place, co_name=name, co_qualname=name)
    return calling


def described(error: BaseException, what: str) -> RolloutError:
    """Return the error of an env's failure, with the env and its step before the cause."""
    if isinstance(error, WrongValue | DataError):
        return DataError(f"{what}: {error}")
    if isinstance(error, SystemExit):
        return EnvError(f"{what}: called sys.exit({message_of(error)})")
    words = str(error) if isinstance(error, EnvTimeout) else said_by(error)
    is_old_reset = isinstance(error, TypeError) and "reset() got an unexpected keyword argument" in words
    return EnvError(f"{what}: {words}{OLD_RESET if is_old_reset else ''}")


def raised_at(error: BaseException) -> str:
    """Return where an error came from: the last file outside of this program, and the line; or nothing."""
    frame = _last_frame(error)
    return "" if frame is None else f" ({os.path.basename(frame.filename)}, line {frame.lineno})"


def said_by(error: BaseException) -> str:
    """Return the words of what user code raised; where there is no message, as after `assert`, the code that did it."""
    has_code = isinstance(error, Exception) and not message_of(error)
    frame = _last_frame(error) if has_code else None
    return words_of(error) if frame is None or not frame.line else f"{words_of(error)} in `{frame.line:.80}`"


def _last_frame(error: BaseException) -> traceback.FrameSummary | None:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_ours(frame.filename)]
    return frames[-1] if frames else None


@contextmanager
def making(envs: str) -> Iterator[None]:
    """Name the envs in the EnvError of what is raised where they are made."""
    try:
        yield
    except (RolloutError, KeyboardInterrupt):
        raise
    except BaseException as error:
        end_if_forked(error)
        failure, shadow = described(error, f"{envs} cannot be made"), shadowing(error, is_named=True)
        failure.args = (*failure.args, raised_at(error), f"; {shadow}" if shadow else "")
        raise failure from error


def of_old_gym() -> str:
    """Say how an env of the old gym becomes one of Gymnasium."""
    version = str(getattr(sys.modules.get("gym"), "__version__", "0.21"))
    api = "26" if version.startswith("0.26") else "21"
    return f"return shimmy.GymV{api}CompatibilityV0(env=env), after pip install 'shimmy[gym-v{api}]'"


def no_outcome(outcomes: Sequence[Outcome], first_env_index: int) -> DataError:
    """Name the first env whose step did not return what a step returns."""
    is_good = [isinstance(outcome, tuple | list) and len(outcome) == 5 for outcome in outcomes]
    index = is_good.index(False)
    got = f"{len(outcomes[index])} values" if isinstance(outcomes[index], tuple) else type(outcomes[index]).__name__
    return DataError(
        f"env {first_env_index + index}: its step should return observation, reward, terminated, truncated "
        f"and info, got {got}; return terminated and truncated in the place of done; for an env of gym itself, "
        f"{of_old_gym()}"
    )


def begun(outcome: object) -> Begun:
    """Return the observation and the info of a reset; DataError for something else, as resets of the old gym return."""
    if isinstance(outcome, tuple | list) and len(outcome) == 2:
        return outcome[0], outcome[1]
    got = f"{type(outcome).__name__}; return both; for an env of gym itself, {of_old_gym()}"
    raise DataError(f"its reset should return observation and info, got {got}")


def not_reset(ended: Sequence[int], first_env_index: int) -> DataError:
    """Name the first env that is stepped after its episode's end."""
    others = f" and {len(ended) - 1} others" if len(ended) > 1 else ""
    return DataError(
        f"env {first_env_index + ended[0]}{others}: its episode has ended, and with autoreset_mode DISABLED nothing "
        'resets it; before the next step, call reset(options={"reset_mask": terminations | truncations})'
    )
