"""`--log-dir`: the curves are those of the file, as TensorBoard reads them; a run goes on without them."""

import resource
from pathlib import Path
from unittest.mock import MagicMock

import h5py
import numpy as np
import pytest
from jobs import Job

from mpi_rollout.collect.run_state import RunState
from mpi_rollout.collect.scalars import Scalars
from mpi_rollout.collect.watcher import Progress, Spending
from mpi_rollout.process.clock import PHASES, Spent
from mpi_rollout.text import pip_install

pytestmark = pytest.mark.any_mpi
RUN = ("--env", "CartPole-v1", "--num-envs", "6", "--seed", "3")
GROUPS = ("--num-groups", "2")
TIMES = {"envs", "imbalance", "exchange", "policy", "write"}


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """All curves of a folder, as TensorBoard reads them."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = events.EventAccumulator(str(folder)).Reload()
    return {tag: [(point.step, point.value) for point in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


@pytest.mark.mpi(1, 2, 3)
def test_the_curves_are_those_of_the_file_also_of_a_run_that_is_extended(job: Job, num_ranks: int):
    pytest.importorskip("tensorboard")
    first = (*RUN, "--log-dir", "curves", "--out", "run.h5", "--num-steps")
    groups = (*RUN, *GROUPS, "--num-steps", "50", "--log-dir", "groups", "--out", "groups.h5")
    assert job.train(num_ranks, "runs", [[*first, "300"], groups]) == [0, 0]
    before = curves(job.folder / "curves")
    assert job.train(num_ranks, "runs", [[*first, "700"]]) == [0]
    found, file = curves(job.folder / "curves"), h5py.File(job.folder / "run.h5")
    rows = file["episodes"][...]
    ended = rows[rows["terminated"] | rows["truncated"]]
    steps = [step for step, _ in found["throughput/env_steps_per_s"]]
    assert steps == sorted(steps) and steps[-1] == rows["length"].sum()
    assert sum(value for _, value in found["episodes/ended"]) == len(ended)
    for name, values in before.items():  # The run goes on behind what there was.
        assert found[name][: len(values)] == values
    counts = [value for _, value in found["episodes/ended"] if value]
    for name in ("return", "length"):
        total = sum(counts * np.array([value for _, value in found[f"episodes/{name}_mean"]]))
        assert total == pytest.approx(ended[name].sum(), rel=1e-5)
    assert {name for name in found if name.startswith("time/")} == {f"time/{word}" for word in TIMES}
    shares = [sum(dict(found[f"time/{word}"])[step] for word in TIMES) for step in steps]
    assert shares == pytest.approx([1.0] * len(steps), abs=1e-5)
    assert "throughput/env_steps_per_s" in curves(job.folder / "groups")


@pytest.mark.mpi(2)
def test_a_folder_that_cannot_be_written_ends_no_run(job: Job):
    pytest.importorskip("tensorboard")
    run = ("--env-factory", "vanishing_folder:make", "--num-envs", "4", "--num-steps", "60", "--progress", "none")
    result = job(2, *run, "--log-dir", "gone", "--out", "run.h5")
    assert result.code == 0 and (job.folder / "run.h5").exists()
    words = "mpi_rollout: --log-dir gone: No such file or directory; the run goes on without these curves"
    assert result.err.splitlines().count(words) == 1


def test_a_disk_that_gets_full_is_told_once_and_what_is_there_can_be_read(tmp_path: Path, monkeypatch, capfd):
    pytest.importorskip("tensorboard")
    monkeypatch.setattr("mpi_rollout.collect.scalars.LEAST_S", 0.0)  # Each look is a point.
    monkeypatch.setattr("mpi_rollout.collect.scalars.PART", float("inf"))
    state = RunState(None, writer=MagicMock(ended=np.array([1.0, 2.0, 3.0])))
    scalars, before = Scalars(str(tmp_path), Spent(True, False), state), resource.getrlimit(resource.RLIMIT_FSIZE)
    spent = Spending(1.0, 1.0, dict.fromkeys(PHASES, 1.0))
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
        for number in range(1, 31):
            scalars.on_look(Progress(number, 10 * number, interval_s=0.5 * (number > 1), spent=spent))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    scalars.on_close(Progress(30, 300, spent=spent))
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "File too large; the run goes on without these curves" in err
    points = curves(tmp_path)["throughput/env_steps_per_s"]
    assert 2 < len(points) < 30 and points[0] == (20, 20.0)


def test_a_folder_that_cannot_be_made_or_a_missing_package_is_refused_at_the_start(job: Job):
    (job.folder / "file").touch()
    run = (*RUN, "--num-steps", "5", "--log-dir", "file")
    result = job(None, *run)
    package = pip_install("[tensorboard]")
    assert (result.code, result.messages) in (
        (74, ["--log-dir file: cannot make this folder: File exists"]),
        (64, [f"--log-dir needs tensorboard; {package}"]),
    )
    rehearsed = job(None, *run[:-1], "new/curves", "--dry-run")
    assert rehearsed.code in (0, 64) and not (job.folder / "new").exists()
    (job.folder / "tensorboard.py").write_text("raise ImportError('it is not installed')")
    result = job(None, *run)
    assert (result.code, result.messages) == (64, [f"--log-dir needs tensorboard; {package}"])
    assert not list(job.folder.glob("*results*"))
