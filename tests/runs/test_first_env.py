"""--first-env collects some envs of a larger run: the same bytes as there, on any ranks and after a stop."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from jobs import Collected, Job, assert_same_bytes, collected_in_ways, datasets

pytestmark = pytest.mark.any_mpi

FIRST, NUM_ENVS, NUM_ALL, NUM_STEPS, NUM_BEFORE = 5, 11, 24, 60, 37
SHORT = ("--env-kwargs", '{"max_episode_steps": 17}', "--env", "CartPole-v1", "--seed", "3")
BLOCKS, NATIVE = ("--policy-block", "8"), ("--vectorization-mode", "native", "--env-factory")
MASKED = ("--env-factory", "masked_envs:Masked", "--store-infos", '{"action_mask": [int8, 5]}')
GRU = (*SHORT, *BLOCKS, "--policy", "recurrent_policies:gru.make_policy", "--store-extras")
KWARGS = [{"max_episode_steps": 9 + index} for index in range(NUM_ALL)]
RUNS = {
    "random": SHORT,
    "kwargs of each": ("--env", "CartPole-v1"),
    "seeded once": (*SHORT, "--no-episode-seeds"),
    "extras": (*SHORT, *BLOCKS, "--policy", "block_policies:sampling.make_policy", "--store-extras"),
    "memory": GRU,
    "memory on the root": (*GRU, "--policy-on", "root"),
    "a callable": (*SHORT, *BLOCKS, "--policy", "recurrent_policies:every_third"),
    "random by masks": MASKED,
    "policy by masks": (*MASKED, *BLOCKS, "--policy", "recurrent_policies:allowing.make_policy"),
    "all infos": ("--env-factory", "telling_envs:Telling", "--store-infos", "all"),
    "restarts": ("--env-factory", "telling_envs:Restarting", "--max-env-restarts", "10"),
    "native": (*NATIVE, "native_envs:drift"),
    "native, seeds": (*NATIVE, "native_envs:seeded"),
    "native, same step": (*NATIVE, "native_envs:drift_on"),
    "jax": (*NATIVE, "jax_envs:hops"),
    "kernel": ("--env", "mpi_rollout/CartPoleNumba-v0"),
}
NEEDS = {"jax": "jax", "kernel": "numba"}
INSTALLED = {name: run for name, run in RUNS.items() if name not in NEEDS or find_spec(NEEDS[name])}
# The others go on in the same ways; on three ranks are only these.
EXTENDED = ("kwargs of each", "seeded once", "memory", "policy by masks", "restarts", "native, seeds", "jax", "kernel")
PART = ("--first-env", str(FIRST), "--num-envs", str(NUM_ENVS))
WAYS = {1: (), 2: ("--num-groups", "2"), 3: ("--batch-size", "1", "--root-envs", "1")}


def ways_of(name: str, num_ranks: int) -> list[tuple[str, ...]]:
    """How a part is collected on some ranks, on one without mpirun; on two all envs of the larger run are, too."""
    kwargs = ("--env-kwargs", json.dumps(KWARGS[FIRST : FIRST + NUM_ENVS])) if name == "kwargs of each" else ()
    if num_ranks == 3 and name not in EXTENDED:
        return []
    part, steps = (*PART, *kwargs, *WAYS[num_ranks]), ("--num-steps", str(NUM_STEPS))
    of_all = ("--env-kwargs", json.dumps(KWARGS)) if kwargs else ()
    if num_ranks == 2:
        return [(*part, *steps), ("--num-envs", str(NUM_ALL), *of_all, *steps)]
    return [(*part, *steps)]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    return collected_in_ways(tmp_path_factory, INSTALLED, ways_of)


def part_of(path: Path) -> dict[str, np.ndarray]:
    """The data of the part, in a file of the larger run."""
    data = datasets(path)
    rows = data.pop("/episodes")
    rows = rows[(rows["env_index"] >= FIRST) & (rows["env_index"] < FIRST + NUM_ENVS)]
    rows["env_index"] -= FIRST
    part = {name: np.ascontiguousarray(column[:, FIRST : FIRST + NUM_ENVS]) for name, column in data.items()}
    return part | {"/episodes": rows}


@pytest.mark.mpi
@pytest.mark.parametrize(("num_ranks", "name"), [*((2, name) for name in RUNS), *((3, name) for name in EXTENDED)])
def test_a_part_has_the_bytes_of_the_larger_run(collected: Collected, num_ranks: int, name: str):
    if name not in INSTALLED:
        pytest.skip(f"needs {NEEDS[name]}")
    assert_same_bytes(datasets(collected(num_ranks)[name][0]), part_of(collected(2)[name][1]))


@pytest.mark.parametrize("name", [name for name in EXTENDED if name in INSTALLED])
def test_a_part_is_extended_and_replayed(job: Job, collected: Collected, name: str):
    *same, num_steps = (*RUNS[name], *ways_of(name, 1)[0], "--out", "run.h5", "--num-steps", str(NUM_STEPS))
    assert job(None, *same, str(NUM_BEFORE)).code == 0
    result = job(None, *same, num_steps)
    assert result.code == 0 and "reproduce" not in result.err, result.err
    assert_same_bytes(datasets(job.folder / "run.h5"), part_of(collected(2)[name][1]))
    replayed = job(None, "verify", "--replay", "5", "run.h5", "--trust")
    assert replayed.code == 0 and "every byte the same" in replayed.out, replayed.err


@pytest.mark.mpi(2)
def test_a_part_that_was_killed_goes_on(job: Job, num_ranks: int):
    run = (
        "--env-factory",
        "stopping_envs:Counting",
        "--policy",
        "stopping_envs:counting",
        "--num-steps",
        str(NUM_STEPS),
    )
    whole = job.collect(None, *run, "--num-envs", str(NUM_ALL), out="whole.h5")
    part = (*run, *PART, "--out", "run.h5")
    assert job(num_ranks, *part, STOP_AT="raise:23").code == 70
    assert job(num_ranks, *part, STOP_AT="kill:20", STOP_PAUSE="0.1").code != 0
    assert job(num_ranks, *part, "--first-env", "4").code == 64
    assert job(3, *part).code == 0
    assert_same_bytes(datasets(job.folder / "run.h5"), part_of(whole))
