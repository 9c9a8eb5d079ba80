"""Policies that act in blocks: the same bytes wherever they are asked, and one line for what they do wrong."""

import json
import re

import h5py
import numpy as np
import pytest
import recurrent_policies
from jobs import Collected, Job, Result, Start, assert_same_bytes, collected_in_ways, datasets

pytestmark = pytest.mark.any_mpi

RUNS = {
    "draws": (
        *("--env", "CartPole-v1", "--num-envs", "70", "--num-steps", "70", "--seed", "3", "--store-extras"),
        *("--policy", "block_policies:sampling.make_policy"),
    ),
    "floats": (
        *("--env", "Pendulum-v1", "--num-envs", "70", "--num-steps", "30"),
        *("--policy", "block_policies:steering.make_policy"),
    ),
    "a callable": (
        *("--env", "Pendulum-v1", "--num-envs", "70", "--num-steps", "30", "--policy-block", "64"),
        *("--policy", "block_policies:steer"),
    ),
    "native": (
        *("--env-factory", "native_envs:DoubleDrift", "--vectorization-mode", "native", "--num-envs", "70"),
        *("--num-steps", "70", "--store-extras", "--policy", "block_policies:sampling.make_policy"),
    ),
    "small blocks": (
        *("--env", "Pendulum-v1", "--num-envs", "7", "--num-steps", "30", "--policy-block", "2"),
        *("--policy", "block_policies:steering.make_policy"),
    ),
}
ROOT = ("--policy-on", "root")
WAYS = [
    (),
    ROOT,
    *(("--policy-on", "workers", "--fragment-length", length) for length in ("1", "64")),
    ("--batch-size", "1"),
    ("--batch-size", "1", *ROOT),
    ("--num-groups", "2", "--fragment-length", "7"),
    ("--num-groups", "2", *ROOT),
]
ON_THE_ROOT = (), ROOT, ("--batch-size", "1"), ("--num-groups", "2", *ROOT)  # Where a callable may be asked.
DEDICATED = [("--root-envs", "0", *ROOT), ("--root-envs", "0")]


def ways_of(name: str, num_ranks: int | None) -> list[tuple[str, ...]]:
    """In which ways a run is done on some ranks: in all where the policy draws, and else the runs take turns."""
    if num_ranks is None:
        return [ROOT]
    ways = {2: WAYS[1:3], 3: [*WAYS, *DEDICATED]}[num_ranks]
    possible = [way for way in ways if name != "a callable" or way in ON_THE_ROOT]
    return possible if name == "draws" else possible[list(RUNS).index(name) % 2 :: 3]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    return collected_in_ways(tmp_path_factory, RUNS, ways_of)


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("name", RUNS)
def test_no_place_of_a_policy_changes_the_data(collected: Collected, num_ranks: int, name: str):
    first = datasets(collected(None)[name][0])
    for path in collected(num_ranks)[name]:
        assert_same_bytes(datasets(path), first)


def test_a_callable_in_blocks_acts_as_a_policy_of_the_ranks(collected: Collected):
    by_callable, by_model = (datasets(collected(None)[name][0]) for name in ("a callable", "floats"))
    assert_same_bytes(by_callable, by_model)


def test_extras_are_stored_with_the_steps_that_they_are_of(collected: Collected):
    with h5py.File(collected(None)["draws"][0]) as file:
        extras, actions = file["trajectories/extras"], file["trajectories/actions"][...]
        assert extras["log_prob"].shape == (70, 70) and extras["hidden/state"].shape == (70, 70, 2)
        state, log_prob = extras["hidden/state"][...], extras["log_prob"][...]
        assert log_prob.max() < 0 and 0.2 < actions.mean() < 0.8
    # The chosen one of two is as likely as these outputs say.
    odds = (2 * actions - 1) * (state[..., 1] - state[..., 0])
    assert abs(np.logaddexp(0, -odds) + log_prob).max() < 1e-5


@pytest.mark.mpi(3)
def test_all_ranks_have_the_weights_that_one_has_drawn(job: Job, num_ranks: int):
    run = [*RUNS["draws"], "--policy", "block_policies:arbitrary.make_policy", "--progress", "none"]
    files = [
        datasets(job.collect(ranks, *run, *way, out=f"{number}.h5"))
        for number, (ranks, way) in enumerate([(None, ROOT), (num_ranks, ROOT), (num_ranks, ())])
    ]
    for file in files[1:]:
        assert_same_bytes(file, files[0])


@pytest.mark.mpi(2)
def test_a_run_with_extras_is_verified_replayed_and_extended(job: Job, collected: Collected, num_ranks: int):
    run = [*RUNS["draws"], "--progress", "none", "--out", "run.h5"]
    assert job(num_ranks, *run, "--num-steps", "40").code == 0
    assert job(num_ranks, *run).code == 0
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(collected(None)["draws"][0]))
    result = job(None, "verify", "run.h5", "--replay", "100")
    assert result.code == 0 and "every byte the same" in result.out
    told = json.loads(job(None, "inspect", "run.h5", "--json").out)
    assert told["datasets"]["extras/log_prob"]["dtype"] == "float32"
    other = job(num_ranks, *[word for word in run if word != "--store-extras"], "--num-steps", "200")
    assert other.code == 64 and "--store-extras was given, is not given" in other.err


WRONG = {
    "outside": (65, r"step 5: the policy's action for env 3 must be in 0 to 1, got 5; .* the 5 steps before are in"),
    "few": (65, r"step 0: the policy must give actions of 64 envs, .* got an array of shape \(3,\)"),
    "raising": (70, r"step 0: policy: ValueError: no idea"),
    "no_policy": (64, r"must return an object with a method act\(observations, env_indices, uniforms\), got int"),
    "never_made": (70, r"make_policy\(\) raises ZeroDivisionError"),
    "wrong_extras": (64, r"must have extras such as .*: it is int"),
    "without_extras": (65, r"step 0: the policy must give actions and a dict of value, got ndarray"),
    "absent": (64, r"module 'block_policies' has no attribute 'absent'"),
    "not_a_number": (65, r"step 5: the policy's action for env 3, component \[0\] must be .*, got nan"),
    "no_state": (65, r"takes state, and must return actions, state as a tuple of 2, got ndarray"),
    "many": (65, r"must return actions, state as a tuple of 2, got a tuple of 3"),
    "axis": (65, r"state must have arrays of 64 envs on the first axis, got one of shape \(1, 9, 4\)"),
    "forgetful": (64, r"takes state, and must also take episode_starts"),
    "early": (64, r"takes episode_starts too early; .* act\(observations, env_indices, uniforms, \.\.\.\)"),
    "allowing": (
        64,
        r"takes infos, and nobody asks the envs .* such as --store-infos '{.*\"int8\", 2\]}' .* action_masks\(\) is",
    ),
    "allowed": (
        64,
        r"allowed takes infos, and nobody asks the envs .* such as --store-infos '{.*\"int8\", 2\]}' for action",
    ),
}


def run_of_wrong(policy: str, place: str) -> tuple[str, ...]:
    env = "Pendulum-v1" if policy == "not_a_number" else "CartPole-v1"
    run = ("--env", env, "--num-envs", "9", "--num-steps", "50", "--policy-on", place, "--progress", "none")
    module = "recurrent_policies" if hasattr(recurrent_policies, policy) else "block_policies"
    name = policy if policy == "allowed" else f"{policy}.make_policy"
    run += ("--policy", f"{module}:{name}", "--out", f"{policy}-{place}.h5")
    return run if policy in ("not_a_number", "allowed") else (*run, "--store-extras")


def assert_refused(result: Result, policy: str) -> None:
    code, message = WRONG[policy]
    assert result.code == code and len(result.messages) == 1 and re.search(message, result.messages[0]), result.err


@pytest.mark.mpi(2)
@pytest.mark.parametrize("policy", ["outside", "raising", "no_policy", "without_extras", "axis", "allowing"])
def test_a_wrong_policy_of_the_ranks_ends_the_run_in_one_line(job: Job, num_ranks: int, policy: str):
    assert_refused(job(num_ranks, *run_of_wrong(policy, "workers")), policy)


def test_a_wrong_policy_ends_the_run_of_one_process_in_one_line(job: Job):
    cases = [(policy, place) for policy in WRONG for place in ("root", "workers")]
    cases.remove(("allowed", "workers"))  # A callable.
    results = job.series([Start(run_of_wrong(*case)) for case in cases])
    for result, (policy, _) in zip(results, cases, strict=True):
        assert_refused(result, policy)


def test_envs_have_no_part_in_what_a_slow_policy_takes(job: Job):
    run = ("--env", "CartPole-v1", "--num-envs", "4", "--num-steps", "9", "--env-timeout-s", "0.3")
    run += ("--policy", "block_policies:slow.make_policy", "--vectorization-mode")
    for result in job.series([Start((*run, mode, "--out", f"{mode}.h5")) for mode in ("sync", "vector_entry_point")]):
        assert result.code == 0 and "takes longer" not in result.err


APART = [
    (("--policy", "policies:leaning", "--policy-on", "workers"), r"--policy-on workers is for random actions and"),
    (
        ("--policy", "block_policies:sampling.make_policy", *ROOT, "--fragment-length", "8"),
        r"--fragment-length 8 needs a policy .* use --fragment-length 1, or leave out --policy-on root",
    ),
    (("--policy-block", "-1"), "--policy-block must be at least 0, got -1"),
    (("--policy", "policies:leaning", "--policy-mode", "sample"), "--policy-mode sample is for policies in files"),
    (("--trust-policy",), "--trust-policy is for policies in files, got another policy; leave it out"),
    (
        ("--policy", "policies:as_sb3_predicts"),
        r"step 0: the policy must return actions alone, returns a tuple of 2; .*\[0\]",
    ),
]


def test_options_that_do_not_go_together_are_refused(job: Job):
    run = ("--env", "CartPole-v1", "--num-envs", "4", "--num-steps", "9", "--progress", "none")
    results = job.series([Start((*run, *options)) for options, _ in APART])
    for result, (_, message) in zip(results, APART, strict=True):
        assert result.code in (64, 65) and len(result.messages) == 1 and re.search(message, result.messages[0])
