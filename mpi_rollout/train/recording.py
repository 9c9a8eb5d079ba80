"""`connect(..., record="run.h5")`: the file of what a trainer does, from the look at its place to its name.

It is written as that of a run is: `run.h5.part` while the trainer goes on, `run.h5` when the envs are closed.  What a
run can promise of its file and a recording cannot, is in `LIMITS`.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import fields, replace
from shlex import quote
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.envs.registration import EnvSpec

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.column_types import Types, checked_types
from mpi_rollout.core.columns import with_masks
from mpi_rollout.core.layout import Block
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.core.spaces import Leaf
from mpi_rollout.drive.driver import Driver
from mpi_rollout.envs.wrapping import name_of
from mpi_rollout.errors import UsageError
from mpi_rollout.exchange.infos import Infos, info_leaves
from mpi_rollout.options import SharedOptions
from mpi_rollout.process.host import check_blocks
from mpi_rollout.ranks.set_up import EnvFacts
from mpi_rollout.train.request import Request

if TYPE_CHECKING:
    from mpi_rollout.train.recorder import Recorder  # Imports h5py: a worker's imports are the job's start-up time.

LIMITS = (
    "a trainer took these steps: its policy is not known; an episode can be replayed only if reset(seed=...) began it, "
    "without options; the file cannot be continued; seconds include the trainer's own work"
)
MANY_STEPS = 2**20  # Nobody knows how many there will be.


def check_record(path: str, compression: str) -> None:
    """Refuse a place where no file can be made, or where one is; on the root, before envs are made.

    UsageError or StorageError also for what a killed trainer has left, and for a compression that needs a package.
    """
    from mpi_rollout.storage.filters import check_available
    from mpi_rollout.storage.output import check_folder, remove_unfinished

    check_available(compression)
    check_folder(path)
    if not os.path.lexists(path) and not os.path.lexists(path + ".part"):
        remove_unfinished(path + ".part.new")
    if os.path.lexists(path):
        raise UsageError(f"record={path}: there is such a file; move it away or give another name")
    if os.path.lexists(part := path + ".part"):
        raise UsageError(
            f"record={path}: {part} is what a trainer or run has not completed, or still writes; keep what there is "
            f"with `python -m mpi_rollout recover {quote(part)}`, or move it away, or give another name"
        )


def types_of(infos: Infos) -> Types:
    """Return the types of the infos that the trainer names, which are stored; UsageError if no file can hold them."""
    types = {leaf.path: [leaf.dtype.name, *leaf.shape] for leaf in info_leaves(infos)}
    checked = checked_types(types)
    assert isinstance(checked, dict)
    return checked


def start_recording(
    path: str, request: Request, driver: Driver, facts: EnvFacts, hosts: Mapping[int, str]
) -> "Recorder":
    """Make the file, and what fills it; UsageError if another process makes it, StorageError if it cannot be made."""
    from mpi_rollout.storage import schema
    from mpi_rollout.storage.run_file import RunFile
    from mpi_rollout.storage.writer import Writer
    from mpi_rollout.train.recorded_rows import NUM_BLOCKS
    from mpi_rollout.train.recorder import Recorder

    extras, infos = _recorded_extras(request, driver), info_leaves(request.infos)
    contents = replace(driver.exchanges.contents, extras=extras, infos=infos, keeps_infos=True)
    nbytes = contents.row_nbytes(driver.num_envs) + replace(contents, extras=()).row_nbytes(driver.num_envs)
    num_rows = schema.rows_per_block(nbytes, MANY_STEPS)

    def make_block() -> Block:
        check_blocks(num_rows * nbytes)
        return Block(contents, driver.num_envs, driver.exchanges.num_slots, num_rows, is_recording=True)

    config = config_of(request, path, driver.num_envs)
    # A generator goes on from one episode to the next, in a loop that of each env.
    promised = Reproducibility.SLICE if facts.is_native else Reproducibility.ENV
    attributes = facts.attributes(config, [*hosts.values()], extras, infos) | {
        "reproducibility": promised.value,
        "has_episode_seeds": False,
        "has_final_observations": True,
        "recorded_by": "trainer",
        "limits": LIMITS,
    }
    blocks = [make_block() for _ in range(NUM_BLOCKS)]
    file = Writer(RunFile(config, attributes, num_rows), blocks)
    columns, notes_restarts = with_masks(infos), request.max_env_restarts > 0
    return Recorder(file, make_block, driver, facts, request.mode, hosts, columns, notes_restarts)


def _recorded_extras(request: Request, driver: Driver) -> tuple[Leaf, ...]:
    """Return the extras of the policy, and the version of its parameters; UsageError if one has the name of that."""
    from mpi_rollout.train.recorder import VERSION

    extras = driver.exchanges.contents.extras
    if request.policy is None:
        return extras
    if any(leaf.path == VERSION for leaf in extras):
        raise UsageError(f"with record, extras of a policy must not be called {VERSION}; rename it")
    return (*extras, Leaf((VERSION,), np.dtype(np.int64), ()))


def config_of(request: Request, path: str, num_envs: int) -> RolloutConfig:
    """Return the arguments of `connect` as the options of a run.

    `num_steps` and `seed` mean nothing here: the file's other attributes and /resets have them.
    """
    make, is_made = request.make, callable(request.policy)
    has_id, of_spec = isinstance(make.env, str | EnvSpec), make.env.kwargs if isinstance(make.env, EnvSpec) else {}
    given = make.kwargs
    kwargs: Any = [of_spec | dict(own) for own in given] if isinstance(given, tuple) else of_spec | dict(given)
    policy = name_of(request.policy) if is_made and request.policy is not None else request.policy
    return RolloutConfig(
        env=make.name if has_id else None,
        env_factory=None if has_id else make.name,
        env_kwargs=_as_json(kwargs),
        wrappers=",".join(name for name, _ in make.wrappers),
        num_envs=num_envs,
        num_steps=1,
        policy=str(policy) if policy is not None else "trainer",
        store_extras=request.policy is not None,
        store_infos=types_of(request.infos),
        actions=request.actions,
        out=path,
        **{own.name: getattr(request, own.name) for own in fields(SharedOptions)}
        | {"vectorization_mode": make.vectorization_mode, "policy_kwargs": _as_json(request.policy_kwargs)},
    )


def _as_json(kwargs: Any) -> Any:
    """Return arguments as JSON has them; objects are named, and cannot be read again."""
    try:
        return json.loads(json.dumps(kwargs))
    except (TypeError, ValueError):
        return json.loads(json.dumps(kwargs, default=repr, skipkeys=True))
