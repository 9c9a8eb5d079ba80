"""How much room the file of a run takes: told before the run begins, and refused where the disk has less."""

import os
import shutil

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.host import ANYWAY, format_bytes, is_any_size
from mpi_rollout.errors import StorageError, counted

TOLD_NBYTES = 100_000_000


def check_file(config: RolloutConfig, row_nbytes: int, old_nbytes: int = 0) -> str:
    """Refuse a file that its file system has no room for; return what to tell the user, "" for a small file.

    The size of a compressed one is not known before: it is told, and not refused.

    Parameters
    ----------
    row_nbytes
        Of one step of all envs.
    old_nbytes
        Of the unfinished file that is continued, until the new one has all of it.

    Raises
    ------
    StorageError
        There is no room.
    """
    if not config.trajectories:
        return ""
    nbytes, is_compressed = row_nbytes * config.num_steps, config.compression != "none"
    folder = os.path.dirname(os.path.abspath(config.out))
    free = shutil.disk_usage(folder).free
    data = f"{counted(config.num_envs, 'env')} x {counted(config.num_steps, 'step')}"
    size = f"{data} take {'at most' if is_compressed else 'about'} {format_bytes(nbytes)} in {config.out}"
    needed = max(nbytes - old_nbytes, min(old_nbytes, nbytes))
    if needed > free and not is_compressed and not is_any_size():
        ways_out = f"use fewer steps or envs, another --out, --compression gzip, {ANYWAY}"
        raise StorageError(f"{size}, and {folder} has {format_bytes(free)} free; {ways_out}")
    return f"{size} ({format_bytes(free)} free there)" if nbytes >= TOLD_NBYTES else ""
