"""A run of this program, turn by turn: with collector and random policy, and with or without a file.

Each turn is a run of its own: its reset is the run's first.  With a file, which is dropped, its window ends when all of
its steps are committed.  The random policy draws while the clock runs, as it does in a run; what it draws is the same
as for all other systems.
"""

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from mpi_rollout.bench.compare.forms import run_options
from mpi_rollout.bench.compare.turns import SEED, WARM_UP_SHARE, Turn
from mpi_rollout.bench.plan import Options
from mpi_rollout.collect.acting import TRIAL_S
from mpi_rollout.collect.blocks import Discard, Sink
from mpi_rollout.collect.collector import Collector, CollectorOptions
from mpi_rollout.collect.fragments import prepare_lengths
from mpi_rollout.collect.root import NUM_BLOCKS, UNREAD_ROWS
from mpi_rollout.config import AUTO, RolloutConfig
from mpi_rollout.core.layout import Block
from mpi_rollout.core.partition import Division
from mpi_rollout.core.spaces import describe
from mpi_rollout.envs.env_maker import maker_of
from mpi_rollout.exchange.world import ROOT
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.ranks.driver import Driver
from mpi_rollout.ranks.set_up import EnvFacts, Plan, assemble, make_rank_envs, unwatched_by_gc
from mpi_rollout.ranks.worker import Worker

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

NUM_STEPS = 10**9  # More than any turn takes.
TRIALS = 1.2  # So that the first turn is longer than what a run takes to decide who draws.
CHUNK_SHARE = 0.1  # Of the window: what is stepped between two looks at the clock.


class Run:
    """The root of a job that takes turns of a run.

    Parameters
    ----------
    config
        Of the runs; their file is `config.out`, if they have one.
    """

    def __init__(self, config: RolloutConfig, worker: Worker, facts: EnvFacts, num_ranks: int):
        self._config, self._facts, self._num_ranks = config, facts, num_ranks
        self._driver = Driver(worker.exchanges, worker, "check")
        self._inference = config.inference
        self._lengths = prepare_lengths(config, self._driver)
        num_rows = max(self._lengths.most, UNREAD_ROWS)
        if config.trajectories:
            from mpi_rollout.storage import schema, writer  # h5py is for the root alone.

            nbytes = Block.row_nbytes(facts.observation_space, facts.action_space, config.num_envs)
            num_rows = schema.rows_per_block(nbytes, config.num_steps)
            described = {"observation": describe(facts.observation_space), "action": describe(facts.action_space)}
            self._attributes = {"config": config.to_json(), "spaces": json.dumps(described)}
            self._open_writer = writer.open_writer
        self._blocks = [self._driver.block(num_rows) for _ in range(NUM_BLOCKS)]

    def take_turn(self, window_s: float) -> Turn:
        """Run for `window_s` seconds, and commit all of it if there is a file."""
        if not self._config.trajectories:
            return self._turn(window_s, self._collector(Discard(self._blocks)), lambda: None)
        Path(self._config.out + ".part").unlink(missing_ok=True)  # Of a turn that was ended.
        writer = self._open_writer(self._config, self._attributes, self._blocks, self._num_ranks)
        collector = self._collector(writer)

        def commit() -> None:
            collector.hand_over()
            writer.drain()

        turn = self._turn(window_s, collector, commit)
        writer.discard()
        writer.release()
        return turn

    def _collector(self, sink: Sink) -> Collector:
        policy = RandomPolicy(self._facts.action_space, self._config.num_envs, SEED)
        options = CollectorOptions(
            NUM_BLOCKS,
            reset_seed=SEED if self._facts.is_native else None,
            lengths=self._lengths,
            inference=self._inference,
        )
        return Collector(self._driver, policy, sink, options)

    def _turn(self, window_s: float, collector: Collector, commit: Callable[[], None]) -> Turn:
        start = perf_counter()
        collector.start()
        reset_s = perf_counter() - start
        is_undecided = self._inference == AUTO  # Who draws is decided once: a turn is too short for it.
        step_s = self._warm_up(collector, max(WARM_UP_SHARE * window_s, TRIALS * TRIAL_S if is_undecided else 0.0))
        self._inference = collector.actor.inference
        chunk = max(1, int(CHUNK_SHARE * window_s / step_s))
        before, steps_before, start = collector.tally.env_steps, collector.num_steps, perf_counter()
        while perf_counter() - start < window_s or collector.tally.env_steps == before:
            collector.advance(chunk)
        commit()
        seconds = perf_counter() - start
        return Turn(reset_s, collector.tally.env_steps - before, seconds, collector.num_steps - steps_before)

    @staticmethod
    def _warm_up(collector: Collector, least_s: float) -> float:
        """Step for some time; return what a step takes."""
        num_steps, start = 1, perf_counter()
        while True:
            collector.advance(num_steps)
            elapsed = perf_counter() - start
            if elapsed >= least_s:
                return elapsed / collector.num_steps
            num_steps *= 2

    def close(self) -> None:
        """Let the other ranks out."""
        self._driver.stop(0)


def run_on_ranks(comm: "Intracomm", system: Options, num_envs: int, folder: Path, serve: Callable[[Run], None]) -> None:
    """Make a run's envs on all ranks, and call `serve` with the root's.

    **Collective.**

    Parameters
    ----------
    system
        Its `env`, `form` and `kind`; those of the kind "record" have a file in `folder`.
    """
    out, is_stored = str(folder / f"{comm.size}.h5"), system["kind"] == "record"
    config = RolloutConfig(
        num_envs=num_envs,
        num_steps=NUM_STEPS,
        seed=SEED,
        out=out,
        progress="none",
        trajectories=is_stored,
        **run_options(system["form"], system["env"]),
    )
    division = Division(num_envs, comm.size)
    plan = Plan(maker_of(config), division, config.seed, is_random=True, is_read=is_stored)
    worker, facts = assemble(comm, make_rank_envs(plan, comm.rank))
    with unwatched_by_gc():
        if comm.rank == ROOT:
            run = Run(config, worker, facts, comm.size)
            serve(run)
            run.close()
        else:
            worker.serve()
        worker.exchanges.free()
