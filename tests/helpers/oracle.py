"""What Gymnasium itself gives: its `SyncVectorEnv`, driven in one process with the seeds and actions of a run."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from operator import itemgetter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from policies import by_look

from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.core.spaces import leaves, map_tree
from mpi_rollout.policies.random import RandomPolicy


class SeededEpisodes(gymnasium.Wrapper):
    """Takes the next of `seeds` at every reset that is not given one."""

    def __init__(self, env: gymnasium.Env, seeds: Iterator[int]):
        super().__init__(env)
        self.seeds = seeds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        return self.env.reset(seed=next(self.seeds) if seed is None else seed, options=options)


def seeded_sync(make: Callable[[], gymnasium.Env], num_envs: int, seed: int) -> SyncVectorEnv:
    """Gymnasium's own vector env, with the episode seeds of a run."""
    return SyncVectorEnv([lambda i=i: SeededEpisodes(make(), episode_seeds(seed, i)) for i in range(num_envs)])


def arrays(name: str, space: spaces.Space, tree: Any) -> dict[str, np.ndarray]:
    """Copies of the leaves of batched observations or actions, by their path in a file."""
    return {f"{name}/{leaf.path}".strip("/"): np.array(leaf.of(tree)) for leaf in leaves(space)}


def rollout(
    envs: VectorEnv, policy: Callable[[Any], Any], num_steps: int, seed: int | None = None
) -> dict[str, np.ndarray]:
    """Drive a vector env; return what /trajectories of a file of the same run must hold."""
    observations, _ = envs.reset(seed=seed)
    steps = []
    seen = [arrays("observations", envs.single_observation_space, observations)]
    for _ in range(num_steps):
        actions = policy(observations)
        chosen = arrays("actions", envs.single_action_space, actions)
        observations, rewards, terminations, truncations, _ = envs.step(actions)
        results = {"rewards": rewards, "terminations": terminations, "truncations": truncations}
        steps.append(chosen | {name: column.copy() for name, column in results.items()})
        seen.append(arrays("observations", envs.single_observation_space, observations))
    return {name: np.stack([row[name] for row in rows]) for rows in (seen, steps) for name in rows[0]}


def record(envs: VectorEnv, num_steps: int, seed: int = 5) -> list[tuple[Any, ...]]:
    """All that a vector env returns in some steps: the reset first, in DISABLED mode also those of ended envs.

    The action of env i in step t depends on i and t alone.  What is returned is written into after it was recorded, as
    trainers may do, and must not matter.
    """
    policy = RandomPolicy(envs.single_action_space, envs.num_envs, seed)
    is_disabled = envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED
    returned: list[tuple[Any, ...]] = []

    def take(outputs: tuple[Any, ...]) -> None:
        returned.append(deepcopy(outputs))
        for leaf in leaves(envs.single_observation_space):
            leaf.of(outputs[0]).fill(1)

    take(envs.reset(seed=seed))
    for step in range(num_steps):
        take(envs.step(deepcopy(policy.at(step))))
        ended = returned[-1][2] | returned[-1][3]
        if is_disabled and ended.any():
            take(envs.reset(options={"reset_mask": ended}))
    return returned


def facts_of(envs: VectorEnv) -> dict[str, Any]:
    """What `envs.Agreeing` envs, reset with a seed and stepped, say of themselves and take from outside."""
    envs.reset(seed=7, options={"level": 3})
    envs.step(np.full(envs.num_envs, 4))
    names = ("single_observation_space", "observation_space", "single_action_space", "action_space", "num_envs")
    facts = {name: getattr(envs, name) for name in names}
    facts |= {"metadata": envs.metadata, "render_mode": envs.render_mode, "frames": envs.render()}
    facts |= {"method": envs.call("weigh", 3, offset=0.25), "attribute": envs.call("mass")}
    envs.set_attr("mass", [2.0 + index for index in range(envs.num_envs)])
    facts["one each"] = envs.get_attr("mass")
    envs.set_attr("mass", 9)
    facts["one for all"] = envs.get_attr("mass")
    facts["seen by the envs"] = envs.step(np.full(envs.num_envs, 3))[-1]["mass"]
    facts["np_random"] = [generator.bit_generator.state for generator in envs.np_random]
    facts["np_random_seed"] = envs.np_random_seed
    return facts


def resets_of(envs: VectorEnv) -> list[tuple[Any, dict[str, Any]]]:
    """What resets of `envs.Agreeing` give with seeds of every kind, and of some envs amid their episodes.

    Without seeds generators go on as they are.
    """
    count = envs.num_envs
    seeds = [3, list(range(count, 0, -1)), None, [None] * count, [*range(count - 1), None], tuple(range(count)), 2**31]
    given = [envs.reset(seed=seed, options={"level": index}) for index, seed in enumerate(seeds)]
    given += [envs.reset(), envs.reset(options={}), envs.reset(options={"reset_mask": np.ones(count, np.bool_)})]
    for step in range(12):
        given.append(deepcopy(envs.step(np.full(count, 3))))
        if step % 3:
            given.append(envs.reset(seed=step, options={"reset_mask": np.arange(count) % 3 == step % 3, "level": step}))
    return given


class Rows:
    """What each env gave, step by step, from batches of whatever envs came together."""

    def __init__(self, num_envs: int):
        self.of_env: list[list[tuple[Any, ...]]] = [[] for _ in range(num_envs)]

    def take(self, outputs: Sequence[Any], env_indices: Sequence[int]) -> None:
        observations, *results, infos = outputs
        for place, index in enumerate(env_indices):
            row = deepcopy(map_tree(itemgetter(place), observations)), *(column[place].item() for column in results)
            self.of_env[index].append((*row, deepcopy(info_of(infos, place))))


def info_of(infos: dict[str, Any], place: int) -> dict[str, Any]:
    """What one of the envs said."""
    return {
        key: info_of(value, place) if isinstance(value, dict) else value[place]
        for key, value in infos.items()
        if f"_{key}" in infos and infos[f"_{key}"][place]
    }


def walk(envs: VectorEnv, num_steps: int) -> list[list[tuple[Any, ...]]]:
    """What each env gives in steps by `by_look`, all envs at once."""
    rows = Rows(envs.num_envs)
    observations, _ = envs.reset(seed=5)
    for _ in range(num_steps):
        outputs = envs.step(by_look(observations))
        rows.take(outputs, range(envs.num_envs))
        observations = outputs[0]
    return rows.of_env


def differences(found: Any, expected: Any, place: str = "") -> list[str]:
    """Where two nested results are not the same in type, dtype, shape, keys or value; [] if they are.

    Scalars may be of NumPy's type or of Python's: arrays have both in one.
    """
    if isinstance(expected, dict):
        if not isinstance(found, dict) or found.keys() != expected.keys():
            return [f"{place}: got {_keys(found)}, expected {_keys(expected)}"]
        return [line for key in expected for line in differences(found[key], expected[key], f"{place}/{key}")]
    if isinstance(expected, np.ndarray):
        if not isinstance(found, np.ndarray) or (found.dtype, found.shape) != (expected.dtype, expected.shape):
            return [f"{place}: got {_kind(found)}, expected {_kind(expected)}"]
        if expected.dtype != object:
            return [] if found.tobytes() == expected.tobytes() else [f"{place}: got {found}, expected {expected}"]
        found, expected = found.ravel().tolist(), expected.ravel().tolist()
    if isinstance(expected, list | tuple):
        if type(found) is not type(expected) or len(found) != len(expected):
            return [f"{place}: got {_kind(found)}, expected {_kind(expected)}"]
        pairs = enumerate(zip(found, expected, strict=True))
        return [line for index, pair in pairs for line in differences(*pair, f"{place}[{index}]")]
    found, expected = (value.item() if isinstance(value, np.generic) else value for value in (found, expected))
    is_same = type(found) is type(expected) and (found == expected or (found != found and expected != expected))
    return [] if is_same else [f"{place}: got {found!r}, expected {expected!r}"]


def names_in(infos: Any) -> list[Any]:
    """The names of infos in their order, and of what is in them."""
    return [(name, names_in(value)) for name, value in infos.items()] if isinstance(infos, dict) else []


def _keys(value: Any) -> Any:
    return sorted(value) if isinstance(value, dict) else _kind(value)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return f"{type(value).__name__} {value!r}"
