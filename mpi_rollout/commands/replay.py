"""`verify --replay`: some episodes of a file once more, from their seeds and actions, to compare every byte."""

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
from mpi_rollout.core.layout import RESULTS
from mpi_rollout.core.spaces import Leaf, leaves
from mpi_rollout.core.spaces import describe as describe_space
from mpi_rollout.envs.env_maker import EnvMaker, maker_of
from mpi_rollout.envs.faults import raised_at
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.replaying import Difference, StoredEpisode, replay_episode
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
    """Choose as many episodes that ended as were under way, both spread evenly over the run.

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
    """Draw one of each of `number` parts of equal size."""
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
        spaces = {"observation": envs.single_observation_space, "action": envs.single_action_space}
        described = json.dumps({name: describe_space(space) for name, space in spaces.items()})
        if described != file.attrs["spaces"]:
            raise DataError(f"the envs of the file have the spaces {file.attrs['spaces']}, here they have {described}")

    def failure_or_difference(self, row: np.void) -> str:
        """Replay an episode; return what is wrong, if something is."""
        try:
            difference = replay_episode(self._envs, self._episode(row))
        except (EnvError, DataError) as error:
            return f"{called(row)} fails in the replay: {error}"
        return "" if difference is None else f"{called(row)} differs in its step {describe(difference)}"

    def _episode(self, row: np.void) -> StoredEpisode:
        action_leaves, observation_leaves = (
            leaves(space) for space in (self._envs.single_action_space, self._envs.single_observation_space)
        )
        return StoredEpisode(
            int(row["seed"]),
            [self._read("actions", leaf, row) for leaf in action_leaves],
            [self._read("observations", leaf, row, 1) for leaf in observation_leaves],
            [self._read("", leaf, row) for leaf in RESULTS],
        )

    def _read(self, group: str, leaf: Leaf, row: np.void, num_more: int = 0) -> np.ndarray:
        """Read what is stored of an episode, of shape (length + num_more, ...)."""
        dataset = self._trajectories[f"{group}/{leaf.path}".strip("/")]
        return dataset[row["start"] : row["start"] + row["length"] + num_more, row["env_index"]]


def describe(difference: Difference) -> str:
    """Describe a difference in one line: of an array its first component that differs."""
    stored, replayed = np.atleast_1d(difference.stored), np.atleast_1d(difference.replayed)
    differs = (stored != replayed) & ~((stored != stored) & (replayed != replayed))
    place = tuple(int(index) for index in np.argwhere(differs)[0]) if differs.any() else (0,) * stored.ndim
    name = f"{difference.name}{list(place)}" if stored.size > 1 else difference.name
    values = f"{stored[place].item()!r} in the file, {replayed[place].item()!r} in the replay"
    return f"{difference.step:,}: {name} is {values}"


def called(row: np.void) -> str:
    """Return how an episode is called."""
    return f"the episode of env {row['env_index']} from step {row['start']:,} on, seed {row['seed']},"


def changed_versions(then: dict[str, str]) -> str:
    """Say what is installed in another version than the run had: the first thing to suspect."""
    now = versions()
    changed = [f"{name} {then[name]} then, {now[name]} now" for name in now if then.get(name, now[name]) != now[name]]
    return f" ({'; '.join(changed)})" if changed else ""
