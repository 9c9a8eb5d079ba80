"""The status file of a run, told while it goes on and at its end."""

import os

from mpi_rollout.collect.watcher import End, Progress, Watcher
from mpi_rollout.storage.shard_files import name_now
from mpi_rollout.storage.status import Status, is_batch_job

STATUS_EVERY_S = 5.0  # On a parallel file system, to write it may take a while.


class RunStatus(Watcher):
    """Writes the status of an output, see `storage.status`."""

    def __init__(self, out: str, status: Status):
        self._out, self._status = out, status
        self._num_told, self._next_at = 0, 0.0

    def on_start(self, num_steps: int) -> None:
        self._status.tell("running", num_steps=num_steps)

    def on_look(self, progress: Progress) -> None:
        if progress.seconds >= self._next_at or (progress.num_committed and not self._num_told):
            self._status.tell("running", num_steps=progress.num_committed)
            self._num_told, self._next_at = progress.num_committed, progress.seconds + STATUS_EVERY_S

    def on_end(self, end: End) -> None:
        """Write how the run has ended; a first start that came to nothing leaves no status."""
        if end.is_foreign:
            return
        part = self._out + ".part"
        has_part = os.path.exists(part)
        if end.state != "complete" and self._status.is_first and not has_part and not is_batch_job():
            self._status.remove()
            return
        # A complete file that the run extends has all steps until there is a `.part`.
        has_file = has_part or (end.num_committed > 0 and os.path.exists(self._out))
        file = self._out if end.state == "complete" else name_now(part) if has_file else None
        self._status.tell(
            end.state,
            exit_code=end.exit_code,
            message=end.message,
            num_steps=end.num_committed,
            resumable=has_file and end.is_resumable,
            file=file,
        )
