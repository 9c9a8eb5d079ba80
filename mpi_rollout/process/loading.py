"""The user's code that the command line names: a callable in a module, or in a file."""

import importlib
import os
import sys
from collections.abc import Callable
from inspect import signature
from types import ModuleType
from typing import Any

from mpi_rollout.errors import PolicyError, UsageError, did_you_mean, words_of

NETWORKS = ".zip", ".pt", ".pt2", ".onnx"  # Files of policies, which `policies.files` loads.
MOVED = {"mpi_rollout.scaling.sleeping": "mpi_rollout.bench.sleeping"}  # Older commands and files name it.


def load_callable(spec: str, option: str) -> Callable[..., Any]:
    """Import what `MODULE:CALLABLE` or `FILE.py:CALLABLE` names.

    Raises
    ------
    UsageError
        There is no such module, file or callable; the message has the reason.
    """
    target = _load(spec, option)
    if not callable(target):
        raise UsageError(f"{option} {spec} is {type(target).__name__}, not callable")
    return target


def load_policy(spec: str) -> Callable[[Any], Any]:
    """Return the policy that `--policy` names: a function, or an object that is callable or has a method `act`.

    A class is called once, without arguments.

    Raises
    ------
    UsageError
        There is no such policy.
    PolicyError
        Its class raises.
    """
    if ":" not in spec:
        raise UsageError(f"--policy must be MODULE:CALLABLE or FILE.py:CALLABLE, got {spec!r}{_network_hint(spec)}")
    policy = _load(spec, "--policy")
    if isinstance(policy, type):
        policy = _instance(policy, spec)
    if not callable(policy):
        policy = getattr(policy, "act", policy)
    if not callable(policy):
        name = type(policy).__name__
        raise UsageError(f"--policy {spec} is {name}, not callable; give a function of a batch of observations")
    return policy


def _network_hint(spec: str) -> str:
    """Return the end of a message: who trained with Stable-Baselines3 is used to names without `.zip`."""
    names = [spec + suffix for suffix in NETWORKS if os.path.isfile(spec + suffix)]
    if names or spec.endswith(".py"):
        return f"; did you mean {(names or [spec + ':CALLABLE'])[0]}?"
    return f"; the file of a network ends in {', '.join(NETWORKS[:-1])} or {NETWORKS[-1]}"


def _instance(kind: type, spec: str) -> object:
    try:
        signature(kind).bind()
    except ValueError:  # C code may not tell its signature.
        pass
    except TypeError as error:
        module = spec.rpartition(":")[0]
        raise UsageError(
            f"--policy {spec} is a class that needs arguments ({error}); make an instance in its module, such as "
            f"policy = {kind.__name__}(...), and give --policy {module}:policy"
        ) from error
    try:
        return kind()
    except Exception as error:
        raise PolicyError(f"--policy {spec}: {kind.__name__}() raises {words_of(error)}") from error


def _load(spec: str, option: str) -> object:
    source, _, name = spec.rpartition(":")
    if not (source and name):
        raise UsageError(f"{option} must be MODULE:CALLABLE or FILE.py:CALLABLE, got {spec!r}")
    try:
        is_file = _is_file(source)
        target: object = _file(source, spec, option) if is_file else importlib.import_module(MOVED.get(source, source))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{option} {spec}: cannot import {source!r}: {words_of(error)}") from error
    for part in name.split("."):
        try:
            target = getattr(target, part)
        except AttributeError as error:
            raise UsageError(f"{option} {spec}: {error}{did_you_mean(part, dir(target))}") from error
    return target


def _is_file(source: str) -> bool:
    return "/" in source or source.endswith(".py")


def _file(source: str, spec: str, option: str) -> ModuleType:
    """Import a file as Python imports a module beside a script: by its name, from its folder.

    So its classes can be pickled, and it can import its neighbours.
    """
    path = os.path.abspath(os.path.expanduser(source.removesuffix(".py") + ".py"))
    folder, name = os.path.dirname(path), os.path.basename(path).removesuffix(".py")
    if not os.path.isfile(path):
        raise UsageError(f"{option} {spec}: there is no file {path}")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(name)
    file = getattr(module, "__file__", None)
    if file is None or not os.path.samefile(file, path):
        raise UsageError(f"{option} {spec}: {name} is also the name of {file or 'a module of Python'}; rename {path}")
    return module
