"""What the root does in a run besides stepping its envs: collect, store, tell, and end it, whatever happens."""

import json
import os
import signal
import traceback
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import numpy as np

from mpi_rollout.collect.collector import Collector, Discard
from mpi_rollout.collect.lost_ranks import Losses
from mpi_rollout.collect.progress import make_progress
from mpi_rollout.collect.report import Outcome
from mpi_rollout.collect.resuming import catch_up, load
from mpi_rollout.collect.room import check_file
from mpi_rollout.config import RolloutConfig, flag
from mpi_rollout.core.clock import PHASES
from mpi_rollout.core.deadline import Deadline
from mpi_rollout.core.layout import Block, describe
from mpi_rollout.core.memory import check_blocks
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import (
    DataError,
    Interrupted,
    PolicyError,
    RolloutError,
    StorageError,
    UsageError,
    counted,
    words_of,
)
from mpi_rollout.exchange import job_end, world
from mpi_rollout.policies.random import Policy, RandomPolicy
from mpi_rollout.process.console import STDOUT, say
from mpi_rollout.ranks.driver import Driver, RankError
from mpi_rollout.ranks.set_up import EnvFacts
from mpi_rollout.ranks.worker import Worker
from mpi_rollout.storage.status import Status, is_batch_job

LIMIT_PARTS = 5
NUM_BLOCKS = 3


class Root:
    """Drives one run.

    Parameters
    ----------
    policy
        None for the random one.
    output
        `storage.Output`: what there is already.
    facts
        What the envs say of themselves.
    hosts
        Of all ranks, in rank order.
    """

    def __init__(
        self,
        config: RolloutConfig,
        policy: Policy | None,
        output: Any,
        worker: Worker,
        facts: EnvFacts,
        hosts: list[str],
    ):
        self.config, self.output, self.past, self.facts, self.hosts = config, output, output.past, facts, hosts
        self.deadline, self.status = Deadline(config.max_walltime), Status(config.out, config.num_steps)
        self.driver = Driver(worker.exchanges, worker, config.actions)
        self.losses = Losses(config, self.driver, hosts, say)
        self.driver.on_loss = lambda ranks: self.losses.note(ranks, self.collector, self.writer)
        self.policy = policy or RandomPolicy(facts.action_space, config.num_envs, config.seed)
        self.progress = make_progress(config.progress, config.num_steps, self.driver.clock)
        worker.on_stop = self.progress.close  # Launchers do not wait long.
        self.writer: Any = None
        self.collector: Collector | None = None
        self.limit: list[tuple[float, float]] = []
        self.restarts: Counter[int] = Counter()  # Of envs, by their index.
        self._warning = output.warning
        self.seconds, self.phases = 0.0, dict.fromkeys(PHASES, 0.0)
        self._looked_at, self._seen_env_steps = 0.0, 0
        self._untold = np.zeros(2)  # Env steps and seconds since the last line.
        self._catch_up_s = 0.0
        self._began_at = self._tell_at = self._checked_at = self._worst_pause_s = 0.0

    def drive(self) -> int:
        """Run, and let all ranks out with the exit code that is returned."""
        try:
            code = self._drive()
        except BaseException as error:  # This ends the job at once; whoever called says why.
            is_stopped = isinstance(error, KeyboardInterrupt)
            code = Interrupted.exit_code if is_stopped else RolloutError.exit_code
            self._tell_status("interrupted" if is_stopped else "failed", code, words_of(error))
            raise
        self.output.release()  # Others may write there: this run has told how it ended.
        if self.writer is not None:
            self.writer.release()
        self.driver.stop(code)
        return code

    def _drive(self) -> int:
        try:
            self._collect()
            outcome = self._finish(complete=True)
        except (DataError, PolicyError) as error:  # The policy's actions; what envs give comes as RankError.
            error.args = (f"{self._place}: ", *error.args)
            return self._end_badly(error)
        except RolloutError as error:
            return self._end_badly(error)
        except Exception as error:
            if job_end.is_loss(error):
                raise
            say(traceback.format_exc())
            return self._end_badly(RolloutError(f"{self._place}: {words_of(error)}"))
        self._tell_status("complete", 0, outcome.file)
        self._print(json.dumps(outcome.as_dict()) if self.config.json else "\n".join(outcome.lines()))
        return 0

    def _note_fault(self, env_index: int, step: int, message: str) -> None:
        self.restarts[env_index] += 1
        self.writer.add_fault(env_index, step, message)

    @property
    def _place(self) -> str:
        """Where the run is: steps are counted from 0, as in the file, so this is the first one that it lacks."""
        num_steps = self.collector.num_steps if self.collector else self._num_safe
        return f"rank 0 ({os.uname().nodename}), step {num_steps}"

    @property
    def _num_safe(self) -> int:
        """Steps that are committed, by this start of the run or an earlier one."""
        num_past = 0 if self.past is None else self.past.num_steps
        return max(num_past, 0 if self.writer is None else self.writer.num_committed)

    def _collect(self) -> None:
        if self._warning:
            say(f"mpi_rollout: {self._warning}\n")
        if self.past is None:
            self._make_collector({})
            self.collector.start()
        else:
            self._go_on(self.past)
        before = self._measure_limit() if self.config.measure_limit else 0.0
        for num_steps in self._parts():
            rate = self._advance(num_steps)
            if self.config.measure_limit:
                after = self._measure_limit()
                self.limit.append((rate, (before + after) / 2))
                before = after

    def _go_on(self, past: Past) -> None:
        """Be where an earlier start of the run came to."""
        from mpi_rollout.storage import open_unmarked

        self.status.tell("running", num_steps=self._num_safe)
        with open_unmarked(self.output.source) as source:  # Also when another file has taken its place.
            lost = self._catch_up(past, source)
            self._make_collector(lost)
            num_ended = int((past.starts > past.num_steps).sum()) + len(lost)
            self.collector.go_on(past.num_steps, num_ended, lambda block: load(block, past, lost, source))

    def _catch_up(self, past: Past, source: Any) -> dict[int, int]:
        """Bring the envs to where an earlier start of the run left them; tell of those that do not come there."""
        start, config = perf_counter(), self.config
        lost = catch_up(self.driver, past, source, self._check_stop)
        self.driver.call_ranks("seed_again", past.num_steps)
        num_again = past.num_steps - past.first_step
        self._catch_up_s = perf_counter() - start
        say(
            f"mpi_rollout: continuing {self.output.source} after {past.num_steps:,} of "
            f"{counted(config.num_steps, 'step')}; took {counted(num_again, 'step')} again in "
            f"{self._catch_up_s:.1f} s\n"
        )
        for index, step in list(lost.items())[:8]:
            say(
                f"mpi_rollout: env {index} did not reproduce step {step}: its running episode is ended as truncated "
                "and faulted\n"
            )
        return lost

    def _make_collector(self, lost: Mapping[int, int]) -> None:
        """Make the file and what fills it; from then on the run is under way."""
        config, sink = self.config, self._make_sink(lost)
        self.status.tell("running", num_steps=self._num_safe)
        reset_seed = config.seed if config.vectorization_mode == "vector_entry_point" else None
        self.collector = Collector(
            self.driver, self.policy, sink, NUM_BLOCKS, self._look, self._note_fault, config.batch_size, reset_seed
        )

    def _parts(self) -> list[int]:
        """The run's steps, cut where the limit is measured in between."""
        left = self.config.num_steps - (0 if self.past is None else self.past.num_steps)
        if left == 0:  # The run was stopped when it had only to close its file.
            return []
        num_parts = min(LIMIT_PARTS, left) if self.config.measure_limit else 1
        small, large = divmod(left, num_parts)
        return [small + 1] * large + [small] * (num_parts - large)

    def _make_sink(self, lost: Mapping[int, int]) -> Any:
        from mpi_rollout import storage  # h5py is for the root alone: a worker's imports are the job's start-up time.

        nbytes = Block.row_nbytes(self.facts.observation_space, self.facts.action_space, self.config.num_envs)
        num_rows = storage.rows_per_block(nbytes, self.config.num_steps)
        goes = self.past is not None and self.output.source != self.config.out  # When the new file has what it had.
        old_nbytes = os.path.getsize(self.output.source) if goes else 0
        check_blocks(NUM_BLOCKS * num_rows * nbytes)
        if told := check_file(self.config, nbytes, old_nbytes):
            say(f"mpi_rollout: {told}\n")
        blocks = [self.driver.block(num_rows) for _ in range(NUM_BLOCKS)]
        self.writer = storage.open_writer(
            self.config,
            self._attributes(),
            blocks,
            len(self.hosts),
            self.past,
            lost,
            self.output.replaces,
            self.output.source,
        )
        return self.writer if self.config.trajectories else Discard(blocks)

    def _attributes(self) -> dict[str, Any]:
        facts = self.facts
        described = {"observation": describe(facts.observation_space), "action": describe(facts.action_space)}
        return {
            "config": self.config.to_json(),
            "env_spec": facts.described_spec,
            "spaces": json.dumps(described),
            "seed": self.config.seed,
            "num_envs": self.config.num_envs,
            "autoreset_mode": facts.metadata["autoreset_mode"].value,
            "hosts": json.dumps(self.hosts),
            "mpi_library": world.library_name(),
            "num_ranks": len(self.hosts),
            "started": now(),
        }

    def _advance(self, num_steps: int) -> float:
        """Take steps and have them committed; return env steps per second, all of that included."""
        clock, tally = self.driver.clock, self.collector.tally
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
        rate = sum(self.driver.call_ranks("limit", self.config.limit_s))
        self.driver.clock.lap("other")
        self._looked_at = 0.0  # Rates are of the run alone.
        return rate

    def _check_stop(self) -> None:
        if self.driver.stop_signal:
            raise Interrupted(f"{self._place}: stopped by {signal.Signals(self.driver.stop_signal).name}")
        now_s = perf_counter()
        if self._checked_at:
            self._worst_pause_s = max(self._worst_pause_s, now_s - self._checked_at)
        self._checked_at = now_s
        worst_commit_s = 0.0 if self.writer is None else self.writer.worst_commit_s
        if self.deadline.is_near(worst_commit_s, self._worst_pause_s):
            raise Interrupted(f"{self._place}: stopped for {self.deadline.reason}")

    def _look(self, collector: Collector) -> None:
        """Between two steps: stop if asked to, note and tell how far it is."""
        self._check_stop()
        self._say_warnings()
        self.status.tell("running", num_steps=self.writer.num_committed)
        now_s, env_steps = self.driver.clock.now, collector.tally.env_steps
        if self._looked_at and env_steps == self._seen_env_steps:
            return
        if self._looked_at:
            new = np.array([env_steps - self._seen_env_steps, now_s - self._looked_at])
            self.writer.add_interval(now_s - self._began_at, env_steps, new[0] / new[1])
            self._untold += new
            if now_s >= self._tell_at:
                rate = self._untold[0] / self._untold[1]
                self.progress.tell(collector.num_steps, env_steps, rate, collector.tally.step_s)
                self._untold[:] = 0
                self._tell_at = now_s + self.progress.every_s
        elif not self._began_at:
            self._began_at, self._tell_at = now_s, now_s + self.progress.every_s
        self._looked_at, self._seen_env_steps = now_s, env_steps

    def _say_warnings(self) -> None:
        """Say of wrong values what the writer has found since."""
        warnings = self.writer.values.warnings if self.config.trajectories else []
        while warnings:
            say(f"mpi_rollout: {warnings.pop(0)}\n")

    def _finish(self, complete: bool) -> Outcome:
        """Close the file, with what the ranks have to report."""
        from mpi_rollout.storage import Ending

        self.progress.close()
        ranks, tally = self.losses.reports(), self.collector.tally
        exchange = self.driver.lanes[0].exchange
        ending = Ending(now(), tally.env_steps, self.seconds, ranks, self.limit, complete)
        file = self.writer.finish(ending)
        self._say_warnings()
        return Outcome(
            file=file,
            num_ranks=len(ranks),
            num_envs=self.config.num_envs,
            num_steps=self.collector.num_steps,
            env_steps=tally.env_steps,
            seconds=self.seconds,
            phases=self.phases,
            ranks=[{key: value for key, value in rank.items() if key != "fault"} for rank in ranks],
            step_s=tally.step_s.tolist(),
            in_lockstep=self.config.mode == "sync" and self.config.num_groups == 1,
            slowest_s=tally.slowest_s,
            mean_s=tally.mean_s,
            num_waits=self.writer.num_waits,
            limit=self.limit,
            restarts=dict(sorted(self.restarts.items())),
            num_steps_before=0 if self.past is None else self.past.num_steps,
            catch_up_s=self._catch_up_s,
            complete=complete,
            wrong_values=self.writer.values.found if self.config.trajectories else [],
            mpi_library=world.library_name(),
            order_bytes=exchange.order_nbytes,
            slot_bytes=exchange.layout.nbytes,
            lost=self.losses.all,
            slept=self.driver.exchanges.way == "sleep",
        )

    @staticmethod
    def _print(text: str) -> None:
        say(f"{text}\n", STDOUT)

    def _end_badly(self, error: RolloutError) -> int:
        """Keep what is whole, say what happened, return the exit code."""
        self.progress.close()
        if isinstance(error, RankError | PolicyError):
            say(error.stack)
        kept = ""
        if self.writer is not None and not isinstance(error, StorageError):
            try:
                kept = self._keep()
            except RolloutError as second:
                error.args = (*error.args, "; then ", *second.args)
                error.exit_code = second.exit_code
        message = error.shown(flag)
        say(f"mpi_rollout: {message}{kept}\n")
        if not isinstance(error, UsageError):  # Else another run writes there, and the status is its own.
            state = "interrupted" if isinstance(error, Interrupted) else "failed"
            self._tell_status(state, error.exit_code, message)
        if self.config.json:
            self._print(json.dumps({"error": message + kept, "exit_code": error.exit_code}))
        return error.exit_code

    def _tell_status(self, state: str, code: int, message: str) -> None:
        config, out, part = self.config, self.config.out, self.config.out + ".part"
        if state != "complete" and self.status.is_first and not os.path.exists(part) and not is_batch_job():
            self.status.remove()  # A first start that came to nothing leaves nothing.
            return
        is_resumable = os.path.exists(part) and config.vectorization_mode == "sync" and config.trajectories
        self.status.tell(
            state, exit_code=code, message=message, num_steps=self._num_safe, resumable=is_resumable,
            file=out if state == "complete" else part if os.path.exists(part) else None,
        )  # fmt: skip

    def _keep(self) -> str:
        """Commit all steps that are whole; without any, leave nothing behind but what there was."""
        num_steps = self.collector.num_steps if self.collector else 0
        if num_steps == 0 and self.past is not None:
            return f"; the {steps_before(self._num_safe)} in {self.writer.part}"
        if num_steps == 0 or not self.config.trajectories:
            self.writer.discard()
            return ""
        self.collector.hand_over()
        outcome = self._finish(complete=False)
        return f"; the {steps_before(num_steps)} in {outcome.file}"


def steps_before(num_steps: int) -> str:
    return f"{counted(num_steps, 'step')} before {'is' if num_steps == 1 else 'are'}"


def now() -> str:
    """The time, as ISO 8601 in UTC with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
