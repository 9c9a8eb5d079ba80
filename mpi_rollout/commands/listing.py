"""`list`: how far the runs of some folders are, as the `status.json` beside each output says."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpi_rollout.errors import UsageError
from mpi_rollout.storage.status import is_running, read_status
from mpi_rollout.text import aligned, printable

STATUS_ENDING = ".status.json"
COLUMNS = ("run", "state", "steps", "starts", "updated (UTC)", "message")


def list_runs(folders: Sequence[str], as_json: bool = False) -> list[str]:
    """Return the lines to print about the runs of some folders."""
    runs = [run for folder in folders for run in runs_of(folder)]
    if as_json:
        return [json.dumps(runs)]
    if not runs:
        return [f"no runs in {', '.join(folders)}: there is no *{STATUS_ENDING}"]
    rows = [COLUMNS, *map(_words_of, runs)]
    num_columns = len(COLUMNS) - (not any(row[-1] for row in rows[1:]))  # A column of messages only if there is one.
    return aligned([row[:num_columns] for row in rows], num_columns)


def runs_of(folder: str) -> list[dict[str, object]]:
    """Return all runs whose output is in a folder, in alphabetical order; UsageError if there is no folder.

    For each run there is what `status.json` says, and the path of its output as `run`.  The state is "killed" where
    `status.json` says "running" but no process writes the output.
    """
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder}; give the folder of --out")
    outs = [_output_of(str(path)) for path in sorted(Path(folder).glob(f"*{STATUS_ENDING}"))]
    statuses = [(out, read_status(out)) for out in outs]
    return [{"run": out} | status | _state(out, status) for out, status in statuses if status]


def _output_of(status: str) -> str:
    """Return the output that a status belongs to: its name ends in .h5, unless only a file of another name is there."""
    name = status.removesuffix(STATUS_ENDING)
    candidates = (f"{name}.h5", name)
    return next((out for out in candidates if os.path.lexists(out) or os.path.lexists(f"{out}.part")), candidates[0])


def _state(out: str, status: Mapping[str, object]) -> dict[str, str]:
    """Return the state "killed" for a run that says it is running, and is not."""
    return {"state": "killed"} if status.get("state") == "running" and not is_running(out, status) else {}


def _words_of(run: Mapping[str, object]) -> tuple[str, ...]:
    num_steps, total = run.get("num_steps"), run.get("of_num_steps")
    steps = f"{_shown(num_steps)} of {_shown(total)}"
    if run.get("state") == "complete" and "of_num_episodes" in run:  # The episodes may have ended it.
        steps = f"{_shown(num_steps)} of at most {_shown(total)}"
    elif isinstance(num_steps, int) and isinstance(total, int) and total > 0:
        steps += f" ({100 * num_steps // total}%)"
    has_ended_badly = run.get("state") in ("interrupted", "failed")
    message = str(run.get("message", "")).partition("\n")[0] if has_ended_badly else ""
    updated = str(run.get("updated") or "")[:16].replace("T", " ")  # To the minute: a line then fits into 80 columns.
    words = (str(run["run"]).removesuffix(".h5"), run.get("state"), steps, run.get("starts"), updated, message)
    return tuple(printable("" if word is None else str(word)) for word in words)


def _shown(number: object) -> str:
    """Return a number of steps as all others are shown; what a damaged status has in its place, as it is."""
    return f"{number:,}" if isinstance(number, int) else str(number)
