"""The services of every rank that are not of the policy: its own facts and state, and calls of its envs."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from mpi_rollout.envs.env_group import EnvGroup
from mpi_rollout.exchange.exchanges import Exchanges
from mpi_rollout.process.clock import Clock, now_s, process_start
from mpi_rollout.process.host import physical_cores, processor_quota, processor_time
from mpi_rollout.process.notices import NOTICES, Text
from mpi_rollout.ranks.failures import Failures
from mpi_rollout.ranks.slices import Slice


class RankControl:
    """Reports of a rank, and what it does between two orders that is no step: a `Service`.

    Messages call it `rank`, its number in the job; `envs` are its envs in words.
    """

    name = "rank"

    def __init__(
        self,
        rank: int,
        envs: str,
        exchanges: Exchanges,
        slices: Sequence[Slice],
        failures: Failures,
        clock: Clock,
        env_group: EnvGroup | None,
    ):
        self._rank = rank
        self._envs = envs
        self._exchanges = exchanges
        self._slices = slices
        self._failures = failures
        self._clock = clock
        self._env_group = env_group
        self._processor_time = processor_time()

    def report(self) -> dict[str, Any]:
        """Return this rank's facts for the user.  The root asks for them, so it is in charge."""
        self._failures.end_grace()
        before, now = self._processor_time, processor_time()
        return {
            "rank": self._rank,
            "host": os.uname().nodename,
            "cores": sorted(os.sched_getaffinity(0)),
            "physical_cores": sorted(physical_cores(os.sched_getaffinity(0))),
            "quota": processor_quota(),
            "cpu_share": time.process_time() / (now_s() - process_start()),
            # The share of a core that this rank had while it had work; None where the system does not say.
            "core_share": None if before is None or now is None else now.since(before).share,
            "num_envs": sum(len(slice_.env_indices) for slice_ in self._slices),
            "seconds": self._clock.seconds,
            "fault": self._failures.fault,
            "notices": NOTICES.held,
        } | ({} if self._env_group is None else {"envs": self._envs, "env_ranks": [*self._env_group.ranks]})

    def notices(self) -> Mapping[Text, str]:
        """Return what this rank has to say about its envs."""
        return NOTICES.held

    def begin_anew(self) -> None:
        """Forget a failure, before all envs are reset."""
        self._failures.forget()

    def make_room(self, num_rows: int) -> None:
        """Make room in all slots for fragments of this many steps."""
        self._exchanges.make_room(num_rows)
        for slice_ in self._slices:
            slice_.use_slot()

    def end_replay(self, lost: Sequence[int]) -> None:
        """Go on from where the run was, see `Slice.end_replay`."""
        for slice_ in self._slices:
            slice_.end_replay(lost)


class EnvCalls:
    """Calls of a rank's envs, by the names that a trainer gives: a `Service`.

    `is_under_way` tells whether envs are being called.
    """

    name = "envs"

    def __init__(self, slices: Sequence[Slice]):
        self._slices = slices
        self.is_under_way = False

    def call_some(
        self, env_indices: Sequence[int], name: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> dict[int, object]:
        """Call a method, or get an attribute, of those envs of the job that are here; return results by env index."""
        results: dict[int, object] = {}
        with self._calling():
            for slice_ in self._slices:
                results |= slice_.call_some(env_indices, name, args, kwargs)
        return results

    def set_some(self, env_indices: Sequence[int], name: str, values: Sequence[object]) -> None:
        """Set an attribute of those envs of the job that are here, a value each."""
        with self._calling():
            for slice_ in self._slices:
                slice_.set_some(env_indices, name, values)

    def render(self) -> dict[int, object]:
        """Render each env; return the frames by env index."""
        frames: dict[int, object] = {}
        with self._calling():
            for slice_ in self._slices:
                frames |= slice_.render()
        return frames

    @contextmanager
    def _calling(self) -> Iterator[None]:
        try:
            self.is_under_way = True
            yield
        finally:
            self.is_under_way = False
