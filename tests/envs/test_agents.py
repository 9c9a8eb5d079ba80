"""A ParallelEnv in the loop: names are compared, and what does not act is stored as nothing."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

pytest.importorskip("pettingzoo")
from noticing import note_only, noted
from pettingzoo import ParallelEnv

from mpi_rollout.core.columns import RESULTS
from mpi_rollout.envs.agents import AgentsEnv
from mpi_rollout.envs.loop import LoopVectorEnv
from mpi_rollout.errors import DataError, UsageError

A, B = np.float32([2, 3]), np.float32([4, 5])


class Said(ParallelEnv):
    """Gives what it was made with, in place of what is right; observations are within 1 and 9."""

    def __init__(self, names: Any = ("a", "b"), **given: Any):
        self.metadata, self.possible_agents, self.given = {"name": "said"}, [*names], given
        self.shown = {"observations": {"a": A, "b": B}, "agents": [*names]}

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(1, 9, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None):
        self.agents = self.shown["agents"]
        return self.shown["observations"], {}

    def step(self, actions: dict[str, Any]):
        self.acted = actions
        said = {leaf.path: {"a": 0, "b": 0} for leaf in RESULTS} | {"infos": {}}
        said |= self.shown | self.given
        self.agents = said["agents"]
        return [said[name] for name in ("observations", "rewards", "terminations", "truncations", "infos")]


BOTH = {"a": 1, "b": 0}
REFUSED = {
    "a reward of a ghost in a's place": (
        {"rewards": {"ghost": 5, "b": 1}},
        "its rewards have 'ghost', which is not in",
    ),
    "a ghost's reward besides": (
        {"rewards": {**BOTH, "ghost": 1}},
        r"in possible_agents \(a, b.*\); name all agents there",
    ),
    "RLlib's sum": (
        {"rewards": {"__all__": 2, "b": 1}},
        "have '__all__', .* RLlib's envs have such a key, .* leave it out",
    ),
    "RLlib's end": ({"terminations": {**BOTH, "__all__": True}}, "its terminations have '__all__'"),
    "a ghost's end": ({"truncations": {"ghost": True, "a": 0}}, "its truncations have 'ghost'"),
    "a ghost's observation": ({"observations": {"ghost": A, "b": B}}, "its observations have 'ghost'"),
    "an info that connect adds": ({"infos": {"alive": {"x": 1}}}, "its infos have 'alive', which connect says of"),
    "a missing reward": ({"rewards": {"b": 1}}, "its agent 'a' acted and has no reward"),
    "a missing observation": ({"observations": {"b": B}}, "its agent 'a' is in `agents` and has no observation"),
    "a list of rewards": ({"rewards": [1, 1]}, r"its rewards should be a dict by agent, got \[1, 1\]"),
    "no rewards": ({"rewards": None}, "its rewards should be a dict by agent, got None"),
    "a list of ends": ({"terminations": [False, False]}, "its terminations should be a dict by agent"),
    "no observations": ({"observations": None}, "its observations should be a dict by agent, got None"),
    "a list of infos": ({"infos": [{}, {}]}, "its infos should be a dict by agent, got"),
    "no infos": ({"infos": None}, "its infos should be a dict by agent, got None"),
    "an array as an info": ({"infos": {"a": np.ones(2)}}, "the info of its agent 'a' should be a dict, got array"),
    "a reward of None": ({"rewards": {"a": None, "b": 1}}, "the reward of its agent 'a' should be a number, got None"),
    "a text as a reward": ({"rewards": {"a": 1, "b": "5"}}, "the reward of its agent 'b' should be a number, got '5'"),
    "two rewards": (
        {"rewards": {"a": np.ones(2), "b": 1}},
        "the reward of its agent 'a' should be a number, got array",
    ),
    "two ends": (
        {"truncations": {"a": False, "b": np.ones(2)}},
        "the ends of its agent 'b' should be true or false, got",
    ),
    "an agent twice": ({"agents": ["a", "a"]}, r"its `agents` have a name twice, got \['a', 'a'\]"),
    "no agents": ({"agents": None}, "its `agents` should be a list of names, got None; keep in it who acts next"),
    "a stranger": ({"agents": ["a", "d"]}, "its `agents` have 'd', which is not in"),
}


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "c")], ids=["all act", "an agent does not act"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_said_of_names_that_do_not_fit_is_refused(case: str, names: tuple[str, ...]):
    given, message = REFUSED[case]
    env = AgentsEnv(Said(names, **given), "it")
    env.parallel_env.shown["agents"] = ["a", "b"]
    env.reset(seed=1)
    with pytest.raises(DataError, match=message):
        env.step({"a": 0, "b": 0, "c": 0})


@pytest.mark.parametrize("names", [["a", "a"], ["a/b", "c"], ["", "a"], [".", "a"], ["__all__"], [1, 2], None])
def test_names_that_a_file_cannot_have_are_refused(names: Any):
    env = Said()
    env.possible_agents = names
    with pytest.raises(
        UsageError, match="must have possible_agents, a list of different names, of which none is __all__"
    ):
        AgentsEnv(env, "it")


def test_an_agent_that_has_left_has_the_observation_nearest_to_zero_whatever_the_env_says():
    env = AgentsEnv(Said(agents=["a"]), "it")
    env.reset(seed=1)
    assert env.step({"a": 1, "b": 1})[0]["b"].tolist() == [4, 5]  # Its last one.
    assert env.step({"a": 1, "b": 1})[0]["b"].tolist() == [1, 1]
    assert env.parallel_env.acted == {"a": 1} and env.outcome == [0, 0, 0, 0, 0, 0, True, False]
    env.parallel_env.given = {"agents": ["a", "b"], "rewards": {"a": 1, "b": 3}, "terminations": {"b": True, "a": 0}}
    observations, reward, *_ = env.step({"a": 1, "b": 1})  # It is back: this is its first one, and no reward of its.
    assert observations["b"].tolist() == [4, 5] and reward == 1 and env.outcome == [1, 0, 0, 0, 0, 0, True, True]


@pytest.mark.parametrize("seen", [{"a": A, "b": B}, {"a": A}], ids=["all act", "an agent does not act"])
def test_what_pettingzoo_lets_an_env_say_besides_its_agents_is_an_info_or_left_out(seen: dict[str, Any]):
    besides = {"steps_per_s": 0.0, "events": np.zeros(2), "common": {}}
    env = AgentsEnv(Said(infos={"a": {"x": 1}, "b": {}, **besides}, agents=list(seen)), "it")
    env.parallel_env.shown = {"observations": {**seen, "common": 7}, "agents": list(seen)}
    note_only()
    env.reset(seed=1)
    observations, *_, infos = env.step({"a": 0, "b": 0})
    assert observations.keys() == {"a", "b"} and observations["a"].tolist() == A.tolist()
    assert infos.pop("events") is besides.pop("events") and infos == {"a": {"x": 1}, **besides}
    env.parallel_env.given["infos"] = {"a": {}, "steps_per_s": 0}
    assert env.step({"a": 0, "b": 0})[-1] == {"steps_per_s": 0}
    assert noted() == ["it: its observations have 'common', which is no agent; it is left out"]


def test_an_agent_that_ends_again_and_again_is_named():
    env = AgentsEnv(Said(terminations={"a": True, "b": False}), "it")
    note_only()
    env.reset(seed=1)
    env.step({"a": 0, "b": 0})  # It may begin anew at once.
    assert not noted()
    env.step({"a": 0, "b": 0})
    assert [notice.split(",")[0] for notice in noted()] == [
        "it: its agent 'a' has ended in two neighbouring steps and is still in `agents`"
    ]


def test_rewards_may_be_arrays_of_one_element_and_no_end_none():
    env = AgentsEnv(
        Said(rewards={"a": np.float32([0.5]), "b": 2.0}, terminations={"a": None, "b": np.array([True])}), "it"
    )
    env.reset(seed=1)
    assert env.step({"a": 1, "b": 1})[1:4] == (2.5, False, False)
    assert env.outcome == [0.5, 2.0, False, True, False, False, True, True]


def test_a_wrapper_that_cuts_an_episode_truncates_those_that_acted_in_it():
    """And not an agent that came in this very step."""
    env = Said(agents=["a", "b"])
    env.shown["agents"] = ["a"]
    envs = LoopVectorEnv([lambda: Limited(AgentsEnv(env, "it"), 1)])
    envs.reset(seed=[1])
    envs.step({"a": np.zeros(1, int), "b": np.zeros(1, int)})
    assert [column.item() for column in envs.columns.agent_results] == [0, 0, False, False, True, False]
    assert envs.columns.truncations.all() and not any(column.any() for column in envs.columns.alive_arrays)


class Limited(TimeLimit):
    """A wrapper of its own kind, which is not stepped over."""


def test_an_agent_alone_is_an_agent_too():
    env = AgentsEnv(
        Said(("a",), observations={"a": A}, rewards={"a": 2}, terminations={"a": 1}, truncations={"a": 0}), "it"
    )
    env.parallel_env.shown["observations"] = {"a": A}
    env.reset(seed=1)
    assert env.step({"a": 1})[1:] == (2, True, False, {}) and env.outcome == [2, True, False, False]
