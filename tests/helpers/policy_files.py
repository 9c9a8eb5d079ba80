"""What tests of policy files share: batches, calls, files with other members, and what a refusal may cost."""

import io
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.model import Model, PolicySource
from mpi_rollout.policies.sources import load_model

CART, TWO, TORQUE = spaces.Box(-np.inf, np.inf, (4,)), spaces.Discrete(2), spaces.Box(-2, 2, (1,))
SWING = spaces.Box(np.float32([-1, -1, -8]), np.float32([1, 1, 8]))
DOUBLES = spaces.Box(-1, 1, (4,), np.float64)


def batch(space: spaces.Space, rows: int = 64) -> Any:
    space.seed(3)
    samples = [space.sample() for _ in range(rows)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([sample[key] for sample in samples]) for key in space.spaces}
    stacked = np.stack(samples)
    if stacked.ndim == 4:  # Images of noise look all the same, but for their brightness.
        stacked = (stacked * np.linspace(0, 1, rows).reshape(-1, 1, 1, 1)).astype(space.dtype)
    return stacked


def act(model: Model, observations: Any, rows: int = 64, seed: int = 0) -> np.ndarray:
    return model.act(observations, np.arange(rows), np.random.default_rng(seed).random((rows, model.num_uniforms)))


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def members_in(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def changed(content: bytes, ending: str, edit: Callable[[bytes], bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip with other members of this ending."""
    members = members_in(content)
    assert any(name.endswith(ending) for name in members)
    return zipped({name: edit(old) if name.endswith(ending) else old for name, old in members.items()}, method)


@contextmanager
def assert_refused(message: str, most_mbytes: int = 200) -> Iterator[None]:
    """What is done here is refused in one line, and takes little memory."""
    before = getrusage(RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match=message) as raised:
        yield
    assert "\n" not in str(raised.value) and getrusage(RUSAGE_SELF).ru_maxrss - before < 1000 * most_mbytes


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


class Still(gymnasium.Env):
    """An env of given spaces, in which nothing happens."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, **_options: Any) -> tuple[Any, dict]:
        return self.observation_space.sample(), {}

    def step(self, _action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 0.0, False, False, {}


def saved(model: Any) -> bytes:
    file = io.BytesIO()
    model.save(file)
    return file.getvalue()


def load_sb3(
    content: bytes,
    observations: spaces.Space = CART,
    actions: spaces.Space = TWO,
    mode: str = "deterministic",
    is_trusted: bool = False,
) -> Model:
    return load_model(PolicySource("sb3", "p.zip", content, "", mode, is_trusted), observations, actions)
