"""What the commands make of a set of shards is what they make of the single file of the same run."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import Job, Start
from shard_sets import as_set, shards_of

from mpi_rollout.storage.schema import leaf_datasets

RUN = ("--env-factory", "drawing_envs:make", "--num-steps", "70", "--seed", "2", "--progress", "none")
TRUST = RUN[:2]
SHARDS = ((0, 2), (2, 3))  # The first env and the number of envs of each.


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    job = Job(tmp_path_factory.mktemp("sets"))
    single = job.collect(None, *RUN, "--num-envs", "5", out="single.h5")
    shards = [
        job.collect(None, *RUN, "--first-env", str(first), "--num-envs", str(number), out=f"envs-{first}.h5")
        for first, number in SHARDS
    ]
    (job.folder / "set").mkdir()
    return as_set(job.folder / "set" / "big.h5", single, shards), single


def test_shards_of_runs_have_the_bytes_of_a_single_file(pair: tuple[Path, Path]):
    path, single = pair
    with h5py.File(path) as file, h5py.File(single) as whole:
        columns, expected = leaf_datasets(file["trajectories"]), leaf_datasets(whole["trajectories"])
        assert {name: column[...].tobytes() for name, column in columns.items()} == {
            name: column[...].tobytes() for name, column in expected.items()
        }
        assert file["episodes"][...].tobytes() == whole["episodes"][...].tobytes()


def test_it_is_inspected_and_verified_with_its_shards(job: Job, pair: tuple[Path, Path]):
    starts = [["inspect", path, "--json"] for path in pair]
    starts += [
        ["inspect", pair[0]],
        ["verify", pair[0], "--replay", "6", *TRUST],
        ["inspect", pair[0], "--plot", "x.png"],
    ]
    *summaries, shown, verified, drawn = job.series([Start(start) for start in starts])
    one, other = (json.loads(result.out) for result in summaries)
    for name in ("num_steps", "episodes", "datasets", "num_transitions", "wrong_values", "faults", "env", "hosts"):
        assert one[name] == other[name]
    assert [shard["num_envs"] for shard in one["shards"]] == [2, 3]
    assert one["nbytes"] == pair[0].stat().st_size + sum(shard["nbytes"] for shard in one["shards"])
    assert f"shards        2 to 3 envs each in 2 files with 70 steps, in {pair[0]}.shards" in shown.out
    assert verified.code == 0 and "shards        2, each whole" in verified.out and "replay        6 ep" in verified.out
    assert drawn.code == 0 and (job.folder / "x.png").stat().st_size > 0


def test_it_is_exported_and_filmed(job: Job, pair: tuple[Path, Path]):
    pytest.importorskip("PIL")
    starts = [["export", "d4rl", path, f"{path.stem}.hdf5"] for path in pair]
    starts += [["render", path, *TRUST, "--episode", "longest", "--json", "--out", f"{path.stem}.gif"] for path in pair]
    results = job.series([Start(start) for start in starts])
    assert [result.code for result in results] == [0, 0, 0, 0], results
    with h5py.File(job.folder / "big.hdf5") as file, h5py.File(job.folder / "single.hdf5") as whole:
        for name, column in leaf_datasets(whole).items():
            assert name.startswith("metadata") or np.array_equal(file[name][...], column[...])
    films = [json.loads(result.out) | {"file": ""} for result in results[2:]]
    assert films[0] == films[1]


def test_one_file_is_recovered_of_it(job: Job, pair: tuple[Path, Path]):
    recovered, verified = job.series(
        [Start(["recover", pair[0], "one.h5"]), Start(["verify", "one.h5", "--replay", "4", *TRUST])]
    )
    assert recovered.code == 0 and verified.code == 0, recovered.err + verified.err
    assert "one.h5: complete and whole" in verified.out


def test_a_shard_that_is_missing_is_one_line(job: Job, pair: tuple[Path, Path]):
    shard = shards_of(pair[0])[1]
    shard.rename(shard.with_suffix(".away"))
    try:
        commands = (["inspect"], ["verify"], ["recover"], ["export", "d4rl"])
        results = job.series(
            [Start([*command, pair[0], *["out.h5"] * (command[0] in ("recover", "export"))]) for command in commands]
        )
    finally:
        shard.with_suffix(".away").rename(shard)
    for result in results:
        assert result.code == 65
        assert result.messages == [f"{shard}: no such file; it is a shard of {pair[0]}: put it back there"]
