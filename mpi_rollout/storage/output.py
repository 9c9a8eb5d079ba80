"""What is where a run wants to write: nothing, the run itself, or what an earlier start of it has left."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote

import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.columns import result_name
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.process.paths import located
from mpi_rollout.storage import ownership
from mpi_rollout.storage.checked_file import identity_of
from mpi_rollout.storage.episodes import num_reset_rows_of
from mpi_rollout.storage.filters import check_available
from mpi_rollout.storage.manifest import is_set
from mpi_rollout.storage.ownership import Lock, check_is_file, check_name, identity, lock, make_folder
from mpi_rollout.storage.run_file import Prefix, RunFile
from mpi_rollout.storage.same_run import (
    check_extends,
    check_replaceable,
    check_same_run,
    why_dropped,
    why_not_brought_back,
)
from mpi_rollout.storage.sandbox import in_sandbox
from mpi_rollout.storage.schema import agents_in
from mpi_rollout.storage.shard_files import shards_folder
from mpi_rollout.storage.status import refuse_running, status_path
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.storage.tail import not_continued
from mpi_rollout.storage.torn import is_marked
from mpi_rollout.storage.verification import LaterCheck

DEFAULT_FOLDER = "results"  # The folder of outputs without `--out`, made where a command is started.


@dataclass(frozen=True)
class ClaimedOutput:
    """An output that this run may write.

    Parameters
    ----------
    past
        Where the run stood after its earlier starts; None if none of them committed a step.
    lock
        Of the unfinished file of `past`: no other run continues it before `release`, also while this one brings its
        envs back.
    replaces
        The `ownership.identity` of the complete file that this run extends or replaces; None where there is none.
    source
        The file that `past` was read from: the unfinished one, or the complete one that is extended.
    checks
        Of the data of the unfinished file, by a process that goes on meanwhile; none where the file is copied.
    dropped
        What is said of the unfinished file at `source` that is dropped; "" where there is none.
    """

    past: Past | None = None
    checks: Sequence[LaterCheck] = ()
    warning: str = ""
    lock: Lock | None = None
    replaces: tuple[int, int] | None = None
    source: str = ""
    dropped: str = ""

    def new_file(
        self,
        config: RolloutConfig,
        attributes: Mapping[str, object],
        num_rows: int,
        lost: Mapping[int, int],
        check_stop: Callable[[], None],
    ) -> RunFile:
        """Return the file that is to be made now, of what there is; the last two are as in `run_file.Prefix`."""
        prefix = None if self.past is None else Prefix(self.past.num_steps, self.source, lost, check_stop)
        if self.dropped:
            os.unlink(self.source)
            self.release()
        return RunFile(config, attributes, num_rows, prefix, self.replaces)

    @property
    def old_nbytes(self) -> tuple[int, int]:
        """The size of the unfinished file of before, and as much of it as must be copied; a complete one stays."""
        nbytes = os.path.getsize(self.source) if self.past is not None and self.source.endswith(".part") else 0
        return nbytes, 0 if self.checks else nbytes

    def open_past(self) -> StoredRun:
        """Open what there is of the run."""
        return StoredRun(self.source)

    def release(self) -> None:
        """Let other runs have the unfinished file, which nobody checks any more."""
        for check in self.checks:
            check.end()
        if self.lock is not None:
            self.lock.release()


def claim_output(config: RolloutConfig) -> ClaimedOutput:
    """Look what is there, before anything is made.

    Raises
    ------
    AlreadyComplete
        The run itself, complete.
    UsageError
        Another run's output, or one that another process writes, or one that cannot be continued.
    DataError
        What is there cannot be read, or is damaged.
    StorageError
        The folder is missing or cannot be written to.
    """
    path, part = config.path, config.path + ".part"
    check_kind(config)
    warning = check_place(config)
    remove_unfinished(part + ".new")
    replaces = identity(path)
    if not os.path.lexists(part):
        stored, _ = look_into(config, path) if replaces and not config.overwrite else (None, None)
        past = None if stored is None else read_past(stored)
        return ClaimedOutput(past, warning=warning, replaces=replaces, source=path)
    lock_of_part = lock(part)
    try:
        if config.overwrite and (dropped := why_dropped(config, part)):
            return ClaimedOutput(None, (), warning, lock_of_part, replaces, part, dropped)
        if found := run_to_continue(config, part):
            return ClaimedOutput(read_past(found[0]), found[1], warning, lock_of_part, replaces, part)
    except BaseException:
        lock_of_part.release()
        raise
    lock_of_part.release()
    return claim_output(config)


def run_to_continue(config: RolloutConfig, part: str) -> tuple[StoredRun, Sequence[LaterCheck]] | None:
    """Open an unfinished file; if it has committed no step, remove it and return None."""
    stored, checks = look_into(config, part)
    why = why_not_brought_back(stored.reproducibility) if stored is not None and stored.num_steps else ""
    if stored is not None and stored.num_steps and not why:
        return stored, checks
    for check in checks:
        check.end()
    if why:
        raise UsageError(
            f"--out {config.out}: {part} cannot be continued: {why}; keep what there is with "
            f"`python -m mpi_rollout recover {quote(part)}`, or move it away"
        )
    os.unlink(part)
    return None


def check_place(config: RolloutConfig, is_set: bool = False) -> str:
    """Refuse a folder that cannot be written to, and a file that this run does not extend or replace.

    Return a warning, or "".  Of a set of shards `shard_set` checks what is there.
    """
    check_available(config.compression)
    path = config.path
    warning = warning_of(config.out, check_folder(config.out))
    if os.path.lexists(path) and config.overwrite:
        check_replaceable(config, path)
        lock(path).release()
    elif os.path.lexists(path) and not is_set:
        check_extends(config, path)
    if warning:
        refuse_running(path)
    return warning


def check_kind(config: RolloutConfig) -> None:
    """Refuse, by UsageError, to go on with a set of shards as with one file, or the other way round.

    What is no file is refused before it is opened.
    """
    check_name(config.out)
    check_is_file(config.path + ".part")
    for path in filter(os.path.lexists, (config.path + ".part", config.path)):
        if is_set(path) and config.storage == "single":
            way_out = f"add --storage sharded, move it and {shards_folder(path)} away, or use another --out"
            raise UsageError(f"--out {config.out}: {path} is a set of shards; {way_out}")
        if config.overwrite and is_set(path):
            remove = f"rm -r {quote(path)} {quote(shards_folder(path))}"
            words = f"{path} is a set of shards; remove it with {remove}, or use another --out"
            raise UsageError(f"--overwrite replaces single files, and {words}")
        if config.storage == "sharded" and not is_set(path) and not (config.overwrite and path == config.path):
            way_out = "leave out --storage sharded, move it away, or use another --out"
            raise UsageError(f"--out {config.out}: {path} is one file, and this run writes shards; {way_out}")


def check_output(config: RolloutConfig) -> None:
    """Refuse what `claim_output` refuses, as far as it can be told quickly; change nothing.

    It does not look for damage in an unfinished file, which takes time.
    """
    part = config.path + ".part"
    check_kind(config)
    check_place(config)
    for unfinished in filter(os.path.lexists, (part + ".new", part)):
        lock(unfinished).release()
    if os.path.lexists(part) and config.overwrite:
        check_replaceable(config, part)
    elif os.path.lexists(part):
        with suppress(DataError):
            stored = in_sandbox("mpi_rollout.storage.checked_file:identity", part)
            check_same_run(config, stored, part)


def warning_of(path: str, why_not: str) -> str:
    """Return a warning where files cannot be locked, with the reason; "" where they can."""
    if not why_not:
        return ""
    return (
        f"--out {path}: files cannot be locked there ({why_not}), so a second run with the same --out is found only "
        f"by what {os.path.basename(status_path(path))} says; start one at a time, or have it mounted with locks"
    )


def remove_unfinished(path: str) -> None:
    """Remove the file of a start that was killed before its file was whole; UsageError if that start still lives."""
    if os.path.lexists(path):
        lock_of_old = lock(path)
        with suppress(FileNotFoundError):
            os.unlink(path)
        lock_of_old.release()


def look_into(config: RolloutConfig, part: str) -> tuple[StoredRun | None, Sequence[LaterCheck]]:
    """Check a file, but not its columns, and open it; None if it has no trajectories.

    The columns are compared with their checksums where they are copied; otherwise by the checks that are returned.
    DataError if the file is damaged, UsageError if it is another run's.
    """
    checks: Sequence[LaterCheck] = ()
    try:
        if part.endswith(".part") and not is_marked(part):
            checks = [LaterCheck(part)]
        else:
            in_sandbox("mpi_rollout.storage.verification:end", part)
        stored = StoredRun(part)
        check_same_run(config, identity_of(stored.attributes), part)
    except BaseException as error:
        for check in checks:
            check.end()
        if isinstance(error, DataError):
            raise not_continued(error, part) from error
        raise
    return (stored if config.trajectories else None), checks


def read_past(stored: StoredRun) -> Past:
    """Read where the envs of a file stood after its last commit."""
    num_steps, num_envs, ended = stored.num_steps, stored.config.num_envs, stored.ended
    starts = np.zeros(num_envs, np.int64)
    num_reset_rows = num_reset_rows_of(stored.attributes)
    np.maximum.at(starts, ended["env_index"], ended["start"] + ended["length"] + num_reset_rows)
    # Also of envs that were lost with their rank, and begin again: all their rows since are ends.
    if num_steps and num_reset_rows:
        last, envs = slice(num_steps - 1, num_steps), slice(0, num_envs)
        agents = agents_in(stored.attributes)
        ends = [stored.read(result_name(name, agents), last, envs)[0] for name in ("terminations", "truncations")]
        starts[ends[0] | ends[1]] = num_steps + 1
        stored.close()
    num_ended = np.bincount(ended["env_index"], minlength=num_envs)
    return Past(stored.config.seed, num_steps, num_ended, starts, stored.reproducibility, stored.config.first_env)


def check_folder(path: str) -> str:
    """Refuse a folder that could not be written to in the end; return why files in it cannot be locked, or "".

    UsageError if the path cannot be that of a file; StorageError if its folder is missing or cannot be written to.
    """
    check_name(path)
    place = located(path)
    if os.path.dirname(path) == DEFAULT_FOLDER:
        make_folder(os.path.dirname(place))
    return ownership.check_place("out", path, place)
