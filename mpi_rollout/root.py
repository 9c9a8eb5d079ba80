"""What the root does in a run besides stepping its envs: collect, store, tell, and end it, whatever happens."""

import json
import os
import signal
import sys
import traceback
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from gymnasium import spaces

from mpi_rollout import mpi
from mpi_rollout.collector import Collector, Discard
from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import DataError, Interrupted, RolloutError, StorageError
from mpi_rollout.layout import Block, describe
from mpi_rollout.policy import Policy, RandomPolicy
from mpi_rollout.progress import make_progress
from mpi_rollout.report import Outcome
from mpi_rollout.timing import PHASES
from mpi_rollout.vector_env import MPIVectorEnv, RankError
from mpi_rollout.worker import Worker

LIMIT_PARTS = 5
LIMIT_S = 1.0
NUM_BLOCKS = 3


class Root:
    """Drives one run.

    Parameters
    ----------
    policy
        None for the random one.
    both
        Spaces of a single env: observations, actions.
    hosts
        Of all ranks, in rank order.
    """

    def __init__(
        self,
        config: RolloutConfig,
        policy: Policy | None,
        worker: Worker,
        both: tuple[spaces.Space, spaces.Space],
        hosts: list[str],
    ):
        self.config, self.hosts = config, hosts
        self.observation_space, self.action_space = both
        self.partition = worker.exchange.partition
        self.envs = MPIVectorEnv(worker, *both)
        self.policy = policy or RandomPolicy(self.action_space, config.num_envs, config.seed)
        self.progress = make_progress(config.progress, config.num_steps, self.envs.clock)
        self.writer: Any = None
        self.collector: Collector | None = None
        self.limit: list[tuple[float, float]] = []
        self.seconds, self.phases = 0.0, dict.fromkeys(PHASES, 0.0)
        self._looked_at, self._seen_env_steps = 0.0, 0
        self._began_at = self._tell_at = 0.0

    def drive(self) -> int:
        """Run, and let all ranks out with the exit code that is returned."""
        code, outcome = 0, None
        try:
            self._collect()
            outcome = self._finish(complete=True)
        except DataError as error:  # The policy's actions; what envs give comes as RankError.
            code = self._end_badly(DataError(f"{self._place(1)}: {error}"))
        except RolloutError as error:
            code = self._end_badly(error)
        except (Exception, SystemExit) as error:  # From the policy: it is the user's code that runs here.
            self._show(traceback.format_exc())
            code = self._end_badly(RolloutError(f"{self._place(1)}: {type(error).__name__}: {error}"))
        if outcome is not None:
            self._tell(outcome)
        self.envs.close(code=code)
        return code

    def _place(self, ahead: int = 0) -> str:
        num_steps = self.collector.num_steps if self.collector else 0
        return f"rank 0 ({os.uname().nodename}), step {num_steps + ahead}"

    def _collect(self) -> None:
        self.collector = Collector(self.envs, self.policy, self._make_sink(), self._look)
        before = self._measure_limit() if self.config.measure_limit else 0.0
        self.collector.start()
        for num_steps in self._parts():
            rate = self._advance(num_steps)
            if self.config.measure_limit:
                after = self._measure_limit()
                self.limit.append((rate, (before + after) / 2))
                before = after

    def _parts(self) -> list[int]:
        """The run's steps, cut where the limit is measured in between."""
        num_parts = min(LIMIT_PARTS, self.config.num_steps) if self.config.measure_limit else 1
        small, large = divmod(self.config.num_steps, num_parts)
        return [small + 1] * large + [small] * (num_parts - large)

    def _make_sink(self) -> Any:
        from mpi_rollout import storage  # h5py is for the root alone: a worker's imports are the job's start-up time.

        nbytes = Block.row_nbytes(self.observation_space, self.action_space, self.config.num_envs)
        num_rows = storage.rows_per_block(nbytes, self.config.num_steps)
        blocks = [self.envs.block(num_rows) for _ in range(NUM_BLOCKS)]
        self.writer = storage.open_writer(self.config, self._attributes(), blocks, self.partition.num_ranks)
        return self.writer if self.config.trajectories else Discard(blocks)

    def _attributes(self) -> dict[str, Any]:
        slice_ = self.envs.worker.envs
        spec = slice_.spec if slice_ is not None and self.config.env is not None else None
        described = {"observation": describe(self.observation_space), "action": describe(self.action_space)}
        return {
            "config": self.config.to_json(),
            "env_spec": spec.to_json() if spec is not None else "",
            "spaces": json.dumps(described),
            "seed": self.config.seed,
            "num_envs": self.config.num_envs,
            "autoreset_mode": self.envs.metadata["autoreset_mode"].value,
            "hosts": json.dumps(self.hosts),
            "mpi_library": mpi.library(),
            "num_ranks": self.partition.num_ranks,
            "started": now(),
        }

    def _advance(self, num_steps: int) -> float:
        """Take steps and have them committed; return env steps per second, all of that included."""
        clock, tally = self.envs.clock, self.collector.tally
        clock.restart()
        start, env_steps, before = clock.now, tally.env_steps, dict(clock.seconds)
        try:
            self.collector.advance(num_steps)
            if self.config.trajectories:
                self.collector.hand_over()
                self.writer.drain()
            clock.lap("write")
        finally:
            self.seconds += perf_counter() - start
            for phase, seconds in clock.seconds.items():
                self.phases[phase] += seconds - before[phase]
        return (tally.env_steps - env_steps) / (clock.now - start)

    def _measure_limit(self) -> float:
        rate = sum(self.envs.call_ranks("limit", LIMIT_S))
        self.envs.clock.lap("other")
        self._looked_at = 0.0  # Rates are of the run alone.
        return rate

    def _look(self, collector: Collector) -> None:
        """Between two steps: stop if asked to, note and tell how far it is."""
        if self.envs.stop_signal:
            raise Interrupted(f"{self._place()}: stopped by {signal.Signals(self.envs.stop_signal).name}")
        now_s, env_steps = self.envs.clock.now, collector.tally.env_steps
        if self._looked_at and env_steps == self._seen_env_steps:
            return
        if self._looked_at:
            rate = (env_steps - self._seen_env_steps) / (now_s - self._looked_at)
            self.writer.add_interval(now_s - self._began_at, env_steps, rate)
            if now_s >= self._tell_at:
                self.progress.tell(collector.num_steps, env_steps, rate)
                self._tell_at = now_s + self.progress.every_s
        elif not self._began_at:
            self._began_at, self._tell_at = now_s, now_s + self.progress.every_s
        self._looked_at, self._seen_env_steps = now_s, env_steps

    def _finish(self, complete: bool) -> Outcome:
        """Close the file, with what the ranks have to report."""
        from mpi_rollout.storage import Ending

        self.progress.close()
        ranks, tally = self.envs.call_ranks("report"), self.collector.tally
        ending = Ending(now(), tally.env_steps, self.seconds, ranks, self.limit, complete)
        return Outcome(
            file=self.writer.finish(ending),
            num_ranks=len(ranks),
            num_envs=self.config.num_envs,
            num_steps=self.collector.num_steps,
            env_steps=tally.env_steps,
            seconds=self.seconds,
            phases=self.phases,
            ranks=[{key: rank[key] for key in ("rank", "host", "num_envs", "seconds")} for rank in ranks],
            step_s=tally.step_s.tolist(),
            slowest_s=tally.slowest_s,
            mean_s=tally.mean_s,
            num_waits=self.writer.num_waits,
            limit=self.limit,
            complete=complete,
        )

    def _tell(self, outcome: Outcome) -> None:
        self._print(json.dumps(outcome.as_dict()) if self.config.json else "\n".join(outcome.lines()))

    @staticmethod
    def _print(text: str) -> None:
        try:
            print(text, flush=True)
        except BrokenPipeError:  # Nobody reads any more, as after `head`; that is no failure of the run.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _end_badly(self, error: RolloutError) -> int:
        """Keep what is whole, say what happened, return the exit code."""
        self.progress.close()
        if isinstance(error, RankError):
            self._show(error.stack)
        kept = ""
        if self.writer is not None and not isinstance(error, StorageError):
            try:
                kept = self._keep()
            except RolloutError as second:
                error.args = (f"{error}; then {second}",)
                error.exit_code = second.exit_code
        self._show(f"mpi_rollout: {error}{kept}\n")
        if self.config.json:
            self._print(json.dumps({"error": str(error) + kept, "exit_code": error.exit_code}))
        return error.exit_code

    def _keep(self) -> str:
        """Commit all steps that are whole; without any, leave nothing behind."""
        num_steps = self.collector.num_steps if self.collector else 0
        if num_steps == 0 or not self.config.trajectories:
            self.writer.discard()
            return ""
        self.collector.hand_over()
        outcome = self._finish(complete=False)
        return f"; the {num_steps:,} steps before are in {outcome.file}"

    @staticmethod
    def _show(text: str) -> None:
        sys.stdout.flush()
        sys.stderr.write(text)
        sys.stderr.flush()


def now() -> str:
    """The time, as ISO 8601 in UTC with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
