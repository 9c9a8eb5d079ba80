"""The programs in examples/ run as their first lines say.  `test_sb3.py` trains with `train_ppo.py`."""

import sys
from importlib.util import find_spec

import pytest
from jobs import CLONE, Job, mpiexec, run_job

EXAMPLES = CLONE / "examples"
TANK = ("--env-factory", f"{EXAMPLES}/own_env.py:make_env", "--env-kwargs", '{"hole_m2": 0.03}')
TANK += ("--policy", f"{EXAMPLES}/own_env.py:Controller", "--num-envs", "4", "--num-steps", "250", "--out", "tank.h5")


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_an_env_and_a_policy_of_your_own_are_collected_and_read(job: Job, num_ranks: int):
    result = job(num_ranks, *TANK)
    assert result.code == 0, result.err
    read = run_job([sys.executable, str(EXAMPLES / "read_data.py"), "tank.h5"], job.folder)
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
    read = run_job([sys.executable, "-c", script], job.folder)
    assert read.code == 0 and "992 transitions; no batches" in read.out, read.err


@pytest.mark.skipif(not find_spec("torch"), reason="needs torch")
@pytest.mark.mpi(2)
@pytest.mark.parametrize("ahead", [(), ("--ahead",)])
def test_a_learner_learns_from_what_the_ranks_take(job: Job, num_ranks: int, ahead: tuple[str, ...]):
    program = [
        str(EXAMPLES / "actor_learner.py"),
        "--num-envs",
        "16",
        "--length",
        "128",
        "--total-steps",
        "20000",
        *ahead,
    ]
    result = run_job([mpiexec(), "-n", str(num_ranks), sys.executable, *program], job.folder)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    first, last = (float(line.split()[-1]) for line in (lines[0], lines[-1]))
    assert lines[0].startswith(("2,0", "1,9")) and first < 30 and last > 60
