"""`export`: the data of runs as files that other programs read.

Files are read and written in a child process, as damaged files are; this process sees to the new name: it is there when
all is written, else nothing is.
"""

import json
import os
from collections.abc import Mapping, Sequence
from shlex import quote
from time import perf_counter
from typing import Any, TypeAlias

from mpi_rollout.data.exports.minari_place import Place, check_id
from mpi_rollout.errors import DataError, StorageError, UsageError
from mpi_rollout.exchange.world import claimed_size
from mpi_rollout.process.host import format_bytes
from mpi_rollout.storage.ownership import check_place, give_name, identity, removed, temporary_path, why_no_file
from mpi_rollout.storage.sandbox import in_sandbox
from mpi_rollout.text import counted, printable

Options: TypeAlias = Mapping[str, Any]


def export_minari(files: Sequence[str], dataset_id: str, options: Options) -> list[str]:
    """Write a Minari data set; return the lines to print.

    UsageError if the id is none, or is taken; DataError if a file is missing, damaged, or has no episodes; StorageError
    if the data set cannot be written.
    """
    _check_start(files)
    check_id(dataset_id)
    start, place = perf_counter(), Place(dataset_id, options["overwrite"])
    try:
        given = {**options, "dataset_id": dataset_id}
        report = in_sandbox("mpi_rollout.data.exports.minari:export", files[0], [*files], place.make(), given)
        place.publish()
    finally:
        place.remove()
    report |= {"dataset_id": dataset_id, "path": place.path, "seconds": perf_counter() - start}
    lines = [f"folder        {place.path}", f'load it       minari.load_dataset("{dataset_id}")']
    return _lines(dataset_id, report, options["json"], lines + [f"note          {note}" for note in report["notes"]])


def _lines(name: str, report: Mapping[str, Any], as_json: bool, more: Sequence[str]) -> list[str]:
    """Return the lines about an export: what was written, and then `more`."""
    if as_json:
        return [json.dumps(report)]
    cut = f" ({report['unfinished']:,} cut by the end of the data)" if report["unfinished"] else ""
    counts = f"{counted(report['episodes'], 'episode')}{cut}, {counted(report['steps'], 'step')}"
    first = f"{name}: {counts}, {format_bytes(report['nbytes'])}, in {report['seconds']:.1f} s"
    return [printable(line) for line in (first, *more)]


def export_d4rl(files: Sequence[str], out: str, options: Options) -> list[str]:
    """Write a file of D4RL; return the lines to print.  The errors are those of `export_minari`."""
    _check_start(files)
    if os.path.isdir(out):
        raise UsageError(f"{out} is a folder; name a file in it: {quote(os.path.join(out, 'd4rl.h5'))}")
    if os.path.lexists(out) and not options["overwrite"]:
        raise UsageError(f"{out} exists; give another name, or --overwrite")
    if any(os.path.exists(out) and os.path.samefile(file, out) for file in files):
        raise UsageError(f"{out} is the file to export; give the new one another name")
    check_place("", out)
    start, replaces, temporary = perf_counter(), identity(out), temporary_path(os.path.abspath(out), "exporting")
    with removed(temporary):
        report = in_sandbox("mpi_rollout.data.exports.d4rl:export", files[0], list(files), temporary, options)
        try:
            give_name(temporary, out, replaces)
        except OSError as error:
            raise StorageError(f"cannot write {out}: {error.strerror or error}") from error
    report |= {"path": out, "seconds": perf_counter() - start}
    return _lines(out, report, options["json"], _d4rl_notes(report))


def _d4rl_notes(report: Mapping[str, Any]) -> list[str]:
    lines = []
    if not report["is_flat"]:
        lines.append("note          observations are nested: D4RL's own loader wants one array of them")
    if report["unknown"]:
        lines.append(
            f"note          of {counted(report['unknown'], 'episode')} the file does not have the last observation: "
            "their last row of next_observations repeats the one before"
        )
    return lines


def _check_start(files: Sequence[str]) -> None:
    if claimed_size()[0] > 1:
        raise UsageError("export is one process; start it without mpirun")
    for file in files:
        if why := why_no_file(file):
            raise DataError(why)
