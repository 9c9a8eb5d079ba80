"""Envs that say who they are in what they observe, so that a misplaced row shows, and envs that fail on demand."""

import os
import random
import sys
import threading
import time

import gymnasium
import numpy as np
from gymnasium import spaces

from mpi_rollout.process.rank_variables import claimed_rank

RANK = claimed_rank()


class Counting(gymnasium.Env):
    """Observes (first seed, episode, step in the episode, last action); ends after 3 + seed % 5 steps.

    Every second episode is truncated instead of terminated.
    """

    observation_space = spaces.Box(-1, 2**62, (4,), np.int64)
    action_space = spaces.Discrete(5, start=2)

    def __init__(self):
        self.name, self.episode, self.seed = -1, -1, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = self.seed if seed is None else seed
        self.name = self.seed if self.name < 0 else self.name
        self.episode, self.step_number, self.action = self.episode + 1, 0, -1
        return self.observe(), {}

    def step(self, action):
        self.step_number, self.action = self.step_number + 1, int(action)
        is_over = self.step_number >= 3 + self.seed % 5
        reward = self.step_number + self.action / 10
        is_odd = bool(self.episode % 2)
        return self.observe(), reward, is_over and not is_odd, is_over and is_odd, {"step": self.step_number}

    def observe(self):
        return np.array([self.name, self.episode, self.step_number, self.action], np.int64)


class Nested(Counting):
    """The same identity in a Dict of Tuples and Dicts with leaves of every kind, as observation and as action."""

    observation_space = spaces.Dict(
        {
            "id": Counting.observation_space,
            "pair": spaces.Tuple((spaces.Discrete(1000), spaces.Box(-np.inf, np.inf, (2, 3), np.float32))),
            "deep": spaces.Dict({"bits": spaces.MultiBinary(3), "many": spaces.MultiDiscrete([100, 50])}),
            "half": spaces.Box(-1, 1, (), np.float16),
            "flag": spaces.Box(0, 1, (2,), np.bool_),
        }
    )
    action_space = spaces.Dict(
        {
            "move": spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32))),
            "bits": spaces.MultiBinary((2, 2)),
            "free": spaces.Box(-np.inf, np.inf, (3,), np.float64),
            "up": spaces.Box(1, np.inf, (1,), np.float64),
            "many": spaces.MultiDiscrete([3, 5], start=[-1, 2]),
        }
    )

    def step(self, action):
        assert self.action_space.contains(action), action
        self.last = action
        return super().step(action["move"][0])

    def observe(self):
        number = self.step_number
        return {
            "id": super().observe(),
            "pair": (number, np.full((2, 3), self.seed / (number + 1), np.float32)),
            "deep": {
                "bits": np.array([number & 1, number & 2, self.episode & 1], np.int8).astype(bool).astype(np.int8),
                "many": np.array([number % 100, self.episode % 50]),
            },
            "half": np.float16(1 / (number + 1)),
            "flag": np.array([number % 2 == 0, True]),
        }


PIXELS = (np.arange(40 * 48 * 3) * 13 % 256).astype(np.uint8).reshape(40, 48, 3)


class Image(Counting):
    """Frames whose pixels are drawn from the identity."""

    observation_space = spaces.Box(0, 255, (40, 48, 3), np.uint8)

    def observe(self):
        start = (7 * (self.name % 97) + 31 * self.episode + 3 * self.step_number + self.action) % 251
        return PIXELS + np.uint8(start)  # Modulo 256.


class LargeImage(Image):
    """Frames of which a rank sends only a few at a time."""

    observation_space = spaces.Box(0, 255, (200, 240, 3), np.uint8)

    def observe(self):
        return np.tile(super().observe(), (5, 5, 1))


class Failing(Counting):
    """Fails in the way `how` in every step after the first `after`, all episodes counted."""

    def __init__(self, how="raise", after=5, sleep_s=0.0):
        super().__init__()
        self.how, self.after, self.sleep_s, self.total = how, after, sleep_s, 0

    def step(self, action):
        self.total += 1
        if self.sleep_s:  # A sleep of 0 s takes longer than the step.
            time.sleep(self.sleep_s)
        if self.total > self.after:
            return FAILURES[self.how](self, action)
        return super().step(action)


def _raise(env, action):
    raise RuntimeError("the simulator has diverged")


def _with(index, value):
    def outcome(env, action):
        outputs = list(Counting.step(env, action))
        outputs[index] = value
        return tuple(outputs)

    return outcome


FAILURES = {
    "raise": _raise,
    "exit": lambda env, action: sys.exit(0),
    "os_exit": lambda env, action: os._exit(7),
    "shape": _with(0, np.zeros(3, np.int64)),
    "dtype": _with(0, np.zeros(4, np.float64)),
    "list": _with(0, [1, 2, 3, 4]),
    "reward": _with(1, "much"),
    "none": lambda env, action: None,
}


def on_rank(rank: int, how: str = "raise", after: int = 5, sleep_s: float = 0.0, others_sleep_s: float = 0.0):
    """An env that fails on one rank only."""
    return Failing(how, after, sleep_s) if rank == RANK else Failing("raise", 10**9, sleep_s or others_sleep_s)


def different_space():
    """An env whose observation space is another one on each rank."""
    env = Counting()
    env.observation_space = spaces.Box(-1, 2**62 - RANK, (4,), np.int64)
    return env


class Text(gymnasium.Env):
    """Observes what has no fixed shape."""

    observation_space = spaces.Dict({"mission": spaces.Text(10), "x": spaces.Discrete(2)})
    action_space = spaces.Discrete(2)


class Keeping(gymnasium.Env):
    """Keeps the action objects that it was given; observes what they say two steps later."""

    action_space = spaces.Dict(
        {"box": spaces.Box(-1, 1, (3,)), "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(3)))}
    )
    observation_space = spaces.Box(-1, 2, (6,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.kept = []
        return np.zeros(6), {}

    def step(self, action):
        self.kept.append(action)
        old = self.kept[max(len(self.kept) - 3, 0)]
        observation = np.concatenate([old["box"], old["pair"][0], [old["pair"][1]]], dtype=np.float64)
        return observation, float(old["box"].sum()), len(self.kept) >= 9, False, {}


class KeepingArray(Keeping):
    """The same with an array as action."""

    action_space = spaces.Box(-1, 1, (6,), np.float64)

    def step(self, action):
        self.kept.append(action)
        return self.kept[max(len(self.kept) - 3, 0)], 0.0, len(self.kept) >= 9, False, {}


class Reusing(Counting):
    """Returns the same array every time, and goes on writing to it."""

    def __init__(self):
        super().__init__()
        self.buffer = np.zeros(4, np.int64)

    def observe(self):
        self.buffer[:] = super().observe()
        return self.buffer


class Mixed(gymnasium.Env):
    """Returns what its spaces allow but few envs do: Python numbers, NumPy scalars, rewards of 32 bits."""

    observation_space = spaces.Tuple((spaces.Discrete(9), spaces.Box(-9, 9, (), np.float32), spaces.MultiBinary(1)))
    action_space = spaces.MultiDiscrete([2, 3], start=[1, -1])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number = 0
        return self.observe(), {}

    def step(self, action):
        self.number += 1
        reward = [self.number, np.float32(self.number / 3), True, np.int16(action.sum())][self.number % 4]
        return self.observe(), reward, np.bool_(self.number == 5), self.number == 6, {}

    def observe(self):
        kinds = [self.number, np.int8(self.number), bool(self.number % 2)]
        number = self.np_random.random()
        return kinds[self.number % 3], [number, np.float32(number)][self.number % 2], np.ones(1, np.int8)


class Telling(Counting):
    """Says in its infos whatever envs may say, some of it only now and then, in a dict that it uses again.

    Envs with an even name and those with an odd one give `mixed` and `either` in different types.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}

    def __init__(self, render_mode=None):
        super().__init__()
        self.render_mode, self.mass, self.info = render_mode, 1.5, {}

    def reset(self, *, seed=None, options=None):
        observation, _ = super().reset(seed=seed, options=options)
        return observation, self.tell({"options": dict(options or {}), "begun": True, "draw": self.np_random.random()})

    def step(self, action):
        *outputs, info = super().step(action)
        return *outputs, self.tell(info)

    def tell(self, more):
        number, is_even = self.step_number, self.name % 2 == 0
        self.info.clear()
        self.info.update(more, mass=self.mass, small=np.int16(number), single=np.float32(1 / (number + 1)))
        self.info.update(flag=number == 2, numpy_flag=np.bool_(number), text=f"step {number}", nothing=None)
        self.info.update(many=[number] * number, none_of_many=np.zeros((0, 2)), complex=np.complex64(1j * number))
        self.info.update(mixed=number if is_even else number + 0.5, either=number if is_even else np.float64(number))
        self.info.update(position=np.full((2, 3), number, np.float32), names=np.array(["a", f"b{number}"], "<U9"))
        self.info["deep"] = {"down": {"number": number, "row": np.arange(3) + number}, "empty": {}}
        if number % 2:
            self.info["deep"]["odd"] = self.info["odd"] = number
        if (self.name + number) % 3 == 0:
            self.info["third"] = {"words": ("one", number), "of": self.name}
        return self.info

    def render(self):
        return f"env {self.name}, step {self.step_number}"

    def weigh(self, factor, *, offset=0.0):
        return self.mass * factor + offset + self.name


class Defaulting(Counting):
    """Observes with which arguments it was reset; its defaults are its own."""

    def reset(self, *, seed=3, options=("own",)):
        super().reset(seed=seed, options=options)
        self.name = -1 if options is None else len(options)
        return self.observe(), {"seed": seed, "options": options}


class Agreeing(Telling):
    """Says nothing that has another type in another env."""

    def tell(self, more):
        return {key: value for key, value in super().tell(more).items() if key not in ("mixed", "either")}


class Loose(Counting):
    """Observes what Gymnasium casts to its space, and gives as it is where an episode ends."""

    observation_space = spaces.Dict(
        {
            "kind": spaces.Discrete(1000),
            "level": spaces.Box(0, 99, (), np.float32),
            "doubles": spaces.Box(-9, 99, (2,), np.float32),
            "listed": spaces.Box(-9, 99, (3,), np.int16),
        }
    )

    def observe(self):
        number = self.step_number
        doubles = np.array([number / 3, self.episode / 7])
        return {"kind": number, "level": number / 7, "doubles": doubles, "listed": [number, self.action, 5]}


class Ready(Counting):
    """Can be stepped before it is reset."""

    def __init__(self):
        super().__init__()
        self.step_number, self.episode = 0, 0


class Dozing(Agreeing):
    """Sleeps before a step now and then, for as long as it likes, so that ranks are ready in any order."""

    def step(self, action):
        if random.random() < 0.1:
            time.sleep(random.random() * 0.003)
        return super().step(action)


class Gated(Counting):
    """On one rank, steps of the envs take until there is a file `go`."""

    def __init__(self, rank):
        super().__init__()
        self.is_gated = rank == RANK

    def step(self, action):
        while self.is_gated and not os.path.exists("go"):
            time.sleep(0.001)
        return super().step(action)


class Holding(Counting):
    """Has what no rank can send to another."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class Stumbling(gymnasium.Wrapper):
    """A CartPole that fails once, in the next "step" or "reset", when `fails` is set to that."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.fails = ""

    def reset(self, *, seed=None, options=None):
        self.fail_in("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.fail_in("step")
        return super().step(action)

    def fail_in(self, where):
        if self.fails == where:
            self.fails = ""
            raise RuntimeError("the simulator has stumbled")
