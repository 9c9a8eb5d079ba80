"""Work on files that may be damaged, in a process of its own: HDF5 can hang in one or crash.

The child prints a line of JSON for every sign of life, and one for how it ended.
"""

import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from mpi_rollout import errors
from mpi_rollout.errors import DataError, RolloutError

PATIENCE_S = 60.0  # Without a sign of life.  A sign comes with each chunk, of 1 MiB or so.
TELL_EVERY_S = 0.2
PROGRAM = "from mpi_rollout.storage.child import serve; serve()"


def in_child(task: str, path: str, *arguments: Any, patience_s: float = PATIENCE_S) -> Any:
    """Call `task`, a `module:function`, with a function to tell what it does, a path and JSON-able arguments.

    Raises
    ------
    RolloutError
        The task raised it.
    DataError
        The child crashed, or gave no sign of life for too long.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PROGRAM, json.dumps([task, path, *arguments])]
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        doing = "starting"
        try:
            for line in _lines(process.stdout, patience_s):
                said = json.loads(line)
                if "refused" in said:
                    raise getattr(errors, said["kind"])(said["refused"])
                if "done" in said:
                    return said["done"]
                doing = said["doing"]
        except TimeoutError:
            raise DataError(
                f"{path}: no answer for {patience_s:g} s while {doing}; the file is damaged, or its disk fails"
            ) from None
        finally:
            process.kill()
    raise DataError(f"{path}: HDF5 crashed while {doing} ({_ending(process.returncode)}); the file is damaged")


def _lines(pipe: Any, patience_s: float) -> Iterator[bytes]:
    """Lines as they come, until the end; TimeoutError if nothing comes for too long."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        rest = b""
        while True:
            if not selector.select(patience_s):
                raise TimeoutError
            data = os.read(pipe.fileno(), 65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from lines


def _ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def serve() -> None:
    """In the child: do what the command line says."""
    task, *arguments = json.loads(sys.argv[1])
    module, _, name = task.partition(":")
    signs = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    try:
        answer = {"done": getattr(importlib.import_module(module), name)(teller(signs), *arguments)}
    except RolloutError as error:
        answer = {"refused": str(error), "kind": type(error).__name__}
    signs.write(json.dumps(answer) + "\n")
    signs.close()
    os._exit(0)  # After a failure HDF5 may crash in the interpreter's end.


def teller(signs: Any) -> Callable[[str], None]:
    """A function that says what is being done, the same not too often."""
    said, said_at = "", 0.0

    def tell(doing: str) -> None:
        nonlocal said, said_at
        if doing != said or time.monotonic() - said_at > TELL_EVERY_S:
            said, said_at = doing, time.monotonic()
            signs.write(json.dumps({"doing": doing}) + "\n")

    return tell
