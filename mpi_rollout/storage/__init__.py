"""The HDF5 file: how it is made, filled, committed, closed and read.  Only the root imports this."""

import json
from typing import Any

import h5py

from mpi_rollout.config import RolloutConfig, versions
from mpi_rollout.layout import Block
from mpi_rollout.seeding import SeedTable
from mpi_rollout.storage.episodes import EpisodeTable
from mpi_rollout.storage.schema import Schema, rows_per_block
from mpi_rollout.storage.writer import Ending, Writer

__all__ = ["Ending", "EpisodeTable", "Schema", "Writer", "open_writer", "rows_per_block"]


def open_writer(config: RolloutConfig, attributes: dict[str, Any], blocks: list[Block], num_ranks: int) -> Writer:
    """Make the file of a run and the thread that writes it.

    Raises
    ------
    StorageError
        The file cannot be made.
    """
    libraries = {"h5py": h5py.__version__, "hdf5": h5py.version.hdf5_version}
    attributes = attributes | {"versions": json.dumps(versions() | libraries)}
    schema = Schema(attributes, blocks[0].named if config.trajectories else {}, num_ranks)
    if not config.trajectories:
        return Writer(config.out, schema, [], None)
    seeds = SeedTable(config.seed, config.num_envs) if config.vectorization_mode == "sync" else None
    return Writer(config.out, schema, blocks, EpisodeTable(config.num_envs, seeds))
