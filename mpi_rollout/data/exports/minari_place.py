"""Where Minari's data sets are, and how a new one gets its place: whole, or not at all.

It is written into a hidden folder beside its place, which Minari does not look into, and then renamed.
"""

import glob
import os
import re
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path, PurePath

from mpi_rollout.errors import StorageError, UsageError

ID = re.compile(r"(?:(?P<namespace>[-_\w][-_\w/]*[-_\w]+)/)?(?P<name>[-_\w]+?)(?:-v(?P<version>\d+))?")  # Minari's own.
NAMESPACE_FILE = "namespace_metadata.json"
VARIABLE = "MINARI_DATASETS_PATH"


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
        self._hidden = os.path.join(parent, f".{name}.exporting-{os.uname().nodename}-")
        self.temporary = f"{self._hidden}{os.getpid()}"
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
        """Make the hidden folder, remove those that killed processes of this host left; return `data`."""
        for left in glob.glob(glob.escape(self._hidden) + "*"):
            pid = left.removeprefix(self._hidden)
            if pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
                shutil.rmtree(left, ignore_errors=True)
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
