"""A policy on the ranks of a trainer: what it gives, and its parameters."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from block_policies import Acting, Sampling, Steering, _with_extras
from gymnasium.error import AlreadyPendingCallError
from gymnasium.spaces import Discrete
from jobs import Job

import mpi_rollout
from mpi_rollout.errors import RankError, UsageError
from mpi_rollout.policies.blocks import BlockPolicy, PolicyOptions
from mpi_rollout.policies.made import MadePolicy

SPACES = gymnasium.spec("CartPole-v1").make().observation_space, Discrete(2)


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 2, 3)
def test_fragments_are_those_of_the_newest_parameters_whatever_the_ranks(job: Job, num_ranks: int):
    batches, expected = job.train(num_ranks, "collect_with_new_parameters", 70), Sampling()
    assert len(batches) == 3
    for version, batch in enumerate(batches):
        assert batch["policy_version"].shape == (9, 70) and (batch["policy_version"] == version).all()
        assert batch["extras"]["log_prob"].shape == (9, 70)
        for step in range(9):
            policy = BlockPolicy(MadePolicy(expected, "it"), *SPACES, PolicyOptions(seed=1))
            acted = policy(batch["observations"][step], range(70), 9 * version + step)
            assert np.array_equal(acted.actions, batch["actions"][step])
            assert np.array_equal(acted.extras[0], batch["extras"]["log_prob"][step])
            assert np.array_equal(acted.extras[1], batch["extras"]["hidden/state"][step])
        expected.load({name: value * np.float32(0.5) for name, value in expected.parameters.items()})
    assert len({batch["actions"].tobytes() for batch in batches}) == 3


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 2, 3)
@pytest.mark.parametrize("options", [{}, {"dedicated_root": True}], ids=["root steps", "dedicated root"])
def test_each_rank_acts_by_the_parameters_that_were_the_newest_when_its_fragment_began(
    job: Job, num_ranks: int, options: dict[str, Any]
):
    batches = job.train(num_ranks, "collect_as_ranks_get_ready", 70, 12, options if num_ranks > 1 else {})
    next_step, version, last = np.zeros(70, int), np.zeros(70, int), np.zeros((70, 4), np.float32)
    for number, batch in enumerate(batches):
        envs = range(batch["envs_slice"][0], batch["envs_slice"][-1] + 1)
        assert batch["rewards"].shape == (9, len(envs)) and len(batch["infos"]) == 9
        assert (batch["policy_version"] == version[envs.start]).all()
        expected = Sampling()
        halved = np.float32(0.5 ** version[envs.start])
        expected.load({name: value * halved for name, value in expected.parameters.items()})
        for step in range(9):
            policy = BlockPolicy(MadePolicy(expected, "it"), *SPACES, PolicyOptions(seed=1))
            acted = policy(batch["observations"][step], envs, next_step[envs.start] + step)
            assert np.array_equal(acted.actions, batch["actions"][step])
            assert np.array_equal(acted.extras[0], batch["extras"]["log_prob"][step])
        rows = slice(envs.start, envs.stop)
        assert next_step[envs.start] == 0 or np.array_equal(batch["observations"][0], last[rows])
        last[rows] = batch["last_observations"]
        next_step[rows] += 9
        version[rows] = number + 1
    assert next_step.min() > 0


@pytest.mark.mpi(1, 2)
def test_a_policy_that_cannot_load_parameters_fails_the_next_fragment(job: Job, num_ranks: int):
    assert "rank" in job.train(num_ranks, "set_parameters_that_no_rank_can_load", 4)


def test_what_a_trainer_says_itself_goes_before_the_policy():
    with mpi_rollout.connect("CartPole-v1", 3, policy=Sampling) as envs:
        envs.reset(seed=1)
        batch = envs.collect(4, np.ones((4, 3), np.int64))
        assert (batch["actions"] == 1).all() and "extras" not in batch
        envs.step(np.zeros(3, np.int64))
        again = envs.collect(2)
        envs.reset(seed=1)
        envs.collect(4, np.ones((4, 3), np.int64)), envs.step(np.zeros(3, np.int64))
        assert np.array_equal(envs.collect(2)["actions"], again["actions"])


def test_parameters_wait_for_the_end_of_a_fragment():
    with mpi_rollout.connect("Pendulum-v1", 3, policy=Steering) as envs:
        envs.reset(seed=1)
        envs.collect_async(3)
        with pytest.raises(AlreadyPendingCallError, match="set_policy while a fragment is under way"):
            envs.set_policy(Steering().parameters)
        assert envs.collect_wait()["actions"].shape == (3, 3, 1)
        envs.set_policy(list(Steering().parameters.values()))
        assert (envs.collect(1)["policy_version"] == 1).all()


@pytest.mark.parametrize(
    ("policy", "problem"),
    [(None, "there is no policy on the ranks"), (lambda: Acting(lambda *_: 0), "has no parameters that can be set")],
)
def test_without_parameters_there_are_none_to_set(policy: Any, problem: str):
    with mpi_rollout.connect("CartPole-v1", 3, policy=policy) as envs, pytest.raises(UsageError, match=problem):
        envs.set_policy({})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"policy": 3}, "policy must be 'mine:make_policy', a function or a file, got 3"),
        ({"policy": Sampling, "policy_block": -1}, "policy_block must be a whole number of at least 0, got -1"),
        ({"policy": Sampling, "policy_mode": "best"}, "policy_mode must be one of deterministic, sample, got 'best'"),
        ({"policy": lambda: 3}, "must return an object with a method act"),
        ({"policy": lambda: _with_extras(Sampling(), {"a": object})}, "must have extras such as"),
        ({"policy": "absent:make_policy"}, "cannot import 'absent'"),
        ({"policy": "absent.zip"}, "absent.zip: cannot read this file"),
    ],
)
def test_what_can_be_no_policy_is_refused(options: dict[str, Any], problem: str):
    with pytest.raises(UsageError, match=problem):
        mpi_rollout.connect("CartPole-v1", 2, **options)


def test_a_policy_that_fails_ends_the_fragment_and_a_reset_begins_anew():
    policy = Acting(lambda num_calls, indices: np.full(len(indices), 5 if num_calls == 3 else 0))
    with mpi_rollout.connect("CartPole-v1", 2, policy=lambda: policy) as envs:
        envs.reset(seed=1)
        with pytest.raises(RankError, match=r"step 2: the policy's action for env 0 must be in 0 to 1, got 5"):
            envs.collect(5)
        envs.reset(seed=1)
        assert envs.collect(5)["rewards"].sum() == 10
