"""Threads that share the envs of one connection: `python calling_threads.py share|leave|hang|cut`.

The env echoes its action, so a step of another call is seen.
"""

import ctypes
import sys
import threading
import time
from itertools import count

import gymnasium
import numpy as np
from gymnasium.spaces import Box

import mpi_rollout

NUM_ENVS, NUM_CALLS = 4, 60
WIDE = Box(-1e9, 1e9, (1,), np.float64)


class Echo(gymnasium.Env):
    """Shows the action, after the time that an action above 1000 asks for."""

    observation_space = action_space = WIDE
    name = "echo"

    def reset(self, *, seed=None, options=None):
        return np.zeros(1), {}

    def step(self, action):
        time.sleep(max(0.0, action[0] - 1000))
        return action.copy(), float(action[0]), False, False, {}


def actions_of(number: float) -> np.ndarray:
    return np.full((NUM_ENVS, 1), float(number))


def is_whole(envs, number: int) -> bool:
    """Step, and tell whether what came back is this call's own."""
    observations, rewards, *_ = envs.step(actions_of(number))
    return bool((observations == number).all() and (rewards == number).all())


def share(envs) -> list[str]:
    """Let three threads call one connection; return what went wrong."""
    wrong: list[str] = []

    def call(do) -> None:
        try:
            wrong.extend(f"{do.__name__} {number}" for number in range(NUM_CALLS) if not do(number))
        except BaseException as error:
            wrong.append(repr(error))

    def steps(number: int) -> bool:
        return is_whole(envs, -number - 1)

    def attributes(number: int) -> bool:
        return envs.get_attr("name") == ("echo",) * NUM_ENVS

    envs.reset()
    threads = [threading.Thread(target=call, args=[do]) for do in (steps, attributes)]
    for thread in threads:
        thread.start()
    call(lambda number: is_whole(envs, number))
    for thread in threads:
        thread.join()
    return wrong


def leave(envs) -> None:
    """Close the envs while another thread steps."""
    envs.reset()
    has_begun = threading.Event()

    def step() -> None:
        for number in count():
            try:
                envs.step(actions_of(0))
            except gymnasium.error.ClosedEnvironmentError:
                print(f"closed after {min(number, 1)}", flush=True)
                return
            has_begun.set()

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    has_begun.wait()
    envs.close()
    thread.join()


def hang(envs) -> None:
    """Leave the envs while another thread is in a step that does not end."""
    envs.reset()
    threading.Thread(target=envs.step, args=[actions_of(10_000)], daemon=True).start()
    while not envs.interrupts.calls.is_of_another_thread:
        time.sleep(0.01)


class Stopped(Exception):
    """What one thread raises in another."""


def cut(envs) -> None:
    """Raise an exception in a thread that waits for the other rank, as libraries for time limits do."""
    envs.reset()
    errors = []

    def step() -> None:
        try:
            envs.step(np.array([[0.0], [0.0], [0.0], [1001.0]]))
        except Stopped as error:
            errors.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    time.sleep(0.3)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stopped))
    thread.join()
    try:
        envs.step(actions_of(0))
    except gymnasium.error.ClosedEnvironmentError as error:
        print(len(errors), error, flush=True)


def main(what: str) -> None:
    with mpi_rollout.connect(Echo, NUM_ENVS) as envs:
        if envs is None:
            return
        if what == "share":
            print(share(envs), flush=True)
        elif what == "leave":
            leave(envs)
        elif what == "cut":
            cut(envs)
        else:
            hang(envs)


if __name__ == "__main__":
    main(sys.argv[1])
