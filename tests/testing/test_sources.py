"""Our own sources of actions keep the contract of `Source`, and the test of it notices those that do not."""

import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from block_policies import Sampling
from envs import Nested
from gymnasium import spaces

from mpi_rollout.drive.actions import ModelActions, PolicyActions, RandomActions, RankActions
from mpi_rollout.drive.source import Choice, Source
from mpi_rollout.policies.action_check import ActionReader
from mpi_rollout.policies.blocks import BlockPolicy
from mpi_rollout.policies.model import made_model
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.testing.sources import ENVS, check_source

SEEN, ACTIONS = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
NUM_ENVS = ENVS[-1].stop


def by_sign(observations: np.ndarray) -> np.ndarray:
    return (observations[:, 0] > 0).astype(np.int64)


def planning(num_steps: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda observations: np.stack([by_sign(observations + step) for step in range(num_steps)])


def asking(policy: Callable, most: int = 1) -> Callable[[Sequence[range]], Source]:
    return lambda envs: PolicyActions(policy, envs, ACTIONS, ActionReader(ACTIONS), most)


def of_model(envs: Sequence[range]) -> Source:
    def make(indices: range) -> BlockPolicy:
        return BlockPolicy(made_model(Sampling(), "it"), SEEN, ACTIONS, indices, block=4)

    return ModelActions(make, envs, ActionReader(ACTIONS))


OURS = {
    "random": lambda envs: RandomActions(RandomPolicy(ACTIONS, range(NUM_ENVS), 3)),
    "on ranks": lambda envs: RankActions(),
    "a callable": asking(by_sign),
    "plans": asking(planning(7), 5),
    "a model": of_model,
}


@pytest.mark.parametrize("make", OURS.values(), ids=OURS)
def test_our_sources_keep_the_contract(make: Callable[[Sequence[range]], Source]):
    check_source(make, SEEN, ACTIONS)


def test_random_actions_of_any_space_keep_it():
    space = Nested.action_space
    check_source(lambda envs: RandomActions(RandomPolicy(space, range(NUM_ENVS), 3)), SEEN, space)


class Wrong:
    """What is right but for one thing: draws from (env, step)."""

    is_on_ranks = False

    def actions(self, spans, _shown):
        for span in spans:
            yield Choice(span, [self.drawn(span)])

    def drawn(self, span):
        steps = np.arange(span.step, span.step + span.num_steps)[:, None]
        return (steps + np.array(span.envs)) % 2


class Forgetful(Wrong):
    def actions(self, spans, shown):
        yield from super().actions(spans[:1], shown)


class Twice(Wrong):
    def actions(self, spans, shown):
        yield from super().actions([*spans, spans[0]], shown)


class ByCalls(Wrong):
    num_calls = 0

    def drawn(self, span):
        self.num_calls += 1
        return super().drawn(span) * (self.num_calls % 3 == 0)


class Narrow(Wrong):
    def drawn(self, span):
        return super().drawn(span).astype(np.int8)


class Outside(Wrong):
    def drawn(self, span):
        return super().drawn(span) + 1


class Long(Wrong):
    def drawn(self, span):
        return super().drawn(span._replace(num_steps=span.num_steps + 1))


class Undecided(Wrong):
    is_on_ranks = True


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Forgetful, "a choice for each span must be given, got none for"),
        (Twice, "a choice for each span must be given, once"),
        (ByCalls, "what it gives must not depend on the lengths of spans: env"),
        (Narrow, "must be int64 of shape"),
        (Outside, "must be in Discrete(2)"),
        (Long, "must get actions of 1 to"),
        (Undecided, "actions are None just where is_on_ranks is True"),
    ],
)
def test_a_source_that_breaks_it_is_told(kind: type, words: str):
    check_source(lambda envs: Wrong(), SEEN, ACTIONS)
    with pytest.raises(AssertionError, match=re.escape(words)):
        check_source(lambda envs: kind(), SEEN, ACTIONS)
