"""What the ranks of a launched job run: `python -m mpi_rollout.launched.server FOLDER NUM_RANKS TIMEOUT_S`.

All ranks connect their envs, as in a training script.  Rank 0 does what the trainer asks for, until it asks no more.
"""

import select
import sys
import threading
from contextlib import suppress
from operator import methodcaller
from time import sleep
from typing import TYPE_CHECKING, Any, NoReturn

import cloudpickle
import numpy as np

from mpi_rollout.core.spaces import leaves, tree_of
from mpi_rollout.errors import LaunchError, RolloutError
from mpi_rollout.exchange import job_end, world
from mpi_rollout.launched.channel import ERRORS, Channel, StepMemory, call_trainer
from mpi_rollout.launched.vector_env import ERROR, LAID, VALUE, described
from mpi_rollout.process.console import say
from mpi_rollout.process.leftovers import end_leftovers
from mpi_rollout.process.start import end_with_launcher
from mpi_rollout.text import counted
from mpi_rollout.train.connection import Connection
from mpi_rollout.train.vector_env import MPIVectorEnv

if TYPE_CHECKING:
    from mpi4py import MPI

RANKS_END_S = 0.8  # The time that ranks have to end by themselves when their trainer is gone.


def main() -> int:
    """Serve a trainer; return an exit code, 0 where the trainer was told of a failure: launchers say much else."""
    folder, num_ranks, timeout_s = sys.argv[1:]
    end_with_launcher()
    end_leftovers()
    try:
        world.start_mpi_on_all_ranks(float(timeout_s))
        comm = world.comm_world("; give launch the command as launcher='srun --mpi=...'")
        if comm.size != int(num_ranks):
            raise LaunchError(f"the launcher must take -n {num_ranks}, got {counted(comm.size, 'rank')}")
        channel, told = _call(folder) if comm.rank == world.ROOT else (None, None)
        told = comm.bcast(told, world.ROOT)
        if isinstance(told, LaunchError):
            raise told
    except LaunchError as error:
        place = world.refuser()
        if place is not None:
            say(f"mpi_rollout: {place}{error}\n")
        return error.exit_code
    paths, request, spin_s = told
    sys.path += [path for path in paths if path not in sys.path]
    if channel is None:
        with suppress(SystemExit), Connection(cloudpickle.loads(request), comm, float(timeout_s)):
            pass  # Rank 0 tells the trainer why.
        return 0
    channel.spin_s = spin_s
    _serve_trainer(request, float(timeout_s), channel, comm)
    return 0


def _call(folder: str) -> tuple[Channel | None, Any]:
    """Return the line to the trainer and what it says first; or None and a LaunchError, for all ranks to raise."""
    try:
        channel = Channel(call_trainer(folder))
        return channel, channel.receive()
    except LaunchError as error:
        return None, error
    except ERRORS:
        return None, LaunchError("the trainer left before the ranks had started")


def _serve_trainer(request: bytes, timeout_s: float, channel: Channel, comm: "MPI.Intracomm") -> None:
    threading.Thread(target=_end_with_trainer, args=(channel, comm), name="trainer", daemon=True).start()
    try:
        with Connection(cloudpickle.loads(request), comm, timeout_s) as envs, suppress(*ERRORS):
            assert envs is not None, "this is the root"
            serve(envs, channel)
    except RolloutError as error:
        with suppress(*ERRORS):
            channel.send((ERROR, described(error)))


def _end_with_trainer(channel: Channel, comm: "MPI.Intracomm") -> NoReturn:
    """End the job when the trainer is gone, if its ranks do not end by themselves: an env may take long."""
    gone = select.poll()
    gone.register(channel.fileno(), select.POLLRDHUP)
    gone.poll()
    sleep(RANKS_END_S)
    say("mpi_rollout: the trainer is gone; ended its ranks\n")
    job_end.abort(comm, RolloutError.exit_code)


def serve(envs: MPIVectorEnv, channel: Channel) -> None:
    """Do what the trainer asks for, until it closes the envs; raise one of `ERRORS` when it is gone."""
    spaces = envs.single_observation_space, envs.single_action_space
    names = ("spec", "render_mode", "metadata", "autoreset_mode", "agents", "agent_spaces")
    channel.send((VALUE, (envs.num_envs, spaces, {name: vars(envs)[name] for name in names})))
    memory = StepMemory(spaces, envs.num_envs, channel, creates=True) if channel.is_local and not envs.agents else None
    laid = () if memory is None else (tree_of(spaces[1], memory.actions),)
    name = ""
    while name != "close":
        try:
            name, args, kwargs = channel.receive()
            value = methodcaller(name, *(laid if args is None else args), **kwargs)(envs)
            if memory is None or name not in ("step", "recv_all"):
                channel.send((VALUE, value), is_plain=value is None)
                continue
            observations, *results, infos = value
            given = [leaf.of(observations) for leaf in leaves(spaces[0])]
            for target, array in zip([*memory.observations, *memory.results], [*given, *results], strict=True):
                np.copyto(target, array)
            channel.send((LAID, infos), is_plain=not infos)
        except Exception as error:
            channel.send((ERROR, described(error)))  # This raises again if the trainer is gone.


if __name__ == "__main__":
    sys.exit(main())
