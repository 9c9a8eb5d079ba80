"""Policies that act in blocks, for `--policy block_policies:NAME.make_policy`, and some that are wrong."""

import time
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

Act = Callable[[Any, np.ndarray, np.ndarray], Any]


class Network:
    """A float32 network: the last bits of what it gives for a row depend on how many rows it is given."""

    def __init__(self, *sizes: int, num_uniforms: int = 0) -> None:
        rng, self.num_uniforms = np.random.default_rng(0), num_uniforms
        self.weights = [(rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32) for shape in pairwise(sizes)]

    def outputs(self, observations: np.ndarray) -> np.ndarray:
        for weight in self.weights[:-1]:
            observations = np.tanh(observations @ weight)
        return observations @ self.weights[-1]

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        return {f"weight {index}": weight for index, weight in enumerate(self.weights)}

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        self.weights = list(parameters.values())


class Steering(Network):
    """For Pendulum."""

    def __init__(self) -> None:
        super().__init__(3, 64, 64, 1)

    def act(self, observations: np.ndarray, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        assert observations.shape == (len(env_indices), 3) and uniforms.shape == (len(env_indices), 0)
        return 2 * np.tanh(self.outputs(observations))


class Sampling(Network):
    """For CartPole: draws its actions, and says how likely they were."""

    extras = {"log_prob": "f4", "hidden/state": ("f8", (2,))}

    def __init__(self) -> None:
        super().__init__(4, 64, 2, num_uniforms=1)

    def act(self, observations: np.ndarray, env_indices: np.ndarray, uniforms: np.ndarray) -> tuple[np.ndarray, dict]:
        outputs = self.outputs(observations)
        likely = 1 / (1 + np.exp(np.float64(outputs[:, 0]) - outputs[:, 1]))
        actions = (uniforms[:, 0] < likely).astype(np.int64)
        log_prob = np.log(np.where(actions, likely, 1 - likely)).astype(np.float32)
        return actions, {"log_prob": log_prob, "hidden": {"state": np.float64(outputs)}}


class Acting:
    """Acts by a function that is told how often it was called."""

    def __init__(self, act: Callable[[int, Any], Any]) -> None:
        self._act, self.num_calls = act, 0

    def act(self, observations: Any, env_indices: np.ndarray, uniforms: np.ndarray) -> Any:
        self.num_calls += 1
        return self._act(self.num_calls, env_indices)


def _late(value: Any) -> Callable[[int, Any], Any]:
    """In the sixth step something else than zeros, for env 3."""

    def act(num_calls: int, env_indices: np.ndarray) -> np.ndarray:
        actions = np.zeros(len(env_indices), type(value))
        if num_calls > 5:
            actions[env_indices == 3] = value
        return actions[:, np.newaxis] if isinstance(value, float) else actions

    return act


def _raise(_num_calls: int, _env_indices: np.ndarray) -> Any:
    raise ValueError("no idea")


def _with_extras(policy: Any, extras: Any) -> Any:
    policy.extras = extras
    return policy


steering, sampling = SimpleNamespace(make_policy=Steering), SimpleNamespace(make_policy=Sampling)
outside = SimpleNamespace(make_policy=lambda: Acting(_late(5)))
not_a_number = SimpleNamespace(make_policy=lambda: Acting(_late(np.nan)))
few = SimpleNamespace(make_policy=lambda: Acting(lambda *_: np.zeros(3, np.int64)))
raising = SimpleNamespace(make_policy=lambda: Acting(_raise))
no_policy = SimpleNamespace(make_policy=lambda: 3)
never_made = SimpleNamespace(make_policy=lambda: 1 / 0)
wrong_extras = SimpleNamespace(make_policy=lambda: _with_extras(Sampling(), 3))
without_extras = SimpleNamespace(make_policy=lambda: _with_extras(Acting(_late(0)), {"value": "f4"}))


class Unloadable(Sampling):
    def load(self, parameters: dict[str, np.ndarray]) -> None:
        raise ZeroDivisionError("cannot")


class Choosy(Sampling):
    def load(self, parameters: dict[str, np.ndarray]) -> None:
        if np.isnan(parameters["weight 0"]).any():
            raise ValueError("no numbers")
        super().load(parameters)


class Arbitrary(Sampling):
    """Weights that each rank draws by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = [np.random.normal(size=weight.shape).astype(np.float32) for weight in self.weights]


arbitrary = SimpleNamespace(make_policy=Arbitrary)


class Slow(Sampling):
    """Thinks for a second in its third step."""

    num_calls = 0

    def act(self, *arguments: Any) -> tuple[np.ndarray, dict]:
        self.num_calls += 1
        time.sleep(self.num_calls == 3)
        return super().act(*arguments)


slow = SimpleNamespace(make_policy=Slow)
unloadable = SimpleNamespace(make_policy=Unloadable)


def steer(observations: np.ndarray) -> np.ndarray:
    """What `steering` does, as a plain callable that writes into what it gets."""
    actions = Steering().act(observations, np.zeros(len(observations)), np.zeros((len(observations), 0)))
    observations[...] = np.nan
    return actions


class Levelled:
    """For CartPole: always one action; says on which device it is: the number of a GPU, or -1."""

    extras = {"device": "i4"}

    def __init__(self, level: int, device: str = "cpu") -> None:
        self.level, self.device = level, int(device.removeprefix("cuda:")) if device != "cpu" else -1

    def act(self, _observations: np.ndarray, env_indices: np.ndarray, _uniforms: np.ndarray) -> tuple[np.ndarray, dict]:
        rows = len(env_indices)
        return np.full(rows, self.level), {"device": np.full(rows, self.device, np.int32)}


def make_levels(level: int, device: str = "cpu") -> Levelled:
    return Levelled(level, device)


def make_plain(level: int) -> Levelled:
    """Has no device."""
    return Levelled(level)


class Pushing:
    """The same, asked by rank 0."""

    def __init__(self, level: int) -> None:
        self.level = level

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        return np.full(len(observations), self.level)
