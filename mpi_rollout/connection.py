"""`connect`: the envs of all ranks for a trainer on the root.

All ranks run the trainer's script.  In `with connect(...) as envs` the root gets a vector env; every other rank
serves it inside, comes out when the root leaves, and gets None.
"""

import atexit
import json
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
from gymnasium.vector import AutoresetMode

from mpi_rollout import mpi
from mpi_rollout.assembly import Part, Plan, assemble, check_batch_size, divide, make_part
from mpi_rollout.config import MAX_TIMEOUT_S, VECTORIZATION_MODES, WAITS, versions
from mpi_rollout.driver import Driver
from mpi_rollout.envs import EnvMaker
from mpi_rollout.envs.faults import OnFault
from mpi_rollout.errors import RolloutError, UsageError
from mpi_rollout.infos import Infos
from mpi_rollout.vector_env import MPIVectorEnv
from mpi_rollout.worker import Worker, unwatched_by_gc

GRACE_S = 5.0  # For ranks to end the step that they are in when a trainer has failed.


def connect(
    env: str | Callable[..., gymnasium.Env],
    num_envs: int,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    vectorization_mode: str = "sync",
    infos: Infos = "all",
    copy: bool = True,
    num_groups: int = 1,
    batch_size: int | None = None,
    dedicated_root: bool = False,
    max_env_restarts: int = 0,
    env_timeout_s: float | None = None,
    check_finite: bool = False,
    wait: str = "auto",
    comm: Any = None,
    timeout_s: float = 300.0,
) -> "Connection":
    """Connect all ranks' envs to a trainer.  **Collective**: to be entered on all ranks, with the same arguments.

    Parameters
    ----------
    env
        An env id, or a callable that returns one env.
    num_envs
        Over all ranks.
    env_kwargs
        Keyword arguments for the env.
    autoreset_mode
        "next_step", "same_step" or "disabled", as in Gymnasium.
    vectorization_mode
        "sync" or "vector_entry_point".
    infos
        "all" gives what Gymnasium's SyncVectorEnv gives, which costs nothing where envs say nothing; a mapping such as
        {"lives": int} gives these alone, cheaply; "none" none.  See `mpi_rollout.infos`.
    copy
        False: observations are views that live until the call after the next; see `mpi_rollout.vector_env`.
    num_groups
        Double buffering with 2: `recv` returns one half of the envs while the ranks step the other.
    batch_size
        First ready, first served: `recv` waits for this many ranks only.
    dedicated_root
        The root steps no envs: where it is busy with a policy, or beside a GPU.
    max_env_restarts
        How often each env may be made anew when it fails; 0: the first failure ends the job.  Its episode is then
        truncated, with its last observation, reward 0 and, with infos="all", the failure as its info "env_error"; all
        failures are told on stderr.  The new env has no values of `set_attr`, and a generator that nobody has seeded.
    env_timeout_s
        How long a step or reset may take; more is a failure.
    check_finite
        NaN and infinity in observations and rewards are failures.
    wait
        How a rank waits for messages: "spin", at the cost of its core, "sleep", or "auto": asleep where a host has four
        ranks or more for each core.
    comm
        The ranks to connect, COMM_WORLD by default; the root is its rank 0.
    timeout_s
        How long ranks wait for each other to call `connect`.

    Returns
    -------
    A context manager that gives a `MPIVectorEnv` on the root, and None elsewhere when all is over.

    Raises
    ------
    RolloutError
        On entering, on the root: an argument cannot work, or ranks do not agree.  Other ranks leave with its exit
        code.
    """
    make = EnvMaker(env, dict(env_kwargs or {}), vectorization_mode)
    on_fault = OnFault(max_env_restarts, check_finite, env_timeout_s)
    request = Request(
        make, num_envs, autoreset_mode, infos, copy, num_groups, batch_size, dedicated_root, on_fault, wait
    )
    return Connection(request, comm, timeout_s)


@dataclass(frozen=True)
class Request:
    """The arguments of `connect` that must be the same on all ranks."""

    make: EnvMaker
    num_envs: int
    autoreset_mode: str | AutoresetMode
    infos: Infos
    copy: bool
    num_groups: int
    batch_size: int | None
    dedicated_root: bool
    on_fault: OnFault
    wait: str

    def plan(self, num_ranks: int) -> Plan:
        """Make a plan for some ranks.

        Raises
        ------
        UsageError
            An argument cannot work.
        """
        chosen = ("vectorization_mode", VECTORIZATION_MODES, self.make.vectorization_mode), ("wait", WAITS, self.wait)
        for name, allowed, value in chosen:
            if value not in allowed:
                raise UsageError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
        if self.batch_size is not None and self.num_groups > 1:
            raise UsageError(f"batch_size makes a group of each rank, got num_groups={self.num_groups} too; use one")
        for name in ("num_envs", "num_groups"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise UsageError(f"{name} must be a whole number of at least 1, got {getattr(self, name)!r}")
        is_first_ready = self.batch_size is not None
        division = divide(self.num_envs, num_ranks, self.dedicated_root, self.num_groups, is_first_ready)
        check_batch_size(division, self.batch_size if is_first_ready else 1, "batch_size")
        return Plan(self.make, division, None, self.mode, self.infos, self._checked_on_fault(), wait=self.wait)

    def _checked_on_fault(self) -> OnFault:
        most, timeout_s = self.on_fault.max_restarts, self.on_fault.timeout_s
        if not isinstance(most, int) or most < 0:
            raise UsageError(f"max_env_restarts must be a whole number of at least 0, got {most!r}")
        if timeout_s is not None and not (isinstance(timeout_s, int | float) and 0 < timeout_s <= MAX_TIMEOUT_S):
            raise UsageError(f"env_timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:g}, got {timeout_s!r}")
        return self.on_fault

    @property
    def mode(self) -> AutoresetMode:
        """The autoreset mode, however it was written: next_step, NextStep or Gymnasium's own."""
        modes = {mode.name.replace("_", ""): mode for mode in AutoresetMode}
        text = self.autoreset_mode.value if isinstance(self.autoreset_mode, AutoresetMode) else self.autoreset_mode
        found = modes.get(str(text).upper().replace("_", ""))
        if found is None:
            allowed = ", ".join(mode.name.lower() for mode in AutoresetMode)
            raise UsageError(f"autoreset_mode must be one of {allowed}, got {self.autoreset_mode!r}")
        return found

    def fingerprint(self) -> dict[str, str]:
        """How ranks tell that they mean the same: each argument as text, a callable by its name."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "make"}
        make = self.make
        values |= {"env": make.name, "env_kwargs": make.kwargs, "vectorization_mode": make.vectorization_mode}
        del values["on_fault"]
        values |= {"max_env_restarts": self.on_fault.max_restarts, "check_finite": self.on_fault.check_finite}
        values |= {"env_timeout_s": self.on_fault.timeout_s}
        return {f"the argument {name} of connect": repr(value) for name, value in values.items()}


class Connection:
    """What `connect` returns: use it in a `with` statement, once."""

    def __init__(self, request: Request, comm: Any, timeout_s: float):
        self._request, self._comm, self._timeout_s = request, comm, timeout_s
        self._envs: MPIVectorEnv | None = None
        self._worker: Worker | None = None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"connect() gives envs in a with statement only, got .{name} without one; "
            "write `with mpi_rollout.connect(...) as envs:`"
        )

    def __enter__(self) -> MPIVectorEnv | None:
        if self._comm is None:
            mpi.start_mpi_on_all_ranks(self._timeout_s)
        comm = self._comm = mpi.world() if self._comm is None else self._comm
        mpi.meet(comm, self._timeout_s, "mpi_rollout.connect")
        try:
            part, _ = mpi.agree(comm, self._prepare, self._fingerprint)
        except RolloutError as error:
            if comm.rank != mpi.ROOT:
                sys.exit(error.exit_code)  # The root says why.
            raise
        if comm.rank != mpi.ROOT:
            return self._serve(part)
        atexit.register(self._check_closed)
        self._worker, facts = assemble(comm, part)
        driver = Driver(self._worker.exchanges, self._worker)
        request = self._request
        self._envs = MPIVectorEnv(driver, facts, request.mode, request.batch_size or 1, request.copy)
        self._envs.interrupts.watch()
        return self._envs

    def _prepare(self) -> Part:
        try:
            return make_part(self._request.plan(self._comm.size), self._comm.rank)
        except UsageError as error:  # It names options; here they are arguments.
            named = re.sub(r"--([a-z][a-z-]*)", lambda match: match[1].replace("-", "_"), str(error))
            raise UsageError(named) from error

    def _fingerprint(self, part: Part) -> dict[str, str]:
        return self._request.fingerprint() | {"the versions": json.dumps(versions())} | part.fingerprint()

    def _serve(self, part: Part) -> None:
        with mpi.all_or_none(self._comm):
            worker, _ = assemble(self._comm, part)
            # A terminal sends Ctrl-C to all ranks: what it means is the trainer's to say.
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
            with unwatched_by_gc():
                code = worker.serve()
            signal.signal(signal.SIGINT, handler)
            worker.exchanges.free()
        if code:
            sys.exit(code)  # The trainer has failed.

    def __exit__(self, kind: type | None, error: BaseException | None, _traceback: Any) -> None:
        if self._envs is None:
            return
        self._envs.interrupts.unwatch()
        code = exit_code_of(error)
        watch = threading.Timer(GRACE_S, self._abort, (error, code))
        watch.daemon = True
        if error is not None or self._envs.interrupts.is_broken:  # It cannot be known whether the ranks answer.
            watch.start()
        self._envs.close(code=code)
        self._worker.exchanges.free()
        watch.cancel()
        atexit.unregister(self._check_closed)

    def _abort(self, error: BaseException | None, code: int) -> None:
        if error is not None:
            sys.stderr.write("".join(traceback.format_exception(error)))
        sys.stderr.write(f"mpi_rollout: the trainer left while ranks were stepping; ended them after {GRACE_S:g} s\n")
        mpi.abort(self._comm, code or RolloutError.exit_code)

    def _check_closed(self) -> None:
        """At the interpreter's end: ranks that still serve would hang it."""
        if self._envs is not None and not self._envs.closed:
            sys.stderr.write(
                f"mpi_rollout: rank 0 ({os.uname().nodename}): the trainer ended without closing its envs; "
                "use `with mpi_rollout.connect(...) as envs:`, or call envs.close()\n"
            )
            mpi.abort(self._comm, RolloutError.exit_code)


def exit_code_of(error: BaseException | None) -> int:
    """The code with which Python leaves after an exception."""
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 1
