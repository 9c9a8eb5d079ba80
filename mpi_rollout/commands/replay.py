"""`verify --replay`: some episodes of a file once more, from their seeds and actions, to compare every byte.

They are stepped by a driver on one rank, as the run has stepped them; see `collect.replay`.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.collect.replay import RESULT_NAMES, Replay, driver_of, earliest
from mpi_rollout.commands.consent import Consent
from mpi_rollout.config import RolloutConfig, versions
from mpi_rollout.core.layout import Block
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.core.spaces import describe as describe_space
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.env_maker import EnvMaker, make_slice, maker_of
from mpi_rollout.envs.faults import raised_at
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.native import NativeVectorEnv
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import DataError, EnvError, RolloutError, UsageError
from mpi_rollout.storage.checked_file import committed_episodes, committed_resets, reproducibility_of
from mpi_rollout.storage.schema import is_recording, leaf_datasets
from mpi_rollout.storage.untrusted import OpenFile, open_unmarked, parsed
from mpi_rollout.stored_config import read_config
from mpi_rollout.text import counted, words_of

ROOM_NBYTES, MOST_ROOM = 2**22, 256  # The size and number of the steps of an episode that are compared at a time.
HISTORY_WAY_OUT = "without --replay the file can be verified"


def replay(path: str, num_episodes: int, seed: int, consent: Consent) -> dict[str, int]:
    """Replay some episodes of a file that is known to be whole; return how many there were.

    UsageError if its episodes cannot be replayed, or its envs may not be made.  DataError if not all came out the same:
    the message has the first difference.
    """
    with open_unmarked(path) as file:
        config = read_config(file.attrs["config"], path)
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


def seeded_episodes(file: OpenFile, path: str) -> np.ndarray:
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


def differences_of(file: OpenFile, make: EnvMaker, episodes: Sequence[np.void], seed: int = 0) -> Iterator[str]:
    """Replay episodes, those of each env in an env of its own; yield what is wrong of each that is not the same.

    Parameters
    ----------
    seed
        Of the run, for natively vectorized envs.
    """
    stored, by_env = StoredEpisodes(file, seed), sorted(episodes, key=lambda row: row["env_index"])
    for env_index, group in groupby(by_env, key=lambda row: int(row["env_index"])):
        with closing(_made(make, env_index, seed)) as envs:
            check_spaces(file.attrs, envs)
            check_promise(file, envs)
            driver, rows = driver_of(make, envs), list(group)
            nbytes = Block.row_nbytes(driver.observation_space, driver.action_space, 1)
            longest = max(int(row["length"]) for row in rows)
            driver.make_room(max(1, min(MOST_ROOM, ROOM_NBYTES // nbytes, longest)))
            yield from filter(None, (_failure_or_difference(stored, driver, envs, row) for row in rows))


def _made(make: EnvMaker, index: int, seed: int) -> VectorEnv:
    try:
        return make_slice(make, range(index, index + 1), seed)
    except RolloutError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvError(f"--replay: env {index} cannot be made: {words_of(error)}{raised_at(error)}") from error


def _failure_or_difference(stored: "StoredEpisodes", driver: Driver, envs: VectorEnv, row: np.void) -> str:
    """Replay an episode in an env; return what is wrong, if something is."""
    try:
        differences = stored.replay(driver, row).run()
        check_failures(envs)
    except RolloutError as error:
        driver.begin_anew()
        return f"{called(row)} fails in the replay: {error}"
    return f"{called(row)} differs in its step {differences[0]}" if differences else ""


def check_failures(envs: VectorEnv) -> None:
    """Raise EnvError if an env of a loop has failed in a replay, which leaves it out."""
    if isinstance(envs, LoopVectorEnv) and envs.failing:
        raise EnvError(envs.failing[0])


class StoredEpisodes:
    """The episodes of a file, to be replayed in one env each; `seed` is the run's."""

    def __init__(self, file: OpenFile, seed: int):
        self._datasets, self._seed = leaf_datasets(file["trajectories"]), seed
        self._episodes, self._resets = committed_episodes(file), committed_resets(file)

    def replay(self, driver: Driver, row: np.void) -> Replay:
        """Make the replay of an episode with the only env of a driver."""
        is_before = (self._episodes["env_index"] == row["env_index"]) & (self._episodes["start"] < row["start"])
        number, start = np.array([np.count_nonzero(is_before)]), np.zeros(1, np.int64)
        past = Past(self._seed, int(row["length"]), number, start, given_seeds=(int(row["seed"]),))
        return Replay(driver, past, self.columns(row))

    def columns(self, row: np.void) -> dict[str, np.ndarray]:
        """Read an episode: for each column an array of shape (length, 1, ...), of observations one more.

        In a recording it ends as the env said, not as the trainer cut it.
        """
        start, stop, env = int(row["start"]), int(row["start"] + row["length"]), int(row["env_index"])
        columns = {
            name: dataset[start : stop + (group == "observations"), env][:, None]
            for name, dataset in self._datasets.items()
            if (group := name.partition("/")[0]) in ("observations", "actions", *RESULT_NAMES)
        }
        if self._resets is not None and (row["terminated"] or row["truncated"]):
            finals = [name for name in self._datasets if name.startswith("final_observations")]
            if not finals:
                raise UsageError(f"the file does not have the last observation of {called(row)}")
            for name in finals:
                columns[name.removeprefix("final_")][-1, 0] = self._datasets[name][stop - 1, env]
            here = self._resets[(self._resets["env_index"] == env) & (self._resets["step"] == stop)]
            columns["truncations"][-1] &= not here["cut"].any()
        return columns


def replay_history(file: OpenFile, config: RolloutConfig, path: str) -> dict[str, int]:
    """Take all steps of natively vectorized envs again, which cannot begin amid a run.

    DataError if something differs, UsageError if it would take too long, see `collect.replay`.
    """
    num_envs, num_steps = config.num_envs, int(file["trajectories"].attrs["num_steps"])
    make, none = maker_of(config), np.zeros(num_envs, np.int64)
    with closing(make_slice(make, range(num_envs), config.seed)) as envs:
        check_spaces(file.attrs, envs)
        check_promise(file, envs)
        past = Past(config.seed, num_steps, none, none, reproducibility_of(file))
        differences = Replay(driver_of(make, envs), past, file["trajectories"]).run(HISTORY_WAY_OUT)
    if differences:
        env, difference = earliest(differences)
        raise DataError(f"{path}: env {env} differs in row {difference}")
    return {"replayed": len(committed_episodes(file)), "replayed_steps": num_steps * num_envs}


def check_spaces(attributes: Mapping[str, object], envs: VectorEnv) -> None:
    """Raise DataError if the envs of a file with these attributes have other spaces here."""
    spaces = {"observation": envs.single_observation_space, "action": envs.single_action_space}
    described = {name: describe_space(space) for name, space in spaces.items()}
    stored = parsed(attributes, "spaces", dict)
    for other in ("extra", "info"):  # The policy's extras, and infos, which are not compared.
        stored.pop(other, None)
    if json.dumps(described) != json.dumps(stored):
        of_file, here = json.dumps(stored), json.dumps(described)
        raise DataError(f"the envs of the file have the spaces {of_file}, here they have {here}")


def check_promise(file: OpenFile, envs: VectorEnv) -> None:
    """Raise UsageError if natively vectorized envs of a file promise something else here: they give other data."""
    if isinstance(envs, NativeVectorEnv) and (promised := reproducibility_of(file)) != envs.reproducibility:
        raise UsageError(
            f"--replay: the envs of the file promised {promised} ({promised.words}), here they promise "
            f"{envs.reproducibility} ({envs.reproducibility.words}), which gives other data; replay it with the "
            "versions that wrote it"
        )


def called(row: np.void) -> str:
    """Return the name of an episode in messages."""
    return f"the episode of env {row['env_index']} from step {row['start']:,} on, seed {row['seed']},"


def changed_versions(then: dict[str, str]) -> str:
    """Say what is installed in another version than the run had: the first thing to suspect."""
    now = versions()
    changed = [f"{name} {then[name]} then, {now[name]} now" for name in now if then.get(name, now[name]) != now[name]]
    return f" ({'; '.join(changed)})" if changed else ""
