"""What trainers do wrong with envs: each mistake is made on envs that were reset and wait for actions."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from gymnasium.error import NoAsyncCallError
from gymnasium.vector import AutoresetMode
from oracle import differences, record

from mpi_rollout.train.vector_env import MPIVectorEnv

Mistake = Callable[[MPIVectorEnv], Any]


def good(envs: MPIVectorEnv, num_envs: int | None = None) -> np.ndarray:
    return np.zeros((num_envs or envs.num_envs, *envs.single_action_space.shape), envs.single_action_space.dtype)


def after_send(use: Mistake) -> Mistake:
    """Do something while the envs are stepping."""

    def mistake(envs: MPIVectorEnv) -> None:
        envs.send(good(envs))
        use(envs)

    return mistake


def with_value(place: Any, value: Any) -> Mistake:
    """Step with one number that is not right."""

    def mistake(envs: MPIVectorEnv) -> None:
        actions = good(envs)
        actions[place] = value
        envs.step(actions)

    return mistake


def step_with(actions: Any) -> Mistake:
    return lambda envs: envs.step(actions)


def send_to(envs_slice: Any, num_envs: int = 6) -> Mistake:
    return lambda envs: envs.send(good(envs, num_envs), envs_slice)


def reset_with(**arguments: Any) -> Mistake:
    return lambda envs: envs.reset(**arguments)


def masked(mask: Any) -> Mistake:
    return lambda envs: envs.reset(options={"reset_mask": mask})


def again(mistake: Mistake) -> Mistake:
    """Make it after some steps, in which episodes have ended and none was reset."""

    def later(envs: MPIVectorEnv) -> None:
        for _ in range(20):
            *_, terminations, truncations, _ = envs.step(good(envs))
            if (terminations | truncations).any():
                break
        mistake(envs)

    return later


LAST_OF_SIX = np.arange(12) == 11
OF_ACTIONS: dict[str, Mistake] = {  # Of Pendulum: two thirds of a dozen envs with one number each, -2 to 2, float32.
    "too few": step_with(np.zeros((11, 1), np.float32)),
    "too many": step_with(np.zeros((13, 1), np.float32)),
    "flat": step_with(np.zeros(12, np.float32)),
    "complex": step_with(np.zeros((12, 1), complex)),
    "text": step_with([["much"]] * 12),
    "none": step_with(None),
    "ragged": step_with([[0.0]] * 11 + [[0.0, 0.0]]),
    "nan": with_value((7, 0), np.nan),
    "too large": with_value((11, 0), 2.5),
    "minus infinity": with_value((0, 0), -np.inf),
}
OF_ORDER: dict[str, Mistake] = {
    "two sends": after_send(lambda envs: envs.send(good(envs))),
    "step after send": after_send(lambda envs: envs.step(good(envs))),
    "reset after send": after_send(lambda envs: envs.reset()),
    "render after send": after_send(lambda envs: envs.render()),
    "call after send": after_send(lambda envs: envs.call("g")),
    "get_attr after send": after_send(lambda envs: envs.get_attr("g")),
    "set_attr after send": after_send(lambda envs: envs.set_attr("g", 1)),
    "np_random after send": after_send(lambda envs: envs.np_random),
    "recv without send": lambda envs: envs.recv(),
    "a recv too many": after_send(lambda envs: [envs.recv() for _ in range(5)]),
}
OF_ARGUMENTS: dict[str, Mistake] = {
    "too few seeds": reset_with(seed=[1, 2]),
    "too many seeds": reset_with(seed=list(range(13))),
    "no seeds": reset_with(seed=[]),
    "too few values": lambda envs: envs.set_attr("g", [1, 2]),
    "unknown attribute": lambda envs: envs.get_attr("no_such_thing"),
    "unknown method": lambda envs: envs.call("no_such_thing", 3),
    "a method that takes no arguments": lambda envs: envs.call("close", 1, 2, 3),
    "a fraction of a seed": reset_with(seed=1.5),
    "a seed in words": reset_with(seed="four"),
    "a fraction of a seed for one env": reset_with(seed=[1.5] * 12),
    "a negative seed": reset_with(seed=-1),
    "a negative seed for one env": reset_with(seed=[*range(11), -1]),
    "too few options": reset_with(options=[{}] * 11),
}
UNSENDABLE: dict[str, Mistake] = {
    "options": reset_with(options={"level": lambda: 3}),
    "options of each": reset_with(options=[{"level": lambda: 3}] * 12),
    "a value": lambda envs: envs.set_attr("level", lambda: 3),
    "an argument": lambda envs: envs.call("close", lambda: 3),
}
OF_SLICES: dict[str, Mistake] = {  # Groups are 0 to 5 and 6 to 11; ranks of two 0 to 5 and 6 to 11 too.
    "half of a part": send_to(np.arange(3), 3),
    "one env": send_to(np.array([0]), 1),
    "parts of two": send_to(np.arange(3, 9)),
    "another order": send_to(np.arange(5, -1, -1)),
    "an env twice": send_to(np.array([0, 0, 1, 2, 3, 4, 5]), 7),
    "out of range": send_to(np.arange(6, 13), 7),
    "negative": send_to(np.arange(-6, 0)),
    "floats": send_to(np.arange(6.0)),
    "no envs": send_to(np.array([], np.int64), 0),
    "a mask": send_to(np.arange(12) < 6),
    "a word": send_to("first"),
    "a number": send_to(3),
    "actions for another part": send_to(np.arange(6), 12),
    "the same part twice": lambda envs: [send_to(np.arange(6))(envs), send_to(np.arange(6))(envs)],
    "all while one is under way": lambda envs: [send_to(np.arange(6))(envs), envs.send(good(envs))],
    "step while one is under way": lambda envs: [send_to(np.arange(6, 12))(envs), envs.step(good(envs))],
}
OF_MASKS: dict[str, Mistake] = {
    "a list": masked([True] * 12),
    "numbers": masked(np.ones(12)),
    "too short": masked(np.ones(11, bool)),
    "a column": masked(np.ones((12, 1), bool)),
    "nobody": masked(np.zeros(12, bool)),
    "step after an end": again(lambda envs: envs.step(good(envs))),
    "send after an end": again(lambda envs: envs.send(good(envs))),
    "step after a reset of others": again(lambda envs: [masked(LAST_OF_SIX)(envs), envs.step(good(envs))]),
    "step after a reset of all others": again(lambda envs: [masked(np.arange(12) > 0)(envs), envs.step(good(envs))]),
}
KINDS = {
    "actions": OF_ACTIONS,
    "order": OF_ORDER,
    "arguments": OF_ARGUMENTS,
    "what cannot be sent": UNSENDABLE,
    "slices": OF_SLICES,
    "masks": OF_MASKS,
}


def made(envs: MPIVectorEnv, kind: str) -> Iterator[tuple[str, tuple[str, str, list[str]]]]:
    """Make all mistakes of a kind: name, and type and text of what was raised, and what is then not as it was."""
    before = record(envs, 3)
    for name, mistake in KINDS[kind].items():
        raised, text = "nothing", ""
        try:
            mistake(envs)
        except Exception as error:
            raised, text = type(error).__name__, str(error)
        with suppress(NoAsyncCallError):
            while True:
                envs.recv()
        yield name, (raised, text, differences(record(envs, 3), before))


def before_reset(envs: MPIVectorEnv) -> dict[str, tuple[str, str]]:
    """What is raised when envs are used that were never reset."""
    uses = {"step": lambda: envs.step(good(envs)), "send": lambda: envs.send(good(envs)), "recv": envs.recv}
    if envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED:
        uses["reset with a mask"] = lambda: masked(LAST_OF_SIX)(envs)
    found = {}
    for name, use in uses.items():
        try:
            use()
        except Exception as error:
            found[name] = type(error).__name__, str(error)
    return found
