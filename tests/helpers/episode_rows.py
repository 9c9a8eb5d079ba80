"""The rows of /episodes that belong to columns of results."""

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.layout import Block, Contents
from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.storage.episodes import EpisodeTable


def episodes_by_hand(columns: dict[str, np.ndarray], seed: int) -> list[tuple]:
    """Rows of /episodes, found one env after the other, step by step."""
    num_steps, num_envs = columns["rewards"].shape
    rows = []
    for env in range(num_envs):
        seeds, start, total, is_reset = episode_seeds(seed, env), 0, 0.0, False
        for step in range(num_steps):
            if is_reset:
                start, total, is_reset = step + 1, 0.0, False
                continue
            total += float(columns["rewards"][step, env])
            ends = bool(columns["terminations"][step, env]), bool(columns["truncations"][step, env])
            is_reset = any(ends)
            if is_reset or step == num_steps - 1:
                rows.append((env, start, step - start + 1, total, next(seeds), *ends, False))
    return sorted(rows, key=lambda row: (not (row[5] or row[6]), row[1] + row[2], row[0]))


def table_of(columns: dict[str, np.ndarray], cuts: list[tuple[int, int, int]], seed: int) -> np.ndarray:
    """Rows of /episodes, from (start of the block, first row, last row) one after the other."""
    num_steps, num_envs = columns["rewards"].shape
    table = EpisodeTable(num_envs, seed)
    taken = []
    for block_start, first, stop in cuts:
        block = Block(Contents(spaces.Discrete(2), spaces.Discrete(2)), num_envs, 1, stop)
        block.start = block_start
        for name, column in columns.items():
            block.named[name][first:stop] = column[block_start + first : block_start + stop]
        table.add(block, first, stop)
        taken.append(table.take(block_start + stop))
    return np.concatenate([*taken, table.unfinished(num_steps)])
