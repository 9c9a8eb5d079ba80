"""`verify` and `recover`: whether a file is whole, and a whole one of what a killed run has left."""

import json
import os
import time
from contextlib import suppress
from shlex import quote
from typing import Any

from mpi_rollout.core.spaces import wrong_values_text
from mpi_rollout.errors import AlreadyComplete, DataError, RolloutError, StorageError, UsageError, counted
from mpi_rollout.process.temporary import temporary_path
from mpi_rollout.storage.child import in_child
from mpi_rollout.storage.ownership import why_no_file

SUFFIX = ".part"


def verify(path: str, num_replayed: int = 0, replay_seed: int = 0, as_json: bool = False, **consent: Any) -> list[str]:
    """Return the lines to print about a file in which nothing is wrong; replay some of its episodes.

    Parameters
    ----------
    consent
        Of `Consent`: which envs may be made to replay episodes.

    Raises
    ------
    DataError
        Something is wrong.
    UsageError
        Its episodes cannot be replayed.
    """
    start = time.perf_counter()
    found = in_child("mpi_rollout.storage.verification:verify", path)
    found["seconds"] = time.perf_counter() - start
    if num_replayed > 0:
        from mpi_rollout.commands.consent import Consent
        from mpi_rollout.commands.replay import replay  # Only this needs envs.

        found |= replay(path, num_replayed, replay_seed, Consent(**consent))
    return [json.dumps(found)] if as_json else _lines(found)


def recover(path: str, new_path: str | None, num_steps: int | None = None, as_json: bool = False) -> list[str]:
    """Make a complete file of what a run has committed; return the lines to print about it.

    Raises
    ------
    DataError
        There is nothing to recover, or it is damaged.
    StorageError
        The new file exists or cannot be written.
    """
    if why := why_no_file(path):
        raise DataError(why)
    if new_path is None:
        if not path.endswith(SUFFIX):
            raise _without_suffix(path)
        new_path = path.removesuffix(SUFFIX)
    if os.path.lexists(new_path):
        raise StorageError(f"{new_path} exists; move it away or give another name: recover {quote(path)} DEST")
    folder = os.path.dirname(os.path.abspath(new_path))
    if not os.path.isdir(folder):
        raise StorageError(f"cannot write {new_path}: there is no folder {folder}; mkdir -p {quote(folder)}")
    temporary = temporary_path(new_path, "recovering")
    start = time.perf_counter()
    try:
        found = in_child("mpi_rollout.storage.recovery:recover", path, new_path, temporary, num_steps)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
    found["seconds"] = time.perf_counter() - start
    return [json.dumps(found)] if as_json else _lines(found)


def _without_suffix(path: str) -> RolloutError:
    """Why a file that does not end with .part cannot be recovered without a second name."""
    if in_child("mpi_rollout.storage.reader:identity", path)["complete"]:
        return AlreadyComplete(f"{path} is complete already; there is nothing to recover")
    return UsageError(f"recover: {path} does not end with {SUFFIX}; give the new file's name, too")


def _lines(found: dict[str, Any]) -> list[str]:
    state = "not complete; what is committed is whole"
    if found["complete"]:
        state = "complete and whole"
    elif found["recovered"]:
        state = "recovered and whole"
    if found["wrong_values"]:
        state += f", but {wrong_values_text(found['wrong_values'])}"
    lines = [
        f"{found['file']}: {state}",
        f"checksums     {found['chunks']:,} chunks, {found['nbytes'] / 1e6:,.1f} MB, read in {found['seconds']:.1f} s",
        f"steps         {found['num_steps']:,} of each env, as long as every dataset",
        f"episodes      {found['episodes']:,}, as they follow from rewards, ends and seeds",
    ]
    if "replayed" in found:
        replayed = f"{counted(found['replayed'], 'episode')} of {counted(found['replayed_steps'], 'step')}"
        lines.append(f"replay        {replayed} from seed and actions: every byte the same")
    return lines
