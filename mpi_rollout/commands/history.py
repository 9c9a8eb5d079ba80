"""All steps of a run of natively vectorized envs once more, where these cannot begin amid a run.

Here is also what any replay checks and says.
"""

import json
from collections.abc import Mapping
from contextlib import closing
from time import perf_counter
from typing import Any

import h5py
import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.collect.resuming import check_history, rows_differ
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.layout import RESULTS
from mpi_rollout.core.spaces import describe as describe_space
from mpi_rollout.core.spaces import leaves, tree_of
from mpi_rollout.envs.env_maker import maker_of
from mpi_rollout.envs.native import NativeVectorEnv
from mpi_rollout.envs.replaying import Difference
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.storage.objects import parsed
from mpi_rollout.storage.reader import committed_episodes, reproducibility_of

READ_NBYTES = 2**24  # Of a dataset, at a time.


def replay_history(file: h5py.File, config: RolloutConfig, path: str) -> dict[str, int]:
    """Take all steps of natively vectorized envs again, which cannot begin amid a run.

    Raises
    ------
    DataError
        A difference.
    UsageError
        It would take longer than `resuming.LONGEST_HISTORY_S`.
    """
    trajectories, num_steps = file["trajectories"], int(file["trajectories"].attrs["num_steps"])
    with closing(maker_of(config).native(range(config.num_envs), config.seed)) as envs:
        check_spaces(file.attrs, envs)
        check_promise(file, envs)
        groups = [
            [StoredRows(trajectories[f"{group}/{leaf.path}".strip("/")]) for leaf in leaves(space)]
            for group, space in (("actions", envs.single_action_space), ("observations", envs.single_observation_space))
        ]
        actions, columns = groups[0], groups[1] + [StoredRows(trajectories[leaf.path]) for leaf in RESULTS]
        observation_leaves = leaves(envs.single_observation_space)
        observations, _ = envs.reset(seed=config.seed)
        outcome, start_s = [leaf.of(observations) for leaf in observation_leaves], perf_counter()
        for step in range(num_steps + 1):
            # The results of a step are in its row, and the observations after it in the next one.
            for column, given, row in zip(columns, outcome, [step] * len(groups[1]) + [step - 1] * 3, strict=False):
                check_row(path, column, given, row)
            check_history(perf_counter() - start_s, step, num_steps, "without --replay the file can be verified")
            if step < num_steps:
                batch = tree_of(envs.single_action_space, [column[step] for column in actions])
                observations, *results, _ = envs.step(batch)
                outcome = [*(leaf.of(observations) for leaf in observation_leaves), *results]
    return {"replayed": len(committed_episodes(file)), "replayed_steps": num_steps * config.num_envs}


class StoredRows:
    """The rows of a dataset, read many at a time: HDF5 reads and checks a whole chunk for each read."""

    def __init__(self, dataset: h5py.Dataset):
        self.name, self._dataset = dataset.name.removeprefix("/trajectories/"), dataset
        self._first, self._rows = 0, dataset[:0]

    def __getitem__(self, row: int) -> np.ndarray:
        if not self._first <= row < self._first + len(self._rows):
            row_nbytes = max(1, self._dataset.dtype.itemsize * int(np.prod(self._dataset.shape[1:], dtype=np.int64)))
            self._first, self._rows = row, self._dataset[row : row + max(1, READ_NBYTES // row_nbytes)]
        return np.asarray(self._rows[row - self._first])


def check_row(path: str, column: StoredRows, given: np.ndarray, row: int) -> None:
    """Raise DataError where a row of a column is not what natively vectorized envs have given."""
    stored = column[row]
    replayed = np.asarray(given).astype(stored.dtype, copy=False)
    differs = rows_differ(replayed, stored)
    if differs.any():
        env = int(differs.argmax())
        difference = Difference(row, column.name, stored[env], replayed[env])
        raise DataError(f"{path}: env {env} differs in row {describe(difference)}")


def check_spaces(attributes: Mapping[str, Any], envs: VectorEnv) -> None:
    """Raise DataError if the envs of a file with these attributes have other spaces here."""
    spaces = {"observation": envs.single_observation_space, "action": envs.single_action_space}
    described, stored = (
        {name: describe_space(space) for name, space in spaces.items()},
        parsed(attributes, "spaces", dict),
    )
    for other in ("extra", "info"):  # Of the policy, and what is not compared.
        stored.pop(other, None)
    if json.dumps(described) != json.dumps(stored):
        of_file, here = json.dumps(stored), json.dumps(described)
        raise DataError(f"the envs of the file have the spaces {of_file}, here they have {here}")


def check_promise(file: h5py.File, envs: NativeVectorEnv) -> None:
    """Raise UsageError if the envs of a file promise something else here: they give other data."""
    if (promised := reproducibility_of(file)) != envs.reproducibility:
        raise UsageError(
            f"--replay: the envs of the file promised {promised} ({promised.words}), here they promise "
            f"{envs.reproducibility} ({envs.reproducibility.words}), which gives other data; replay it with the "
            "versions that wrote it"
        )


def describe(difference: Difference) -> str:
    """Describe a difference in one line: of an array its first component that differs."""
    stored, replayed = np.atleast_1d(difference.stored), np.atleast_1d(difference.replayed)
    differs = (stored != replayed) & ~((stored != stored) & (replayed != replayed))
    place = tuple(int(index) for index in np.argwhere(differs)[0]) if differs.any() else (0,) * stored.ndim
    name = f"{difference.name}{list(place)}" if stored.size > 1 else difference.name
    values = f"{stored[place].item()!r} in the file, {replayed[place].item()!r} in the replay"
    return f"{difference.step:,}: {name} is {values}"
