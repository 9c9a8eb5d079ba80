"""Episodes that the end of the data cuts: what a run writes of them at its end, and what follows of a killed one."""

from collections.abc import Iterator

import numpy as np

from mpi_rollout.core.seeding import seeds_of_episodes
from mpi_rollout.storage.episodes import StoredResults, make_table, num_reset_rows_of
from mpi_rollout.storage.schema import EPISODE, is_recording
from mpi_rollout.storage.stored_run import StoredRun

ROWS_NBYTES = 2**24


def unfinished_episodes(source: StoredRun) -> np.ndarray:
    """Return the rows of the episodes that are neither terminated nor truncated, in order of envs."""
    rows = source.episodes
    has_ended = rows["terminated"] | rows["truncated"]
    if source.is_sealed or not has_ended.all():
        return rows[~has_ended]
    if is_recording(source.attributes):
        return _of_table(source)
    return _computed(source, rows)


def _of_table(source: StoredRun) -> np.ndarray:
    """Compute them from all steps: where episodes begin follows from those before and from /resets."""
    table = make_table(source.config, source.attributes, (), source.resets)
    for results in _results(source, 0, source.num_steps):
        table.add(results, 0, len(results.rewards))
    return table.unfinished(source.num_steps)


def _computed(source: StoredRun, rows: np.ndarray) -> np.ndarray:
    """Compute them from the steps since the last ends: a killed run has not written them."""
    num_envs, num_steps = source.config.num_envs, source.num_steps
    to_next = num_reset_rows_of(source.attributes)
    starts, counts = np.zeros(num_envs, np.int64), np.bincount(rows["env_index"], minlength=num_envs)
    np.maximum.at(starts, rows["env_index"], rows["start"] + rows["length"] + to_next)
    returns = np.zeros(num_envs)
    for results in _results(source, int(starts.min()), num_steps):
        _take(results, starts, returns, to_next)
    env = np.flatnonzero(starts < num_steps)
    unfinished = np.zeros(len(env), EPISODE)
    unfinished["env_index"], unfinished["start"], unfinished["length"] = env, starts[env], num_steps - starts[env]
    unfinished["return"], unfinished["seed"] = returns[env], _seeds(source, env, counts[env])
    return unfinished


def _take(results: StoredResults, starts: np.ndarray, returns: np.ndarray, to_next: int) -> None:
    """Take in rows.  An end in them is of an env that is lost: it begins after that, if it comes back."""
    steps = results.start + np.arange(len(results.rewards))[:, None]
    ends = (results.terminations | results.truncations) & (steps >= starts)
    last = np.where(ends, steps, -1).max(axis=0, initial=-1)
    is_lost = last >= 0
    starts[is_lost], returns[is_lost] = last[is_lost] + 1 + to_next, 0.0
    rewards = np.where(steps >= starts, results.rewards, 0.0)
    returns[:] = np.add.accumulate(np.concatenate([returns[None], rewards]), axis=0)[-1]  # In the order of steps.


def _results(source: StoredRun, start: int, stop: int) -> Iterator[StoredResults]:
    rows = max(ROWS_NBYTES // (8 * source.config.num_envs), 1)
    names = ("rewards", "terminations", "truncations")
    for row in range(start, stop, rows):
        yield StoredResults(row, *(source.read(name, np.s_[row : min(row + rows, stop)]) for name in names))


def _seeds(source: StoredRun, env: np.ndarray, episode: np.ndarray) -> np.ndarray:
    config = source.config
    has_seeds = bool(
        np.all(np.asarray(source.attributes.get("has_episode_seeds", config.vectorization_mode == "sync")))
    )
    return seeds_of_episodes(config.seed, env, episode) if has_seeds else np.full(len(env), -1)
