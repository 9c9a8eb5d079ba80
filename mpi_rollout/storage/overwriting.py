"""`--overwrite`: what may be replaced, and what is said of it.

A complete file stays until the new one is complete.  An unfinished one of another run goes when the new one is made.
"""

import os
from shlex import quote

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.storage.same_run import check_same_run, why_not_brought_back
from mpi_rollout.storage.sandbox import in_sandbox
from mpi_rollout.text import counted


def check_replaceable(config: RolloutConfig, path: str) -> dict[str, object]:
    """Return what `checked_file.identity` says of a file that may be replaced.

    UsageError if it is a link, or no file of this program.
    """
    if os.path.islink(path):
        name = quote(os.path.realpath(path))
        raise UsageError(f"--out {config.out} is a link; to replace the file give its name, --out {name}")
    try:
        return dict(in_sandbox("mpi_rollout.storage.checked_file:identity", path))
    except DataError as error:
        words = f"move {path} away or use another --out ({error})"
        raise UsageError(f"--overwrite replaces whole files of mpi_rollout only; {words}") from error


def why_dropped(config: RolloutConfig, part: str) -> str:
    """Return why an unfinished file is dropped, and what is in it; "" if it is this run's own and can be continued."""
    stored = check_replaceable(config, part)
    try:
        check_same_run(config, stored, part)
        why = why_not_brought_back(Reproducibility(str(stored["promise"])))
    except UsageError as error:
        why = str(error).partition(f"{part} ")[2].rpartition("; ")[0]
        why = f"it {why}" if why else ""
    return f"--overwrite drops {part}, {counted(int(str(stored['num_steps'])), 'step')}: {why}" if why else ""
