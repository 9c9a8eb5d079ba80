"""This program in its other ways: fragments, groups, first ready, runs, and slices of native envs."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from operator import itemgetter
from typing import Any

import numpy as np
from measuring import run as run_once

import mpi_rollout
from mpi_rollout.core.spaces import map_tree
from mpi_rollout.studies.compare import SEED, Rate, Setup, drawn_actions, envpool_id, of_vector_env
from systems import FORMS, KERNELS
from systems.stepped import Stepper, count_rows

FRAGMENT_STEPS = 64
MOST_GROWTH = 50.0  # Of the number of steps, from one run to the next.


@contextmanager
def fragments(setup: Setup) -> Iterator[Stepper | None]:
    """A sweep is several steps in one exchange, with actions that are drawn in it."""
    with mpi_rollout.connect(setup.env["env"], setup.num_envs) as envs:

        def sweep() -> Any:
            batch = envs.collect(FRAGMENT_STEPS)
            return batch["terminations"], batch["truncations"]

        def count(sweeps: Sequence[Any]) -> int:
            return count_rows([row for sweep in sweeps for row in zip(*sweep, strict=True)])

        yield None if envs is None else Stepper(lambda: envs.reset(seed=SEED), sweep, count)


def count_parts(num_envs: int, sweeps: Sequence[Any]) -> int:
    """Count the env steps of rows of some envs; a row after an end resets."""
    ended, env_steps = np.zeros(num_envs, np.bool_), 0
    for terminations, truncations, indices in sweeps:
        env_steps += len(indices) - int(np.count_nonzero(ended[indices]))
        ended[indices] = terminations | truncations
    return env_steps


def of_parts(num_envs: int, actions: list[Any], reset: Callable, send: Callable, recv: Callable) -> Stepper:
    """Step envs that come back some at a time and get actions at once; `recv` returns ends and indices."""
    turns = cycle(actions)

    def start() -> None:
        reset()
        send(next(turns), None)

    def sweep() -> Any:
        terminations, truncations, indices = recv()
        send(map_tree(itemgetter(indices), next(turns)), indices)
        return terminations, truncations, indices

    return Stepper(start, sweep, partial(count_parts, num_envs))


@contextmanager
def _by_parts(setup: Setup, **options: Any) -> Iterator[Stepper | None]:
    with mpi_rollout.connect(setup.env["env"], setup.num_envs, root_envs=0, **options) as envs:
        if envs is None:
            yield None
            return

        def recv() -> Any:
            _, _, terminations, truncations, _, indices = envs.recv()
            return terminations, truncations, indices

        reset, actions = partial(envs.reset, seed=SEED), drawn_actions(envs.action_space)
        yield of_parts(setup.num_envs, actions, reset, envs.send, recv)


groups = partial(_by_parts, num_groups=2)
first_ready = partial(_by_parts, batch_size=1)


def form_of(form: str, setup: Setup) -> dict[str, Any]:
    """The options of a run that steps an env in another form."""
    env = setup.env["env"]
    if form == "envpool":
        return {"env": envpool_id(setup), "vectorization_mode": "envpool", "env_kwargs": {"num_threads": 1}}
    if form == "jax":
        factory = "mpi_rollout.envs.jax_slices:gymnax"
        return {"env": factory, "vectorization_mode": "native", "env_kwargs": {"task": env}}
    return {"env": KERNELS.get(env, {}).get(form, env), "vectorization_mode": "vector_entry_point"}


@contextmanager
def _connected(setup: Setup, form: str) -> Iterator[Rate | None]:
    options = form_of(form, setup)
    if form == "jax":
        from mpi_rollout.envs.jax_slices import gymnax

        options["env"] = gymnax
    with mpi_rollout.connect(num_envs=setup.num_envs, **options) as envs:
        yield None if envs is None else of_vector_env(envs)


class Run:
    """A run of the program, of as many steps as fill the window; its file is dropped."""

    def __init__(self, setup: Setup, form: str, is_stored: bool):
        options = form_of(form, setup) if form else {"env": setup.env["env"]}
        name, kwargs = "--env-factory" if form == "jax" else "--env", json.dumps(options.get("env_kwargs", {}))
        self._words = [name, options["env"], "--env-kwargs", kwargs, "--num-envs", str(setup.num_envs)]
        self._words += ["--vectorization-mode", options.get("vectorization_mode", "sync")]
        self._words += [] if is_stored else ["--no-trajectories"]
        self._num_ranks, self._num_steps = setup.num_cores, 50

    def __call__(self, seconds: float) -> float:
        """Run with more and more steps, until it takes as long; return env steps per second."""
        while True:
            found = run_once(self._num_ranks, f"--num-steps {self._num_steps}", *self._words)
            if found["seconds"] > 0.7 * seconds:
                return found["env_steps"] / found["seconds"]
            self._num_steps = int(self._num_steps * min(MOST_GROWTH, 1.1 * seconds / found["seconds"]))


@contextmanager
def _run(setup: Setup, form: str = "", is_stored: bool = False) -> Iterator[Run]:
    yield Run(setup, form, is_stored)


run, record = partial(_run), partial(_run, is_stored=True)
native, envpool, numba, torch, cuda, jax = (partial(_connected, form=form) for form in FORMS)
native_run, envpool_run, numba_run, torch_run, cuda_run, jax_run = (partial(_run, form=form) for form in FORMS)
