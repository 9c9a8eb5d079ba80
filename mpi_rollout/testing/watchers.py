"""The conformance test of a `Watcher`: it must bear all that a run may tell it.

It needs no MPI, no envs and no test runner.  Make a new watcher for each run, from scratch:

    from mpi_rollout.collect.watcher import Progress, Watcher
    from mpi_rollout.testing.watchers import check_watcher

    class Loudest(Watcher):
        def __init__(self):
            self.rate = 0.0

        def on_look(self, progress: Progress) -> None:
            if progress.interval_s:
                self.rate = max(self.rate, progress.env_steps_per_s)

    check_watcher(Loudest)

It cannot see whether a watcher is quick, nor whether what it notes is right: these are for tests of your own.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from inspect import signature
from types import FrameType
from typing import Any, NamedTuple

import numpy as np

from mpi_rollout.collect.watcher import End, Episodes, LostRank, Progress, Spending, Watcher
from mpi_rollout.errors import RolloutError

NUM_RUNS = 20
NUM_ENVS = 6
SIGTERM = 15
MAY_RAISE = ("check", "on_look", "on_losses")
EVENTS = (
    *MAY_RAISE,
    "on_start",
    "on_pause",
    "on_fault",
    "on_stop",
    "on_close",
    "on_end",
)


class Event(NamedTuple):
    """One call of a watcher."""

    name: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.arguments))})"


def check_watcher(make: Callable[[], Watcher], num_runs: int = NUM_RUNS) -> None:
    """Tell new watchers, which `make` returns, of made-up runs; AssertionError where one breaks the contract.

    Most of the runs are random, and the same each time.  Checked is that a watcher

    - has all methods of `Watcher`, with its arguments, and returns nothing from them;
    - bears all orders of events that the contract has: runs that fail before their first step, that go on after an
      earlier start, pause, are stopped, lose ranks, or take no steps between two looks;
    - raises nothing, or where it may end the run an error of `mpi_rollout.errors`, and bears to be told of that end;
    - leaves what it is told as it was;
    - bears a signal between any two of its own lines.

    Parameters
    ----------
    make
        Returns a watcher that has been told nothing.  It is called for each run.
    num_runs
        The number of random runs.
    """
    _check_methods(make())
    for run in (_failing_at_once, _closing_without_steps, _whole):
        _tell_all(make(), run())
    for seed in range(num_runs):
        _tell_all(make(), _random(np.random.default_rng(seed)))
    _check_signals(make)


def _check_methods(watcher: Watcher) -> None:
    for name in EVENTS:
        method = getattr(watcher, name, None)
        assert callable(method), f"{type(watcher).__name__} has no method {name}; inherit it from Watcher"
        wanted = [*signature(getattr(Watcher, name)).parameters][1:]
        taken = [*signature(method).parameters]
        assert taken == wanted, f"{name} of {type(watcher).__name__} takes {taken}, a run gives {wanted}"


def _tell_all(watcher: Watcher, events: Iterator[Event]) -> None:
    """Tell of a run; if the watcher ends it, of its early end."""
    for event in events:
        if (error := _tell(watcher, event)) is not None:
            for last in _ends(progress_at(1), "interrupted", str(error)):
                _tell(watcher, last)
            return


def _tell(watcher: Watcher, event: Event) -> RolloutError | None:
    """Tell of one event; return the error by which the watcher ends the run."""
    before = copy.deepcopy(event.arguments)
    try:
        returned = getattr(watcher, event.name)(*event.arguments)
    except RolloutError as error:
        assert event.name in MAY_RAISE, f"{event} raised {error!r}; only {', '.join(MAY_RAISE)} may end a run"
        return error
    except Exception as error:
        raise AssertionError(f"{event} raised {error!r}, which is no RolloutError") from error
    assert returned is None, f"{event} returned {returned!r}; nobody takes it"
    assert repr(event.arguments) == repr(before), f"{event} changed what it was told"
    return None


# Runs.


def progress_at(num_looks: int, num_steps: int = 10, has_interval: bool = True, **others: Any) -> Progress:
    """Return how far a run is that has taken `num_steps` steps between each two looks, in half a second."""
    steps = num_looks * num_steps
    seconds = 0.5 * num_looks
    phases = dict.fromkeys(("policy", "send", "step", "wait", "gather", "write", "other"), 0.1 * seconds)
    progress = Progress(
        num_steps=steps,
        env_steps=steps * NUM_ENVS,
        num_committed=max(steps - num_steps, 0),
        seconds=seconds,
        interval_s=0.5 if has_interval and num_looks else 0.0,
        env_steps_per_s=2.0 * num_steps * NUM_ENVS if num_looks else np.nan,
        spent=Spending(0.4 * seconds, 0.6 * seconds, phases),
    )
    return replace(progress, **others) if others else progress


def _ends(progress: Progress | None, state: str = "complete", message: str = "run.h5") -> Iterator[Event]:
    """Yield the end of a run, of which there is a file if there is a progress."""
    yield Event("on_stop", (0,))
    if progress is not None:
        yield Event("on_close", (replace(progress, interval_s=0.0),))
    yield Event("on_stop", (0,))
    code = {"complete": 0, "interrupted": 75}.get(state, 70)
    num_committed = 0 if progress is None else progress.num_steps
    end = End(state, code, message, num_committed, is_resumable=state != "complete")
    yield Event("on_end", (end,))
    if state != "complete":
        yield Event("on_end", (replace(end, state="failed", exit_code=70, message="the job was ended by force"),))


def _failing_at_once() -> Iterator[Event]:
    return _ends(None, "failed", "the policy cannot be loaded")


def _closing_without_steps() -> Iterator[Event]:
    """Yield a run that had only to close its file."""
    yield Event("on_start", (20,))
    yield Event("check")
    yield Event("on_start", (20,))
    progress = Progress(20, 0, 20)
    yield Event("on_pause", (progress,))
    yield from _ends(progress)


def _whole() -> Iterator[Event]:
    """Yield a run in which everything happens once."""
    yield Event("on_start", (0,))
    yield Event("on_fault", (2, -1, "reset: ValueError: it stumbled"))
    yield Event("on_pause", (Progress(0, 0),))
    for num_looks in range(4):
        yield Event("check")
        yield Event("on_look", (progress_at(num_looks),))
    yield Event("on_fault", (5, 31, "step: ValueError: it stumbled"))
    yield Event("on_losses", ([LostRank(1, "node1", 2, 2, 32)],))
    yield Event("on_pause", (progress_at(4),))
    yield Event("on_stop", (SIGTERM,))
    yield from _ends(progress_at(5))


def _random(generator: np.random.Generator) -> Iterator[Event]:
    """Yield a run as the contract allows it."""
    num_before = int(generator.integers(3)) * 10
    for _ in range(2 if num_before else 1):
        yield Event("on_start", (num_before,))
        for _ in range(generator.integers(3)):
            yield Event("check")
    goal, is_shared = int(generator.integers(2)) * 40, bool(generator.integers(2))
    progress = Progress(num_before, 0, num_before)
    yield Event("on_pause", (progress,))
    for num_looks in range(int(generator.integers(1, 12))):
        yield from _between_looks(generator, progress)
        others: dict[str, Any] = {"episodes": Episodes(3 * num_looks, goal)} if goal else {}
        if is_shared:
            others |= {"most_steps": 10 * num_looks + 5, "spent": None}
        if generator.integers(4) or num_looks < 2:
            progress = progress_at(num_looks, has_interval=bool(generator.integers(4)), **others)
        else:
            progress = replace(progress, interval_s=0.0)  # No step was taken since the last look.
        yield Event("check")
        yield Event("on_look", (progress,))
    state = ("complete", "interrupted", "failed")[generator.integers(3)]
    yield from _ends(progress if generator.integers(4) else None, state)


def _between_looks(generator: np.random.Generator, progress: Progress) -> Iterator[Event]:
    step = progress.num_steps
    events = (
        Event("check"),
        Event("on_pause", (progress,)),
        Event("on_fault", (int(generator.integers(NUM_ENVS)), step, "step: ValueError: it stumbled")),
        Event("on_losses", ([LostRank(rank, f"node{rank}", 2 * rank, 2, step) for rank in (1, 2)],)),
        Event("on_stop", (SIGTERM,)),
    )
    for event in events:
        if not generator.integers(4):
            yield event


# Signals.


def _check_signals(make: Callable[[], Watcher]) -> None:
    """Tell a watcher of a signal between any two of its own lines, as a handler does."""
    watcher = make()
    module = sys.modules[type(watcher).__module__].__dict__.get("__file__")
    interrupt = partial(_tell, watcher, Event("on_stop", (SIGTERM,)))

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != module or frame.f_code.co_name == "on_stop":
            return None
        if event == "line":
            sys.settrace(None)
            try:
                interrupt()
            finally:
                sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        _tell_all(watcher, _whole())
    finally:
        sys.settrace(before)
