"""Single envs are replaced, called and closed, each by itself."""

import gymnasium
import pytest
from envs import Counting, Defaulting, Failing
from gymnasium import wrappers

from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.envs.faults import EnvTimeout, OnFault
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import SignalInterrupt

ACTIONS = [2, 2, 2]


class Closing(Counting):
    """Raises something when it is closed."""

    def __init__(self, error: BaseException | None, closed: list[int], number: int):
        super().__init__()
        self.error, self.closed, self.number = error, closed, number

    def close(self) -> None:
        self.closed.append(self.number)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize(
    ("errors", "closed"),
    [
        ([None, None, None], [0, 1, 2]),
        ([ValueError("first"), KeyError("second"), None], [0, 1, 2]),
        ([None, EnvTimeout("took long"), None], [0, 1]),
        ([SignalInterrupt("stop"), None, None], [0]),
    ],
    ids=["well", "two fail", "one hangs", "interrupted"],
)
def test_all_envs_are_closed_unless_one_takes_too_long(errors: list, closed: list[int]):
    seen: list[int] = []
    loop = LoopVectorEnv([lambda n=n, error=error: Closing(error, seen, n) for n, error in enumerate(errors)])
    first = next((error for error in errors if error is not None), None)
    if first is None:
        loop.close_extras()
    else:
        with pytest.raises(type(first)) as raised:
            loop.close_extras()
        assert raised.value is first
    assert seen == closed


def test_the_time_limit_of_a_new_env_counts_from_its_reset():
    made: list[gymnasium.Env] = []

    def make() -> gymnasium.Env:
        env, limit = (Counting(), 2) if made else (Failing(after=2), 100)
        made.append(wrappers.TimeLimit(env, limit))
        return made[-1]

    loop = LoopVectorEnv([make], on_fault=OnFault(max_restarts=1))
    loop.reset(seed=4)  # An episode of 7 steps.
    truncations = [bool(loop.step(ACTIONS[:1])[3][0]) for _ in range(6)]
    assert len(made) == 2 and truncations == [False, False, True, False, False, True]


def test_an_env_is_described_by_its_step_episode_and_seed():
    loop = LoopVectorEnv([Counting] * 2, seeds=[iter([5, 6]), iter([7, 8])], first_env_index=10)
    assert loop.describe_work(1, "step") == "env 11, reset"
    loop.reset()
    assert loop.describe_work(1, "step") == "env 11, reset (episode 0, seed 7)"
    loop.step(ACTIONS[:2])
    loop.step(ACTIONS[:2])
    assert loop.describe_work(0, "step") == "env 10, step 1 of its episode (episode 0, seed 5)"
    loop.seed_episodes(0, iter([9]), 4)
    loop.reset()
    assert loop.describe_work(0, "step") == "env 10, reset (episode 4, seed 9)"


def test_a_close_and_the_making_of_another_env_are_not_told_as_a_reset():
    seen: list[str] = []

    class Asking(Failing):
        def __init__(self):
            super().__init__(after=0)
            self.note()

        def note(self) -> None:
            for loop in loops:
                place, call, _ = loop.at_work()
                seen.append(loop.describe_work(place, call[0]))

        def reset(self, **options: object):
            self.note()
            return super().reset(**options)

        def close(self):
            self.note()

    loops: list[LoopVectorEnv] = []
    loops.append(LoopVectorEnv([Asking] * 2, on_fault=OnFault(max_restarts=9), first_env_index=4))
    loops[0].reset(seed=0)
    assert seen == ["env 4, reset", "env 5, reset"]
    seen.clear()
    loops[0].step(ACTIONS[:2])
    assert seen[:3] == ["env 4, close", "env 4, made again", "env 5, close"]
    seen.clear()
    loops[0].close()
    assert seen == ["env 4, close", "env 5, close"]


def test_the_call_under_way_is_told_to_who_asks():
    seen: list[object] = []

    class Asking(Counting):
        def reset(self, **options: object):
            seen.append(loops and loops[0].at_work())
            return super().reset(**options)

        def step(self, action: int):
            seen.append(loops[0].at_work())
            return super().step(action)

    loops: list[LoopVectorEnv] = []
    loops.append(LoopVectorEnv([Asking] * 2))
    assert loops[0].at_work() is None
    loops[0].reset(seed=0)
    assert [call[0] for call in seen] == [0, 1] and all(call[2] == 1.0 for call in seen)
    assert len({call[1] for call in seen}) == 2 and loops[0].at_work() is None
    seen.clear()
    loops[0].step(ACTIONS[:2])
    assert [(call[0], call[1][0], call[1][2]) for call in seen] == [(0, "step", 0), (1, "step", 1)]
    assert loops[0].at_work() is None


def test_some_envs_are_called_by_name_in_the_order_that_is_asked_for():
    loop = LoopVectorEnv([Counting] * 3)
    loop.reset(seed=[3, 4, 5])
    assert loop.call_some([2, 0], "get_wrapper_attr", "seed") == (5, 3)
    loop.set_some([2, 0], "seed", [8, 9])
    assert loop.call_some([0, 1, 2], "seed") == (9, 4, 8)


MAKES = {
    "env": (Defaulting, 1),
    "time limit": (lambda: wrappers.TimeLimit(Defaulting(), 100), -1),
    "wrapper": (lambda: gymnasium.Wrapper(Defaulting()), -1),
}


@pytest.mark.parametrize("kind", MAKES)
def test_an_episode_that_nobody_asked_for_has_the_envs_default_options_unless_a_wrapper_passes_on_none(kind: str):
    """As in Gymnasium, where wrappers have defaults of their own.  The env observes how many options it was given."""
    make, expected = MAKES[kind]
    loop = LoopVectorEnv([make], seeds=[episode_seeds(0, 0)])
    assert loop.reset()[0][0, 0] == -1
    for _ in range(20):
        observations, *_ = loop.step([2])
    assert observations[0, 0] == expected
