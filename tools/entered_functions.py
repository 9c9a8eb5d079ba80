"""A plugin of pytest that writes down which test enters which function of the package, for `mutation_trial.py`.

A line of the file that the environment names has the test, the file and the function's first line.  Lines of code would
be more exact, and tracing them much slower.
"""

import os
import sys
import threading
from types import CodeType, FrameType

RECORD = "MUTATION_TRIAL_RECORD"  # In the environment: the file.
PACKAGE = os.path.join(os.getcwd(), "mpi_rollout") + os.sep

_names: dict[CodeType, str] = {}  # Empty for code that is not of the package.
_seen: set[tuple[str, str]] = set()


def note(frame: FrameType, event: str, argument: object) -> None:
    """Note that a function begins; returning None leaves its lines untraced."""
    code = frame.f_code
    name = _names.get(code)
    if name is None:
        is_own = code.co_filename.startswith(PACKAGE)
        _names[code] = name = f"{code.co_filename[len(PACKAGE) :]}\t{code.co_firstlineno}" if is_own else ""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0] if name else ""
    if name and (test, name) not in _seen:
        _seen.add((test, name))
        with open(os.environ[RECORD], "a") as file:
            file.write(f"{test}\t{name}\n")


def pytest_runtest_setup() -> None:
    """Trace each test: Python drops `note` once it fails, as in a test that replaces `open`."""
    sys.settrace(note)


threading.settrace(note)
