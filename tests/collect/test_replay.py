"""Steps taken again: envs come back to where they were, and the first difference of each is found wherever it is."""

import json
from collections.abc import Callable
from functools import partial
from itertools import islice, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from envs import Nested
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from native_envs import drift, seeded
from single_rank import driver_of
from stopping_envs import Counting

from mpi_rollout.collect.replay import (
    Replay,
    bring_back,
    check_columns,
    check_promise,
    load,
    rows_differ,
    say_resumed,
)
from mpi_rollout.core.columns import RESULTS
from mpi_rollout.core.layout import Block, Contents
from mpi_rollout.core.seeding import RankGenerators, Reproducibility, episode_seeds
from mpi_rollout.core.spaces import Leaf, describe_leaves, leaves
from mpi_rollout.drive import recall
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.env_maker import EnvMaker, make_slice
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import DataError, RankLost, UsageError

SEED, NUM_ENVS, NUM_STEPS = 5, 5, 60
RESULT_NAMES = [leaf.path for leaf in RESULTS]
Columns = dict[str, np.ndarray]


def jax_hops(env_indices: range, seed: int) -> VectorEnv:
    from jax_envs import hops  # Which imports JAX.

    return hops(env_indices, seed)


MAKERS: dict[str, tuple[Any, str, str]] = {
    "loop": (Counting, "sync", "numpy"),
    "factory": (partial(seeded, ends_at=9), "native", "numpy"),
    "numba": ("mpi_rollout/CartPoleNumba-v0", "vector_entry_point", "numba"),
    "jax": (jax_hops, "native", "jax"),
}


class Recording:
    """A run of some envs, stepped all together, and where it stood after each step."""

    def __init__(self, make: Any, mode: str = "sync"):
        self.make = EnvMaker(make, {}, mode, num_threads=1)
        envs = make_slice(self.make, range(NUM_ENVS), SEED)
        space, draws = envs.single_action_space, np.random.default_rng(1)
        actions = draws.integers(space.start, space.start + space.n, (NUM_STEPS, NUM_ENVS), space.dtype)
        rows = [[envs.reset(seed=SEED if self.make.is_native else None)[0].copy()]]
        rows += [[np.array(array) for array in envs.step(row)[:4]] for row in actions]
        observations, results = [row[0] for row in rows], zip(*(row[1:] for row in rows[1:]), strict=True)
        names = ("rewards", "terminations", "truncations")
        self.columns: Columns = {"observations": np.array(observations), "actions": actions}
        self.columns |= {name: np.array(column) for name, column in zip(names, results, strict=True)}
        self.columns["rewards"] = self.columns["rewards"].astype("f8")
        self.ends = self.columns["terminations"] | self.columns["truncations"]
        envs.close()

    def past(self, num_steps: int, reproducibility: str = "episode") -> Past:
        episodes, starts = np.zeros((2, NUM_ENVS), np.int64)
        for step in range(num_steps):
            episodes += self.ends[step]
            starts[self.ends[step]] = step + 2
        return Past(SEED, num_steps, episodes, starts, Reproducibility(reproducibility))

    def driver(self, room: int = 1, **options: Any) -> Driver:
        driver = driver_of(self.make, NUM_ENVS, seed=SEED, **options)
        if room > 1:
            driver.make_room(room)
        return driver

    def changed(self, name: str, row: int, env: int) -> Columns:
        values = self.columns[name].copy()
        values[row, env] = ~values[row, env] if values.dtype == bool else values[row, env] + 1
        return self.columns | {name: values}


def go_on(driver: Driver, recording: Recording, first: int) -> tuple[np.ndarray, ...]:
    """Take the steps from `first` on; return what came of them."""
    num_steps, room = NUM_STEPS - first, driver.lanes[0].exchange.room
    block = driver.block(num_steps + 1)
    unpackers = driver.unpackers(block)
    for row in range(0, num_steps, room):
        stop = min(num_steps, row + room)
        for lane in driver.lanes:
            actions = recording.columns["actions"][first + row : first + stop, lane.envs]
            driver.send(lane, [actions], len(actions), first + row)
        while driver.under_way:
            for lane in driver.step_and_receive():
                assert lane.num_rows == stop - row
                unpackers[lane].lay_observations(row + 1, 0, stop - row)
                unpackers[lane].lay_results(row, stop - row)
    return block.observation_arrays[0][1:], *(column[:num_steps] for column in block.results)


@pytest.fixture(scope="module")
def counting() -> Recording:
    return Recording(Counting)


def is_as_recorded(given: tuple[np.ndarray, ...], recording: Recording, first: int, envs: Any = slice(None)) -> bool:
    columns = recording.columns
    expected = columns["observations"][first + 1 :], *(columns[name][first:] for name in RESULT_NAMES)
    return all(np.array_equal(ours[:, envs], theirs[:, envs]) for ours, theirs in zip(given, expected, strict=True))


@pytest.mark.parametrize(("name", "room"), [*product(("loop", "factory"), (1, 7)), *product(("numba", "jax"), (7,))])
def test_envs_are_brought_back_to_any_step(name: str, room: int):
    """Whether an episode runs, begins in the last row, or ended in the last step."""
    make, mode, needed = MAKERS[name]
    pytest.importorskip(needed)
    recording = Recording(make, mode)
    ends = np.flatnonzero(recording.ends.any(axis=1))
    assert len(ends) > 1
    driver, starts = recording.driver(room), set()
    for num_steps in {0, NUM_STEPS - 1, *(ends[:3] + 1).tolist(), *(ends[:3] + 2).tolist()}:
        past = recording.past(num_steps)
        assert Replay(driver, past, recording.columns).run() == {}
        driver.call_ranks(driver.worker.control.end_replay, [])
        assert is_as_recorded(go_on(driver, recording, num_steps), recording, num_steps), num_steps
        starts |= set((past.starts - num_steps).tolist())
    assert starts >= {0, 1}
    driver.worker.close()


@pytest.mark.parametrize("options", [{"num_groups": 2}, {"first_ready": True}])
def test_groups_are_brought_back_together(counting: Recording, options: dict[str, Any]):
    driver = counting.driver(room=4, **options)
    assert Replay(driver, counting.past(30), counting.columns).run() == {}
    driver.call_ranks(driver.worker.control.end_replay, [])
    assert is_as_recorded(go_on(driver, counting, 30), counting, 30)


def test_a_rank_that_is_lost_while_envs_come_back_ends_this_start(counting: Recording):
    replay = Replay(driver := counting.driver(room=8), counting.past(30), counting.columns)
    replay.begin()
    driver.lost_ranks.append(2)
    with pytest.raises(RankLost, match="lost rank 2 while envs took their steps again; the same command continues"):
        replay.advance()


def test_a_rank_that_serves_others_between_its_steps_takes_the_rest_later(counting: Recording):
    came = iter([False, True] * 100)
    driver = counting.driver(room=8, first_ready=True, is_wanted=lambda: next(came, False))
    assert Replay(driver, counting.past(30), counting.columns).run() == {}
    came = iter([])
    driver.call_ranks(driver.worker.control.end_replay, [])
    assert is_as_recorded(go_on(driver, counting, 30), counting, 30)


@pytest.mark.parametrize("room", [1, 4])
@pytest.mark.parametrize("name", ["observations", *RESULT_NAMES])
def test_the_first_difference_is_found_in_every_row(counting: Recording, name: str, room: int):
    past = counting.past(20)
    driver, first = counting.driver(room), past.first_steps
    for row in range(20 + (name == "observations")):
        differences = Replay(driver, past, counting.changed(name, row, 2)).run()
        if row < first[2]:  # Of an episode that is over.
            assert differences == {}
            continue
        [(env, difference)] = differences.items()
        assert (env, difference.row, difference.name) == (2, row, name)
        assert difference.step == (max(row - 1, first[2]) if name == "observations" else row)


def test_each_env_has_a_first_difference_of_its_own(counting: Recording):
    past = counting.past(20)
    one, other = np.flatnonzero(past.starts < 19)[:2].tolist()
    columns = counting.changed("rewards", 19, one)
    columns["observations"] = counting.changed("observations", int(past.starts[other]), other)["observations"]
    columns["observations"][20, one] += 1
    differences = Replay(counting.driver(room=3), past, columns).run()
    assert {env: (found.step, found.name) for env, found in differences.items()} == {
        one: (19, "rewards"), other: (past.starts[other], "observations")
    }  # fmt: skip


class NotedGenerators(RankGenerators):
    """Global generators that note after which steps they would be seeded."""

    def __init__(self) -> None:
        super().__init__(SEED, 0)
        self.steps: list[Any] = []

    def seed_again(self, num_steps: int) -> None:
        self.steps.append(num_steps)


@pytest.mark.parametrize("make", [Counting, partial(seeded, ends_at=9)], ids=["loop", "native"])
def test_a_lost_env_begins_the_episode_after_the_one_that_it_has_lost(make: Callable[..., Any]):
    recording = Recording(make, "sync" if make is Counting else "native")
    past = recording.past(30)
    lost = int(past.starts.argmin())
    generators = NotedGenerators()
    driver, looks = recording.driver(services=[generators]), generators.steps
    columns = recording.changed("rewards", 29, lost)
    assert bring_back(driver, past, columns, lambda: looks.append("look")) == {lost: 29}
    assert looks == ["look"] * (30 - past.first_step) + [30]
    given = go_on(driver, recording, 30)
    assert is_as_recorded(given, recording, 30, np.arange(NUM_ENVS) != lost)
    seed = next(islice(episode_seeds(SEED, lost), int(past.episodes[lost]) + 1, None))
    first = seed if make is Counting else np.float32(np.random.default_rng(seed & 0x7FFFFFFF).random())
    assert given[0][0, lost, 0 if make is Counting else 1] == first
    assert given[1][0, lost] == 0 and not given[2][0, lost] and not given[3][0, lost]


def test_envs_that_come_back_by_all_of_their_steps_do_or_end_the_run():
    recording = Recording(drift, "native")
    past = recording.past(40, "env")
    assert past.first_step == 0
    driver = recording.driver(room=16, services=[NotedGenerators()])
    assert bring_back(driver, past, recording.columns, lambda: None) == {}
    assert is_as_recorded(go_on(driver, recording, 40), recording, 40)
    columns = recording.changed("observations", 21, 1)
    looks: list[int] = []
    with pytest.raises(DataError, match="env 1 did not reproduce step 20, and envs without a seed for each"):
        bring_back(driver, past, columns, lambda: looks.append(1))
    assert len(looks) == 2  # Not to the end.


@pytest.mark.parametrize("nbytes", [1, 100, 2**24])
def test_rows_are_read_many_at_a_time(monkeypatch: pytest.MonkeyPatch, counting: Recording, nbytes: int):
    """And none that is not committed."""
    monkeypatch.setattr(recall, "READ_NBYTES", nbytes)
    read: list[tuple[int, int]] = []

    class Rows:
        shape, dtype = counting.columns["rewards"].shape, np.dtype("f8")

        def __getitem__(self, rows: slice) -> np.ndarray:
            read.append((rows.start or 0, rows.stop))
            return counting.columns["rewards"][rows]

    past = counting.past(30)
    assert Replay(counting.driver(), past, counting.columns | {"rewards": Rows()}).run() == {}
    num_steps = 30 - past.first_step
    assert max(stop for _, stop in read) == 30
    assert len(read) - 1 == {1: num_steps, 100: -(-num_steps // 2), 2**24: 1}[nbytes]


def test_nested_spaces_are_compared_leaf_by_leaf():
    driver = driver_of(Nested, 2, seed=SEED)
    observations = {f"observations/{leaf.path}" for leaf in leaves(driver.observation_space)}
    names = {f"actions/{leaf.path}" for leaf in leaves(driver.action_space)} | observations
    columns = {name: np.array(driver.block(1).named[name]) for name in [*names, *RESULT_NAMES]}
    past = Past(SEED, 0, np.zeros(2, int), np.zeros(2, int))
    differences = Replay(driver, past, columns).run()
    assert {found.name for found in differences.values()} <= observations and len(differences) == 2


@pytest.mark.parametrize("place", [(0, 0, 0), (0, 1, 1), (2, 0, 1), (2, 1, 0)])
def test_an_env_differs_if_one_of_its_bytes_does(place: tuple[int, int, int]):
    first = np.arange(12, dtype=np.int64).reshape(3, 2, 2)
    second = first.copy()
    assert not rows_differ(first, second).any()
    second[place] ^= 1 << 40
    assert np.argwhere(rows_differ(first, second)).tolist() == [list(place[:2])]


def test_nan_is_equal_to_itself_and_zero_is_not_minus_zero():
    first, second = np.array([[np.nan, 0.0, 1.0]]), np.array([[np.nan, -0.0, 1.0]])
    assert rows_differ(first, second).tolist() == [[False, True, False]]


# What a continued run has of before.

LAST_STEP, SPACE = 9, spaces.Box(0, 1e6, (), np.float64)
STORED_ROWS, INDICES = np.arange(LAST_STEP + 1)[:, None], np.arange(3)
STORED = {
    "observations": 10.0 * STORED_ROWS + INDICES,
    "actions": (STORED_ROWS + INDICES)[:-1] % 5,
    "rewards": (STORED_ROWS * 1.0 - INDICES)[:-1],
}
STORED |= {name: np.zeros((LAST_STEP, 3), bool) for name in ("terminations", "truncations")}
STOPPED = Past(0, LAST_STEP, np.zeros(3, int), np.array([2, 6, 3]))


@pytest.mark.parametrize("start", [4, 8])
def test_a_block_is_filled_with_what_there_is_and_the_end_of_lost_episodes(start: int):
    block = Block(Contents(SPACE, spaces.Discrete(5)), 3, 1, 8)
    block.start = start
    load(block, STOPPED, {2: 5, 0: 7}, STORED)
    num_rows = LAST_STEP - start
    assert block.observation_arrays[0][: num_rows + 1].tolist() == STORED["observations"][start:].tolist()
    assert block.rewards[:num_rows].tolist() == STORED["rewards"][start:].tolist()
    assert block.truncations[num_rows - 1].tolist() == [True, False, True] and block.truncations.sum() == 2
    assert not block.rewards[num_rows:].any()


def test_a_block_that_begins_at_the_last_observation_has_no_step():
    block = Block(Contents(SPACE, spaces.Discrete(5)), 3, 1, 8)
    block.start = LAST_STEP
    load(block, STOPPED, {2: 5}, STORED)
    assert block.observation_arrays[0][0].tolist() == [90, 91, 92] and not block.truncations.any()


def test_the_user_is_told_from_where_the_run_goes_on(capfd: pytest.CaptureFixture):
    lost = dict.fromkeys(range(10), 5)
    say_resumed("run.h5.part", SimpleNamespace(num_steps=1200, first_step=1199, first_env=0), (1200, 5000), lost, 0.25)
    first, *others = capfd.readouterr().err.splitlines()
    assert first == "mpi_rollout: continuing run.h5.part after 1,200 of 5,000 steps; took 1 step again in 0.2 s"
    assert len(others) == 8 and others[0].startswith("mpi_rollout: env 0 did not reproduce step 5: its running episode")


@pytest.mark.parametrize(("name", "keeps_infos"), [("infos", True), ("extras", False)])
def test_a_run_does_not_go_on_with_other_infos_or_extras(name: str, keeps_infos: bool):
    before, now = Leaf(("a",), np.dtype("f4"), ()), Leaf(("b",), np.dtype("f8"), (2,))

    def contents(*columns: Leaf) -> Contents:
        return Contents(spaces.Discrete(2), spaces.Discrete(2), **{name: columns}, keeps_infos=keeps_infos)

    described = json.dumps({name[:-1]: describe_leaves((before,))})
    check_columns(contents(before), described, "run.h5"), check_columns(contents(), "{}", "run.h5")
    words = rf"^run\.h5 has the {name} a \(float32, shape \[\]\), now they are "
    with pytest.raises(UsageError, match=words + r"a \(.*\), b \(float64, shape \[2\]\); continue it "):
        check_columns(contents(before, now), described, "run.h5")
    both = json.dumps({name[:-1]: describe_leaves((before, now))})
    check_columns(contents(now, before), both, "run.h5")
    with pytest.raises(UsageError, match=words + "none;"):
        check_columns(contents(), described, "run.h5")


def test_envs_that_promise_something_else_than_before_are_refused():
    past = Past(0, 3, np.zeros(2, int), np.zeros(2, int), Reproducibility.ENV)
    check_promise(past, Reproducibility.ENV, "run.h5.part")
    with pytest.raises(UsageError, match=r"run\.h5\.part is of envs that promised env .* these promise episode"):
        check_promise(past, Reproducibility.EPISODE, "run.h5.part")
