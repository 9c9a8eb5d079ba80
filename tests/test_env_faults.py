"""Envs that fail, hang or give NaN: made anew if asked, told of in the file, and nothing of the others is touched."""

import json
import re
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from conftest import Job, Start, assert_same_bytes, datasets, once, processes_in
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from moody import Moody, Once

from mpi_rollout.envs.faults import OnFault
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import DataError, EnvError, UsageError
from mpi_rollout.layout import Block
from mpi_rollout.seeding import SeedTable, episode_seeds
from mpi_rollout.storage import EpisodeTable
from mpi_rollout.storage.schema import fault_row

FORGIVING = OnFault(max_restarts=100)
CHECKED = OnFault(max_restarts=100, check_finite=True)

# --- The loop


def loop(
    how: str, on_fault: OnFault = FORGIVING, share: float = 0.5, num_envs: int = 5, resets: float = 0.0, **more: Any
):
    seeds = [episode_seeds(3, index) for index in range(num_envs)]
    return LoopVectorEnv([lambda: Moody(how, share, resets)] * num_envs, seeds=seeds, on_fault=on_fault, **more)


def steps_of(envs: LoopVectorEnv, num_steps: int = 60) -> Iterator[tuple[Any, ...]]:
    """Observations before, then all that each step gives, copied."""
    observations, _ = envs.reset()
    for step in range(num_steps):
        before = observations["x"].copy()
        observations, *results, infos = envs.step(np.full(envs.num_envs, step % 3))
        yield before, observations["x"].copy(), *(each.copy() for each in results), infos
        if envs.autoreset_mode is AutoresetMode.DISABLED and (results[1] | results[2]).any():
            observations, _ = envs.reset(options={"reset_mask": results[1] | results[2]})


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("how", ["raise", "exit", "stop", "nan", "inf", "reward"])
def test_an_env_that_fails_is_truncated_with_its_last_observation_and_begins_a_new_episode(mode, how: str):
    envs = loop(how, CHECKED, autoreset_mode=mode)
    num_faults = 0
    for before, after, rewards, terminations, truncations, infos in steps_of(envs):
        failed = np.flatnonzero(truncations).tolist()
        told = {index: what for index, what, _ in envs.faults[num_faults:]}
        assert sorted(told) == failed
        num_faults = len(envs.faults)
        assert not terminations[failed].any() and not rewards[failed].any()
        if failed and mode is AutoresetMode.SAME_STEP:
            last = envs.columns.final_observation_arrays[1][failed]  # Leaves are in the order of their keys: n, x.
            assert last.tobytes() == before[failed].tobytes()
            assert [infos["final_info"]["env_error"][index] for index in failed] == [told[index] for index in failed]
        elif failed:
            assert after[failed].tobytes() == before[failed].tobytes()
            assert [infos["env_error"][index] for index in failed] == [told[index] for index in failed]
        assert np.isfinite(after).all() and np.isfinite(rewards).all()
    assert num_faults > 10


def test_the_others_do_not_notice():
    """Where no episode fails, an env goes on as if none had failed."""
    moody, calm = steps_of(loop("raise", share=0.3), 40), steps_of(loop("raise", share=0.0), 40)
    until_fault = np.ones(5, np.bool_)
    for (_, *got), (_, *expected) in zip(moody, calm, strict=True):
        until_fault &= ~got[3]
        for first, second in zip(got[:4], expected[:4], strict=True):
            assert first[until_fault].tobytes() == second[until_fault].tobytes()
    assert 0 < until_fault.sum() < 5


def test_a_reset_that_fails_in_a_step_is_an_episode_without_steps():
    envs = loop("raise", share=0.0, num_envs=4, resets=0.3)
    ended = np.zeros(4, np.bool_)
    num_failed = 0
    for before, after, rewards, terminations, truncations, _ in steps_of(envs):
        assert not truncations[~ended].any()
        assert after[truncations].tobytes() == before[truncations].tobytes() and not rewards[truncations].any()
        num_failed += truncations.sum()
        ended = terminations | truncations
    assert num_failed > 3 and "reset: FileNotFoundError" in envs.faults[-1][1]


def test_the_first_reset_is_taken_again_with_the_same_seed_as_often_as_allowed():
    made = []

    class Shy(Moody):
        def __init__(self):
            super().__init__(share=0.0)
            made.append(self)

        def reset(self, *, seed=None, options=None):
            asked.append(seed)
            if len(made) < 4:
                raise ConnectionError("the licence server is busy")
            return super().reset(seed=seed, options=options)

    asked: list[int] = []
    envs = LoopVectorEnv([Shy], seeds=[episode_seeds(3, 0)], on_fault=OnFault(max_restarts=3))
    envs.reset()
    assert len(asked) == 4 and set(asked) == {next(episode_seeds(3, 0))}
    made.clear(), asked.clear()
    envs = LoopVectorEnv([Shy], seeds=[episode_seeds(3, 0)], on_fault=OnFault(max_restarts=2))
    with pytest.raises(EnvError, match=r"env 0, reset: ConnectionError: .* 2 times already"):
        envs.reset()


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_budget_bounds_it(most: int):
    envs = loop("raise", OnFault(max_restarts=most), share=1.0, num_envs=1)
    more = f"; it was made anew {most} times already" if most else ""
    with pytest.raises(EnvError, match=f"diverged{more}$"):
        list(steps_of(envs))
    assert len(envs.faults) == most


@pytest.mark.parametrize(("then", "why"), [("raise", "PermissionError: no licence"), ("space", "same action_space")])
def test_an_env_that_cannot_be_made_anew_says_why(then: str, why: str):
    Once.made = 0
    envs = LoopVectorEnv([lambda: Once(then)], on_fault=FORGIVING)
    with pytest.raises(EnvError, match=f"env 0 could not be made anew: .*{why}"):
        list(steps_of(envs))


def test_a_failure_says_where_it_comes_from():
    envs = loop("raise", share=1.0, num_envs=1)
    list(steps_of(envs, 5))
    (index, what, times), *_ = envs.faults
    assert index == 0 and times == "made anew, 1 of 100 times"
    expected = r"env 0, step \d of its episode: RuntimeError: the simulator has diverged \(moody.py, line \d+\)"
    assert re.fullmatch(expected, what)


@pytest.mark.parametrize(
    ("how", "what"),
    [("nan", "its observation 'x' is nan at [1]"), ("inf", "'x' is -inf at [1]"), ("reward", "reward is nan")],
)
def test_what_is_not_finite_is_named(how: str, what: str):
    with pytest.raises(DataError, match=re.escape(what)):
        list(steps_of(loop(how, OnFault(check_finite=True))))
    assert np.isnan([steps[2] for steps in steps_of(loop("reward", OnFault()))]).any()  # Nobody has asked.


def test_natively_vectorized_envs_cannot_be_made_anew_one_by_one(job: Job):
    options = ("--vectorization-mode", "vector_entry_point", "--on-env-error", "restart")
    result = job(None, "--env", "CartPole-v1", *options, "--out", "run.h5")
    assert result.code == 64 and "cannot be made anew singly" in result.messages[0]


# --- The table of episodes

NUM_ROWS = 20
LIFE = {"ends": [2, 3, 6, *range(7, 13)], "faults": [3, 6]}  # Of an env that is lost in step 6 and back in step 13.
EPISODES = [  # start, length, seed's number, truncated, faulted
    (0, 3, 0, True, False), (4, 0, 1, True, True), (5, 2, 2, True, True), (14, 6, 3, False, False)
]  # fmt: skip


@pytest.mark.parametrize("cuts", [(), (3,), (4, 7), (5, 9, 13), tuple(range(1, NUM_ROWS))])
def test_a_failed_reset_is_an_episode_and_a_lost_env_has_none_until_it_is_back(cuts: tuple[int, ...]):
    block = Block(spaces.Discrete(2), spaces.Discrete(2), 2, 1, NUM_ROWS)
    block.truncations[LIFE["ends"], 1] = True
    block.rewards[...] = 1.0
    table = EpisodeTable(2, SeedTable(4, 2))
    for step in LIFE["faults"]:
        table.note_fault(1, step)
    for start, stop in pairwise((0, *cuts, NUM_ROWS)):
        table.add(block, start, stop)
    rows = np.concatenate([table.take(NUM_ROWS), table.unfinished(NUM_ROWS)])
    found = rows[rows["env_index"] == 1][["start", "length", "seed", "truncated", "faulted"]].tolist()
    seeds = list(islice(episode_seeds(4, 1), 4))
    assert found == [(start, length, seeds[number], *ends) for start, length, number, *ends in EPISODES]


# --- Runs

KINDS = {
    "steps": {"how": "raise"},
    "resets": {"share": 0.0, "resets": 0.4},
    "nan": {"how": "nan", "share": 0.3, "resets": 0.1},
}


def arguments_of(kind: str, num_steps: int = 60) -> tuple[str, ...]:
    fixed = ("--num-envs", "7", "--num-steps", str(num_steps), "--seed", "4", "--progress", "none")
    forgiving = ("--on-env-error", "restart", "--max-env-restarts", "1000", "--check-finite")
    return "--env-factory", "moody:Moody", "--env-kwargs", json.dumps(KINDS[kind]), *fixed, *forgiving


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
    told = [message.partition(": ")[2].partition("; made anew")[0] for message in result.messages]
    assert sorted(told) == sorted(row["message"].decode() for row in faults)
    assert sum(json.loads(result.out)["restarts"].values()) == len(faults)


@pytest.mark.parametrize("kind", KINDS)
def test_every_episode_has_the_seed_that_its_number_gives(alone, kind: str):
    episodes = datasets(alone(kind)[0])["/episodes"]
    for env in range(7):
        seeds = episodes["seed"][episodes["env_index"] == env]
        number = np.arange(len(seeds))
        assert len(seeds) > 3 and seeds.tolist() == SeedTable(4, 7)(np.full(len(seeds), env), number).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_is_verified_and_replayed(alone, job: Job, kind: str):
    path = alone(kind)[0]
    verified, inspected = job.series([Start(["verify", path, "--replay", "12", "--json"]), Start(["inspect", path])])
    assert verified.code == 0 and json.loads(verified.out)["replayed"] == 12
    assert re.search(r"faults +\d+, the last in step \d+: env \d", inspected.out)


WAYS = {"lockstep": (), "groups": ("--num-groups", "2"), "ready": ("--mode", "async")}


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
@pytest.mark.parametrize(("kind", "way"), [("steps", "lockstep"), ("nan", "groups"), ("resets", "ready")])
def test_any_number_of_ranks_gives_the_same(alone, job: Job, num_ranks: int, kind: str, way: str):
    path = job.collect(num_ranks, *arguments_of(kind), *WAYS[way])
    assert_same_bytes(datasets(path), datasets(alone(kind)[0]))
    assert sorted(faults_of(path).tolist()) == sorted(faults_of(alone(kind)[0]).tolist())


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_interrupted_goes_on_to_the_same(alone, job: Job, num_ranks: int, kind: str):
    """Faults come again in no episode that is over; the running ones are taken again, with what they will do."""
    arguments = (*arguments_of(kind), "--policy", "moody:act", "--out")
    whole = job.collect(None, *arguments[:-1], out="whole.h5")
    for calls, ranks in ((17, num_ranks), (20, None)):
        assert job(ranks, *arguments, "run.h5", STOP_AT=f"raise:{calls}").code == 70
    result = job(num_ranks, *arguments, "run.h5")
    assert result.code == 0, result.err
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(whole))
    assert sorted(faults_of(job.folder / "run.h5").tolist()) == sorted(faults_of(whole).tolist())


# --- Envs that hang

QUIET = ("--progress", "none", "--out", "run.h5")
HANGING = ("--env-factory", "moody:Moody", "--num-envs", "4", "--seed", "2", *QUIET)


def hanging(how: str, num_steps: int, only: int | None, **more: Any) -> tuple[str, ...]:
    kwargs = json.dumps({"how": how, "share": 0.5, "only": only} | more)
    return *HANGING, "--env-kwargs", kwargs, "--num-steps", str(num_steps), "--env-timeout", "1"


@pytest.mark.mpi(2)
@pytest.mark.parametrize("how", ["sleep", "wait in C"])
def test_an_env_that_hangs_is_named_interrupted_and_made_anew(job: Job, num_ranks: int, how: str):
    result = job(num_ranks, *hanging(how, 12, num_ranks - 1), "--on-env-error", "restart")
    assert result.code == 0, result.err
    named = [message for message in result.messages if "takes longer than 1 s, in" in message]
    anew = [message for message in result.messages if "took longer than 1 s (moody.py, line " in message]
    assert len(named) == len(anew) == len(faults_of(job.folder / "run.h5")) >= 1
    assert re.match(
        rf"rank {num_ranks - 1} \(\S+, envs \d to 3\), step \d+: env \d, step \d of its episode "
        r"\(episode \d, seed \d+\): ", named[0],
    )  # fmt: skip
    assert 'moody.py", line' in result.err
    assert job(None, "verify", "run.h5", "--replay", "2").code == 0


@pytest.mark.mpi(2)
@pytest.mark.parametrize("only", [0, 1], ids=["root", "other"])
def test_an_env_that_hangs_ends_the_run_with_all_steps_before(job: Job, num_ranks: int, only: int):
    result = job(num_ranks, *hanging("sleep", 100, only))
    assert result.code == 70 and processes_in(job.folder) == []
    last = next(message for message in result.messages if "before are in run.h5.part" in message)
    found = re.match(
        rf"rank {only} \(\S+, envs \d to \d\), step (\d+): env \d, step \d of its episode: took longer", last
    )
    with h5py.File(job.folder / "run.h5.part") as file:
        assert file["trajectories"].attrs["num_steps"] == int(found[1]) - 1


@pytest.mark.mpi(2)
def test_an_env_that_works_in_c_for_ever_ends_the_job(job: Job, num_ranks: int):
    result = job(num_ranks, *hanging("work in C", 100, 1), "--on-env-error", "restart", timeout=30)
    assert result.code not in (0, None) and processes_in(job.folder) == []
    assert "cannot be interrupted; ending the job" in result.messages[-1] and result.messages[-1].startswith("rank 1 ")


@pytest.mark.mpi(2)
def test_an_env_that_holds_the_interpreters_lock_is_named_and_ends_the_job(job: Job, num_ranks: int):
    result = job(num_ranks, *hanging("hold the lock", 100, 1), "--on-env-error", "restart", timeout=30)
    assert result.code not in (0, None) and processes_in(job.folder) == []
    assert re.search(
        r'moody.py", line \d+ in <lambda>\n.*\n  File "<rank 1 \(\S+\)>", line \d+ in env [23]\n', result.err
    )


@pytest.mark.parametrize(("closing", "when"), [("sleep", "restart"), ("exit", "restart"), ("sleep", "end")])
def test_an_env_that_does_not_even_close_hinders_nothing(job: Job, closing: str, when: str):
    kwargs = json.dumps({"closing": closing, "share": float(when == "restart")})
    steps = ("--num-envs", "2", "--num-steps", "9", "--env-timeout", "0.4", "--on-env-error", "restart")
    result = job(
        None, "--env-factory", "moody:Stuck", "--env-kwargs", kwargs, *steps, "--seed", "3", *QUIET, timeout=30
    )
    assert result.code == 0 and (job.folder / "run.h5").exists(), result.err
    assert (len(faults_of(job.folder / "run.h5")) > 1) == (when == "restart")


@pytest.mark.parametrize("where", ["step", "reset"])
@pytest.mark.parametrize("on", ["abort", "restart"])
def test_an_env_that_fails_when_its_episode_is_taken_again_is_lost_and_the_run_goes_on(job: Job, where: str, on: str):
    kwargs = ("--env-kwargs", json.dumps({"where": where}), "--on-env-error", on, "--policy", "moody:act")
    sizes = ("--num-envs", "3", "--num-steps", "40", "--seed", "3")
    arguments = ("--env-factory", "moody:Unlike", *kwargs, *sizes, *QUIET)
    stopped, again, verified, whole, replayed = job.series(
        [
            Start(arguments, environment={"STOP_AT": "raise:5"}),
            Start(arguments, environment={"STOP_AT": "raise:9", "AGAIN": "1"}),
            Start(["verify", "run.h5.part"]),
            Start(arguments),
            Start(["verify", "run.h5", "--replay", "5"]),
        ]
    )
    assert [each.code for each in (stopped, again, verified, whole, replayed)] == [70, 70, 0, 0, 0], replayed.err
    assert "did not reproduce" in again.err
    rows = faults_of(job.folder / "run.h5")
    assert rows["env_index"].tolist() == [0, 1, 2] and set(rows["step"]) == {3}


def test_frames_and_odd_messages_outlive_a_failure():
    class Odd(Moody):
        metadata = {"render_modes": ["rgb_array"]}
        render_mode = "rgb_array"

        def render(self):
            return np.full((2, 2, 3), self.num, np.uint8)

        def step(self, action):
            if self.num == 2:
                raise ValueError("\ud800")
            return super().step(action)

    envs = LoopVectorEnv([lambda: gymnasium.wrappers.OrderEnforcing(Odd(share=0.0))], on_fault=FORGIVING)
    envs.reset(seed=1)
    found = []
    for _ in range(5):
        envs.step(np.zeros(1, np.int64))
        found.append(int(envs.render()[0][0, 0, 0]))
    assert found == [1, 2, 2, 0, 1]
    assert fault_row(0, 1, envs.faults[0][1])[2].endswith(b")") and len(envs.faults) == 1


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_slow_env_is_left_alone(job: Job, num_ranks: int):
    """Each step takes less than the limit; all envs of a rank together take more."""
    arguments = ("--env-factory", "moody:slow", "--num-envs", "14", "--num-steps", "2", "--env-timeout", "1")
    result = job(num_ranks, *arguments, "--env-kwargs", '{"sleep_s": 0.15}', *QUIET)
    assert result.code == 0 and result.messages == []


BAD = [
    (("--env-timeout", "0"), "--env-timeout must be more than 0"),
    (("--env-timeout", "nan"), "--env-timeout must be more than 0"),
    (("--env-timeout", "soon"), "invalid float value"),
    (("--on-env-error", "ignore"), "invalid choice"),
    (("--max-env-restarts", "0"), "--max-env-restarts must be at least 1"),
]


def test_options_that_cannot_work_are_refused(job: Job):
    results = job.series([Start(["--env", "CartPole-v1", *option]) for option, _ in BAD])
    for result, (_, why) in zip(results, BAD, strict=True):
        assert result.code == 64 and why in result.messages[0]


# --- Trainers


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 2)
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


# --- Envs that are slow


@pytest.mark.any_mpi
@pytest.mark.mpi(3)
def test_the_rank_that_keeps_the_others_waiting_is_told_of(job: Job, num_ranks: int):
    options = ("--num-envs", "3", "--num-steps", "60", "--progress", "lines", "--out", "run.h5")
    kwargs = ("--env-kwargs", json.dumps({"sleep_s": 0.02, "others_s": 0.005, "only": 2}))
    result = job(num_ranks, "--env-factory", "moody:slow", *kwargs, *options)
    assert result.code == 0
    assert re.search(r"slowest rank 2 \([2-9]\.\dx median\)", result.err), result.err
