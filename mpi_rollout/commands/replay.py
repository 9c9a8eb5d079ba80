"""`verify --replay`: some episodes of a file once more, from their seeds and actions, to compare every byte.

They are stepped by a driver on one rank, as the run has stepped them; see `collect.replay`.
"""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby

import numpy as np
from gymnasium.vector import VectorEnv

from mpi_rollout.collect.replay import Replay, driver_of, earliest
from mpi_rollout.commands.consent import Consent
from mpi_rollout.config import versions
from mpi_rollout.core.columns import RESULTS, has_last_row, result_name
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.core.spaces import describe as describe_space
from mpi_rollout.data.columns import columns_of
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.env_maker import EnvMaker, make_slice, maker_of
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.native import NativeVectorEnv
from mpi_rollout.envs.repeating import not_repeated
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import DataError, EnvError, RolloutError, UsageError
from mpi_rollout.process import hash_seed
from mpi_rollout.storage.schema import agents_in
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.storage.untrusted import parsed
from mpi_rollout.text import counted

ROOM_NBYTES, MOST_ROOM = 2**22, 256  # The size and number of the steps of an episode that are compared at a time.


def replay(path: str, num_episodes: int, seed: int, consent: Consent) -> dict[str, int]:
    """Replay some episodes of a file that is known to be whole; return how many there were.

    UsageError if its episodes cannot be replayed, or its envs may not be made.  DataError if not all came out the same:
    the message has the first difference.
    """
    with closing(StoredRun(path)) as stored:
        config, promised, is_recorded = stored.config, stored.reproducibility, stored.resets is not None
        if not config.trajectories:
            raise UsageError(f"--replay: {path} has no trajectories")
        if promised == Reproducibility.SLICE and not is_recorded:
            raise UsageError(
                f"--replay: episodes of {path} have no seed of their own (-1), since with --vectorization-mode "
                f"{config.vectorization_mode} {promised.words}; without --replay the file can be verified"
            )
        consent.check(config, path)
        if promised == Reproducibility.ENV and not is_recorded:
            return replay_history(stored)
        chosen = choose(seeded_episodes(stored), num_episodes, seed)
        differences = list(differences_of(stored, maker_of(config), chosen))
        if differences:
            raise DataError(
                f"{path}: {len(chosen) - len(differences)} of {counted(len(chosen), 'episode')} come out the same; "
                f"{differences[0]}{likely_causes(stored)}"
            )
        return {"replayed": len(chosen), "replayed_steps": int(sum(row["length"] for row in chosen))}


def seeded_episodes(stored: StoredRun) -> np.ndarray:
    """Return those episodes that follow from seed and actions; UsageError if a recording has none."""
    episodes, resets = stored.episodes, stored.resets
    if resets is None:
        return episodes
    had_options = np.isin(places_of(episodes, "start"), places_of(resets[resets["options"]], "step"))
    episodes = episodes[(episodes["seed"] >= 0) & ~had_options]
    if not len(episodes):
        raise UsageError(
            f"--replay: {stored.path} is the recording of a trainer, and only episodes that began with "
            "reset(seed=...) and without options can be replayed: it has none; without --replay it can be verified"
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


def differences_of(stored: StoredRun, make: EnvMaker, episodes: Sequence[np.void]) -> Iterator[str]:
    """Replay episodes, those of each env in an env of its own; yield what is wrong of each that is not the same."""
    by_env = sorted(episodes, key=lambda row: row["env_index"])
    for env_index, group in groupby(by_env, key=lambda row: int(row["env_index"])):
        with closing(_made(make, env_index, stored.config.seed)) as envs:
            check_spaces(stored, envs)
            check_promise(stored, envs)
            driver, rows = driver_of(make, envs), list(group)
            nbytes = driver.exchanges.contents.row_nbytes(1)
            longest = max(int(row["length"]) for row in rows)
            driver.make_room(max(1, min(MOST_ROOM, ROOM_NBYTES // nbytes, longest)))
            yield from filter(None, (_failure_or_difference(stored, driver, envs, row) for row in rows))


def _made(make: EnvMaker, index: int, seed: int) -> VectorEnv:
    try:
        return make_slice(make, range(index, index + 1), seed)
    except EnvError as error:
        raise EnvError("--replay: ", *error.args) from error.__cause__


def _failure_or_difference(stored: StoredRun, driver: Driver, envs: VectorEnv, row: np.void) -> str:
    """Replay an episode in an env; return what is wrong, if something is."""
    try:
        differences = replay_of(stored, driver, row).run()
        check_failures(envs)
    except RolloutError as error:
        driver.begin_anew()
        return f"{called(row)} fails in the replay: {error}"
    return f"{called(row)} differs in its step {differences[0]}" if differences else ""


def check_failures(envs: VectorEnv) -> None:
    """Raise EnvError if an env of a loop has failed in a replay, which leaves it out."""
    if isinstance(envs, LoopVectorEnv) and envs.failing:
        raise EnvError(envs.failing[0])


def replay_of(stored: StoredRun, driver: Driver, row: np.void) -> Replay:
    """Make the replay of an episode with the only env of a driver."""
    is_before = (stored.episodes["env_index"] == row["env_index"]) & (stored.episodes["start"] < row["start"])
    number, start = np.array([np.count_nonzero(is_before)]), np.zeros(1, np.int64)
    past = Past(stored.config.seed, int(row["length"]), number, start, given_seeds=(int(row["seed"]),))
    return Replay(driver, past, rows_of(stored, row))


def rows_of(stored: StoredRun, row: np.void) -> dict[str, np.ndarray]:
    """Read an episode: for each column an array of shape (length, 1, ...), of observations one more.

    In a recording it ends as the env said, not as the trainer cut it; which agents are alive then is not known.
    """
    start, stop, env = int(row["start"]), int(row["start"] + row["length"]), int(row["env_index"])
    columns = columns_of(stored)
    groups = ["observations", "actions", *(leaf.path for leaf in RESULTS), *["alive"] * (stored.resets is None)]
    rows = {
        name: column[start : stop + has_last_row(name), env : env + 1]
        for name, column in columns.items()
        if name.partition("/")[0] in groups
    }
    if stored.resets is not None and (row["terminated"] or row["truncated"]):
        finals = [name for name in columns if name.startswith("final_observations")]
        if not finals:
            raise UsageError(f"the file does not have the last observation of {called(row)}")
        for name in finals:
            rows[name.removeprefix("final_")][-1, 0] = columns[name][stop - 1, env]
        here = stored.resets[(stored.resets["env_index"] == env) & (stored.resets["step"] == stop)]
        rows[result_name("truncations", agents_in(stored.attributes))][-1] &= not here["cut"].any()
    return rows


def replay_history(stored: StoredRun) -> dict[str, int]:
    """Take all steps of envs again whose episodes have no seeds: they cannot begin amid a run.

    DataError if something differs.
    """
    config, num_steps = stored.config, stored.num_steps
    make, none = maker_of(config), np.zeros(config.num_envs, np.int64)
    with closing(make_slice(make, range(config.num_envs), config.seed)) as envs:
        check_spaces(stored, envs)
        check_promise(stored, envs)
        past = Past(config.seed, num_steps, none, none, stored.reproducibility)
        differences = Replay(driver_of(make, envs), past, columns_of(stored)).run()
    if differences:
        env, difference = earliest(differences)
        raise DataError(f"{stored.path}: env {env} differs in row {difference}{likely_causes(stored)}")
    return {"replayed": len(stored.episodes), "replayed_steps": num_steps * config.num_envs}


def check_spaces(stored: StoredRun, envs: VectorEnv) -> None:
    """Raise DataError if the envs of a file have other spaces here."""
    spaces = {"observation": envs.single_observation_space, "action": envs.single_action_space}
    here = json.dumps({name: describe_space(space) for name, space in spaces.items()})
    described = parsed(stored.attributes, "spaces", dict)
    of_file = json.dumps({name: space for name, space in described.items() if name in spaces})
    if here != of_file:
        raise DataError(f"the envs of the file have the spaces {of_file}, here they have {here}")


def check_promise(stored: StoredRun, envs: VectorEnv) -> None:
    """Raise UsageError if natively vectorized envs of a file promise something else here: they give other data."""
    if isinstance(envs, NativeVectorEnv) and (promised := stored.reproducibility) != envs.reproducibility:
        raise UsageError(
            f"--replay: the envs of the file promised {promised} ({promised.words}), here they promise "
            f"{envs.reproducibility} ({envs.reproducibility.words}), which gives other data; replay it with the "
            "versions that wrote it"
        )


def called(row: np.void) -> str:
    """Return the name of an episode in messages."""
    seed = f", seed {row['seed']}," if row["seed"] >= 0 else ""
    return f"the episode of env {row['env_index']} from step {row['start']:,} on{seed}"


def likely_causes(stored: StoredRun) -> str:
    """Say what makes envs differ that the file knows of; a file that is whole may differ from its envs."""
    seen = not_repeated(str(stored.attributes.get("seed_check", "")))
    words = "; the run saw at its start that env 0 does not repeat its episodes (see `inspect`)"
    return changed_versions(stored) + words * bool(seen)


def changed_versions(stored: StoredRun) -> str:
    """Say what is installed in another version than the run had, or has another seed: the first thing to suspect."""
    then, now = parsed(stored.attributes, "versions", dict), versions()
    changed = [f"{name} {then[name]} then, {now[name]} now" for name in now if then.get(name, now[name]) != now[name]]
    changed += filter(None, [hash_seed.suspicion(then.get(hash_seed.VARIABLE, ""), hash_seed.in_use())])
    return f" ({'; '.join(changed)})" if changed else ""
