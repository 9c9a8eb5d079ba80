"""A whole run on a single rank, without MPI and without a process of its own."""

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import envs as test_envs
import h5py
import numpy as np
import pytest
import single_rank
from jobs import assert_same_bytes, datasets
from oracle import rollout, seeded_sync
from single_rank import drive, root_of

from mpi_rollout.collect import root as root_module
from mpi_rollout.collect import run_output
from mpi_rollout.collect.root import Root
from mpi_rollout.core.layout import Contents
from mpi_rollout.drive.actions import RandomActions
from mpi_rollout.errors import SignalInterrupt, StorageError
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.storage import ownership, run_file, schema
from mpi_rollout.storage.status import read_status

NUM_ENVS, NUM_STEPS = 3, 20
SPACES = test_envs.Counting.observation_space, test_envs.Counting.action_space


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run.h5"


def expected(num_steps: int = NUM_STEPS) -> dict[str, np.ndarray]:
    envs = seeded_sync(test_envs.Counting, NUM_ENVS, 0)
    return rollout(envs, RandomPolicy(envs.single_action_space, NUM_ENVS, 0), num_steps)


def assert_whole(path: Path) -> None:
    """A file has what Gymnasium gives."""
    stored = datasets(path)
    del stored["/episodes"]
    assert_same_bytes(stored, expected())


def cart_poles(out: Path, num_calls: int = NUM_STEPS) -> Root:
    """A run that can be continued, and whose policy fails after some calls."""
    num_left = iter(range(num_calls))

    def policy(observations: np.ndarray) -> np.ndarray:
        if next(num_left, None) is None:
            raise ValueError("no idea")
        return np.ones(len(observations), np.int64)

    return root_of(out, policy, env_factory=None, env="CartPole-v1")


def test_a_run_writes_what_gymnasium_gives(out: Path, capfd: pytest.CaptureFixture[str]):
    assert drive(root_of(out)) == 0
    assert_whole(out)
    assert [path.name for path in sorted(out.parent.iterdir())] == ["run.h5", "run.status.json"]
    status = read_status(str(out))
    assert (status["state"], status["exit_code"], status["num_steps"], status["starts"]) == ("complete", 0, 20, 1)
    said = capfd.readouterr()
    assert said.err == "" and "(3 envs x 20 steps on 1 rank)" in said.out and f"file: {out} (complete)" in said.out


def test_a_file_says_where_it_comes_from(out: Path):
    assert drive(root_of(out, seed=7)) == 0
    with h5py.File(out) as file:
        attributes = dict(file.attrs)
        ranks = file["throughput/ranks"][...]
        env_steps = file["throughput"].attrs["env_steps"]
    assert (attributes["seed"], attributes["num_envs"], attributes["num_ranks"]) == (7, NUM_ENVS, 1)
    assert json.loads(attributes["hosts"]) == ["here"] and attributes["autoreset_mode"] == "NextStep"
    assert json.loads(attributes["config"])["env_factory"] == "envs:Counting" and attributes["env_spec"] == ""
    assert json.loads(attributes["spaces"]).keys() == {"observation", "action"}
    assert ranks["num_envs"].tolist() == [NUM_ENVS] and 0 < env_steps <= NUM_ENVS * NUM_STEPS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a run that nothing stops."""
    out = tmp_path_factory.mktemp("whole") / "run.h5"
    assert drive(cart_poles(out)) == 0
    return out


@pytest.mark.parametrize("num_calls", [1, 13])
def test_a_run_whose_policy_fails_keeps_all_steps_and_is_continued(out: Path, whole: Path, capfd, num_calls: int):
    assert drive(cart_poles(out, num_calls)) == 70
    words = capfd.readouterr().err
    assert f"step {num_calls}: policy: ValueError: no idea" in words
    assert f"before {'is' if num_calls == 1 else 'are'} in {out}.part" in words
    status = read_status(str(out))
    assert (status["state"], status["exit_code"], status["num_steps"]) == ("failed", 70, num_calls)
    assert drive(cart_poles(out)) == 0
    resumed = capfd.readouterr().err
    assert resumed.startswith(f"mpi_rollout: continuing {out}.part after {num_calls} of 20 steps; took ")
    assert float(resumed.rstrip().removesuffix(" s").rpartition(" in ")[2]) < 60.0
    assert_same_bytes(datasets(out), datasets(whole))
    assert read_status(str(out))["starts"] == 2 and not Path(f"{out}.part").exists()


def env_steps_of(path: Path | str) -> int:
    with h5py.File(path) as file:
        return int(file["throughput"].attrs["env_steps"])


def test_the_starts_of_a_run_have_all_its_env_steps_together(out: Path, whole: Path):
    """The row after an episode's end is no env step, though the end is in what an earlier start has written."""
    columns = datasets(whole)
    num_calls = int(columns["terminations"].any(axis=1).argmax()) + 1
    assert 1 < num_calls < NUM_STEPS
    assert drive(cart_poles(out, num_calls)) == 70
    first = env_steps_of(f"{out}.part")
    assert drive(cart_poles(out)) == 0
    assert first + env_steps_of(out) == env_steps_of(whole)


def test_wrong_actions_end_a_run_with_their_step(out: Path, capfd: pytest.CaptureFixture[str]):
    assert drive(root_of(out, lambda observations: np.full(NUM_ENVS, 9))) == 65
    assert "step 0: the policy's action for env 0 must be in 2 to 6, got 9" in capfd.readouterr().err
    assert sorted(path.name for path in out.parent.iterdir()) in ([], ["run.status.json"])


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_an_error_that_nobody_expects_is_told_with_its_stack(out: Path, monkeypatch, capfd):
    monkeypatch.setattr(root_module.Collector, "advance", raising(KeyError("a mistake of ours")))
    monkeypatch.syspath_prepend(out.parent)
    monkeypatch.setitem(sys.modules, "this", SimpleNamespace(__file__=str(out.parent / "this.py")))  # The user's own.
    assert drive(root_of(out)) == 70
    words = capfd.readouterr().err
    assert "Traceback (most recent call last)" in words and "step 0: KeyError: 'a mistake of ours'" in words
    assert "this.py" not in words


def test_an_end_at_once_is_told_by_the_status_and_by_whoever_called(out: Path, whole: Path, monkeypatch):
    assert drive(cart_poles(out, 1)) == 70
    monkeypatch.setattr(root_module.Collector, "advance", raising(SignalInterrupt("stop")))
    with pytest.raises(SignalInterrupt):
        drive(cart_poles(out))
    status = read_status(str(out))
    assert (status["exit_code"], status["num_steps"]) == (75, 1) and status["state"] != "running"


def test_a_run_that_had_only_to_close_its_file_takes_no_more_steps(out: Path, whole: Path, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        patch.setattr(run_file, "check_index", raising(StorageError("no space left")))
        assert drive(cart_poles(out)) == 74
    assert "no space left" in capfd.readouterr().err
    assert drive(cart_poles(out, num_calls=0)) == 0
    assert "after 20 of 20 steps" in capfd.readouterr().err
    assert_same_bytes(datasets(out), datasets(whole))


@pytest.mark.parametrize(("num_steps", "num_parts"), [(20, 5), (7, 5), (3, 3), (1, 1)])
def test_the_limit_is_measured_around_each_part_of_a_run(out: Path, num_steps: int, num_parts: int):
    assert drive(root_of(out, num_steps=num_steps, measure_limit=True, limit_s=0.001)) == 0
    with h5py.File(out) as file:
        rows = file["throughput/limit"][...]
        assert file["trajectories"].attrs["num_steps"] == num_steps
    assert len(rows) == num_parts and all(min(row) > 0 for row in rows.tolist())


def test_without_trajectories_only_the_throughput_is_written(out: Path):
    assert drive(root_of(out, trajectories=False)) == 0
    with h5py.File(out) as file:
        assert set(file) == {"chunks", "commits", "throughput", "faults"} and file["throughput"].attrs["env_steps"] > 0


def test_the_memory_of_three_blocks_is_checked_and_room_for_the_file(out: Path, monkeypatch, capfd):
    asked: list[int] = []
    monkeypatch.setattr(run_output, "check_blocks", asked.append)
    monkeypatch.setattr(ownership, "TOLD_NBYTES", 1)
    assert drive(root_of(out)) == 0
    row_nbytes = Contents(*SPACES).row_nbytes(NUM_ENVS)
    assert asked == [3 * schema.rows_per_block(row_nbytes, NUM_STEPS) * row_nbytes]
    [message] = capfd.readouterr().err.splitlines()
    assert message.startswith("mpi_rollout: 3 envs x 20 steps take about ") and message.endswith(" free there)")


def test_natively_vectorized_envs_are_reset_with_the_seed_of_the_run(out: Path):
    options = {"env_factory": None, "env": "CartPole-v1", "vectorization_mode": "vector_entry_point"}
    for name, seed in (("first", 1), ("again", 1), ("other", 2)):
        assert drive(root_of(out.with_name(f"{name}.h5"), seed=seed, **options)) == 0
    first, again, other = (datasets(out.with_name(f"{name}.h5")) for name in ("first", "again", "other"))
    assert_same_bytes(first, again)
    assert first["observations"].tobytes() != other["observations"].tobytes()


def test_what_the_user_must_take_care_of_is_said_at_the_start(out: Path, monkeypatch, capfd):
    opened = single_rank.claim_output
    monkeypatch.setattr(single_rank, "claim_output", lambda config: replace(opened(config), warning="beware"))
    assert drive(root_of(out)) == 0
    assert capfd.readouterr().err == "mpi_rollout: beware\n"


@pytest.mark.parametrize("progress", ["auto", "none"])
def test_a_policy_whose_package_is_not_loaded_yet_is_named_and_a_signal_meanwhile_answered_once(
    out: Path, monkeypatch, capfd, progress: str
):
    """Before its package is imported, and not after that."""
    monkeypatch.delitem(sys.modules, "stable_baselines3", raising=False)

    def load(*_: object) -> RandomActions:
        for _ in range(2):
            root.on_stop(signal.SIGUSR1)
        return RandomActions(RandomPolicy(root._driver.action_space, NUM_ENVS, 0))

    monkeypatch.setattr(root_module, "make_source", load)
    monkeypatch.setattr(single_rank, "PolicySource", lambda *_: PolicySource("sb3", "p.zip"))
    root = root_of(out, progress=progress)
    assert drive(root) == 0
    root.on_stop(signal.SIGUSR1)
    *loading, stopped = capfd.readouterr().err.splitlines()
    assert loading == ["mpi_rollout: loading p.zip with stable_baselines3"] * (progress == "auto")
    assert stopped.startswith("mpi_rollout: stopped by SIGUSR1: ends when p.zip is loaded, or at once")


def test_nothing_is_said_of_a_package_that_is_there(out: Path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    monkeypatch.setattr(single_rank, "PolicySource", lambda *_: PolicySource("sb3", "p.zip"))
    root = root_of(out, progress="auto")
    monkeypatch.setattr(root_module, "make_source", raising(StorageError("so far")))
    root.on_stop(signal.SIGUSR1)
    assert drive(root) == 74 and capfd.readouterr().err == "mpi_rollout: so far\n"
