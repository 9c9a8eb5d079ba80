"""`connect`: the envs of all ranks for a trainer on the root.

All ranks run the trainer's script.  In `with connect(...) as envs` the root gets a vector env; every other rank
serves it inside, comes out when the root leaves, and gets None.  A second connection that the root opens meanwhile is
served by the same ranks.  In one process `envs = connect(...)` is enough.
"""

import os
from dataclasses import fields
from inspect import cleandoc
from textwrap import wrap
from typing import TYPE_CHECKING, TypedDict, Unpack

from gymnasium.vector import AutoresetMode

from mpi_rollout.envs.env_maker import Env, EnvFunction, Kwargs, Wrappers
from mpi_rollout.errors import RolloutError
from mpi_rollout.exchange import world
from mpi_rollout.exchange.infos import Infos
from mpi_rollout.process.launcher import end_with_launcher
from mpi_rollout.shared_options import SharedOptions
from mpi_rollout.train.connection import Connection
from mpi_rollout.train.request import PolicyArgument, Request
from mpi_rollout.train.vector_env import MPIVectorEnv

if TYPE_CHECKING:
    from mpi4py import MPI


class Options(TypedDict, total=False):
    """The types of `SharedOptions`, for programs that check types."""

    vectorization_mode: str
    num_groups: int
    batch_size: int | None
    root_envs: int | None
    policy_mode: str
    policy_kwargs: dict[str, object]
    policy_device: str
    policy_block: int | None
    trust_policy: bool
    wait: str
    compression: str
    max_env_restarts: int
    env_timeout_s: float | None
    env_checks: str


def connect(
    env: Env | list[EnvFunction] | tuple[EnvFunction, ...] | None = None,
    num_envs: int | None = None,
    *,
    env_kwargs: Kwargs | list[Kwargs] | tuple[Kwargs, ...] | None = None,
    wrappers: Wrappers = "",
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    infos: Infos = "all",
    actions: str = "pass",
    copy: bool = True,
    policy: PolicyArgument = None,
    record: str | os.PathLike[str] | None = None,
    comm: "MPI.Intracomm | None" = None,
    timeout_s: float = 300.0,
    **options: Unpack[Options],
) -> Connection | MPIVectorEnv:
    """Connect all ranks' envs to a trainer.  **Collective**: all ranks call it, with the same arguments.

    Parameters
    ----------
    env, num_envs
        An env id or its spec, or a callable that returns one env; how many envs all ranks have together.  A callable
        with a parameter `env_index` is given the index of the env, from 0 to num_envs - 1.  Or a list of callables, one
        for each env, as Gymnasium's SyncVectorEnv and Stable-Baselines3's DummyVecEnv take it; each rank calls those
        of its own envs only.
    env_kwargs
        Keyword arguments for every env, or a list with those of each env.
    wrappers
        Wrappers of each env, the innermost first: callables that take an env and return one, or their names,
        "gymnasium.wrappers:FlattenObservation,mine:wrap".
    autoreset_mode
        "next_step", "same_step" or "disabled", as in Gymnasium.
    infos
        "all": what Gymnasium's SyncVectorEnv gives; it costs nothing where envs say nothing.  A mapping such as
        {{"lives": int, "position": [float, 3]}}: these alone, cheaply.  "none": no infos.
    actions
        What to do with actions outside of their space.  "pass": floats reach the env as they are, as in Gymnasium's
        SyncVectorEnv, but in the dtype of their space; integers outside are refused.  "clip": they are set to the
        nearest bound; NaN is refused.  "check": they are refused; a float outside by rounding alone is set to the
        bound.
    copy
        False: observations are views that live until the call after the next; copy what you keep.
    policy
        What chooses the actions of `collect` on the ranks: "mine:make_policy", a function or class itself, or a
        file; see `mpi_rollout.policies.model.Model`.
    record
        A new file, which gets what the envs show, the infos that `infos` names, and what the trainer does, in the
        format of runs; rank 0 writes it.  It is called FILE.part until the envs are closed, or the program ends.  See
        docs/how-to/training.md.
    comm, timeout_s
        The ranks to connect, COMM_WORLD by default, the root being its rank 0; how long they wait for each other.
    **options
        Options that a run has on the command line as well, with the same meaning and default:

        {options}

        An env that is made again has no values of `set_attr`, and a generator that nobody has seeded; with
        infos="all", what failed is its info "env_error".

    Returns
    -------
    With several ranks a context manager
        On the root it gives a `MPIVectorEnv`; on other ranks None, when all is over.
    With one rank a `MPIVectorEnv`
        It may be used in a `with` statement or without; then it is closed at the end of the program.

    Raises
    ------
    RolloutError
        On the root: an argument cannot work, ranks do not agree, or `record` cannot be written or is there already.
        Other ranks leave with its exit code.  With several ranks it is raised on entering the `with` statement.  What
        user code raised is its `__cause__`, on other ranks as a copy, and `except` clauses for that class catch it.
    """
    arguments = {
        "env": env,
        "num_envs": num_envs,
        "env_kwargs": env_kwargs,
        "wrappers": wrappers,
        "autoreset_mode": autoreset_mode,
        "infos": infos,
        "actions": actions,
        "copy": copy,
        "policy": policy,
        "record": record,
    }
    request = Request.read(connect, arguments | options)
    try:
        return _connect(request, comm, timeout_s)
    except RolloutError as error:
        # The caller has no use for our frames.
        raise error.with_traceback(None) from error.__cause__


def _documented() -> str:
    """Return the help texts of the shared options, as a list in a docstring."""
    texts = (f"`{own.name}` ({own.default!r}): {own.metadata['help']}." for own in fields(SharedOptions))
    return "\n    ".join("* " + "\n      ".join(wrap(text, 108)) for text in texts)


if connect.__doc__:  # With -OO there is none.
    connect.__doc__ = cleandoc(connect.__doc__).format(options=_documented())


def _connect(request: Request, comm: "MPI.Intracomm | None", timeout_s: float) -> Connection | MPIVectorEnv:
    end_with_launcher()
    connection = Connection(request, comm, timeout_s)
    if not _is_alone(comm, timeout_s):
        return connection
    envs = connection.__enter__()
    assert envs is not None, "in one process there is nobody but the root"
    return envs


def _is_alone(comm: "MPI.Intracomm | None", timeout_s: float) -> bool:
    """Tell whether there are no other ranks to connect.  Starts MPI, if no launcher says that there are others."""
    if comm is not None:
        return comm.size == 1
    if world.claimed_size()[0] > 1:
        return False
    world.start_mpi_on_all_ranks(timeout_s)
    return world.comm_world().size == 1
