"""Policies with a memory, and with infos: the same bytes wherever they are asked, also in a run that is continued."""

from importlib.util import find_spec
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import Job, assert_same_bytes, datasets, once

pytestmark = pytest.mark.any_mpi

SHORT = ("--env-kwargs", '{"max_episode_steps": 17}', "--env", "CartPole-v1", "--num-envs", "70", "--seed", "3")
MASKED = ("--env-factory", "masked_envs:Masked", "--num-envs", "7", "--store-infos", '{"action_mask": [int8, 5]}')
RUNS = {
    "draws": (*SHORT, "--policy", "recurrent_policies:gru.make_policy", "--store-extras"),
    "torch": (*SHORT, "--policy", "recurrent_policies:torch_gru.make_policy"),
    "a callable": (*SHORT, "--policy", "recurrent_policies:every_third"),
    "faults": (
        *("--env-factory", "telling_envs:Restarting", "--max-env-restarts", "10", "--num-envs", "7"),
        *("--policy", "recurrent_policies:every_third_from_two", "--policy-block", "4"),
    ),
    "LSTM.zip": (*SHORT, "--policy", "LSTM.zip", "--policy-mode", "sample"),
    "masks.zip": (
        *("--env", "Taxi-v4", "--num-envs", "70", "--store-infos", '{"action_mask": [int8, 6]}'),
        *("--policy", "masks.zip", "--policy-mode", "sample"),
    ),
    "infos": (*MASKED, "--policy", "recurrent_policies:allowing.make_policy"),
    "asked": ("--env-factory", "masked_envs:Asked", *MASKED[2:], "--policy", "recurrent_policies:allowing.make_policy"),
    "infos on the root": (*MASKED, "--policy", "recurrent_policies:allowed"),
}
ROOT = ("--policy-on", "root")
ANYWHERE = [(), ROOT, ("--fragment-length", "16"), ("--batch-size", "1"), ("--num-groups", "2", *ROOT)]
NEEDS = {"torch": "torch", "LSTM.zip": "sb3_contrib", "masks.zip": "sb3_contrib"}
ON_THE_ROOT = [(), ("--batch-size", "1"), ("--num-groups", "2"), ("--policy-block", "8")]
NUM_STEPS, NUM_FIRST = 40, 29


def ways_of(name: str, num_ranks: int | None) -> list[tuple[str, ...]]:
    """In which ways a run is done on some ranks: on three the one that draws in all, others in one way."""
    ways = ON_THE_ROOT if name in ("a callable", "faults", "infos on the root") else ANYWHERE
    if num_ranks != 3:
        return ways[:1]
    return ways if name == "draws" else [ways[list(RUNS).index(name) % len(ways)]]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory):
    @once
    def files(num_ranks: int | None) -> dict[str, list[Path]]:
        job, commands, paths = Job(tmp_path_factory.mktemp("runs"), libraries=("torch", "sb3_contrib")), [], {}
        if find_spec("sb3_contrib"):
            assert job.script(None, SAVING).code == 0
        for name, run in RUNS.items():
            if name in NEEDS and not find_spec(NEEDS[name]):
                continue
            for number, way in enumerate(ways_of(name, num_ranks)):
                out = f"{name}-{number}.h5"
                paths.setdefault(name, []).append(job.folder / out)
                parts = [NUM_STEPS] if num_ranks is None else [NUM_FIRST, NUM_STEPS]
                commands += [(*run, *way, "--wait", "sleep", "--num-steps", str(n), "--out", out) for n in parts]
        assert job.train(num_ranks, "runs", commands) == [0] * len(commands)
        return paths

    return files


SAVING = """# Policies of sb3-contrib that have learned nothing.
import sb3_contrib

recurrent = {"policy_kwargs": {"lstm_hidden_size": 16}, "seed": 1, "device": "cpu"}
sb3_contrib.RecurrentPPO("MlpLstmPolicy", "CartPole-v1", **recurrent).save("LSTM.zip")
sb3_contrib.MaskablePPO("MlpPolicy", "Taxi-v4", seed=1, device="cpu").save("masks.zip")
"""


@pytest.mark.mpi(3)
@pytest.mark.parametrize("name", RUNS)
def test_no_place_of_a_memory_and_no_stop_changes_the_data(collected, num_ranks: int, name: str):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    first = datasets(collected(None)[name][0])
    for path in collected(num_ranks)[name]:
        assert_same_bytes(datasets(path), first)


def ages_in(path: Path) -> np.ndarray:
    """For each step and env, the steps since its episode began; -1 where there is none."""
    with h5py.File(path) as file:
        ages, episodes = np.full(file["trajectories/rewards"].shape, -1), file["episodes"][...]
    for env in range(ages.shape[1]):
        own = episodes[episodes["env_index"] == env]
        for start, length in zip(own["start"], own["length"], strict=True):
            ages[start : start + length, env] = np.arange(length)
    return ages


def test_a_state_is_that_of_the_running_episode(collected):
    path = collected(None)["draws"][0]
    ages, own = ages_in(path), datasets(path)["extras/age"]
    assert (ages >= 0).mean() > 0.5 and ages.max() == 16
    assert (own[ages >= 0] == ages[ages >= 0]).all()


@pytest.mark.parametrize(("name", "first_action"), [("a callable", 0), ("faults", 2)])
def test_a_callable_with_a_state_acts_by_the_steps_of_an_episode(collected, name: str, first_action: int):
    path = collected(None)[name][0]
    ages, actions = ages_in(path), datasets(path)["actions"]
    is_known = ages >= 0
    assert is_known.any() and (actions[is_known] - first_action == (ages[is_known] % 3 == 2)).all()


def test_a_policy_with_masks_takes_no_action_that_they_forbid(collected):
    pytest.importorskip("sb3_contrib")
    columns = datasets(collected(None)["masks.zip"][0])
    masks, has_mask = columns["infos/action_mask"][:-1], columns["infos/_action_mask"][:-1]
    allowed = np.take_along_axis(masks, columns["actions"][..., None], axis=2)[..., 0]
    assert has_mask.all() and allowed.all() and masks.mean() < 0.9


def test_a_first_argument_that_is_called_state_is_no_memory(job: Job):
    options = ("--num-envs", "4", "--num-steps", "50", "--policy", "recurrent_policies:state_alone")
    columns = datasets(job.collect(None, "--env", "CartPole-v1", *options))
    assert (columns["actions"] == (columns["observations"][:-1, :, 2] > 0)).all()
