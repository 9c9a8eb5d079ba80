"""All watchers of a run do as `Watcher` says; the conformance test finds those that do not."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from mpi_rollout.collect.file_notes import FileNotes
from mpi_rollout.collect.leaders import Leaders
from mpi_rollout.collect.limit_meter import LimitMeter
from mpi_rollout.collect.lost_ranks import LostRanks
from mpi_rollout.collect.other_teams import OtherTeams
from mpi_rollout.collect.progress import Lines, ProgressLine, make_progress
from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.run_status import RunStatus
from mpi_rollout.collect.scalars import Scalars
from mpi_rollout.collect.stopping import LoadingAnswer, PastChecks, StopSignal, TimeLimit
from mpi_rollout.collect.trace import Trace
from mpi_rollout.collect.watcher import End, Episodes, LostRank, Progress, Watcher, Watchers
from mpi_rollout.core.partition import Division
from mpi_rollout.errors import Interrupted
from mpi_rollout.exchange.single_rank import SingleRankComm
from mpi_rollout.process.clock import Clock, Deadline, Spent
from mpi_rollout.storage.status import Status
from mpi_rollout.testing.watchers import check_watcher

pytestmark = pytest.mark.any_mpi


def state_of(**values: object) -> RunState:
    ended = np.array([1.0, 2.0, 3.0])
    return RunState(None, writer=MagicMock(num_committed=7, worst_commit_s=0.0, ended=ended), **values)


class Job:
    """A driver of three ranks, that answers what it is asked."""

    clock = Clock()
    worker = SimpleNamespace(slices=["its own"])
    exchanges = SimpleNamespace(num_stepping=1, division=Division(6, 3))
    answers = SimpleNamespace(measure=100.0, begin=0.0, take=("here", [("step", 0.0, 1.0, 0)]))

    def service(self, _kind: type) -> SimpleNamespace:
        return self.answers

    def call_ranks(self, answer: object, *_: object) -> list[object]:
        return [answer] * 3


def teams_of(folder: Path) -> OtherTeams:
    return OtherTeams(
        [RunStatus(str(folder / "run.h5"), MagicMock())], Leaders(SingleRankComm()), Watchers([]), state_of()
    )


OURS: dict[str, Callable[[Path], Watcher]] = {
    "file notes": lambda folder: FileNotes(state_of(), 0),
    "lost ranks": lambda folder: LostRanks(Job(), {0: "a", 1: "b", 2: "c"}, lambda text: None),
    "no rank left": lambda folder: LostRanks(
        SimpleNamespace(exchanges=SimpleNamespace(num_stepping=0)), {}, lambda text: None
    ),
    "past": lambda folder: PastChecks(state_of(past_checks=(MagicMock(),))),
    "signal": lambda folder: StopSignal(lambda: 0, state_of()),
    "signal that came": lambda folder: StopSignal(lambda: 15, state_of()),
    "time limit": lambda folder: TimeLimit(Deadline("10-00"), lambda: 1.0, state_of()),
    "time is over": lambda folder: TimeLimit(Deadline("10-00"), lambda: 1e9, state_of()),
    "loading": lambda folder: LoadingAnswer("policy.zip"),
    "status": lambda folder: RunStatus(str(folder / "run.h5"), Status(str(folder / "run.h5"), 100)),
    "lines": lambda folder: ProgressLine(Lines(100, every_s=0.0), Spent(True, False)),
    "bar": lambda folder: ProgressLine(make_progress("bar", 100), Spent(False, True)),
    "limit": lambda folder: LimitMeter(0.1, Job(), state_of()),
    "trace": lambda folder: Trace(str(folder / "trace.json"), Job(), lambda: 0),
    "trace that cannot be written": lambda folder: Trace(str(folder / "gone" / "trace.json"), Job(), lambda: 0),
    "other teams": teams_of,
    "all": lambda folder: Watchers([teams_of(folder), FileNotes(state_of(), 0)]),
    "nothing": lambda folder: Watchers([]),
}


@pytest.mark.parametrize("name", OURS)
def test_our_watchers_do_as_the_contract_says(name: str, tmp_path: Path):
    check_watcher(lambda: OURS[name](tmp_path))


def test_the_curves_do_as_the_contract_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("tensorboard")
    monkeypatch.setattr("mpi_rollout.collect.scalars.LEAST_S", 0.0)
    check_watcher(lambda: Scalars(str(tmp_path), Spent(True, False), state_of()))
    assert list(tmp_path.iterdir())


class Raising(Watcher):
    def on_fault(self, env_index: int, step: int, message: str) -> None:
        raise KeyError(env_index)


class Ending(Watcher):
    """Ends a run where it may not."""

    def on_close(self, progress: Progress) -> None:
        raise Interrupted("enough")


class Impatient(Watcher):
    """Believes that a run begins before it ends."""

    def on_start(self, num_steps: int) -> None:
        self.first = num_steps

    def on_end(self, end: End) -> None:
        self.num_new = end.num_committed - self.first


class Careless(Watcher):
    """Believes that a rate is there from the first look on."""

    def on_look(self, progress: Progress) -> None:
        int(progress.env_steps_per_s)


class Greedy(Watcher):
    """Takes out what it is told."""

    def on_losses(self, ranks: list[LostRank]) -> None:
        ranks.clear()


class Answering(Watcher):
    def on_look(self, progress: Progress) -> bool:
        return progress.num_steps > 100


class Other(Watcher):
    """Is told by other names."""

    def on_fault(self, env: int, message: str) -> None:
        pass


class Partial:
    """Inherits nothing."""

    def on_look(self, progress: Progress) -> None:
        pass


class Unlucky(Watcher):
    """Is in the middle of something when a signal comes."""

    def __init__(self):
        self.lines: list[str] | None = []

    def on_look(self, progress: Progress) -> None:
        lines, self.lines = self.lines, None
        self.lines = [*lines, str(progress.num_steps)]

    def on_stop(self, signal: int) -> None:
        self.lines.clear()


class OfEpisodes(Watcher):
    """Believes that each run ends with its episodes."""

    def on_look(self, progress: Progress) -> None:
        assert isinstance(progress.episodes, Episodes)


WRONG = {
    Raising: "on_fault.* raised KeyError",
    Ending: "on_close.* raised .*only check, on_look, on_losses may end a run",
    Impatient: "on_end.* raised AttributeError",
    Careless: "on_look.* raised ValueError",
    Greedy: "on_losses.* changed what it was told",
    Answering: "on_look.* returned False; nobody takes it",
    Other: r"on_fault of Other takes \['env', 'message'\], a run gives \['env_index', 'step', 'message'\]",
    Partial: "Partial has no method check; inherit it from Watcher",
    Unlucky: "on_stop.* raised AttributeError",
    OfEpisodes: "on_look.* raised AssertionError",
}


@pytest.mark.parametrize(("wrong", "words"), WRONG.items(), ids=lambda value: getattr(value, "__name__", None))
def test_a_watcher_that_breaks_the_contract_is_found(wrong: type[Watcher], words: str):
    with pytest.raises(AssertionError, match=words):
        check_watcher(wrong)


def test_a_list_tells_its_members_in_order_and_none_behind_one_that_ends_the_run():
    told: list[str] = []

    class Named(Watcher):
        def __init__(self, name: str, ends: bool = False):
            self.name, self.ends = name, ends

        def check(self) -> None:
            told.append(self.name)
            if self.ends:
                raise ValueError(self.name)

    Watchers([Named("a"), Named("b"), Named("c")]).check()
    with pytest.raises(ValueError, match="b"):
        Watchers([Named("a"), Named("b", ends=True), Named("c")]).check()
    assert told == ["a", "b", "c", "a", "b"]
