"""One run on all ranks: make the envs, agree, then serve or drive."""

import gc
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces
from gymnasium.vector import VectorEnv

from mpi_rollout import mpi
from mpi_rollout.config import RolloutConfig, load_callable, versions
from mpi_rollout.envs import make_slice, reset_seed
from mpi_rollout.errors import StorageError, UsageError
from mpi_rollout.exchange import Exchange
from mpi_rollout.layout import describe
from mpi_rollout.limit import Limit
from mpi_rollout.partition import Partition
from mpi_rollout.policy import Policy
from mpi_rollout.root import Root
from mpi_rollout.worker import Worker


@dataclass
class Part:
    """What one rank has made before the ranks agreed to start; spaces are None where it has no envs."""

    partition: Partition
    envs: VectorEnv | None
    policy: Policy | None

    @property
    def spaces(self) -> tuple[spaces.Space, spaces.Space] | None:
        """Of a single env: observations, actions."""
        return None if self.envs is None else (self.envs.single_observation_space, self.envs.single_action_space)


def run(config: RolloutConfig) -> int:
    """Do the run that the configuration describes; return the exit code.  **Collective.**

    Raises
    ------
    RolloutError
        On all ranks alike, if the run cannot start; later errors are told by the root and returned as codes.
    """
    comm = mpi.world()
    with mpi.all_or_none(comm):
        part, hosts = mpi.agree(comm, lambda: prepare(config, comm), lambda part: fingerprint(config, part))
        first_worker = part.partition.runs[0].first_rank
        both = comm.bcast(part.spaces, first_worker) if part.partition.num_ranks > 1 else part.spaces
        exchange = Exchange(comm, part.partition, *both)
        limit = Limit(config, exchange, both[1])
        worker = Worker(exchange, part.envs, reset_seed(config, exchange.envs), {"limit": limit})
        with unwatched_by_gc():
            worker.stop_on_signals()
            root = Root(config, part.policy, worker, both, hosts) if comm.rank == mpi.ROOT else None
            code = worker.serve() if root is None else root.drive()
            exchange.free()
            if code == StorageError.exit_code:
                # HDF5 crashes in the interpreter's end if it could not write.  All ranks leave so: else MPICH's
                # launcher would kill those that take longer than the root, and tell that instead.
                mpi.leave(code)
            return code


@contextmanager
def unwatched_by_gc() -> Iterator[None]:
    """Have the garbage collector look no more at what there is: envs live as long as the run."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()  # Else they would not be freed at the end, which extension modules complain of.


def prepare(config: RolloutConfig, comm: Any) -> Part:
    """Check and make on this rank all that can be before the first message of the run."""
    mpi.check_size(comm, config.expect_ranks)
    try:
        partition = Partition(config.num_envs, comm.size, config.dedicated_root)
    except ValueError as error:
        raise UsageError(str(error)) from error
    policy = None
    if comm.rank == mpi.ROOT:
        check_output(config.out)
        policy = None if config.policy == "random" else load_callable(config.policy, "--policy")
    indices = partition.envs_of(comm.rank)
    envs = make_slice(config, indices) if indices else None
    return Part(partition, envs, policy)


def check_output(path: str) -> None:
    """Refuse an output that could not be written in the end, before anything is made.

    Raises
    ------
    UsageError
        It exists, or its unfinished form does.
    StorageError
        Its folder is missing or cannot be written to.
    """
    if not os.path.basename(path):
        raise UsageError(f"--out must name a file, got {path!r}")
    folder = os.path.dirname(os.path.abspath(path))
    for name in (path, path + ".part"):
        if os.path.lexists(name):
            raise UsageError(f"--out {path}: {name} exists; move it away or use another --out")
    if not os.path.isdir(folder):
        raise StorageError(f"--out {path}: there is no folder {folder}; mkdir -p {os.path.dirname(path)}")
    probe = f"{path}.probe-{os.getpid()}"  # Access rights do not tell: a file system can be read-only.
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(probe)
    except OSError as error:
        raise StorageError(f"--out {path}: cannot write to {folder}: {error.strerror}") from error


def fingerprint(config: RolloutConfig, part: Part) -> dict[str, str]:
    """What must be the same on all ranks."""
    marks = {"the configuration": config.to_json(), "the versions": json.dumps(versions())}
    if part.spaces is not None:
        observation_space, action_space = part.spaces
        marks["the observation space"] = json.dumps(describe(observation_space))
        marks["the action space"] = json.dumps(describe(action_space))
    return marks
