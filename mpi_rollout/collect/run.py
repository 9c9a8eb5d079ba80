"""One run on all ranks: make the envs, agree, then serve or drive."""

import gc
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Timer
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from mpi_rollout.collect.services import services_of_run
from mpi_rollout.collect.team import RankTeam, find_team
from mpi_rollout.collect.trace import check_trace, tracing_clock
from mpi_rollout.config import RolloutConfig, versions
from mpi_rollout.core.layout import Contents
from mpi_rollout.core.partition import EnvRanks
from mpi_rollout.core.policy_kinds import FORMATS, MADE, kind_of_name
from mpi_rollout.core.seeding import seed_global_generators
from mpi_rollout.envs.env_maker import make_slice, maker_of
from mpi_rollout.envs.faults import OnFault, raised_at
from mpi_rollout.errors import EnvError, RolloutError, SignalInterrupt, StorageError, UsageError
from mpi_rollout.exchange import job_end, world
from mpi_rollout.exchange.surviving import check_ulfm, is_ulfm_on
from mpi_rollout.policies.model import PolicySource, make_model
from mpi_rollout.policies.sources import find_source, load_model
from mpi_rollout.process import hash_seed
from mpi_rollout.process.console import name_of_stop, share_line
from mpi_rollout.process.interrupts import STOP_SIGNALS, HeardTwice
from mpi_rollout.process.launcher import be_last, guard, release
from mpi_rollout.process.terminal import find_terminal
from mpi_rollout.ranks import agreement
from mpi_rollout.ranks.agreement import as_refusals
from mpi_rollout.ranks.job_ranks import JobRanks, join
from mpi_rollout.ranks.set_up import EnvFacts, Plan, RankEnvs, assemble, divided, make_rank_envs
from mpi_rollout.storage.status import tell_abort
from mpi_rollout.storage.values import check_storable
from mpi_rollout.text import counted

if TYPE_CHECKING:
    from mpi4py import MPI

    from mpi_rollout.collect.run_output import Claimed


def run(config: RolloutConfig) -> int:
    """Do the run that the configuration describes; return the exit code.

    **Collective.**  RolloutError on all ranks alike, if the run cannot start; later errors are told by the root and
    returned as codes.
    """
    if is_ulfm_on():  # The launcher then ends no job because of a rank, whatever --on-rank-loss says.
        guard()
        if world.claimed_size()[0] == 1:
            be_last()
    share_line(config.progress in ("auto", "bar") and find_terminal() is not None)
    try:
        return _run(config)
    finally:
        share_line(False)
        release()


def _run(config: RolloutConfig) -> int:
    comm = agreement.come_together(config.start_timeout_s)
    if comm.size == 1 and config.expect_ranks is None:
        world.say_of_unused("--expect-ranks 1")
    note = partial(tell_abort, config.path, world.rank_and_host(comm.rank))
    with job_end.noting_abort(note), job_end.all_or_none(comm):
        others_go_on = config.on_rank_loss == "shrink"
        with job_end.no_early_end(comm, others_go_on), HeardTwice(partial(job_end.interrupt, comm, is_hanging=True)):
            code, timer = _collect(config, comm, _hear_signals())
        for number in STOP_SIGNALS:  # Their handlers hold the envs.
            signal.signal(number, lambda *_: None)
        gc.collect()  # What is left of the envs goes now, as long as somebody can say whose `__del__` does not end.
        timer.cancel()
        if config.on_rank_loss == "shrink":
            release()
            job_end.leave(code, finalizes=False)
        if code == StorageError.exit_code:
            # HDF5 crashes in the interpreter's end if it could not write.  All ranks leave so: else MPICH's
            # launcher would kill those that take longer than the root, and tell that instead.
            job_end.leave(code)
        return code


def _collect(config: RolloutConfig, comm: "MPI.Intracomm", asked: list[int]) -> tuple[int, Timer]:
    """Do the run; return the exit code, and the timer that ends this process if its envs keep it from ending."""
    marks = {"the configuration": config.to_json(), "the versions": json.dumps(versions())}
    marks[hash_seed.VARIABLE] = hash_seed.in_use()
    ranks = join(config, comm, config.start_timeout_s, agreement.LIMIT, lambda: marks)
    if ranks.is_member:
        return _step_along(config, ranks)
    team = _find_team(config, ranks)
    (rank_envs, source, output), hosts = agreement.agree(
        comm,
        lambda: ranks.prepare(lambda: prepare(team, ranks)),
        lambda prepared: marks | prepared[0].fingerprint(),
        config.start_timeout_s,
        agreement.LIMIT,
    )
    world.take_names_off_shared_memory(comm)
    config = team.config
    parts = assemble(team.comm, rank_envs)
    clock = tracing_clock(config, parts) if config.trace else None
    worker = parts.worker(services_of_run(config, parts, comm.rank, clock), clock, aborts_if_unheard=True)
    if source is not None and output is not None:
        from mpi_rollout.collect.root import Root  # As h5py: a worker's imports are the job's start-up time.
        from mpi_rollout.collect.run_output import RunOutput

        run_output = RunOutput(team, output, parts.facts, ranks.hosts_of(hosts), source.sha256)
        root = Root(team, source, run_output, worker, parts.facts)
        worker.stop_on_signals(asked, root.on_stop)
        code = root.drive()
    else:
        worker.stop_on_signals(asked, lambda signal: None)
        code = worker.serve()
    worker.exchanges.free()
    team.free(ranks.comm)
    if ranks.group is not None and ranks.group.is_broken:  # The root has told why.
        job_end.abort(comm, code or EnvError.exit_code)
    return code, job_end.watch_end(comm, code).begin()


def _find_team(config: RolloutConfig, ranks: JobRanks) -> RankTeam:
    """Find the team of this rank; members of its group go on when that is done, or raise the same error."""
    try:
        team = find_team(config, ranks.comm)
    except RolloutError as error:
        ranks.let_go(error)
        raise
    ranks.let_go()
    return replace(team, numbers=ranks.first_ranks)


def _step_along(config: RolloutConfig, ranks: JobRanks) -> tuple[int, Timer]:
    """Make and step envs together with the first rank of this one's group; return what `_collect` returns."""
    assert ranks.group is not None, "a member is in a group"
    member = ranks.member(lambda: maker_of(config))
    member.note_signals()
    member.closing = ranks.closing
    seed_global_generators(config.seed, ranks.group.ranks[0], first_env=config.first_env)
    if (error := member.serve()) is not None:
        raise error
    agreement.agree(ranks.job, member.serve, lambda _: {}, config.start_timeout_s, agreement.LIMIT)
    world.take_names_off_shared_memory(ranks.job)
    code = member.serve()
    return code, job_end.watch_end(ranks.job, code).begin()


def _hear_signals() -> list[int]:
    """Let SIGINT and SIGTERM interrupt the making of envs, and SIGUSR1 wait for its end; return the signals that come.

    What an env does not let through stops the run before its first step.
    """
    asked: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        asked.append(number)
        raise SignalInterrupt(name_of_stop(number))

    handlers = {signal.SIGUSR1: lambda number, frame: asked.append(number), signal.SIGINT: interrupt}
    for number, handler in (handlers | {signal.SIGTERM: interrupt}).items():
        if signal.getsignal(number) != signal.SIG_IGN:  # A shell ignores them for a program in the background.
            signal.signal(number, handler)
    return asked


@contextmanager
def no_other_interrupt() -> Iterator[None]:
    """Make an EnvError of a KeyboardInterrupt that no signal raised: an env or a policy has failed."""
    try:
        yield
    except SignalInterrupt:
        raise
    except KeyboardInterrupt as error:
        raise EnvError(f"an env or policy raised KeyboardInterrupt while it was made{raised_at(error)}") from error


@no_other_interrupt()
def prepare(team: RankTeam, ranks: JobRanks) -> tuple[RankEnvs, PolicySource | None, "Claimed | None"]:
    """Check and make on this rank what can be made before the first message; policy and output on a team's root."""
    config, comm = team.config, ranks.job
    world.check_size(comm, config.expect_ranks)
    # Before any code of envs and policy, which may do it otherwise.
    seed_global_generators(config.seed, comm.rank, first_env=config.first_env)
    if config.on_rank_loss == "shrink":
        check_ulfm(comm)
    looks = looks_at_first(config) and config.first_env == team.whole.first_env  # Of all teams, one has env 0.
    plan = ranks.completed(replace(plan_of(config, team.comm.size), ranks=team.ranks, looks_at_first=looks))
    source = output = None
    if team.comm.rank == world.ROOT:
        import mpi_rollout.collect.root  # noqa: F401  # Here, where the others make envs: later they would wait for it.

        output = claimed(team)
        check_places(config)
        source = find_source(config.policy, config)
    rank_envs = make_rank_envs(plan, team.comm.rank)
    check_facts(config, rank_envs.facts)
    return rank_envs, source, output


def claimed(team: RankTeam) -> "Claimed":
    """Look what is where this team writes."""
    if not team.run:
        from mpi_rollout.storage.output import claim_output  # h5py is for the root alone.

        return claim_output(team.config)
    from mpi_rollout.storage.shard_set import ClaimedShards

    return ClaimedShards(team.whole, team.team, team.run)


def rehearse(config: RolloutConfig, num_ranks: int) -> str:
    """Refuse what a run on so many ranks would refuse, as far as one process can tell; return that it would run.

    It starts no MPI, makes one env, and writes nothing.  RolloutError as `run`.
    """
    from mpi_rollout.storage.output import check_output
    from mpi_rollout.storage.ownership import check_free_space

    with as_refusals():
        seed_global_generators(config.seed, world.ROOT, first_env=config.first_env)
        is_grouped = config.ranks_per_env > 1 and config.expect_ranks is not None
        groups = EnvRanks(("",) * num_ranks, config.ranks_per_env, config.root_envs) if is_grouped else None
        plan = plan_of(config, num_ranks if groups is None else len(groups.first_ranks))
        check_output(config)
        check_places(config)
        source = find_source(config.policy, config)
        envs = make_slice(plan.make, range(1), config.seed, on_fault=plan.on_fault)
        facts = EnvFacts.of(envs).portable()
        check_facts(config, facts)
        if plan.make_model is not None:
            plan.make_model()
        elif source.kind in FORMATS:
            load_model(source, facts.observation_space, facts.action_space)
        contents = Contents(facts.observation_space, facts.action_space)
        size = check_free_space(config, contents.row_nbytes(config.num_envs))
        envs.close()
    return (
        f"ready: {counted(config.num_envs, 'env')} on {counted(num_ranks, 'rank')}, --out {config.out}"
        + f"; {size}" * bool(size)
    )


def plan_of(config: RolloutConfig, num_ranks: int) -> Plan:
    """Return the plan that all ranks share; UsageError if envs are too few for the ranks, or nothing makes them."""
    division = divided(config, config.num_envs, num_ranks)
    return Plan(
        maker_of(config),
        division,
        config.seed,
        on_fault=OnFault.of(config),
        is_surviving=config.on_rank_loss == "shrink",
        wait=config.wait,
        is_random=config.is_random,
        has_policy=config.asks_on_ranks,
        make_model=partial(make_model, config.policy, config) if kind_of_name(config.policy) == MADE else None,
        keeps_extras=config.store_extras and config.trajectories,
        infos=config.store_infos or "none",
        keeps_infos=bool(config.store_infos),
        is_read=config.trajectories or not config.runs_ahead,
    )


def looks_at_first(config: RolloutConfig) -> bool:
    """Tell whether a run may reset and step its first env before it begins: no watchdog would end a call that hangs."""
    is_single = config.vectorization_mode == "sync" and config.ranks_per_env == 1
    return config.seed_check and config.trajectories and is_single and config.env_timeout_s is None


def check_facts(config: RolloutConfig, facts: EnvFacts | None) -> None:
    """Refuse envs that a run cannot step or store so; a rank without envs knows of none."""
    if facts is None:
        return
    if config.on_rank_loss == "shrink" and not facts.has_reset_rows:
        raise UsageError("--on-rank-loss shrink is for envs that begin the next episode in the step after an end")
    if config.trajectories:
        check_storable(facts.observation_space, facts.action_space)


def check_places(config: RolloutConfig) -> None:
    """Refuse what a run writes besides its output where it cannot be written."""
    if config.log_dir:
        from mpi_rollout.collect.scalars import check_log_dir  # For the root alone.

        check_log_dir(config.log_dir)
    if config.trace:
        check_trace(config, config.trace)
