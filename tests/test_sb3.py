"""MPIVecEnv against Stable-Baselines3's own DummyVecEnv: same seeds and actions, exactly the same of everything."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from jobs import CLONE, LEARNING, Job, job_environment, once

from mpi_rollout.commands.checking import verify
from mpi_rollout.text import pip_install

pytestmark = [
    pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="pip install 'mpi_rollout[sb3]'"),
    pytest.mark.imports(*LEARNING),
    pytest.mark.any_mpi,
]

STEPS = [
    "steps of CartPole",
    "steps with infos",
    "steps with infos of other kinds",
    "steps of a Dict",
    "steps of a Tuple",
    "steps of doubles",
]
PARTS = ["CartPole, ready by three", "infos, groups", "Dict, ready singly", "Tuple, ready by two"]
LONG_S = 500.0  # They learn for seconds; the machine may be busy.

Told = Callable[[str, int], Any]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """What a check of `beside_dummy` returns on some ranks, two or the number given; one job for all of them."""

    @once
    def on(num_ranks: int) -> dict[str, tuple[Any, str]]:
        from side_by_side import CHECKS

        of_few = {3: STEPS[:1] + PARTS}
        names = of_few.get(num_ranks, [name for name in CHECKS if name not in PARTS])
        job = Job(tmp_path_factory.mktemp("checks"), libraries=LEARNING)
        return job.train(num_ranks, "beside_dummy", names, timeout=LONG_S)

    def of(name: str, num_ranks: int = 2) -> Any:
        returned, error = on(num_ranks)[name]
        assert not error, error
        return returned

    return of


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("name", "num_ranks"), [*((name, 2) for name in STEPS), *((name, 3) for name in STEPS[:1] + PARTS)]
)
def test_it_gives_what_dummy_vec_env_gives(told: Told, num_ranks: int, name: str):
    assert told(name, num_ranks) is None


def test_infos_that_connect_leaves_out_are_left_out(told: Told):
    ends = ["TimeLimit.truncated", "terminal_observation"]
    assert told("no infos") == ([ends, ends[:1], ends[:1]], [None] * 3, [{}] * 3)
    one = [[*ends[:1], "step", *ends[1:]], [*ends[:1], "step"], [*ends[:1], "step"]]
    assert told("one info") == (one, [3] * 3, [{}] * 3)


def test_attributes_of_some_envs_can_be_got_and_set(told: Told):
    assert told("attributes") == [10, 11, 12, 13, 14]


def test_a_setting_reaches_the_env_below_its_wrappers(told: Told):
    assert told("a setting") == [0, 3, 3, 3, 3]  # The first has ended.


def test_methods_of_envs_can_be_called(told: Told):
    assert told("methods") == [(14, 5, 0, "none")] * 2


def test_it_tells_which_wrappers_are_around_the_envs(told: Told):
    assert told("wrappers") == [True] * 4 + [False]


def test_it_draws_what_dummy_vec_env_draws(told: Told):
    assert told("drawing") == (12, 12, 3)


def test_without_a_render_mode_there_are_no_images(told: Told):
    assert told("no drawing") == [None] * 5


def test_seeds_and_options_are_used_once(told: Told):
    given, num_drawn = told("seeds and options")
    nothing = [None, None]
    assert given[:8] == [[7, None], nothing, [7, {"a": 1}], nothing, [7, {"a": [2]}], nothing, [7, None], nothing]
    assert given[8:] == [[7, {"a": 4}], nothing]
    assert num_drawn == 5


@pytest.mark.parametrize(("name", "mode"), [("next step", "NextStep"), ("disabled", "Disabled")])
def test_envs_that_reset_in_another_way_are_refused(told: Told, name: str, mode: str):
    assert told(name).endswith(f'got autoreset mode {mode}; connect(..., autoreset_mode="same_step")')


def test_what_is_no_mpi_vector_env_is_refused():
    from mpi_rollout.sb3 import MPIVecEnv

    with pytest.raises(TypeError, match=r"got NoneType.*use it below `if envs is not None:`"):
        MPIVecEnv(None)


def test_nested_observation_spaces_are_refused_as_by_dummy_vec_env(told: Told):
    assert "Nested observation spaces" in told("nested")


def test_without_stable_baselines3_the_message_says_what_to_install():
    code = "import sys; sys.modules['stable_baselines3'] = None; import mpi_rollout.sb3"
    result = subprocess.run([sys.executable, "-c", code], env=job_environment(), capture_output=True, text=True)
    assert result.returncode == 1
    assert pip_install("[sb3]") in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["PPO", "PPO in wrappers", "PPO from doubles", "DQN"])
def test_algorithms_and_wrappers_learn_exactly_as_with_dummy_vec_env(told: Told, name: str):
    assert told(name) == 7


def test_dict_observations_are_learnt_from(told: Told):
    assert told("PPO from a Dict") == 7


def test_local_envs_for_evaluation_leave_the_learning_as_it_is(told: Told):
    assert told("evaluating") > 0


def test_closing_it_lets_the_other_ranks_out(told: Told):
    """And the job comes to its end."""
    assert told("closing") is True


@pytest.mark.mpi(2)
def test_the_example_tells_how_far_it_is_and_learns(job: Job, num_ranks: int):
    result = job.python(
        num_ranks, CLONE / "examples/train_ppo.py", "--total-steps", "4096", timeout=LONG_S, MPI_ROLLOUT_END_S="100"
    )
    assert result.code == 0, result.err
    lines = [line.partition(", mean")[0] for line in result.err.splitlines() if "env steps, mean return " in line]
    assert lines == ["2,048 of 4,096 env steps", "4,096 of 4,096 env steps"]
    words = result.out.split()
    # Random actions give 22.
    assert words[:2] == ["mean", "return"] and float(words[2]) >= 60 and "of 500 over 100 episodes" in result.out


MAKE_VEC_ENV = """
import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv
from mpi_rollout.sb3 import MPIVecEnv

def learnt(vec_env_cls, **options):
    envs = make_vec_env("CartPole-v1", 4, seed=3, vec_env_cls=vec_env_cls, vec_env_kwargs=options)
    model = PPO("MlpPolicy", envs, n_steps=64, batch_size=64, n_epochs=2, seed=1, device="cpu").learn(512)
    envs.close()
    return [value.numpy().tobytes() for value in model.policy.state_dict().values()], len(model.ep_info_buffer)

assert learnt(MPIVecEnv, infos="all", num_groups=2) == learnt(DummyVecEnv)
"""


def test_make_vec_env_of_stable_baselines3_makes_it_in_one_process(job: Job):
    result = job.script(None, MAKE_VEC_ENV)
    assert result.code == 0, result.err


@pytest.mark.mpi(2)
def test_on_several_ranks_a_list_of_callables_is_refused_at_once_with_the_way_that_works(job: Job, num_ranks: int):
    result = job.script(num_ranks, MAKE_VEC_ENV)
    assert result.code != 0
    assert "MPIVecEnv makes envs in one process only, got several ranks; on all of them use `with mpi_" in result.err


def test_what_an_algorithm_does_is_recorded(tmp_path: Path):
    from mpi_rollout.sb3 import MPIVecEnv

    envs = MPIVecEnv([lambda: gymnasium.make("CartPole-v1")] * 3, record=tmp_path / "run.h5")
    envs.seed(4)
    envs.reset()
    for _ in range(60):
        observations, _, dones, infos = envs.step(np.ones(3, np.int64))
    envs.close()
    verify(str(tmp_path / "run.h5"))
    with h5py.File(tmp_path / "run.h5") as file:
        assert file.attrs["num_envs"] == 3 and file["trajectories"].attrs["num_steps"] == 60
        assert np.array_equal(file["trajectories/observations"][60], observations)
        assert file["resets"]["seed"].tolist() == [4, 5, 6]
        finals = file["trajectories/final_observations"][59]
        assert all(np.array_equal(finals[env], infos[env]["terminal_observation"]) for env in np.flatnonzero(dones))


# --- Agents of envs as rows


@pytest.fixture(scope="module")
def of_agents(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("pettingzoo")
    job = Job(tmp_path_factory.mktemp("rows"), libraries=LEARNING)
    return job.train(2, "agent_rows", 40, timeout=LONG_S)


def test_rows_are_what_the_agents_give_when_they_are_stepped_by_hand(of_agents: Any):
    import agents_envs

    (seen, reset_infos), *steps = of_agents[0]
    envs = [agents_envs.even() for _ in range(3)]
    firsts = [env.reset(seed=3 + 2 * index) for index, env in enumerate(envs)]  # A seed for each row.
    names = agents_envs.NAMES[:2]
    assert np.array_equal(seen, [first[name] for first, _ in firsts for name in names])
    assert reset_infos == [{"step": 0, **infos.get(name, {})} for _, infos in firsts for name in names]
    num_ends = 0
    for actions, (seen, rewards, dones, infos) in steps:
        for index, env in enumerate(envs):
            acting = list(env.agents)
            own = {name: actions[2 * index + names.index(name)] for name in acting}
            observations, given_rewards, terminations, truncations, given_infos = env.step(own)
            is_over = not env.agents
            after = env.reset()[0] if is_over else observations
            for place, name in enumerate(names, 2 * index):
                has_left = terminations.get(name, False) or truncations.get(name, False)
                assert dones[place] == (has_left or is_over)
                assert rewards[place] == np.float32(given_rewards.get(name, 0.0))
                expected = after[name] if is_over or (name in acting and not has_left) else np.zeros(3)
                assert np.array_equal(seen[place], expected)
                assert infos[place]["TimeLimit.truncated"] == truncations.get(name, False)
                assert infos[place]["step"] == given_infos["step"]
                if dones[place]:
                    final = observations.get(name, np.zeros(3))
                    assert np.array_equal(infos[place]["terminal_observation"], final)
                    num_ends += 1
    assert num_ends > 20


def test_a_row_is_done_where_its_agent_pauses_or_comes_back(of_agents: Any):
    """Each run of steps in which an agent acts is an episode of its row; what lies between them is another one."""
    import agents_envs

    (seen, _), *steps = of_agents[1]
    envs, nothing, names = [agents_envs.Steady() for _ in range(3)], np.zeros(2), agents_envs.NAMES
    firsts = [env.reset(seed=3 + 3 * index)[0] for index, env in enumerate(envs)]
    acts = {(env, name): name in env.agents for env in envs for name in names}
    shown = [
        first[name] if acts[env, name] else nothing for env, first in zip(envs, firsts, strict=True) for name in names
    ]
    assert np.array_equal(seen, shown)
    counts: Counter[str] = Counter()
    for actions, (seen, rewards, dones, infos) in steps:
        for index, env in enumerate(envs):
            own = {name: actions[3 * index + names.index(name)] for name in env.agents}
            observations, given, terminations, truncations, _ = env.step(own)
            has_ended = {name for ends in (terminations, truncations) for name in ends if ends[name]}
            is_over = {*env.agents} <= has_ended
            after = env.reset()[0] if is_over else observations
            for place, name in enumerate(names, 3 * index):
                acted, will_act = acts[env, name], name in env.agents
                acts[env, name] = will_act
                ends, is_cut = terminations.get(name, False), truncations.get(name, False)
                pauses = acted and not (will_act or ends or is_cut or is_over)
                comes = will_act and not (acted or is_over)
                assert dones[place] == (ends or is_cut or is_over or pauses or comes)
                assert infos[place]["TimeLimit.truncated"] == ((is_cut and not ends) or pauses)
                assert rewards[place] == np.float32(given.get(name, 0.0))
                assert np.array_equal(seen[place], after[name] if will_act else nothing)
                if dones[place]:
                    assert np.array_equal(
                        infos[place]["terminal_observation"], observations[name] if acted else nothing
                    )
                counts.update(pauses=pauses, comes=comes, ends_and_stays=will_act and (ends or is_cut) and not is_over)
    assert min(counts.values()) > 5, counts


def test_ppo_learns_with_agents_as_rows(of_agents: Any):
    before, after = of_agents[2]
    assert before < 0.6 < 0.9 < after
