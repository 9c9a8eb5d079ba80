"""What is where a run is to write: nothing, the run itself, or what an earlier start of it has left."""

import os
from contextlib import suppress
from dataclasses import dataclass

from mpi_rollout.config import RolloutConfig
from mpi_rollout.envs.restoring import Past
from mpi_rollout.errors import Complete, DataError, StorageError, UsageError
from mpi_rollout.storage.child import in_child
from mpi_rollout.storage.lock import lock
from mpi_rollout.storage.past import check_same_run, read_past
from mpi_rollout.storage.reader import open_file
from mpi_rollout.storage.unmarked import open_unmarked


@dataclass(frozen=True)
class Output:
    """An output that this run may write.

    Parameters
    ----------
    past
        Where an earlier start of the run came to; None if there was none, or none that committed a step.
    """

    path: str
    past: Past | None = None


def open_output(config: RolloutConfig) -> Output:
    """Look what is there, before anything is made.

    Raises
    ------
    Complete
        The run itself, complete.
    UsageError
        Another run's output, or one that another process is writing, or one that cannot be continued.
    DataError
        What is there cannot be read, or is damaged.
    StorageError
        The folder is missing or cannot be written to.
    """
    path, part = config.out, config.out + ".part"
    check_folder(path)
    if os.path.lexists(path):
        refuse_complete(config, path)
    remove_unfinished(part + ".new")
    if not os.path.lexists(part):
        return Output(path)
    lock(part)
    past = look_into(config, part)
    if past is None or past.num_steps == 0:
        os.unlink(part)
        return Output(path)
    if config.vectorization_mode == "vector_entry_point":
        raise UsageError(
            f"--out {path}: {part} cannot be continued: natively vectorized envs share a random generator and cannot "
            "be brought back; keep what there is with `python -m mpi_rollout recover`, or move it away"
        )
    return Output(path, past)


def refuse_complete(config: RolloutConfig, path: str) -> None:
    """Say what it is that has the name of the complete file; always raises."""
    try:
        file = open_file(path)
    except DataError as error:
        raise UsageError(f"--out {path}: {path} exists; move it away or use another --out ({error})") from error
    with file:
        check_same_run(config, file, path)
        is_complete = bool(file.attrs["finished"].strip())
    if not is_complete:
        raise UsageError(
            f"--out {path}: {path} was recovered from this run before its end; move it away to continue the run"
        )
    raise Complete(f"--out {path}: {path} is there already, of the same run and complete; nothing is left to do")


def remove_unfinished(path: str) -> None:
    """Remove what a start has left that was killed before its file had all it needs.

    Raises
    ------
    UsageError
        That start still lives.
    """
    if os.path.lexists(path):
        descriptor = lock(path)
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def look_into(config: RolloutConfig, part: str) -> Past | None:
    """Where the run stood that an unfinished file is of, after it was checked; None if it has no trajectories.

    Raises
    ------
    DataError
        It is damaged.
    UsageError
        It is another run's.
    """
    try:
        in_child("mpi_rollout.storage.verification:verify", part)
    except DataError as error:
        raise DataError(
            f"{error}; {part} cannot be continued and was left as it is: `python -m mpi_rollout recover` makes a file "
            "of what is whole, or move it away to begin anew"
        ) from error
    with open_unmarked(part) as file:
        check_same_run(config, file, part)
        return read_past(file, config.seed) if config.trajectories else None


def check_folder(path: str) -> None:
    """Refuse a folder that could not be written to in the end.

    Raises
    ------
    UsageError
        The path names no file.
    StorageError
        Its folder is missing or cannot be written to.
    """
    if not os.path.basename(path):
        raise UsageError(f"--out must name a file, got {path!r}")
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise StorageError(f"--out {path}: there is no folder {folder}; mkdir -p {os.path.dirname(path)}")
    probe = f"{path}.probe-{os.getpid()}"  # Access rights do not tell: a file system can be read-only.
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(probe)
    except OSError as error:
        raise StorageError(f"--out {path}: cannot write to {folder}: {error.strerror}") from error
