"""A check of a file, in a child process, that has given its first answer and goes on while others work.

See `sandbox`, whose processes these are.
"""

from contextlib import ExitStack
from threading import Thread
from typing import Any

from mpi_rollout.errors import DataError, RolloutError
from mpi_rollout.storage.sandbox import PATIENCE_S, Child, answer_of, heeding, started
from mpi_rollout.storage.tail import not_continued

LATER_PATIENCE_S = 600.0  # As `PATIENCE_S`, for a child that gets only the time which nobody else uses.


def begin_in_sandbox(task: str, path: str) -> tuple[Any, "LaterCheck"]:
    """As `in_sandbox`, with a task that yields its answer and then goes on, while this process does other things."""
    with ExitStack() as kept:
        with heeding() as asked:
            child = kept.enter_context(started(task, path))
            answer = answer_of(child, PATIENCE_S, asked)
        return answer, LaterCheck(child, kept.pop_all())


class LaterCheck:
    """What goes on in a child that has given its first answer.  A thread hears the child, so that nobody must wait."""

    def __init__(self, child: Child, kept: ExitStack):
        self._child, self._kept, self._is_ended = child, kept, False
        self._error: RolloutError | None = None
        self._thread = Thread(target=self._hear, name="later check", daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        try:
            answer_of(self._child, LATER_PATIENCE_S, [])
        except RolloutError as error:
            self._error = not_continued(error, self._child.path) if isinstance(error, DataError) else error

    def poll(self) -> bool:
        """Return whether the task is under way; raise its error."""
        if self._error is not None and not self._is_ended:
            raise self._error
        return self._thread.is_alive()

    def end(self) -> None:
        """Kill the child, if it is still there."""
        self._is_ended = True
        self._child.process.kill()
        self._thread.join()
        self._kept.close()
