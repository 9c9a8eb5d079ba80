"""Infos of envs in the file: typed, with masks, the same bytes on any number of ranks; and one line for wrong ones."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from jobs import Collected, Job, Start, assert_same_bytes, collected_in_ways, datasets

from mpi_rollout.storage.checked_file import checked
from mpi_rollout.storage.tail import has_true

pytestmark = pytest.mark.any_mpi

TYPES = '{"lives": int, "place": [int16, 3], "episode/l": "uint8", "episode/r": float, "never": bool}'
FEW = ("--num-envs", "7", "--num-steps", "90", "--seed", "3")
RUNS = {
    "named": ("--env-factory", "telling_envs:Telling", *FEW, "--store-infos", TYPES),
    "all": ("--env-factory", "telling_envs:Telling", *FEW, "--store-infos", "all"),
    "masks": ("--env-factory", "telling_envs:TwoMasks", *FEW, "--store-infos", "all"),
    "restarted": (
        *("--env-factory", "telling_envs:Restarting", "--max-env-restarts", "10", *FEW),
        *("--store-infos", '{"lives": int}'),
    ),
    "native": (
        *("--env-factory", "telling_envs:telling_drift", "--vectorization-mode", "native", *FEW),
        *("--store-infos", '{"where": int, "far": float, "version": float}'),
    ),
}
WAYS = [
    (),
    ("--fragment-length", "1"),
    ("--policy-on", "workers", "--fragment-length", "16"),
    ("--batch-size", "1"),
    ("--num-groups", "2", "--fragment-length", "7"),
]


def ways_of(name: str, num_ranks: int | None) -> list[tuple[str, ...]]:
    """In which ways a run is done on some ranks: in all where the infos are named, and else the runs take turns."""
    ways = {None: WAYS[:1], 2: WAYS[:3], 3: WAYS[3:]}[num_ranks]
    return ways if name == "named" else [ways[list(RUNS).index(name) % len(ways)]]


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    return collected_in_ways(tmp_path_factory, RUNS, ways_of)


@pytest.mark.mpi(2, 3)
@pytest.mark.parametrize("name", RUNS)
def test_infos_are_the_same_bytes_in_every_way(collected: Collected, num_ranks: int, name: str):
    first = datasets(collected(None)[name][0])
    for path in collected(num_ranks)[name]:
        assert_same_bytes(datasets(path), first)


def infos_of(path: Path) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The observations of a file, and its infos by their names."""
    infos: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        group = file["trajectories/infos"]
        group.visititems(lambda name, item: infos.update({name: item[...]} if isinstance(item, h5py.Dataset) else {}))
        return file["trajectories/observations"][...], infos


def test_an_info_stands_beside_the_observation_that_it_came_with(collected: Collected):
    observations, infos = infos_of(collected(None)["named"][0])
    name, episode, step, _ = np.moveaxis(observations, -1, 0)
    assert infos["place"].dtype == np.int16 and infos["_place"].all() and observations.shape[:2] == (91, 7)
    assert np.array_equal(infos["place"], np.stack([name % 1000, episode, step], axis=-1))
    assert np.array_equal(infos["_lives"], step % 2 == 1)
    assert np.array_equal(infos["lives"], np.where(step % 2 == 1, step, 0))
    is_last = np.append(step[1:] == 0, np.zeros((1, 7), bool), axis=0)
    assert np.array_equal(infos["episode/_r"][:-1], is_last[:-1]) and infos["episode/l"].dtype == np.uint8
    assert np.array_equal(infos["episode/r"][:-1], np.where(is_last, step / 2, 0)[:-1])
    assert not infos["_never"].any() and not infos["never"].any()


def test_all_are_the_numbers_of_the_first_episode(collected: Collected):
    _, infos = infos_of(collected(None)["all"][0])
    names = ["lives", "place"], ["l", "r"]
    assert sorted(infos) == [
        *(f"_{name}" for name in names[0]),
        *(f"episode/{mask}{name}" for mask in ("_", "") for name in names[1]),
        *names[0],
    ]
    assert infos["place"].dtype == np.int32 and infos["lives"].dtype == np.int64


def test_action_masks_are_stored_with_their_parts_side_by_side(collected: Collected):
    observations, infos = infos_of(collected(None)["masks"][0])
    steps = observations[..., 2]
    masks = np.ones((*steps.shape, 5), np.int8)
    for part, width in ((slice(0, 3), 3), (slice(3, 5), 2)):
        masks[..., part] = np.arange(width) != (steps % width)[..., None]
    assert np.array_equal(infos["action_mask"], masks) and infos["_action_mask"].all()
    with h5py.File(collected(None)["masks"][0]) as file:
        actions = file["trajectories/actions"][...]
        ends = (file["trajectories/terminations"][...] | file["trajectories/truncations"][...])[:-1]
    is_step = np.append(np.ones((1, 7), bool), ~ends, axis=0)
    first, second = (
        np.take_along_axis(masks[:-1], (actions + np.array([0, 3]))[..., [place]], -1)[..., 0] for place in (0, 1)
    )
    assert first[is_step].all() and second[is_step].all()


def test_native_envs_give_theirs_as_arrays(collected: Collected):
    observations, infos = infos_of(collected(None)["native"][0])
    places = observations[..., 0]
    assert np.array_equal(infos["where"], places) and (infos["version"] == 3.5).all()
    assert np.array_equal(infos["_far"][1:], places[1:] > 10) and not infos["_far"][0].any()
    assert np.allclose(infos["far"][1:], np.where(places > 10, places / 10, 0)[1:])


@pytest.mark.mpi(2)
@pytest.mark.parametrize("name", ["all", "native"])
def test_a_run_with_infos_is_continued_verified_and_recovered(
    job: Job, collected: Collected, num_ranks: int, name: str
):
    run = [*RUNS[name], "--progress", "none", "--out", "run.h5"]
    assert job(num_ranks, *run, "--num-steps", "41").code == 0
    assert job(1, *run).code == 0
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(collected(None)[name][0]))
    result = job(None, "verify", "run.h5", "--replay", "30", *RUNS[name][:2])
    assert result.code == 0 and "every byte the same" in result.out, result.err
    assert job(None, "recover", "run.h5", "part.h5", "--num-steps", "50").code == 0
    whole, part = datasets(job.folder / "run.h5"), datasets(job.folder / "part.h5")
    for path in (name for name in whole if "/infos/" in name):
        assert np.array_equal(part[path], whole[path][:51])
    other = job(num_ranks, *run, "--num-steps", "200", "--store-infos", '{"lives": int}')
    assert other.code == 64 and "--store-infos was" in other.err


@pytest.mark.mpi(2)
def test_a_run_with_infos_that_has_failed_goes_on_with_the_same_bytes(job: Job, collected: Collected, num_ranks: int):
    run = [*RUNS["named"], "--progress", "none", "--out", "run.h5"]
    result = job(num_ranks, *run, FAIL_AT="37")
    assert result.code == 70 and f"steps before are in {job.folder / 'run.h5.part'}" in result.err, result.err
    assert "no env has given" not in result.err  # They may in the steps that are missing.
    assert job(None, "verify", "run.h5.part").code == 0
    result = job(num_ranks, *run)
    assert result.code == 0 and "no env has given the info 'never'; all masks are false" in result.err, result.err
    assert_same_bytes(datasets(job.folder / "run.h5"), datasets(collected(None)["named"][0]))


def test_infos_that_an_earlier_start_has_given_are_known(collected: Collected):
    with checked(str(collected(None)["named"][0]), lambda doing: None) as source:
        silent = [name for name in ("_lives", "episode/_r", "_never") if not has_true(source, f"infos/{name}")]
    assert silent == ["_never"]


ODD = {
    "float": r"env 0: its info 'lives' should be int32 of shape \(\), got float64 of shape \(\); give --",
    "text": r"env 0: its info 'lives' should be int32 of shape \(\), got <U4 of shape",
    "vector": r"'lives' should be int32 of shape \(\), got float64 of shape \(2,\)",
    "large": r"'lives' should be int32 of shape \(\), got int64 with values that int32 cannot hold",
    "dict": r"info 'lives' is a dict in one env|'lives' should be int32",
    "nan": r"'lives' should be int32 of shape \(\), got float64",
}


def test_an_info_of_another_type_ends_the_run_with_all_steps_before(job: Job):
    run = ("--env-factory", "telling_envs:Odd", "--num-envs", "1", "--num-steps", "50", "--progress", "none")
    starts = [
        Start((*run, "--store-infos", '{"lives": "int32"}', "--out", f"{odd}.h5"), environment={"ODD": odd})
        for odd in ODD
    ]
    for result, message in zip(job.series(starts), ODD.values(), strict=True):
        assert result.code == 65 and len(result.messages) == 1, result.err
        assert re.search(message, result.messages[0]) and "steps before are in" in result.messages[0], result.err


def test_nan_and_silence_are_told(job: Job):
    run = ("--env-factory", "telling_envs:Odd", "--num-envs", "2", "--num-steps", "50", "--progress", "none")
    result = job(None, *run, "--store-infos", '{"lives": float, "absent": int}', "--out", "run.h5", ODD="nan")
    assert result.code == 0
    assert "its info 'lives' is nan, which is not finite; such values are stored as they are" in result.err
    assert "no env has given the info 'absent'; all masks are false" in result.err
    told = json.loads(job(None, "inspect", "run.h5", "--json").out)
    assert [wrong["dataset"] for wrong in told["wrong_values"]] == ["infos/lives"]
    assert job(None, "verify", "run.h5").code == 0


REFUSED = [
    (("{lives: int",), "--store-infos must be all or types such as"),
    (("[1]",), "--store-infos must be all or types such as"),
    (('{"lives": "text"}',), "'lives' must have a dtype such as int, float or uint8, got 'text'"),
    (('{"lives": "U4"}',), "'lives' must have a dtype of numbers"),
    (('{"lives": [float, -1]}',), "'lives' must have sizes of at least 1, such as [float, 3]"),
    (('{"a//b": int}',), "'a//b' cannot be a name in HDF5"),
    (('{"x": int, "_x": int}',), "the mask of 'x' is stored as '_x'"),
    (('{"x": int, "x/y": int}',), "'x' cannot hold 'x/y' and be a column itself"),
    (("all", "--no-trajectories"), "--store-infos stores them with the trajectories"),
]


def test_names_that_come_later_than_all_looks_are_told_at_the_end(job: Job):
    steps = ("--num-envs", "4", "--num-steps", "60", "--progress", "none", "--store-infos", "all")
    names = "Late", "Telling"
    results = [job(2, "--env-factory", f"telling_envs:{name}", *steps, "--out", f"{name}.h5") for name in names]
    assert [result.messages for result in results] == [
        [
            "--store-infos all stores none",
            "--store-infos all stores the infos of one episode; not stored are others that came: late, text; give the "
            "names and types of those that are wanted",
        ],
        ["--store-infos all stores episode/l, episode/r, lives, place; not stored: text (str)"],
    ]


def test_what_names_no_types_or_cannot_be_stored_is_refused(job: Job):
    results = job.series([Start(("--env", "CartPole-v1", "--store-infos", *given)) for given, _ in REFUSED])
    for result, (_, problem) in zip(results, REFUSED, strict=True):
        assert result.code == 64 and len(result.messages) == 1 and problem in result.messages[0], result.err
