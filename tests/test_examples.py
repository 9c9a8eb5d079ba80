"""The programs in examples/ run as their first lines say.  `test_sb3.py` trains with `train_ppo.py`."""

from importlib.util import find_spec

import numpy as np
import pytest
from jobs import CLONE, LEARNING, Job

pytestmark = pytest.mark.imports(*LEARNING)

LONG_S = 500.0  # They learn for seconds; the machine may be busy.
EXAMPLES = CLONE / "examples"
TANK = ("--env-factory", f"{EXAMPLES}/own_env.py:make_env", "--env-kwargs", '{"hole_m2": 0.03}')
TANK += ("--policy", f"{EXAMPLES}/own_env.py:Controller", "--num-envs", "4", "--num-steps", "250", "--out", "tank.h5")


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_an_env_and_a_policy_of_your_own_are_collected_and_read(job: Job, num_ranks: int):
    result = job(num_ranks, *TANK)
    assert result.code == 0, result.err
    read = job.python(None, EXAMPLES / "read_data.py", "tank.h5")
    assert read.code == 0, read.err
    # Episodes of 100 steps in 250 rows, of which each reset after the first takes one.
    assert "12 episodes, 8 of them complete" in read.out and "mean length 100.0" in read.out
    if find_spec("torch"):
        assert "992 transitions in 4 batches" in read.out and "'next_observation': (256, 2)" in read.out


def test_the_controller_keeps_the_level_near_the_one_asked_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from own_env import Controller, make_env

    env, controller = make_env(), Controller()
    observation, _ = env.reset(seed=3)
    for _ in range(50):
        observation, reward, *_ = env.step(controller(observation[None])[0])
    assert reward > -0.2


def test_without_pytorch_the_episodes_are_still_read(job: Job):
    assert job(None, *TANK).code == 0
    script = "import runpy, sys; sys.modules['torch'] = None; sys.argv[1:] = ['tank.h5']\n"
    script += f"runpy.run_path({str(EXAMPLES / 'read_data.py')!r}, run_name='__main__')"
    read = job.script(None, script)
    assert read.code == 0 and "992 transitions; no batches" in read.out, read.err


def output_of(job: Job, num_ranks: int | None, name: str, *options: str) -> str:
    result = job.python(num_ranks, EXAMPLES / name, *options, timeout=LONG_S, MPI_ROLLOUT_END_S="100")
    assert result.code == 0, result.err
    return result.out


NEEDS_TORCH = pytest.mark.skipif(not find_spec("torch"), reason="needs torch")


@pytest.mark.any_mpi
@NEEDS_TORCH
@pytest.mark.mpi(2)
def test_a_learner_learns_from_what_the_ranks_take_while_it_learns(job: Job, num_ranks: int):
    size = ("--num-envs", "16", "--length", "128", "--total-steps", "10000")
    out = output_of(job, num_ranks, "actor_learner.py", *size, "--ahead")
    returns = [float(line.split()[-1]) for line in out.splitlines()]
    early = next(value for value in returns if value == value)  # Until an episode has ended there is none.
    assert early < 25 and returns[-1] > 30, out


@pytest.mark.any_mpi
@NEEDS_TORCH
@pytest.mark.mpi(3)
def test_nobody_waits_for_the_slower_rank(job: Job, num_ranks: int):
    out = output_of(job, num_ranks, "impala.py", "--num-envs", "4", "--length", "64", "--total-steps", "1000")
    num_steps = [int(line.split()[0].replace(",", "")) for line in out.splitlines()]
    assert num_steps[-1] >= 1000 and all(100 <= more <= 128 for more in np.diff(num_steps)), out


@NEEDS_TORCH
def test_the_learner_takes_actions_that_are_not_discrete(job: Job):
    options = ("--env", "Pendulum-v1", "--num-envs", "8", "--length", "64", "--total-steps", "3000")
    lines = output_of(job, None, "actor_learner.py", *options).splitlines()
    assert len(lines) == 6 and "nan" in lines[0] and -2000 < float(lines[-1].split()[-1]) < -500


@pytest.mark.any_mpi
@pytest.mark.mpi
@pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="pip install 'mpi_rollout[sb3]'")
def test_ppo_learns_to_calm_the_waves(job: Job):
    result = job.python(
        2, EXAMPLES / "shallow_water" / "train_ppo.py", "--total-steps", "2400", MPI_ROLLOUT_END_S="100"
    )
    assert result.code == 0, result.err
    learned, nothing, random = (float(line.split()[0]) for line in result.out.splitlines()[1:])
    assert learned > nothing + 3 and nothing > 0 > random  # 29, 21 and -72 here; it takes 60,000 steps to 76.
