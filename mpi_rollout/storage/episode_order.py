"""The order of rows of /episodes: which cannot be, and which stand together."""

import numpy as np

ROWS_AT_A_TIME = 2**13


def first_impossible(rows: np.ndarray, num_steps: int, num_envs: int, to_next: int) -> int | None:
    """Return the first row that cannot be an episode of so many steps: it goes beyond them, or into another one.

    At least `to_next` rows are between two episodes of an env.
    """
    free = np.zeros(num_envs, np.int64)  # The row from which each env may have another episode.
    for first in range(0, len(rows), ROWS_AT_A_TIME):
        part = rows[first : first + ROWS_AT_A_TIME]
        env, start, ends = part["env_index"], part["start"], part["start"] + part["length"]
        fits = (env >= 0) & (env < num_envs) & (start >= 0) & (ends <= num_steps)
        fits &= (part["length"] > 0) | ((part["length"] == 0) & part["faulted"])
        fits &= part["terminated"] | part["truncated"] | (ends == num_steps)
        if fits.all():
            order = np.lexsort((start, env))
            after = np.append(0, ends[order][:-1] + to_next)
            after = np.where(first_of_group(env[order]), free[env[order]], after)
            fits[order] = start[order] >= after
            np.maximum.at(free, env, ends + to_next)
        if not fits.all():
            return first + int(fits.argmin())
    return None


def first_of_group(keys: np.ndarray) -> np.ndarray:
    """Tell for each element of a sorted array whether it is the first of its value."""
    return np.append(True, keys[1:] != keys[:-1])[: len(keys)]


def position_in_group(is_first: np.ndarray) -> np.ndarray:
    """Return for each element of a sorted array how many of its value are before it."""
    positions = np.arange(len(is_first))
    return positions - np.maximum.accumulate(np.where(is_first, positions, 0))
