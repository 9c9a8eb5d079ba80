"""The shards of a set, each opened as a file and compared with what the manifest means."""

import os
from contextlib import suppress

from mpi_rollout.errors import DataError
from mpi_rollout.storage.manifest import Manifest, read_manifest
from mpi_rollout.storage.schema import COMMIT, check_datasets
from mpi_rollout.storage.shard_files import shard_path
from mpi_rollout.storage.stored_file import Place, StoredFile
from mpi_rollout.storage.untrusted import linked, reading
from mpi_rollout.text import counted

SAME = "spaces", "autoreset_mode"  # Attributes without which columns do not fit together.


def open_shard(manifest: Manifest, number: int, place: Place, is_rescue: bool = False) -> StoredFile:
    """Open a shard of the manifest at a place.

    DataError if it is missing, damaged or another file.  In a rescue it may be another one of its run than the set was
    completed with.
    """
    file = StoredFile(place_of(manifest, number, place), is_rescue)
    if problem := _other(manifest, number, file, place) or (
        "" if is_rescue else _changed(manifest, number, file, place)
    ):
        raise DataError(f"{file.path}: {problem}; put back the shard that was there")
    return file


def place_of(manifest: Manifest, number: int, place: Place) -> Place:
    """Return where a shard is; DataError if it is missing."""
    path, is_part = shard_path(place.path, manifest.ranges[number]), place.path.endswith((".part", ".part.new"))
    # Of a set that is extended, both are there, and the one that is written has more.
    where = Place(f"{path}.part" if is_part else path, place.folder)
    if not os.path.lexists(where.locate()):
        again = ", or the command of its run makes it again" if is_part else ""
        raise DataError(f"{path}: no such file; it is a shard of {place.path}: put it back there{again}")
    return where


def check_end(manifest: Manifest, number: int, place: Place) -> None:
    """Compare the last commit of a shard of a complete set, which no other file has, with what the manifest says.

    DataError as from `open_shard`, but for damage: nothing else of the shard is read.
    """
    where, end = place_of(manifest, number, place), None
    with suppress(DataError), reading(where.path, lambda doing: None, where.locate()) as (file, _):
        commits = linked(file, "commits", "/commits")
        check_datasets({"commits": commits}, {"commits": (COMMIT, ())}, "none")
        num_steps, _, digest = commits[-1]
        end = int(num_steps), bytes(digest).hex()
    if end != manifest.ends[number]:
        open_shard(manifest, number, place)


def _other(manifest: Manifest, number: int, file: StoredFile, place: Place) -> str:
    """Say what is wrong with a file that is not this shard."""
    first_env, num_envs = file.config.first_env - manifest.config.first_env, file.config.num_envs
    if file.attributes.get("run") != manifest.run:
        return f"it is no shard of {place.path}, but of another run"
    if range(first_env, first_env + num_envs) != manifest.ranges[number]:
        return f"it has envs {first_env} to {first_env + num_envs - 1} of the run, and is a copy of another shard"
    if any(file.attributes[name] != manifest.attributes[name] for name in SAME):
        return f"its spaces are not those of {place.path}"
    return ""


def _changed(manifest: Manifest, number: int, file: StoredFile, place: Place) -> str:
    """Say what is wrong with a file that is not as it was when its set was complete."""
    end = file.num_steps, file.last_digest
    if not manifest.is_complete or end == manifest.ends[number]:
        return ""
    now = read_manifest(place.path, place.locate())  # The set may be extended since a reader has looked at it.
    if now.run == manifest.run and now.is_complete and end == now.ends[number]:
        return ""
    is_extended = os.path.lexists(f"{place.locate()}.part")
    way_out = f"; the run is being extended: read {place.path}.part" if is_extended else ""
    before = counted(manifest.ends[number][0], "step")
    return f"it has {counted(file.num_steps, 'step')}, {place.path} was completed with another one of {before}{way_out}"
