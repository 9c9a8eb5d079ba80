"""Read files that may be damaged or hostile in a child process: HDF5 can hang in one, crash, or eat memory.

The child prints a line of JSON for every sign of life, and one for how it ended.  What it returns is data.  Its memory
is limited, and it ends with its parent.  Nobody but its parent ends it: the signals that ask a job to stop are blocked
in the child, and end the parent.
"""

import importlib
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from mpi_rollout import errors
from mpi_rollout.errors import DataError, RolloutError, as_flag
from mpi_rollout.process.interrupts import STOP_SIGNALS
from mpi_rollout.process.start import end_with
from mpi_rollout.storage.hdf5_format import LIBVER
from mpi_rollout.storage.shard_files import size_of

PATIENCE_S = 60.0  # The longest time without a sign of life.  Each chunk, of about 1 MiB, gives one.
LOOK_EVERY_S = 0.2
TELL_EVERY_S = 0.2
NUM_ROWS, FOLLOWING_S = 1000, 20.0  # Of `why_not_followed`.
FOLLOWER = "import h5py, sys; print(h5py.File(sys.argv[1], swmr=True, locking=False)['rows'][:].sum())"
BLOCKED_SIGNALS = (*STOP_SIGNALS, signal.SIGHUP, signal.SIGUSR2)
CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
# Interpreter, NumPy and HDF5 take 60 MB.  The rest is in proportion to the file.  The worst is `verify` of a file of
# which most are episodes of one step: it takes 1.3 bytes for each byte.
MEMORY_NBYTES, MEMORY_PER_BYTE = 2**30, 4
# No filter that a file names is loaded from a library; one thread, since each would count as 40 MB of memory.
VARIABLES = {"HDF5_PLUGIN_PRELOAD": "::", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PROGRAM = "from mpi_rollout.storage.sandbox import serve; serve()"


def in_sandbox(task: str, path: str, *arguments: object, patience_s: float = PATIENCE_S) -> Any:
    """Call `task`, a `module:function`, with a function to tell what it does, a path and arguments that JSON can hold.

    Return what the task has returned, as JSON can hold it.

    Raises
    ------
    RolloutError
        The task raised it; or the child failed for a reason that says nothing about the file.
    DataError
        The child crashed in C code, or gave no sign of life for too long.
    """
    with started(task, path, *arguments) as child:
        return answer_of(child, patience_s)


def why_not_followed(path: str) -> str:
    """Write a new file as runs do; return why another process cannot read it meanwhile, "" if it can.

    An error of HDF5 or of the system if the file cannot be written.
    """
    import h5py

    with h5py.File(path, "x", libver=LIBVER, locking=False) as file:
        rows = file.create_dataset("rows", (0,), "i8", maxshape=(None,), chunks=(512,))
        file.swmr_mode = True
        rows.resize((NUM_ROWS,))
        rows[:] = 1
        file.flush()
        command = [sys.executable, "-c", FOLLOWER, path]
        try:  # In another process: this one would get the data from memory.
            reader = subprocess.run(command, capture_output=True, text=True, timeout=FOLLOWING_S)
        except subprocess.TimeoutExpired:
            return f"it does not answer for {FOLLOWING_S:g} s"
    if reader.stdout == f"{NUM_ROWS}\n":
        return ""
    return reader.stderr.strip().rpartition("\n")[2] or "it finds other rows"


@dataclass(frozen=True)
class Child:
    """A process that reads the file `path`; `words` are what it says on stderr, `heard` what was read of its lines."""

    process: subprocess.Popen[bytes]
    path: str
    words: IO[bytes]
    heard: bytearray = field(default_factory=bytearray)


def answer_of(child: Child, patience_s: float) -> object:
    """Wait for what the task has returned, or yielded, or raise what `in_sandbox` does."""
    doing, path = "starting", child.path
    try:
        for line in _lines(child, patience_s):
            said = json.loads(line)
            if "refused" in said:
                raise getattr(errors, said["kind"])(said["refused"])
            if "done" in said:
                return said["done"]
            doing = said["doing"]
        child.process.wait(patience_s)
    except (TimeoutError, subprocess.TimeoutExpired):
        raise DataError(
            f"{path}: no answer for {patience_s:g} s while {doing}; the file is damaged, or its disk fails"
        ) from None
    raise _failure(path, doing, child.process.returncode, child.words)


@contextmanager
def started(task: str, path: str, *arguments: object) -> Iterator[Child]:
    """Start a child, with the stop signals blocked.  Kill it at the end."""
    environment = os.environ | VARIABLES | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", PROGRAM, json.dumps([os.getpid(), task, path, *arguments])]
    with tempfile.TemporaryFile() as words:
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
        try:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=words
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        with process:
            try:
                yield Child(process, path, words)
            finally:
                process.kill()


def _lines(child: Child, patience_s: float) -> Iterator[bytes]:
    """Yield a child's lines; TimeoutError if none comes for too long."""
    pipe, heard = child.process.stdout, child.heard
    assert pipe is not None
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        silent_s = 0.0  # Not by the clock, which goes on while both processes are suspended.
        while True:
            while b"\n" in heard:
                end = heard.index(b"\n") + 1
                line = bytes(heard[:end])
                del heard[:end]
                yield line
            if not selector.select(min(LOOK_EVERY_S, patience_s)):
                silent_s += LOOK_EVERY_S
                if silent_s >= patience_s:
                    raise TimeoutError
                continue
            data, silent_s = os.read(pipe.fileno(), 65536), 0.0
            if not data:
                return
            heard += data


def _failure(path: str, doing: str, code: int, words: IO[bytes]) -> RolloutError:
    """Return the error for a child that ended without an answer."""
    if -code in CRASH_SIGNALS:
        return DataError(f"{path}: HDF5 crashed while {doing} ({signal.Signals(-code).name}); the file is damaged")
    if code == -signal.SIGKILL:
        return RolloutError(
            f"{path}: the process that read it was killed (SIGKILL) while {doing}: by the system for want of memory, "
            "or by somebody; that says nothing about the file; try again, with more memory if it happens again"
        )
    ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    words.seek(0)
    sys.stderr.write(words.read().decode(errors="replace"))
    return RolloutError(
        f"{path}: reading it failed while {doing} ({ending}); that is an error of mpi_rollout or of its "
        "installation, and says nothing about the file"
    )


def serve() -> None:
    """Do what the command line says, in the child."""
    parent, task, path, *arguments = json.loads(sys.argv[1])
    end_with(parent)
    signs = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, _, name = task.partition(":")
    function = getattr(importlib.import_module(module), name)
    limit_memory(path)
    kept = []  # An error holds what it has interrupted.  HDF5 may crash when it closes that, on a disk that is full.
    try:
        returned = function(teller(signs), path, *arguments)
        if isinstance(returned, Iterator):  # See `verification.LaterCheck`.
            signs.write(json.dumps({"done": next(returned)}) + "\n")
            returned = list(returned)
        answer = {"done": returned}
    except RolloutError as error:
        kept.append(error)
        answer = {"refused": error.shown(as_flag), "kind": type(error).__name__}
    except MemoryError:
        words = f"{path}: reading it takes more memory than a file of its size can need; it is damaged"
        answer = {"refused": words, "kind": DataError.__name__}
    except Exception:
        traceback.print_exc()
        os._exit(1)
    signs.write(json.dumps(answer) + "\n")
    signs.close()
    os._exit(0)  # After a failure HDF5 may crash in the interpreter's end.


def limit_memory(path: str) -> None:
    """Limit the memory of this process to what a file of that size can make it need."""
    _set_limit(MEMORY_NBYTES + MEMORY_PER_BYTE * size_of(path))


def allow_memory(nbytes: int) -> None:
    """Let this process have so many bytes more than one that reads an empty file, if it is limited at all."""
    now, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if now != resource.RLIM_INFINITY and MEMORY_NBYTES + nbytes > now:
        _set_limit(MEMORY_NBYTES + nbytes)


def _set_limit(nbytes: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (nbytes if most == resource.RLIM_INFINITY else min(nbytes, most), most))


def teller(signs: IO[str]) -> Callable[[str], None]:
    """Return a function that says what is being done, the same not too often."""
    said, said_at = "", 0.0

    def tell(doing: str) -> None:
        nonlocal said, said_at
        if doing != said or time.monotonic() - said_at > TELL_EVERY_S:
            said, said_at = doing, time.monotonic()
            signs.write(json.dumps({"doing": doing}) + "\n")

    return tell
