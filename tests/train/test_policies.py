"""A policy on the ranks of a trainer: what it gives, and its parameters."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from block_policies import Acting, Sampling, Steering, _with_extras
from gymnasium.error import AlreadyPendingCallError, ResetNeeded
from gymnasium.spaces import Discrete
from jobs import Job
from recurrent_policies import Gru

import mpi_rollout
from mpi_rollout.errors import RankError, UsageError
from mpi_rollout.policies.blocks import BlockPolicy
from mpi_rollout.policies.model import made_model

pytestmark = pytest.mark.any_mpi
SPACES = gymnasium.spec("CartPole-v1").make().observation_space, Discrete(2)


@pytest.mark.mpi(1, 3)
def test_fragments_are_those_of_the_newest_parameters_whatever_the_ranks(job: Job, num_ranks: int):
    batches, expected = job.train(num_ranks, "collect_with_new_parameters", 70), Sampling()
    assert len(batches) == 3
    for version, batch in enumerate(batches):
        assert batch["policy_version"].shape == (9, 70) and (batch["policy_version"] == version).all()
        assert batch["extras"]["log_prob"].shape == (9, 70)
        for step in range(9):
            policy = BlockPolicy(made_model(expected, "it"), *SPACES, range(70), seed=1)
            acted = policy(batch["observations"][step], 9 * version + step)
            assert np.array_equal(acted.actions, batch["actions"][step])
            assert np.array_equal(acted.extras[0], batch["extras"]["log_prob"][step])
            assert np.array_equal(acted.extras[1], batch["extras"]["hidden/state"][step])
        expected.load({name: value * np.float32(0.5) for name, value in expected.parameters.items()})
    assert len({batch["actions"].tobytes() for batch in batches}) == 3


@pytest.mark.mpi
@pytest.mark.parametrize(("num_ranks", "options"), [(1, {}), (3, {}), (3, {"root_envs": 0})], ids=str)
def test_each_rank_acts_by_the_parameters_that_were_the_newest_when_its_fragment_began(
    job: Job, num_ranks: int, options: dict[str, Any]
):
    batches = job.train(num_ranks, "collect_as_ranks_get_ready", 70, 12, options)
    next_step, version, last = np.zeros(70, int), np.zeros(70, int), np.zeros((70, 4), np.float32)
    for number, batch in enumerate(batches):
        envs = range(batch["envs_slice"][0], batch["envs_slice"][-1] + 1)
        assert batch["rewards"].shape == (9, len(envs)) and len(batch["infos"]) == 9
        assert (batch["policy_version"] == version[envs.start]).all()
        expected = Sampling()
        halved = np.float32(0.5 ** version[envs.start])
        expected.load({name: value * halved for name, value in expected.parameters.items()})
        for step in range(9):
            policy = BlockPolicy(made_model(expected, "it"), *SPACES, envs, seed=1)
            acted = policy(batch["observations"][step], next_step[envs.start] + step)
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
        ({"policy": Sampling, "policy_block": -1}, "policy_block must be at least 0, got -1"),
        ({"policy": Sampling, "policy_mode": "best"}, "policy_mode must be one of deterministic, sample, got best"),
        ({"policy": Sampling, "policy_mode": "sample"}, "policy_mode sample is for policies in files, got another"),
        ({"policy": Sampling, "trust_policy": True}, "trust_policy is for policies in files, got another policy"),
        ({"trust_policy": True}, "trust_policy is for policies in files, got another policy"),
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
        for call in (lambda: envs.collect(5), lambda: envs.step(np.zeros(2, np.int64)), envs.collect_wait):
            with pytest.raises(ResetNeeded, match=r"call reset\(\) to begin anew"):
                call()
        envs.reset(seed=1)
        assert envs.collect(5)["rewards"].sum() == 10


def test_a_reset_after_an_end_begins_one_episode_of_a_memory():
    options = {"env_kwargs": {"max_episode_steps": 3}, "policy": Gru}
    with mpi_rollout.connect("CartPole-v1", 2, **options) as envs:
        envs.reset(seed=1)
        for mask, second in (([True, True], [0, 1, 2]), ([True, False], [0, 0, 1])):  # With a row that only resets.
            assert envs.collect(3)["truncations"][-1, 0]
            envs.reset(options={"reset_mask": np.array(mask)})
            assert envs.collect(3)["extras"]["age"].T.tolist() == [[0, 1, 2], second]
            envs.reset(seed=1)


BEGIN = """
import os, sys
import numpy as np
import mpi_rollout
from block_policies import Arbitrary, Choosy, Sampling, Steering
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
"""


@pytest.mark.mpi(1, 3)
def test_each_of_several_connections_has_a_policy_of_its_own(job: Job, num_ranks: int):
    code = """
def sampled():
    with mpi_rollout.connect("CartPole-v1", 6, policy=Sampling) as envs:
        if envs is None: return
        envs.reset(seed=1)
        envs.collect(5)
        envs.set_policy({name: value / 2 for name, value in Sampling().parameters.items()})
        return envs.collect(5)

first = sampled()
with mpi_rollout.connect("Pendulum-v1", 5, policy=Steering) as envs:
    if envs is not None:
        envs.reset(seed=2)
        assert (envs.collect(5)["policy_version"] == 0).all()
again = sampled()
if rank == 0:
    assert first["actions"].tobytes() == again["actions"].tobytes()
    assert (first["policy_version"] == 1).all() and (again["policy_version"] == 1).all()
    print("well")
"""
    result = job.script(num_ranks, BEGIN + code)
    assert (result.code, result.err, result.out) == (0, "", "well\n")


@pytest.mark.mpi(2)
def test_a_file_that_is_not_there_ends_all_ranks_in_one_line(job: Job, num_ranks: int):
    code = """
with mpi_rollout.connect("CartPole-v1", 4, policy="absent.zip") as envs:
    print("here")
"""
    result = job.script(num_ranks, BEGIN + code)
    assert result.code in (1, 64, 65) and result.out == ""  # Of the rank that leaves first, or of both, bit by bit.
    assert result.err.count("UsageError: policy absent.zip: cannot read this file: No such file or directory") == 1


@pytest.mark.mpi(2)
@pytest.mark.parametrize("options", ["", "root_envs=0"])
def test_ranks_must_make_the_same_policies(job: Job, num_ranks: int, options: str):
    code = f"""
class Extras(Sampling):
    extras = dict(sorted(Sampling.extras.items(), reverse=bool(rank)))

class Sized(Sampling):
    def __init__(self):
        super().__init__()
        self.weights = self.weights[: 2 - rank]

class Drawing(Sampling):
    def __init__(self):
        super().__init__()
        self.num_uniforms += rank

class Fixed(Sampling):
    @property
    def parameters(self):
        return super().parameters if rank == 0 else None

for policy in (Extras, Sized, Drawing, Fixed):
    try: mpi_rollout.connect("CartPole-v1", 4, policy=policy, {options}).__enter__()
    except mpi_rollout.RolloutError as error: print(error, flush=True)
    except SystemExit: pass
"""
    result = job.script(num_ranks, BEGIN + code)
    first, second, third, fourth = result.out.splitlines()
    assert first.startswith("the ranks do not agree on the extras of the policy: rank 0 has ")
    assert second.startswith("make_policy gave parameters of other names, dtypes or shapes on some ranks than")
    assert second.endswith(" on rank 1; have it make the same policy everywhere")
    assert third.startswith("the ranks do not agree on num_uniforms of the policy: rank 0 has 1, rank 1 (")
    assert fourth.endswith(" on rank 0, none on rank 1; have it make the same policy everywhere")


@pytest.mark.mpi(1, 3)
def test_ranks_begin_with_the_parameters_of_the_root(job: Job, num_ranks: int):
    code = """
np.random.seed(rank)
for options in ({}, {"batch_size": 1}):
    with mpi_rollout.connect("CartPole-v1", 6, policy=Arbitrary, **options) as envs:
        if envs is not None:
            np.random.seed(0)
            expected = Arbitrary()
            envs.reset(seed=1)
            batch = envs.collect(5)
            outputs = expected.outputs(batch["observations"].reshape(-1, 4))
            assert abs(outputs - batch["extras"]["hidden/state"].reshape(-1, 2)).max() < 1e-5
            print("well")
    np.random.seed(rank)
"""
    result = job.script(num_ranks, BEGIN + code)
    assert (result.code, result.err, result.out) == (0, "", "well\nwell\n")


@pytest.mark.mpi(1, 2)
def test_a_policy_acts_again_when_it_has_loaded_other_parameters(job: Job, num_ranks: int):
    code = """
good = Sampling().parameters
for options in ({}, {"batch_size": 1}):
    with mpi_rollout.connect("CartPole-v1", 6, policy=Choosy, **options) as envs:
        if envs is not None:
            envs.reset(seed=1)
            envs.set_policy({name: value * np.float32("nan") for name, value in good.items()})
            for problem in ("load: ValueError: no numbers", "could not load the last parameters"):
                try: envs.collect(3)
                except mpi_rollout.RankError as error: assert problem in str(error), str(error)
                else: raise AssertionError
                envs.reset(seed=1)
            envs.set_policy(good)
            assert (envs.collect(3)["policy_version"] == 2).all()
            print("well")
"""
    result = job.script(num_ranks, BEGIN + code)
    assert (result.code, result.err, result.out) == (0, "", "well\nwell\n")


def test_fragments_under_way_are_all_of_the_policy_or_all_of_the_trainer():
    with mpi_rollout.connect("CartPole-v1", 4, policy=Sampling, num_groups=2) as envs:
        envs.reset(seed=1)
        for first, second in ((None, np.zeros((3, 2), np.int64)), (np.zeros((3, 2), np.int64), None)):
            envs.collect_async(3, first, envs_slice=np.arange(2))
            with pytest.raises(ValueError, match="or left to the policy for all of them"):
                envs.collect_async(3, second, envs_slice=np.arange(2, 4))
            envs.collect_async(3, first, envs_slice=np.arange(2, 4))
            assert ("extras" in envs.collect_wait()) == (first is None)


@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated.
def test_code_of_a_file_needs_trust(tmp_path: Path):
    torch = pytest.importorskip("torch")
    path = str(tmp_path / "p.pt")
    torch.jit.trace(torch.nn.Linear(4, 2), torch.zeros(2, 4)).save(path)
    with pytest.raises(UsageError, match=r"TorchScript is code, .*; add trust_policy if you trust"):
        mpi_rollout.connect("CartPole-v1", 2, policy=path)
    with mpi_rollout.connect("CartPole-v1", 2, policy=path, trust_policy=True) as envs:
        envs.reset(seed=1)
        assert envs.collect(3)["actions"].shape == (3, 2)
