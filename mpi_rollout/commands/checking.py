"""`verify` and `recover`: whether a file is whole, and a file of what is whole.

The file is read in a child process; here its answers become lines.
"""

import json
import os
import time
from collections.abc import Mapping
from shlex import quote
from typing import Any

from mpi_rollout.core.spaces import wrong_values_text
from mpi_rollout.errors import AlreadyComplete, DataError, StorageError, UsageError
from mpi_rollout.process.paths import coming_back
from mpi_rollout.storage.ownership import check_place, removed, temporary_path, why_no_file
from mpi_rollout.storage.sandbox import in_sandbox
from mpi_rollout.text import counted, printable

SUFFIX = ".part"


def verify(path: str, num_replayed: int = 0, replay_seed: int = 0, as_json: bool = False, **consent: Any) -> list[str]:
    """Check a file, and replay some of its episodes; return the lines to print if nothing is wrong.

    DataError if something is wrong, UsageError if its episodes cannot be replayed.  `consent` has the fields of
    `Consent`: which envs may be made to replay episodes.
    """
    start = time.perf_counter()
    report = in_sandbox("mpi_rollout.storage.verification:verify", path)
    report["seconds"] = time.perf_counter() - start
    if num_replayed > 0:
        from mpi_rollout.commands.consent import Consent  # Only this needs envs.
        from mpi_rollout.commands.replay import replay

        with coming_back():
            report |= replay(path, num_replayed, replay_seed, Consent(**consent))
    return [json.dumps(report)] if as_json else _report_lines(report)


def recover(path: str, new_path: str | None, num_steps: int | None = None, as_json: bool = False) -> list[str]:
    """Make a complete file of what a run has committed; return the lines to print about it.

    DataError if there is nothing to recover or it is damaged; StorageError if the new file exists or cannot be written.
    """
    if why := why_no_file(path):
        raise DataError(why)
    new_path = new_path or _without_suffix(path)
    if os.path.lexists(new_path):
        raise StorageError(f"{new_path} exists; move it away or give another name: recover {quote(path)} DEST")
    check_place("", new_path)
    temporary = temporary_path(new_path, "recovering")
    start = time.perf_counter()
    with removed(temporary):
        report = in_sandbox("mpi_rollout.storage.recovery:recover", path, new_path, temporary, num_steps)
    report["seconds"] = time.perf_counter() - start
    return [json.dumps(report)] if as_json else _report_lines(report)


def _without_suffix(path: str) -> str:
    """Return the name of a recovered file, if nobody gives one."""
    if path.endswith(SUFFIX):
        return path.removesuffix(SUFFIX)
    if in_sandbox("mpi_rollout.storage.checked_file:identity", path)["complete"]:
        raise AlreadyComplete(f"{path} is complete already; there is nothing to recover")
    raise UsageError(f"recover: {path} does not end with {SUFFIX}; give the new file's name, too")


def _report_lines(report: Mapping[str, Any]) -> list[str]:
    state = "not complete; what is committed is whole"
    if report["complete"]:
        state = "complete and whole"
    elif report["recovered"]:
        state = "recovered and whole"
    if report["wrong_values"]:
        state += f", but {wrong_values_text(report['wrong_values'])}"
    read = f"{report['nbytes'] / 1e6:,.1f} MB, read in {report['seconds']:.1f} s"
    lines = [
        f"{report['file']}: {state}",
        f"checksums     {report['chunks']:,} chunks, {read}",
        f"steps         {report['num_steps']:,} of each env, as long as every dataset",
        f"episodes      {report['episodes']:,}, as they follow from rewards, ends and seeds",
    ]
    if "shards" in report:
        lines.insert(1, f"shards        {report['shards']:,}, each whole, and those that its manifest means")
    if report["limits"]:
        lines.append(printable(f"recording     {report['limits']}"))
    if "replayed" in report:
        replayed = f"{counted(report['replayed'], 'episode')}, {counted(report['replayed_steps'], 'step')} in all"
        lines.append(f"replay        {replayed}, from seed and actions: every byte the same")
    return lines
