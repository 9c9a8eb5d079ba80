"""`connect` on all ranks: however a trainer ends, all ranks end with it."""

import copy
import json
import os
import pickle
import re
import signal
from dataclasses import fields

import pytest
from jobs import Job, Result, are_gone

import mpi_rollout
from mpi_rollout.launched.vector_env import LaunchedVectorEnv
from mpi_rollout.options import SharedOptions
from mpi_rollout.train.connection import Connection
from mpi_rollout.train.vector_env import MPIVectorEnv

HOST = os.uname().nodename
POLE = "CartPole-v1"
SOON_S = 60.0  # More than starting and failing takes, less than what else ranks do.

# How a trainer ends.

BEGIN = f"""
import sys, time
import numpy as np
import mpi_rollout
from mpi_rollout.exchange.world import claimed_rank
POLE, rank, actions = {POLE!r}, claimed_rank(), np.zeros(4, int)
"""
USE = """
with mpi_rollout.connect(POLE, 4) as envs:
    if envs is not None:
        envs.reset()
"""


def run(job: Job, num_ranks: int, code: str) -> Result:
    """Run a program that has `mpi_rollout`, `rank`, and actions for four CartPoles; all its processes are to go."""
    result = job.script(num_ranks, BEGIN + code)
    assert result.seconds < SOON_S and "has not ended in" not in result.err and are_gone(job.folder)
    return result


@pytest.mark.mpi(2)
@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        ("envs.send(actions); raise ValueError('the network has diverged')", 1, "ValueError: the network has diverged"),
        ("envs.close(); raise ValueError('too late')", 1, "ValueError: too late"),
        pytest.param("envs.send(actions); sys.exit(3)", 3, "", marks=pytest.mark.full_start),
        ("sys.exit('enough')", 1, "enough"),
    ],
)
def test_when_a_trainer_fails_all_ranks_end_with_its_code_and_its_words(
    job: Job, num_ranks: int, last: str, code: int, said: str
):
    result = run(job, num_ranks, USE + f"        {last}\nprint('on')")
    assert result.code == code
    assert result.err.count(said) == 1 or not said
    assert result.num_tracebacks == ("Error" in said)
    assert result.out.count("on") == (num_ranks - 1 if "close" in last else 0)  # Those that had left before.


@pytest.mark.mpi(1, 3)
def test_when_a_trainer_is_done_all_ranks_go_on(job: Job, num_ranks: int):
    """Its envs may be stepping, or closed; closed by hand, they need no with statement; `sys.exit()` is no failure."""
    ends = ["envs.send(actions)", "envs.close()", "envs.send(actions); envs.close()"]
    program = "".join(USE + f"        {last}\nassert rank == 0 or envs is None\nprint('on')\n" for last in ends)
    program += """
envs = mpi_rollout.connect(POLE, 4).__enter__()
if envs is not None:
    envs.reset()
    envs.close()
print('on')
"""
    result = run(job, num_ranks, program + USE + "        envs.send(actions); sys.exit()")
    assert (result.code, result.out.replace("\n", ""), result.err) == (0, "on" * 4 * num_ranks, "")


def test_in_one_process_envs_need_no_with_statement_and_close_at_the_end_of_the_program(job: Job):
    """They are a vector env like any other, in Gymnasium's wrappers too; who takes a new one frees the old one."""
    code = """
import gc, gymnasium
class Closing(gymnasium.Wrapper):
    def __init__(self, name): super().__init__(gymnasium.make(POLE)); self.name = name
    def close(self): print("closes", self.name)
for name in "ab":
    envs = mpi_rollout.connect(Closing, 2, env_kwargs=dict(name=name))
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    wrapped.reset(seed=1)
    print(wrapped.step(actions[:2])[1].tolist())
    del wrapped
    gc.collect()
with mpi_rollout.connect(Closing, 1, env_kwargs=dict(name="c")) as third:
    third.reset()
print(third.closed, envs.closed)
"""
    result = job.script(None, BEGIN + code)
    assert (result.code, result.err) == (0, "")
    lines = ["[1.0, 1.0]", "[1.0, 1.0]", *["closes a"] * 2, "closes c", "True False", *["closes b"] * 2]
    assert sorted(result.out.splitlines()[:4]) == sorted(lines[:4]) and result.out.splitlines()[4:] == lines[4:]


@pytest.mark.mpi(2)
def test_a_trainer_that_forgets_to_close_is_told_and_no_rank_waits_for_ever(job: Job, num_ranks: int):
    result = run(job, num_ranks, "envs = mpi_rollout.connect(POLE, 4).__enter__()\nif envs is not None: envs.reset()")
    assert result.code == 70 and result.num_tracebacks == 0
    [message] = result.messages
    assert message.startswith(f"rank 0 ({HOST}): the trainer ended without closing its envs; use `with mpi_rollout.")


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_without_a_with_statement_there_are_no_envs_but_a_hint(job: Job, num_ranks: int):
    result = run(job, num_ranks, "envs = mpi_rollout.connect(POLE, 4)\nif rank == 0: envs.reset()")
    assert result.code == 1 and result.num_tracebacks == 1
    assert "got .reset without one; write `with mpi_rollout.connect(...) as envs:`" in result.err


@pytest.mark.mpi(2)
@pytest.mark.parametrize(
    ("last", "code"), [pytest.param("raise ValueError('late')", 1, marks=pytest.mark.full_start), ("sys.exit(3)", 3)]
)
def test_a_trainer_that_fails_waits_for_no_long_step(job: Job, num_ranks: int, last: str, code: int):
    """A step of rank 1 does not end here at all."""
    program = f"""
import envs as test_envs, mpi_rollout.train.connection
mpi_rollout.train.connection.LEAVE_S = 0.5
with mpi_rollout.connect(test_envs.Gated, 4, env_kwargs=dict(rank=1)) as envs:
    if envs is not None:
        envs.reset()
        envs.send(actions + 2)
        {last}
"""
    result = run(job, num_ranks, program)
    assert result.code == code and result.num_tracebacks == 1
    assert result.messages == ["the trainer left while ranks were stepping; ended them after 0.5 s"]


@pytest.mark.mpi(2)
@pytest.mark.parametrize("ranks", [[0], [0, 1]], ids=["the root", "all ranks"])
def test_ctrl_c_interrupts_the_trainer_and_ends_all_ranks(job: Job, num_ranks: int, ranks: list[int]):
    """A terminal sends it to all ranks; what it means is the trainer's to say."""
    program = USE + "        open('begun', 'w').close()\n        while True: envs.step(actions)"
    running = job.start_script(num_ranks, BEGIN + program)
    running.wait_until((job.folder / "begun").exists)
    pids = [running.pid_of(rank) for rank in ranks]
    for pid in reversed(pids):
        os.kill(pid, signal.SIGINT)
    result = running.finish(15)
    assert result.code != 0 and are_gone(job.folder)
    assert result.err.splitlines().count("KeyboardInterrupt") == result.num_tracebacks == 1


@pytest.mark.mpi(2)
@pytest.mark.parametrize("way", ["", "num_groups=2", "batch_size=1"], ids=["lockstep", "groups", "ready"])
def test_a_trainer_that_catches_ctrl_c_and_leaves_keeps_no_rank_waiting(job: Job, num_ranks: int, way: str):
    """Interrupted eight times, wherever it then is."""
    program = f"""
import signal
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
for attempt in range(8):
    with mpi_rollout.connect(POLE, 4, {way}) as envs:
        if envs is not None:
            envs.reset()
            signal.setitimer(signal.ITIMER_REAL, 0.01 + 0.002 * attempt)
            try:
                while True: envs.step(actions)
            except KeyboardInterrupt:
                print("saved")
print("on")
"""
    result = run(job, num_ranks, program)
    assert "saved" in result.out
    assert result.code == 0 or result.messages, result.err
    assert result.out.replace("saved", "").count("on") == (num_ranks if result.code == 0 else 0)


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_a_trainer_that_forgets_that_other_ranks_get_none_is_told(job: Job, num_ranks: int):
    result = run(job, num_ranks, "with mpi_rollout.connect(POLE, 4) as envs:\n    envs.reset()")
    assert result.code == 1 and result.num_tracebacks == 1
    [message] = result.messages
    assert message.startswith("rank 1 has no envs: ") and message.endswith(
        "`if envs is not None:` inside of the with statement"
    )


def test_the_package_shows_what_users_need():
    shown = {name for name in dir(mpi_rollout) if not name.startswith("__")}
    assert {"RankError", "connect", "MPIVectorEnv", "UsageError"} <= shown == {*mpi_rollout.__all__}
    assert {
        "__version__",
        "__doc__",
        "__path__",
    } <= {*dir(mpi_rollout)}


def test_the_help_of_connect_names_all_options():
    described = (mpi_rollout.connect.__doc__ or "").partition("**options")[2].partition("An env")[0]
    assert [own.name for own in fields(SharedOptions)] == re.findall(r"\w+", described.partition(":")[2])


# Ranks that do not do the same.


@pytest.mark.mpi(3)
@pytest.mark.parametrize(("missing", "instead"), [(0, "time.sleep(1000)"), (1, "pass")], ids=["busy root", "leaving"])
def test_a_rank_that_does_not_come_is_named_in_time(job: Job, num_ranks: int, missing: int, instead: str):
    come = "mpi_rollout.connect(POLE, 4, timeout_s=1).__enter__()"
    result = run(job, num_ranks, f"from mpi4py import MPI\nif rank == {missing}:\n    {instead}\nelse:\n    {come}")
    assert result.code != 0 and result.num_tracebacks == 0
    assert f"rank {missing} has not called mpi_rollout.connect within 1 s" in result.err
    assert len(result.messages) <= (1 if missing else 2)  # Without the root, whoever sees it first.


@pytest.mark.mpi(2)
def test_a_rank_that_does_not_even_start_mpi_ends_the_job_in_time(job: Job, num_ranks: int):
    result = run(job, num_ranks, "if rank: time.sleep(1000)\nmpi_rollout.connect(POLE, 4, timeout_s=1).__enter__()")
    assert result.code != 0
    missing = f"rank 0 ({HOST}): another rank has not started MPI within 1 s; start this program on all 2 ranks"
    assert result.messages == [f"{missing}, or give them more time by timeout_s"]


@pytest.mark.mpi(2)
def test_a_connection_that_is_refused_ends_the_job(job: Job, num_ranks: int):
    result = run(job, num_ranks, "with mpi_rollout.connect(POLE, 4 + rank): print('in')")
    assert result.code in (1, 78, 1 | 78) and result.out == ""  # The root's, or another rank's; Hydra mixes them.
    assert result.num_tracebacks == 1 and "LaunchError: the ranks do not agree on the argument num_envs" in result.err


# Envs that fail.


@pytest.mark.mpi(3)
@pytest.mark.parametrize(
    ("place", "how", "cause"),
    [
        (0, "raise", "RuntimeError: the simulator has diverged"),
        (2, "exit", "called sys.exit(0)"),
        (0, "os_exit", "os._exit(7)"),
        (2, "os_exit", "os._exit(7)"),
    ],
)
def test_an_env_that_fails_ends_the_trainer_with_its_place_and_cause(
    job: Job, num_ranks: int, place: int, how: str, cause: str
):
    kwargs = json.dumps({"how": how, "rank": place, "after": 2}).replace("null", "None")
    code = f"""
import failing_envs
with mpi_rollout.connect(failing_envs.failing, 6, env_kwargs={kwargs} | dict(image=False)) as envs:
    if envs is not None:
        envs.reset(seed=0)
        for _ in range(20):
            envs.step(np.full(6, 3))
"""
    result = run(job, num_ranks, code)
    if how == "os_exit":
        told = (
            f"rank {place} ({HOST}): an env, a policy or a library called {cause} before the run was over; the job ends"
        )
        assert result.code == 70 and result.messages == [told]
        return
    assert result.code == 1
    envs = f"{2 * place} to {2 * place + 1}"
    told = f"RankError: rank {place} ({HOST}, envs {envs}), step 2: env {2 * place}, step 2 of its episode: {cause}"
    assert result.err.count(told) == 1


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
@pytest.mark.parametrize(
    "said",
    ["metadata = {'hook': lambda: 3}", "observation_space = Mine(-1, 2**62, (4,), np.int64)"],
    ids=["metadata", "a space"],
)
def test_what_envs_say_of_themselves_and_ranks_cannot_send_does_not_hang_them(job: Job, num_ranks: int, said: str):
    code = f"""
import envs as test_envs
from gymnasium import spaces
class Mine(spaces.Box): pass
Mine.__module__ = "nowhere"
class Own(test_envs.Counting):
    {said}
with mpi_rollout.connect(Own, 4) as envs:
    if envs is not None: print(envs.reset()[0].shape)
"""
    result = run(job, num_ranks, code)
    assert result.out == "(4, 4)\n" if result.code == 0 else result.num_tracebacks == 1


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_an_env_may_be_made_by_any_callable_and_actions_come_as_any_sequence(job: Job, num_ranks: int):
    code = """
import functools, gymnasium
class Factory:
    def __call__(self, **kwargs): return gymnasium.make(POLE, **kwargs)
makes = [lambda: gymnasium.make(POLE), functools.partial(gymnasium.make, POLE), Factory(), gymnasium.spec(POLE).make]
for make in makes:
    with mpi_rollout.connect(make, 4) as envs:
        if envs is not None:
            envs.reset(seed=1)
            steps = [envs.step(each) for each in ([0, 1, 0, 1], (0, 1, 0, 1), np.array([0, 1, 0, 1], np.uint8))]
            print(steps[-1][0].sum())
"""
    result = run(job, num_ranks, code)
    assert result.code == 0, result.err
    assert len(result.out.split()) == 4 and len(set(result.out.split())) == 1


@pytest.mark.mpi(4)
def test_ranks_of_different_communicators_connect_by_themselves_and_in_any_rank_order(job: Job, num_ranks: int):
    """Each half has a trainer; in the second one the last rank is its root."""
    code = """
from mpi4py import MPI
half = MPI.COMM_WORLD.Split(rank // 2, key=rank if rank < 2 else -rank)
with mpi_rollout.connect(POLE, 3 + rank // 2, comm=half) as envs:
    if envs is not None:
        envs.reset(seed=0)
        rewards = envs.step(np.zeros(envs.num_envs, int))[1]
        open(f"told by {rank}", "w").write(str(rewards.tolist()))
"""
    assert run(job, num_ranks, code).code == 0
    told = {path.name: path.read_text() for path in job.folder.glob("told by *")}
    assert told == {"told by 0": str([1.0] * 3), "told by 3": str([1.0] * 4)}


SLOTS = """
import gc
import gymnasium

class Large(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 255, (10**5,), np.uint8), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(10**5, np.uint8), {}

gc.disable()
for _ in range(4):
    with mpi_rollout.connect(Large, 4) as envs:
        if envs is not None:
            envs.reset()
with open("/proc/self/maps") as maps:
    num_mapped = sum("mpi_rollout-" in line for line in maps)
assert num_mapped <= 2, num_mapped
"""


@pytest.mark.mpi(2)
@pytest.mark.full_start  # Forked ranks never give their objects back to the garbage collector.
def test_the_slots_of_closed_connections_do_not_pile_up(job: Job, num_ranks: int):
    result = run(job, num_ranks, SLOTS)
    assert result.code == 0, result.err


@pytest.mark.parametrize("kind", [Connection, MPIVectorEnv, LaunchedVectorEnv])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_what_has_the_envs_of_a_job_is_neither_copied_nor_pickled(kind: type, duplicate):
    envs = kind.__new__(kind)
    vars(envs)["closed"] = True
    with pytest.raises(TypeError, match=f"^{kind.__name__} is neither copied nor pickled: .* connect or launch again$"):
        duplicate(envs)
