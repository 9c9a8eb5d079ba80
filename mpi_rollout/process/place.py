"""Where a command was started: the paths that its user typed begin there, wherever envs and policies go meanwhile."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_starts: list[str] = []  # Of the command under way, and of connections that it opens.


def current() -> str:
    """Return the current folder, or "" if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


@contextmanager
def started_in(folder: str) -> Iterator[None]:
    """Resolve relative paths from this folder within the context."""
    _starts.append(folder)
    try:
        yield
    finally:
        _starts.pop()


def located(path: str) -> str:
    """Return the whole path of what a user typed."""
    path = os.path.expanduser(path)
    while path.startswith("./"):
        path = path[2:].lstrip("/")
    return os.path.join(_starts[-1] if _starts else current(), path)


@contextmanager
def coming_back() -> Iterator[None]:
    """Return to the folder of now after code that may change the current one."""
    folder = current()
    try:
        yield
    finally:
        if folder:
            os.chdir(folder)
