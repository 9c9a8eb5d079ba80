"""The files of a set of shards: their names follow from the name of the set and from ranges of envs alone.

A set called `big.h5` is a manifest of that name, `big.h5.part` until all shards are complete, and the shards in the
folder `big.h5.shards`.  An ordinary file has no such folder.
"""

import os
import stat
from contextlib import suppress


def name_now(path: str) -> str:
    """Return the name that a file has now: a run takes the `.part` away when it is complete."""
    whole = path.removesuffix(".part")
    return whole if not os.path.lexists(path) and os.path.lexists(whole) else path


def shards_folder(path: str) -> str:
    """Return the folder of the shards of a set, by any name that its manifest has on the way."""
    return f"{path.removesuffix('.part.new').removesuffix('.part')}.shards"


def shard_path(path: str, envs: range) -> str:
    """Return the name that the shard of some envs has when it is complete."""
    return os.path.join(shards_folder(path), f"envs-{envs.start}-{envs.stop - 1}.h5")


def states_of(path: str) -> list[os.stat_result]:
    """Return the states of all files of a run, as far as they are there: of a set or of its only one."""
    folder, names, states = shards_folder(path), [""], []
    with suppress(OSError):
        names += sorted(os.listdir(folder))
    for name in names:
        with suppress(OSError):  # A shard may lose the `.part` in its name at any moment.
            states.append(os.stat(os.path.join(folder, name) if name else path))
    return [state for state in states if stat.S_ISREG(state.st_mode)]


def size_of(path: str) -> int:
    """Return the bytes of all files of a run."""
    return sum(state.st_size for state in states_of(path))
