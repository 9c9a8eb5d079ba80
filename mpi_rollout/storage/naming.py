"""How a file gets its name: when it has all it needs, and never in the place of another."""

import os
import shutil

from mpi_rollout.storage.lock import refusal


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


def give_name(temporary: str, path: str) -> None:
    """Put a file that is whole on the disk under its name.

    Raises
    ------
    FileExistsError
        There is one with that name.
    """
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    if os.path.lexists(path):
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
