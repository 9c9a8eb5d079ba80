"""`launch`: envs whose ranks a plain script or a notebook starts by itself.

Each method asks rank 0, which calls that of its `MPIVectorEnv`.  A call ends before a signal is heard, so that the next
call finds the envs whole.  A second Ctrl-C, a second later, does not wait: the ranks finish the call, and its outcome
is dropped.
"""

import atexit
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from math import inf
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import ref

import numpy as np
from gymnasium.error import ClosedEnvironmentError
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import VectorEnv

from mpi_rollout.core.option_values import check_seconds
from mpi_rollout.core.spaces import set_spaces, tree_of
from mpi_rollout.errors import Option, Raised, RankLost, RolloutError, UsageError, caused_by
from mpi_rollout.launched.channel import ERRORS, Channel, Meeting, StepMemory
from mpi_rollout.launched.job import ENDING_S, BatchOptions, Job, Words, batch_command, launcher_of
from mpi_rollout.policies.parameters import array_of
from mpi_rollout.process import hash_seed
from mpi_rollout.process.console import say
from mpi_rollout.process.host import num_usable_cores
from mpi_rollout.process.interrupts import Interrupts
from mpi_rollout.text import counted
from mpi_rollout.train.request import Request, check_arguments
from mpi_rollout.train.vector_env import MPIVectorEnv

VALUE, LAID, ERROR = range(3)  # What an answer is: a value, the outcome of a step whose arrays are laid, or an error.
CALL_ENDS_S = 5.0  # The time that a call which was given up has to end when the envs are closed.
SPIN_S = 1e-3  # Where the trainer has a core besides those of the ranks.
P = ParamSpec("P")
T = TypeVar("T")


def launch(
    env: Any = None,
    num_envs: int | None = None,
    *,
    num_ranks: int | None = None,
    launcher: Words | None = None,
    sbatch: BatchOptions | None = None,
    timeout_s: float = 300.0,
    **options: Any,
) -> "LaunchedVectorEnv":
    """Start ranks and give this process, which is none of them, their envs; without mpirun, and without MPI here.

    Other arguments are as of `connect`.  Callables are sent to the ranks by cloudpickle: a function of a notebook or a
    lambda works, and one of a module is imported there.  By default there are as many ranks as the SLURM allocation has
    tasks or this process has cores, and not more than envs.

    `launcher` is the command that starts them, up to -n, as words or one string, such as "srun --mpi=pmix".  By default
    it is srun in a SLURM allocation, else the mpirun beside this Python or on PATH.  With `sbatch`, options such as
    {"partition": "cpu", "exclusive": True} or a list of words, the ranks are a job of SLURM, and this function waits
    until it has started.  Then they have `timeout_s` to start and to make their envs.

    The envs are open until `close`, the end of a `with` statement, or the end of the program.  LaunchError is raised if
    the ranks cannot be started, with their last words; else errors are those of `connect`.
    """
    check_arguments(launch, options)
    check_seconds(Option("timeout_s"), timeout_s)
    request = Request(env, num_envs, **options)
    num_ranks = _checked(num_ranks, request.count)
    request.plan(num_ranks)  # It says what cannot work before anything is started.
    told = [[*map(os.path.abspath, sys.path)], replace(request, copy=False).pickled("what launch is told"), 0.0]
    words = launcher_of(launcher, sbatch is not None)
    with Meeting(is_local=launcher is None and sbatch is None and words[0] != "srun") as meeting:
        return _start(meeting, words, num_ranks, sbatch, timeout_s, told)


def _checked(num_ranks: int | None, num_envs: int) -> int:
    """Return the number of ranks; UsageError if it is none."""
    if num_ranks is None:
        tasks = os.environ.get("SLURM_NTASKS", "")
        num_ranks = min(num_envs, int(tasks) if tasks.isdigit() else num_usable_cores())
    if type(num_ranks) is not int or num_ranks < 1:
        raise UsageError(Option("num_ranks"), f" must be a whole number of at least 1, got {num_ranks!r}")
    return num_ranks


def _start(
    meeting: Meeting, words: list[str], num_ranks: int, sbatch: BatchOptions | None, timeout_s: float, told: list[Any]
) -> "LaunchedVectorEnv":
    """Start the job, and return its envs when they are made."""
    server = ["-m", "mpi_rollout.launched.server", meeting.folder, str(num_ranks), str(timeout_s)]
    seed = os.environ.get(hash_seed.VARIABLE) or hash_seed.FIXED  # Launchers may give hosts no variables of this one.
    command = [*words, "-n", str(num_ranks), "env", f"{hash_seed.VARIABLE}={seed}", sys.executable, *server]
    if sbatch is not None:
        say(f"mpi_rollout: submits a job of {counted(num_ranks, 'rank')}, and waits for it\n")
        command, timeout_s = batch_command(sbatch, meeting.folder, num_ranks, command), inf
    job = Job(command, meeting.folder)
    try:
        channel = job.await_rank_0(meeting, timeout_s)
        if channel.is_local and num_ranks < num_usable_cores():
            channel.spin_s = told[2] = SPIN_S
        return LaunchedVectorEnv(job, channel, told)
    except BaseException as error:
        job.wait(ENDING_S if isinstance(error, RolloutError) else 0.0)  # Of an error the ranks know.
        raise


def described(error: Exception) -> tuple[RolloutError | None, Raised | None]:
    """Return an error as it travels: one of this program, with what user code raised; or what Gymnasium raises."""
    if isinstance(error, RolloutError):
        cause = error.__cause__
        return error, None if cause is None else replace(Raised.of(cause), stack=error.stack)
    return None, Raised.of(error.with_traceback(None))


def _asked(method: Callable[Concatenate[MPIVectorEnv, P], T]) -> "Callable[Concatenate[LaunchedVectorEnv, P], T]":
    """Return a method that has rank 0 call this one."""

    @wraps(method)
    def ask(self: "LaunchedVectorEnv", *args: P.args, **kwargs: P.kwargs) -> T:
        return self._ask(method.__name__, *args, **kwargs)

    return ask


class LaunchedVectorEnv(MPIVectorEnv, VectorEnv):
    """The envs of a job that `mpi_rollout.launch` has started; methods are those of `MPIVectorEnv`.

    All that they return belongs to the caller.  `close`, the end of a `with` statement and the end of the program end
    the job.
    """

    def __init__(self, job: Job, channel: Channel, told: object) -> None:
        self._pid = os.getpid()
        self._job, self._channel = job, channel
        self._lost: RankLost | None = None
        try:
            channel.send(told)
            answer = channel.receive()
        except ERRORS:
            raise RankLost(job.last_words("the ranks ended while they made their envs")) from None
        num_envs, spaces, facts = self._value(*answer)
        self._memory = (
            StepMemory(spaces, num_envs, channel, creates=False) if channel.is_local and not facts["agents"] else None
        )
        set_spaces(self, num_envs, *spaces)
        vars(self).update(facts)
        self._interrupts = Interrupts(lambda: channel.is_waiting)
        self.closed = False
        atexit.register(_close, ref(self))

    reset, step, send = _asked(MPIVectorEnv.reset), _asked(MPIVectorEnv.step), _asked(MPIVectorEnv.send)
    recv, recv_all, render = _asked(MPIVectorEnv.recv), _asked(MPIVectorEnv.recv_all), _asked(MPIVectorEnv.render)
    collect, collect_async = _asked(MPIVectorEnv.collect), _asked(MPIVectorEnv.collect_async)
    collect_wait, collect_some = _asked(MPIVectorEnv.collect_wait), _asked(MPIVectorEnv.collect_some)
    call_some, set_some = _asked(MPIVectorEnv.call_some), _asked(MPIVectorEnv.set_some)

    def set_policy(self, parameters: Mapping[str, object] | Sequence[object]) -> None:
        """As `MPIVectorEnv.set_policy`."""
        pairs = parameters.items() if isinstance(parameters, Mapping) else enumerate(parameters)
        arrays = {name: array_of(str(name), value) for name, value in pairs}  # Rank 0 may have no GPU, and no torch.
        self._ask("set_policy", arrays if isinstance(parameters, Mapping) else [*arrays.values()])

    def _ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Have rank 0 call a method; return what it returns, or raise what it raises."""
        with self._interrupts:
            if self._lost is not None:
                raise self._lost.with_traceback(None)
            if self.closed or os.getpid() != self._pid:
                raise ClosedEnvironmentError(
                    "these envs are closed, or belong to another process; launch again for more"
                )
            return self._value(*self._answer(name, args, kwargs))  # It may be an OSError of an env.

    def _answer(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, Any]:
        """Have rank 0 call a method; RankLost if it does not answer, or a call before was cut in the middle."""
        if not self._channel.is_whole:
            self._lost = RankLost("a call was cut in the middle, so that no other can follow; close these envs")
            raise self._lost
        try:
            if self._channel.is_asked:  # Its call was given up.
                self._channel.receive()
            is_laid = name in ("step", "send") and len(args) == 1 and self._lay(args[0])
            call = (name, None if is_laid else args, kwargs)
            self._channel.send(call, is_plain=is_laid or not (args or kwargs))
            answer: tuple[int, Any] = self._channel.receive()
            return answer
        except ERRORS as error:
            if isinstance(error, TimeoutError) and error.errno is None:  # A signal handler of the program raised it.
                raise
            self._lost = RankLost(self._job.last_words("the job of the ranks has ended"))
            raise self._lost from None

    def _lay(self, actions: object) -> bool:
        """Lay actions where rank 0 finds them; return False if there is no such place for them."""
        if self._memory is None or isinstance(self.single_action_space, Dict | Tuple):
            return False
        target = self._memory.actions[0]
        if type(actions) is not np.ndarray or actions.dtype != target.dtype or actions.shape != target.shape:
            return False
        np.copyto(target, actions)
        return True

    def _value(self, kind: int, value: Any) -> Any:
        """Return what rank 0 has answered, or raise it; `except` clauses for the class of an error catch it."""
        if kind == ERROR:
            error, raised = value
            cause = None if raised is None else raised.again()
            raise caused_by(error, cause) if error is not None else cause or AssertionError("an error is one of both")
        if kind == VALUE or self._memory is None:
            return value
        observations = tree_of(self.single_observation_space, [array.copy() for array in self._memory.observations])
        return observations, *[array.copy() for array in self._memory.results], value

    def close_extras(self, code: int = 0, **_kwargs: object) -> None:
        """Let the ranks go, which completes a recording, and wait for the end of the job."""
        if os.getpid() != self._pid:  # A fork has no part in it.
            return
        is_idle = self._interrupts.are_free_within(CALL_ENDS_S)  # Of calls of other threads.
        if is_idle and self._channel.is_asked:
            is_idle = bool(select.select([self._channel], [], [], CALL_ENDS_S)[0])
        try:
            if self._lost is None and is_idle:
                self._ask("close")
        finally:
            self.closed = True
            # The call that was given up may never end, or was cut: rank 0 ends the job when the line is closed.
            if not is_idle or self._lost is not None:
                self._channel.close()
            self._job.wait(ENDING_S)
            self._channel.close()
            self._interrupts.close()

    def __del__(self) -> None:
        self.close()


def _close(envs: "ref[LaunchedVectorEnv]") -> None:
    """Close envs at the program's end, if they are still there."""
    if (left := envs()) is not None:
        left.close()
