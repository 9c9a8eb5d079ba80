"""Names of files: which there are, which can be written, and how one gets its own, and never that of another run."""

import os
import shutil
from shlex import quote

from mpi_rollout.errors import UsageError
from mpi_rollout.storage.lock import refusal


def why_no_file(path: str) -> str:
    """Why there is nothing to read, and what may be meant; "" for a file that is not empty."""
    if os.path.isfile(path):
        return "" if os.path.getsize(path) else f"{path} is not a readable HDF5 file: it is empty"
    if os.path.isdir(path):
        return f"{path} is a folder; name a file in it"
    if os.path.exists(path):
        return f"{path} is no file but a device, pipe or socket"
    is_part = path.endswith(".part")
    other = path.removesuffix(".part") if is_part else f"{path}.part"
    if os.path.isfile(other):
        state = "the complete file" if is_part else "which is not complete"
        return f"{path}: no such file; there is {quote(other)}, {state}: give that name"
    return f"{path or repr(path)}: no such file"


def check_name(path: str) -> None:
    """Refuse an output whose name no file can have, or has what is no file.

    Raises
    ------
    UsageError
        The message has a name that can be used.
    """
    if not path:
        raise UsageError("--out must name a file, got ''")
    if path == "-":
        raise UsageError("--out - is no file, and HDF5 cannot be written to stdout; use --out run.h5")
    if path.endswith("/") or os.path.isdir(path):
        inside = quote(os.path.join(path, "run.h5"))
        raise UsageError(f"--out must name a file, got the folder {path}; use --out {inside}")
    if path.endswith(".part"):
        name = quote(path.removesuffix(".part"))
        raise UsageError(f"--out {path}: .part is for files that are not complete; use --out {name}")
    if os.path.islink(path) and not os.path.exists(path):
        target = os.readlink(path)
        raise UsageError(f"--out {path} is a link to {target}, which is not there; remove it or use another --out")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UsageError(f"--out {path} exists and is no file but a device, pipe or socket; use another --out")


def put_in_free_place(temporary: str, path: str) -> None:
    """Rename a file if there is none with the new name; else remove it.

    Raises
    ------
    UsageError
        There is one.
    """
    try:
        os.link(temporary, path)
        os.unlink(temporary)
    except FileExistsError:
        os.unlink(temporary)
        raise refusal(path) from None
    except OSError:  # A file system without hard links.
        if os.path.lexists(path):
            os.unlink(temporary)
            raise refusal(path) from None
        os.rename(temporary, path)


def identity(path: str) -> tuple[int, int] | None:
    """Which file has a name, whatever other names it has; None for none."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def give_name(temporary: str, path: str, replaces: tuple[int, int] | None = None) -> None:
    """Put a file that is whole on the disk under its name.

    Parameters
    ----------
    replaces
        The `identity` of the file that has the name and is replaced.

    Raises
    ------
    FileExistsError
        There is another one with that name.
    """
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    if identity(path) not in (None, replaces):
        raise FileExistsError(f"{path} has appeared meanwhile")
    os.replace(temporary, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def free_space(path: str) -> str:
    """Say how much the file system of a file has left: most often what is wrong when it cannot be written."""
    folder = os.path.dirname(os.path.abspath(path))
    try:
        return f"{shutil.disk_usage(folder).free / 1e6:.1f} MB free in {folder}"
    except OSError as error:
        return f"{folder}: {error.strerror}"
