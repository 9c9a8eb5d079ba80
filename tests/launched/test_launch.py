"""`launch`: a process without MPI has the envs of ranks that it has started, as `connect` gives them."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from calling_threads import NUM_ENVS, Echo, share
from envs import Agreeing, Nested, on_rank
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from jobs import (
    Job,
    Running,
    are_gone,
    assert_same_bytes,
    datasets,
    job_environment,
    ranks_may_fork,
    write_forking_python,
)
from launched_envs import Bomb, Halving, Interrupting, Saying
from oracle import differences, facts_of, record, resets_of

import mpi_rollout
from mpi_rollout.core.spaces import leaves
from mpi_rollout.errors import ActionError, DataError, LaunchError, RankError, RankLost, RolloutError, UsageError
from mpi_rollout.launched import vector_env
from mpi_rollout.launched.vector_env import LaunchedVectorEnv
from mpi_rollout.process.launcher import find_launcher

NOT_HERE = Path(__file__).parents[1] / "helpers" / "launcher_elsewhere.py"


@pytest.fixture(autouse=True)
def launching(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Launch from the test's folder.  Afterwards no process of a job is left, and none of its files."""
    for name, value in job_environment().items():
        monkeypatch.setenv(name, value)
    if ranks_may_fork():
        python = tmp_path_factory.mktemp("forks") / "python"
        write_forking_python(python)
        monkeypatch.setattr(vector_env, "sys", SimpleNamespace(executable=str(python), path=sys.path))
    if "job" not in request.fixturenames:  # Which ends what runs in that folder.
        monkeypatch.chdir(tmp_path)
    yield
    monkeypatch.undo()
    assert are_gone(tmp_path)
    assert [*tmp_path.glob(".mpi_rollout-*")] == []


def launch(env: Any, num_envs: int, num_ranks: int, **options: Any) -> mpi_rollout.MPIVectorEnv:
    return mpi_rollout.launch(env, num_envs, num_ranks=num_ranks, **options)


def test_it_has_all_methods_of_the_envs_of_connect():
    public = {name for name, value in vars(mpi_rollout.MPIVectorEnv).items() if name[0] != "_" and callable(value)}
    assert public - {"use_policy"} <= vars(LaunchedVectorEnv).keys()


@pytest.mark.mpi(1, 2, 3)
def test_it_gives_what_gymnasium_gives(num_ranks: int):
    oracle = SyncVectorEnv([partial(Agreeing, render_mode="ansi")] * 7)
    with launch(Agreeing, 7, num_ranks, env_kwargs={"render_mode": "ansi"}) as envs:
        assert isinstance(envs, mpi_rollout.MPIVectorEnv)
        for use in (facts_of, resets_of, partial(record, num_steps=30)):
            assert differences(use(envs), use(oracle)) == []
        envs.reset(seed=1)
        envs.send(np.full(7, 3))
        with pytest.raises(AlreadyPendingCallError, match=r"call recv\(\)"):
            envs.reset()
        assert envs.recv()[-1].tolist() == [*range(7)]
        with pytest.raises(NoAsyncCallError):
            envs.recv()
        with pytest.raises(ActionError, match="must be"):
            envs.step(np.full(7, 99))
        assert envs.call_some([5, 2], "weigh", 2) == envs.call_some([2, 5], "weigh", 2)[::-1]
    assert envs.closed
    with pytest.raises(ClosedEnvironmentError, match="launch again"):
        envs.step(np.full(7, 3))


def use_policy(envs: mpi_rollout.MPIVectorEnv) -> list[dict[str, Any]]:
    batches = []
    envs.reset(seed=3)
    for factor in (1.0, -0.5):
        batches.append(envs.collect(8))
        envs.set_policy({"weights": np.full(4, factor, np.float32)})
    envs.step(np.ones(6, np.int64))
    return [*batches, envs.collect(4, np.zeros((4, 6), np.int64))]


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_policies_parameters_and_recordings_are_those_of_connect(num_ranks: int, tmp_path: Path):
    with mpi_rollout.connect("CartPole-v1", 6, policy=Halving, record="connected.h5") as envs:
        expected = use_policy(envs)
    with launch("CartPole-v1", 6, num_ranks, policy=Halving, record="launched.h5") as envs:
        assert differences(use_policy(envs), expected) == []
    assert_same_bytes(datasets(tmp_path / "launched.h5"), datasets(tmp_path / "connected.h5"))


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_between_hosts_it_gives_the_same(num_ranks: int):
    """The launcher makes the ranks believe that the trainer is on another host: they call it by TCP."""
    launcher = [sys.executable, str(NOT_HERE), find_launcher()]
    with launch(Nested, 5, num_ranks, launcher=launcher) as envs:
        assert differences(record(envs, 30), record(SyncVectorEnv([Nested] * 5), 30)) == []
    envs = launch("CartPole-v1", 5, num_ranks, launcher=launcher)
    make = partial(gymnasium.make, "CartPole-v1")
    assert differences(record(envs, 30), record(SyncVectorEnv([make] * 5), 30)) == []
    del envs  # Which ends the job: none is left after a test.


@pytest.mark.any_mpi
@pytest.mark.mpi(1)
def test_one_array_is_no_action_of_several(num_ranks: int):
    """Rank 0 would take the others from the step before."""
    first = leaves(Nested.action_space)[0]
    with launch(Nested, 5, num_ranks) as envs:
        envs.reset(seed=0)
        with pytest.raises(ActionError, match="cannot be read"):
            envs.step(np.zeros((5, *first.shape), first.dtype))


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_each_call_of_several_threads_of_launched_envs_gets_its_own_data(num_ranks: int):
    with launch(Echo, NUM_ENVS, num_ranks) as envs:
        assert share(envs) == []


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_wrappers_and_stable_baselines3_take_it(num_ranks: int):
    with launch("CartPole-v1", 4, num_ranks, autoreset_mode="same_step") as envs:
        wrapped = RecordEpisodeStatistics(envs)
        wrapped.reset(seed=1)
        lengths: list[int] = []
        while len(lengths) < 4:
            infos = wrapped.step(np.ones(4, np.int64))[-1]
            lengths += infos["episode"]["l"][infos["_episode"]].tolist() if "episode" in infos else []
        assert all(5 < length < 15 for length in lengths)
        vec_envs = pytest.importorskip("stable_baselines3.common.vec_env")
        from mpi_rollout.sb3 import MPIVecEnv

        ours, dummy = MPIVecEnv(envs), vec_envs.DummyVecEnv([partial(gymnasium.make, "CartPole-v1")] * 4)
        for each in (ours, dummy):
            each.seed(5)
        assert ours.reset().tobytes() == dummy.reset().tobytes()
        for step in range(30):
            assert differences(ours.step([step % 2] * 4), dummy.step([step % 2] * 4)) == []


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_an_env_that_fails_is_an_error_as_of_connect_and_the_envs_go_on(num_ranks: int, capfd: pytest.CaptureFixture):
    with launch(on_rank, 4, num_ranks, env_kwargs={"rank": 1, "after": 2}) as envs:
        envs.reset(seed=0)
        with pytest.raises(RuntimeError, match="the simulator has diverged") as caught:
            for _ in range(5):
                envs.step(np.full(4, 3))
        assert isinstance(caught.value, RankError) and "rank 1 (" in str(caught.value)
        assert "in _raise\n" in caught.value.stack
        with pytest.raises(ResetNeeded):
            envs.step(np.full(4, 3))
        assert envs.reset(seed=0)[0].shape == (4, 4)
    assert capfd.readouterr().err == ""


@pytest.mark.any_mpi
@pytest.mark.mpi(1)
@pytest.mark.parametrize("is_near", [True, False])
def test_what_cannot_be_pickled_is_an_error_and_the_envs_go_on(num_ranks: int, is_near: bool):
    launcher = None if is_near else [sys.executable, str(NOT_HERE), find_launcher()]
    refused = partial(pytest.raises, DataError, match=r"must be picklable: .*; of infos, name those that are wanted")
    with launch(Saying, 4, num_ranks, launcher=launcher) as envs:
        for error in (ValueError("no"), FileNotFoundError(2, "no", "x"), EOFError("no")):
            envs.reset(seed=0)
            with refused():
                envs.call("hear", Bomb(error))
            envs.set_attr("error", [error] * 4)
            with refused():
                envs.step(np.full(4, 3))
        envs.set_attr("error", [None] * 4)
        for use in (partial(envs.step, np.full(4, 3)), partial(envs.call, "hear", threading.Lock())):
            with refused():
                use()
        assert envs.reset(seed=0)[0].shape == (4, 4) and envs.call("hear", 5) == (5,) * 4


@pytest.mark.mpi(2)
def test_a_job_that_dies_is_an_error_of_each_call_with_the_ranks_message(num_ranks: int, capfd: pytest.CaptureFixture):
    with launch(on_rank, 4, num_ranks, env_kwargs={"rank": 1, "after": 2, "how": "os_exit"}) as envs:
        envs.reset(seed=0)
        for _ in range(2):
            envs.step(np.full(4, 3))
        for use in (partial(envs.step, np.full(4, 3)), envs.reset):
            with pytest.raises(RankLost, match=r"exit code \d+: rank 1 \(.*os\._exit\(7\)"):
                use()
    assert "called os._exit(7) before the run was over" in capfd.readouterr().err


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an argument that there is not": ({"n_envs": 4}, TypeError, r"launch\(\) got .*'n_envs'; did you mean num_envs\?"),
    "a communicator": ({"comm": None}, TypeError, r"launch\(\) got an unexpected keyword argument 'comm'"),
    "no ranks": ({"num_ranks": 0}, UsageError, "num_ranks must be a whole number of at least 1, got 0"),
    "no time": ({"timeout_s": float("nan")}, UsageError, "timeout_s must be more than 0 s and at most 1e.06, got nan"),
    "more ranks than envs": ({"num_ranks": 9}, UsageError, "9"),
    "an option that cannot work": ({"wait": "maybe"}, UsageError, "wait must be one of auto, spin, sleep, got maybe"),
    "a program that there is not": ({"launcher": "mpirum -x"}, LaunchError, "there is no program mpirum; module load"),
    "an empty launcher": ({"launcher": "'mpirun"}, UsageError, "launcher \"'mpirun\": No closing quotation"),
    "what cannot be pickled": ({"env": lambda lock=sys.stdout: None}, UsageError, "must be picklable, got TypeError"),
    "no sbatch": ({"sbatch": {}, "PATH": ""}, LaunchError, "there is no program sbatch; "),
    "a rank": ({"OMPI_COMM_WORLD_SIZE": "2"}, LaunchError, r"a launcher started 2 of this program \(OMPI_COMM_WORLD"),
    "a launcher that fails": (
        {"launcher": [sys.executable, "-c", "import sys; sys.exit('mpi_rollout: no slots')"]}, LaunchError,
        "^the ranks did not start, exit code 1: no slots$",
    ),
    "a launcher that starts nothing": (
        {"launcher": "sh -c 'sleep 1000'", "timeout_s": 0.3}, LaunchError, "have not started within 0.3 s; give them",
    ),
    "a launcher that starts one": (
        {"launcher": "sh -c 'shift; exec \"$@\"'"}, LaunchError, "must take -n 2, got 1 rank",
    ),
    "a launcher of another MPI": (
        {"launcher": "sh -c 'shift; SLURM_NTASKS=2 SLURM_PROCID=0 SLURM_STEP_ID=0 exec \"$@\"'"}, LaunchError,
        r"under srun with --mpi=pmi\w+; give launch the command as launcher='srun --mpi=\.\.\.'$",
    ),
    "a name that no program can have": (
        {"launcher": ["sh", "a\0"], "num_ranks": 1}, ValueError, "embedded null byte",
    ),
    "an env that there is not": ({"env": "CartPool-v1"}, UsageError, "CartPool"),
    "an id of no module": ({"env": "casual_envs:Nothing-v0"}, RolloutError, "Nothing"),
    "an env that fails": ({"env": lambda: Path("missing").read_text()}, FileNotFoundError, "directory: 'missing'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_started_is_one_clear_error(name: str, monkeypatch: pytest.MonkeyPatch):
    given, kind, words = BAD[name]
    for variable in [key for key in given if key.isupper()]:
        monkeypatch.setenv(variable, given[variable])
    options = {"env": "CartPole-v1", "num_envs": 4, "num_ranks": 2} | {k: v for k, v in given.items() if k.islower()}
    with pytest.raises(kind, match=words) as caught:
        mpi_rollout.launch(**options)
    assert "\n" not in str(caught.value)


def raise_timeout(number: int, frame: object) -> None:
    raise TimeoutError("the program's own")


@pytest.mark.mpi(2)
@pytest.mark.parametrize(
    ("number", "times", "error"),
    [(signal.SIGINT, 1, KeyboardInterrupt), (signal.SIGINT, 2, KeyboardInterrupt), (signal.SIGALRM, 1, TimeoutError)],
)
def test_after_an_interrupt_the_envs_go_on(
    num_ranks: int, number: int, times: int, error: type, tmp_path: Path, request
):
    """One interrupt waits for the step's end; a second one does not, and the ranks finish that step."""
    own = {"trainer": os.getpid(), "go": f"{tmp_path}/go", "number": number}
    before = signal.signal(signal.SIGALRM, raise_timeout)
    request.addfinalizer(lambda: signal.signal(signal.SIGALRM, before))
    with launch(
        Interrupting, 4, num_ranks, env_kwargs=[own | {"times": times * (env == 3)} for env in range(4)]
    ) as envs:
        first = envs.reset(seed=0)[0]
        envs.step(np.full(4, 3))
        with pytest.raises(error):
            envs.step(np.full(4, 3))
        (tmp_path / "go").touch()
        third = envs.step(np.full(4, 3))[0]
        assert (third[:, 2] - first[:, 2]).tolist() == [3] * 4
        assert envs.get_attr("num_steps") == (3,) * 4


@pytest.mark.mpi(2)
def test_envs_that_do_not_come_back_are_closed_all_the_same(num_ranks: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vector_env, "CALL_ENDS_S", 0.1)
    monkeypatch.setattr(vector_env, "num_usable_cores", lambda: num_ranks)
    kwargs = [{"trainer": os.getpid(), "times": 2 * (env == 3), "go": "never"} for env in range(4)]
    with launch(Interrupting, 4, num_ranks, env_kwargs=kwargs) as envs:
        assert envs._channel.spin_s == 0, "the ranks need all cores"
        envs.reset(seed=0)
        envs.step(np.full(4, 3))
        with pytest.raises(KeyboardInterrupt):
            envs.step(np.full(4, 3))
    assert envs.closed


TRAINER = """
import os, sys, threading
from pathlib import Path
from types import SimpleNamespace
import mpi_rollout
from launched_envs import Waiting
from envs import Counting
if __name__ == "__main__":
    how = sys.argv[1] if sys.argv[1:] else {how!r}
    envs = mpi_rollout.launch(Waiting if how == "stepping" else Counting, 4, num_ranks={num_ranks}, record="run.h5")
    assert "mpi4py" not in sys.modules and "mpi4py.MPI" not in sys.modules
    envs.reset(seed=1)
    if how != "stepping":
        envs.step(envs.action_space.sample())
    Path("ready").touch()
    if how == "forking":
        if os.fork() == 0:
            try:
                envs.reset()
            except Exception as error:
                assert "belong to another process" in str(error)
                sys.exit(0)
        os.wait()
        envs.step(envs.action_space.sample())
    elif how == "stepping":
        envs.step(envs.action_space.sample())
    else:
        threading.Event().wait()
"""


@pytest.fixture
def trainer(job: Job) -> Callable[[str, int], Running]:
    return lambda how, num_ranks: job.start_script(None, TRAINER.format(how=how, num_ranks=num_ranks))


@pytest.mark.mpi(2)
def test_a_trainer_that_is_killed_ends_its_job(trainer, num_ranks: int, tmp_path: Path):
    """Its ranks complete the file if they wait for it, and end too where an env does not come back."""
    for how in ("waiting", "stepping"):
        running = trainer(how, num_ranks)
        expected = "ready" if how == "waiting" else "stepping-*"
        running.wait_until(lambda expected=expected: [*tmp_path.glob(expected)])
        os.kill(running.pid, 9)
        assert running.finish().code == -9
        assert are_gone(tmp_path)
        assert (tmp_path / "run.h5").exists() == (how == "waiting")
        for path in tmp_path.glob("run.h5*"):
            path.unlink()


@pytest.mark.mpi(2)
def test_the_end_of_the_program_ends_the_job_and_a_fork_does_not(trainer, num_ranks: int, tmp_path: Path):
    result = trainer("forking", num_ranks).finish()
    assert (result.code, result.err) == (0, "")
    assert len(datasets(tmp_path / "run.h5")["rewards"]) == 2
