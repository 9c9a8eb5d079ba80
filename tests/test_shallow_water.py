"""`examples/shallow_water`: an env that is an MPI program."""

import json
from importlib.util import find_spec
from typing import Any

import pytest
from jobs import CLONE, HELPERS, LEARNING, Job, assert_same_bytes, datasets

pytestmark = pytest.mark.any_mpi

Found = dict[str, Any]
WATER = CLONE / "examples" / "shallow_water"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    job = Job(tmp_path_factory.mktemp("water"))
    result = job.python(4, HELPERS / "water_checks.py")
    assert result.code == 0, result.err
    return json.loads((job.folder / "found.json").read_text())


@pytest.mark.mpi
def test_the_number_of_ranks_does_not_change_a_bit(found: Found):
    sizes = {size: [text.split()[0] for text in texts] for size, texts in found["episodes"].items()}
    assert sizes == {"1": ["1"] * 4, "2": ["2"] * 4, "3": ["3", "3", "3", "1"], "4": ["4"] * 4}
    assert len({text.split()[1] for texts in found["episodes"].values() for text in texts}) == 1


@pytest.mark.mpi
def test_ranks_without_a_seed_begin_with_the_same_water(found: Found):
    assert found["unseeded"] == 0


@pytest.mark.mpi
def test_no_water_is_lost(found: Found):
    before, after = found["volumes"]
    assert after == pytest.approx(before, rel=1e-13)


@pytest.mark.mpi
def test_a_low_wave_has_the_period_of_theory(found: Found):
    assert found["seiche"] < 0.04  # Drag takes 0.028 of it.


@pytest.mark.mpi
def test_pads_that_press_where_the_water_rises_calm_it(found: Found):
    nothing, pressed = found["lost"]
    assert 0 < nothing < 40 and pressed > nothing + 20


@pytest.mark.mpi
def test_gymnasiums_checker_has_no_objection(found: Found):
    assert all("infinity" in text for text in found["warnings"]), found["warnings"]


@pytest.mark.mpi
def test_more_ranks_than_there_is_water_for_are_refused(found: Found):
    assert found["refused"] == "a rank needs 2 rows, got 7 rows on 4 ranks; use fewer ranks"


@pytest.mark.mpi
def test_a_run_gives_the_same_bytes_for_any_number_of_ranks_per_env(job: Job):
    run = ("--env-factory", f"{WATER}/env.py:make_env", "--env-kwargs", '{"num_cells": 15, "num_steps": 8}')
    run += ("--num-envs", "3", "--num-steps", "20", "--progress", "none")
    alone = datasets(job.collect(None, *run, out="alone.h5"))
    assert len(alone["/episodes"]) > 3
    for num_ranks, ranks_per_env, *more in ((3, 3), (4, 2), (3, 2, "--root-envs", "0"), (2, 1)):
        ways = ("--ranks-per-env", str(ranks_per_env), *more)
        file = job.collect(num_ranks, *run, *ways, out=f"{num_ranks}-{ranks_per_env}.h5")
        assert_same_bytes(datasets(file), alone)


@pytest.mark.mpi
@pytest.mark.imports(*LEARNING)
@pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="pip install 'mpi_rollout[sb3]'")
def test_ppo_learns_to_calm_the_waves(job: Job):
    result = job.python(2, WATER / "train_ppo.py", "--total-steps", "2400", MPI_ROLLOUT_END_S="100")
    assert result.code == 0, result.err
    learned, nothing, random = (float(line.split()[0]) for line in result.out.splitlines()[1:])
    assert learned > nothing + 3 and nothing > 0 > random  # 29, 21 and -72 here; it takes 60,000 steps to 76.
