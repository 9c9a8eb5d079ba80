"""What a rank does that makes envs together with others, and is not the first of them; see `env_group`."""

import signal
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import gymnasium

from mpi_rollout.envs.agents import AgentsEnv
from mpi_rollout.envs.env_group import CALL, GROUP_ANSWERS_S, LET_GO, MAKE, EnvGroup, spaces_of
from mpi_rollout.envs.time_limits import step_over_wrappers
from mpi_rollout.errors import Fault, RankError, as_flag
from mpi_rollout.exchange.job_end import abort
from mpi_rollout.exchange.world import rank_and_host
from mpi_rollout.process.console import say
from mpi_rollout.process.exits import ends_forked
from mpi_rollout.process.interrupts import STOP_SIGNALS

if TYPE_CHECKING:
    from mpi4py import MPI


class Member:
    """Does with its part of the envs what the first rank of its group does.

    `make` makes its part of the env with an index; `job` is the communicator of all ranks, which it may have to end.
    """

    def __init__(self, group: EnvGroup, make: Callable[[int], gymnasium.Env], job: "MPI.Intracomm"):
        self._group, self._make, self._job = group, make, job
        self._place = rank_and_host(group.ranks[group.comm.rank])
        self._envs: dict[int, gymnasium.Env] = {}
        self._env_indices: dict[int, int] = {}
        self._num_steps: dict[int, int] = {}  # Of its episode.
        self._longest_s, self._signal, self._is_signal_told = 0.0, 0, False
        # Around each `close`, given what messages call it: in a run it has a time limit.
        self.closing: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext()

    def note_signals(self) -> None:
        """Let a signal that asks this rank to stop go to the first rank, with the next answer."""

        def note(number: int, _frame: object) -> None:
            self._signal = number

        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, note)

    def serve(self) -> Any:
        """Do what the first rank does, until it lets members go; return what it gives them then."""
        while True:
            number, name, args, kwargs = self._group.await_order()
            if name == LET_GO:
                return args[0]
            begin = monotonic()
            try:
                with ends_forked:
                    answer = self._do(number, name, args, kwargs)
            except BaseException as error:
                self._tell_failure(error, self._described(number, name))
                continue
            is_free = answer is None and not self._is_signal_told
            self._is_signal_told |= is_free and self._signal != 0
            self._group.wait_for(self._group.answer(answer, self._signal if is_free else 0))
            self._longest_s = max(self._longest_s, monotonic() - begin)

    def _do(self, number: int, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        if name == MAKE:
            self._env_indices[number] = args[0]
            env = self._make(args[0])
            if isinstance(env.unwrapped, AgentsEnv):
                env.unwrapped.is_part = True
            self._envs[number], _ = step_over_wrappers(env)  # The first rank's check outputs, and count steps.
            return spaces_of(env)
        if name == CALL:
            function, numbers, *rest = args
            function(self._group, [self._envs[each] for each in numbers], *rest)
            return None
        self._num_steps[number] = 0 if name == "reset" else self._num_steps.get(number, 0) + (name == "step")
        if name == "close":
            with self.closing(f"{self._place}, {self._described(number, name)}"):
                self._envs.pop(number).get_wrapper_attr(name)(*args, **kwargs)
            return None
        self._envs[number].get_wrapper_attr(name)(*args, **kwargs)
        return None

    def _described(self, number: int, name: str) -> str:
        """Say which env is in which call."""
        env = f"env {self._env_indices[number]}" if number else "bare loop"
        if name == "step":
            return f"{env}, step {self._num_steps[number] - 1} of its episode"
        return f"{env}, {name}" if name in ("reset", "close") else env

    def _tell_failure(self, error: BaseException, where: str) -> None:
        """Tell the first rank what was raised here; end the job if it does not hear that in time."""
        requests = self._group.answer(Fault.of(error, self._place))
        deadline = monotonic() + GROUP_ANSWERS_S + 2 * self._longest_s
        while not requests[0].Testall(requests):
            if monotonic() > deadline:
                fault = Fault.of(error, f"{self._place}, {where}")
                say(f"{fault.stack}mpi_rollout: {RankError(fault, 1).shown(as_flag)}\n")
                abort(self._job, fault.exit_code)
            sleep(1e-3)
