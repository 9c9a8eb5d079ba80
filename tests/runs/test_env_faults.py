"""Runs whose envs fail, hang or give NaN: they go on if asked, the file tells of it, and it can be continued."""

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from jobs import Job, Start, are_gone, assert_same_bytes, datasets, once

from mpi_rollout.core.seeding import seeds_of_episodes
from mpi_rollout.errors import UsageError

KINDS = {
    "steps": {"how": "raise"},
    "resets": {"share": 0.0, "resets": 0.4},
    "nan": {"how": "nan", "share": 0.3, "resets": 0.1},
}


def arguments_of(kind: str, num_steps: int = 60) -> tuple[str, ...]:
    fixed = ("--num-envs", "7", "--num-steps", str(num_steps), "--seed", "4", "--progress", "none")
    forgiving = ("--max-env-restarts", "1000", "--env-checks", "finite")
    return "--env-factory", "seeded_faults:Moody", "--env-kwargs", json.dumps(KINDS[kind]), *fixed, *forgiving


def faults_of(path: Path) -> np.ndarray:
    with h5py.File(path, swmr=True, libver="latest") as file:
        return file["faults"][...]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run without mpirun: its path and result."""

    @once
    def of(kind: str) -> tuple[Path, Any]:
        job = Job(tmp_path_factory.mktemp("alone"))
        result = job(None, *arguments_of(kind), "--json", "--out", "run.h5")
        assert result.code == 0, result.err
        return job.folder / "run.h5", result

    return of


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_says_what_happened(alone, kind: str):
    path, result = alone(kind)
    faults, found = faults_of(path), datasets(path)
    episodes = found["/episodes"]
    failed = episodes[episodes["faulted"]]
    assert len(failed) >= 10 and failed["truncated"].all() and not failed["terminated"].any()
    in_steps = faults[faults["step"] >= 0]
    ends = sorted(zip(failed["env_index"], failed["start"] + failed["length"] - 1, strict=True))
    assert ends == sorted(zip(in_steps["env_index"], in_steps["step"], strict=True))
    assert (failed["length"] == 0).any() == (kind != "steps")
    assert found["truncations"][in_steps["step"], in_steps["env_index"]].all()
    told = [message.partition(": ")[2].partition("; restarted")[0] for message in result.messages]
    assert sorted(told) == sorted(row["message"].decode() for row in faults)
    assert sum(json.loads(result.out)["restarts"].values()) == len(faults)


@pytest.mark.parametrize("kind", KINDS)
def test_every_episode_has_the_seed_that_its_number_gives(alone, kind: str):
    episodes = datasets(alone(kind)[0])["/episodes"]
    for env in range(7):
        seeds = episodes["seed"][episodes["env_index"] == env]
        number = np.arange(len(seeds))
        assert len(seeds) > 3 and seeds.tolist() == seeds_of_episodes(4, np.full(len(seeds), env), number).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_is_verified_and_replayed(alone, job: Job, kind: str):
    path = alone(kind)[0]
    verified, inspected = job.series(
        [Start(["verify", path, "--replay", "12", "--json", "--trust"]), Start(["inspect", path])]
    )
    assert verified.code == 0 and json.loads(verified.out)["replayed"] == 12
    assert re.search(r"faults +\d+, the last in step \d+: env \d", inspected.out)


WAYS = {"lockstep": (), "groups": ("--num-groups", "2"), "ready": ("--batch-size", "1")}


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
@pytest.mark.parametrize(("kind", "way"), [("steps", "lockstep"), ("nan", "groups"), ("resets", "ready")])
def test_any_number_of_ranks_gives_the_same(alone, job: Job, num_ranks: int, kind: str, way: str):
    path = job.collect(num_ranks, *arguments_of(kind), *WAYS[way])
    assert_same_bytes(datasets(path), datasets(alone(kind)[0]))
    assert sorted(faults_of(path).tolist()) == sorted(faults_of(alone(kind)[0]).tolist())


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize("kind", ["resets", "nan"])
def test_a_run_that_was_interrupted_goes_on_to_the_same(alone, job: Job, num_ranks: int, kind: str):
    """Faults come again in no episode that is over; the running ones are taken again, with what they will do."""
    arguments = (*arguments_of(kind), "--policy", "seeded_faults:act", "--out")
    whole = job.collect(None, *arguments[:-1], out="whole.h5")
    for calls, ranks in ((17, num_ranks), (20, None)):
        assert job(ranks, *arguments, "run.h5", STOP_AT=f"raise:{calls}").code == 70
    result = job(num_ranks, *arguments, "run.h5")
    assert result.code == 0, result.err
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(whole))
    assert sorted(faults_of(job.folder / "run.h5").tolist()) == sorted(faults_of(whole).tolist())


# --- Envs that hang

QUIET = ("--progress", "none", "--out", "run.h5")
HANGING = ("--env-factory", "seeded_faults:Moody", "--num-envs", "4", "--seed", "2", *QUIET)


def hanging(how: str, num_steps: int, only: int | None, **more: Any) -> tuple[str, ...]:
    kwargs = json.dumps({"how": how, "share": 0.5, "only": only} | more)
    return *HANGING, "--env-kwargs", kwargs, "--num-steps", str(num_steps), "--env-timeout-s", "1"


@pytest.mark.mpi(2)
@pytest.mark.parametrize("how", ["sleep", "wait in C"])
def test_an_env_that_hangs_is_named_interrupted_and_restarted(job: Job, num_ranks: int, how: str):
    result = job(num_ranks, *hanging(how, 12, num_ranks - 1), "--max-env-restarts", "10")
    assert result.code == 0, result.err
    named = [message for message in result.messages if "takes longer than 1 s, in" in message]
    anew = [message for message in result.messages if "took longer than 1 s (seeded_faults.py, line " in message]
    assert len(named) == len(anew) == len(faults_of(job.folder / "run.h5")) >= 1
    assert re.match(
        rf"rank {num_ranks - 1} \(\S+, envs \d to 3\), step \d+: env \d, step \d of its episode "
        r"\(episode \d, seed \d+\): ", named[0],
    )  # fmt: skip
    assert 'seeded_faults.py", line' in result.err
    assert job(None, "verify", "run.h5", "--replay", "2", "--trust").code == 0


@pytest.mark.mpi(2)
@pytest.mark.parametrize("only", [0, 1], ids=["root", "other"])
def test_an_env_that_hangs_ends_the_run_with_all_steps_before(job: Job, num_ranks: int, only: int):
    result = job(num_ranks, *hanging("sleep", 100, only))
    assert result.code == 70 and are_gone(job.folder)
    last = next(message for message in result.messages if re.search(r"before (is|are) in \S+/run.h5.part", message))
    found = re.match(
        rf"rank {only} \(\S+, envs \d to \d\), step (\d+): env \d, step \d of its episode: took longer", last
    )
    with h5py.File(job.folder / "run.h5.part") as file:
        assert file["trajectories"].attrs["num_steps"] == int(found[1])


@pytest.mark.mpi(2)
def test_an_env_that_works_in_c_for_ever_ends_the_job(job: Job, num_ranks: int):
    result = job(num_ranks, *hanging("work in C", 100, 1), "--max-env-restarts", "10")
    assert result.code not in (0, None) and are_gone(job.folder)
    assert "cannot be interrupted; ending the job" in result.messages[-1] and result.messages[-1].startswith("rank 1 ")


@pytest.mark.mpi(2)
def test_an_env_that_holds_the_interpreters_lock_is_named_and_ends_the_job(job: Job, num_ranks: int):
    result = job(num_ranks, *hanging("hold the lock", 100, 1), "--max-env-restarts", "10")
    assert result.code not in (0, None) and are_gone(job.folder)
    assert re.search(
        r'seeded_faults.py", line \d+ in <lambda>\n.*\n  File "<rank 1 \(\S+\)>", line \d+ in env [23]\n', result.err
    )


@pytest.mark.parametrize(("closing", "when"), [("sleep", "restart"), ("exit", "restart"), ("sleep", "end")])
def test_an_env_that_does_not_even_close_hinders_nothing(job: Job, closing: str, when: str):
    kwargs = json.dumps({"closing": closing, "share": float(when == "restart")})
    steps = ("--num-envs", "2", "--num-steps", "9", "--env-timeout-s", "0.4", "--max-env-restarts", "10")
    result = job(None, "--env-factory", "seeded_faults:Stuck", "--env-kwargs", kwargs, *steps, "--seed", "3", *QUIET)
    assert result.code == 0 and (job.folder / "run.h5").exists(), result.err
    assert (len(faults_of(job.folder / "run.h5")) > 1) == (when == "restart")


@pytest.mark.parametrize(("where", "most"), [("step", "0"), ("reset", "10")])
def test_an_env_that_fails_when_its_episode_is_taken_again_is_lost_and_the_run_goes_on(job: Job, where: str, most: str):
    kwargs = ("--env-kwargs", json.dumps({"where": where}), "--max-env-restarts", most, "--policy", "seeded_faults:act")
    sizes = ("--num-envs", "3", "--num-steps", "40", "--seed", "3")
    arguments = ("--env-factory", "seeded_faults:Unlike", *kwargs, *sizes, *QUIET)
    stopped, again, verified, whole, replayed = job.series(
        [
            Start(arguments, environment={"STOP_AT": "raise:5"}),
            Start(arguments, environment={"STOP_AT": "raise:9", "AGAIN": "1"}),
            Start(["verify", "run.h5.part"]),
            Start(arguments),
            Start(["verify", "run.h5", "--replay", "5", "--trust"]),
        ]
    )
    assert [each.code for each in (stopped, again, verified, whole, replayed)] == [70, 70, 0, 0, 0], replayed.err
    assert "did not reproduce" in again.err
    rows = faults_of(job.folder / "run.h5")
    assert rows["env_index"].tolist() == [0, 1, 2] and set(rows["step"]) == {3}


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_slow_env_is_left_alone(job: Job, num_ranks: int):
    """Each step takes less than the limit; all envs of a rank together take more."""
    arguments = ("--env-factory", "seeded_faults:slow", "--num-envs", "14", "--num-steps", "1", "--env-timeout-s", "2")
    result = job(num_ranks, *arguments, "--env-kwargs", '{"sleep_s": 0.3}', *QUIET)
    assert result.code == 0 and result.messages == []


BAD = [
    (("--env-timeout-s", "0"), "--env-timeout-s must be more than 0"),
    (("--env-timeout-s", "nan"), "--env-timeout-s must be more than 0"),
    (("--env-timeout-s", "soon"), "--env-timeout-s must be a number, got 'soon'"),
    (("--max-env-restarts", "-1"), "--max-env-restarts must be at least 0"),
]


def test_options_that_cannot_work_are_refused(job: Job):
    results = job.series([Start(["--env", "CartPole-v1", *option]) for option, _ in BAD])
    for result, (_, why) in zip(results, BAD, strict=True):
        assert result.code == 64 and why in result.messages[0]


# --- Trainers


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize("infos", ["all", "none", {"lives": int}], ids=["all", "none", "columns"])
def test_a_trainer_goes_on_and_is_told(job: Job, num_ranks: int, infos):
    ended = job.train(num_ranks, "past_failing_envs", infos)
    assert sum(len(failed) for failed, _ in ended) > 5
    for failed, told in ended:
        assert told == (failed if infos == "all" else [])


def test_arguments_that_cannot_work_are_refused():
    import mpi_rollout

    for arguments in (
        {"max_env_restarts": -1},
        {"max_env_restarts": 1.5},
        {"env_timeout_s": 0},
        {"env_timeout_s": "1"},
    ):
        with pytest.raises(UsageError, match=next(iter(arguments))), mpi_rollout.connect("CartPole-v1", 2, **arguments):
            pass
