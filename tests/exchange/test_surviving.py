"""Ranks that are lost while the others go on: `--on-rank-loss shrink` under `mpirun --with-ft ulfm`."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import compress, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from jobs import Job, Result, Running, datasets, is_hydra, job_environment, mpiexec, once, processes_in, rank_of
from stopped_runs import HOST, committed, kwargs, outputs

import mpi_rollout
from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.errors import UsageError
from mpi_rollout.exchange import surviving
from mpi_rollout.exchange.surviving import ShrinkingTransport
from mpi_rollout.exchange.transports import Buffers, Slots

pytestmark = pytest.mark.full_start

NUM_STEPS = 400
SHORT = ("--num-envs", "6", "--num-steps", "30")


@once
def has_ulfm() -> bool:
    """The launcher is Open MPI's, with ULFM; asked of the launcher."""
    if is_hydra():
        return False
    command = [mpiexec(), "--with-ft", "ulfm", "-n", "1", "env"]
    done = subprocess.run(command, env=job_environment(), capture_output=True, text=True, timeout=300)
    return "OMPI_MCA_mpi_ft_enable=1" in done.stdout


@pytest.fixture
def ulfm() -> None:
    if not has_ulfm():
        pytest.skip("needs Open MPI 5 with ULFM: mpirun --with-ft ulfm")


def start(job: Job, num_ranks: int, *arguments: str) -> Running:
    """Start a run that may lose ranks."""
    command = job.command(num_ranks, *arguments, "--on-rank-loss", "shrink", "--progress", "none", "--out", "run.h5")
    command[1:1] = ["--with-ft", "ulfm"]
    return Running(command, job.folder)


def messages(result: Result) -> list[str]:
    """What the program says, but for how a rank came to leave."""
    return [each for each in result.messages if not each.endswith("before the run was over; it is lost")]


def run(job: Job, num_ranks: int, *arguments: str) -> Result:
    return start(job, num_ranks, *arguments).finish()


def is_empty(folder: Path) -> bool:
    """No process of a job is left; those that stand in for ranks look for the launcher twice a second."""
    give_up = time.monotonic() + 5.0
    while processes_in(folder) and time.monotonic() < give_up:
        time.sleep(0.05)
    return not processes_in(folder)


STEP_BY_STEP = ("--fragment-length", "1")


def dying(after: dict[int, int], how: str = "kill") -> tuple[str, ...]:
    """The arguments of a run that loses ranks after some steps of their first env."""
    steps = ("--num-envs", "10", "--num-steps", str(NUM_STEPS))
    return "--env-factory", "failing_envs:dying", *kwargs(after=after, how=how), *steps


@once
def undisturbed(factory: str, num_envs: int, num_steps: int, folder: Path) -> dict[str, np.ndarray]:
    arguments = ("--num-envs", str(num_envs), "--num-steps", str(num_steps), "--progress", "none")
    out = f"{factory}-{num_envs}-{num_steps}.h5"
    return datasets(Job(folder).collect(None, "--env-factory", factory, *arguments, out=out))


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("undisturbed")


def losses(result: Result) -> dict[int, int]:
    """Of the envs that the run says it has lost the first step that they did not take, counted from 0."""
    found: dict[int, int] = {}
    for message in messages(result):
        told = re.match(rf"lost rank \d+ \({HOST}\), envs? (\d+)(?: to (\d+))?, at step ([\d,]+); going on", message)
        assert told, result.err
        first, last = int(told[1]), int(told[2] or told[1])
        found |= dict.fromkeys(range(first, last + 1), int(told[3].replace(",", "")))
    return found


def assert_whole_but(lost: dict[int, int], path: Path, whole: dict[str, np.ndarray]) -> None:
    """A file has what an undisturbed run gives, but for the envs that were lost, and of these their last word."""
    found = datasets(path)
    assert found.keys() == whole.keys() and lost
    here = np.array([env not in lost for env in range(whole["rewards"].shape[1])])
    for name in whole.keys() - {"/episodes"}:
        assert found[name].shape == whole[name].shape
        assert found[name][:, here].tobytes() == whole[name][:, here].tobytes(), name
        for env, step in lost.items():
            rows = step + name.startswith("observations")
            assert found[name][:rows, env].tobytes() == whole[name][:rows, env].tobytes(), (name, env)
            if name.startswith("observations"):
                assert (found[name][rows:, env] == found[name][step, env]).all(), (name, env)
    for env, step in lost.items():
        assert not found["rewards"][step:, env].any() and not found["terminations"][step:, env].any()
        assert found["truncations"][step:, env].all()
    is_here = here[whole["/episodes"]["env_index"]]
    episodes = found["/episodes"]
    assert np.array_equal(episodes[here[episodes["env_index"]]], whole["/episodes"][is_here])
    assert_ended(lost, episodes)
    with h5py.File(path) as file:
        assert file["throughput"].attrs["env_steps"] == episodes["length"].sum()


def assert_ended(lost: dict[int, int], episodes: np.ndarray) -> None:
    """Each lost env has one faulted episode, its last one, which ends in the step in which it was lost."""
    for env, step in lost.items():
        own = episodes[episodes["env_index"] == env]
        assert own["faulted"].tolist() == [False] * (len(own) - 1) + [True]
        assert own["truncated"][-1] and not own["terminated"][-1]
        assert own["start"][-1] + own["length"][-1] == step + 1


@pytest.mark.mpi(3)
def test_a_rank_that_is_lost_in_the_fragment_in_which_another_env_fails_leaves_no_steps_of_before(ulfm, job, num_ranks):
    hows = kwargs(killed_after=150, failing_after=160)
    sizes = ("--num-envs", "10", "--num-steps", "400", "--fragment-length", "128", "--no-seed-check")
    result = run(job, num_ranks, "--env-factory", "failing_envs:dying_and_failing", *hows, *sizes)
    told = re.search(rf"lost rank 1 \({HOST}\), envs 4 to 6, at step (\d+); going on", result.err)
    assert result.code == 70 and told, result.err
    with h5py.File(job.folder / "run.h5.part") as file:
        lost = slice(int(told[1]), int(file["trajectories"].attrs["num_steps"]))
        truncations = file["trajectories/truncations"][lost]
        assert len(truncations) and truncations[:, 4:7].all() and not truncations[:, 7:].all()
        assert {*file["faults"][...]["env_index"].tolist()} >= {4, 5, 6}


@pytest.mark.mpi(3)
@pytest.mark.parametrize(
    ("how", "options", "first_step", "envs"),
    [
        ("segfault", (), 0, range(4, 7)),
        ("os_exit", ("--fragment-length", "30", "--root-envs", "0"), 121, range(5)),
    ],
)
def test_the_job_goes_on_without_a_rank_however_it_has_gone(
    ulfm, job, shelf, num_ranks, how, options, first_step, envs
):
    """Of the fragment that it was lost in, a rank has sent no step."""
    result = run(job, num_ranks, *dying({1: 150}, how), *options)
    assert result.code == 0, result.err
    assert outputs(job.folder) == ["run.h5"]
    lost = losses(result)
    step = lost[envs[0]]
    assert [*lost] == [*envs] and first_step <= step < NUM_STEPS
    words = f"rank 1 ({HOST}), envs {envs[0]} to {envs[-1]}, at step {step}"
    assert messages(result) == [f"lost {words}; going on with {10 - len(envs)} of 10 envs"]
    assert f"lost {len(envs)} of 10 envs: {words}" in result.out
    assert_whole_but(lost, job.folder / "run.h5", undisturbed("envs:Nested", 10, NUM_STEPS, shelf))
    assert faults_in(job.folder / "run.h5") == sorted(lost.items())


@pytest.mark.mpi(2)
def test_agents_of_a_lost_env_act_no_more_and_their_episodes_are_truncated(ulfm, job, num_ranks):
    pytest.importorskip("pettingzoo")
    sizes = ("--num-envs", "4", "--num-steps", "60")
    result = run(job, num_ranks, "--env-factory", "agents_envs:Leaving", *sizes, *STEP_BY_STEP)
    assert result.code == 0, result.err
    lost = losses(result)
    assert [*lost] == [2, 3] and job(None, "verify", "run.h5").code == 0
    with mpi_rollout.open(job.folder / "run.h5") as whole:
        cut = {agent: [bool(whole.alive[agent][step, env]) for env, step in lost.items()] for agent in whole.agents}
        assert not any(whole.alive[agent][step + 1 :, env].any() for agent in cut for env, step in lost.items())
    assert any(acted for of_agent in cut.values() for acted in of_agent)
    for agent, acted in cut.items():
        with mpi_rollout.open(job.folder / "run.h5", agent=agent) as data:
            is_lost = np.isin(data.episodes["env_index"], [*lost])
            faulted, cut_here = data.episodes[data.episodes["faulted"]], [*compress(lost.items(), acted)]
            assert not data.episodes[~is_lost]["faulted"].any()
            assert faulted["env_index"].tolist() == [env for env, _ in cut_here]
            assert all(episode.truncations[-1] == episode.truncated for episode in data.iter_episodes())
            assert all(data.truncations[step, env] for env, step in cut_here)
            assert not np.isin(data.unfinished["env_index"], [*lost]).any()


@pytest.mark.mpi(4)
def test_one_loss_after_the_other_until_the_root_goes_on_alone(ulfm, job, shelf, num_ranks):
    result = run(job, num_ranks, *dying({3: 20, 1: 90, 2: 160}), *STEP_BY_STEP)
    assert result.code == 0, result.err
    lost = losses(result)
    assert [*lost] == [8, 9, 3, 4, 5, 6, 7] and lost[8] < lost[3] < lost[6]
    assert [message.rpartition("; ")[2] for message in messages(result)] == [
        f"going on with {num_left} of 10 envs" for num_left in (8, 5, 3)
    ]
    assert_whole_but(lost, job.folder / "run.h5", undisturbed("envs:Nested", 10, NUM_STEPS, shelf))


@pytest.mark.mpi(3)
def test_a_root_without_envs_goes_on_until_no_rank_is_left_that_has_some(ulfm, job, num_ranks):
    result = run(job, num_ranks, *dying({1: 20, 2: 100}), "--root-envs", "0", *STEP_BY_STEP)
    assert result.code == 70 and len(messages(result)) == 2
    assert re.search(
        r"lost rank 2 \(.*\), envs 5 to 9, at step \d+; no rank is left that steps envs; the \d+ steps",
        messages(result)[1],
    )
    assert committed(job.folder / "run.h5.part") >= 100


# --- At any moment


def kill(run: Running, rank: int, which: int) -> None:
    """Kill a rank: the process that the launcher knows, or its child that steps envs."""
    found = sorted(pid for pid in processes_in(run.folder) if rank_of(pid) == rank)
    with suppress(ProcessLookupError):
        if found:  # The run may be over.
            os.kill(found[which % len(found)], signal.SIGKILL)


@pytest.mark.mpi(4)
def test_killed_at_random_moments(ulfm, job, shelf, num_ranks):
    """One rank, then another: after a while, or while the others are still busy with the first loss."""
    draw = random.Random(0)
    # A look at env 0 would step it before the run does.
    steps = ("--num-envs", "10", "--num-steps", str(3 * NUM_STEPS), "--no-seed-check")
    run = start(job, num_ranks, "--env-factory", "failing_envs:slow", *steps)
    run.wait_until(lambda: (job.folder / "stepping").exists())
    for pause_s, rank in zip(
        (draw.uniform(0, 0.5), draw.choice((0.01, 0.3))), draw.sample(range(1, 4), 2), strict=True
    ):
        time.sleep(pause_s)
        kill(run, rank, draw.randrange(2))
    result = run.finish()
    assert result.code == 0 and len(messages(result)) in (1, 2), result.err  # The run may be over before the second.
    whole = undisturbed("envs:Image", 10, 3 * NUM_STEPS, shelf)
    assert_whole_but(losses(result), job.folder / "run.h5", whole)
    assert is_empty(job.folder)


@pytest.mark.mpi(3)
def test_a_lost_root_ends_the_job_and_committed_steps_stay(ulfm, job, num_ranks):
    steps = ("--num-envs", "10", "--num-steps", "100000000")
    run = start(job, num_ranks, "--env-factory", "failing_envs:slow", *steps)
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    kill(run, 0, 1)
    result = run.finish()
    assert result.code == 70 and is_empty(job.folder)
    assert result.err.count("mpi_rollout: lost rank 0, which writes the file; the same command continues the run") == 1
    assert committed(job.folder / "run.h5.part") > 0


@pytest.mark.parametrize(
    ("when", "code", "message"),
    [
        ("making", 70, ".*lost rank 1.*"),
        ("first reset", 70, ".*lost rank 1.*"),
        ("bare", 70, rf"lost rank 1 \({HOST}\) between two steps"),  # While the limit is measured.
        ("reporting", 0, rf"lost rank 1 \({HOST}\) between two steps"),  # All its steps are there.
        ("closing", 0, ""),
    ],
)
@pytest.mark.mpi(3)
def test_a_rank_lost_outside_the_steps_never_hangs_the_job(ulfm, job, num_ranks, when, code, message):
    options = ("--measure-limit",) if when == "bare" else ()
    result = run(job, num_ranks, "--env-factory", "failing_envs:Leaving", *kwargs(rank=1, when=when), *SHORT, *options)
    assert result.code == code and is_empty(job.folder), result.err
    assert when == "closing" or (len(messages(result)) == 1 and re.fullmatch(message, messages(result)[0]))
    if when != "bare":
        assert outputs(job.folder) == ["run.h5"] * (code == 0)


@pytest.mark.mpi(2)
def test_the_last_of_two_ranks_ends_the_job_with_an_error_too(ulfm, job, num_ranks):
    """Of the last rank mpirun makes 0, whatever it gives to MPI_Abort."""
    how = kwargs(how="exit()", rank=1, is_making=True)
    result = run(job, num_ranks, "--env-factory", "exiting_envs:Departing", *how, *SHORT)
    assert result.code == 70 and messages(result) == ["lost rank 1, and the job ends with it"]


@pytest.mark.mpi(3)
def test_envs_that_were_lost_begin_again_when_the_run_is_stopped_and_continued(ulfm, job, num_ranks):
    env = "--env-factory", "seeded_faults:slow", *kwargs(sleep_s=0.0003)
    arguments = (*env, "--num-envs", "10", "--num-steps", "2000")
    run = start(job, num_ranks, *arguments)
    run.wait_until(lambda: committed(job.folder / "run.h5.part"))
    kill(run, 2, 1)
    time.sleep(0.3)
    run.interrupt(0)
    stopped = run.finish()
    assert stopped.code == 75 and is_empty(job.folder), stopped.err
    assert len(messages(stopped)) == 2 and "stopped by SIGINT" in messages(stopped)[1]
    lost, num_before = faults_in(job.folder / "run.h5.part"), committed(job.folder / "run.h5.part")
    assert [env for env, _ in lost] == [7, 8, 9] and len({step for _, step in lost}) == 1
    (job.folder / "fast").touch()
    result = job(2, *arguments, "--progress", "none", "--out", "run.h5")
    assert result.code == 0, result.err
    assert_verified(job, "run.h5")
    assert faults_in(job.folder / "run.h5") == lost
    found = datasets(job.folder / "run.h5")
    for env, step in lost:
        own = found["/episodes"][found["/episodes"]["env_index"] == env]
        assert own["seed"].tolist() == list(islice(episode_seeds(0, env), len(own)))
        begun = own["start"][own["length"] > 0]  # An env that was lost in a reset has an episode without steps there.
        assert begun[begun > step][0] == num_before + 1
        assert found["truncations"][step:num_before, env].all() and not found["truncations"][num_before, env]


def faults_in(path: Path) -> list[tuple[int, int]]:
    """Env and step of each fault that a file tells of."""
    with h5py.File(path, libver="latest", swmr=True) as file:
        rows = file["faults"][...]
    assert all(row["message"].startswith(b"lost rank ") for row in rows)
    return sorted((int(row["env_index"]), int(row["step"])) for row in rows)


def assert_verified(job: Job, name: str) -> None:
    result = job(None, "verify", name)
    assert result.code == 0, result.err


# --- Where it cannot be


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 1}, "is for ranks in lockstep, got --batch-size 1"),
        ({"num_groups": 2}, "is for ranks in lockstep, got --num-groups 2"),
        ({"wait": "sleep"}, "needs MPI's own waits, got --wait sleep"),
    ],
    ids=str,
)
def test_only_lockstep_and_mpis_own_waits_go_on_without_a_rank(options: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=f"^--on-rank-loss shrink {message}"):
        RolloutConfig(env="CartPole-v1", num_envs=4, num_steps=5, out="run.h5", on_rank_loss="shrink", **options)


@pytest.mark.mpi(1, 2)
def test_a_job_without_others_or_without_ulfm_is_refused_before_anything_is_made(job, num_ranks):
    result = job(num_ranks, "--env", "CartPole-v1", "--on-rank-loss", "shrink", "--out", "run.h5")
    alone = "2 ranks or more, got 1; use mpirun --with-ft ulfm -n 2"
    [message] = messages(result)
    assert message.startswith("--on-rank-loss shrink needs " + alone * (num_ranks == 1))
    assert result.code == (64 if num_ranks == 1 else 78) and outputs(job.folder) == []


# --- The root's side of it, without a job


class Gone(Exception):
    """MPI's error after a rank is gone."""

    def Get_error_class(self) -> int:  # noqa: N802  As mpi4py has it.
        return 75


class Comm:
    """The root's communicator of some ranks, whose calls fail as the script says, in turn: `None` is a good end."""

    def __init__(self, ranks: list[int], calls: list[str], script: dict[str, list[object]], lost: list[int]):
        self.rank, self.size, self.ranks = 0, len(ranks), ranks
        self.calls, self.script, self.lost = calls, script, lost

    def _outcome(self, name: str) -> object:
        self.calls.append(f"{name} {self.size}")
        outcome = self.script[name].pop(0) if self.script.get(name) else None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def Get_group(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(Translate_ranks=lambda *_: self.ranks, Free=lambda: None)

    def Shrink(self) -> "Comm":  # noqa: N802
        lost = self.lost.pop(0)
        return Comm([rank for rank in self.ranks if rank != lost], self.calls, self.script, self.lost)

    def Agree(self, flag: int) -> object:  # noqa: N802
        outcome = self._outcome(f"Agree {flag}")
        return flag if outcome is None else outcome

    def gather(self, value: object, root: int) -> list[object]:
        return [value] * self.size

    def __getattr__(self, name: str):
        return lambda *_: self._outcome(name)


@pytest.fixture
def shrinking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SimpleNamespace]:
    """What makes the transport of a root with two other ranks: `script` says which calls fail, `lost` who is gone."""
    dtype = SimpleNamespace(
        Create_contiguous=lambda nbytes: SimpleNamespace(Commit=lambda: SimpleNamespace(Free=lambda: None))
    )
    names = ("ERR_PROC_FAILED", "ERR_PROC_FAILED_PENDING", "ERR_REVOKED")
    codes = dict(zip(names, (75, 76, 77), strict=True))
    mpi = SimpleNamespace(Exception=Gone, BYTE=dtype, IN_PLACE=None, ERRORS_RETURN=None, **codes)
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=mpi))

    def make(lost: list[int], **script: list[object]) -> SimpleNamespace:
        calls: list[str] = []
        monkeypatch.setattr(surviving, "be_last", lambda: calls.append("be last"))
        slots = np.zeros((3, 1, 8), np.uint8)
        comm = Comm([0, 1, 2], calls, {}, lost)
        own = Slots(slots[0], slots, np.zeros(3, np.int64), np.zeros(3, np.int64))
        transport = ShrinkingTransport(Buffers(comm, np.zeros(8, np.uint8), memoryview(b""), own, range(3)))
        calls.clear()
        comm.script.update({name.replace("_", " "): outcomes for name, outcomes in script.items()})
        return SimpleNamespace(transport=transport, calls=calls)

    return make


def test_nobody_leaves_before_all_have_the_last_order(shrinking):
    """One rank is in trouble while the root would leave; another one is lost while they begin again."""
    run = shrinking([1, 2], Agree_1=[False], Bcast=[Gone()])
    run.transport.free()
    first = ["Ack_failed 3", "Agree 1 3", "Set_errhandler 2", "Bcast 2"]
    second = ["Revoke 2", "Ack_failed 2", "Agree 0 2", "Set_errhandler 1", "be last", "Bcast 1", "Bcast 1"]
    assert run.calls == [*first, *second, "Ack_failed 1", "Agree 1 1"]
    assert run.transport.ranks.tolist() == [0]


@pytest.mark.parametrize(("value", "expected"), [("", False), ("0", False), ("1", True), ("True", True)])
def test_the_launcher_says_whether_it_is_told_of_losses(monkeypatch, value: str, expected: bool):
    monkeypatch.setenv(surviving.ULFM_VARIABLE, value)
    assert surviving.is_ulfm_on() is expected
