"""What is told of the progress of a comparison, whose systems are made up here."""

from pathlib import Path
from typing import Any

import pytest
from made_up_comparisons import ENV, made_up, make_comparison

from mpi_rollout.bench.compare.comparison import Samples
from mpi_rollout.bench.compare.runner import Runner
from mpi_rollout.bench.compare.systems import System
from mpi_rollout.bench.compare.turns import Turn
from mpi_rollout.bench.jobs import JobFailed, Stop


class FakeProcesses:
    """Do at once what they are told; those of a system fail."""

    failing = ""

    def __init__(self, system: System, _env: str):
        self.system = system

    def make(self, _num_envs: int) -> None: ...

    def has_answer(self, _seconds: float) -> bool:
        return True

    def await_answer(self) -> Any:
        if self.system.name == self.failing:
            raise JobFailed("no licence")

    def take_turn(self, window_s: float) -> Turn:
        return Turn(0.1, 100, window_s, 10)

    def close(self) -> None: ...

    def leave(self) -> None: ...

    def end(self) -> None: ...


@pytest.mark.parametrize(
    ("failed_before", "failing", "words"),
    [
        ("", "", "3 systems"),
        ("", "sync", "2 systems, 1 failed"),
        ("sync", "", "2 systems"),  # What failed before has no more turns, and is not counted again.
        ("sync", "async", "1 system, 1 failed"),
    ],
)
def test_the_line_of_a_point_counts_what_was_measured_since_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, failed_before: str, failing: str, words: str
):
    comparison = make_comparison(num_envs=(4,), systems=("bare", "sync", "async"), repeats=2)
    file = made_up(comparison, failing=failed_before)
    before = Samples(tuple(file.samples.failed))
    monkeypatch.setattr(FakeProcesses, "failing", failing)
    runner = Runner(type(file)(comparison, file.facts, file.origin, before), "compare.h5", FakeProcesses, Stop())
    monkeypatch.chdir(tmp_path)
    runner.run()
    assert capsys.readouterr().err.splitlines()[-1] == f"mpi_rollout: point 1 of 1: {ENV}, 4 envs: {words}"
