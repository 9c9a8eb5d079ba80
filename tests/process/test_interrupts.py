"""Signals to ranks while a trainer has their envs: the root's are for the trainer, those of the others do nothing."""

import ctypes
import os
import signal
import threading
import time

import pytest
from jobs import Job, are_gone

from mpi_rollout.process.interrupts import unheeded

BEGIN = """
import os, signal, sys
import numpy as np
import mpi_rollout, mpi_rollout.process.interrupts
from mpi_rollout.exchange.world import claimed_rank
"""
STOPPED = """
class Stop(Exception): pass

def stop(number, frame):
    raise Stop

signal.signal(signal.SIGUSR1, stop)
with mpi_rollout.connect("CartPole-v1", 6) as envs:
    if envs is not None:
        envs.reset(seed=1)
        try:
            open("begun", "w").close()
            while True: envs.step(np.zeros(6, int))
        except Stop:
            envs.reset(seed=1)
            print(envs.step(np.zeros(6, int))[1].tolist())
            sys.exit(75)
"""


@pytest.mark.mpi(1, 3)
def test_a_trainer_stops_in_good_order_by_a_handler_that_raises(job: Job, num_ranks: int):
    """The launcher passes the signal on to all ranks."""
    running = job.start_script(num_ranks, BEGIN + STOPPED)
    running.wait_until((job.folder / "begun").exists)
    os.kill(running.pid, signal.SIGUSR1)
    result = running.finish()
    assert result.code == 75 and result.num_tracebacks == 0
    assert result.out == f"{[1.0] * 6}\n" and are_gone(job.folder)


@pytest.mark.mpi(3)
def test_signals_do_nothing_to_ranks_that_make_envs_or_serve_but_to_their_children(job: Job, num_ranks: int):
    program = """
import gymnasium, subprocess, time
class Parent(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.signal_all()
    def reset(self, **given):
        self.signal_all()
        return super().reset(**given)
    def signal_all(self):
        if claimed_rank():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1): os.kill(os.getpid(), number)
    def end_children(self):
        program = subprocess.Popen(["sleep", "60"])
        program.terminate()
        reader, writer = os.pipe()
        if (forked := os.fork()) == 0:
            os.write(writer, b".")
            while True: time.sleep(0.01)
        os.read(reader, 1)
        os.kill(forked, signal.SIGTERM)
        return program.wait(), os.waitpid(forked, 0)[1]
with mpi_rollout.connect(Parent, 6) as envs:
    if envs is not None:
        envs.reset(seed=1)
        print(set(envs.call("end_children")), envs.step(np.zeros(6, int))[1].sum())
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
"""
    result = job.script(num_ranks, BEGIN + program)
    assert (result.code, result.err, result.out) == (0, "", "{(-15, 15)} 6.0\n")


def test_who_interrupts_again_is_not_made_to_wait_for_a_long_step(job: Job):
    """And the handlers are the program's own again when the envs are closed."""
    program = """
import gymnasium, time
mpi_rollout.process.interrupts.SAME_S = 0.0
class Long(gymnasium.Wrapper):
    def __init__(self): super().__init__(gymnasium.make("CartPole-v1"))
    def step(self, action):
        if action:
            for _ in range(2): signal.raise_signal(signal.SIGINT)
            time.sleep(60)
        return super().step(action)
    def think(self): self.step(1)
envs = mpi_rollout.connect(Long, 3)
for use in (lambda: envs.step(np.array([0, 1, 0])), lambda: envs.call("think")):
    before = envs.reset(seed=3)[0]
    try: use()
    except KeyboardInterrupt: print("interrupted")
    assert np.array_equal(envs.reset(seed=3)[0], before)
    print(envs.step(np.zeros(3, int))[1].tolist())
envs.close()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
    result = job.script(None, BEGIN + program)
    assert (result.code, result.err) == (0, "")
    assert result.out == "interrupted\n[1.0, 1.0, 1.0]\n" * 2


@pytest.mark.any_mpi
@pytest.mark.mpi(1, 2)
def test_envs_whose_close_is_interrupted_are_closed_all_the_same(job: Job, num_ranks: int):
    """Once, which cuts nothing short, and twice, which ends a close that takes long."""
    program = """
import gymnasium, time
class Slow(gymnasium.Wrapper):
    def __init__(self): super().__init__(gymnasium.make("CartPole-v1"))
    def close(self):
        if claimed_rank(): return
        signal.raise_signal(signal.SIGINT)
        if mpi_rollout.process.interrupts.SAME_S == 0.0:  # So the next one is a second one.
            signal.raise_signal(signal.SIGINT)
            time.sleep(60)
for mpi_rollout.process.interrupts.SAME_S in (60.0, 0.0):
    with mpi_rollout.connect(Slow, 2) as envs:
        if envs is not None:
            envs.reset(seed=1)
            try: envs.close()
            except KeyboardInterrupt: print("interrupted", envs.closed)
            envs.close()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
    result = job.script(num_ranks, BEGIN + program)
    assert (result.code, result.out) == (0, "interrupted True\n" * 2), result.err


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_the_infos_of_an_interrupted_reset_are_not_those_of_the_next(job: Job, num_ranks: int):
    program = """
import gymnasium
class Telling(gymnasium.Wrapper):
    def reset(self, *, seed=None, options=None):
        if seed == 10 and claimed_rank() == 0: os.kill(os.getpid(), signal.SIGINT)
        return self.env.reset(seed=seed)[0], {"seed": seed}
with mpi_rollout.connect(lambda: Telling(gymnasium.make("CartPole-v1")), 4) as envs:
    if envs is not None:
        for seed in (10, 20):
            try:
                print(envs.reset(seed=seed)[1]["seed"])
            except KeyboardInterrupt:
                print("interrupted")
"""
    result = job.script(num_ranks, BEGIN + program)
    assert (result.code, result.out) == (0, "interrupted\n[20 21 22 23]\n"), result.err


def test_ctrl_c_does_not_wait_for_a_trainer_in_another_thread(job: Job):
    """Its handler is called in the main thread, amid whatever the other one does."""
    program = """
import gymnasium, threading
class Waiting(gymnasium.Wrapper):
    def __init__(self): super().__init__(gymnasium.make("CartPole-v1"))
    def step(self, action):
        begun.set()
        assert interrupted.wait(20)
        return super().step(action)
begun, interrupted = threading.Event(), threading.Event()
envs = mpi_rollout.connect(Waiting, 2)
envs.reset(seed=1)
trainer = threading.Thread(target=envs.step, args=(np.zeros(2, int),))
trainer.start()
begun.wait()
try:
    signal.raise_signal(signal.SIGINT)
    print("nothing")
except KeyboardInterrupt: print("interrupted")
interrupted.set()
trainer.join()
print(envs.step(np.zeros(2, int))[1].tolist())
"""
    result = job.script(None, BEGIN + program)
    assert (result.code, result.err, result.out) == (0, "", "interrupted\n[1.0, 1.0]\n")


def test_a_handler_that_was_saved_in_a_connection_and_put_back_after_it_calls_the_programs_own(job: Job):
    program = """
with mpi_rollout.connect("CartPole-v1", 2) as envs:
    envs.reset()
    saved = signal.getsignal(signal.SIGINT)
signal.signal(signal.SIGINT, saved)
try: signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt: print("interrupted")
"""
    result = job.script(None, BEGIN + program)
    assert (result.code, result.err, result.out) == (0, "", "interrupted\n")


def test_a_connection_that_was_not_made_does_not_keep_the_handlers(job: Job):
    program = """
import mpi_rollout.train.vector_env
set_spaces = mpi_rollout.train.vector_env.set_spaces
del mpi_rollout.train.vector_env.set_spaces
try: mpi_rollout.connect("CartPole-v1", 2)
except NameError: pass
mpi_rollout.train.vector_env.set_spaces = set_spaces
with mpi_rollout.connect("CartPole-v1", 2) as envs: envs.reset()
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
"""
    result = job.script(None, BEGIN + program)
    assert (result.code, result.err) == (0, "")


@pytest.mark.any_mpi
@pytest.mark.mpi(2)
def test_connecting_in_a_thread_of_another_rank_than_the_root_is_refused(job: Job, num_ranks: int):
    program = """
import threading
def train():
    with mpi_rollout.connect("CartPole-v1", 4): pass
thread = threading.Thread(target=train, name="trainer")
thread.start()
thread.join()
"""
    result = job.script(num_ranks, BEGIN + program)
    assert "UsageError: rank 1 (" in result.err
    assert "connect must be called in the main thread of all ranks but rank 0, got thread trainer" in result.err


def test_a_thread_that_must_not_use_mpi_is_told_so(job: Job):
    program = """
import threading, mpi4py
mpi4py.rc.thread_level = "funneled"
from mpi4py import MPI
def train():
    try: mpi_rollout.connect("CartPole-v1", 4)
    except Exception as error: print(error)
thread = threading.Thread(target=train)
thread.start()
thread.join()
"""
    result = job.script(None, BEGIN + program)
    assert result.out.startswith("MPI was started for one thread only (mpi4py.rc.thread_level is funneled)"), result.err


def test_a_signal_that_does_nothing_does_not_interrupt_c_code_either():
    """A read of C is one such call: after a signal it would return -1."""
    before, main, (reader, writer) = signal.getsignal(signal.SIGINT), threading.get_ident(), os.pipe()

    def disturb() -> None:
        time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.05)
        os.write(writer, b"x")

    with unheeded():
        threading.Thread(target=disturb).start()
        num_read = ctypes.CDLL(None).read(reader, ctypes.create_string_buffer(1), 1)
    assert num_read == 1 and signal.getsignal(signal.SIGINT) is before
    os.close(reader), os.close(writer)
