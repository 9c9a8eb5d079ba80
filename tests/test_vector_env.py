"""The envs of all ranks are one vector env, and it gives what Gymnasium's `SyncVectorEnv` gives."""

from collections.abc import Callable
from functools import partial
from typing import Any

import envs as test_envs
import gymnasium
import numpy as np
import pytest
from conftest import Job, assert_same_bytes, datasets
from oracle import rollout, seeded_sync

from mpi_rollout.policy import RandomPolicy

RUNS = {
    "CartPole-v1": ("--env", partial(gymnasium.make, "CartPole-v1"), 7, 300),
    "Pendulum-v1": ("--env", partial(gymnasium.make, "Pendulum-v1"), 3, 450),
    "Blackjack-v1": ("--env", partial(gymnasium.make, "Blackjack-v1"), 5, 100),
    "envs:Counting": ("--env-factory", test_envs.Counting, 7, 100),
    "envs:Nested": ("--env-factory", test_envs.Nested, 5, 100),
    "envs:Image": ("--env-factory", test_envs.Image, 3, 40),
}


def expected(make: Callable[[], gymnasium.Env], num_envs: int, num_steps: int, seed: int) -> dict[str, np.ndarray]:
    envs = seeded_sync(make, num_envs, seed)
    return rollout(envs, RandomPolicy(envs.single_action_space, num_envs, seed), num_steps)


@pytest.mark.parametrize("name", RUNS)
def test_a_file_holds_what_gymnasium_gives(job: Job, name: str):
    option, make, num_envs, num_steps = RUNS[name]
    path = job.collect(2, option, name, "--num-envs", str(num_envs), "--num-steps", str(num_steps), "--seed", "11")
    found = datasets(path)
    del found["/episodes"]
    assert_same_bytes(found, expected(make, num_envs, num_steps, 11))


@pytest.mark.parametrize("name", RUNS)
def test_the_episode_table_holds_the_episodes_that_gymnasium_gives(job: Job, name: str):
    """Found here one env after the other and step by step; the returns are added up in the same order."""
    option, make, num_envs, num_steps = RUNS[name]
    path = job.collect(None, option, name, "--num-envs", str(num_envs), "--num-steps", str(num_steps))
    columns = expected(make, num_envs, num_steps, 0)
    episodes = []
    for env in range(num_envs):
        seeds, start, total, is_reset = seeded_sync(make, num_envs, 0).envs[env].seeds, 0, 0.0, False
        for step in range(num_steps):
            if is_reset:
                start, total, is_reset = step + 1, 0.0, False
                continue
            total += columns["rewards"][step, env]
            ends = bool(columns["terminations"][step, env]), bool(columns["truncations"][step, env])
            is_reset = any(ends)
            if is_reset or step == num_steps - 1:
                episodes.append((env, start, step - start + 1, total, next(seeds), *ends, False))
    assert sorted(datasets(path)["/episodes"].tolist()) == episodes


DIRECT = """
import sys
import numpy as np
from mpi4py import MPI
from mpi_rollout.config import RolloutConfig
from mpi_rollout.envs import make_slice
from mpi_rollout.exchange import Exchange
from mpi_rollout.partition import Partition
from mpi_rollout.policy import RandomPolicy
from mpi_rollout.vector_env import MPIVectorEnv
from mpi_rollout.worker import Worker

comm = MPI.COMM_WORLD
config = RolloutConfig({config})
partition = Partition(config.num_envs, comm.size)
slice_ = make_slice(config, partition.envs_of(comm.rank))
spaces = slice_.single_observation_space, slice_.single_action_space
exchange = Exchange(comm, partition, *spaces)
worker = Worker(exchange, slice_)
if comm.rank > 0:
    code = worker.serve()
else:
    code = 0
    envs = MPIVectorEnv(worker, *spaces)
    draw = RandomPolicy(spaces[1], config.num_envs, config.seed)
{body}
    envs.close(code=code)
exchange.free()
sys.exit(code)
"""


def direct(job: Job, body: str, num_ranks: int = 2, **config: Any) -> str:
    """Run code on the root with `envs` and `draw` at hand; return what it printed."""
    config = {"env": "CartPole-v1", "num_envs": 5, **config}
    written = ", ".join(f"{name}={value!r}" for name, value in config.items())
    body = "\n".join("    " + line for line in body.strip().splitlines())
    result = job.script(num_ranks, DIRECT.format(config=written, body=body))
    assert result.code == 0, result.err
    return result.out


@pytest.mark.parametrize("name", ["CartPole-v1", "envs:Nested"])
def test_used_directly_it_gives_what_gymnasium_gives(job: Job, name: str):
    option, make, num_envs, num_steps = RUNS[name]
    config = {"env": name} if option == "--env" else {"env": None, "env_factory": name}
    body = f"from oracle import rollout\nnp.savez('found.npz', **rollout(envs, draw, {num_steps}))"
    direct(job, body, **config, num_envs=num_envs, seed=2)
    with np.load(job.folder / "found.npz") as found:
        assert_same_bytes(dict(found), expected(make, num_envs, num_steps, 2))


def test_send_and_recv_are_the_halves_of_step(job: Job):
    out = direct(
        job,
        """
envs.reset()
actions = [draw().copy() for _ in range(60)]
stepped = [[np.array(part) for part in envs.step(row)[:4]] for row in actions[:30]]
for row in actions[30:]:
    envs.send(row)
    stepped.append([np.array(part) for part in envs.recv()[:4]])
np.savez("found.npz", observations=[row[0] for row in stepped], rewards=[row[1] for row in stepped])
""",
    )
    assert out == ""
    columns = expected(RUNS["CartPole-v1"][1], 5, 60, 0)
    with np.load(job.folder / "found.npz") as found:
        assert found["observations"].tobytes() == columns["observations"][1:].tobytes()
        assert found["rewards"].tobytes() == columns["rewards"].tobytes()


def test_observations_are_contiguous_and_live_until_the_call_after_the_next(job: Job):
    direct(
        job,
        """
before, _ = envs.reset()
for _ in range(20):
    copy = before.copy()
    after = envs.step(draw())[0]
    assert after.flags.c_contiguous and not np.shares_memory(before, after)
    assert before.tobytes() == copy.tobytes()
    before = after
""",
    )


def test_refused_actions_are_not_sent_and_the_envs_go_on(job: Job):
    direct(
        job,
        """
import pytest
from mpi_rollout.errors import DataError
envs.reset()
expected = envs.step(np.ones(5, int))[0].copy()
envs.reset()
for wrong in (np.full(5, 2), np.ones(4, int), np.ones(5), None):
    with pytest.raises(DataError):
        envs.step(wrong)
assert envs.step(np.ones(5, int))[0].shape == expected.shape
assert (envs.step(np.ones(5, int))[1] == 1).all()
""",
    )


def test_reset_takes_no_seed_but_the_runs(job: Job):
    direct(
        job,
        """
import pytest
with pytest.raises(ValueError, match="from the run's configuration"):
    envs.reset(seed=1)
assert envs.reset()[0].shape == (5, 4)
""",
    )


def test_its_spaces_and_mode_are_those_of_gymnasium(job: Job):
    direct(
        job,
        """
import gymnasium
from gymnasium.vector import SyncVectorEnv
oracle = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 5)
for name in ("single_observation_space", "single_action_space", "observation_space", "action_space", "num_envs"):
    assert getattr(envs, name) == getattr(oracle, name), name
assert envs.metadata["autoreset_mode"] == oracle.metadata["autoreset_mode"]
""",
    )


def test_every_rank_can_be_asked(job: Job):
    out = direct(
        job,
        """
envs.reset()
envs.step(draw())
print([(report["rank"], report["num_envs"], report["fault"]) for report in envs.call_ranks("report")])
assert envs.step(draw())[0].shape == (5, 4)
""",
        num_ranks=3,
    )
    assert out == "[(0, 2, None), (1, 2, None), (2, 1, None)]\n"


def test_an_error_on_a_rank_is_raised_at_the_root_with_its_traceback(job: Job):
    direct(
        job,
        """
import pytest
from mpi_rollout.vector_env import RankError
envs.reset()
with pytest.raises(RankError, match=r"^rank 1 .*, step 3: env 3, step 3 of its episode: RuntimeError: ") as caught:
    for _ in range(5):
        envs.step(draw())
assert "the simulator has diverged" in caught.value.stack
assert caught.value.exit_code == 70
""",
        env=None,
        env_factory="envs:on_rank",
        env_kwargs={"rank": 1, "after": 2},
    )


def test_the_other_ranks_leave_with_the_code_that_the_root_gives(job: Job):
    direct(job, "envs.reset()\ncode = 0")
    result = job.script(2, DIRECT.format(config="env='CartPole-v1', num_envs=4", body="    code = 7"))
    assert result.code == 7
