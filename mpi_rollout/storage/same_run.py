"""Whether a file that is there is of the run that is to be begun."""

import json
from dataclasses import replace
from typing import Any

from mpi_rollout.config import DATA_OPTIONS, RolloutConfig
from mpi_rollout.errors import UsageError
from mpi_rollout.options import unused
from mpi_rollout.policies.sources import sha256_of
from mpi_rollout.stored_config import difference, read_config
from mpi_rollout.text import shortened


def check_same_run(config: RolloutConfig, stored: dict[str, Any], path: str) -> bool:
    """Refuse to go on with the file of another run; `stored` is what `checked_file.identity` says of the file.

    Return whether the file is complete, and of the same run with fewer steps: it can be extended.  UsageError if
    options that decide on the data differ; the message says which.
    """
    is_complete = stored["complete"]
    before = read_config(stored["config"], path)
    num_steps = before.num_steps
    has_fewer = is_complete and num_steps < config.num_steps
    if has_fewer:
        before = replace(before, num_steps=config.num_steps)
    advice = "give the same options to continue it, move it away, or use another --out"
    if is_complete:
        advice = "it is complete; move it away, or use another --out"
    if has_fewer:
        advice = "give the same options to extend it, move it away, or use another --out"
    elif is_complete and num_steps > config.num_steps:
        advice += " (more --num-steps extend a complete file, fewer do not cut it)"
    if changes := _changes(before, config):
        raise UsageError(f"--out {config.out}: {path} is of another run: {'; '.join(changes)}; {advice}")
    sha256 = sha256_of(config.policy) if stored["policy_sha256"] else ""
    if sha256 and sha256 != stored["policy_sha256"]:  # A file that cannot be read is refused as in a new run.
        raise UsageError(
            f"--out {config.out}: {path} is of a run with another {config.policy} (its SHA-256 was "
            f"{stored['policy_sha256'][:16]}...); {advice}"
        )
    return has_fewer


def _changes(before: RolloutConfig, now: RolloutConfig) -> list[str]:
    """Return the words for every option of the data that is not what it was."""
    idle = unused(before)  # Earlier versions did not refuse them.
    options = [
        (name, getattr(RolloutConfig if name in idle else before, name), getattr(now, name)) for name in DATA_OPTIONS
    ]
    return [
        difference(name, old, new, lambda value: shortened(_json(value)))
        for name, old, new in options
        if _json(old) != _json(new)
    ]


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
