"""Write down which test enters which function of the package; `mutation_trial.py` makes it a `sitecustomize`.

Each process of a test writes for itself, at once, since tests kill processes: a line with the test, the file and the
function's first line.  Lines of code would be more exact, and tracing them much slower.
"""

import os
import sys
import threading
from contextlib import suppress
from types import CodeType, FrameType

RECORD = "MUTATION_TRIAL_RECORD"  # In the environment: where the lines go.
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), "mpi_rollout") + os.sep

_names: dict[CodeType, str] = {}  # Empty for code that is not of the package.
_seen: set[tuple[str, str]] = set()


def note(frame: FrameType, event: str, argument: object) -> None:
    """Note that a function begins; returning None leaves its lines untraced."""
    code = frame.f_code
    name = _names.get(code)
    if name is None:
        is_own = code.co_filename.startswith(PACKAGE)
        _names[code] = name = f"{code.co_filename[len(PACKAGE) :]}\t{code.co_firstlineno}" if is_own else ""
    if not name:
        return
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if (test, name) not in _seen:
        _seen.add((test, name))
        with suppress(OSError), open(os.environ[RECORD], "a") as file:  # Some tests have full disks.
            file.write(f"{test}\t{name}\n")


if RECORD in os.environ:
    sys.settrace(note)
    threading.settrace(note)
