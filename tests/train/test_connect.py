"""What `connect` refuses, it refuses on all ranks together, and the root says why."""

import os
import re
from typing import Any

import numpy as np
import pytest
from jobs import Job

pytestmark = pytest.mark.any_mpi

HOST = os.uname().nodename
POLE = "CartPole-v1"
BAD = "failing_envs"

# Arguments that cannot work.

REFUSED: dict[str, tuple[str, Any, dict[str, Any], str]] = {  # Env, num_envs, options, what is said.
    "unknown env": ("CartPoel-v1", 4, {}, r"^env CartPoel-v1: .*Did you mean: `CartPole`"),
    "unknown version": ("CartPole-v7", 4, {}, r"^env CartPole-v7: .* versioned environments: \[ `v0`, `v1` \]"),
    "no env": ("", 4, {}, r"Malformed environment ID"),
    "unknown package": ("no_such_package:Env-v0", 4, {}, r"install it, or correct the name before the colon"),
    "import in a constructor": (f"{BAD}:importing", 4, {}, rf"^env {BAD}:importing: cannot import name 'physics'"),
    "mistake in a constructor": (f"{BAD}:adding", 4, {}, r"env 0 cannot be made: TypeError: unsupported operand"),
    "no env made": (f"{BAD}:forgetful", 4, {}, rf"^{BAD}:forgetful must return an env, got None; does it lack"),
    "space without shape": ("envs:Text", 4, {}, r"^Text spaces have no fixed shape .* at 'mission'"),
    "unknown keyword": (POLE, 4, {"env_kwargs": {"levle": 3}}, r"^env_kwargs {'levle': 3} do not fit CartPole-v1"),
    "option as keyword": (POLE, 4, {"env_kwargs": {"--no-gain": 3}}, r"^env_kwargs {'--no-gain': 3} do not fit Cart"),
    "no envs": (POLE, 0, {}, r"^num_envs must be a whole number of at least 1, got 0"),
    "true envs": (POLE, True, {}, r"^num_envs must be a whole number of at least 1, got True"),
    "half an env": (POLE, 2.5, {}, r"^num_envs must be a whole number of at least 1, got 2.5"),
    "a word of envs": (POLE, "4", {}, r"^num_envs must be a whole number of at least 1, got '4'"),
    "too few envs": (POLE, 1, {}, r"^num_envs must be at least the number of ranks that step envs, got 1 env on 2"),
    "mode": (POLE, 4, {"autoreset_mode": "later"}, r"^autoreset_mode must be one of next_step, same_step, disabled, "),
    "no mode": (POLE, 4, {"autoreset_mode": None}, r"^autoreset_mode must be one of .*, got None"),
    "vectorization": (POLE, 4, {"vectorization_mode": "async"}, r"^vectorization_mode must be one of auto, sync, "),
    "actions": (POLE, 4, {"actions": "round"}, r"^actions must be one of check, clip, pass, got 'round'"),
    "infos": (POLE, 4, {"infos": "some"}, r'^infos must be "none", "all" or names with dtypes'),
    "no infos": (POLE, 4, {"infos": None}, r'^infos must be "none", "all" or names with dtypes .*, got None'),
    "listed infos": (POLE, 4, {"infos": ["lives"]}, r'^infos must be "none", "all" or names with dtypes .*, got \['),
    "dtype of infos": (POLE, 4, {"infos": {"lives": "many"}}, r"^infos: 'lives' must have a dtype"),
    "no groups": (POLE, 4, {"num_groups": 0}, r"^num_groups must be at least 1, got 0"),
    "many groups": (POLE, 4, {"num_groups": 3}, r"^num_groups 3 needs at least 3 envs for each rank that steps envs"),
    "no time": (POLE, 4, {"timeout_s": float("nan")}, r"^timeout_s must be more than 0 s and at most 1e\+06, got nan"),
    "no batch": (POLE, 4, {"batch_size": 0}, r"^batch_size must be at least 1, got 0"),
    "large batch": (POLE, 4, {"batch_size": 3}, r"^batch_size must be 1 to 2, the ranks that step envs, got 3"),
    "batch in words": (POLE, 4, {"batch_size": "one"}, r"^batch_size must be .*, got 'one'"),
    "batch of root": (POLE, 4, {"batch_size": 2, "root_envs": 0}, r"^batch_size must be 1 where one rank"),
    "batch and groups": (POLE, 4, {"batch_size": 1, "num_groups": 2}, r"^batch_size makes a group of each rank, got "),
    "no native version": ("Acrobot-v1", 4, {"vectorization_mode": "vector_entry_point"}, r"no vectorized version"),
    "native by itself": ("envs:Counting", 4, {"vectorization_mode": "vector_entry_point"}, r"the id of a registered"),
    "native mode": (
        POLE, 4, {"vectorization_mode": "vector_entry_point", "autoreset_mode": "same_step"}, r"reset in the next step",
    ),
    "env of a rank": (
        f"{BAD}:unlicensed", 4, {"env_kwargs": {"rank": 1}}, rf"^rank 1 \({HOST}\): env 2 cannot be made: Permission",
    ),
    "spaces": ("envs:different_space", 4, {}, rf"^the ranks do not agree on the observation space: .* rank 1 \({HOST}"),
}  # fmt: skip


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """What each gives on the root; one job for all, so all ranks must be in step after each."""
    found = Job(tmp_path_factory.mktemp("refusals")).train(2, "refusals", [case[:3] for case in REFUSED.values()])
    return dict(zip(REFUSED, found, strict=True))


@pytest.mark.mpi
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_refused_on_all_ranks_and_said_at_the_root(refusals, name: str):
    raised, text = refusals[name]
    kinds = dict.fromkeys(("env of a rank", "mistake in a constructor"), "EnvError") | {"spaces": "LaunchError"}
    assert raised == kinds.get(name, "UsageError"), text
    assert re.search(REFUSED[name][3], text) and "--" not in text.replace("--no-gain", "")


@pytest.mark.mpi(2)
def test_numbers_may_be_numpys(job: Job, num_ranks: int):
    options = {"num_groups": np.int64(2), "max_env_restarts": np.int32(0)}
    [returned] = job.train(num_ranks, "recordings", [(POLE, np.int64(4), 3, options)])
    assert len(returned) == 4


# Ranks that do not mean the same.

# Of the second of two ranks what the first one has not.
OTHERS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "num_envs": (POLE, 5, {}),
    "env": ("Acrobot-v1", 4, {}),
    "env made by a callable": ("envs:Counting", 4, {}),
    "env_kwargs": (POLE, 4, {"env_kwargs": {"sutton_barto_reward": True}}),
    "wrappers": (POLE, 4, {"wrappers": "gymnasium.wrappers:FlattenObservation"}),
    "policy": (POLE, 4, {"policy": "block_policies:make_levels", "policy_kwargs": {"level": 2}}),
    "autoreset_mode": (POLE, 4, {"autoreset_mode": "disabled"}),
    "infos": (POLE, 4, {"infos": {"lives": int}}),
    "actions": (POLE, 4, {"actions": "clip"}),
    "copy": (POLE, 4, {"copy": False}),
    "num_groups": (POLE, 4, {"num_groups": 2}),
    "batch_size": (POLE, 4, {"batch_size": 1}),
    "vectorization_mode": (POLE, 4, {"vectorization_mode": "vector_entry_point"}),
}


@pytest.fixture(scope="module")
def disagreements(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    cases = [[(POLE, 4, {}), other] for other in OTHERS.values()]
    found = Job(tmp_path_factory.mktemp("disagreements")).train(2, "disagreements", cases)
    return dict(zip(OTHERS, found, strict=True))


@pytest.mark.mpi
@pytest.mark.parametrize("name", OTHERS)
def test_ranks_with_different_arguments_are_refused_with_the_difference(disagreements, name: str):
    raised, text = disagreements[name]
    assert raised == "LaunchError" and f" {name.split()[0]} " in text
    assert re.match(r"the ranks do not agree on the argument \w+ of connect: rank 0 has .*, rank 1 \(.*\) has ", text)
