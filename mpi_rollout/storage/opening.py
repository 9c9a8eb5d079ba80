"""The file of a run, made and given to the thread that writes it."""

import json
from collections.abc import Mapping
from typing import Any

import h5py

from mpi_rollout.config import RolloutConfig, versions
from mpi_rollout.core.layout import Block
from mpi_rollout.envs.replaying import Past
from mpi_rollout.storage.episodes import make_table
from mpi_rollout.storage.schema import Schema
from mpi_rollout.storage.writer import Prefix, Writer


def open_writer(
    config: RolloutConfig,
    attributes: dict[str, Any],
    blocks: list[Block],
    num_ranks: int,
    past: Past | None = None,
    lost: Mapping[int, int] | None = None,
    replaces: tuple[int, int] | None = None,
    source: str = "",
) -> Writer:
    """Make the file of a run and the thread that writes it.

    Parameters
    ----------
    past
        Where an earlier start of the run came to, whose file is continued.
    lost
        Envs whose running episode cannot be continued, and the first step that is not what it was.
    replaces
        The complete file that the run extends, see `naming.identity`.
    source
        The file that has what `past` says.

    Raises
    ------
    StorageError
        The file cannot be made.
    """
    libraries = {"h5py": h5py.__version__, "hdf5": h5py.version.hdf5_version}
    attributes = attributes | {"versions": json.dumps(versions() | libraries)}
    schema = Schema(attributes, blocks[0].named if config.trajectories else {}, num_ranks, config.compression)
    if not config.trajectories:
        return Writer(config.out, schema, [], None)
    episodes = make_table(config)
    prefix = None if past is None else Prefix(past.num_steps, source, lost or {})
    return Writer(config.out, schema, blocks, episodes, prefix, replaces)
