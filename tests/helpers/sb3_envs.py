"""Envs for what trainers of Stable-Baselines3 ask of them: infos of every kind, its spaces, attributes, frames."""

import gymnasium
import numpy as np
from envs import Counting
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit, TransformReward


class Rich(Counting):
    """Says something of every kind, of its steps and of its resets; not always the same things."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        self.history = [] if not self.episode else self.history
        began = {"episode_number": self.episode, "seed": seed, "options": options}
        return observation, began | ({"every_second": "reset"} if self.episode % 2 else {})

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        self.history.append(self.step_number)
        info = {
            "step": self.step_number,
            "share": self.step_number / 3,
            "is_odd": bool(self.step_number % 2),
            "single": np.float32(self.seed / 7),
            "short": np.int16(self.seed),
            "pair": np.array([self.seed, self.step_number], np.float32),
            "word": f"env {self.name}",
            "nothing": None,
            "empty": {},
            "history": self.history,  # Which the env goes on writing to.
            "_private": self.episode,
            "deep": {"who": self.name, "deeper": {"action": self.action}} | ({"last": 1.5} if terminated else {}),
        }
        return observation, reward, terminated, truncated, info | ({"TimeLimit.truncated": 7} if terminated else {})


class Unlike(Counting):
    """Says things of other types and shapes than its neighbours, and than itself in the step before."""

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed)
        return observation, {"score": [0, 0.25, None][self.episode % 3]}

    def step(self, action):
        observation, reward, terminated, truncated, _ = super().step(action)
        kind = (self.seed + self.step_number) % 5
        info = {
            "score": [0, 0.25 * self.step_number, None, np.float32(0.1), "word"][kind],
            "path": np.arange(self.step_number, dtype=float),
            "part": [{"a": 1}, 2, {"a": {"b": np.ones(2)}}, [3], {}][kind],
            "final_info": kind,
        }
        return observation, reward, terminated, truncated, info


class Doubles(Counting):
    """Observes float64 in a float32 space."""

    observation_space, action_space = spaces.Box(-9, 99, (4,), np.float32), spaces.Discrete(5)

    def observe(self):
        return super().observe() / 3


class Several(Counting):
    """Observes a Dict of what Stable-Baselines3 has a use for."""

    observation_space = spaces.Dict(
        {
            "id": Counting.observation_space,
            "kind": spaces.Discrete(1000),
            "bits": spaces.MultiBinary(3),
            "many": spaces.MultiDiscrete([100, 50]),
            "image": spaces.Box(0, 255, (4, 5), np.uint8),
        }
    )
    action_space = spaces.MultiDiscrete([3, 5])

    def step(self, action):
        return super().step(action.sum())

    def observe(self):
        number, image = self.step_number, np.arange(20) + self.name + self.step_number
        return {
            "id": super().observe(),
            "kind": np.int64(number),
            "bits": np.array([number % 2, self.episode % 2, 1], np.int8),
            "many": np.array([number % 100, self.episode % 50]),
            "image": (image % 256).astype(np.uint8).reshape(4, 5),
        }


class Pair(Several):
    """The same as a Tuple, and actions that are real numbers."""

    observation_space = spaces.Tuple(tuple(Several.observation_space.values()))
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def observe(self):
        observation = super().observe()
        return tuple(observation[key] for key in Several.observation_space)


class Drawing(gymnasium.Wrapper):
    """Can be asked for much."""

    render_mode = "rgb_array"

    def __init__(self, env):
        super().__init__(env)
        self.number, self.calls = 3, []

    def render(self):
        return np.full((4, 6, 3), self.unwrapped.name, np.uint8)

    def tell(self, first, second=0, *, word="none"):
        self.calls.append(first)
        return self.unwrapped.name, first, second, word


def cart():
    """Episodes short enough for a few steps of learning to see both kinds of ends."""
    return gymnasium.make("CartPole-v1", max_episode_steps=12)


def draw(limit=4):
    """An env below wrappers."""
    return TransformReward(Drawing(TimeLimit(Counting(), limit)), lambda reward: 2 * reward)
