"""Natively vectorized envs: made for a slice, seeded by the run, with a promise."""

import os
import re
import sys
from functools import partial
from inspect import getattr_static
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from native_envs import (
    Drift,
    Rolling,
    RollingParts,
    at_once,
    boastful,
    drift,
    drift_on,
    no_vector_env,
    spaceless,
    too_few,
    unsaid,
)

from mpi_rollout.core.seeding import Reproducibility, episode_seeds, seed_of_slice
from mpi_rollout.envs import jax_slices
from mpi_rollout.envs.env_maker import EnvMaker, make_slice
from mpi_rollout.envs.native import NativeVectorEnv
from mpi_rollout.envs.native_makers import env_seeds
from mpi_rollout.envs.rollout import Rollout, as_rollout
from mpi_rollout.errors import UsageError
from mpi_rollout.text import pip_install

ACTIONS = np.random.default_rng(0).integers(0, 2, (60, 6))


def rows_of(envs: NativeVectorEnv, seed: int | None, first: int = 0) -> list[bytes]:
    """Everything that envs give over 60 steps, env by env."""
    observations, _ = envs.reset(seed=seed)
    rows, actions = [observations], ACTIONS[:, first : first + envs.num_envs]
    for step in actions:
        rows += envs.step(step)[:4]
    return [b"".join(np.asarray(row[env]).tobytes() for row in rows) for env in range(envs.num_envs)]


def need_packages_of(maker: EnvMaker) -> None:
    is_of_ale = isinstance(maker.env, str) and maker.env.startswith("ale_py:")
    of_entry_point = "ale_py" if is_of_ale else "numba"
    pytest.importorskip(
        {"envpool": "envpool", "vector_entry_point": of_entry_point}.get(maker.vectorization_mode, "numpy")
    )


@pytest.mark.parametrize(
    "maker",
    [
        EnvMaker(drift, vectorization_mode="native"),
        pytest.param(EnvMaker("mpi_rollout/CartPoleNumba-v0", vectorization_mode="vector_entry_point"), id="numba"),
        pytest.param(EnvMaker("CartPole-v1", vectorization_mode="envpool"), id="envpool"),
    ],
)
def test_envs_that_promise_it_give_the_same_in_any_slice(maker: EnvMaker):
    need_packages_of(maker)
    whole = maker.native(range(6), 7)
    assert whole.reproducibility != Reproducibility.SLICE
    expected = rows_of(whole, 7)
    assert len(set(expected)) > 3
    part = maker.native(range(2, 6), 7)
    assert rows_of(part, 7, 2) == expected[2:]
    part.close()
    assert rows_of(whole, 8) != expected
    assert rows_of(whole, 7) == expected
    whole.close()


def test_envs_that_take_many_steps_in_one_call_are_known_by_every_python():
    """`isinstance` with a protocol looks as `getattr_static` does from Python 3.12 on."""
    pytest.importorskip("numba")
    envs = EnvMaker("mpi_rollout/CartPoleNumba-v0", vectorization_mode="vector_entry_point").native(range(3))
    assert isinstance(envs, Rollout)
    assert all(callable(getattr_static(envs, name)) for name in ("rollout", "last_observations"))


def test_only_envs_whose_spaces_are_single_arrays_take_many_steps_in_one_call():
    """What they are given and what they fill are arrays, and not dicts of them."""
    assert as_rollout(EnvMaker(Rolling, vectorization_mode="native").native(range(3))) is not None
    for make in (RollingParts, drift):
        assert as_rollout(EnvMaker(make, vectorization_mode="native").native(range(3))) is None


def test_gymnasiums_cartpole_promises_nothing():
    envs = EnvMaker("CartPole-v1", vectorization_mode="vector_entry_point").native(range(3))
    assert envs.reproducibility == Reproducibility.SLICE and not hasattr(envs, "rollout")
    assert rows_of(envs, 1) == rows_of(envs, 1) != rows_of(envs, 2)
    given = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    expected, _ = given.reset(seed=seed_of_slice(1, range(3)))
    assert np.array_equal(envs.reset(seed=1)[0], expected)


def test_a_factory_gets_indices_seed_and_arguments():
    given: list[Any] = []

    def make(env_indices: range, seed: int, ends_at: int) -> Drift:
        given.append((env_indices, seed, ends_at))
        return drift(env_indices, seed, ends_at=ends_at)

    envs = EnvMaker(make, {"ends_at": 5}, "native").native(range(3, 6), 9)
    envs.reset(seed=9)
    assert given == [(range(3, 6), 9, 5)]
    envs.reset()
    envs.reset(seed=9)
    assert given == [(range(3, 6), 9, 5)] * 2
    assert envs.observation_space.shape == (3, 2) and envs.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (EnvMaker(too_few, vectorization_mode="native"), "must return 4 envs for these indices, got 3"),
        (EnvMaker(no_vector_env, vectorization_mode="native"), r"must return a gymnasium.vector.VectorEnv, got object"),
        (EnvMaker(boastful, vectorization_mode="native"), "must be one of episode, env, slice, got 'always'"),
        (EnvMaker(spaceless, vectorization_mode="native"), "envs with an attribute single_observation_space, got none"),
        (EnvMaker(unsaid, vectorization_mode="native"), r'got no metadata\["autoreset_mode"\]; have the factory make'),
        (EnvMaker(at_once, vectorization_mode="native"), r"got .* AutoresetMode.SAME_STEP; have the factory make such"),
        (
            EnvMaker("ale_py:ALE/Pong-v5", {"autoreset_mode": AutoresetMode.SAME_STEP}, "vector_entry_point"),
            "SAME_STEP; leave autoreset_mode out of env_kwargs, or use vectorization_mode sync",
        ),
        (
            EnvMaker("MountainCar-v0", vectorization_mode="vector_entry_point"),
            "env MountainCar-v0 has no vectorized version registered; use vectorization_mode sync",
        ),
        (EnvMaker(too_few, {"speed": 3}, "native"), r"env_kwargs \{'speed': 3\} do not fit .*too_few"),
        (
            EnvMaker("CartPole-v1", vectorization_mode="native"),
            "native needs a callable that makes the envs of a rank, got CartPole-v1; on the",
        ),
        (EnvMaker(drift, vectorization_mode="envpool"), "envpool needs the id of a registered env"),
        (EnvMaker("CartPole-v1", ({},) * 4, "envpool"), "must be the same for all envs with envpool"),
    ],
)
def test_what_cannot_be_stepped_is_refused(maker: EnvMaker, message: str):
    if maker.vectorization_mode == "vector_entry_point" and maker.env != "MountainCar-v0":
        need_packages_of(maker)
    with pytest.raises(UsageError, match=message):
        maker.native(range(4))


@pytest.mark.parametrize("mode", ["envpool", "vector_entry_point"])
@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_threads": -1}, "env_kwargs: num_threads must be a whole number from 1 on, got -1"),  # EnvPool aborts.
        ({"num_threads": "2"}, "env_kwargs: num_threads must be a whole number from 1 on, got '2'"),
        ({"batch_size": 2}, "env_kwargs cannot have batch_size, got 2: all envs of a rank are stepped at once"),
        ({"seed": 5}, r"env_kwargs cannot have seed, got 5: it comes from --seed, .* reset\(seed=...\)"),
        ({"first_env": 5}, "env_kwargs cannot have first_env, got 5: each rank has its own"),
    ],
)
def test_arguments_that_the_run_gives_are_refused(mode: str, kwargs: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=f"^{message}$"):
        EnvMaker("CartPole-v1", kwargs, mode).native(range(4))


def test_what_envs_that_step_as_one_cannot_do_is_said_with_a_way_out():
    envs = EnvMaker(drift, vectorization_mode="native").native(range(4))
    way_out = "step single envs, with vectorization_mode='sync'"
    for name, call in {"call": lambda: envs.call("place"), "set_attr": lambda: envs.set_attr("place", [1] * 4)}.items():
        with pytest.raises(AttributeError, match=f"^Drift .* has no method {name}; give it one, .*, or {way_out}$"):
            call()
    for made in (envs, EnvMaker("CartPole-v1", vectorization_mode="vector_entry_point").native(range(4))):
        with pytest.raises(UsageError, match=rf"has no frames; .* env_kwargs=\{{'render_mode'.*; else {way_out}$"):
            made.render()


def test_a_trainer_gets_no_envs_whose_last_observations_it_would_not_see():
    make = EnvMaker(drift_on, vectorization_mode="native")
    assert make_slice(make, range(3), seed=1).metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    with pytest.raises(UsageError, match="resets envs in the step of an end; a trainer would not see"):
        make_slice(make, range(3))


def test_seeds_of_envs_have_31_bits_and_do_not_depend_on_the_slice():
    seeds = env_seeds(2**70, range(100))
    assert seeds[40:60] == env_seeds(2**70, range(40, 60)) and len(set(seeds)) == 100
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seeds[3] == next(episode_seeds(2**70, 3)) & 0x7FFFFFFF


def test_the_threads_are_those_asked_for_or_the_ranks_share(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("envpool")
    asked = EnvMaker("CartPole-v1", vectorization_mode="envpool", num_threads=3).native(range(2))
    assert asked.env._pool.spec.config.num_threads == 3
    monkeypatch.setattr("mpi_rollout.envs.env_maker.share_of_cores", lambda num_local: 5)
    by_itself = EnvMaker("CartPole-v1", vectorization_mode="envpool").native(range(2))
    assert by_itself.env._pool.spec.config.num_threads == 5


@pytest.mark.parametrize(("asked", "seen"), [(3, {"3"}), (None, {"5", "7"})])
def test_libraries_that_a_factory_loads_start_as_many_threads(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, seen: set[str]
):
    """Five are the rank's share; the user has set one variable to seven."""
    given: list[str | None] = []

    def make(env_indices: range, seed: int) -> Drift:
        given.extend(os.environ.get(name) for name in ("OMP_NUM_THREADS", "NPROC"))
        return drift(env_indices, seed)

    monkeypatch.setattr("mpi_rollout.envs.env_maker.share_of_cores", lambda num_local: 5)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("NPROC", raising=False)
    EnvMaker(make, vectorization_mode="native", num_threads=asked).native(range(2))
    assert set(given) == seen and os.environ["OMP_NUM_THREADS"] == "7" and "NPROC" not in os.environ


@pytest.mark.parametrize(
    ("task", "kwargs", "message"),
    [
        ("CartPol-v1", {}, "EnvPool has no such task; near it are CartPole-v1"),
        ("ALE/Pong-v5", {}, "near it are Pong-v5"),
        ("qqqqqqqqq", {}, "list_all_envs"),
        ("CartPole-v1", {"gravity": 3}, "do not fit CartPole-v1 of EnvPool: .*gravity"),
    ],
)
def test_what_envpool_does_not_know_is_refused_with_a_way_out(task: str, kwargs: dict[str, Any], message: str):
    pytest.importorskip("envpool")
    with pytest.raises(UsageError, match=message):
        EnvMaker(task, kwargs, "envpool").native(range(2))


def test_jax_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch):
    for name in ("jax", "mpi_rollout.envs.jax_slices.backend"):
        monkeypatch.setitem(sys.modules, name, None)
    for make in (jax_slices.gymnax, jax_slices.brax, partial(jax_slices.jax_slice, None)):
        arguments = {} if isinstance(make, partial) else {"task": "CartPole-v1"}
        with pytest.raises(UsageError, match=f"need a package .*; {re.escape(pip_install('[jax]'))}"):
            EnvMaker(make, arguments, "native").native(range(2))
