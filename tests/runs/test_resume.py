"""A run that is stopped or killed, and continued by the same command, gives what a run gives that nothing stops."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from jobs import Job, Result, Start, assert_same_bytes, datasets, job_environment, processes_in, rank_of
from stopped_runs import committed
from written_data import damage as damage_chunk

from mpi_rollout.core.layout import Contents
from mpi_rollout.storage.schema import chunk_shape, rows_per_block
from mpi_rollout.storage.verification import verify
from mpi_rollout.text import counted

OUT = ("--out", "run.h5", "--progress", "none")
SHORT = '{"max_episode_steps": 17}'


def run_of(*env: str, num_envs: int, num_steps: int, policy: str | None = None) -> tuple[str, ...]:
    sizes = ("--num-envs", str(num_envs), "--num-steps", str(num_steps), "--seed", "5")
    return (*env, *sizes, *(("--policy", f"stopping_envs:{policy}") if policy else ()))


RUNS = {
    "CartPole": run_of(
        "--env", "CartPole-v1", "--env-kwargs", SHORT, num_envs=5, num_steps=90, policy="binary"
    ),
    "Counting": run_of("--env-factory", "stopping_envs:Counting", num_envs=5, num_steps=60, policy="counting"),
    "Nested": run_of("--env-factory", "stopping_envs:Nested", num_envs=6, num_steps=60, policy="nested"),
    "Image": run_of("--env-factory", "stopping_envs:Image", num_envs=12, num_steps=700, policy="counting"),
    "HumanoidStandup": run_of("--env", "HumanoidStandup-v5", num_envs=3, num_steps=40, policy="humanoid"),
}  # fmt: skip


class References:
    """Files of runs that nothing stops, made when they are asked for."""

    def __init__(self, folder: Path):
        self._folder, self._found = folder, {}

    def __call__(self, arguments: tuple[str, ...]) -> dict[str, np.ndarray]:
        if arguments not in self._found:
            job = Job(self._folder)
            self._found[arguments] = datasets(job.collect(None, *arguments, out=f"{len(self._found)}.h5"))
        return self._found[arguments]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(tmp_path_factory.mktemp("whole"))


def stop(job: Job, arguments: tuple[str, ...], at: str, num_ranks: int | None = None, *more: str) -> Result:
    """Start or continue a run that stops where `at` says; it must not come to its end."""
    result = job(num_ranks, *arguments, *OUT, *more, STOP_AT=at)
    assert result.code != 0 and not (job.folder / "run.h5").exists(), result.err
    return result


def finish(job: Job, arguments: tuple[str, ...], num_ranks: int | None = None, *more: str) -> dict[str, np.ndarray]:
    """Continue a run to its end; return its data."""
    result = job(num_ranks, *arguments, *OUT, *more)
    assert result.code == 0, result.err
    assert not list(job.folder.glob("run.h5.*"))
    return datasets(job.folder / "run.h5")


def rows_of_image(num_steps: int, num_envs: int) -> tuple[int, int]:
    """The rows of a block and of a chunk of observations of stopping_envs:Image."""
    space, actions = spaces.Box(0, 255, (40, 48, 3), np.uint8), spaces.Discrete(5, start=2)
    num_rows = rows_per_block(Contents(space, actions).row_nbytes(num_envs), num_steps)
    return num_rows, chunk_shape(num_rows, (num_envs, *space.shape), space.dtype)[0]


# --- The same bytes


@pytest.mark.parametrize("name", ["CartPole", "HumanoidStandup"])
def test_a_run_that_failed_and_is_continued_gives_the_same_bytes(job: Job, whole: References, name):
    """On another rank count; 22 steps are more than an episode of some of the envs, less than of others."""
    if name == "HumanoidStandup":
        pytest.importorskip("mujoco")
    arguments = RUNS[name]
    assert stop(job, arguments, "raise:23", 2).code == 70
    assert committed(job.folder / "run.h5.part") == 22
    assert_same_bytes(finish(job, arguments, 3), whole(arguments))


def test_a_run_that_failed_again_and_again_is_continued_however_ranks_work_together(job: Job, whole: References):
    """On other numbers of ranks, in other ways to exchange, from one start to the next.

    Where the rank that is ready first is served first, a slow one may have taken no step when the policy stops.
    """
    arguments, before = RUNS["Nested"], 0
    ways = [(3, "23", "--root-envs", "0"), (3, "14", "--batch-size", "1"), (2, "12", "--num-groups", "2")]
    for num_ranks, place, *way in ways:
        stop(job, arguments, f"raise:{place}", num_ranks, *way)
        assert before <= (before := committed(job.folder / "run.h5.part")) < 60
    assert before > 22
    assert_same_bytes(finish(job, arguments, 3, "--root-envs", "0"), whole(arguments))


def test_a_run_may_be_interrupted_at_every_step(job: Job, whole: References):
    """In that after an episode's end too: they have 3 to 7 steps.  Every start takes one step."""
    arguments = run_of("--env-factory", "stopping_envs:Counting", num_envs=6, num_steps=6, policy="counting")
    results = job.series([Start([*arguments, *OUT], environment={"STOP_AT": "raise:2"})] * 5)
    for num_steps, result in enumerate(results, 1):
        verb, part = "is" if num_steps == 1 else "are", job.folder / "run.h5.part"
        before = f"; the {counted(num_steps, 'step')} before {verb} in {part}"
        assert result.code == 70 and before in result.messages[-1]
    assert committed(job.folder / "run.h5.part") == 5
    assert_same_bytes(finish(job, arguments, 2), whole(arguments))
    assert status(job)["starts"] == 6


def stop_at_each(job: Job, arguments: tuple[str, ...], *places: int) -> None:
    """Start a run, or continue it, each time on one process until it has this many steps."""
    calls = np.diff(places, prepend=0) + 1  # A policy counts the steps of its own start.
    starts = [Start([*arguments, *OUT], environment={"STOP_AT": f"raise:{number}"}) for number in calls]
    assert [result.code for result in job.series(starts)] == [70] * len(places)
    assert committed(job.folder / "run.h5.part") == places[-1]


def test_a_run_may_be_interrupted_about_the_ends_of_chunks_and_blocks(job: Job, whole: References):
    """One step before an end, and one step after it."""
    arguments, (block, chunk) = RUNS["Image"], rows_of_image(700, 12)
    assert 4 < chunk < block - 2 and block < 350
    stop_at_each(job, arguments, chunk - 1, chunk + 1, block - 1, block + 1)
    assert_same_bytes(finish(job, arguments), whole(arguments))


def test_chunks_that_hold_some_of_the_envs_are_continued_too(job: Job, whole: References):
    """One step of all envs is more than a chunk."""
    arguments = run_of("--env-factory", "stopping_envs:Image", num_envs=200, num_steps=12, policy="counting")
    stop_at_each(job, arguments, 6)
    assert_same_bytes(finish(job, arguments, 2), whole(arguments))


def test_the_random_policy_goes_on_where_it_was(job: Job, whole: References):
    arguments = run_of("--env-factory", "stopping_envs:Stopping", num_envs=4, num_steps=600)
    episodes = whole(arguments)["/episodes"]
    for row in (episodes[30], episodes[300]):
        stop(job, arguments, f"raise:{row['seed']}-2", 2)
        assert 0 < committed(job.folder / "run.h5.part") < 600
    assert_same_bytes(finish(job, arguments), whole(arguments))


def test_a_run_that_was_killed_when_it_had_only_to_close_its_file_is_complete_at_once(job: Job, whole: References):
    """What is killed there has all steps committed, and is not complete."""
    arguments = RUNS["Counting"]
    program = (
        "import os, signal, sys\n"
        "from mpi_rollout.storage.run_file import RunFile\n"
        "RunFile.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from mpi_rollout.cli import main\n"
        f"main({[*arguments, *OUT]!r})\n"
    )
    assert job.script(1, program).code != 0
    assert committed(job.folder / "run.h5.part") == 60
    assert_same_bytes(finish(job, arguments, 2), whole(arguments))


def test_measuring_the_limit_does_not_hinder(job: Job, whole: References):
    arguments = RUNS["Counting"]
    stop(job, arguments, "raise:20")
    assert job.train(2, "runs", [[*arguments, *OUT, "--measure-limit"]]) == [0]
    assert_same_bytes(datasets(job.folder / "run.h5"), whole(arguments))


def test_damage_of_an_earlier_start_is_found_while_the_run_goes_on_or_before_its_file_gets_a_name(job: Job):
    arguments, part = RUNS["Image"], job.folder / "run.h5.part"
    stop(job, arguments, "raise:600")
    damage_chunk(part, "trajectories/observations", "zeros")
    result = job(2, *arguments, *OUT)
    assert result.code == 65 and result.num_tracebacks == 0, result.err
    words = result.messages[-1]
    assert "rows 0 to " in words and "the checksum does not fit" in words and "mpi_rollout recover" in words
    assert committed(part) >= 599 and not (job.folder / "run.h5").exists()
    assert status(job)["resumable"] is False


def test_a_run_that_a_signal_stopped_has_all_steps_and_goes_on_in_the_same_file(job: Job, whole: References):
    arguments, part = RUNS["Image"], job.folder / "run.h5.part"
    result = stop(job, arguments, "term:300", 2)
    assert result.code == 75 and result.num_tracebacks == 0 and committed(part) >= 300
    inode = part.stat().st_ino
    stop(job, arguments, "raise:200", 2)
    assert part.stat().st_ino == inode
    assert_same_bytes(finish(job, arguments, 2), whole(arguments))
    assert (job.folder / "run.h5").stat().st_ino == inode


# --- Asked to stop


def test_a_start_that_goes_on_in_a_file_stops_at_once_and_another_one_goes_on(job: Job, whole: References):
    arguments = run_of("--env-factory", "stopping_envs:Counting", num_envs=2, num_steps=30, policy="counting")
    stop(job, arguments, "raise:9", 2)
    result = stop(job, arguments, "term:5", 2)
    assert result.code == 75 and 8 < committed(job.folder / "run.h5.part") < 30
    assert_same_bytes(finish(job, arguments), whole(arguments))


def test_sigusr1_to_the_launcher_stops_the_run_in_good_order(job: Job):
    arguments = run_of("--env-factory", "stopping_envs:Slow", num_envs=2, num_steps=100000)
    run = job.start(2, *arguments, *OUT)
    run.wait_until((job.folder / "run.h5.part").exists)
    run.pid_of(1)
    os.kill(run.pid, signal.SIGUSR1)
    result = run.finish()
    assert result.code == 75 and "stopped by SIGUSR1" in result.messages[-1]
    assert status(job)["state"] == "interrupted"


@pytest.mark.mpi(2)
def test_sigusr1_before_the_first_step_stops_the_run_there(job: Job, num_ranks: int):
    arguments = ("--env-factory", "stopping_envs:asked_early", "--env-kwargs", json.dumps({"rank": 1}))
    result = job(num_ranks, *arguments, "--num-envs", "4", "--num-steps", "1000000", *OUT)
    assert result.code == 75 and "stopped by SIGUSR1" in result.messages[-1], result.err
    assert status(job)["state"] == "interrupted" and not (job.folder / "run.h5").exists()


# --- What may change, and what not


def status(job: Job) -> dict:
    return json.loads((job.folder / "run.status.json").read_text())


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What a run left that failed after 9 steps."""
    job = Job(tmp_path_factory.mktemp("left"))
    stop(job, RUNS["Counting"], "raise:10")
    return (job.folder / "run.h5.part").read_bytes()


@pytest.fixture
def stopped(job: Job, left: bytes) -> Path:
    """The same in the test's own folder."""
    path = job.folder / "run.h5.part"
    path.write_bytes(left)
    return path


@pytest.mark.parametrize(("is_complete", "option"), [(False, ("--seed", "6")), (True, ("--no-trajectories",))])
def test_another_run_is_refused_with_what_differs(job: Job, stopped: Path, is_complete: bool, option: tuple[str, ...]):
    path = stopped.with_suffix("") if is_complete else stopped
    stopped.rename(path)
    before = path.read_bytes()
    result = job(None, *RUNS["Counting"], *OUT, *option)
    assert result.code == 64 and len(result.messages) == 1
    assert f"is of another run: {option[0]} was" in result.messages[0] and "move it away" in result.messages[0]
    assert path.read_bytes() == before


def test_options_that_do_not_decide_on_the_data_may_change(job: Job, whole: References, stopped: Path):
    more = ("--progress", "lines", "--batch-size", "1", "--max-walltime", "10:00", "--json", "--batch-size", "2")
    assert_same_bytes(finish(job, RUNS["Counting"], 3, *more), whole(RUNS["Counting"]))


def test_natively_vectorized_envs_are_refused_with_the_way_out(job: Job):
    arguments = ("--env", "CartPole-v1", "--vectorization-mode", "vector_entry_point", "--num-envs", "4")
    arguments += ("--num-steps", "50", "--policy", "stopping_envs:binary")
    stop(job, arguments, "raise:20")
    assert status(job)["resumable"] is False
    before = (job.folder / "run.h5.part").read_bytes()
    result = job(2, *arguments, *OUT)
    assert result.code == 64 and len(result.messages) == 1
    assert "cannot be continued" in result.messages[0] and "mpi_rollout recover" in result.messages[0]
    assert (job.folder / "run.h5.part").read_bytes() == before


@pytest.mark.mpi(2)
def test_of_a_complete_run_nothing_is_left_to_do(job: Job, num_ranks):
    finish(job, RUNS["Counting"])
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in job.folder.iterdir()}
    result = job(num_ranks, *RUNS["Counting"], *OUT)
    assert result.code == 0 and len(result.messages) == 1 and "nothing is left to do" in result.messages[0]
    assert result.messages[0].startswith("--out run.h5")
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in job.folder.iterdir()} == before


def test_a_recovered_file_is_not_taken_for_a_complete_one(job: Job, stopped: Path):
    command = [sys.executable, "-m", "mpi_rollout", "recover", "run.h5.part"]
    subprocess.run(command, cwd=job.folder, env=job_environment(), check=True, capture_output=True, timeout=300)
    result = job(None, *RUNS["Counting"], *OUT)
    assert result.code == 64 and "was recovered" in result.messages[0]


# --- What else can be there


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_of_two_runs_at_once_the_second_is_refused_also_when_the_first_was_continued(job: Job, num_ranks):
    arguments = run_of("--env-factory", "stopping_envs:Slow", num_envs=2, num_steps=30, policy="counting")
    stop(job, arguments, "raise:3")
    first = Job(job.folder, forks=False).start(num_ranks, *arguments, *OUT)
    first.wait_until(lambda: status(job)["state"] == "running")
    root = [pid for pid in processes_in(job.folder) if rank_of(pid) == 0]
    for pid in root:
        os.kill(pid, signal.SIGSTOP)  # Or else it may be through before the second one is there.
    second = job(None, *arguments, *OUT)
    for pid in root:
        os.kill(pid, signal.SIGCONT)
    assert second.code == 64 and "another run is writing" in second.messages[0]
    assert first.finish().code == 0
    quick = ("--env-factory", "stopping_envs:Counting", *arguments[2:])
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(job.collect(None, *quick, out="quick.h5")))


def test_a_part_without_a_committed_step_is_begun_anew(job: Job, whole: References):
    stop(job, RUNS["CartPole"], "kill:30")
    assert (job.folder / "run.h5.part").exists() and committed(job.folder / "run.h5.part") == 0
    result = job(2, *RUNS["CartPole"], *OUT)
    assert result.code == 0 and result.messages == []
    assert_same_bytes(datasets(job.folder / "run.h5"), whole(RUNS["CartPole"]))


def test_what_a_start_left_that_was_killed_early_is_removed(job: Job, whole: References, stopped: Path):
    (job.folder / "run.h5.part.new").write_bytes(b"half a file")
    assert_same_bytes(finish(job, RUNS["Counting"], 2), whole(RUNS["Counting"]))


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "cut":
        data = data[: len(data) * 2 // 3]
    elif how == "head":
        data[20] ^= 1
    elif how == "empty":
        data = bytearray()
    elif how == "marked and cut":
        data[11] = 5
        data = data[:3000]
    else:
        with h5py.File(path) as file:
            dataset = file["trajectories/observations"]
            place = dataset.id.get_chunk_info(0).byte_offset
        data[place + 5] ^= 1
    path.write_bytes(data)


def assert_left_as_it_is(result: Result) -> None:
    assert result.code == 65 and len(result.messages) == 1 and result.num_tracebacks == 0
    assert "cannot be continued" in result.messages[0] and "recover" in result.messages[0]


def test_a_damaged_part_is_refused_and_left_as_it_is(job: Job, left: bytes):
    starts, damaged = [], {}
    for how in ("cut", "head", "empty", "marked and cut", "data"):
        path = job.folder / how / "run.h5.part"
        path.parent.mkdir()
        path.write_bytes(left)
        damage(path, how)
        damaged[path] = path.read_bytes()
        starts.append(Start([*RUNS["Counting"], *OUT], path.parent))
    for result, (path, before) in zip(job.series(starts), damaged.items(), strict=True):
        assert_left_as_it_is(result)
        assert path.read_bytes() == before, path


def test_several_ranks_refuse_a_damaged_part_together(job: Job, stopped: Path):
    damage(stopped, "cut")
    before = stopped.read_bytes()
    assert_left_as_it_is(job(2, *RUNS["Counting"], *OUT))
    assert stopped.read_bytes() == before
    assert processes_in(job.folder) == []


# --- Envs that do not come back


def faulted(path: Path) -> np.ndarray:
    with h5py.File(path, libver="latest", swmr=True) as file:
        rows = file["episodes"][...]
    return rows[rows["faulted"]]


def test_an_env_that_does_not_reproduce_itself_ends_its_episode_as_faulted(job: Job):
    """Some in a reset, some in a step."""
    kwargs = ("--env-kwargs", json.dumps([{"where": "step"}, {"where": "reset"}] * 2 + [{"where": "step"}]))
    arguments = run_of("--env-factory", "stopping_envs:Forgetful", *kwargs, num_envs=5, num_steps=40, policy="binary")
    stop(job, arguments, "raise:12")
    stop(job, arguments, "raise:6", 2)
    first = faulted(job.folder / "run.h5.part")
    assert len(first) and first["truncated"].all() and not first["terminated"].any()
    assert set(first["start"] + first["length"]) == {11}
    result = stop(job, arguments, "raise:8")
    told = [message for message in result.messages if "did not reproduce" in message]
    second = faulted(job.folder / "run.h5.part")
    assert len(second) > len(first) and second[: len(first)].tobytes() == first.tobytes()
    assert [int(message.split()[1]) for message in told] == second["env_index"][len(first) :].tolist()
    assert all("ended as truncated and faulted" in message for message in told)
    verify(lambda doing: None, str(job.folder / "run.h5.part"))
    found = finish(job, arguments, 3)
    assert faulted(job.folder / "run.h5")[: len(second)].tobytes() == second.tobytes()
    verify(lambda doing: None, str(job.folder / "run.h5"))
    assert_seeds_go_on(found["/episodes"])


def assert_seeds_go_on(episodes: np.ndarray) -> None:
    """Every env has its episodes' seeds in order, none of them twice."""
    from mpi_rollout.core.seeding import seeds_of_episodes

    for env in np.unique(episodes["env_index"]):
        seeds = episodes["seed"][episodes["env_index"] == env]
        number = np.arange(len(seeds))
        assert seeds.tolist() == seeds_of_episodes(5, np.full(len(seeds), env), number).tolist()


def test_the_envs_that_do_reproduce_themselves_are_as_if_nothing_had_been(job: Job):
    """Envs 3 to 5 do not; ranks and policy see them alike."""
    arguments = run_of("--env-factory", "stopping_envs:some_forget", num_envs=6, num_steps=40, policy="blind")
    whole = datasets(job.collect(None, *arguments, out="whole.h5"))
    stop(job, arguments, "raise:15", 2)
    found = finish(job, arguments, 3)
    rows = faulted(job.folder / "run.h5")
    assert len(rows) and set(rows["env_index"]) <= {3, 4, 5}
    for name in found.keys() - {"/episodes"}:
        assert found[name][:, :3].tobytes() == whole[name][:, :3].tobytes(), name
    of_tame = [each["/episodes"][each["/episodes"]["env_index"] < 3].tobytes() for each in (found, whole)]
    assert of_tame[0] == of_tame[1]
