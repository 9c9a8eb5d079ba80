"""`collect` of a trainer's envs, in one process: what as many calls of `step` give."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from envs import Counting, Nested
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError, ResetNeeded

import mpi_rollout
from mpi_rollout.core.spaces import leaves
from mpi_rollout.errors import ActionError, RankError


class Trailing(gymnasium.Env):
    """Its info is a list that it goes on writing to."""

    observation_space, action_space = spaces.Box(0, 1e6, (1,)), spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.trail: list[int] = []
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.trail.append(len(self.trail))
        return np.full(1, len(self.trail), np.float32), float(action), False, False, {"trail": self.trail}


def row(space: spaces.Space, tree: Any, step: int) -> list[bytes]:
    return [leaf.of(tree)[step].tobytes() for leaf in leaves(space)]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize("make", [Counting, Nested])
@pytest.mark.parametrize("infos", ["none", "all"])
def test_a_fragment_is_as_many_steps(make: type, mode: str, infos: str):
    def connected() -> Any:
        return mpi_rollout.connect([make] * 3, autoreset_mode=mode, infos=infos)

    with connected() as envs:
        observed, actor = envs.single_observation_space, envs.single_action_space
        envs.reset(seed=4)
        batches = [envs.collect(num_steps) for num_steps in (9, 2, 30)]
    assert sum((batch["terminations"] | batch["truncations"]).sum() for batch in batches)
    with connected() as envs:
        observations, _ = envs.reset(seed=4)
        for batch in batches:
            for step in range(len(batch["rewards"])):
                assert row(observed, batch["observations"], step) == parts(observed, observations)
                observations, *results, told = envs.step(_tree(actor, batch["actions"], step))
                for name, result in zip(("rewards", "terminations", "truncations"), results, strict=True):
                    assert batch[name][step].tobytes() == result.tobytes()
                assert repr(batch["infos"][step]) == repr(told)
            assert parts(observed, batch["last_observations"]) == parts(observed, observations)


def parts(space: spaces.Space, tree: Any) -> list[bytes]:
    return [leaf.of(tree).tobytes() for leaf in leaves(space)]


def _tree(space: spaces.Space, tree: Any, step: int) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _tree(part, tree[name], step) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_tree(part, of_part, step) for part, of_part in zip(space, tree, strict=True))
    return tree[step]


def test_infos_are_as_they_were_in_their_step():
    with mpi_rollout.connect([Trailing] * 2, infos="all") as envs:
        envs.reset(seed=0)
        batch = envs.collect(3)
        assert [told["trail"][0] for told in batch["infos"]] == [[0], [0, 1], [0, 1, 2]]


def test_envs_that_are_not_reset_keep_their_observations_when_slots_grow():
    with mpi_rollout.connect([Counting] * 3) as envs:
        before, _ = envs.reset(seed=1)
        with pytest.raises(ActionError, match=r"in row 1 of the actions, .* for env 2 "):
            envs.collect(3, np.array([[2, 2, 2], [2, 2, 99], [2, 2, 2]]))
        after, _ = envs.reset(options={"reset_mask": np.array([True, False, False])})
        assert after[1:].tobytes() == np.asarray(before)[1:].tobytes() and np.asarray(before)[1:].any()


@pytest.mark.parametrize("actions", [np.zeros((3, 2), np.int64), np.full((2, 3), 2), np.full((3, 3, 1), 2), [2, 2, 2]])
def test_actions_of_another_shape_are_refused(actions: Any):
    with mpi_rollout.connect([Counting] * 3) as envs:
        envs.reset(seed=1)
        with pytest.raises(ActionError, match=r"^actions must be of shape \(3, 3, \.\.\.\), got "):
            envs.collect(3, actions)
        assert envs.collect(3, np.full((3, 3), 2, np.int32))["actions"].dtype == np.int64


def test_what_is_called_amid_a_fragment_is_refused_with_the_way_out():
    with mpi_rollout.connect("CartPole-v1", 3) as envs:
        with pytest.raises(ResetNeeded):
            envs.collect(2)
        envs.reset(seed=1)
        with pytest.raises(NoAsyncCallError, match="call collect_async first"):
            envs.collect_wait()
        envs.collect_async(4)
        for call in (
            envs.recv,
            envs.reset,
            lambda: envs.collect(2),
            lambda: envs.step(np.ones(3, np.int64)),
            lambda: envs.send(np.ones(3, np.int64)),
        ):
            with pytest.raises(AlreadyPendingCallError, match=r"call collect_wait\(\)"):
                call()
        assert len(envs.collect_wait()["rewards"]) == 4
        for wrong in (0, -1, 1.5, np.full((2, 3), 2)):
            with pytest.raises(ValueError, match="num_steps must be an int of at least 1"):
                envs.collect(wrong)


def test_without_autoreset_an_end_amid_a_fragment_makes_it_void():
    with mpi_rollout.connect([Counting] * 3, autoreset_mode="disabled") as envs:
        envs.reset(seed=1)
        with pytest.raises(RankError, match=r"the fragment is void: call reset\(\) for all envs"):
            envs.collect(200)
        envs.reset(seed=1)
        assert len(envs.collect(2)["rewards"]) == 2
