"""What is done about envs that fail: what is looked for, and what they may be forgiven."""

import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpi_rollout.layout import Leaf
from mpi_rollout.mpi import claimed_rank

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
    timeout_s
        A call of an env that takes longer is one; None is no limit.
    strict_dtypes
        Observations of another dtype than their space's end the run, instead of being cast.
    """

    max_restarts: int = 0
    check_finite: bool = False
    timeout_s: float | None = None
    strict_dtypes: bool = False


ABORT = OnFault()


class EnvTimeout(BaseException):
    """Raised in the midst of a call of an env that takes too long.  No `Exception`, which envs may catch."""


class NotFinite(Exception):
    """An env gave NaN or infinity."""


def not_finite(columns: Iterable[tuple[str, np.dtype, Sequence[Any]]]) -> dict[int, str]:
    """Find the envs that gave NaN or infinity.

    Parameters
    ----------
    columns
        What to call it, the dtype that it is stored as, and what each env gave.

    Returns
    -------
    By place what is not finite.  What is no array of numbers is left out: whoever stores it will say so.
    """
    found: dict[int, str] = {}
    for name, dtype, parts in columns:
        if are_finite(parts, dtype):
            continue
        try:
            array = np.asarray(parts).astype(dtype)
        except (TypeError, ValueError):
            continue
        for place, *where in np.argwhere(~np.isfinite(array)).tolist():
            at = f" at [{', '.join(map(str, where))}]" if where else ""
            found.setdefault(place, f"its {name} is {array[(place, *where)]}{at}")
    return found


def are_finite(parts: Sequence[Any], dtype: np.dtype) -> bool:
    """Tell, soon, that all is well; False where that is not sure."""
    try:
        array = np.concatenate(parts) if np.shape(parts[0]) else np.array(parts)
        return bool(np.isfinite(array.astype(dtype, copy=False)).all())
    except (TypeError, ValueError, IndexError):
        return False


def floats_of(observations: Sequence[Leaf], outputs: Any) -> Iterator[tuple[str, np.dtype, Any]]:
    """The parts of observations that can be NaN, with their names and dtypes."""
    for leaf in observations:
        if leaf.dtype.kind == "f":
            name = f"observation {leaf.path!r}" if leaf.path else "observation"
            with suppress(TypeError, LookupError):
                yield name, leaf.dtype, [leaf.of(output) for output in outputs] if leaf.keys else outputs


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
