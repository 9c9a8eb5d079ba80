"""Episodes once more: from their stored seeds and actions, to compare every byte that the env gives.

An episode is a function of its seed and its actions, for an env that keeps nothing from one episode to the next and
draws from its own generator alone.
"""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any

import h5py
import numpy as np

from mpi_rollout.commands.consent import Consent
from mpi_rollout.config import RolloutConfig, versions
from mpi_rollout.core.layout import RESULTS, Leaf, leaves, tree_of
from mpi_rollout.core.layout import describe as describe_space
from mpi_rollout.envs.env_maker import EnvMaker, maker_of
from mpi_rollout.envs.faults import raised_at
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import DataError, EnvError, RolloutError, UsageError, counted, words_of
from mpi_rollout.storage.reader import committed_episodes
from mpi_rollout.storage.unmarked import open_unmarked


def replay(path: str, num_episodes: int, seed: int, consent: Consent) -> dict[str, Any]:
    """Replay some episodes of a file that is known to be whole; return how many there were.

    Raises
    ------
    UsageError
        Its episodes cannot be replayed, or its envs may not be made.
    DataError
        Not all came out the same; the message has the first difference.
    """
    with open_unmarked(path) as file:
        config = RolloutConfig.from_json(file.attrs["config"], path)
        if not config.trajectories:
            raise UsageError(f"--replay: {path} has no trajectories")
        if config.vectorization_mode != "sync":
            raise UsageError(
                f"--replay: episodes of {path} have no seed of their own (-1), since with --vectorization-mode "
                f"{config.vectorization_mode} envs share a generator; without --replay the file can be verified"
            )
        consent.check(config, path)
        chosen = choose(committed_episodes(file), num_episodes, seed)
        differences = list(differences_of(file, maker_of(config), chosen))
        if differences:
            raise DataError(
                f"{path}: {len(chosen) - len(differences)} of {counted(len(chosen), 'episode')} come out the same; "
                f"{differences[0]}{changed_versions(json.loads(file.attrs['versions']))}"
            )
        return {"replayed": len(chosen), "replayed_steps": int(sum(row["length"] for row in chosen))}


def choose(episodes: np.ndarray, number: int, seed: int) -> list[np.void]:
    """As many of those that ended as of those that were under way, each spread evenly over the run.

    None that is faulted: its env has already shown that it does not come out the same.
    """
    episodes = episodes[~episodes["faulted"]]
    has_ended = episodes["terminated"] | episodes["truncated"]
    ended, under_way = np.flatnonzero(has_ended), np.flatnonzero(~has_ended)
    num_under_way = min(len(under_way), max(number // 2, number - len(ended)))
    draws = random.Random(seed)
    rows = [*_spread(ended, number - num_under_way, draws), *_spread(under_way, num_under_way, draws)]
    return [episodes[row] for row in rows]


def _spread(rows: np.ndarray, number: int, draws: random.Random) -> Iterator[int]:
    """One of each of `number` parts of equal size."""
    number = min(number, len(rows))
    for part in np.array_split(rows, number) if number else []:
        yield int(draws.choice(part))


def differences_of(file: h5py.File, make: EnvMaker, episodes: Sequence[np.void]) -> Iterator[str]:
    """Replay episodes, those of each env in an env of its own; yield what is wrong of each that is not the same."""
    by_env = sorted(episodes, key=lambda row: row["env_index"])
    for env_index, rows in groupby(by_env, key=lambda row: int(row["env_index"])):
        index = range(env_index, env_index + 1)
        with closing(_made(make, index)) as envs:
            replayed = Replay(file, envs)
            yield from filter(None, map(replayed.failure_or_difference, rows))


def _made(make: EnvMaker, index: range) -> LoopVectorEnv:
    try:
        return LoopVectorEnv(make.functions(index), first_env_index=index.start, infos=False)
    except RolloutError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvError(f"--replay: env {index.start} cannot be made: {words_of(error)}{raised_at(error)}") from error


class Replay:
    """Steps one env through stored episodes."""

    def __init__(self, file: h5py.File, envs: LoopVectorEnv):
        self._trajectories, self._envs = file["trajectories"], envs
        self._action_space = envs.single_action_space
        self._actions, self._observations = leaves(self._action_space), leaves(envs.single_observation_space)
        made = {
            "observation": describe_space(envs.single_observation_space),
            "action": describe_space(self._action_space),
        }
        if json.dumps(made) != file.attrs["spaces"]:
            raise DataError(
                f"the envs of the file have the spaces {file.attrs['spaces']}, here they have {json.dumps(made)}"
            )

    def _read(self, group: str, leaf: Leaf, row: np.void, more: int = 0) -> np.ndarray:
        """What is stored of an episode, shape (length + more, ...)."""
        dataset = self._trajectories[f"{group}/{leaf.path}".strip("/")]
        return dataset[row["start"] : row["start"] + row["length"] + more, row["env_index"]]

    def failure_or_difference(self, row: np.void) -> str:
        """Replay an episode; return what is wrong, if something is."""
        try:
            return self.difference(row)
        except (EnvError, DataError) as error:
            return f"{called(row)} fails in the replay: {error}"

    def difference(self, row: np.void) -> str:
        """Replay an episode; return the first difference, if there is one."""
        actions = [self._read("actions", leaf, row) for leaf in self._actions]
        observations = [self._read("observations", leaf, row, 1) for leaf in self._observations]
        results = [self._read("", leaf, row) for leaf in RESULTS]
        columns = self._envs.columns
        self._envs.reset(seed=[int(row["seed"])])
        for step in range(row["length"] + 1):
            for leaf, stored, got in zip(self._observations, observations, columns.observation_arrays, strict=True):
                if stored[step].tobytes() != got[0].tobytes():
                    return describe(row, step, f"observations/{leaf.path}".rstrip("/"), stored[step], got[0])
            if step == row["length"]:
                return ""
            self._envs.step(tree_of(self._action_space, (array[step : step + 1] for array in actions)))
            for leaf, stored, got in zip(RESULTS, results, columns.results, strict=True):
                if stored[step].tobytes() != got[0].tobytes():
                    return describe(row, step, leaf.path, stored[step], got[0])
        return ""


def describe(row: np.void, step: int, name: str, stored: Any, got: Any) -> str:
    """One line about a difference: of an array its first component that differs."""
    stored, got = np.atleast_1d(stored), np.atleast_1d(got)
    differs = (stored != got) & ~((stored != stored) & (got != got))
    place = tuple(int(index) for index in np.argwhere(differs)[0]) if differs.any() else (0,) * stored.ndim
    which = f"{name}{list(place)}" if stored.size > 1 else name
    values = f"{stored[place].item()!r} in the file, {got[place].item()!r} in the replay"
    return f"{called(row)} differs in its step {step:,}: {which} is {values}"


def called(row: np.void) -> str:
    """How an episode is called."""
    return f"the episode of env {row['env_index']} from step {row['start']:,} on, seed {row['seed']},"


def changed_versions(then: dict[str, str]) -> str:
    """What is installed in another version than the run had: the first thing to suspect."""
    now = versions()
    changed = [f"{name} {then[name]} then, {now[name]} now" for name in now if then.get(name, now[name]) != now[name]]
    return f" ({'; '.join(changed)})" if changed else ""
