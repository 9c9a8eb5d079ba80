"""The envs of all ranks are one vector env: a `gymnasium.vector.VectorEnv` in all that it says and takes."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import pytest
from envs import Agreeing
from gymnasium.vector import SyncVectorEnv, VectorEnv
from jobs import Job, once
from oracle import differences, facts_of, record, resets_of, rollout

import mpi_rollout
from mpi_rollout.launched.vector_env import LaunchedVectorEnv
from mpi_rollout.policies.random import RandomPolicy

pytestmark = pytest.mark.any_mpi
WAYS: dict[str, dict[str, Any]] = {
    "lockstep": {},
    "two groups": {"num_groups": 2},
    "first ready": {"batch_size": 1},
    "dedicated root": {"root_envs": 0},
    "dedicated root, first ready": {"root_envs": 0, "batch_size": 1},
}

CLOSING = """
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
HALVES = """
envs.reset(seed=3)
actions = [draw().copy() for _ in range(60)]
stepped = [envs.step(row)[:4] for row in actions[:30]]
for row in actions[30:]:
    envs.send(row)
    *outputs, infos, where = envs.recv()
    assert infos == {} and where.tolist() == [*range(7)]
    stepped.append(outputs)
print(b"".join(row[0].tobytes() for row in stepped).hex(), b"".join(row[1].tobytes() for row in stepped).hex())
"""
OWNED = """
kept = [envs.reset(seed=0)[0]] + [part for _ in range(20) for part in envs.step(draw())[:4]]
copies = [part.copy() for part in kept]
for _ in range(5):
    envs.step(draw())
    envs.reset()
print(all(part.flags.c_contiguous and part.flags.owndata and part.flags.writeable for part in kept))
print(all(part.tobytes() == copy.tobytes() for part, copy in zip(kept, copies)))
"""
VIEWS = """
before, _ = envs.reset()
for step in range(20):
    copy = before.copy()
    after = envs.step(draw())[0]
    assert after.flags.c_contiguous and not after.flags.owndata and not np.shares_memory(before, after)
    assert before.tobytes() == copy.tobytes()
    before = after
print(step + 1)
"""
ASKING = """
envs.reset()
envs.step(draw())
reports = envs._driver.call_ranks(envs._driver.worker.control.report)
print([(report["rank"], report["num_envs"], report["fault"]) for report in reports])
assert envs.step(draw())[0].shape == (7, 4)
"""
FAILING = """
envs.reset(seed=0)
with pytest.raises(RankError) as caught:
    for _ in range(5):
        envs.step(draw())
print("the simulator has diverged" in caught.value.stack, caught.value.exit_code, caught.value)
"""
UNSENDABLE = """
envs.reset(seed=0)
try:
    print(len(envs.get_attr("lock")))
except Exception as error:
    print(type(error).__name__, error)
print(envs.step(np.full(7, 2))[1].tolist())
"""
UNORDERED = """
print(envs.step(np.full(7, 3))[0][:, 2:].tolist())
print(envs.reset()[0][:, 2:].tolist())
"""
POLE = "CartPole-v1"
DIRECT: dict[str, tuple[str, str, dict[str, Any]]] = {  # Code for the root, env, and how to connect to 7 of them.
    "spec": (
        "print(isinstance(envs, VectorEnv), envs.unwrapped is envs, envs, envs.spec.id, envs.spec.kwargs, envs.closed)",
        POLE, {"root_envs": 0, "env_kwargs": {"sutton_barto_reward": True}},
    ),
    "no spec": ("print(envs, envs.spec)", "envs:Counting", {}),
    "closing": (CLOSING, POLE, {}),
    "halves": (HALVES, POLE, {}),
    "owned": (OWNED, POLE, {}),
    "views": (VIEWS, POLE, {"copy": False}),
    "views of two groups": (VIEWS, POLE, {"copy": False, "num_groups": 2}),
    "asking": (ASKING, POLE, {}),
    "unordered": (UNORDERED, "envs:Ready", {}),
    "unsendable": (UNSENDABLE, "envs:Holding", {}),
} | {
    f"failing, {way}": (FAILING, "envs:on_rank", {"env_kwargs": {"rank": 1, "after": 2}, **WAYS[way]})
    for way in ("lockstep", "two groups", "first ready")
}  # fmt: skip


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], str]:
    """What code prints on the root, with `envs` and `draw` at hand; one job on some ranks for all of it."""

    @once
    def on(num_ranks: int) -> dict[str, str]:
        names = [name for name in DIRECT if num_ranks > 1 or name == "unsendable"]
        found = Job(tmp_path_factory.mktemp("direct")).train(num_ranks, "direct", [DIRECT[name] for name in names])
        return dict(zip(names, found, strict=True))

    return lambda name, num_ranks: on(num_ranks)[name]


def oracle(**kwargs: Any) -> SyncVectorEnv:
    return SyncVectorEnv([partial(Agreeing, **kwargs)] * 7)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, Any]]:
    """What a function of `trainers` gives on some ranks, for each way to connect; one job for all of them."""

    @once
    def by(function: str, num_ranks: int) -> dict[str, Any]:
        ways = {name: way for name, way in WAYS.items() if num_ranks > 1 or "root_envs" not in way}
        found = Job(tmp_path_factory.mktemp(function)).train(num_ranks, function, list(ways.values()))
        return dict(zip(ways, found, strict=True))

    return by


@pytest.mark.parametrize("kind", [mpi_rollout.MPIVectorEnv, LaunchedVectorEnv])
def test_libraries_that_look_at_the_classes_that_a_class_is_derived_from_see_gymnasiums(kind: type):
    assert VectorEnv in kind.__bases__ and "gymnasium." in str(kind.__bases__)


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


CLOSED = "ClosedEnvironmentError these envs are closed: the ranks have left; connect again for more\n"
SAID = {
    "spec": "True True MPIVectorEnv(CartPole-v1, num_envs=7) CartPole-v1 {'sutton_barto_reward': True} False\n",
    "no spec": "MPIVectorEnv(num_envs=7) None\n",  # It is not registered.
    "closing": "True\n" + 6 * CLOSED,
    "unordered": f"{[[1, 3]] * 7}\n{[[0, -1]] * 7}\n",  # Envs of gymnasium.make are not stepped before a reset.
    "owned": "True\nTrue\n",
    "views": "20\n",
    "views of two groups": "20\n",
    "asking": "[(0, 3, None), (1, 2, None), (2, 2, None)]\n",
}


@pytest.mark.mpi(3)
@pytest.mark.parametrize("name", SAID)
def test_it_says_and_gives_what_a_vector_env_does(printed, num_ranks: int, name: str):
    assert printed(name, num_ranks) == SAID[name]


@pytest.mark.mpi(3)
def test_send_and_recv_are_the_halves_of_step(printed, num_ranks: int):
    observations, rewards = map(bytes.fromhex, printed("halves", num_ranks).split())
    envs = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 7)
    columns = rollout(envs, RandomPolicy(envs.single_action_space, 7, 0), 60, seed=3)
    assert observations == columns["observations"][1:].tobytes()
    assert rewards == columns["rewards"].tobytes()


@pytest.mark.mpi(3)
@pytest.mark.parametrize("way", ["lockstep", "two groups", "first ready"])
def test_an_error_on_a_rank_is_raised_at_the_root_with_its_traceback(printed, num_ranks: int, way: str):
    out = printed(f"failing, {way}", num_ranks)
    assert out.startswith("True 70 rank 1 (") and out.count("\n") == 1
    assert ", step 2: env " in out and ", step 2 of its episode: RuntimeError: the simulator has diverged" in out


@pytest.mark.mpi(1, 3)
def test_what_a_rank_cannot_send_is_an_error_at_the_root_and_the_envs_go_on(printed, num_ranks: int):
    """In one process too, so that what is tried out there works on many."""
    first, second = printed("unsendable", num_ranks).splitlines()
    assert re.match(r"RankError rank 0 \(.*cannot pickle '_thread.lock' object", first)
    assert second == str([1.2] * 7)


@pytest.mark.mpi(1, 3)
def test_after_an_env_has_failed_a_reset_of_all_begins_anew(told, num_ranks: int):
    """Whichever env it was, in a step or in a reset; until then envs are not stepped."""
    expected = record(pole(7), 12)
    for way, found in told("past_failures", num_ranks).items():
        for first, second, recorded in found:
            assert re.match(
                r"RankError: rank \d .*, step \d+: env \d, .*RuntimeError: the simulator has stumbled", first
            )
            assert (
                second == "ResetNeeded: an env failed, or was interrupted during its step; call reset() to begin anew"
            )
            assert differences(recorded, expected) == [], way
        assert [int(first.partition(": env ")[2][0]) for first, *_ in found] == [i for i in range(7) for _ in "ab"]


@pytest.mark.mpi(1, 3)
def test_after_an_interrupt_a_reset_begins_anew(told, num_ranks: int):
    """As in a notebook whose cell was interrupted."""
    expected = record(pole(7), 3)
    for way, found in told("past_interrupts", num_ranks).items():
        assert all(differences(recorded, expected) == [] for recorded in found) and len(found) >= 24, way


def pole(num_envs: int) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num_envs)
