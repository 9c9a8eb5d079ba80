"""`connect`: the envs of all ranks for a trainer on the root.

All ranks run the trainer's script.  In `with connect(...) as envs` the root gets a vector env; every other rank
serves it inside, comes out when the root leaves, and gets None.  Another connection may follow then.  In one process
`envs = connect(...)` is enough.
"""

import atexit
import os
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from gymnasium.vector import AutoresetMode

from mpi_rollout.core.option_values import check_seconds
from mpi_rollout.envs.env_maker import Env, EnvFunction, Kwargs
from mpi_rollout.envs.wrapping import Wrappers
from mpi_rollout.errors import Option, RolloutError
from mpi_rollout.exchange import world
from mpi_rollout.exchange.infos import Infos
from mpi_rollout.process.leftovers import end_leftovers, keep_leftovers
from mpi_rollout.process.start import end_with_launcher
from mpi_rollout.train.connection import Connection
from mpi_rollout.train.request import PolicyArgument, Request, check_arguments
from mpi_rollout.train.vector_env import MPIVectorEnv

if TYPE_CHECKING:
    from mpi4py import MPI


def connect(
    env: Env | list[EnvFunction] | tuple[EnvFunction, ...] | None = None,
    num_envs: int | None = None,
    *,
    env_kwargs: Kwargs | list[Kwargs] | tuple[Kwargs, ...] | None = None,
    wrappers: Wrappers = "",
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    infos: Infos = "all",
    actions: str = "pass",
    agents: str = "dict",
    copy: bool = True,
    policy: PolicyArgument = None,
    record: str | os.PathLike[str] | None = None,
    comm: "MPI.Intracomm | None" = None,
    timeout_s: float = 300.0,
    **options: Any,
) -> Connection | MPIVectorEnv:
    """Connect all ranks' envs to a trainer.  **Collective**: all ranks call it, with the same arguments.

    `comm` has the ranks, COMM_WORLD by default, its rank 0 being the root.  They wait `timeout_s` for each other.

    With several ranks this returns a context manager: on the root it gives a `MPIVectorEnv`, on other ranks None, when
    all is over.  With one rank it returns a `MPIVectorEnv`, which may be used in a `with` statement or without; then it
    is closed at the end of the program.

    Raises
    ------
    RolloutError
        On the root: an argument cannot work, ranks do not agree, another connection of this job is open, or `record`
        cannot be written or is there already.  Other ranks leave with its exit code.  With several ranks it is raised
        on entering the `with` statement.  What user code raised is its `__cause__`, on other ranks as a copy, and
        `except` clauses for that class catch it.
    """
    check_arguments(connect, options)
    check_seconds(Option("timeout_s"), timeout_s)
    own = env, num_envs, env_kwargs, wrappers, autoreset_mode, infos, actions, agents, copy, policy, record
    try:
        return _connect(Request(*own, **options), comm, timeout_s)
    except RolloutError as error:
        # The caller has no use for our frames.
        raise error.with_traceback(None) from error.__cause__


if connect.__doc__ and Request.__doc__:  # help(connect) shows what a request describes, too.
    described = cleandoc(Request.__doc__).partition("\n\n")[2]
    connect.__doc__ = cleandoc(connect.__doc__).replace("Raises\n", f"{described}\n\nRaises\n")


def _connect(request: Request, comm: "MPI.Intracomm | None", timeout_s: float) -> Connection | MPIVectorEnv:
    end_with_launcher()
    end_leftovers()
    if world.claimed_rank() == world.ROOT:
        atexit.register(keep_leftovers)  # A trainer may start programs that go on after its good end.
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
    is_alone = world.comm_world().size == 1
    if is_alone:
        world.say_of_unused("comm=MPI.COMM_SELF")
    return is_alone
