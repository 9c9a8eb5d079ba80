"""The envs of all ranks are one vector env: a `gymnasium.vector.VectorEnv` in all that it says and takes."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from conftest import Job, once
from envs import Agreeing
from gymnasium.vector import SyncVectorEnv
from oracle import differences, facts_of, resets_of, rollout

from mpi_rollout.policy import RandomPolicy

WAYS: dict[str, dict[str, Any]] = {
    "lockstep": {},
    "two groups": {"num_groups": 2},
    "first ready": {"batch_size": 1},
    "dedicated root": {"dedicated_root": True},
    "dedicated root, first ready": {"dedicated_root": True, "batch_size": 1},
}

DIRECT = """
import numpy as np
import pytest
import trainers
from mpi_rollout.policy import RandomPolicy

with trainers.connect({arguments}) as envs:
    if envs is not None:
        draw = RandomPolicy(envs.single_action_space, envs.num_envs, 0)
{body}
"""


def direct(job: Job, body: str, num_ranks: int | None = 2, env: str = "CartPole-v1", **options: Any) -> str:
    """Run code on the root with `envs` and `draw` at hand; return what it printed."""
    written = ", ".join(f"{name}={value!r}" for name, value in {"num_envs": 5, **options}.items())
    body = "\n".join(" " * 8 + line for line in body.strip().splitlines())
    result = job.script(num_ranks, DIRECT.format(arguments=f"{env!r}, {written}", body=body))
    assert result.code == 0, result.err
    return result.out


def oracle(**kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([partial(Agreeing, **kwargs)] * 7)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, Any]]:
    """What a function of `trainers` gives on some ranks, for each way to connect; one job for all of them."""

    @once
    def by(function: str, num_ranks: int) -> dict[str, Any]:
        ways = {name: way for name, way in WAYS.items() if num_ranks > 1 or "dedicated_root" not in way}
        found = Job(tmp_path_factory.mktemp(function)).train(num_ranks, function, list(ways.values()))
        return dict(zip(ways, found, strict=True))

    return by


@pytest.mark.mpi(1, 3)
def test_spaces_metadata_frames_calls_attributes_and_generators_are_those_of_gymnasium(told, num_ranks: int):
    expected = facts_of(oracle(render_mode="ansi"))
    for way, found in told("facts", num_ranks).items():
        assert differences(found, expected) == [], way


@pytest.mark.mpi(1, 3)
def test_seeds_and_options_reach_the_envs_as_in_gymnasium(told, num_ranks: int):
    expected = resets_of(oracle())
    for way, found in told("resets", num_ranks).items():
        assert differences(found, expected) == [], way


@pytest.mark.mpi(2)
def test_it_is_a_vector_env_with_the_spec_of_its_envs(job: Job, num_ranks: int):
    body = """
import gymnasium
assert isinstance(envs, gymnasium.vector.VectorEnv) and envs.unwrapped is envs
print(envs, envs.spec.id, envs.spec.kwargs, envs.closed)
"""
    out = direct(job, body, num_ranks, dedicated_root=True, env_kwargs={"sutton_barto_reward": True})
    assert out == "MPIVectorEnv(CartPole-v1, num_envs=5) CartPole-v1 {'sutton_barto_reward': True} False\n"


@pytest.mark.mpi(2)
def test_envs_that_are_not_registered_have_no_spec(job: Job, num_ranks: int):
    out = direct(job, "print(envs, envs.spec)", num_ranks, env="envs:Counting")
    assert out == "MPIVectorEnv(num_envs=5) None\n"


@pytest.mark.mpi(2)
def test_it_closes_once_and_says_so_afterwards(job: Job, num_ranks: int):
    body = """
envs.reset(seed=0)
with envs as same:
    assert same is envs
print(envs.closed)
envs.close()
envs.close()
for use in ("reset()", "step(draw())", "send(draw())", "recv()", "render()", "np_random"):
    try:
        eval("envs." + use)
    except Exception as error:
        print(type(error).__name__, error)
"""
    said = "ClosedEnvironmentError these envs are closed: the ranks have left; connect again for more\n"
    assert direct(job, body, num_ranks) == "True\n" + 6 * said


@pytest.mark.mpi(2)
def test_send_and_recv_are_the_halves_of_step(job: Job, num_ranks: int):
    body = """
envs.reset(seed=3)
actions = [draw().copy() for _ in range(60)]
stepped = [envs.step(row)[:4] for row in actions[:30]]
for row in actions[30:]:
    envs.send(row)
    *outputs, infos, where = envs.recv()
    assert infos == {} and where.tolist() == [0, 1, 2, 3, 4]
    stepped.append(outputs)
np.savez("found.npz", observations=[row[0] for row in stepped], rewards=[row[1] for row in stepped])
"""
    assert direct(job, body, num_ranks) == ""
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 5)
    columns = rollout(envs, RandomPolicy(envs.single_action_space, 5, 0), 60, seed=3)
    with np.load(job.folder / "found.npz") as found:
        assert found["observations"].tobytes() == columns["observations"][1:].tobytes()
        assert found["rewards"].tobytes() == columns["rewards"].tobytes()


@pytest.mark.mpi(2)
def test_what_is_returned_belongs_to_the_caller(job: Job, num_ranks: int):
    body = """
kept = [envs.reset(seed=0)[0]] + [part for _ in range(20) for part in envs.step(draw())[:4]]
copies = [part.copy() for part in kept]
for _ in range(5):
    envs.step(draw())
    envs.reset()
print(all(part.flags.c_contiguous and part.flags.owndata and part.flags.writeable for part in kept))
print(all(part.tobytes() == copy.tobytes() for part, copy in zip(kept, copies)))
"""
    assert direct(job, body, num_ranks) == "True\nTrue\n"


@pytest.mark.mpi(2)
@pytest.mark.parametrize("num_groups", [1, 2])
def test_views_of_the_whole_are_contiguous_and_live_until_the_call_after_the_next(
    job: Job, num_ranks: int, num_groups: int
):
    body = """
before, _ = envs.reset()
for step in range(20):
    copy = before.copy()
    after = envs.step(draw())[0]
    assert after.flags.c_contiguous and not after.flags.owndata and not np.shares_memory(before, after)
    assert before.tobytes() == copy.tobytes()
    before = after
print(step + 1)
"""
    assert direct(job, body, num_ranks, copy=False, num_groups=num_groups) == "20\n"


@pytest.mark.mpi(3)
def test_every_rank_can_be_asked(job: Job, num_ranks: int):
    body = """
envs.reset()
envs.step(draw())
print([(report["rank"], report["num_envs"], report["fault"]) for report in envs._driver.call_ranks("report")])
assert envs.step(draw())[0].shape == (5, 4)
"""
    assert direct(job, body, num_ranks) == "[(0, 2, None), (1, 2, None), (2, 1, None)]\n"


@pytest.mark.mpi(2)
@pytest.mark.parametrize("way", ["lockstep", "two groups", "first ready"])
def test_an_error_on_a_rank_is_raised_at_the_root_with_its_traceback(job: Job, num_ranks: int, way: str):
    body = """
from mpi_rollout.driver import RankError
envs.reset(seed=0)
with pytest.raises(RankError) as caught:
    for _ in range(5):
        envs.step(draw())
print("the simulator has diverged" in caught.value.stack, caught.value.exit_code, caught.value)
"""
    kwargs = {"rank": 1, "after": 2}
    out = direct(job, body, num_ranks, "envs:on_rank", env_kwargs=kwargs, **WAYS[way])
    assert out.startswith("True 70 rank 1 (") and out.count("\n") == 1
    assert ", step 3: env " in out and ", step 3 of its episode: RuntimeError: the simulator has diverged" in out


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_what_a_rank_cannot_send_is_an_error_at_the_root_and_the_envs_go_on(job: Job, num_ranks: int):
    """In one process too, so that what is tried out there works on many."""
    body = """
envs.reset(seed=0)
try:
    print(len(envs.get_attr("lock")))
except Exception as error:
    print(type(error).__name__, error)
print(envs.step(np.full(5, 2))[1].tolist())
"""
    first, second = direct(job, body, num_ranks, "envs:Holding").splitlines()
    assert re.match(r"RankError rank 0 \(.*cannot pickle '_thread.lock' object", first)
    assert second == str([1.2] * 5)
