"""What is where a run wants to write shards: nothing, a set of them, or what an earlier start of it has left."""

import glob
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from mpi_rollout.config import RolloutConfig, part_of_run
from mpi_rollout.core.partition import Team
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import AlreadyComplete, DataError, UsageError
from mpi_rollout.storage.checked_file import identity_of
from mpi_rollout.storage.manifest import begin_manifest, read_manifest, run_of
from mpi_rollout.storage.output import (
    ClaimedOutput,
    check_kind,
    check_place,
    claim_output,
    read_past,
    remove_unfinished,
)
from mpi_rollout.storage.ownership import Lock, identity, lock, make_folder
from mpi_rollout.storage.run_file import RunFile
from mpi_rollout.storage.same_run import check_same_run
from mpi_rollout.storage.shard_files import shard_path, shards_folder
from mpi_rollout.storage.stored_run import StoredParts, StoredRun
from mpi_rollout.storage.team_files import Shard, TeamFiles
from mpi_rollout.storage.untrusted import attributes_of, open_unmarked
from mpi_rollout.storage.verification import LaterCheck


@dataclass
class ClaimedSet:
    """A set of shards that this run may write, on the root of the job.

    Attributes
    ----------
    ranges
        The envs of each shard; none if the run decides on them.
    run
        What all files of the set have in common, and no other set.
    lock
        Of the unfinished manifest, once there is one.
    replaces
        The `ownership.identity` of the complete file that this run extends or replaces; None where there is none.
    is_new
        There was no set before.
    """

    ranges: Sequence[range]
    run: str
    warning: str
    lock: Lock | None = None
    replaces: tuple[int, int] | None = None
    is_new: bool = False

    def begin(self, config: RolloutConfig, attributes: Mapping[str, object]) -> None:
        """Make the manifest, before the first shard, if it is not there."""
        if self.lock is None:
            self.lock = begin_manifest(config.path, attributes, self.run, self.ranges, self.replaces)

    def drop_if_empty(self, part: str, num_safe: int) -> None:
        """Remove a new set whose shards have no step that all of them have."""
        paths = [shard_path(part, envs) for envs in self.ranges] if self.is_new and not num_safe else []
        for path in (*paths, *(f"{path}.part" for path in paths)):
            with suppress(OSError):
                os.unlink(path)
        with suppress(OSError):
            os.rmdir(shards_folder(part))
            os.unlink(part)

    def release(self) -> None:
        """Let other runs write there."""
        if self.lock is not None:
            self.lock.release()


def claim_set(config: RolloutConfig) -> ClaimedSet:
    """Look what is there, before anything is made; see `output.claim_output` for the errors."""
    path, part = config.path, config.path + ".part"
    check_kind(config)
    warning = check_place(config, is_set=True)
    replaces, run = identity(path), secrets.token_hex(8)
    ranges: Sequence[range] = ()
    if os.path.lexists(path) and not config.overwrite:
        manifest = read_manifest(path)
        if not check_same_run(config, identity_of(manifest.attributes), path):
            StoredRun(path).close()  # DataError if a shard is missing or another one.
            raise AlreadyComplete(
                f"--out {config.out}: {path} is there already, of the same run and complete; nothing is left to do"
            )
        run, ranges = manifest.run, manifest.ranges
    make_folder(shards_folder(path))
    remove_unfinished(f"{part}.new")  # Of an earlier start's manifest.
    if not os.path.lexists(part):
        folder = glob.escape(shards_folder(path))
        if not ranges and (glob.glob(f"{folder}/*.h5") or glob.glob(f"{folder}/*.h5.part")):
            raise UsageError(
                f"--out {config.out}: {shards_folder(path)} has shards of a set whose {path} or {part} is gone; put "
                "that back, move the folder away, or use another --out"
            )
        return ClaimedSet(ranges, run, _words(warning, path, ranges), replaces=replaces, is_new=not ranges)
    lock_of_part = lock(part)
    try:
        manifest = read_manifest(part)
        check_same_run(config, identity_of(manifest.attributes), part)
    except BaseException:
        lock_of_part.release()
        raise
    return ClaimedSet(manifest.ranges, manifest.run, _words(warning, path, manifest.ranges), lock_of_part, replaces)


def _words(warning: str, path: str, ranges: Sequence[range]) -> str:
    """Say also which shards are not there while others are: a kill before the first commit is not the only reason."""
    shards = [shard_path(path, envs) for envs in ranges]
    missing = [each for each in shards if not (os.path.lexists(each) or os.path.lexists(f"{each}.part"))]
    if missing and len(missing) < len(shards):
        lost = f"not found, and begun anew: {', '.join(missing)}; if a shard was moved, stop and put it back"
        return "; ".join(filter(None, (warning, lost)))
    return warning


class ClaimedShards:
    """The shards of one team, with what `output.ClaimedOutput` has of one file.

    `past` says where the team's envs stood when all of its shards had as many steps.
    """

    def __init__(self, config: RolloutConfig, team: Team, run: str):
        self._team, self._run, self._config = team, run, part_of_run(config, team.envs)
        self._outputs: list[ClaimedOutput | None] = []  # None where the shard is complete and has its name.
        self._configs = [shard_config(config, envs) for envs in team.shards]
        self.warning = self.dropped = ""
        try:
            for own in self._configs:
                self._outputs.append(_claim(own, run))
        except BaseException:
            self.release()
            raise
        self.source = f"{len(team.shards)} shards" if len(team.shards) > 1 else self._sources[0]
        self._num_steps = [
            config.num_steps if output is None else 0 if output.past is None else output.past.num_steps
            for output in self._outputs
        ]
        self.past: Past | None = None
        if min(self._num_steps):
            with closing(self.open_past()) as stored:
                self.past = read_past(stored)

    @property
    def _sources(self) -> list[str]:
        return [
            own.path if output is None else output.source
            for own, output in zip(self._configs, self._outputs, strict=True)
        ]

    @property
    def checks(self) -> list[LaterCheck]:
        """Those of all shards, see `output.ClaimedOutput`."""
        return [check for output in self._outputs if output is not None for check in output.checks]

    @property
    def old_nbytes(self) -> tuple[int, int]:
        sizes = [output.old_nbytes for output in self._outputs if output is not None]
        return sum(size for size, _ in sizes), sum(copied for _, copied in sizes)

    def open_past(self) -> StoredRun:
        """Open what there is of the team's shards, as one run."""
        first_env = self._team.envs.start
        places = (range(envs.start - first_env, envs.stop - first_env) for envs in self._team.shards)
        return StoredParts(self._config, self._sources, tuple(places))

    def new_file(
        self,
        config: RolloutConfig,
        attributes: Mapping[str, object],
        num_rows: int,
        lost: Mapping[int, int],
        check_stop: Callable[[], None],
    ) -> RunFile | TeamFiles:
        """Return the shards that are to be made now; `lost` are the team's envs that did not come back."""
        first_env, num_steps, shards = self._team.envs.start, min(self._num_steps), list[Shard]()
        for envs, own, output, own_steps in zip(
            self._team.shards, self._configs, self._outputs, self._num_steps, strict=True
        ):
            places = range(envs.start - first_env, envs.stop - first_env)
            own_lost = {env - places.start: step for env, step in lost.items() if env in places}
            if own_lost and own_steps > num_steps:
                raise DataError(
                    f"{own.path} has steps of envs that did not come back to where they were; keep what there is with "
                    "mpi_rollout recover"
                )
            its = {**attributes, "config": own.to_json(), "num_envs": own.num_envs, "run": self._run}
            if output is not None and not _has_all(own, output):
                file = output.new_file(own, its, num_rows, own_lost, check_stop)
                shards.append(Shard(places, file, own_steps))
        if len(self._configs) == len(shards) == 1:
            return shards[0].file
        return TeamFiles(config.path + ".part", shards, num_steps)

    def release(self) -> None:
        for output in self._outputs:
            if output is not None:
                output.release()


def shard_config(config: RolloutConfig, envs: range) -> RolloutConfig:
    """Return the configuration of one shard of a run: that of the run that collects these envs alone."""
    own = part_of_run(config, envs)
    return replace(own, out=shard_path(config.out, envs), storage="single", shards_per_node=1, overwrite=False)


def _has_all(config: RolloutConfig, output: ClaimedOutput) -> bool:
    """Tell whether a shard was closed with all its steps, and waits for the others to get its name."""
    if not output.checks:  # There is none, its writer was killed, or it is extended.
        return False
    with open_unmarked(output.source) as file:
        stored = identity_of(attributes_of(file))
    return bool(stored["complete"]) and not check_same_run(config, stored, output.source)


def _claim(config: RolloutConfig, run: str) -> ClaimedOutput | None:
    """Look what there is of a shard; None if it is complete.  DataError if it belongs to another set than `run`."""
    try:
        output = claim_output(config)
    except AlreadyComplete:
        output = None
    source = config.path if output is None else output.source
    if (output is None or output.past is not None) and run_of(source) != run:
        if output is not None:
            output.release()
        raise DataError(f"{source} is a shard of another set; put back the one that was there, or move it away")
    return output
