"""`examples/ocean_slice.py` steps PufferLib's Ocean envs, where PufferLib is installed."""

from importlib.util import find_spec

import h5py
import numpy as np
import pytest
from jobs import CLONE, Job, assert_same_bytes, datasets

from mpi_rollout.envs.rollout import Rollout, RolloutColumns

pytest.importorskip("gym")  # PufferLib imports it.
if find_spec("pufferlib") is None:
    pytest.skip("pufferlib is missing", allow_module_level=True)

TASKS = {"cartpole": ("cartpole.cartpole", "Cartpole"), "breakout": ("breakout.breakout", "Breakout")}
NUM_ENVS, NUM_STEPS = 6, 300


@pytest.fixture(autouse=True)
def in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("imports"))  # PufferLib puts a link where it is imported.
    monkeypatch.syspath_prepend(str(CLONE / "examples"))


@pytest.mark.parametrize("task", TASKS)
def test_a_slice_gives_what_ocean_gives_also_in_one_call(task: str):
    from ocean_slice import make_slice

    actions = np.random.default_rng(0).integers(0, 2, (NUM_STEPS, NUM_ENVS))
    rows = []
    envs = make_slice(range(NUM_ENVS), 3, task)
    assert isinstance(envs, Rollout)
    envs.env.reset(envs.seed)
    for batch in actions:
        envs.env.step(batch)
        rows.append([array.copy() for array in (envs.env.observations, envs.env.rewards, envs.env.terminals)])
    expected = [np.stack(column) for column in zip(*rows, strict=True)]
    assert expected[2].any()
    envs.reset()
    stepped = zip(*([np.array(array) for array in envs.step(batch)[:3]] for batch in actions), strict=True)
    assert all(np.array_equal(np.stack(a), b) for a, b in zip(stepped, expected, strict=True))
    columns = RolloutColumns(*(np.zeros_like(column) for column in (*expected, expected[2])))
    envs.reset()
    envs.rollout(actions, columns)
    rolled = columns.observations, columns.rewards, columns.terminations
    assert all(np.array_equal(a, b) for a, b in zip(rolled, expected, strict=True))
    envs.close()


def test_a_cartpole_that_stands_is_truncated_after_200_steps():
    from ocean_slice import make_slice

    envs = make_slice(range(NUM_ENVS), 0, "cartpole")
    observations, _ = envs.reset()
    for step in range(200):
        _, x_dot, theta, theta_dot = observations.T
        observations, rewards, terminations, truncations, _ = envs.step(
            (theta + 0.5 * theta_dot + 0.1 * x_dot > 0).astype(int)
        )
        assert not terminations.any() and (truncations == (step == 199)).all()
    assert (rewards == 0).all() and abs(observations).max() < 0.05


@pytest.mark.mpi(2)
@pytest.mark.parametrize("task", TASKS)
def test_a_run_of_ocean_envs_does_not_depend_on_fragments(job: Job, num_ranks: int, task: str):
    factory = ("--env-factory", f"{CLONE}/examples/ocean_slice.py:make_slice", "--vectorization-mode", "native")
    size = ("--env-kwargs", f'{{"task": "{task}"}}', "--num-envs", "12", "--num-steps", str(NUM_STEPS))
    for length in (1, 50):
        result = job(num_ranks, *factory, *size, "--fragment-length", str(length), "--out", f"{length}.h5")
        assert result.code == 0, result.err
    assert_same_bytes(datasets(job.folder / "1.h5"), datasets(job.folder / "50.h5"))
    with h5py.File(job.folder / "50.h5") as file:
        assert file.attrs["autoreset_mode"] == "SameStep" and file.attrs["reproducibility"] == "slice"
        assert file["episodes"]["length"].sum() == 12 * NUM_STEPS == file["throughput"].attrs["env_steps"]
        assert file["trajectories/terminations"][:].any()
