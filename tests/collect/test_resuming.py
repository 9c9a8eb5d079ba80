"""What decides whether an env did again what is recorded."""

from types import SimpleNamespace

import numpy as np
import pytest
from gymnasium import spaces

from mpi_rollout.collect import resuming
from mpi_rollout.collect.resuming import bring_back, check_promise, load, note, rows_differ, say_resumed
from mpi_rollout.core.layout import Block
from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.envs.replaying import Past
from mpi_rollout.errors import UsageError
from mpi_rollout.exchange.exchange import Command


@pytest.mark.parametrize("place", [(0, 0, 0), (0, 1, 1), (2, 0, 1), (2, 1, 0)])
def test_a_row_differs_if_one_of_its_bytes_does(place: tuple[int, int, int]):
    first = np.arange(12, dtype=np.int64).reshape(3, 2, 2)
    second = first.copy()
    assert rows_differ(first, second).tolist() == [False] * 3
    second[place] ^= 1 << 40
    assert rows_differ(first, second).tolist() == [row == place[0] for row in range(3)]


def test_nan_is_equal_to_itself_and_zero_is_not_minus_zero():
    first, second = np.array([np.nan, 0.0, 1.0]), np.array([np.nan, -0.0, 1.0])
    assert rows_differ(first, second).tolist() == [False, True, False]


def test_a_history_that_would_take_longer_than_half_an_hour_is_refused_once_that_can_be_told():
    resuming.check_history(5.0, 1, 10**9, "go")  # It is too early to tell.
    resuming.check_history(6.0, 10, 3000, "go")
    with pytest.raises(UsageError, match=r"all of their 3,010 steps, .* take 30 minutes .* 30 are the most; go$"):
        resuming.check_history(6.0, 10, 3010, "go")


SPACE = spaces.Box(0, 1e6, (), np.float64)
NUM_STEPS = 9


class Recording:
    """A run of three envs that stood after 9 steps; observation t of env i is 10 * t + i.  And one that replays it.

    `other` has (env, step) at which the replayed env observes something else.
    """

    def __init__(self, starts: list[int], other: set[tuple[int, int]] = frozenset()):
        rows, envs = np.arange(NUM_STEPS + 1)[:, None], np.arange(3)
        data = {
            "observations": 10.0 * rows + envs,
            "actions": (rows + envs)[:-1] % 5,
            "rewards": (rows * 1.0 - envs)[:-1],
        }
        data |= {name: np.zeros((NUM_STEPS, 3), bool) for name in ("terminations", "truncations")}
        self.file, self.other = {"trajectories": data}, other
        self.past = SimpleNamespace(
            starts=np.array(starts), num_steps=NUM_STEPS, first_step=min(min(starts), NUM_STEPS)
        )
        self.now = Block(SPACE, spaces.Discrete(5), 3, 1, 1)
        self.orders: list[tuple] = []
        destination = SimpleNamespace(
            lay_observations=lambda row: None, lay_results=lambda row: None, unpack=lambda start, stop: self._lay()
        )
        self.driver = SimpleNamespace(
            block=lambda num_rows: self.now, observation_space=SPACE, action_space=spaces.Discrete(5), num_envs=3,
            do=self._do, call_ranks=lambda *order: self.orders.append(order), restarts=["old"],
            destinations=lambda block: {"lane": destination},
        )  # fmt: skip
        self._next = self.now.observations[0].copy(), self.now.rewards[0].copy()

    def _do(self, command: Command, argument: object, actions: np.ndarray | None = None) -> None:
        data, envs = self.file["trajectories"], np.arange(3)
        if command == Command.RESTORE:
            self._next = data["observations"][self.past.starts.clip(max=NUM_STEPS), envs], np.zeros(3)
            return
        assert command == Command.REPLAY and actions.tolist() == data["actions"][argument].tolist()
        observations = data["observations"][argument + 1].copy()
        for env, step in self.other:
            observations[env] += step == argument
        held = self.past.starts > argument
        observations[held] = data["observations"][self.past.starts.clip(max=NUM_STEPS), envs][held]
        self._next = observations, np.where(held, -99.0, data["rewards"][argument])

    def _lay(self) -> None:
        self.now.observations[0], self.now.rewards[0] = self._next


@pytest.mark.parametrize("nbytes", [1, 100, 2**24])
def test_envs_that_do_the_same_again_come_back(monkeypatch: pytest.MonkeyPatch, nbytes: int):
    """One env is amid an episode since step 2, one since step 6, and one has just ended."""
    monkeypatch.setattr(resuming, "REPLAY_NBYTES", nbytes)
    recording, looks = Recording([2, 6, NUM_STEPS + 1]), []
    assert bring_back(recording.driver, recording.past, recording.file, lambda: looks.append(1)) == {}
    assert len(looks) == 7 and recording.driver.restarts == []
    assert recording.orders == [("end_replay", []), ("seed_again", NUM_STEPS)]


def test_an_env_that_does_something_else_is_lost_from_there_on():
    recording = Recording([2, 6, 3], {(0, 4), (0, 7), (1, 5), (1, 6), (2, 3)})
    lost = bring_back(recording.driver, recording.past, recording.file, lambda: None)
    assert lost == {0: 4, 1: 6, 2: 3}
    assert recording.orders[0] == ("end_replay", [0, 1, 2])


def test_an_env_that_begins_otherwise_is_lost_from_its_beginning():
    recording = Recording([2, 6, NUM_STEPS + 1])
    recording.file["trajectories"]["observations"] = recording.file["trajectories"]["observations"].copy()
    reset = recording._do

    def do(command: Command, argument: object, actions: object = None) -> None:
        reset(command, argument, actions)
        if command == Command.RESTORE:
            recording._next[0][1:] += 0.5

    recording.driver.do = do
    assert bring_back(recording.driver, recording.past, recording.file, lambda: None) == {1: 6}


def test_the_first_difference_of_an_env_is_kept():
    lost = {1: 5}
    note(lost, np.array([True, True, False]), np.array([7, 8, 9]))
    assert lost == {0: 7, 1: 5}


@pytest.mark.parametrize("start", [4, 8])
def test_a_block_is_filled_with_what_there_is_and_the_end_of_lost_episodes(start: int):
    recording = Recording([2, 6, 3])
    block = Block(SPACE, spaces.Discrete(5), 3, 1, 8)
    block.start = start
    load(block, recording.past, {2: 5, 0: 7}, recording.file)
    data, num_rows = recording.file["trajectories"], NUM_STEPS - start
    assert block.observations[: num_rows + 1].tolist() == data["observations"][start:].tolist()
    assert block.rewards[:num_rows].tolist() == data["rewards"][start:].tolist()
    assert block.truncations[num_rows - 1].tolist() == [True, False, True] and block.truncations.sum() == 2
    assert not block.rewards[num_rows:].any()


def test_a_block_that_begins_at_the_last_observation_has_no_step():
    recording = Recording([2, 6, 3])
    block = Block(SPACE, spaces.Discrete(5), 3, 1, 8)
    block.start = NUM_STEPS
    load(block, recording.past, {2: 5}, recording.file)
    assert block.observations[0].tolist() == [90, 91, 92] and not block.truncations.any()


def test_the_user_is_told_from_where_the_run_goes_on(capfd: pytest.CaptureFixture):
    lost = dict.fromkeys(range(10), 5)
    say_resumed("run.h5.part", SimpleNamespace(num_steps=1200, first_step=1199), 5000, lost, 0.25)
    first, *others = capfd.readouterr().err.splitlines()
    assert first == "mpi_rollout: continuing run.h5.part after 1,200 of 5,000 steps; took 1 step again in 0.2 s"
    assert len(others) == 8 and others[0].startswith("mpi_rollout: env 0 did not reproduce step 5: its running episode")


def test_envs_that_promise_something_else_than_before_are_refused():
    past = Past(0, 3, np.zeros(2, int), np.zeros(2, int), Reproducibility.ENV)
    check_promise(past, Reproducibility.ENV, "run.h5.part")
    with pytest.raises(UsageError, match=r"run\.h5\.part is of envs that promised env .* these promise episode"):
        check_promise(past, Reproducibility.EPISODE, "run.h5.part")
