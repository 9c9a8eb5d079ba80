"""A job of one rank in this process, without MPI: what the root does, and what every rank does."""

from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from envs import Counting

from mpi_rollout.collect.collector import Collector, CollectorOptions
from mpi_rollout.collect.root import Root
from mpi_rollout.collect.run import plan_of
from mpi_rollout.collect.run_output import RunOutput
from mpi_rollout.collect.services import services_of_run
from mpi_rollout.collect.team import RankTeam, find_team
from mpi_rollout.collect.trace import tracing_clock
from mpi_rollout.collect.watcher import Watchers
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.partition import Division
from mpi_rollout.drive.actions import RankActions
from mpi_rollout.drive.driver import Driver, Lane
from mpi_rollout.drive.fragments import FragmentLengths
from mpi_rollout.drive.lanes import indices_of, parts_of
from mpi_rollout.drive.sink import DiscardSink
from mpi_rollout.envs.env_maker import EnvMaker
from mpi_rollout.exchange import world
from mpi_rollout.exchange.single_rank import SingleRankComm
from mpi_rollout.policies.model import Policy, PolicySource
from mpi_rollout.process.interrupts import Interrupts
from mpi_rollout.ranks.service import Service
from mpi_rollout.ranks.set_up import Plan, assemble, make_rank_envs
from mpi_rollout.storage.output import claim_output
from mpi_rollout.train.ends import RootEnd
from mpi_rollout.train.vector_env import MPIVectorEnv


def driver_of(
    make: Callable[..., object] | str | EnvMaker = Counting, num_envs: int = 3, num_groups: int = 1,
    first_ready: bool = False, vectorization_mode: str = "sync", services: Sequence[Service] = (),
    is_wanted: Callable[[], bool] | None = None, **options: object,
) -> Driver:  # fmt: skip
    """The root of a job whose only rank steps all envs, with these more services; `options` are those of a `Plan`.

    `is_wanted` is what a `Driver` takes.
    """
    division = Division(num_envs, 1, num_groups=num_groups, first_ready=first_ready)
    maker = make if isinstance(make, EnvMaker) else EnvMaker(make, vectorization_mode=vectorization_mode)
    worker = assemble(SingleRankComm(), make_rank_envs(Plan(maker, division, **options), 0)).worker(services)
    return Driver(worker.exchanges, worker, "check", is_wanted=is_wanted)


def collector_of(driver: Driver, num_rows: int, length: int = 1) -> Collector:
    """What takes steps at random, in fragments of this length, into blocks of so many rows that nobody stores."""
    options = CollectorOptions(3, lengths=FragmentLengths(length, seconds=None), look_every_s=100.0)
    blocks = [driver.block(num_rows) for _ in range(3)]
    return Collector(driver, RankActions(), DiscardSink(blocks), options, Watchers([]))


def send(driver: Driver, lanes: list[Lane], actions: np.ndarray) -> None:
    """Have some lanes take a step with these actions of all their envs."""
    arrays = driver.read(actions, indices_of(lanes))
    for lane, part in parts_of(lanes):
        driver.send(lane, [array[part] for array in arrays])


def vector_env_of(make: Callable[..., object] | str, num_envs: int, **options: object) -> MPIVectorEnv:
    """What `connect` gives a trainer of one process; `options` are those of a `Plan`."""
    plan = Plan(EnvMaker(make), Division(num_envs, 1), **options)
    parts = assemble(SingleRankComm(), make_rank_envs(plan, 0))
    worker = parts.worker()
    interrupts = Interrupts(worker.is_in_envs)
    driver = Driver(parts.exchanges, worker, "pass", on_cut=interrupts.note_cut)
    end = RootEnd(driver, parts.facts, plan.autoreset_mode, interrupts)
    return MPIVectorEnv(driver, parts.facts, plan.autoreset_mode, end, batch_size=1, copy=True)


def root_of(out: Path, policy: Policy | None = None, **options: object) -> Root:
    """The root of a run that writes `out`; `options` are those of the configuration."""
    sizes = {"env_factory": "envs:Counting", "num_envs": 3, "num_steps": 20, "progress": "none"}
    source = PolicySource("random", "random")
    if policy is not None:
        sizes["policy"] = "policies:given"  # Nobody loads it.
        source = PolicySource("called", "policies:given", call=policy)
    config = RolloutConfig(out=str(out), **sizes | options)
    output = claim_output(config)
    parts = assemble(SingleRankComm(), make_rank_envs(plan_of(config, 1), 0))
    clock = tracing_clock(config, parts) if config.trace else None
    worker = parts.worker(services_of_run(config, parts, 0, clock), clock)
    team = single_team(config)
    run_output = RunOutput(team, output, parts.facts, ["here"], source.sha256)
    return Root(team, source, run_output, worker, parts.facts)


def single_team(config: RolloutConfig) -> RankTeam:
    """The team of a run on this process."""
    return find_team(config, SingleRankComm())


def drive(root: Root) -> int:
    """Do a run to its end; return the exit code.  No MPI is loaded to tell its name."""
    with patch.object(world, "library_name", lambda: "no MPI library"):
        return root.drive()
