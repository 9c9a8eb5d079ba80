"""`<name>.status.json` beside an output: what a batch script can ask where exit codes are rewritten on their way.

Keys: state ("running", "complete", "interrupted" or "failed"), exit_code, resumable, message, file, num_steps (of them
committed), of_num_steps, starts (how often the run was started), pid, host, updated (ISO 8601, UTC).
"""

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any


def status_path(out: str) -> str:
    """Where the status of an output is."""
    return out.removesuffix(".h5") + ".status.json"


class Status:
    """Written anew, in one piece, whenever something changes; only by the root."""

    def __init__(self, out: str, num_steps: int):
        self._path = status_path(out)
        before = read_status(out)
        starts = before.get("starts") if before.get("state") != "complete" else 0
        starts = starts if isinstance(starts, int) else 0
        self._values: dict[str, Any] = {"of_num_steps": num_steps, "starts": starts + 1}

    def tell(self, state: str, **values: Any) -> None:
        """Write it.

        Parameters
        ----------
        values
            What is new; the rest stays.
        """
        self._values |= {"state": state, "pid": os.getpid(), "host": os.uname().nodename} | values
        self._values["updated"] = datetime.now(UTC).isoformat(timespec="seconds")
        new = f"{self._path}.new"
        try:
            with open(new, "w") as file:
                json.dump(self._values, file)
                file.write("\n")
            os.replace(new, self._path)
        except OSError:  # On a full disk: the run itself says so.
            with suppress(OSError):
                os.unlink(new)


def read_status(out: str) -> dict[str, Any]:
    """The last status of an output, {} without one."""
    try:
        with open(status_path(out)) as file:
            found = json.load(file)
            return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}
