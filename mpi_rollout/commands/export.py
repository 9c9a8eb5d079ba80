"""`export`: the data of runs as files that other programs read.

Files are read and written in a child process, as damaged files are; this process sees to the new name: it is there when
all is written, else nothing is.  A Minari data set is written into a hidden folder beside its place, which Minari does
not look into, and then renamed.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path, PurePath
from shlex import quote
from time import perf_counter
from typing import Any, TypeAlias

from mpi_rollout.errors import DataError, StorageError, UsageError
from mpi_rollout.exchange.world import claimed_size
from mpi_rollout.process.host import format_bytes
from mpi_rollout.storage.ownership import check_place, give_name, identity, removed, temporary_path, why_no_file
from mpi_rollout.storage.sandbox import in_sandbox
from mpi_rollout.text import counted, printable

ID = re.compile(r"(?:(?P<namespace>[-_\w][-_\w/]*[-_\w]+)/)?(?P<name>[-_\w]+?)(?:-v(?P<version>\d+))?")  # Minari's own.
NAMESPACE_FILE = "namespace_metadata.json"
VARIABLE = "MINARI_DATASETS_PATH"
Options: TypeAlias = Mapping[str, Any]
PATIENCE_S = 600.0  # To compress one large episode takes minutes, in which the child gives no sign of life.


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
        task, arguments = "mpi_rollout.data.exports.minari:export", ([*files], place.make(), given)
        report = in_sandbox(task, files[0], *arguments, patience_s=PATIENCE_S)
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
        task, arguments = "mpi_rollout.data.exports.d4rl:export", ([*files], temporary, options)
        report = in_sandbox(task, files[0], *arguments, patience_s=PATIENCE_S)
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


def check_id(dataset_id: str) -> None:
    """Raise UsageError if Minari would not load a data set of this id."""
    match = ID.fullmatch(dataset_id)
    if not match or "//" in dataset_id:
        raise UsageError(
            f"{dataset_id!r} is no id of Minari; it should be NAME-vN or NAMESPACE/NAME-vN, such as "
            "cartpole/random-v0, of letters, digits, - and _, with two or more in NAMESPACE"
        )
    if "data" in dataset_id.split("/")[:-1]:
        raise UsageError(
            f"{dataset_id}: Minari takes each folder with a `data` in it for a data set, and would list none any "
            "more; use another namespace"
        )
    if match["version"] is None:
        raise UsageError(f"{dataset_id} has no version, and Minari would not load it; use {dataset_id}-v0")


def next_version(dataset_id: str, folder: str) -> str:
    """Return the id with the first version that is free."""
    name, _, version = dataset_id.rpartition("-v")
    ids = (f"{name}-v{number}" for number in count(int(version)))
    return next(new for new in ids if not os.path.lexists(os.path.join(folder, new)))


class Place:
    """The place of a new data set; UsageError from the constructor if another data set has it.

    `path` is its folder, `temporary` the hidden folder until it is complete, and `data` the folder of the files while
    they are written.  A data set that has the place and is to be overwritten goes when the new one is complete.
    """

    def __init__(self, dataset_id: str, overwrites: bool = False):
        self._id, self._overwrites = dataset_id, overwrites
        self._folder = os.path.abspath(os.environ.get(VARIABLE) or os.path.expanduser("~/.minari/datasets"))
        self._namespaces = [str(namespace) for namespace in PurePath(dataset_id).parents][:-1]
        self._made: list[Path] = []
        self.path = os.path.join(self._folder, dataset_id)
        parent, name = os.path.split(self.path)
        self.temporary = temporary_path(os.path.join(parent, f".{name}"), "exporting")
        self.data = os.path.join(self.temporary, "data")
        self._check()

    def _check(self) -> None:
        for above in self._namespaces:
            if os.path.isdir(os.path.join(self._folder, above, "data")):
                raise UsageError(f"{above} is a data set in {self._folder}, and cannot have {self._id} in it")
        if not os.path.lexists(self.path):
            return
        if not os.path.isfile(os.path.join(self.path, "data", "metadata.json")):
            raise UsageError(f"{self.path} exists and is no data set; use another id")
        if not self._overwrites:
            free = next_version(self._id, self._folder)
            raise UsageError(f"there is a data set {self._id} in {self._folder}; use {free}, or --overwrite")

    def make(self) -> str:
        """Make the hidden folder; return `data`."""
        folder = Path(self.data)
        try:
            for missing in [above for above in (*reversed(folder.parents), folder) if not above.is_dir()]:
                missing.mkdir()
                self._made.append(missing)
        except OSError as error:
            self.remove()
            raise StorageError(
                f"cannot write {self.path}: {error.strerror}; export {VARIABLE}=FOLDER names another place"
            ) from error
        return self.data

    def remove(self) -> None:
        """Remove what was made, as far as nothing else has come into it."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        while self._made:
            with suppress(OSError):
                self._made.pop().rmdir()

    def publish(self) -> None:
        """Give the complete data set its place.

        UsageError if another data set has come there meanwhile, StorageError if the system refuses.
        """
        old = f"{self.temporary}.old"
        try:
            for name in os.listdir(self.data):  # It may take minutes, in which a child would give no sign of life.
                _sync(os.path.join(self.data, name))
            if self._overwrites and os.path.lexists(self.path):
                os.rename(self.path, old)
            os.rename(self.temporary, self.path)
            self._made.clear()
            for namespace in self._namespaces:  # Minari knows it by this file.
                with (
                    suppress(FileExistsError),
                    open(os.path.join(self._folder, namespace, NAMESPACE_FILE), "x") as file,
                ):
                    file.write("{}")
            _sync(os.path.dirname(self.path))
        except OSError as error:
            if os.path.lexists(old) and not os.path.lexists(self.path):
                os.rename(old, self.path)
            if os.path.lexists(self.path):
                raise UsageError(f"there is now a data set {self._id} in {self._folder}; use another id") from error
            raise StorageError(f"cannot write {self.path}: {error.strerror}") from error
        shutil.rmtree(old, ignore_errors=True)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
