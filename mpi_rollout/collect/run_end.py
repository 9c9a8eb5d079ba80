"""How a run ends: what is whole is kept, and the user, the status file and the exit code are told the same."""

import json
import os
import time
from dataclasses import dataclass, replace

from mpi_rollout.collect.collector import Collector
from mpi_rollout.collect.monitor import LostRanks, Monitor, RankReport, RunState
from mpi_rollout.collect.report import RunFigures
from mpi_rollout.collect.trace import Trace
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.policy_kinds import kind_of_name
from mpi_rollout.drive.driver import Driver
from mpi_rollout.errors import (
    Interrupted,
    NotContinuedError,
    PolicyError,
    RankError,
    RolloutError,
    StorageError,
    UsageError,
    as_flag,
)
from mpi_rollout.exchange import world
from mpi_rollout.process.clock import utc_now
from mpi_rollout.process.console import STDOUT, fitted, say
from mpi_rollout.storage.status import Status, is_batch_job
from mpi_rollout.text import counted

LOOK_EVERY_S = 0.1


@dataclass
class RunEnd:
    """Ends a run, of which `state` says how far it came."""

    config: RolloutConfig
    driver: Driver
    state: RunState
    status: Status
    monitor: Monitor
    lost_ranks: LostRanks
    trace: Trace

    def complete(self, collector: Collector) -> int:
        """Close the file of a run that has taken all of its steps; print its summary; return the exit code."""
        figures = self._close(collector, complete=True)
        self._tell_status("complete", 0, figures.file, self.state.num_safe)
        self._print_summary(figures)
        return 0

    def _await_check(self) -> None:
        """Let the check of what earlier starts wrote come to its end: a file that gets its name is whole."""
        is_said = self.state.rank != world.ROOT
        while any(check.poll() for check in self.state.past_checks):
            self.monitor.check_stop()
            if not is_said:
                say("mpi_rollout: all steps are taken; compares what earlier starts wrote with its checksums\n")
                is_said = True
            time.sleep(LOOK_EVERY_S)

    def fail(self, error: RolloutError) -> int:
        """Keep what is whole, say what happened, return the exit code."""
        kept = self._kept(error)
        if isinstance(error, RankError | PolicyError):
            say(error.stack)
        message = error.shown(as_flag)
        say(f"mpi_rollout: {message}{kept}\n")
        if not isinstance(error, UsageError):  # After that the status may be another run's.
            self.tell_failed(error, error.exit_code, message)
        if self.config.json:
            self._print(json.dumps({"error": message + kept, "exit_code": error.exit_code}))
        return error.exit_code

    def _kept(self, error: RolloutError) -> str:
        """Keep what is whole after an error; return what is said of that.  The error has what failed then, too."""
        self.monitor.progress.close()
        self.state.is_continuable &= not isinstance(error, NotContinuedError)
        kept = ""
        try:
            if self.state.writer is not None and not isinstance(error, StorageError):
                kept = self._keep()
                if kept and isinstance(error, Interrupted) and self._is_resumable:
                    kept += "; the same command continues"
        except RolloutError as second:
            error.args = (*error.args, "; then ", *second.args)
            error.exit_code = second.exit_code
        return kept

    def tell_failed(self, error: BaseException, code: int, message: str) -> None:
        """Write into the status that the run did not come to its end."""
        state = "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"
        self._tell_status(state, code, message, self.state.num_safe, self._is_resumable)

    def _tell_status(self, state: str, code: int, message: str, num_steps: int, is_resumable: bool = False) -> None:
        out, part = self.config.path, self.config.path + ".part"
        has_part = os.path.exists(part)
        if state != "complete" and self.status.is_first and not has_part and not is_batch_job():
            self.status.remove()  # A first start that came to nothing leaves nothing.
            return
        file = out if state == "complete" else part if has_part else None
        facts = {"exit_code": code, "message": message, "num_steps": num_steps}
        self.status.tell(state, **facts, resumable=has_part and is_resumable, file=file)

    @property
    def _is_resumable(self) -> bool:
        return self.state.is_continuable and self.config.trajectories

    def _keep(self) -> str:
        """Commit all steps that are whole; without any, leave nothing behind but what there was."""
        state, collector = self.state, self.state.collector
        num_steps = 0 if collector is None else collector.num_steps
        if num_steps == 0 and state.past is not None:
            return f"; the {steps_before(state.num_safe)} in {state.file.part}"
        if collector is None or num_steps == 0 or not self.config.trajectories:
            state.file.discard()
            return ""
        collector.hand_over()
        figures = self._close(collector, complete=False)
        return f"; the {steps_before(num_steps)} in {figures.file}"

    def _close(self, collector: Collector, complete: bool) -> RunFigures:
        """Close the file, with what the ranks have to report."""
        from mpi_rollout.storage.schema import Ending

        self.monitor.progress.close()
        if complete:
            self._await_check()
        state, tally, ranks = self.state, collector.tally, self.lost_ranks.reports()
        figures = self._figures(collector, ranks, complete)
        totals = tally.env_steps, state.seconds, ranks, state.limit
        file = state.file.finish(Ending(utc_now(), *totals, complete, figures.advice))
        state.file.values.say_warnings(as_flag)
        self.monitor.end_scalars(collector)
        self.trace.write(self.driver)
        return replace(figures, file=file, wrong_values=state.file.values.wrong)

    def _figures(self, collector: Collector, ranks: list[RankReport], complete: bool) -> RunFigures:
        config, state, tally, exchange = self.config, self.state, collector.tally, self.driver.lanes[0].exchange
        length = collector.lengths.longest
        return RunFigures(
            file=state.file.part,
            num_envs=config.num_envs,
            num_steps=collector.num_steps,
            env_steps=tally.env_steps,
            seconds=state.seconds,
            phases=state.phases,
            ranks=[{key: value for key, value in rank.items() if key != "fault"} for rank in ranks],
            step_s=tally.step_s.tolist(),
            in_lockstep=config.in_lockstep,
            first_ready=config.batch_size is not None,
            slowest_s=tally.slowest_s,
            mean_s=tally.mean_s,
            num_waits=state.file.num_waits,
            limit=state.limit,
            restarts=dict(sorted(state.restarts.items())),
            num_steps_before=state.num_past,
            catch_up_s=state.catch_up_s,
            complete=complete,
            mpi_library=world.library_name(),
            order_bytes=exchange.order.nbytes_of(1 if config.acts_on_ranks else length),
            slot_bytes=length * exchange.layout.nbytes,
            lost=self.lost_ranks.all,
            slept=self.driver.exchanges.way == "sleep",
            fragment_length=length,
            inference="workers" if config.acts_on_ranks else "root",
            num_episodes=None if collector.goal is None else collector.goal.num_ended,
            of_num_episodes=config.num_episodes,
            policy_kind=kind_of_name(config.policy),
            compression=config.compression,
        )

    def _print_summary(self, figures: RunFigures) -> None:
        self._print(json.dumps(figures.as_dict()) if self.config.json else "\n".join(fitted(figures.lines(), 4)))

    @staticmethod
    def _print(text: str) -> None:
        say(f"{text}\n", STDOUT)


def steps_before(num_steps: int) -> str:
    """Say how many steps were taken before."""
    return f"{counted(num_steps, 'step')} before {'is' if num_steps == 1 else 'are'}"
