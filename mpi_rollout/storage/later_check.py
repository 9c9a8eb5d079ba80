"""A check of a file, in a child process, that has given its first answer and goes on while others work.

See `sandbox`, whose processes these are.
"""

from contextlib import ExitStack
from threading import Thread

from mpi_rollout.errors import DataError, RolloutError
from mpi_rollout.storage.sandbox import PATIENCE_S, answer_of, heeding, started
from mpi_rollout.storage.tail import not_continued

LATER_PATIENCE_S = 600.0  # As `PATIENCE_S`, for a child that gets only the time which nobody else uses.


class LaterCheck:
    """A check of a file in a child that has given its `answer`, the number of steps, and goes on.

    A thread hears the child, so that nobody must wait.
    """

    def __init__(self, path: str):
        self._error: RolloutError | None = None
        self._is_ended = False
        with ExitStack() as kept:
            with heeding() as asked:
                self._child = kept.enter_context(started("mpi_rollout.storage.verification:verify_later", path))
                self.answer = answer_of(self._child, PATIENCE_S, asked)
            self._kept = kept.pop_all()
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
