"""What each rank sets up: its envs, and when all ranks have agreed, its exchanges and its worker."""

import gc
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.layout import Contents
from mpi_rollout.core.partition import Division
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.core.spaces import Leaf, describe, describe_leaves
from mpi_rollout.envs.env_maker import EnvMaker, make_slice
from mpi_rollout.envs.faults import ABORT, OnFault
from mpi_rollout.envs.infos import OtherInfos, first_types
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.envs.native import NativeVectorEnv
from mpi_rollout.envs.repeating import GlobalGenerators, look_before_run
from mpi_rollout.envs.time_limits import innermost
from mpi_rollout.envs.wrapping import describe_spec
from mpi_rollout.errors import Option, SameEnvError, UsageError
from mpi_rollout.exchange import world
from mpi_rollout.exchange.exchange import Exchange
from mpi_rollout.exchange.exchanges import Exchanges
from mpi_rollout.exchange.infos import Infos, info_leaves, names_of
from mpi_rollout.exchange.waiting import way_to_wait
from mpi_rollout.options import SharedOptions
from mpi_rollout.policies.model import Model
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.process.clock import Clock, utc_now
from mpi_rollout.process.console import say
from mpi_rollout.process.host import check_num_envs
from mpi_rollout.process.notices import NOTICES
from mpi_rollout.ranks.native_slices import NativeSlice
from mpi_rollout.ranks.service import Service
from mpi_rollout.ranks.slices import LoopSlice, Slice
from mpi_rollout.ranks.worker import Worker
from mpi_rollout.text import words_of

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Plan:
    """What all ranks must mean alike before they exchange anything."""

    make: EnvMaker
    division: Division
    seed: int | None = None  # Of a run, whose episodes have seeds of their own; else the envs' generators have them.
    autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP
    infos: Infos = "none"
    on_fault: OnFault = ABORT
    is_surviving: bool = False  # Go on without ranks that are lost, see `surviving`.
    wait: str = "auto"  # As the option `wait`.
    is_random: bool = False  # The policy is: ranks can choose the actions, and follow the action masks of their envs.
    has_policy: bool = False  # Each rank has a policy that it asks for the actions of its own envs.
    make_model: Callable[[], Model] | None = None  # Makes that policy, if each rank can.
    keeps_extras: bool = False  # What this policy gives besides actions is sent to the root.
    is_read: bool = True  # The policy, a trainer or a file reads what the envs give.
    keeps_infos: bool = False  # A run stores the infos; "all" are those that are numbers in the first env's first ones.
    ranks: tuple[int, ...] = ()  # Their numbers in the job, if they are not all of its ranks.
    looks_at_first: bool = False  # See before the run whether its first env gives the same data from one seed.


@dataclass(frozen=True)
class EnvFacts:
    """What the envs are: spaces of a single env, and what other ranks and readers of files want to know."""

    observation_space: spaces.Space
    action_space: spaces.Space
    spec: EnvSpec | None
    metadata: dict[str, Any]
    render_mode: str | None
    is_native: bool  # They are natively vectorized.
    reproducibility: Reproducibility
    has_episode_seeds: bool  # Each episode has a seed of `core.seeding`, as in a loop.
    described_spec: str  # See `describe_spec`.
    infos: Infos = "none"  # Those that are stored.
    left_out: tuple[str, ...] = ()  # Infos that were seen before the run and are not stored.
    seed_check: str = ""  # What `repeating.look_before_run` has found.

    @classmethod
    def of(
        cls, envs: VectorEnv, infos: Infos = "none", left_out: Iterable[str] = (), seed_check: str = ""
    ) -> "EnvFacts":
        return cls(
            envs.single_observation_space,
            envs.single_action_space,
            envs.spec,
            dict(envs.metadata),
            envs.render_mode,
            is_native=not isinstance(envs, LoopVectorEnv),
            reproducibility=getattr(envs, "reproducibility", Reproducibility.SLICE),
            has_episode_seeds=bool(getattr(envs, "has_episode_seeds", False)),
            described_spec=describe_spec(envs.spec),
            infos=infos,
            left_out=tuple(left_out),
            seed_check=seed_check,
        )

    @property
    def has_reset_rows(self) -> bool:  # One that only resets follows the end of each episode.
        return bool(self.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP)

    def attributes(
        self, config: RolloutConfig, hosts: Sequence[str], extras: Sequence[Leaf], infos: Sequence[Leaf]
    ) -> dict[str, object]:
        """Return what the file of a run or a recording says of it as a whole."""
        described = {"observation": describe(self.observation_space), "action": describe(self.action_space)}
        described |= {name: describe_leaves(group) for name, group in (("extra", extras), ("info", infos)) if group}
        return {
            "config": config.to_json(),
            "env_spec": self.described_spec,
            "spaces": json.dumps(described),
            "seed": config.seed,
            "num_envs": config.num_envs,
            "autoreset_mode": self.metadata["autoreset_mode"].value,
            "reproducibility": self.reproducibility.value,
            "has_episode_seeds": self.has_episode_seeds,
            "seed_check": self.seed_check,
            "hosts": json.dumps([*hosts]),
            "policy_sha256": "",
            "mpi_library": world.library_name(),
            "num_ranks": len(hosts),
            "started": utc_now(),
        }

    def portable(self) -> "EnvFacts":
        """Return the facts without what cannot be pickled: spec and metadata can hold any callable.

        UsageError if a space cannot be pickled.
        """
        try:
            pickle.dumps((self.observation_space, self.action_space))
        except Exception as error:
            raise UsageError(
                f"spaces are sent to all ranks and must be picklable, got {self.observation_space} and "
                f"{self.action_space}: {words_of(error)}"
            ) from error
        metadata = {name: value for name, value in self.metadata.items() if can_be_pickled(value)}
        return replace(self, spec=self.spec if can_be_pickled(self.spec) else None, metadata=metadata)


def can_be_pickled(value: object) -> bool:
    """Tell whether a value can be sent to other ranks."""
    try:
        return bool(pickle.dumps(value))
    except Exception:
        return False


@dataclass(frozen=True)
class RankEnvs:
    """One rank's envs, for each exchange that it steps envs for."""

    plan: Plan
    envs: tuple[VectorEnv, ...]
    facts: EnvFacts | None  # None on a rank without envs.
    model: Model | None = None

    def fingerprint(self) -> dict[str, str]:
        """Return what must be equal on all ranks that have envs; of a policy, on all that have made it."""
        marks: dict[str, str] = {}
        if self.model is not None:
            marks["the extras of the policy"] = json.dumps(describe_leaves(self.model.extras))
            marks["num_uniforms of the policy"] = str(self.model.num_uniforms)
            marks["what act of the policy takes"] = ", ".join(sorted(self.model.takes))
        if self.facts is None:
            return marks
        return marks | {
            "the observation space": json.dumps(describe(self.facts.observation_space)),
            "the action space": json.dumps(describe(self.facts.action_space)),
        }


def divided(options: SharedOptions, num_envs: int, num_ranks: int) -> Division:
    """Divide envs among ranks, or groups of them; UsageError if there are too many, or `batch_size` is too large."""
    try:
        return _divided(options, num_envs, num_ranks)
    except UsageError as error:
        if options.ranks_per_env > 1:
            words = "; each of these ranks is a group with "
            error.args = (*error.args, words, Option("ranks_per_env", options.ranks_per_env))
        raise


def _divided(options: SharedOptions, num_envs: int, num_ranks: int) -> Division:
    check_num_envs(num_envs, num_ranks)
    batch_size = options.batch_size
    division = Division(num_envs, num_ranks, options.root_envs, options.num_groups, batch_size is not None)
    if batch_size is not None and batch_size > (most := len(division.partitions)):
        what = f"1 to {most}, the ranks that step envs" if most > 1 else "1 where one rank steps all envs"
        raise UsageError(Option("batch_size"), f" must be {what}, got {batch_size}")
    return division


def make_rank_envs(plan: Plan, rank: int) -> RankEnvs:
    """Make the envs of one rank."""
    NOTICES.hold()
    info_leaves(plan.infos)  # Wrong infos are refused before any env is made.
    options = plan.seed, plan.autoreset_mode, names_of(plan.infos), plan.on_fault
    slices, generators = plan.division.envs_of(rank), GlobalGenerators()
    envs = tuple(make_slice(plan.make, indices, *options) for indices in slices)
    check_instances(zip(slices, envs, strict=True))
    for slice_ in envs:
        if isinstance(slice_, NativeVectorEnv):
            slice_.compile_steps(plan.is_read)
    model = plan.make_model() if plan.make_model is not None else None
    if not envs:
        return RankEnvs(plan, envs, None, model)
    (infos, left_out), seed_check = _kept_infos(plan, rank, envs[0]), ""
    if plan.looks_at_first and rank == plan.division.stepping_ranks[0] and isinstance(envs[0], LoopVectorEnv):
        seed_check = look_before_run(envs[0], next(plan.make.seeds(plan.seed or 0, 0)) or 0, generators)
    facts = EnvFacts.of(envs[0], infos, left_out, seed_check)
    return RankEnvs(plan, envs, facts.portable() if plan.division.num_ranks > 1 else facts, model)


def check_instances(slices: Iterable[tuple[range, VectorEnv]]) -> None:
    """Raise SameEnvError if two envs of a rank are the same object: each would step the other."""
    owners: dict[int, int] = {}
    for indices, envs in slices:
        for index, env in zip(indices, getattr(envs, "envs", ()), strict=False):
            first = owners.setdefault(id(innermost(env)), index)
            if first != index:
                what = "are the same object; what makes envs must return a new one each time"
                raise SameEnvError(f"env {first} and env {index} {what}")


def _kept_infos(plan: Plan, rank: int, envs: VectorEnv) -> tuple[Infos, Iterable[str]]:
    """Return the infos that a run stores, and those left out; the first rank with envs may have to look at theirs."""
    if not plan.keeps_infos or plan.infos != "all":
        return plan.infos if plan.keeps_infos else "none", ()
    if rank != plan.division.stepping_ranks[0]:
        return "none", ()
    types, left_out = first_types(envs.envs[0] if isinstance(envs, LoopVectorEnv) else envs, plan.seed or 0, 0)
    if isinstance(envs, LoopVectorEnv) and not envs.has_episode_seeds:
        envs.replace(0)  # It may remember this episode, which nobody takes again.
    others = f"; not stored: {', '.join(f'{name} ({why})' for name, why in left_out.items())}" if left_out else ""
    say(f"mpi_rollout: --store-infos all stores {', '.join(types) or 'none'}{others}\n")
    return types or "none", left_out


@dataclass(frozen=True)
class RankParts:
    """What a rank's worker is made of, when the ranks have agreed."""

    plan: Plan
    facts: EnvFacts
    exchanges: Exchanges
    slices: list[Slice]
    model: Model | None
    rank: int  # Its number in the job.
    env_indices: range  # Of this rank, in all exchanges.
    others: OtherInfos | None  # Collects the infos that are not stored, where the user wants all of them.

    def worker(
        self, services: Iterable[Service] = (), clock: Clock | None = None, aborts_if_unheard: bool = False
    ) -> Worker:
        """Return the worker, with these services besides its own; see `Worker`."""
        worker = Worker(
            self.exchanges,
            self.slices,
            self.model,
            self.rank,
            services,
            clock=clock,
            env_group=self.plan.make.group,
            aborts_if_unheard=aborts_if_unheard,
        )
        worker.watch(self.plan.on_fault.timeout_s)
        return worker


def assemble(comm: "MPI.Intracomm", rank_envs: RankEnvs) -> RankParts:
    """Make the exchanges and this rank's slices, when the ranks have agreed.  **Collective**."""
    plan, facts = rank_envs.plan, _shared_facts(comm, rank_envs)
    wanted = facts.infos if plan.keeps_infos else plan.infos
    is_same_step = plan.autoreset_mode == AutoresetMode.SAME_STEP
    infos = info_leaves(wanted, is_same_step and not plan.keeps_infos)
    contents = Contents(
        facts.observation_space,
        facts.action_space,
        is_same_step,
        infos,
        has_actions=(plan.is_random or plan.has_policy) and plan.is_read,
        counts_only=not plan.is_read,
        extras=rank_envs.model.extras if rank_envs.model is not None and plan.keeps_extras else (),
        keeps_infos=plan.keeps_infos,
        pickles_infos=wanted == "all",
    )
    # Only MPI's own waits report ranks that are lost.
    way = "spin" if plan.is_surviving else way_to_wait(comm) if plan.wait == "auto" else plan.wait
    exchanges = Exchanges(comm, plan.division, contents, plan.is_surviving, way)

    others = _other_infos(facts) if plan.keeps_infos and plan.infos == "all" else None

    def slice_of(exchange: Exchange, envs: VectorEnv) -> Slice:
        by_env = exchange.envs, plan.seed or 0, plan.make.first_env
        random = RandomPolicy(facts.action_space, *by_env) if plan.is_random else None
        if isinstance(envs, LoopVectorEnv):
            if others is not None:
                envs.infos.others, envs.infos.names = others, envs.infos.names or ()
            return LoopSlice(exchange, envs, random, plan.make.first_env)
        return NativeSlice(exchange, envs, random, plan.make.first_env, plan.on_fault, others)

    own = (exchange for exchange in exchanges.all if exchange.envs)
    return RankParts(
        plan,
        facts,
        exchanges,
        slices=list(map(slice_of, own, rank_envs.envs)),
        model=rank_envs.model,
        rank=(plan.ranks or range(comm.size))[comm.rank],
        env_indices=plan.division.whole.envs_of(comm.rank),
        others=others,
    )


def _other_infos(facts: EnvFacts) -> OtherInfos:
    """Return what collects the infos that the user has not been told of."""
    stored = () if isinstance(facts.infos, str) else facts.infos
    return OtherInfos(name.split("/")[0] for name in (*stored, *facts.left_out))


def _shared_facts(comm: "MPI.Intracomm", rank_envs: RankEnvs) -> EnvFacts:
    """Return the facts of this rank's envs; a rank without envs gets those of the first rank that has some."""
    facts = rank_envs.facts
    if comm.size > 1:
        first = rank_envs.plan.division.stepping_ranks[0]
        facts = comm.bcast(facts if comm.rank == first else None, first)
    assert facts is not None, "some rank steps envs"
    if rank_envs.envs:  # They know what could not be sent.
        facts = EnvFacts.of(rank_envs.envs[0], facts.infos, facts.left_out, facts.seed_check)
    for envs in rank_envs.envs:
        if rank_envs.plan.keeps_infos and isinstance(envs, LoopVectorEnv):
            envs.infos.names = names_of(facts.infos)
    return facts


@contextmanager
def unwatched_by_gc() -> Iterator[None]:
    """Take all objects of now out of the garbage collector's sight: envs live as long as the run."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # Without this they are not freed at the end, and extension modules complain.
