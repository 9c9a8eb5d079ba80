"""Policies with a memory, for `--policy recurrent_policies:NAME`, and some that are wrong."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

State = dict[str, Any]


class Gru:
    """For CartPole: a float32 GRU that draws its actions, and says how many steps of the episode it remembers."""

    num_uniforms, extras = 1, {"age": "i4"}

    def __init__(self, num_inputs: int = 4) -> None:
        rng = np.random.default_rng(0)
        self.inputs, self.hidden = rng.normal(size=(num_inputs, 24)), rng.normal(size=(8, 24)) / 3
        self.weights = [array.astype(np.float32) for array in (self.inputs, self.hidden, rng.normal(size=(8, 2)))]

    def act(
        self, observations: np.ndarray, env_indices: np.ndarray, uniforms: np.ndarray, state: Any, episode_starts: Any
    ) -> tuple[np.ndarray, dict, State]:
        size, (inputs, hidden, head) = len(env_indices), self.weights
        before, (ages,) = (np.zeros((size, 8), np.float32), [np.zeros(size)]) if state is None else state["all"]
        assert len(episode_starts) == size and (state is not None or episode_starts.all())
        before, ages = np.where(episode_starts[:, None], np.float32(0), before), np.where(episode_starts, 0, ages)
        given, kept = np.split(observations.astype(np.float32) @ inputs, 3, 1), np.split(before @ hidden, 3, 1)
        reset, update = (1 / (1 + np.exp(-(given[i] + kept[i]))) for i in (0, 1))
        after = update * before + (1 - update) * np.tanh(given[2] + reset * kept[2])
        logits = after @ head
        actions = (uniforms[:, 0] < 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))).astype(np.int64)
        # The policy may use its memory for the states of all blocks, and write into what it is given.
        before[...], episode_starts[...] = np.nan, True
        return actions, {"age": ages.astype(np.int32)}, {"all": (after, [ages + 1])}


def make_torch_gru() -> Any:
    """For CartPole."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.gru, self.head = torch.nn.GRU(4, 16), torch.nn.Linear(16, 2)

        def act(self, observations: Any, env_indices: Any, uniforms: Any, *, state: Any, episode_starts: Any) -> Any:
            with torch.no_grad():
                hidden = torch.zeros(len(observations), 16) if state is None else state
                hidden = torch.where(torch.from_numpy(episode_starts)[:, None], 0.0, hidden)
                _, hidden = self.gru(torch.from_numpy(observations)[None], hidden[None])
                return self.head(hidden[0]).argmax(1).numpy(), hidden[0]

    return Network()


def every_third(observations: np.ndarray, state: Any, episode_starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For envs with two actions: the second one in every third step of an episode."""
    ages = np.where(episode_starts, 0, 0 if state is None else state)
    return (ages % 3 == 2).astype(np.int64), ages + 1


def every_third_from_two(observations: np.ndarray, state: Any, episode_starts: np.ndarray) -> Any:
    """For `envs.Counting`, whose actions begin with 2."""
    actions, state = every_third(observations, state, episode_starts)
    return 2 + actions, state


def allowed(observations: np.ndarray, *, infos: dict[str, np.ndarray], episode_starts: Any = None) -> np.ndarray:
    """For `masked_envs.Masked`: the last action that is allowed."""
    masks, has_mask = infos["action_mask"], infos["_action_mask"]
    assert masks.shape == (len(observations), 5) and has_mask.dtype == bool and episode_starts.dtype == bool
    can_choose = has_mask & masks.any(axis=1)
    return np.where(can_choose, 6 - masks[:, ::-1].argmax(axis=1), 2)


class Allowed:
    def act(self, observations: np.ndarray, env_indices: Any, uniforms: Any, infos: dict[str, np.ndarray]) -> Any:
        return allowed(observations, infos=infos, episode_starts=np.zeros(1, bool))


class Wrong:
    """Returns what is not actions, extras and a state."""

    def __init__(self, **returned: Any) -> None:
        self._returned = returned

    def act(self, observations: Any, env_indices: Any, uniforms: Any, state: Any, episode_starts: Any) -> Any:
        actions = np.zeros(len(env_indices), np.int64)
        return (actions, *self._returned.values()) if self._returned else actions


class Forgetful:
    def act(self, observations: Any, env_indices: Any, uniforms: Any, state: Any) -> Any:
        return np.zeros(len(env_indices), np.int64), state


class Early:
    """Takes its state where envs' indices and uniforms are given."""

    def act(self, observations: Any, state: Any = None, episode_starts: Any = None) -> Any:
        return np.zeros(len(observations), np.int64), state


def state_alone(state: np.ndarray) -> np.ndarray:
    """A policy whose observations are called so."""
    return (state[:, 2] > 0).astype(np.int64)


gru, torch_gru = SimpleNamespace(make_policy=Gru), SimpleNamespace(make_policy=make_torch_gru)
allowing = SimpleNamespace(make_policy=Allowed)
no_state, many = SimpleNamespace(make_policy=Wrong), SimpleNamespace(make_policy=partial(Wrong, extras={}, state=None))
axis = SimpleNamespace(make_policy=partial(Wrong, state=np.zeros((1, 9, 4))))
forgetful, early = SimpleNamespace(make_policy=Forgetful), SimpleNamespace(make_policy=Early)
