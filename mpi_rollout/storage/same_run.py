"""Whether a file that is there is of the run that is to be begun, and what `--overwrite` may replace.

A complete file stays until the new one is complete.  An unfinished one of another run goes when the new one is made.
"""

import json
import os
from shlex import quote
from typing import Any

from mpi_rollout.config import DATA_OPTIONS, RolloutConfig, difference, read_config
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.errors import AlreadyComplete, DataError, UsageError
from mpi_rollout.policies.sources import sha256_of
from mpi_rollout.storage.sandbox import in_sandbox
from mpi_rollout.storage.shard_files import shards_folder
from mpi_rollout.text import counted, shortened

LENGTHS = "num_steps", "num_episodes"  # Whichever is reached first ends a run.


def check_same_run(config: RolloutConfig, stored: dict[str, Any], path: str) -> bool:
    """Refuse to go on with the file of another run; `stored` is what `checked_file.identity` says of the file.

    Return whether the file is complete, and of the same run with fewer steps or episodes: it can be extended.
    UsageError if options that decide on the data differ; the message says which.
    """
    is_complete, about = stored["complete"], f"--out {config.out}: {path}"
    way_out = f"move it away, use another --out, or {'replace' if is_complete else 'drop'} it with --overwrite"
    if stored["sharded"]:
        way_out = f"move it and {shards_folder(path)} away, or use another --out"
    if stored["recorded"]:
        raise UsageError(f"{about} is the recording of a trainer, which no run continues; {way_out}")
    before = read_config(stored["config"], path)
    changes = _changes(before, config)
    has_fewer = is_cut = False
    if is_complete and changes.keys() & {*LENGTHS}:
        num_steps, num_ended, num_ended_before = end_of(before, config, path)
        has_fewer = not ends_at(config, num_steps, num_ended)
        is_cut = ends_at(config, num_steps - 1, num_ended_before)
        if not is_cut:
            changes = {name: words for name, words in changes.items() if name not in LENGTHS}
    advice = f"it is complete; {way_out}"
    if has_fewer or not is_complete:
        advice = f"give the same options to {'extend' if is_complete else 'continue'} it, {way_out}"
    elif is_cut:
        advice += " (more --num-steps or --num-episodes extend a complete file, fewer do not cut it)"
    if changes:
        raise UsageError(f"{about} is of another run: {'; '.join(changes.values())}; {advice}")
    sha256 = sha256_of(config.policy) if stored["policy_sha256"] else ""
    if sha256 and sha256 != stored["policy_sha256"]:  # A file that cannot be read is refused as in a new run.
        was = f"(its SHA-256 was {stored['policy_sha256'][:16]}...)"
        raise UsageError(f"{about} is of a run with another {config.policy} {was}; {advice}")
    return has_fewer


def why_not_brought_back(promised: Reproducibility) -> str:
    """Return why envs of this promise cannot be brought to where they were; "" where they can."""
    return f"{promised.words} and cannot be brought back" if promised == Reproducibility.SLICE else ""


def ends_at(config: RolloutConfig, num_steps: int, num_ended: int) -> bool:
    """Tell whether a run has nothing to do after so many steps, in which so many episodes have ended."""
    has_episodes = config.num_episodes is not None and num_ended >= config.num_episodes
    return has_episodes or num_steps >= config.num_steps


def end_of(before: RolloutConfig, now: RolloutConfig, path: str) -> tuple[int, int, int]:
    """Return the steps of a complete file, the episodes that ended in them, and those that ended before the last one.

    Episodes are counted only where they matter.
    """
    if not before.trajectories or (before.num_episodes, now.num_episodes) == (None, None):
        return before.num_steps, 0, 0
    num_steps, num_ended, num_ended_before = in_sandbox("mpi_rollout.storage.verification:end", path)
    return num_steps, num_ended, num_ended_before


def _changes(before: RolloutConfig, now: RolloutConfig) -> dict[str, str]:
    """Return the words for every option of the data that is not what it was, by its name."""
    options = [(name, getattr(before, name), getattr(now, name)) for name in DATA_OPTIONS]
    return {
        name: difference(name, old, new, lambda value: shortened(_json(value)))
        for name, old, new in options
        if _json(old) != _json(new)
    }


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def check_extends(config: RolloutConfig, path: str) -> None:
    """Refuse the file at the output's name, unless it is this run with fewer steps.

    AlreadyComplete if it is this run with all its steps; UsageError if it is something else, or cannot be extended.
    """
    about = f"--out {config.out}: {path}"
    try:
        stored = in_sandbox("mpi_rollout.storage.checked_file:identity", path)
    except DataError as error:
        raise UsageError(f"{about} exists; move it away or use another --out ({error})") from error
    has_fewer = check_same_run(config, stored, path)
    if not stored["complete"]:
        raise UsageError(f"{about} was recovered from this run before its end; move it away to continue the run")
    if not has_fewer:
        raise AlreadyComplete(f"{about} is there already, of the same run and complete; nothing is left to do")
    if os.path.islink(path):
        name = quote(os.path.realpath(path))
        raise UsageError(f"--out {config.out} is a link; to extend the file give its name, --out {name}")
    promised = Reproducibility(stored["promise"])
    if why := why_not_brought_back(promised) if config.trajectories else "it has no trajectories":
        raise UsageError(f"{about} cannot be extended, since {why}; move it away or use another --out")


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
