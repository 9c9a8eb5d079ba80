"""The constants of the model, fitted to what jobs took."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from step_model import NUM_EXCHANGE_PARTS, Constants, Way, Workload, exchange_parts, predict

NEEDED_POINTS = 5  # Extra-P asks for as many before it makes a model.
_ROOT, _MESSAGES = [0, 1], [2, 3, 4]  # Parts of an exchange.
READY = Way(is_ready=True)


class NoFit(ValueError):
    """The points do not carry the model; the message says why."""


@dataclass(frozen=True)
class ExchangePoint:
    """What an exchange took that was measured; `num_rows` are the envs of all ranks."""

    num_ranks: int
    num_rows: int
    nbytes: float
    exchange_s: float
    policy_s: float


@dataclass(frozen=True)
class Calibration:
    """Constants, and the largest relative error of the exchange at a point that they were fitted to."""

    constants: Constants
    num_points: int
    worst_error: float


def calibrate(points: Sequence[ExchangePoint]) -> Calibration:
    """Fit the constants to what was measured, by least squares of relative errors, none below 0.

    One rank exchanges no messages, and nobody shares its core: what the root does by itself is fitted to that
    alone, and only what is left to the jobs of several ranks.  A study with a single number of envs on one rank does
    not tell envs and ranks from bytes: then all of that is in the bytes.

    NoFit if there are too few points, or they do not tell the parts of the model apart.
    """
    alone = [point for point in points if point.num_ranks == 1]
    several = [point for point in points if point.num_ranks > 1]
    sizes = {point.num_rows for point in alone}
    if not sizes or len(several) < NEEDED_POINTS:
        raise NoFit(f"{len(several)} points of several ranks, {NEEDED_POINTS} and one of one rank are needed")
    root_parts, message_parts = (_ROOT, _MESSAGES) if len(sizes) > 1 else (_ROOT[:1], _MESSAGES[1:])
    rows, values = _exchanges(alone)
    exchange, policy = np.zeros(NUM_EXCHANGE_PARTS), np.zeros(2)
    exchange[root_parts] = non_negative(rows[:, root_parts], values)
    policy_parts = _ROOT if len(sizes) > 1 else _ROOT[1:]
    policy[policy_parts] = non_negative(rows[:, policy_parts], np.array([max(p.policy_s, 1e-9) for p in alone]))
    rows, values = _exchanges(several)
    exchange[message_parts] = non_negative(rows[:, message_parts], values, rows[:, root_parts] @ exchange[root_parts])
    rows, values = _exchanges(points)
    constants = Constants(*exchange.tolist(), *policy.tolist())
    return Calibration(constants, len(points), float(np.abs(rows @ exchange / values - 1).max()))


def fit_writes(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Fit `commit_s` and `write_s_per_env` to rows of a file that is committed once, and seconds that writing took."""
    rows, seconds = np.array(points).T
    commit_s, per_env_s = non_negative(np.stack([np.ones(len(points)), rows], axis=1), seconds).tolist()
    return commit_s, per_env_s


def fit_ready(points: Sequence[tuple[int, float, float]]) -> tuple[float, float]:
    """Fit `serve_s` and `away_s`.  A point: ranks with envs, seconds in their envs, seconds until they are served."""
    from scipy.optimize import least_squares

    def errors(logs: np.ndarray) -> list[float]:
        constants = Constants(serve_s=math.exp(logs[0]), away_s=math.exp(logs[1]))
        works = [(n, Workload(1, env_s, 0.0, 0.0, 0.0), seconds) for n, env_s, seconds in points]
        return [predict(constants, work, n + 1, READY).seconds / seconds - 1 for n, work, seconds in works]

    serve_s, away_s = np.exp(least_squares(errors, np.log([1e-4, 1e-3])).x).tolist()
    return serve_s, away_s


def non_negative(columns: np.ndarray, values: np.ndarray, known: np.ndarray | float = 0.0) -> np.ndarray:
    """Fit `values` by a sum of columns, none of them less than 0 times.  Errors are relative to `values`.

    `known` is a part of the values that is not to be fitted.  NoFit if the points do not tell the columns apart.
    """
    from scipy.optimize import nnls

    scale = np.abs(columns).max(axis=0)
    if (values <= 0).any() or (scale == 0).any():
        raise NoFit("a value is not positive")
    relative = columns / scale / values[:, None]
    if np.linalg.matrix_rank(relative, tol=1e-9 * np.linalg.norm(relative, 2)) < columns.shape[1]:
        raise NoFit("the points do not tell the parts of the model apart")
    return nnls(relative, 1 - known / values)[0] / scale


def _exchanges(points: Sequence[ExchangePoint]) -> tuple[np.ndarray, np.ndarray]:
    rows = [exchange_parts(point.num_ranks, point.num_rows, point.nbytes) for point in points]
    return np.stack(rows), np.array([point.exchange_s for point in points])
