"""Runs whose envs are MPI programs, on several ranks each: the data do not depend on it, and all failures end them."""

import json
import re
from typing import Any

import numpy as np
import pytest
from jobs import Job, Result, are_gone, assert_same_bytes, datasets

RUN = ("--env-factory", "mpi_envs:make_env", "--num-envs", "5", "--num-steps", "60", "--seed", "3")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """What envs of one rank each give."""
    return datasets(Job(tmp_path_factory.mktemp("expected")).collect(None, *RUN, "--progress", "none"))


def on(ranks_per_env: int, *more: str) -> tuple[str, ...]:
    return *RUN, "--ranks-per-env", str(ranks_per_env), "--progress", "none", *more


WAYS = {
    "one env on two ranks": (2, 2, ()),
    "three ranks of two": (3, 2, ("--root-envs", "0")),
    "three ranks each": (7, 3, ("--root-envs", "0", "--wait", "sleep")),
    "groups of envs": (4, 2, ("--num-groups", "2")),
    "first ready": (5, 2, ("--root-envs", "0", "--batch-size", "1")),
}


@pytest.mark.mpi(7)
@pytest.mark.parametrize("way", WAYS)
def test_the_data_do_not_depend_on_the_ranks_of_an_env(job: Job, num_ranks: int, expected: Any, way: str):
    num_ranks, ranks_per_env, more = WAYS[way]
    assert_same_bytes(datasets(job.collect(num_ranks, *on(ranks_per_env, *more))), expected)


@pytest.mark.any_mpi
@pytest.mark.mpi(4)
def test_a_registered_env_takes_its_communicator_by_name(job: Job, num_ranks: int):
    env = ("--env", "mpi_envs:Cells-v0", "--num-envs", "3", "--num-steps", "30", "--progress", "none")
    alone = job.collect(None, *env, out="alone.h5")
    assert_same_bytes(datasets(job.collect(num_ranks, *env, "--ranks-per-env", "2")), datasets(alone))
    assert datasets(alone)["/episodes"]["length"].max() == 5  # Its time limit.


@pytest.mark.mpi(4)
@pytest.mark.parametrize("at", ["kill:23", "term:23"])
def test_a_run_that_is_stopped_goes_on_with_other_ranks_for_each_env(job: Job, num_ranks: int, at: str):
    policy = ("--policy", "stopping_envs:blind")
    whole = job.collect(None, *RUN, *policy, "--progress", "none", out="whole.h5")
    assert job(num_ranks, *on(2, *policy), "--out", "run.h5", STOP_AT=at).code != 0 and are_gone(job.folder)
    assert_same_bytes(datasets(job.collect(3, *on(3, *policy))), datasets(whole))
    verified = job(None, "verify", "run.h5", "--replay", "5", "--trust", "--json")
    assert verified.code == 0 and json.loads(verified.out)["replayed"] == 5, verified.err


def misbehaving(*more: str, **kwargs: Any) -> tuple[str, ...]:
    return *on(2, *more), "--env-kwargs", json.dumps({"only": 4} | kwargs), "--out", "run.h5"


@pytest.mark.mpi(4)
def test_a_signal_to_a_rank_that_is_not_the_first_of_its_env_stops_the_run_between_two_steps(
    job: Job, num_ranks: int, expected: Any
):
    arguments = misbehaving(how="stop")
    stopped = job(num_ranks, *arguments)
    assert stopped.code == 75 and "the same command continues" in stopped.err, stopped.err
    assert job(num_ranks, *arguments).code == 0
    assert_same_bytes(datasets(job.folder / "run.h5"), expected)


@pytest.mark.any_mpi
@pytest.mark.mpi(4)
@pytest.mark.parametrize("late", [False, True], ids=["all", "one"])
def test_an_env_that_fails_is_made_again_on_all_of_its_ranks(job: Job, num_ranks: int, late: bool):
    """One of them may fail alone, if it keeps none of the others waiting."""
    kwargs = {"how": "raise", "rank": 1 if late else None, "late": late}
    forgiving = ("--max-env-restarts", "100")
    result = job(num_ranks, *misbehaving(*forgiving, **kwargs))
    assert result.code == 0, result.err
    place = r"rank 3 \(\S+\): " if late else ""
    assert re.search(rf"step 4 of its episode: ValueError: {place}the flow has diverged", result.err)
    alone = (*RUN, "--env-kwargs", json.dumps({"only": 4} | kwargs | {"rank": 0}), *forgiving, "--progress", "none")
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(job.collect(None, *alone, out="alone.h5")))


def failed(job: Job, num_ranks: int, *arguments: str, code: int = 70) -> Result:
    result = job(num_ranks, *arguments, timeout=40)
    assert result.code == code and are_gone(job.folder), result.err
    return result


@pytest.mark.mpi(4)
@pytest.mark.parametrize("rank", [None, 0, 1], ids=["all", "first", "other"])
def test_an_exception_on_some_ranks_of_an_env_ends_the_job(job: Job, num_ranks: int, rank: int | None):
    """The others wait in a collective for those that have failed."""
    result = failed(job, num_ranks, *misbehaving(how="raise", rank=rank))
    place = r"rank 3 \(\S+\), env 4" if rank == 1 else r"rank 2 \(\S+, envs 3 to 4\), step \d+: env 4"
    status = json.loads((job.folder / "run.status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("failed", 70)
    pattern = rf"{place}, step 4 of its episode: ValueError: the flow has diverged"
    assert len([message for message in result.messages if re.match(pattern, message)]) == 1, result.err


@pytest.mark.mpi(4)
@pytest.mark.parametrize(("how", "rank"), [("hang", 0), ("hang", 1), ("exit", 1), ("leave", 1)])
def test_a_rank_of_an_env_that_hangs_or_leaves_ends_the_job(job: Job, num_ranks: int, how: str, rank: int):
    limit = ("--env-timeout-s", "1") if how == "hang" else ()
    result = job(num_ranks, *misbehaving(*limit, how=how, rank=rank), timeout=40)
    number = 2 if how == "hang" else 3
    assert result.code not in (0, None) and are_gone(job.folder), result.err  # Launchers have codes of their own.
    assert any(message.startswith(f"rank {number} (") for message in result.messages), result.err


@pytest.mark.mpi(2)
@pytest.mark.parametrize(("how", "rank"), [("fork", 0), ("return in a fork", 0), ("fork", 1)])
def test_a_process_that_an_env_forks_on_one_of_its_ranks_ends_alone(job: Job, num_ranks: int, how: str, rank: int):
    result = job(num_ranks, *misbehaving(how=how, rank=rank, late=True), timeout=100)
    assert result.code == 0 and result.num_tracebacks == 0, result.err


@pytest.mark.mpi(2)
@pytest.mark.parametrize("rank", [0, 1], ids=["first", "other"])
def test_an_env_that_does_not_close_on_one_of_its_ranks_is_interrupted_and_the_run_is_complete(
    job: Job, num_ranks: int, rank: int
):
    result = job(num_ranks, *misbehaving(how="hang in close", rank=rank), MPI_ROLLOUT_END_S="1", timeout=100)
    assert result.code == 0 and (job.folder / "run.h5").exists(), result.err
    assert re.search(r"rank 0 \(\S+\): closing its envs: EnvTimeout: .*took longer than", result.err), result.err


REFUSED = {
    "no communicator": (4, ("--env-factory", "mpi_envs:make_alone"), "make_alone must take the communicator"),
    "other spaces": (4, ("--env-factory", "mpi_envs:make_other_spaces"), "rank 1 has"),
    "ranks left": (3, (), "--ranks-per-env 2 must divide the number of ranks that step envs, got 3 ranks"),
    "groups without an env": (
        4,
        ("--num-envs", "1"),
        "got 1 env on 2 ranks; use more envs or fewer ranks; each of these ranks is a group with --ranks-per-env 2",
    ),
    "native": (2, ("--vectorization-mode", "native"), "--ranks-per-env 2 is for single envs"),
}


@pytest.mark.any_mpi
@pytest.mark.mpi(4)
@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(job: Job, num_ranks: int, what: str):
    num_ranks, more, words = REFUSED[what]
    result = failed(job, num_ranks, *on(2, *more, "--out", "run.h5"), code=64)
    assert len(result.messages) == 1 and words in result.messages[0]


@pytest.mark.mpi(4)
def test_a_rank_that_cannot_make_its_part_of_an_env_ends_the_job(job: Job, num_ranks: int):
    env = ("--env-factory", "mpi_envs:make_without_solver", "--out", "run.h5")
    result = failed(job, num_ranks, *on(4, *env))
    assert re.search(r"rank 1 \(\S+\), env 0: ConnectionError: no licence for the solver", result.err)


@pytest.mark.any_mpi
@pytest.mark.mpi(4)
def test_the_limit_is_measured_on_all_ranks_of_the_envs(job: Job, num_ranks: int):
    result = job(
        num_ranks, *on(2, "--no-trajectories", "--measure-limit", "--limit-s", "0.1", "--json", "--out", "run.h5")
    )
    assert result.code == 0, result.err
    summary = json.loads(result.out)
    assert summary["ratio_to_limit"] > 0 and summary["num_ranks"] == 4
    made = [(rank["env_ranks"], rank["envs"]) for rank in summary["ranks"]]
    assert made == [([0, 1], "0 to 2"), ([2, 3], "3 to 4")]
