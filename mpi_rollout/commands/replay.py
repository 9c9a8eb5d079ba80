"""`verify --replay`: some episodes of a file once more, from their seeds and actions, to compare every byte.

A file must not choose code that runs on the computer of who reads it, and making an env imports modules and calls what
is in them.  So the envs of a file are made only if they are Gymnasium's own, or if the user says on the command line
that they are what is expected.  Gymnasium's own have arguments that name files to read (`xml_file`) or open windows
(`render_mode`): those of a file may be numbers only.
"""

import json
import random
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import groupby

import gymnasium
import h5py
import numpy as np
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id
from gymnasium.vector import VectorEnv

from mpi_rollout.collect.resuming import rows_differ
from mpi_rollout.config import ENV_OPTIONS, RolloutConfig, flag, versions
from mpi_rollout.core.layout import RESULTS
from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.core.spaces import Leaf, leaves, tree_of
from mpi_rollout.core.spaces import describe as describe_space
from mpi_rollout.envs.env_maker import EnvMaker, Kwargs, maker_of
from mpi_rollout.envs.faults import raised_at
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.replaying import Difference, StoredEpisode, replay_episode
from mpi_rollout.errors import DataError, EnvError, RolloutError, UsageError, counted, shortened, words_of
from mpi_rollout.storage.objects import open_unmarked
from mpi_rollout.storage.reader import committed_episodes, reproducibility_of

READ_NBYTES = 2**24  # Of a dataset, at a time.


@dataclass(frozen=True)
class Consent:
    """What the user says about the envs of a file.

    Parameters
    ----------
    env, env_factory, env_kwargs
        As the options of `run`.
    trust
        Make any envs that the file names.
    """

    env: str | None = None
    env_factory: str | None = None
    env_kwargs: Kwargs | Sequence[Kwargs] = field(default_factory=dict)
    trust: bool = False

    def check(self, config: RolloutConfig, path: str) -> None:
        """Raise UsageError unless the envs of this run may be made."""
        given, stored = (
            {name: getattr(options, name) for name in ENV_OPTIONS if getattr(options, name)}
            for options in (self, config)
        )
        if self.trust or given == stored:
            return
        if given:
            raise UsageError(f"--replay: {path} is of {_options(stored)}, got {_options(given)}; give the same")
        if not is_built_in(stored.get("env", "")) or not are_numbers(stored.get("env_kwargs", {})):
            raise UsageError(
                f"--replay runs the code of the envs, which a file must not choose by itself: {path} is of "
                f"{_options(stored)}; add that if it is what you expect, or --trust"
            )


def _options(values: Mapping[str, object]) -> str:
    """Return options as one types them."""
    words = [(flag(name), value if isinstance(value, str) else json.dumps(value)) for name, value in values.items()]
    return shortened(shlex.join(word for pair in words for word in pair))


def are_numbers(env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]]) -> bool:
    """Tell whether no argument of an env is more than a number."""
    kwargs_of_envs = [env_kwargs] if isinstance(env_kwargs, Mapping) else env_kwargs
    return all(isinstance(value, int | float | None) for kwargs in kwargs_of_envs for value in kwargs.values())


def is_built_in(env_id: str) -> bool:
    """Tell whether an env id is one of Gymnasium's own or of this program's; import nothing."""
    try:
        namespace, name, version = parse_env_id(env_id)
    except gymnasium.error.Error:
        return False
    if version is None:
        version = find_highest_version(namespace, name)
    spec = gymnasium.registry.get(get_env_id(namespace, name, version))
    return spec is not None and str(spec.entry_point).startswith(("gymnasium.envs.", "mpi_rollout.envs."))


def replay(path: str, num_episodes: int, seed: int, consent: Consent) -> dict[str, int]:
    """Replay some episodes of a file that is known to be whole; return how many there were.

    UsageError if its episodes cannot be replayed, or its envs may not be made.  DataError if not all came out the same:
    the message has the first difference.
    """
    with open_unmarked(path) as file:
        config = RolloutConfig.from_json(file.attrs["config"], path)
        if not config.trajectories:
            raise UsageError(f"--replay: {path} has no trajectories")
        if (promised := reproducibility_of(file)) == Reproducibility.SLICE:
            raise UsageError(
                f"--replay: episodes of {path} have no seed of their own (-1), since with --vectorization-mode "
                f"{config.vectorization_mode} {promised.words}; without --replay the file can be verified"
            )
        consent.check(config, path)
        if config.vectorization_mode != "sync":
            return replay_history(file, config, path)
        chosen = choose(committed_episodes(file), num_episodes, seed)
        differences = list(differences_of(file, maker_of(config), chosen))
        if differences:
            raise DataError(
                f"{path}: {len(chosen) - len(differences)} of {counted(len(chosen), 'episode')} come out the same; "
                f"{differences[0]}{changed_versions(json.loads(file.attrs['versions']))}"
            )
        return {"replayed": len(chosen), "replayed_steps": int(sum(row["length"] for row in chosen))}


def replay_history(file: h5py.File, config: RolloutConfig, path: str) -> dict[str, int]:
    """Take all steps of natively vectorized envs again, which cannot begin amid a run; DataError at a difference."""
    trajectories, num_steps = file["trajectories"], int(file["trajectories"].attrs["num_steps"])
    with closing(maker_of(config).native(range(config.num_envs), config.seed)) as envs:
        check_spaces(file, envs)
        groups = [
            [StoredRows(trajectories[f"{group}/{leaf.path}".strip("/")]) for leaf in leaves(space)]
            for group, space in (("actions", envs.single_action_space), ("observations", envs.single_observation_space))
        ]
        actions, columns = groups[0], groups[1] + [StoredRows(trajectories[leaf.path]) for leaf in RESULTS]
        observation_leaves = leaves(envs.single_observation_space)
        observations, _ = envs.reset(seed=config.seed)
        outcome = [leaf.of(observations) for leaf in observation_leaves]
        for step in range(num_steps + 1):
            # The results of a step are in its row, and the observations after it in the next one.
            for column, given, row in zip(columns, outcome, [step] * len(groups[1]) + [step - 1] * 3, strict=False):
                check_row(path, column, given, row)
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


def choose(episodes: np.ndarray, number: int, seed: int) -> list[np.void]:
    """Choose as many episodes that ended as were under way, both spread evenly over the run.

    Choose none that is faulted: its env has already shown that it does not come out the same.
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


def check_spaces(file: h5py.File, envs: VectorEnv) -> None:
    """Raise DataError if the envs of a file have other spaces here."""
    spaces = {"observation": envs.single_observation_space, "action": envs.single_action_space}
    described = json.dumps({name: describe_space(space) for name, space in spaces.items()})
    if described != file.attrs["spaces"]:
        raise DataError(f"the envs of the file have the spaces {file.attrs['spaces']}, here they have {described}")


class Replay:
    """Steps one env through stored episodes."""

    def __init__(self, file: h5py.File, envs: LoopVectorEnv):
        self._trajectories, self._envs = file["trajectories"], envs
        check_spaces(file, envs)

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
