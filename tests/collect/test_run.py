"""How a run begins and ends, and `run --dry-run`: what it would be refused for, told by one process without MPI."""

import gc
import signal
import weakref
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import envs
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from jobs import Job
from refusals import refused
from single_rank import single_team
from stopped_runs import OUT

from mpi_rollout.collect import run as run_module
from mpi_rollout.config import RolloutConfig
from mpi_rollout.envs.faults import ABORT
from mpi_rollout.errors import Interrupted, UsageError
from mpi_rollout.exchange.single_rank import SingleRankComm
from mpi_rollout.process.interrupts import STOP_SIGNALS
from mpi_rollout.ranks.job_ranks import join

pytestmark = pytest.mark.any_mpi

RUN = ("run", "--dry-run", "--env-factory", "envs:Counting", "--num-envs", "4", "--num-steps", "3")


def test_what_can_run_is_ready_and_nothing_is_left_behind(job: Job):
    result = job(None, *RUN, *OUT, "--expect-ranks", "4")
    assert (result.code, result.out, result.err) == (0, "ready: 4 envs on 4 ranks, --out run.h5\n", "")
    assert list(job.folder.iterdir()) == []
    one = job(None, *RUN, *OUT, "--num-envs", "1")
    assert (one.code, one.out) == (0, "ready: 1 env on 1 rank, --out run.h5\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--expect-ranks", "5"), 64, "got 4 envs on 5 ranks; use more envs or fewer ranks"),
        (("--policy", "policies:none"), 64, "--policy policies:none: "),
        (("--env-factory", "envs:none"), 64, "--env-factory envs:none: "),
        (("--out", "none/run.h5"), 74, "there is no folder "),
        (("--seed", "one"), 64, "--seed"),
    ],
)
def test_what_a_run_would_refuse_is_refused_with_its_code(job: Job, arguments: tuple[str, ...], code: int, words: str):
    assert words in refused(job, *RUN, *OUT, *arguments, code=code)


def test_an_env_that_cannot_be_made_has_its_stack_and_the_code_of_envs(job: Job):
    (job.folder / "mine.py").write_text("def make():\n    return 1 / 0\n")
    result = job(None, *RUN, *OUT, "--env-factory", "mine:make")
    assert result.code == 70 and "ZeroDivisionError" in result.messages[0] and result.num_tracebacks == 1


def test_an_output_of_another_run_is_refused_and_a_complete_one_is_not_made_again(job: Job):
    job.collect(None, *RUN[2:])
    assert "is of another run: --seed was 0, is 1" in refused(job, *RUN, *OUT, "--seed", "1")
    result = job(None, *RUN, *OUT)
    assert (result.code, result.out) == (0, "") and "nothing is left to do" in result.messages[0]
    (job.folder / "run.h5").rename(job.folder / "run.h5.part")
    assert "is of another run: --seed was 0, is 1" in refused(job, *RUN, *OUT, "--seed", "1")


def test_it_loads_no_mpi(job: Job):
    result = job.script(
        None,
        "import sys\nfrom mpi_rollout.cli import main\n"
        f"assert main({[*RUN, *OUT]!r}) == 0\nassert not any(name.startswith('mpi4py') for name in sys.modules)",
    )
    assert result.code == 0, result.err


# In this process, alone.


class Left(BaseException):
    """This process would be gone."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a run does besides, in turn, on a single rank without MPI."""
    noted: list[str] = []

    def note(name: str) -> None:
        monkeypatch.setattr(run_module, name, lambda *_: noted.append(name))

    def leave(code: int, finalizes: bool = True) -> None:
        noted.append(f"leave {code} {finalizes}")
        raise Left

    for name in ("guard", "be_last", "release"):
        note(name)
    monkeypatch.setattr(run_module, "share_line", lambda is_shared: noted.append(f"share {is_shared}"))
    monkeypatch.setattr(run_module, "find_terminal", lambda: object())
    monkeypatch.setattr(run_module, "is_ulfm_on", lambda: False)
    monkeypatch.setattr(run_module.agreement, "come_together", lambda timeout_s: SingleRankComm())
    monkeypatch.setattr(run_module.world, "library_name", lambda: "no MPI library")
    timer = SimpleNamespace(cancel=lambda: noted.append("cancel"))
    monkeypatch.setattr(run_module.job_end, "watch_end", lambda *_: SimpleNamespace(begin=lambda: timer))
    monkeypatch.setattr(run_module.job_end, "leave", leave)
    monkeypatch.setattr(run_module.job_end, "no_early_end", lambda *_, **__: nullcontext())
    before = {number: signal.signal(number, lambda *_: None) for number in (*STOP_SIGNALS, signal.SIGUSR1)}
    yield noted
    for number, handler in before.items():
        signal.signal(number, handler)


def config(folder: Path, **options: object) -> RolloutConfig:
    sizes = {"env_factory": "envs:Counting", "num_envs": 3, "num_steps": 20, "progress": "none"}
    return RolloutConfig(out=str(folder / "run.h5"), **sizes | options)


def test_a_run_gives_back_what_it_holds_of_terminal_and_launcher(tmp_path: Path, steps: list[str]):
    assert run_module.run(config(tmp_path)) == 0
    assert steps == ["share False", "cancel", "share False", "release"]
    assert (tmp_path / "run.h5").exists()
    steps.clear()
    with pytest.raises(UsageError):
        run_module.run(config(tmp_path, num_envs=4, progress="bar"))
    assert steps == ["share True", "share False", "release"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGUSR1"])
def test_who_asks_a_run_to_stop_while_envs_are_made_is_heard(tmp_path: Path, steps, monkeypatch, capfd, name: str):
    """Also where an env lets no interrupt through."""
    make = envs.Counting.__init__

    def init(self: envs.Counting) -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(getattr(signal, name))
        make(self)

    monkeypatch.setattr(envs.Counting, "__init__", init)
    assert run_module.run(config(tmp_path)) == 75
    assert f"stopped by {name}" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_interrupts_the_making_of_envs(tmp_path: Path, steps, monkeypatch, name: str):
    monkeypatch.setattr(envs.Counting, "__init__", lambda self: signal.raise_signal(getattr(signal, name)))
    with pytest.raises(Interrupted, match=f"stopped by {name} before the first step; give the same command again"):
        run_module.run(config(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("num_ranks", "is_last"), [(1, True), (2, False)])
def test_under_a_launcher_that_ends_no_job_another_process_stands_in(
    tmp_path: Path, steps: list[str], monkeypatch, num_ranks: int, is_last: bool
):
    monkeypatch.setattr(run_module, "is_ulfm_on", lambda: True)
    monkeypatch.setattr(run_module.world, "claimed_size", lambda: (num_ranks, "SIZE" * (num_ranks > 1)))
    assert run_module.run(config(tmp_path)) == 0
    assert steps[:2] == ["guard", "be_last" if is_last else "share False"]


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        ({}, 0, ["cancel"]),
        ({}, 70, ["cancel"]),
        ({}, 74, ["cancel", "leave 74 True"]),
        ({"on_rank_loss": "shrink"}, 0, ["cancel", "release", "leave 0 False"]),
    ],
)
def test_how_a_rank_leaves_depends_on_what_went_wrong(
    tmp_path: Path, steps: list[str], monkeypatch, options: dict, code: int, expected: list[str]
):
    timer = SimpleNamespace(cancel=lambda: steps.append("cancel"))
    monkeypatch.setattr(run_module, "_collect", lambda *_: (code, timer))
    # all_or_none would take `Left` for a failure of this rank.
    monkeypatch.setattr(run_module.job_end, "all_or_none", lambda comm: nullcontext())
    with pytest.raises(Left) if any("leave" in step for step in expected) else nullcontext():
        assert run_module.run(config(tmp_path, **options)) == code
    assert steps[1:-2] == expected


def test_a_run_that_may_lose_ranks_needs_two(tmp_path: Path):
    with pytest.raises(UsageError, match=r"--on-rank-loss shrink needs 2 ranks or more, got 1; use mpirun"):
        options = config(tmp_path, on_rank_loss="shrink")
        run_module.prepare(single_team(options), join(options, SingleRankComm(), 1.0, "", dict))
    assert list(tmp_path.iterdir()) == []


def test_a_rehearsal_makes_one_env_and_closes_it(tmp_path: Path, monkeypatch):
    closed: list[str] = []
    monkeypatch.setattr(envs.Counting, "close", lambda self: closed.append("closed"))
    assert run_module.rehearse(config(tmp_path), 2) == f"ready: 3 envs on 2 ranks, --out {tmp_path / 'run.h5'}"
    assert closed == ["closed"] and list(tmp_path.iterdir()) == []
    text = run_module.rehearse(config(tmp_path, num_steps=10**6), 1)
    assert text.startswith(f"ready: 3 envs on 1 rank, --out {tmp_path / 'run.h5'}; 3 envs x 1,000,000 steps take about")


@pytest.mark.parametrize(("batch_size", "first_ready"), [(None, False), (1, True)])
def test_ranks_are_served_as_they_get_ready_if_they_shall(tmp_path: Path, batch_size: int | None, first_ready: bool):
    plan = run_module.plan_of(config(tmp_path, batch_size=batch_size), 2)
    assert plan.division.first_ready is first_ready and plan.is_random and plan.on_fault == ABORT
    other = run_module.plan_of(config(tmp_path, policy="policies:by_look", max_env_restarts=10), 2)
    assert not other.is_random and other.on_fault.max_restarts > 0


def test_spaces_that_no_file_can_hold_are_refused_where_they_are_to_be_stored(tmp_path: Path):
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    space = spaces.Dict({"a/b": spaces.Discrete(2)})
    envs = SimpleNamespace(observation_space=space, action_space=spaces.Discrete(2), metadata=metadata)
    with pytest.raises(UsageError, match="'a/b', which cannot be a name in HDF5"):
        run_module.check_facts(config(tmp_path), envs)
    run_module.check_facts(config(tmp_path, trajectories=False), envs)
    run_module.check_facts(config(tmp_path), None)


def test_signals_hold_no_envs_after_a_run(tmp_path: Path, steps: list[str], monkeypatch):
    alive: weakref.WeakSet = weakref.WeakSet()
    make = envs.Counting.__init__

    def init(self: envs.Counting) -> None:
        make(self)
        alive.add(self)

    monkeypatch.setattr(envs.Counting, "__init__", init)
    assert run_module.run(config(tmp_path)) == 0
    gc.collect()
    assert not alive
