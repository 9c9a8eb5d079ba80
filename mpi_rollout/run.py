"""One run on all ranks: make the envs, agree, then serve or drive."""

import json
import signal
from typing import Any

from mpi_rollout import mpi
from mpi_rollout.assembly import Part, Plan, assemble, check_batch_size, divide, make_part
from mpi_rollout.config import RolloutConfig, load_callable, versions
from mpi_rollout.envs import maker_of
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.errors import StorageError
from mpi_rollout.guard import guard, release
from mpi_rollout.limit import Limit
from mpi_rollout.policy import Policy
from mpi_rollout.root import Root
from mpi_rollout.shrink import check_ulfm, is_ulfm_on
from mpi_rollout.worker import unwatched_by_gc


def run(config: RolloutConfig) -> int:
    """Do the run that the configuration describes; return the exit code.  **Collective.**

    Raises
    ------
    RolloutError
        On all ranks alike, if the run cannot start; later errors are told by the root and returned as codes.
    """
    asked: list[int] = []  # From now on, SIGUSR1 ends a run in good order; unheard it would kill a rank.
    signal.signal(signal.SIGUSR1, lambda number, frame: asked.append(number))
    if is_ulfm_on():  # The launcher then ends no job because of a rank, whatever --ft says.
        guard()
    try:
        return _run(config, asked)
    finally:
        release()


def _run(config: RolloutConfig, asked: list[int]) -> int:
    comm = mpi.world()
    with mpi.all_or_none(comm):
        (part, policy, output), hosts = mpi.agree(
            comm, lambda: prepare(config, comm), lambda prepared: fingerprint(config, prepared[0])
        )
        mpi.take_names_off_shared_memory(comm)
        envs = part.plan.division.whole.envs_of(comm.rank)
        worker, facts = assemble(
            comm, part, lambda each: {"limit": Limit(config, each.control, envs, each.contents.action_space)}
        )
        with unwatched_by_gc():
            worker.stop_on_signals(asked)
            root = Root(config, policy, output, worker, facts, hosts) if comm.rank == mpi.ROOT else None
            code = worker.serve() if root is None else root.drive()
            worker.exchanges.free()
            if config.ft == "shrink":
                release()
                mpi.leave(code, finalizes=False)
            if code == StorageError.exit_code:
                # HDF5 crashes in the interpreter's end if it could not write.  All ranks leave so: else MPICH's
                # launcher would kill those that take longer than the root, and tell that instead.
                mpi.leave(code)
            return code


def prepare(config: RolloutConfig, comm: Any) -> tuple[Part, Policy | None, Any]:
    """Check and make on this rank all that can be before the first message of the run."""
    mpi.check_size(comm, config.expect_ranks)
    if config.ft == "shrink":
        check_ulfm(comm)
    division = divide(
        config.num_envs, comm.size, config.dedicated_root, config.num_groups, first_ready=config.mode == "async"
    )
    check_batch_size(division, config.batch_size, "--batch-size")
    plan = Plan(
        maker_of(config), division, config.seed, on_fault=on_fault_of(config), is_surviving=config.ft == "shrink",
        wait=config.wait,
    )  # fmt: skip
    policy = output = None
    if comm.rank == mpi.ROOT:
        from mpi_rollout.storage import open_output  # h5py is for the root alone.

        output = open_output(config)
        policy = None if config.policy == "random" else load_callable(config.policy, "--policy")
    return make_part(plan, comm.rank), policy, output


def on_fault_of(config: RolloutConfig) -> OnFault:
    """What a run does about envs that fail."""
    max_restarts = config.max_env_restarts if config.on_env_error == "restart" else 0
    return OnFault(max_restarts, config.check_finite, config.env_timeout)


def fingerprint(config: RolloutConfig, part: Part) -> dict[str, str]:
    """What must be the same on all ranks."""
    marks = {"the configuration": config.to_json(), "the versions": json.dumps(versions())}
    return marks | part.fingerprint()
