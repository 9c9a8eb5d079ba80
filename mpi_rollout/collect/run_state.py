"""Where a run is: what its root knows of it, from its start to its end."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mpi_rollout.collect.collector import Collector
from mpi_rollout.envs.replaying import Past
from mpi_rollout.exchange.world import ROOT, rank_and_host
from mpi_rollout.process.clock import PHASES

if TYPE_CHECKING:
    from mpi_rollout.storage.verification import LaterCheck
    from mpi_rollout.storage.writer import Writer  # Imports h5py, which is for the root alone.


@dataclass
class RunState:
    """Where a run is: what there is of it, and what it has taken; see `report.RunFigures`."""

    past: Past | None  # Where an earlier start of the run came to.
    past_checks: "Sequence[LaterCheck]" = ()  # Of what it wrote, under way.
    is_continuable: bool = True  # Its envs can be brought back to where they were.
    writer: "Writer | None" = None  # It and the collector are there when the envs are where the run begins.
    collector: Collector | None = None
    seconds: float = 0.0
    catch_up_s: float = 0.0
    num_before: int = 0  # Steps that all parts of the run had at its start.
    old_nbytes: tuple[int, int] = (0, 0)  # What their files had then, and what of it is copied.
    env_steps_before: int = 0  # Of earlier starts.
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    limit: list[tuple[float, float]] = field(default_factory=list)
    restarts: Counter[int] = field(default_factory=Counter)
    rank: int = ROOT  # Of this process in the job.
    is_alone: bool = True  # No other process drives a part of the run.

    @property
    def file(self) -> "Writer":
        """The writer, once the run is under way."""
        assert self.writer is not None
        return self.writer

    @property
    def num_past(self) -> int:
        """Steps that earlier starts of the run have taken."""
        return 0 if self.past is None else self.past.num_steps

    @property
    def num_safe(self) -> int:
        """Steps that are committed, by this start of the run or an earlier one."""
        return max(self.num_past, 0 if self.writer is None else self.writer.num_committed)

    @property
    def worst_commit_s(self) -> float:
        """The longest that a commit has taken."""
        return 0.0 if self.writer is None else self.writer.worst_commit_s

    @property
    def num_steps(self) -> int:
        """Steps that all envs have taken."""
        return self.num_safe if self.collector is None else self.collector.num_steps

    @property
    def place(self) -> str:
        """Where the run is: steps are counted from 0, as in the file, so this is the first one that it lacks."""
        return f"{rank_and_host(self.rank)}, step {self.num_steps}"

    @property
    def stop_place(self) -> str:
        """Where the run stops: a stop ends all parts of a run, which are at other steps."""
        return self.place if self.is_alone else rank_and_host(self.rank)
