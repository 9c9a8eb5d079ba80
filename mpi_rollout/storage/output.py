"""What is where a run is to write: nothing, the run itself, or what an earlier start of it has left."""

import os
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote
from time import time

from mpi_rollout.config import RolloutConfig
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import AlreadyComplete, DataError, StorageError, UsageError
from mpi_rollout.process.temporary import make_folder, temporary_path
from mpi_rollout.storage.child import in_child
from mpi_rollout.storage.ownership import Lock, check_name, identity, lock, why_no_locks
from mpi_rollout.storage.past import check_same_run, read_past
from mpi_rollout.storage.status import read_status, status_path
from mpi_rollout.storage.unmarked import open_unmarked

DEFAULT_FOLDER = "results"  # Of each `--out` that is not given: it is made in whatever folder a command is started.
FRESH_S = 60.0  # A status that is older is not of a run that is under way on another host.


@dataclass(frozen=True)
class Output:
    """An output that this run may write.

    Parameters
    ----------
    past
        Where an earlier start of the run came to; None if there was none, or none that committed a step.
    warning
        What the user must see to, as nothing else does; "" for nothing.
    lock
        Of the unfinished file of `past`: no other run continues it, also while this one brings its envs back, until
        `release`.
    replaces
        The complete file at `path` that this run extends, as `ownership.identity` has it; None where there is none.
    source
        The file that has what `past` says: the unfinished one, or the complete one that is extended.
    """

    path: str
    past: Past | None = None
    warning: str = ""
    lock: Lock | None = None
    replaces: tuple[int, int] | None = None
    source: str = ""

    def release(self) -> None:
        """Let other runs have the unfinished file."""
        if self.lock is not None:
            self.lock.release()


def open_output(config: RolloutConfig) -> Output:
    """Look what is there, before anything is made.

    Raises
    ------
    AlreadyComplete
        The run itself, complete.
    UsageError
        Another run's output, or one that another process is writing, or one that cannot be continued.
    DataError
        What is there cannot be read, or is damaged.
    StorageError
        The folder is missing or cannot be written to.
    """
    path, part = config.out, config.out + ".part"
    warning = check_place(config)
    remove_unfinished(part + ".new")
    replaces = identity(path)
    if not os.path.lexists(part):
        past = look_into(config, path) if replaces else None
        return Output(path, past, warning, replaces=replaces, source=path)
    lock_of_part = lock(part)
    try:
        past = look_into(config, part)
        if past is not None and past.num_steps > 0:
            if config.vectorization_mode == "vector_entry_point":
                raise UsageError(
                    f"--out {path}: {part} cannot be continued: natively vectorized envs share a random generator and "
                    f"cannot be brought back; keep what there is with `python -m mpi_rollout recover {quote(part)}`, "
                    "or move it away"
                )
            return Output(path, past, warning, lock_of_part, replaces, part)
        os.unlink(part)
    except BaseException:
        lock_of_part.release()
        raise
    lock_of_part.release()
    return open_output(config)


def check_place(config: RolloutConfig) -> str:
    """Refuse a folder that cannot be written to, and a complete file, unless this run extends it.

    Returns
    -------
    What the user must see to, or "".
    """
    path = config.out
    warning = warning_of(path, check_folder(path))
    if os.path.lexists(path):
        check_extends(config, path)
    if warning:
        refuse_running(path)
    return warning


def check_output(config: RolloutConfig) -> None:
    """Refuse what `open_output` refuses, as far as a glance tells; change nothing.

    Raises
    ------
    RolloutError
        As `open_output`; but whether an unfinished file is damaged is not looked at, which takes its time.
    """
    part = config.out + ".part"
    check_place(config)
    for unfinished in filter(os.path.lexists, (part + ".new", part)):
        lock(unfinished).release()
    if os.path.lexists(part):
        with suppress(DataError):
            found = in_child("mpi_rollout.storage.reader:identity", part)
            check_same_run(config, found["config"], part, found["complete"])


def warning_of(path: str, why_not: str) -> str:
    """What is to be said where files cannot be locked, and why they cannot; "" where they can."""
    if not why_not:
        return ""
    return (
        f"--out {path}: files cannot be locked there ({why_not}), so a second run with the same --out is found only "
        f"by what {os.path.basename(status_path(path))} says; start one at a time, or have it mounted with locks"
    )


def refuse_running(path: str) -> None:
    """Where there are no locks, believe what the status of an output says.

    Raises
    ------
    UsageError
        A run is under way: on this host its process lives, or on another one it has said so within a minute.
    """
    status = read_status(path)
    if status.get("state") != "running":
        return
    host, pid = status.get("host"), status.get("pid")
    if host == os.uname().nodename:
        is_alive = os.path.exists(f"/proc/{pid}")
    else:
        is_alive = time() - os.path.getmtime(status_path(path)) < FRESH_S
    if is_alive:
        raise UsageError(
            f"{path}.part: another run is writing it, process {pid} on {host}; wait for its end or use another --out "
            f"(if there is none, rm {quote(status_path(path))})"
        )


def check_extends(config: RolloutConfig, path: str) -> None:
    """Refuse what has the name of the complete file, unless it is this run with fewer steps.

    Raises
    ------
    AlreadyComplete
        It is this run, with all its steps.
    UsageError
        It is something else, or cannot be extended.
    """
    try:
        found = in_child("mpi_rollout.storage.reader:identity", path)
    except DataError as error:
        raise UsageError(f"--out {path}: {path} exists; move it away or use another --out ({error})") from error
    if not found["complete"]:
        check_same_run(config, found["config"], path)
        raise UsageError(
            f"--out {path}: {path} was recovered from this run before its end; move it away to continue the run"
        )
    if not check_same_run(config, found["config"], path, is_complete=True):
        raise AlreadyComplete(
            f"--out {path}: {path} is there already, of the same run and complete; nothing is left to do"
        )
    if os.path.islink(path):
        raise UsageError(
            f"--out {path} is a link; to extend the file give its name, --out {quote(os.path.realpath(path))}"
        )
    if config.vectorization_mode == "vector_entry_point" or not config.trajectories:
        why = "it has no trajectories" if not config.trajectories else "natively vectorized envs cannot be brought back"
        raise UsageError(f"--out {path}: {path} cannot be extended, since {why}; move it away or use another --out")


def remove_unfinished(path: str) -> None:
    """Remove what a start has left that was killed before its file had all it needs.

    Raises
    ------
    UsageError
        That start still lives.
    """
    if os.path.lexists(path):
        lock_of_old = lock(path)
        with suppress(FileNotFoundError):
            os.unlink(path)
        lock_of_old.release()


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
            f"{error}; {part} cannot be continued and was left as it is: `python -m mpi_rollout recover {quote(part)}` "
            "makes a file of what is whole, or move it away to begin anew"
        ) from error
    with open_unmarked(part) as file:
        check_same_run(config, file.attrs["config"], part, is_complete=bool(file.attrs["finished"].strip()))
        return read_past(file, config.seed) if config.trajectories else None


def check_folder(path: str) -> str:
    """Refuse a folder that could not be written to in the end; say why files in it cannot be locked, if so.

    Raises
    ------
    UsageError
        The path can be no file.
    StorageError
        Its folder is missing or cannot be written to.
    """
    check_name(path)
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.dirname(path) == DEFAULT_FOLDER:
        make_folder(folder)
    if not os.path.isdir(folder):
        is_file = os.path.lexists(folder)
        advice = "that is a file; use another --out" if is_file else f"mkdir -p {quote(os.path.dirname(path))}"
        raise StorageError(f"--out {path}: there is no folder {folder}; {advice}")
    probe = temporary_path(path, "probe")  # Access rights do not tell: a file system can be read-only.
    try:
        descriptor = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        why_not = why_no_locks(descriptor)
        os.close(descriptor)
        os.unlink(probe)
        return why_not
    except OSError as error:
        raise StorageError(f"--out {path}: cannot write to {folder}: {error.strerror}") from error
