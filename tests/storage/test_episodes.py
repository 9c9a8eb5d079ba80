"""The table of episodes: found in columns, however they come."""

import random
from itertools import pairwise

import numpy as np
import pytest
from episode_rows import episodes_by_hand, table_of
from gymnasium import spaces

from mpi_rollout.core.layout import Block, Contents
from mpi_rollout.storage import episodes as episode_table
from mpi_rollout.storage.episodes import EpisodeTable, StoredResults
from mpi_rollout.storage.schema import EPISODE


def random_results(num_steps: int, num_envs: int, share_of_ends: float, seed: int) -> dict[str, np.ndarray]:
    """Rewards and ends such as envs in NEXT_STEP mode give: after an end comes a row with neither."""
    draws = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    columns = {
        "rewards": draws.normal(size=shape) * 10.0 ** draws.integers(-8, 8, shape),
        "terminations": draws.random(shape) < share_of_ends,
        "truncations": draws.random(shape) < share_of_ends / 3,
    }
    for step in range(1, num_steps):
        is_reset = columns["terminations"][step - 1] | columns["truncations"][step - 1]
        for column in columns.values():
            column[step, is_reset] = 0
    return columns


def random_cuts(num_steps: int, seed: int) -> list[tuple[int, int, int]]:
    """Blocks of 16 rows, each handed over in one or several pieces."""
    draws = random.Random(seed)
    cuts = []
    for block_start in range(0, num_steps, 16):
        num_rows = min(16, num_steps - block_start)
        edges = sorted({0, num_rows, *draws.sample(range(num_rows), draws.randrange(min(4, num_rows)))})
        cuts += [(block_start, first, stop) for first, stop in pairwise(edges)]
    return cuts


EPISODE_RUNS = [
    (num_steps, num_envs, share, seed)
    for seed, (num_steps, num_envs, share) in enumerate(
        [
            (1, 1, 0.5),
            (1, 7, 0.5),
            (5, 3, 0.0),
            (40, 1, 0.2),
            (100, 5, 0.05),
            (200, 3, 0.5),
            (64, 40, 0.3),
            (33, 4, 1.0),
        ]
    )
]


@pytest.mark.parametrize(("num_steps", "num_envs", "share_of_ends", "seed"), EPISODE_RUNS)
def test_the_episode_table_is_what_one_finds_step_by_step_however_a_run_is_cut_into_blocks(
    num_steps: int, num_envs: int, share_of_ends: float, seed: int
):
    columns = random_results(num_steps, num_envs, share_of_ends, seed)
    for cuts in ([(0, 0, num_steps)], *(random_cuts(num_steps, cut) for cut in range(5))):
        found = table_of(columns, cuts, seed)
        assert found.dtype == EPISODE
        assert found.tolist() == episodes_by_hand(columns, seed)


def test_an_episode_is_taken_only_when_all_its_steps_are_committed():
    columns = random_results(30, 3, 0.2, 1)
    block = Block(Contents(spaces.Discrete(2), spaces.Discrete(2)), 3, 1, 30)
    for name, column in columns.items():
        block.named[name][...] = column
    table = EpisodeTable(3, 1)
    table.add(block, 0, 30)
    taken = []
    for num_steps in range(31):
        rows = table.take(num_steps).tolist()
        assert all(start + length == num_steps for _, start, length, *_ in rows)
        taken += rows
    assert taken == [row for row in episodes_by_hand(columns, 1) if row[5] or row[6]]


@pytest.mark.parametrize("wide", [1, 10**9])
@pytest.mark.parametrize(("num_steps", "num_envs", "share_of_ends", "seed"), EPISODE_RUNS)
def test_episodes_may_follow_each_other_without_a_row_between(
    monkeypatch: pytest.MonkeyPatch, num_steps: int, num_envs: int, share_of_ends: float, seed: int, wide: int
):
    monkeypatch.setattr(episode_table, "WIDE", wide)
    columns = random_results(num_steps, num_envs, share_of_ends, seed)
    results = StoredResults(0, *columns.values())
    table = EpisodeTable(num_envs, seed, num_reset_rows=0)
    table.add(results, 0, num_steps)
    rows = np.concatenate([table.take(num_steps), table.unfinished(num_steps)])
    assert rows["length"].sum() == num_steps * num_envs
    for env in range(num_envs):
        own = np.sort(rows[rows["env_index"] == env], order="start")
        ends = np.flatnonzero(columns["terminations"][:, env] | columns["truncations"][:, env])
        assert own["start"].tolist() == [start for start in (0, *(ends + 1)) if start < num_steps]
        for row in own:
            stop = row["start"] + row["length"]
            assert row["return"] == sum(columns["rewards"][row["start"] : stop, env].tolist())


def test_without_seeds_per_episode_the_table_says_minus_one():
    block = Block(Contents(spaces.Discrete(2), spaces.Discrete(2)), 2, 1, 4)
    block.named["terminations"][1] = True
    table = EpisodeTable(2, None)
    table.add(block, 0, 4)
    assert np.concatenate([table.take(4), table.unfinished(4)])["seed"].tolist() == [-1] * 4


@pytest.mark.parametrize("seeded", [False, True], ids=["native", "loop"])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.95])
@pytest.mark.parametrize("num_envs", [1, 3, 50])
def test_row_by_row_the_same_episodes_are_found(
    monkeypatch: pytest.MonkeyPatch, num_envs: int, share: float, seeded: bool
):
    """Also where the row after an end is an end, as of envs that were lost, and whatever the blocks and their parts."""
    draws, seed, start = np.random.default_rng(num_envs), 3 if seeded else None, 0
    blocks: list[tuple[StoredResults, list[int]]] = []
    for num_rows in (3, 40, 17):
        ends = [draws.random((num_rows, num_envs)) < chance for chance in (share, share / 3)]
        block = StoredResults(start, draws.normal(size=(num_rows, num_envs)), *ends)
        blocks.append((block, sorted({0, *draws.integers(0, num_rows, 2).tolist(), num_rows})))
        start += num_rows

    def episodes(wide: int) -> list[bytes]:
        monkeypatch.setattr(episode_table, "WIDE", wide)
        table, rows = EpisodeTable(num_envs, seed), []
        for block, cuts in blocks:
            for first, stop in pairwise(cuts):
                table.add(block, first, stop)
            rows.append(table.take(block.start + cuts[-1]).tobytes())
        return [*rows, table.unfinished(start).tobytes()]

    assert episodes(wide=1) == episodes(wide=10**9)
