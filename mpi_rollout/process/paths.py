"""What a user names on the command line: files, and callables in a module or a file.

Relative paths begin where the command was started, wherever envs and policies go meanwhile.
"""

import errno
import importlib
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from inspect import signature
from types import ModuleType
from typing import Any

from mpi_rollout.errors import Option, UsageError
from mpi_rollout.text import words_of
from mpi_rollout.words import did_you_mean

_starts: list[str] = []  # The folders of the command under way, and of connections that it opens.


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


def open_regular(path: str, flags: int) -> int:
    """Open a file; return its descriptor.  An `opener` for Python's `open`, which refuses folders.

    OSError if it is a device, pipe or socket, before it is opened: it could be waited for, or read, for ever.
    """
    mode = os.stat(path).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise OSError(errno.EINVAL, f"it is {kind}", path)
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)  # A pipe that has come there since is not waited for.


def why_not_regular(path: str) -> str:
    """Return why a path names nothing to read; "" for a file."""
    if os.path.isfile(path):
        return ""
    if os.path.isdir(path):
        return f"{path} is a folder; name a file in it"
    if os.path.exists(path):
        return f"{path} is no file but a device, pipe or socket"
    if os.path.islink(path):
        try:
            os.stat(path)
        except OSError as error:
            if error.errno == errno.ELOOP:
                return f"{path} is a symbolic link that leads back to itself; remove it, or name another file"
        return f"{path} is a symbolic link to {os.readlink(path)}, which is not there"
    return f"{path or repr(path)}: no such file"


@contextmanager
def coming_back() -> Iterator[None]:
    """Return to the folder of now after code that may change the current one."""
    folder = current()
    try:
        yield
    finally:
        if folder:
            os.chdir(folder)


def load_callable(spec: str, option: Option) -> Callable[..., Any]:
    """Import what `MODULE:CALLABLE` or `FILE.py:CALLABLE` names; UsageError says why there is no such callable."""
    target = load_object(spec, option)
    if not callable(target):
        raise UsageError(option, f" {spec} is {type(target).__name__}, not callable")
    return target


def colon_hint(spec: str) -> str:
    """Return the end of a message: what is most likely meant by `module.make`, `module.make()` or `mine.py`."""
    source, _, name = spec.removesuffix("()").rpartition(".")
    if spec.endswith(".py"):
        return f"; did you mean {spec}:CALLABLE?"
    try:
        is_module = bool(source) and find_spec(source) is not None
    except Exception:  # A folder on the way is no package, or raises.
        is_module = False
    return f"; did you mean {source}:{name}?" if is_module else ""


def misfit(call: Callable[..., object], *arguments: object, **named: object) -> str:
    """Say why a callable does not take these arguments; "" if it does, or if it is of C and does not tell."""
    try:
        signature(call).bind(*arguments, **named)
    except TypeError as error:
        return str(error)
    except ValueError:
        pass
    return ""


def load_object(spec: str, option: Option) -> object:
    """Import whatever a spec names; see `load_callable`."""
    source, _, name = spec.rpartition(":")
    if not (source and name):
        raise UsageError(option, f" must be MODULE:CALLABLE or FILE.py:CALLABLE, got {spec!r}{colon_hint(spec)}")
    if name.endswith("()"):
        raise UsageError(option, f" must name a callable, not call it, got {spec!r}; use {spec.removesuffix('()')}")
    try:
        is_file = _is_file(source)
        target: object = _file(source, spec, option) if is_file else importlib.import_module(source)
    except UsageError:
        raise
    except Exception as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == source
        hint = f"; for a file elsewhere: FOLDER/{source}.py:{name}" if is_missing else ""
        raise UsageError(option, f" {spec}: cannot import {source!r}: {words_of(error)}{hint}") from error
    for part in name.split("."):
        try:
            target = getattr(target, part)
        except AttributeError as error:
            raise UsageError(option, f" {spec}: {error}{did_you_mean(part, dir(target))}") from error
    return target


def _is_file(source: str) -> bool:
    return "/" in source or source.endswith(".py")


def _file(source: str, spec: str, option: Option) -> ModuleType:
    """Import a file as Python imports a module beside a script: by its name, from its folder.

    So its classes can be pickled, and it can import its neighbours.
    """
    path = located(source.removesuffix(".py") + ".py")
    folder, name = os.path.dirname(path), os.path.basename(path).removesuffix(".py")
    if not os.path.isfile(path):
        raise UsageError(option, f" {spec}: there is no file {path}")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(name)
    file = getattr(module, "__file__", None)
    if file is None or not os.path.samefile(file, path):
        raise UsageError(option, f" {spec}: {name} is also the name of {file or 'a module of Python'}; rename {path}")
    return module
