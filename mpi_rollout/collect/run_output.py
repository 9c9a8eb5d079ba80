"""What a run writes, or a team's part of it: what there is already, and what is made of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from mpi_rollout.collect.team import RankTeam
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.layout import Contents
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.sink import DiscardSink, Sink
from mpi_rollout.process.console import say
from mpi_rollout.process.host import check_blocks
from mpi_rollout.ranks.set_up import EnvFacts
from mpi_rollout.storage.shard_files import name_now

if TYPE_CHECKING:
    # These import h5py: a worker's imports are the job's start-up time.
    from mpi_rollout.storage.output import ClaimedOutput
    from mpi_rollout.storage.shard_set import ClaimedShards
    from mpi_rollout.storage.stored_run import StoredRun
    from mpi_rollout.storage.writer import Writer

    Claimed = ClaimedOutput | ClaimedShards

NUM_BLOCKS = 3
UNREAD_NBYTES, UNREAD_ROWS = 2**20, 2**10


class RunOutput:
    """The file of a run, or the shards of a team; `claimed` is what there is of it.

    `hosts` are those of all ranks, and `policy_sha256` the digest of the policy's file, which the file names.
    """

    def __init__(self, team: RankTeam, claimed: "Claimed", facts: EnvFacts, hosts: Sequence[str], policy_sha256: str):
        self._team = team
        self._config = team.config
        self._claimed = claimed
        self._facts = facts
        self._all_hosts = hosts
        self._policy_sha256 = policy_sha256
        self.hosts = team.hosts or hosts  # Of the team's ranks.
        self.past = claimed.past
        self.past_checks = claimed.checks
        self.old_nbytes = claimed.old_nbytes

    @property
    def source(self) -> str:
        """The file that a run goes on from, in messages."""
        return name_now(f"{self._config.path}.part") if self._team.run else self._claimed.source

    def warnings(self) -> Iterator[str]:
        """Yield what the user should know of it; nothing is ""."""
        shard_set = self._team.shard_set
        yield self._claimed.warning if shard_set is None else shard_set.warning
        yield self._claimed.dropped

    def open_past(self) -> "StoredRun":
        """Open what an earlier start of the run has written."""
        return self._claimed.open_past()

    def num_rows(self, contents: Contents, most: int) -> int:
        """Return the rows of a block; `most` is the largest number of steps between two exchanges."""
        from mpi_rollout.storage import schema  # h5py is for the root alone.

        if contents.counts_only:
            return max(most, UNREAD_ROWS)
        nbytes = contents.row_nbytes(self._config.num_envs)
        # All shards of a set have chunks of as many rows, whoever writes how many of them.
        num_rows = schema.rows_per_block(contents.row_nbytes(self._team.widest), self._config.num_steps)
        if not self._config.trajectories:  # Only the policy reads the blocks: they stay in the core's cache.
            num_rows = min(num_rows, max(most, UNREAD_NBYTES // nbytes))
        check_blocks(NUM_BLOCKS * num_rows * nbytes)
        return num_rows

    def say_size(self, contents: Contents, old_nbytes: tuple[int, int]) -> None:
        """Check the room for the files of all teams, which are in one folder; say what they take if that is much."""
        from mpi_rollout.storage.ownership import check_free_space

        whole = self._team.whole
        if self._team.speaks and (size := check_free_space(whole, contents.row_nbytes(whole.num_envs), *old_nbytes)):
            say(f"mpi_rollout: {size}\n")

    def begin_set(self, contents: Contents) -> None:
        """Make what leads to the shards, on the root of the job, where the run writes some."""
        if self._team.shard_set is not None:
            self._team.shard_set.begin(self._team.whole, self._attributes(self._team.whole, self._all_hosts, contents))

    def make(
        self, driver: Driver, num_rows: int, lost: Mapping[int, int], check: Callable[[], None]
    ) -> "tuple[Writer, Sink]":
        """Make the file; return its writer, and where the blocks go.

        `lost` has the first lost step of each env that did not come back.  `check` may raise to end the run; any thread
        calls it.
        """
        from mpi_rollout.storage.writer import Writer

        blocks = [driver.block(num_rows) for _ in range(NUM_BLOCKS)]
        attributes = self._attributes(self._config, self.hosts, driver.exchanges.contents)
        file = self._claimed.new_file(self._config, attributes, num_rows, lost, check)
        if not self._config.trajectories:
            return Writer(file, []), DiscardSink(blocks)
        writer = Writer(file, blocks)
        return writer, writer

    def _attributes(self, config: RolloutConfig, hosts: Sequence[str], contents: Contents) -> dict[str, object]:
        attributes = self._facts.attributes(config, hosts, contents.extras, contents.kept_infos)
        return attributes | {"policy_sha256": self._policy_sha256}

    def release(self, writer: "Writer | None") -> None:
        """Let others write there: this run has told how it ended."""
        self._claimed.release()
        if writer is not None:
            writer.release()
        if self._team.shard_set is not None:
            self._team.shard_set.release()
