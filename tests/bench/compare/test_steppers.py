"""Every system steps the same envs, and what is counted are env steps: rows that only reset are none."""

import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import reduce
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from jobs import job_environment

from mpi_rollout.bench.compare import steppers, turns
from mpi_rollout.bench.compare.makers import bare_on_all_cores
from mpi_rollout.bench.compare.setups import Setup, actions_of, maker_of
from mpi_rollout.bench.compare.steppers import BareStepper, FragmentStepper, PartsStepper, VectorStepper
from mpi_rollout.bench.compare.turns import BatchSystem, PartsSystem, RecordingSystem, Turn, take_turn

NUM_ENVS, SWEEPS = 6, 41
LENGTHS = 3 + np.arange(NUM_ENVS) % 5  # Of the episodes of `envs.Counting`, seeded with 0, 1, ...
NEXT_STEP = int((SWEEPS - SWEEPS // (LENGTHS + 1)).sum())  # Env steps of as many rows: one row in each episode resets.


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[BatchSystem]:
    if request.param.startswith("sb3_"):
        pytest.importorskip("stable_baselines3")
    found = maker_of(f"makers.{request.param}")(Setup("registered_envs:Counting-v0", NUM_ENVS, 2))
    yield found
    found.close()


@pytest.mark.parametrize("made", ["sync", "async_", "pool"], indirect=True)
def test_rows_that_only_reset_are_not_counted(made: BatchSystem):
    made.stepper.reset()
    sweeps = [made.stepper.sweep() for _ in range(SWEEPS)]
    assert made.stepper.count(sweeps[:7]) + made.stepper.count(sweeps[7:]) == NEXT_STEP


@pytest.mark.parametrize("made", ["sb3_dummy", "sb3_subproc"], indirect=True)
def test_where_the_step_that_ends_an_episode_resets_all_rows_are_counted(made: BatchSystem):
    made.stepper.reset()
    assert made.stepper.count([made.stepper.sweep() for _ in range(SWEEPS)]) == SWEEPS * NUM_ENVS


@pytest.mark.parametrize("made", ["bare"], indirect=True)
def test_the_bare_loop_counts_its_steps_and_resets_where_episodes_end(made: BatchSystem):
    made.stepper.reset()
    envs = [env.unwrapped for env in made.stepper._envs]
    before = [env.episode for env in envs]
    counted = [made.stepper.count([made.stepper.sweep()]) for _ in range(SWEEPS)]
    assert min(counted) > 0 and not any(each % NUM_ENVS for each in counted)
    num_steps = sum(counted) // NUM_ENVS
    assert [env.episode - start for env, start in zip(envs, before, strict=True)] == list(num_steps // LENGTHS)
    assert [env.step_number for env in envs] == list(num_steps % LENGTHS)


class Ticking(gymnasium.Env):
    """Its steps take as long as told, on a clock of its own."""

    def __init__(self, step_s: float):
        self.step_s, self.now_s = step_s, 0.0

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        self.now_s += self.step_s
        return 0, 0.0, False, False, {}


@pytest.mark.parametrize(
    ("step_s", "num_steps"),
    [
        (1.0, 1),  # Longer than the window: one is taken.
        (2.0**-6, 16),  # No more than fit in.
        (2.0**-11, 512),  # Two of them are just a look: 0.25 s are whole looks.
    ],
)
def test_looks_at_the_clock_are_no_further_apart_than_slow_envs_need(monkeypatch, step_s: float, num_steps: int):
    env = Ticking(step_s)
    for module in (steppers, turns):
        monkeypatch.setattr(module, "perf_counter", lambda: env.now_s)
    stepper = BareStepper([env], [[0]] * 1024)
    turn = take_turn(stepper, 0.25)
    assert turn.env_steps == num_steps and turn.seconds == num_steps * step_s


def test_fast_envs_are_stepped_several_times_between_two_looks_at_the_clock(monkeypatch):
    env = Ticking(1e-6)
    for module in (steppers, turns):
        monkeypatch.setattr(module, "perf_counter", lambda: env.now_s)
    turn = take_turn(BareStepper([env], [[0]] * 1024), 0.25)
    assert turn.env_steps == turn.sweeps * steppers.STEPS_PER_LOOK


def test_bare_loops_on_all_cores_add_their_rates():
    both = bare_on_all_cores(Setup("registered_envs:Counting-v0", NUM_ENVS, 2))
    turns = iter([Turn(0.1, 300, 1.0, 10), Turn(0.2, 400, 2.0, 20)])
    for connection, process in both._workers:
        process.kill()
        connection.close()
    both._workers = [(FakeConnection(turn), process) for turn, (_, process) in zip(turns, both._workers, strict=True)]
    assert both.take_turn(1.0) == Turn(0.2, 1000, 2.0, 20)


class FakeConnection:
    def __init__(self, turn):
        self.turn = turn

    def send(self, window_s):
        pass

    def recv(self):
        return self.turn


def test_the_sum_of_all_cores_is_taken_of_processes_that_step_their_share():
    both = bare_on_all_cores(Setup("registered_envs:Counting-v0", NUM_ENVS, 2))
    turn = both.take_turn(0.01)
    both.close()
    assert turn.env_steps > 0 and turn.seconds >= 0.01 and turn.reset_s > 0


def test_a_turn_resets_first_and_counts_no_sweep_of_the_warm_up():
    class Told:
        """Says what is asked of it."""

        def __init__(self):
            self.calls, self.number = [], 0

        def reset(self):
            self.calls.append("reset")

        def sweep(self):
            self.number += 1
            return self.number

        def count(self, sweeps):
            self.calls.append(list(sweeps))
            return 10 * len(sweeps)

    told = Told()
    turn = take_turn(told, 0.001)
    reset, warm_up, window = told.calls
    assert reset == "reset" and warm_up[0] == 1 and window[0] == warm_up[-1] + 1
    assert (turn.env_steps, turn.sweeps) == (10 * len(window), len(window))


def test_the_turn_of_who_records_ends_when_all_is_stored():
    class Storing:
        """Stores what it has at a reset, which takes time."""

        num_stored = num_steps = 0

        def reset(self):
            time.sleep(0.01)
            self.num_stored = self.num_steps

        def sweep(self):
            self.num_steps += 1
            return 1

        def count(self, sweeps):
            return len(sweeps)

        def close(self):
            pass

    storing = Storing()
    turn = RecordingSystem(storing).take_turn(0.001)
    assert storing.num_stored == storing.num_steps and turn.seconds >= 0.01
    assert 0 < turn.env_steps == turn.sweeps < storing.num_steps


def test_a_window_of_nothing_but_resets_goes_on_to_the_first_env_step():
    envs = SyncVectorEnv([lambda: gymnasium.make("registered_envs:Counting-v0")])
    stepper = VectorStepper(envs, actions_of(envs.single_action_space, 1))
    take_turn(stepper, 0.0)
    stepper.reset = lambda: stepper.count([stepper.sweep()])  # So that windows begin anywhere in an episode.
    turns = [take_turn(stepper, 0.0) for _ in range(6)]
    assert [turn.env_steps for turn in turns] == [1] * 6 and {turn.sweeps for turn in turns} == {1, 2}


class Queue:
    """Envs that come back two at a time, in the order in which they were sent; each ends every third row."""

    def __init__(self, num_envs: int):
        self.rows, self.all, self.flying = np.zeros(num_envs, int), np.arange(num_envs), deque()
        self.sent: list[tuple[np.ndarray, np.ndarray]] = []
        self.num_resets = 0

    def reset(self):
        assert not self.flying, "reset while envs are stepping"
        self.rows[:], self.num_resets = 0, self.num_resets + 1

    def send(self, actions, indices):
        indices = self.all if indices is None else indices
        self.sent.append((actions, indices))
        self.flying.extend(indices)

    def recv(self):
        indices = np.array([self.flying.popleft(), self.flying.popleft()])
        self.rows[indices] += 1
        return self.rows[indices] % 3 == 0, np.zeros(2, np.bool_), indices

    def close(self):
        assert not self.flying


def test_parts_are_sent_on_with_their_own_actions_and_their_resets_are_not_counted():
    parts, actions = Queue(4), np.arange(8).reshape(2, 4)
    stepper = PartsStepper(parts, 4, actions)
    stepper.reset()
    sweeps = [stepper.sweep() for _ in range(24)]  # 12 rows of each env: 4 ends, 3 resets after them and one to come.
    assert stepper.count(sweeps[:5]) + stepper.count(sweeps[5:]) == 48 - 4 * 3
    for given, indices in parts.sent[1:]:
        assert list(given % 4) == list(indices)
    stepper.close()
    assert not parts.flying


def test_the_reset_of_parts_has_no_step_in_its_time():
    """Neither one that was sent before it, of which `Queue` takes care, nor the first after it."""
    parts = Queue(4)
    made = PartsSystem(PartsStepper(parts, 4, np.arange(8).reshape(2, 4)))
    for num_resets in (1, 2):
        assert made.take_turn(0.001).env_steps > 0
        assert not parts.flying and parts.num_resets == num_resets
    num_sent = len(parts.sent)
    made.stepper.reset()
    assert len(parts.sent) == num_sent and not parts.flying


class Collecting(SyncVectorEnv):
    """Takes several steps at a time, as this program's envs do."""

    def collect(self, num_steps, actions):
        assert len(actions) == num_steps
        self.lengths.append(num_steps)
        ends = np.array([self.step(row)[2:4] for row in actions])
        return {"terminations": ends[:, 0], "truncations": ends[:, 1]}


@pytest.mark.parametrize(("fragment_s", "lengths"), [(100.0, [1, 1, 1, 1, 4, 4, 4, 16, 16]), (0.0, [1] * 9)])
def test_fragments_grow_while_they_are_short_and_count_as_single_steps_do(monkeypatch, fragment_s, lengths):
    monkeypatch.setattr(steppers, "FRAGMENT_S", fragment_s)
    envs = Collecting([lambda: gymnasium.make("registered_envs:Counting-v0")] * NUM_ENVS)
    envs.lengths = []
    actions = np.array(actions_of(envs.single_action_space, NUM_ENVS))
    stepper = FragmentStepper(envs, actions, len(actions), 16)
    stepper.reset()
    sweeps = [stepper.sweep() for _ in range(9)]
    assert envs.lengths == lengths
    episode_rows, num_rows = LENGTHS + 1, sum(lengths)
    expected = int((num_rows - num_rows // episode_rows).sum())
    assert stepper.count(sweeps[:5]) + stepper.count(sweeps[5:]) == expected
    stepper.close()


@pytest.mark.parametrize(
    ("maker", "source"),
    [
        ("native", "_envs.step"),
        ("envpool", "_envs.step"),
        ("envpool_1", "_envs.step"),
        ("envpool_by_parts", "_parts._envs.recv"),
    ],
)
def test_those_with_the_env_in_another_form_count_the_steps_that_their_rewards_tell(monkeypatch, maker, source):
    """CartPole gives 1 for each step, and nothing for a row that only resets."""
    if maker.startswith("envpool"):
        pytest.importorskip("envpool")
    made = maker_of(f"native_makers.{maker}")(Setup("CartPole-v1", 6, 2))
    made.stepper.reset()
    *path, method = source.split(".")
    holder = reduce(getattr, path, made.stepper)
    original, rewards = getattr(holder, method), []

    def noted(*arguments):
        outputs = original(*arguments)
        rewards.append(outputs[1].copy())
        return outputs

    monkeypatch.setattr(holder, method, noted)
    sweeps = [made.stepper.sweep() for _ in range(200)]
    num_rows = sum(map(len, rewards))
    assert made.stepper.count(sweeps) == sum(map(np.sum, rewards)) < num_rows
    made.close()


def test_minari_records_what_is_stepped(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    pytest.importorskip("jax")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    made = maker_of("makers.minari")(Setup("CartPole-v1", 1, 2))
    turn = made.take_turn(0.01)
    assert turn.env_steps > 0 and any(tmp_path.iterdir())
    made.close()


def test_all_systems_are_given_the_same_actions_of_which_each_env_has_its_own():
    space = gymnasium.make("registered_envs:Counting-v0").action_space
    few, many = actions_of(space, 2), actions_of(space, 5)
    assert all(np.array_equal(one, other[:2]) for one, other in zip(few, many, strict=True))
    assert len({tuple(row) for row in many}) > 1


RECORDING = """
import sys
from pathlib import Path
from mpi_rollout.exchange import world
from mpi_rollout.bench.compare.runs import run_on_ranks
world.start_mpi_on_all_ranks(60.0)
comm = world.comm_world()
system = {"env": "CartPole-v1", "form": "", "kind": "record"}
run_on_ranks(comm, system, 2, Path(sys.argv[1]), lambda found: print(found.take_turn(0.01).env_steps))
"""


def test_what_a_turn_that_was_ended_left_behind_is_in_no_other_recordings_way(tmp_path: Path):
    (tmp_path / "1.h5.part").write_text("half a file")
    command = [sys.executable, "-c", RECORDING, str(tmp_path)]
    done = subprocess.run(command, env=job_environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0 and not list(tmp_path.iterdir())
