"""`<name>.status.json` beside an output: what a batch script can ask where exit codes are rewritten on their way.

Keys: state ("running", "complete", "interrupted" or "failed"), exit_code, resumable, message, file, num_steps (of them
committed), of_num_steps, of_num_episodes (which may end a run before that step, with --num-episodes), starts (how often
the run was started), pid, host, updated (ISO 8601, UTC).
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from shlex import quote

from mpi_rollout.errors import Interrupted, UsageError
from mpi_rollout.process.clock import utc_now
from mpi_rollout.process.paths import open_regular
from mpi_rollout.storage.ownership import is_locked

BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
FRESH_S = 60.0  # An older status is not of a run that is under way on another host: that tells it twice a second.
MOST_CHARS = 2**20  # The length of a status at most; most have a few hundred.


def status_path(out: str) -> str:
    """Return where the status of an output is."""
    return out.removesuffix(".h5") + ".status.json"


class Status:
    """The status of one output; `is_first` if there was none before.  The root writes it again, in one piece."""

    def __init__(self, out: str, num_steps: int, num_episodes: int | None = None):
        self._path = status_path(out)
        before = read_status(out)
        self.is_first = not os.path.lexists(self._path)
        starts = before.get("starts") if before.get("state") != "complete" else 0
        starts = starts if isinstance(starts, int) else 0
        self._values: dict[str, object] = {"of_num_steps": num_steps, "starts": starts + 1}
        self._values |= {} if num_episodes is None else {"of_num_episodes": num_episodes}

    def tell(self, state: str, **values: object) -> None:
        """Write the status; keys that are not in `values` keep theirs."""
        self._values |= {"state": state, "pid": os.getpid(), "host": os.uname().nodename} | values
        self._values["updated"] = utc_now()
        text = json.dumps(self._values) + "\n"
        try:
            replace(self._path, text)
        except OSError:  # The disk is full: the run itself says so.
            overwrite(self._path, text)

    def remove(self) -> None:
        """Remove the status."""
        with suppress(OSError):
            os.unlink(self._path)


def tell_abort(out: str, place: str, code: int) -> None:
    """Write into the status of a run that one of its ranks ends the job, since the root does not come to that."""
    status, path = read_status(out), status_path(out)
    if status.get("state") == "running":
        state = "interrupted" if code == Interrupted.exit_code else "failed"
        message = f"{place} ended the job; its message on stderr says why"
        ended = {"state": state, "exit_code": code, "message": message, "updated": utc_now()}
        with suppress(OSError):  # Another rank does it at the same moment, or the disk is full.
            replace(path, json.dumps(status | ended) + "\n")


def is_batch_job() -> bool:
    """Tell whether a batch script may ask how the run ended: it learns that from the status alone."""
    return any(name in os.environ for name in BATCH_JOBS)


def replace(path: str, text: str) -> None:
    """Write a file again, in one piece: readers see the old one or the new one.

    What is in the way is removed, never followed: it may be a symbolic link.
    """
    new = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(new)
    try:
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w") as file:
            file.write(text)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            os.unlink(new)
        raise


def overwrite(path: str, text: str) -> None:
    """Write into the same file, for which a full disk has room; if even that fails, remove the file.

    A status that is no longer true is worse than none.
    """
    data = text.encode()
    with suppress(OSError), open(open_regular(path, os.O_WRONLY | os.O_NOFOLLOW), "wb", buffering=0) as file:
        if file.write(data) == len(data):
            file.truncate()
            return
    with suppress(OSError):
        os.unlink(path)


def read_status(out: str) -> dict[str, object]:
    """Read the last status of an output; return {} if there is none."""
    try:
        with open(status_path(out), opener=open_regular) as file:
            values = json.loads(file.read(MOST_CHARS))
            return values if isinstance(values, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def is_running(out: str, status: Mapping[str, object]) -> bool:
    """Tell whether the run of a status is under way.

    It holds the lock of its output, or its process lives on this host, or it has said so within a minute on another
    one.  Some file systems have no locks, and some do not show a host the locks of another one.
    """
    if status.get("state") != "running" or is_locked(f"{out}.part"):
        return status.get("state") == "running"
    if status.get("host") == os.uname().nodename:
        return os.path.exists(f"/proc/{status.get('pid')}")
    try:
        silent_s = (datetime.now(UTC) - datetime.fromisoformat(str(status.get("updated")))).total_seconds()
    except (TypeError, ValueError):  # It is no time.
        return False
    return silent_s < FRESH_S


def refuse_running(path: str) -> None:
    """Where there are no locks, believe what the status of an output says: refuse a run that is under way."""
    if is_running(path, status := read_status(path)):
        raise UsageError(
            f"{path}.part: another run is writing it, process {status.get('pid')} on {status.get('host')}; wait for "
            f"its end or use another --out (if there is none, rm {quote(status_path(path))})"
        )
