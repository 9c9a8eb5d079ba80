"""What a rank makes before the first message: its envs, what it knows of them, its exchanges."""

import gc
import json
import threading

import gymnasium
import pytest
from envs import Counting
from gymnasium import spaces
from native_envs import Drift, drift

from mpi_rollout.core.partition import Division
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.envs.env_maker import EnvMaker, make_slice
from mpi_rollout.envs.wrapping import describe_spec
from mpi_rollout.errors import SameEnvError, UsageError
from mpi_rollout.exchange.single_rank import SingleRankComm
from mpi_rollout.options import SharedOptions
from mpi_rollout.ranks.set_up import (
    EnvFacts,
    Plan,
    assemble,
    can_be_pickled,
    divided,
    make_rank_envs,
    unwatched_by_gc,
)


def indexed(env_index: int, level: int = 0) -> gymnasium.Env:
    return Counting()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0", "phys2d/CartPole-v1"])
def test_a_spec_without_code_in_it_is_described_as_gymnasium_does(env_id: str):
    spec = gymnasium.spec(env_id)
    assert json.loads(describe_spec(spec)) == json.loads(spec.to_json())


def test_a_spec_is_described_with_code_by_its_name():
    spec = gymnasium.envs.registration.EnvSpec("Own-v0", Counting, kwargs={"levels": {1, 2}, "draw": indexed})
    described = json.loads(describe_spec(spec))
    assert described["entry_point"] == "envs:Counting" and described["vector_entry_point"] is None
    assert described["kwargs"] == {"levels": "{1, 2}", "draw": f"{__name__}:indexed"}
    wrapped = gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: -reward)
    assert json.loads(describe_spec(wrapped.spec))["additional_wrappers"][0]["name"] == "TransformReward"
    assert describe_spec(None) == describe_spec("CartPole-v1") == ""


@pytest.mark.parametrize("is_read", [True, False])
def test_envs_that_compile_do_it_when_they_are_made(is_read: bool):
    """With observations where somebody reads them."""
    compiled: list[bool] = []

    def make(env_indices: range, seed: int) -> Drift:
        made = drift(env_indices, seed)
        made.compile_steps = compiled.append
        return made

    plan = Plan(EnvMaker(make, vectorization_mode="native"), Division(4, 1, num_groups=2), is_read=is_read)
    make_rank_envs(plan, 0)
    assert compiled == [is_read] * 2


READY = Division(6, 3, root_envs=0, first_ready=True)


def test_as_many_ranks_can_be_awaited_as_step_envs():
    assert divided(SharedOptions(batch_size=2, root_envs=0), 6, 3) == READY
    with pytest.raises(UsageError, match="must be 1 to 2, the ranks that step envs, got 3"):
        divided(SharedOptions(batch_size=3, root_envs=0), 6, 3)


def test_a_rank_without_envs_knows_nothing_of_them():
    rank_envs = make_rank_envs(Plan(EnvMaker(Counting), READY), 0)
    assert rank_envs.envs == () and rank_envs.facts is None and rank_envs.fingerprint() == {}


def test_the_fingerprint_has_the_spaces():
    first, second = (
        make_rank_envs(Plan(EnvMaker(make), Division(6, 3)), 1).fingerprint() for make in (Counting, Other)
    )
    assert first.keys() == second.keys() == {"the observation space", "the action space"}
    assert [name for name in first if first[name] != second[name]] == ["the action space"]


class Other(Counting):
    action_space = spaces.Discrete(6, start=2)


def test_the_same_object_in_two_wrappers_and_groups_is_refused():
    env = Counting()
    make = EnvMaker(lambda env_index: gymnasium.Wrapper(env) if env_index in (0, 3) else Counting())
    with pytest.raises(SameEnvError, match="env 0 and env 3 are the same object"):
        make_rank_envs(Plan(make, Division(4, 1, num_groups=2)), 0)


class Local(Counting):
    """Says what cannot be sent to another rank."""

    def __init__(self):
        super().__init__()
        self.metadata = {"render_fps": 4, "lock": threading.Lock()}
        self.spec = gymnasium.envs.registration.EnvSpec("Local-v0", lambda: None)


def test_facts_are_sent_without_what_cannot_be():
    facts = EnvFacts.of(make_slice(EnvMaker(Local), range(1)))
    assert "lock" in facts.metadata and facts.spec is not None and not facts.is_native
    portable = facts.portable()
    assert can_be_pickled(portable) and portable.spec is None and portable.metadata["render_fps"] == 4
    assert "lock" not in portable.metadata and portable.observation_space == facts.observation_space


def test_the_only_rank_keeps_what_cannot_be_sent():
    facts = assemble(SingleRankComm(), make_rank_envs(Plan(EnvMaker(Local), Division(2, 1)), 0)).facts
    assert facts.spec is not None and "lock" in facts.metadata


def test_spaces_that_cannot_be_sent_are_refused():
    facts = EnvFacts.of(make_slice(EnvMaker(Counting), range(1)))
    space = spaces.Discrete(3)
    space.lock = threading.Lock()
    wrong = EnvFacts(facts.observation_space, space, None, {}, None, False, Reproducibility.EPISODE, True, "")
    with pytest.raises(UsageError, match=r"must be picklable, got Box\(.*\) and Discrete\(3\): TypeError: cannot pic"):
        wrong.portable()


def test_native_envs_share_a_generator():
    make = EnvMaker("CartPole-v1", vectorization_mode="vector_entry_point")
    facts = EnvFacts.of(make_slice(make, range(2)))
    assert facts.is_native and facts.reproducibility == Reproducibility.SLICE


def test_wrong_infos_are_refused_before_envs_are_made():
    with pytest.raises(UsageError, match="infos must be"):
        make_rank_envs(Plan(EnvMaker(pytest.fail), Division(1, 1), infos=3), 0)


def test_an_env_that_is_seeded_once_does_not_know_that_its_infos_were_looked_at():
    plan = Plan(EnvMaker(Counting, has_episode_seeds=False), Division(2, 1), 3, infos="all", keeps_infos=True)
    rank_envs = make_rank_envs(plan, 0)
    assert rank_envs.facts.infos == {"step": "int64"} and [env.episode for env in rank_envs.envs[0].envs] == [-1, -1]


def test_objects_of_now_are_not_watched_for_some_time():
    before = gc.get_freeze_count()
    with unwatched_by_gc():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == 0
