"""--storage sharded: a set of files with the bytes of a single one, whoever writes it, and whatever ends a start."""

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import h5py
import pytest
from jobs import Collected, Job, assert_same_bytes, collected_in_ways, datasets
from stopped_runs import HOST
from written_data import damage

from mpi_rollout.storage.status import read_status
from mpi_rollout.storage.untrusted import open_unmarked

pytestmark = pytest.mark.any_mpi

SHORT = ("--env", "CartPole-v1", "--env-kwargs", '{"max_episode_steps": 17}', "--seed", "3")
RECURRENT = (*SHORT, "--policy-block", "8", "--policy", "recurrent_policies:gru.make_policy", "--store-extras")
RUNS = {
    "random": SHORT,
    "Dict": ("--env-factory", "envs:Nested"),
    "seeded once": (*SHORT, "--no-episode-seeds"),
    "on the ranks": RECURRENT,
    "on the roots": (*RECURRENT, "--policy-on", "root"),
    "a callable": (*SHORT, "--policy", "stopping_envs:binary"),
    "episodes": (*SHORT, "--num-episodes", "60"),
    "restarts": ("--env-factory", "telling_envs:Restarting", "--max-env-restarts", "10"),
    "infos": ("--env-factory", "telling_envs:Telling", "--store-infos", "all"),
    "native": ("--vectorization-mode", "native", "--env-factory", "native_envs:drift"),
}
SIZE = ("--num-envs", "13", "--num-steps", "70")
# As many shards as the tests' only host has here have the bytes of as many nodes.
WAYS = {1: ("3",), 2: ("3", "--batch-size", "1"), 3: ("2", "--num-groups", "2"), 5: ("3",)}
NAMES = {1: ("random", "episodes"), 2: ("random", "Dict"), 3: tuple(RUNS), 5: ("on the ranks", "episodes")}
SHARDED = ("--storage", "sharded")


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    def ways_of(name: str, num_ranks: int) -> list[tuple[str, ...]]:
        shards = (*SIZE, *SHARDED, "--shards-per-node", WAYS[num_ranks][0])
        more = WAYS[num_ranks][1:] if name in ("random", "Dict") else ()
        sets = [(*shards, *more)] if name in NAMES[num_ranks] else []
        return [SIZE, *sets] if num_ranks == 1 else sets

    return collected_in_ways(tmp_path_factory, RUNS, ways_of)


@pytest.mark.mpi
@pytest.mark.parametrize(("num_ranks", "name"), [(number, name) for number in WAYS for name in NAMES[number]])
def test_a_set_has_the_bytes_of_a_single_file(collected: Collected, num_ranks: int, name: str):
    assert_same_bytes(datasets(collected(num_ranks)[name][-1]), datasets(collected(1)[name][0]))


@pytest.mark.mpi(5)
def test_each_rank_reports_its_time(job: Job, num_ranks: int):
    file = job.collect(num_ranks, *SHORT, *SIZE, *SHARDED, MPI_ROLLOUT_NODES="3")
    with h5py.File(file) as stored:
        ranks, rates = stored["throughput/ranks"][:], stored["throughput/intervals"]["env_steps_per_s"]
    assert ranks["rank"].tolist() == list(range(num_ranks))
    assert ranks["num_envs"].sum() == 13 and (ranks["step"] > 0).all() and (rates > 0).all()


RUN = ("--env-factory", "stopping_envs:Counting", "--num-envs", "12", "--num-steps", "90", "--out", "run.h5")
MADE = (*RUN, "--policy", "stopping_envs:counting", "--policy-block", "4", "--progress", "none")


def shards_in(job: Job) -> list[str]:
    return sorted(path.name for path in (job.folder / "run.h5.shards").iterdir())


@pytest.mark.mpi(3)
def test_a_run_that_stops_in_many_ways_goes_on_with_other_ranks_and_nodes(job: Job, num_ranks: int):
    whole = job.collect(None, *MADE, out="whole.h5")
    failed = job(num_ranks, *MADE, *SHARDED, MPI_ROLLOUT_NODES="3", STOP_AT="raise:40")
    assert failed.code == 70 and "; all shards have 13 steps, in " in failed.err, failed.err
    assert "run.h5.part; " not in failed.err and read_status(str(job.folder / "run.h5"))["num_steps"] == 13
    assert job(2, *MADE, *SHARDED, STOP_AT="kill:20", STOP_PAUSE="0.1").code != 0
    assert job(None, *MADE, *SHARDED, STOP_AT="usr1:5").code == 75
    assert shards_in(job) == ["envs-0-3.h5.part", "envs-4-7.h5.part", "envs-8-11.h5.part"]
    result = job(2, *MADE, *SHARDED, MPI_ROLLOUT_NODES="2")
    assert result.code == 0 and "continuing" in result.err, result.err
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(whole))
    assert shards_in(job) == ["envs-0-3.h5", "envs-4-7.h5", "envs-8-11.h5"]
    assert not (job.folder / "run.h5.part").exists()


LONG = ("--env-factory", "stopping_envs:Paced", "--num-envs", "12", "--num-steps", "800", "--out", "run.h5")
LONG += ("--progress", "none")
PACE = {"PACE_S": "0.001"}


def told(job: Job) -> int:
    return read_status(str(job.folder / "run.h5")).get("num_steps", 0)


@pytest.mark.mpi
@pytest.mark.full_start
@pytest.mark.parametrize(("num_ranks", "victim"), [(2, "first"), (3, "last")])
def test_what_all_shards_have_committed_outlives_a_sigkill(job: Job, num_ranks: int, victim: str):
    """Each rank is a leader; shards are not as far as each other then."""
    whole = Job(job.folder).collect(None, *LONG, out="whole.h5")
    run = job.start(num_ranks, *LONG, *SHARDED, MPI_ROLLOUT_NODES=str(num_ranks), **PACE)
    run.wait_until(lambda: told(job) > 0)
    before = told(job)
    os.kill(run.pid_of(0 if victim == "first" else num_ranks - 1), signal.SIGKILL)
    result = run.finish()
    assert result.code != 0 and result.num_tracebacks == 0
    verified = Job(job.folder)(None, "verify", "run.h5.part", "--json")
    assert verified.code == 0, verified.err
    assert Job(job.folder)(num_ranks, *LONG, *SHARDED).code == 0
    assert before > 0
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(whole))


def has_all_steps(shard: Path) -> bool:
    with suppress(OSError), open_unmarked(str(shard)) as file:
        return bool(file.attrs["finished"].strip())
    return False


@pytest.mark.mpi(2)
@pytest.mark.full_start
def test_a_set_that_is_extended_stays_what_it_was_until_all_shards_have_their_steps(job: Job, num_ranks: int):
    more = (*SHARDED, "--num-steps", "400")
    forked = Job(job.folder)
    run = forked.collect(num_ranks, *LONG, *SHARDED, "--num-steps", "50", MPI_ROLLOUT_NODES="2")
    before, shards = datasets(run), job.folder / "run.h5.shards"
    longer = job.start(num_ranks, *LONG, *more, **PACE)
    longer.wait_until((shards / "envs-6-11.h5.part").exists)
    os.kill(slow := longer.pid_of(1), signal.SIGSTOP)
    longer.wait_until(lambda: has_all_steps(shards / "envs-0-5.h5.part"))
    os.kill(slow, signal.SIGKILL)
    assert longer.finish().code != 0
    assert_same_bytes(datasets(run), before)
    assert forked(None, "verify", "run.h5").code == 0 == forked(None, "verify", "run.h5.part").code
    result = forked(num_ranks, *LONG, *more)
    assert result.code == 0 and " x 0 steps on 2 ranks" not in result.out, result.err
    assert_same_bytes(datasets(run), datasets(forked.collect(None, *LONG, "--num-steps", "400", out="whole.h5")))


@pytest.mark.mpi(3)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_any_rank_stops_all_teams(job: Job, num_ranks: int, number: signal.Signals):
    run = job.start(num_ranks, *LONG, "--num-steps", "1000000", *SHARDED, MPI_ROLLOUT_NODES="3", **PACE)
    run.wait_until(lambda: told(job) > 0)
    os.kill(run.pid_of(2), number)
    result = run.finish()
    assert result.code == 75 or "SIGTERM" in result.err
    stopped = rf"mpi_rollout: rank 2 \({HOST}\): stopped by \w+; all shards have ([\d,]+) steps, in .*; the same "
    found, status = re.search(stopped, result.err), read_status(str(job.folder / "run.h5"))
    assert found and status["state"] == "interrupted" and int(found[1].replace(",", "")) == status["num_steps"]


@pytest.mark.mpi(2)
@pytest.mark.full_start
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_the_leader_of_a_team_that_has_ended_stops_the_others(
    job: Job, num_ranks: int, number: signal.Signals
):
    shard = job.folder / "run.h5.shards" / "envs-6-11.h5.part"
    run = job.start(num_ranks, *LONG, *SHARDED, MPI_ROLLOUT_NODES="2", **PACE)
    run.wait_until(shard.exists)
    os.kill(slow := run.pid_of(0), signal.SIGSTOP)
    run.wait_until(lambda: has_all_steps(shard))
    os.kill(run.pid_of(1), number)
    os.kill(slow, signal.SIGCONT)
    result = run.finish()
    assert result.code == 75 and f"rank 1 ({HOST}): stopped by {number.name}; all shards have " in result.err
    assert result.num_tracebacks == 0 and read_status(str(job.folder / "run.h5"))["state"] == "interrupted"
    assert Job(job.folder)(num_ranks, *LONG, *SHARDED).code == 0
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(Job(job.folder).collect(None, *LONG, out="whole.h5")))


@pytest.mark.mpi(2)
def test_damage_of_an_earlier_start_is_found_before_a_set_is_complete(job: Job, num_ranks: int):
    images = ("--env-factory", "stopping_envs:Image", "--num-steps", "700", *SHARDED)
    assert job(num_ranks, *MADE, *images, MPI_ROLLOUT_NODES="2", STOP_AT="raise:1800").code == 70
    damage(job.folder / "run.h5.shards" / shards_in(job)[-1], "trajectories/observations", "zeros")
    result = job(num_ranks, *MADE, *images, MPI_ROLLOUT_NODES="2")
    assert result.code == 65 and result.num_tracebacks == 0, result.err
    assert "observations, rows 0 to " in result.messages[-1] and "mpi_rollout recover" in result.messages[-1]
    assert not (job.folder / "run.h5").exists() and (job.folder / "run.h5.part").exists()
    assert read_status(str(job.folder / "run.h5"))["resumable"] is False


@pytest.mark.mpi(3)
def test_an_env_that_fails_in_one_team_is_named_as_in_a_single_file(job: Job, num_ranks: int):
    failing = ("--env-factory", "stopping_envs:Counting", "--num-envs", "9", "--num-steps", "40", "--out", "run.h5")
    error = job(num_ranks, *failing, *SHARDED, MPI_ROLLOUT_NODES="3", STOP_AT="raise:none").err
    assert "failed" not in error
    os.unlink(job.folder / "run.h5")
    bad = ("--env-factory", "failing_envs:failing", "--env-kwargs", '{"how": "raise", "rank": 2, "after": 5}')
    result = job(
        num_ranks, *bad, "--num-envs", "9", "--num-steps", "40", "--out", "bad.h5", *SHARDED, MPI_ROLLOUT_NODES="3"
    )
    assert result.code == 70
    assert f"rank 2 ({HOST}, envs 6 to 8), step " in result.err and ": env 6, " in result.err, result.err


@pytest.mark.parametrize(
    ("before", "arguments", "words"),
    [
        (SHARDED, (), "run.h5 is a set of shards; add --storage sharded"),
        ((), SHARDED, "run.h5 is one file, and this run writes shards"),
        (SHARDED, (*SHARDED, "--overwrite"), "is a set of shards; remove it with rm -r "),
        (SHARDED, (*SHARDED, "--seed", "4"), "--seed was 0, is 4; it is complete; move it and "),
        (None, (*SHARDED, "--no-trajectories"), "--storage sharded is for trajectories, got --no-trajectories"),
        (None, ("--shards-per-node", "2"), "--shards-per-node 2 is for --storage sharded"),
    ],
)
def test_what_does_not_fit_is_refused(job: Job, before: tuple[str, ...] | None, arguments: tuple[str, ...], words: str):
    small = ("--env", "CartPole-v1", "--num-envs", "4", "--num-steps", "5", "--out", "run.h5")
    if before is not None:
        assert job(None, *small, *before).code == 0
    for more in ((), ("--dry-run",)):
        result = job(None, *small, *arguments, *more)
        assert result.code == 64 and words in result.err and len(result.err.splitlines()) == 1, result.err


@pytest.mark.mpi(2)
def test_a_run_that_fails_before_its_first_step_leaves_nothing(job: Job, num_ranks: int):
    bad = ("--env-factory", "failing_envs:failing", "--env-kwargs", '{"how": "raise", "rank": 1, "after": 0}')
    result = job(num_ranks, *bad, "--num-envs", "4", "--out", "run.h5", *SHARDED, MPI_ROLLOUT_NODES="2")
    assert result.code == 70, result.err
    assert [path.name for path in Path(job.folder).iterdir() if path.name.startswith("run")] == []


def test_a_shard_that_is_lost_is_collected_again(job: Job):
    small = ("--env", "CartPole-v1", "--num-envs", "6", "--num-steps", "30", "--seed", "5")
    whole = datasets(job.collect(None, *small, out="whole.h5"))
    sharded = (*small, *SHARDED, "--shards-per-node", "2", "--out", "run.h5")
    assert job(None, *sharded, "--num-steps", "20").code == 0
    os.rename(job.folder / "run.h5", job.folder / "run.h5.old")
    os.unlink(job.folder / "run.h5.shards" / "envs-3-5.h5")
    os.rename(job.folder / "run.h5.old", job.folder / "run.h5")
    result = job(None, *sharded)
    assert result.code == 0 and "run.h5.shards/envs-3-5.h5; if a shard was moved, stop and " in result.err, result.err
    assert_same_bytes(datasets(job.folder / "run.h5"), whole)


SMALL = ("--env", "CartPole-v1", "--num-envs", "6", "--num-steps", "20", "--seed", "5", *SHARDED)


@pytest.mark.mpi(2)
def test_what_is_told_at_the_start_is_what_all_shards_have(job: Job, num_ranks: int):
    two = {"MPI_ROLLOUT_NODES": "2"}
    run = job.collect(num_ranks, *SMALL, **two)
    os.unlink(job.folder / "run.h5.shards" / "envs-3-5.h5")
    result = job(num_ranks, *SMALL, "--num-steps", "30", "--out", "run.h5", **two)
    assert result.code == 0 and "run.h5 after 0 of 30 steps" in result.err, result.err
    whole = job.collect(num_ranks, *SMALL, "--num-steps", "30", **two, out="whole.h5")
    assert_same_bytes(datasets(run), datasets(whole))


def test_shards_that_are_not_of_the_set_are_found_before_anything_is_collected(job: Job):
    run, other = (job.collect(None, *SMALL, "--shards-per-node", "2", out=out) for out in ("run.h5", "other.h5"))
    again, shard = (*SMALL, "--shards-per-node", "2", "--out", "run.h5"), "run.h5.shards/envs-3-5.h5"
    os.rename(job.folder / shard, job.folder / "away.h5")
    result = job(None, *again)
    assert result.code == 65 and f"{shard}: no such file" in result.err, result.err
    os.rename(run, f"{run}.part")
    os.rename(job.folder / "other.h5.shards/envs-3-5.h5", job.folder / shard)
    result = job(None, *again)
    assert result.code == 65 and f"{shard} is a shard of another set" in result.err, result.err
    os.unlink(f"{run}.part")
    result = job(None, *again)
    assert result.code == 64 and "run.h5.shards has shards of a set whose " in result.err, result.err
    assert len(result.err.splitlines()) == 1 and other.exists()


@pytest.mark.mpi(4)
@pytest.mark.parametrize("options", [("--shards-per-node", "3"), ("--root-envs", "0", "--shards-per-node", "2")])
def test_ranks_are_one_team_where_smaller_ones_have_too_few_envs_or_ranks(
    job: Job, num_ranks: int, options: tuple[str, ...]
):
    few = (*SMALL, "--num-envs", "4")
    whole = job.collect(None, *few, "--storage", "single", out="whole.h5")
    nodes = {"MPI_ROLLOUT_NODES": "4"} if "--root-envs" in options else {}
    assert_same_bytes(datasets(job.collect(num_ranks, *few, *options, **nodes)), datasets(whole))


@pytest.mark.mpi(2)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--num-episodes", "3"), "rank 0 writes all 2 shards, because --num-episodes counts the episodes of all envs"),
        (("--shards-per-node", "2"), "2 ranks write all 4 shards, because the job has 2 ranks on 2 nodes"),
    ],
)
def test_a_run_says_why_ranks_write_several_shards(job: Job, num_ranks: int, options: tuple[str, ...], words: str):
    result = job(num_ranks, *SMALL, *options, "--out", "run.h5", MPI_ROLLOUT_NODES="2")
    assert result.code == 0 and f"mpi_rollout: {words}\n" in result.err, result.err


@pytest.mark.mpi(2)
def test_the_disk_needs_room_for_the_shards_of_all_teams(job: Job, num_ranks: int):
    size = {"MPI_ROLLOUT_ANY_SIZE": ""}
    result = job(num_ranks, *SMALL, "--num-steps", "1000000000000", "--out", "run.h5", MPI_ROLLOUT_NODES="2", **size)
    assert result.code == 74 and "6 envs x 1,000,000,000,000 steps take about " in result.err, result.err
    assert not (job.folder / "run.h5.shards").exists()


@pytest.mark.mpi(2)
def test_a_number_of_nodes_that_is_none_is_one_line(job: Job, num_ranks: int):
    result = job(num_ranks, *SMALL, "--out", "run.h5", MPI_ROLLOUT_NODES="two")
    assert result.code == 64 and "MPI_ROLLOUT_NODES is 'two', and not a number of nodes" in result.err, result.err
    assert result.num_tracebacks == 0


@pytest.mark.mpi(2)
def test_too_few_envs_are_told_as_of_the_whole_run(job: Job, num_ranks: int):
    result = job(num_ranks, *SMALL, "--num-envs", "1", "--out", "run.h5", MPI_ROLLOUT_NODES="2")
    assert result.code == 64 and "got 1 env on 2 ranks" in result.err, result.err


@pytest.mark.mpi(2)
def test_a_manifest_that_gets_no_name_is_one_line_and_the_same_command_continues(job: Job, num_ranks: int):
    run = job.start(num_ranks, *LONG, "--num-steps", "400", *SHARDED, MPI_ROLLOUT_NODES="2", **PACE)
    run.wait_until(lambda: told(job) > 0)
    (job.folder / "run.h5").touch()
    result = run.finish()
    assert result.num_tracebacks == 0 and "cannot write " in result.err and "run.h5 has appeared" in result.err
    assert read_status(str(job.folder / "run.h5"))["exit_code"] == 74
    os.unlink(job.folder / "run.h5")
    assert job(num_ranks, *LONG, "--num-steps", "400", *SHARDED).code == 0


def test_what_a_start_that_was_killed_has_left_of_a_manifest_is_in_nobodys_way(job: Job):
    run = job.collect(None, *SMALL)
    os.rename(run, f"{run}.part")
    Path(f"{run}.part.new").touch()
    assert job.collect(None, *SMALL) == run
    for path in (run, *(job.folder / "run.h5.shards").iterdir()):
        os.unlink(path)
    (job.folder / "run.h5.shards" / f"envs-0-5.h5.probe-{HOST}-1").touch()
    Path(f"{run}.part.new").touch()
    assert job.collect(None, *SMALL) == run


STOPPED = ("--env-factory", "stopping_envs:Stopping", "--num-envs", "2", "--progress", "none", "--out", "run.h5")


@pytest.mark.parametrize("storage", ["single", "sharded"])
def test_an_extension_that_is_stopped_before_it_writes_points_at_a_file_that_is_there(job: Job, storage: str):
    begun = (*STOPPED, "--storage", storage)
    assert job(None, *begun, "--num-steps", "20").code == 0
    with h5py.File(job.folder / "run.h5") as file:
        assert len(file["throughput/intervals"]) == 1  # Also in a set that one team has written.
        seed = file["episodes"]["seed"][-1]
    longer = (*begun, "--num-steps", "60")
    stopped = job(None, *longer, STOP_AT=f"term:{seed}-1")
    path = str(job.folder / "run.h5")
    there = f"{path}.part" if os.path.exists(f"{path}.part") else path
    assert stopped.code == 75 and stopped.messages[-1].endswith(f"in {there}; the same command continues"), stopped.err
    status = read_status(path)
    assert status["file"] == there and status["resumable"] is True and status["num_steps"] == 20
    assert job(None, "verify", there).code == 0
    assert job(None, *longer).code == 0
    with h5py.File(path) as file:
        assert len(file["trajectories/rewards"]) == 60 and len(file["throughput/intervals"]) == 2
