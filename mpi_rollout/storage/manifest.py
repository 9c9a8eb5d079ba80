"""The manifest of a set of shards: which envs of a run are in which of its files, and whether these are still the same.

A set is one run in several files.  A shard is an ordinary file, of a run of fewer envs that knows its first env; the
attribute `run`, which all files of a set have, says that they belong together.  The manifest has the attributes of the
whole run, and no columns of its own; see `set_end` for what it has when all shards are complete.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.errors import ContentError, DataError
from mpi_rollout.process.console import take_free_descriptors
from mpi_rollout.storage.checked_file import CheckedFile
from mpi_rollout.storage.ownership import Lock, identity, make_locked, put_in_free_place, refusal, removed
from mpi_rollout.storage.schema import COMMIT, Schema, check_datasets, is_manifest, made_with
from mpi_rollout.storage.shard_files import name_now, shard_path, shards_folder
from mpi_rollout.storage.stored_file import StoredFile
from mpi_rollout.storage.untrusted import linked, open_unmarked, parsed, reading, text
from mpi_rollout.text import counted

PUT_BACK = "; put back the shard that was there"
SAME = "spaces", "autoreset_mode"  # Attributes without which columns do not fit together.


@dataclass(frozen=True)
class Manifest:
    """What a manifest says, of a file that is not trusted.

    Attributes
    ----------
    ranges
        The envs of each shard: consecutive, together all envs of the run.
    ends
        The number of steps of each shard and the digest of its last commit; none before the set is complete.
    num_steps
        The steps of a complete set; before that the shards alone know them.
    """

    attributes: Mapping[str, object]
    config: RolloutConfig
    is_complete: bool
    reproducibility: Reproducibility
    run: str
    ranges: Sequence[range]
    ends: Sequence[tuple[int, str]]
    num_steps: int


def is_set(path: str) -> bool:
    """Tell whether a file is a manifest; one that cannot be read is none."""
    try:
        with open_unmarked(path) as file:
            return is_manifest(file.attrs)
    except (OSError, RuntimeError, KeyError, ValueError):
        return False


def run_of(path: str) -> str:
    """Return the attribute `run` of a file that was checked; "" if it is of no set."""
    with open_unmarked(path) as file:
        return str(file.attrs.get("run", ""))


def read_manifest(path: str) -> Manifest:
    """Read a manifest; DataError if it is none, or damaged."""
    with reading(path, lambda doing: None) as (file, note):
        return manifest_of(CheckedFile(file, path, note))


def manifest_of(checks: CheckedFile) -> Manifest:
    """Return what a manifest says whose attributes were checked; ContentError if its shards are not those of a run."""
    root, config = checks.root, checks.config
    shards, ranges, ends = parsed(root, "shards", list), list[range](), list[tuple[int, str]]()
    for shard in shards:
        start = ranges[-1].stop if ranges else 0
        match shard:
            case [int(first_env), int(num_envs), *end] if first_env == start and num_envs > 0:
                ranges.append(range(start, start + num_envs))
            case _:
                raise ContentError(f"its attribute shards should be consecutive ranges of envs, got {shard!r:.80}")
        match end:
            case [int(num_steps), str(digest)] if checks.is_complete and num_steps >= checks.num_steps:
                ends.append((num_steps, digest))
            case [] if not checks.is_complete:
                pass
            case _:
                raise ContentError(f"its attribute shards does not say how a shard was complete: {shard!r:.80}")
    if not ranges or ranges[-1].stop != config.num_envs:
        num_found = ranges[-1].stop if ranges else 0
        raise ContentError(f"its attribute shards has {num_found:,} envs, its run has {config.num_envs:,}")
    run = text(root, "run")
    return Manifest(root, config, checks.is_complete, checks.promise, run, ranges, ends, checks.num_steps)


def begin_manifest(
    path: str,
    attributes: Mapping[str, object],
    run: str,
    ranges: Sequence[range],
    replaces: tuple[int, int] | None = None,
) -> Lock:
    """Make the manifest `<path>.part` of a set, and the folder of its shards; return the lock of the manifest.

    UsageError if another run writes there; an error of the system or of HDF5 if it cannot be written.

    Parameters
    ----------
    attributes
        Those of the root group of one file of the whole run.
    run
        Hexadecimal digits that no other set has; every shard has them as its attribute `run`.
    ranges
        The envs of each shard.
    replaces
        The `ownership.identity` of the complete manifest at `path` that the run extends.
    """
    part, new = f"{path}.part", f"{path}.part.new"
    shards = json.dumps([[envs.start, len(envs)] for envs in ranges])
    own = {"versions": json.dumps(made_with()), "run": run, "shards": shards}
    take_free_descriptors()
    lock = make_locked(new)
    with removed(new):
        if identity(path) not in (None, replaces):
            raise refusal(path)
        os.makedirs(shards_folder(path), exist_ok=True)
        Schema({**attributes, **own}, 1).create(new, swmr_mode=False, is_locked=True).close()
        lock.sync()
        put_in_free_place(new, part)
    return lock


def open_shard(manifest: Manifest, number: int, path: str, is_rescue: bool = False) -> StoredFile:
    """Open a shard of the manifest at a path; DataError if it is missing, damaged or of something else."""
    file = StoredFile(place_of(manifest, number, path), is_rescue)
    if problem := _other(manifest, number, file, path):
        raise DataError(f"{file.path}: {problem}{PUT_BACK}")
    return file


def place_of(manifest: Manifest, number: int, path: str) -> str:
    """Return where a shard is; DataError if it is missing."""
    shard, is_part = shard_path(path, manifest.ranges[number]), path.endswith((".part", ".part.new"))
    # Of a set that is extended, both are there, and the one that is written has more.
    place = name_now(f"{shard}.part") if is_part else shard
    if not os.path.lexists(place):
        again = ", or the command of its run makes it again" if is_part else ""
        raise DataError(f"{shard}: no such file; it is a shard of {path}: put it back there{again}")
    return place


def check_end(manifest: Manifest, number: int, path: str) -> None:
    """Compare the last commit of a shard of a complete set, which no other file has, with what the manifest says.

    DataError as from `open_shard`, and if it is another one of its run; nothing else of the shard is read.
    """
    shard = place_of(manifest, number, path)
    with reading(shard, lambda doing: None) as (file, _):
        commits = linked(file, "commits", "/commits")
        check_datasets({"commits": commits}, {"commits": (COMMIT, ())}, "none")
        num_steps, _, digest = commits[-1]
    if (int(num_steps), bytes(digest).hex()) != manifest.ends[number]:
        open_shard(manifest, number, path)  # It says more of a file of something else.
        way_out = f"; the run is being extended: read {path}.part" if os.path.lexists(f"{path}.part") else PUT_BACK
        before = counted(manifest.ends[number][0], "step")
        has = counted(int(num_steps), "step")
        raise DataError(f"{shard}: it has {has}, {path} was completed with another one of {before}{way_out}")


def _other(manifest: Manifest, number: int, file: StoredFile, path: str) -> str:
    """Say what is wrong with a file that is not this shard."""
    first_env, num_envs = file.config.first_env - manifest.config.first_env, file.config.num_envs
    if str(file.attributes.get("run")) != manifest.run:
        return f"it is no shard of {path}, but of another run"
    if range(first_env, first_env + num_envs) != manifest.ranges[number]:
        return f"it has envs {first_env} to {first_env + num_envs - 1} of the run, and is a copy of another shard"
    if any(file.attributes[name] != manifest.attributes[name] for name in SAME):
        return f"its spaces are not those of {path}"
    return ""
