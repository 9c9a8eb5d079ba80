"""How a run ends, without a run."""

import json
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from single_rank import single_team

from mpi_rollout.collect.leaders import Leaders
from mpi_rollout.collect.run_end import RunEnd
from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.run_status import RunStatus
from mpi_rollout.collect.watcher import Watcher, Watchers
from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import DataError, Interrupted, Option, RolloutError, StorageError, UsageError, as_flag
from mpi_rollout.exchange.single_rank import SingleRankComm

pytestmark = pytest.mark.any_mpi


class Line(Watcher):
    """A line on the terminal, which must be cleared before anything is said."""

    is_clear = False

    def on_stop(self, signal: int) -> None:
        assert signal == 0
        self.is_clear = True


def run_end(folder: Path, state: RunState, as_json: bool = False) -> tuple[RunEnd, MagicMock]:
    """One of a run that is continued: a first start that came to nothing leaves no status."""
    config = RolloutConfig(env="CartPole-v1", out=str(folder / "run.h5"), json=as_json)
    status, line = MagicMock(is_first=False), Line()

    def tell(*_args: object, **_values: object) -> None:
        assert line.is_clear

    status.tell.side_effect = tell
    end = RunEnd(
        team=single_team(config),
        leaders=Leaders(SingleRankComm()),
        config=config,
        driver=MagicMock(),
        state=state,
        watchers=Watchers([RunStatus(config.path, status), line]),
        lost_ranks=MagicMock(),
        other_teams=MagicMock(),
    )
    return end, status


@pytest.mark.parametrize(
    ("error", "code", "state"),
    [
        (StorageError(Option("num_envs"), " is too large"), 74, "failed"),
        (Interrupted("stopped"), 75, "interrupted"),
        (DataError("wrong actions"), 65, "failed"),
    ],
)
def test_user_status_and_code_are_told_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], error: RolloutError, code: int, state: str
):
    """Options are called as they are typed."""
    end, status = run_end(tmp_path, RunState(None), as_json=True)
    message = error.shown(as_flag)
    assert end.fail(error) == code
    out, err = capfd.readouterr()
    assert err == f"mpi_rollout: {message}\n" and json.loads(out) == {"error": message, "exit_code": code}
    [told] = status.tell.call_args_list
    assert told.args == (state,) and told.kwargs["exit_code"] == code and told.kwargs["message"] == message


def test_an_output_that_another_run_writes_keeps_its_status(tmp_path: Path):
    end, status = run_end(tmp_path, RunState(None))
    assert end.fail(UsageError("another run writes there")) == 64
    status.tell.assert_not_called()


def test_a_first_start_that_came_to_nothing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"):
        monkeypatch.delenv(name, raising=False)
    writer = MagicMock(num_committed=0)
    end, status = run_end(tmp_path, RunState(None, writer=writer))
    status.is_first = True
    end.fail(DataError("wrong"))
    writer.discard.assert_called_once()
    status.remove.assert_called_once()
    status.tell.assert_not_called()


def test_steps_that_are_whole_are_kept_and_told_of(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    state = RunState(None, writer=MagicMock(num_committed=0), collector=MagicMock(num_steps=12))
    state.writer.finish.return_value = "run.h5.part"
    end, _ = run_end(tmp_path, state)
    end.fail(DataError("wrong"))
    state.collector.hand_over.assert_called_once()
    assert capfd.readouterr().err == "mpi_rollout: wrong; the 12 steps before are in run.h5.part\n"


def test_a_failure_to_keep_them_is_told_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    state = RunState(None, writer=MagicMock(num_committed=0), collector=MagicMock(num_steps=1))
    state.collector.hand_over.side_effect = StorageError("no space left")
    end, _ = run_end(tmp_path, state)
    assert end.fail(DataError("wrong")) == 74
    assert capfd.readouterr().err == "mpi_rollout: wrong; then no space left\n"


def test_nothing_is_written_into_the_line_of_a_bar(tmp_path: Path):
    end, status = run_end(tmp_path, RunState(None))
    end.fail(DataError("wrong"))
    status.tell.assert_called_once()  # It looks at the line.
