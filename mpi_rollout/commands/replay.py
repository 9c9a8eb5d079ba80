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
from functools import partial
from itertools import groupby

import gymnasium
import h5py
import numpy as np
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from mpi_rollout.commands.history import check_promise, check_spaces, describe, replay_history
from mpi_rollout.config import ENV_OPTIONS, RolloutConfig, flag, versions
from mpi_rollout.core.layout import RESULTS
from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.core.spaces import Leaf, leaves
from mpi_rollout.envs.env_maker import EnvMaker, Kwargs, maker_of
from mpi_rollout.envs.faults import raised_at
from mpi_rollout.envs.inputs import Reset
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.native import NativeVectorEnv
from mpi_rollout.envs.native_replaying import begin_episodes
from mpi_rollout.envs.replaying import StoredEpisode, replay_episode
from mpi_rollout.errors import DataError, EnvError, RolloutError, UsageError, counted, shortened, words_of
from mpi_rollout.storage.objects import open_unmarked
from mpi_rollout.storage.reader import committed_episodes, committed_resets, reproducibility_of
from mpi_rollout.storage.schema import is_recording


@dataclass(frozen=True)
class Consent:
    """What the user says about the envs of a file.

    Parameters
    ----------
    env, env_factory, env_kwargs
        As the options of `run`.
    trust
        Make any envs that the file names.
    what
        The command or option that makes envs, for messages.
    """

    env: str | None = None
    env_factory: str | None = None
    env_kwargs: Kwargs | Sequence[Kwargs] = field(default_factory=dict)
    trust: bool = False
    what: str = "--replay"

    def check(self, config: RolloutConfig, path: str) -> None:
        """Raise UsageError unless the envs of this run may be made."""
        given, stored = (
            {name: getattr(options, name) for name in ENV_OPTIONS if getattr(options, name)}
            for options in (self, config)
        )
        if self.trust or given == stored:
            return
        if given:
            raise UsageError(f"{self.what}: {path} is of {_options(stored)}, got {_options(given)}; give the same")
        if not is_built_in(stored.get("env", "")) or not are_numbers(stored.get("env_kwargs", {})):
            raise UsageError(
                f"{self.what} runs the code of the envs, which a file must not choose by itself: {path} is of "
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
        is_recorded = is_recording(file.attrs)
        if (promised := reproducibility_of(file)) == Reproducibility.SLICE and not is_recorded:
            raise UsageError(
                f"--replay: episodes of {path} have no seed of their own (-1), since with --vectorization-mode "
                f"{config.vectorization_mode} {promised.words}; without --replay the file can be verified"
            )
        consent.check(config, path)
        if promised == Reproducibility.ENV and not is_recorded:
            return replay_history(file, config, path)
        episodes = seeded_episodes(file, path) if is_recorded else committed_episodes(file)
        chosen = choose(episodes, num_episodes, seed)
        differences = list(differences_of(file, maker_of(config), chosen, config.seed))
        if differences:
            raise DataError(
                f"{path}: {len(chosen) - len(differences)} of {counted(len(chosen), 'episode')} come out the same; "
                f"{differences[0]}{changed_versions(json.loads(file.attrs['versions']))}"
            )
        return {"replayed": len(chosen), "replayed_steps": int(sum(row["length"] for row in chosen))}


def seeded_episodes(file: h5py.File, path: str) -> np.ndarray:
    """Return those episodes of a recording that follow from seed and actions; UsageError if there are none."""
    episodes, resets = committed_episodes(file), committed_resets(file)
    assert resets is not None, "recordings have resets"
    had_options = np.isin(places_of(episodes, "start"), places_of(resets[resets["options"]], "step"))
    episodes = episodes[(episodes["seed"] >= 0) & ~had_options]
    if not len(episodes):
        raise UsageError(
            f"--replay: {path} is the recording of a trainer, and only episodes that began with reset(seed=...) and "
            "without options can be replayed: it has none; without --replay the file can be verified"
        )
    return episodes


def places_of(rows: np.ndarray, step: str) -> np.ndarray:
    """Return one number for env and step of each row, the step being in the column `step`."""
    return np.asarray(rows[step] * 2**24 + rows["env_index"])


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


def differences_of(file: h5py.File, make: EnvMaker, episodes: Sequence[np.void], seed: int = 0) -> Iterator[str]:
    """Replay episodes, those of each env in an env of its own; yield what is wrong of each that is not the same.

    Parameters
    ----------
    seed
        Of the run, for natively vectorized envs.
    """
    by_env = sorted(episodes, key=lambda row: row["env_index"])
    for env_index, rows in groupby(by_env, key=lambda row: int(row["env_index"])):
        index = range(env_index, env_index + 1)
        with closing(_made(make, index, seed)) as envs:
            replayed = Replay(file, envs)
            yield from filter(None, map(replayed.failure_or_difference, rows))


def _made(make: EnvMaker, index: range, seed: int) -> LoopVectorEnv | NativeVectorEnv:
    try:
        if make.is_native:
            native = make.native(index, seed)
            native.reset(seed=seed)
            return native
        return LoopVectorEnv(make.functions(index), first_env_index=index.start, infos=False)
    except RolloutError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvError(f"--replay: env {index.start} cannot be made: {words_of(error)}{raised_at(error)}") from error


class Replay:
    """Steps one env through stored episodes."""

    def __init__(self, file: h5py.File, envs: LoopVectorEnv | NativeVectorEnv):
        self._trajectories, self._envs = file["trajectories"], envs
        self._env_indices = committed_episodes(file)["env_index"]
        self._starts = committed_episodes(file)["start"]
        self._resets = committed_resets(file)
        check_spaces(file.attrs, envs)
        if isinstance(envs, NativeVectorEnv):
            check_promise(file, envs)

    def failure_or_difference(self, row: np.void) -> str:
        """Replay an episode; return what is wrong, if something is."""
        try:
            episode = self._episode(row)
            difference = replay_episode(self._envs, partial(self._begin, episode), episode)
        except (EnvError, DataError) as error:
            return f"{called(row)} fails in the replay: {error}"
        return "" if difference is None else f"{called(row)} differs in its step {describe(difference)}"

    def _begin(self, episode: StoredEpisode) -> Reset:
        if isinstance(self._envs, LoopVectorEnv):
            return self._envs.reset(seed=[episode.seed])
        return begin_episodes(self._envs, np.ones(1, np.bool_), np.array([episode.number]))

    def _episode(self, row: np.void) -> StoredEpisode:
        action_leaves, observation_leaves = (
            leaves(space) for space in (self._envs.single_action_space, self._envs.single_observation_space)
        )
        stored = StoredEpisode(
            int(row["seed"]),
            int(np.sum((self._env_indices == row["env_index"]) & (self._starts < row["start"]))),
            [self._read("actions", leaf, row) for leaf in action_leaves],
            [self._read("observations", leaf, row, 1) for leaf in observation_leaves],
            [self._read("", leaf, row) for leaf in RESULTS],
        )
        if self._resets is not None and (row["terminated"] or row["truncated"]):
            self._put_end(stored, row, observation_leaves)
        return stored

    def _put_end(self, stored: StoredEpisode, row: np.void, observation_leaves: Sequence[Leaf]) -> None:
        """Have an episode of a recording end as the env said."""
        stop = row["start"] + row["length"]
        for array, leaf in zip(stored.observations, observation_leaves, strict=True):
            dataset = self._trajectories[f"final_observations/{leaf.path}".rstrip("/")]
            array[-1] = dataset[stop - 1, row["env_index"]]
        resets = self._resets
        if (
            resets is not None
            and (resets["cut"] & (resets["step"] == stop) & (resets["env_index"] == row["env_index"])).any()
        ):
            stored.results[-1][-1] = False

    def _read(self, group: str, leaf: Leaf, row: np.void, num_more: int = 0) -> np.ndarray:
        """Read what is stored of an episode, of shape (length + num_more, ...)."""
        dataset = self._trajectories[f"{group}/{leaf.path}".strip("/")]
        return dataset[row["start"] : row["start"] + row["length"] + num_more, row["env_index"]]


def called(row: np.void) -> str:
    """Return how an episode is called."""
    return f"the episode of env {row['env_index']} from step {row['start']:,} on, seed {row['seed']},"


def changed_versions(then: dict[str, str]) -> str:
    """Say what is installed in another version than the run had: the first thing to suspect."""
    now = versions()
    changed = [f"{name} {then[name]} then, {now[name]} now" for name in now if then.get(name, now[name]) != now[name]]
    return f" ({'; '.join(changed)})" if changed else ""
