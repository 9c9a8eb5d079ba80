"""Policies that Stable-Baselines3 saved, against its own `predict`."""

import base64
import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from mpi_rollout.errors import ActionError, UsageError
from mpi_rollout.policies.files import load_model, read_source
from mpi_rollout.policies.model import Model, PolicySource

pytestmark = pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="pip install 'mpi_rollout[sb3]'")

CART, TWO = spaces.Box(-np.inf, np.inf, (4,)), spaces.Discrete(2)
SWING, TORQUE = spaces.Box(np.float32([-1, -1, -8]), np.float32([1, 1, 8])), spaces.Box(-2, 2, (1,))
IMAGE = spaces.Box(0, 255, (84, 84, 1), np.uint8)
GOAL = spaces.Dict(image=spaces.Box(0, 255, (36, 36, 3), np.uint8), place=spaces.Box(-1, 1, (2,)))
SMALL = {"net_arch": [16]}


class Still(gymnasium.Env):
    """An env of given spaces, in which nothing happens."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, **_options: Any) -> tuple[Any, dict]:
        return self.observation_space.sample(), {}

    def step(self, _action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 0.0, False, False, {}


# Name: algorithm, policy, observation space, action space, arguments.
CASES: dict[str, tuple[str, str, spaces.Space, spaces.Space, dict]] = {
    "PPO CartPole": ("PPO", "MlpPolicy", CART, TWO, {}),
    "A2C CartPole": ("A2C", "MlpPolicy", CART, TWO, {}),
    "DQN CartPole": ("DQN", "MlpPolicy", CART, TWO, {}),
    "PPO Pendulum": ("PPO", "MlpPolicy", SWING, TORQUE, {"policy_kwargs": {"net_arch": [8], "log_std_init": 1.0}}),
    "PPO narrow": ("PPO", "MlpPolicy", SWING, spaces.Box(-0.05, 0.05, (1,)), {}),
    "A2C Pendulum": ("A2C", "MlpPolicy", SWING, TORQUE, {}),
    "SAC Pendulum": ("SAC", "MlpPolicy", SWING, TORQUE, {"policy_kwargs": SMALL}),
    "TD3 Pendulum": ("TD3", "MlpPolicy", SWING, TORQUE, {"policy_kwargs": SMALL}),
    "PPO gSDE": ("PPO", "MlpPolicy", SWING, TORQUE, {"use_sde": True}),
    "SAC gSDE": ("SAC", "MlpPolicy", SWING, TORQUE, {"use_sde": True, "policy_kwargs": SMALL}),
    "PPO image": ("PPO", "CnnPolicy", IMAGE, spaces.Discrete(4), {}),
    "DQN image": ("DQN", "CnnPolicy", IMAGE, spaces.Discrete(4), {}),
    "PPO Dict": ("PPO", "MultiInputPolicy", GOAL, TWO, {"policy_kwargs": {"share_features_extractor": False}}),
    "PPO MultiDiscrete": ("PPO", "MlpPolicy", spaces.MultiDiscrete([3, 2]), spaces.MultiDiscrete([2, 3]), {}),
    "PPO MultiBinary": ("PPO", "MlpPolicy", spaces.Discrete(5), spaces.MultiBinary(3), {}),
}


@cache
def made(case: str, **more: Any) -> tuple[Any, bytes]:
    """A model of SB3 with weights that are not its first ones, and its file."""
    import stable_baselines3
    import torch

    algorithm, policy, observations, actions, arguments = CASES[case]
    small = {"buffer_size": 100} if algorithm in ("DQN", "SAC", "TD3") else {}
    env = Still(observations, actions)
    model = getattr(stable_baselines3, algorithm)(
        policy, env, device="cpu", seed=1, **small, **deepcopy(arguments | more)
    )
    with torch.no_grad():  # Larger than those that learning begins with, so that actions differ.
        for parameter in model.policy.parameters():
            parameter += (0.01 if policy == "CnnPolicy" else 0.1) * torch.randn_like(parameter)
    return model, saved(model)


def saved(model: Any) -> bytes:
    file = io.BytesIO()
    model.save(file)
    return file.getvalue()


def source_of(content: bytes, mode: str = "deterministic", is_trusted: bool = False) -> PolicySource:
    return PolicySource("sb3", "p.zip", content, "", mode, is_trusted)


def loaded(case: str, mode: str = "deterministic", is_trusted: bool = False) -> Model:
    return load_model(source_of(made(case)[1], mode, is_trusted), *CASES[case][2:4])


def batch(space: spaces.Space, rows: int = 64) -> Any:
    space.seed(3)
    samples = [space.sample() for _ in range(rows)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([sample[key] for sample in samples]) for key in space.spaces}
    stacked = np.stack(samples)
    if stacked.ndim == 4:  # Images of noise look all the same, but for their brightness.
        stacked = (stacked * np.linspace(0, 1, rows).reshape(-1, 1, 1, 1)).astype(np.uint8)
    return stacked


def act(model: Model, observations: Any, rows: int = 64, seed: int = 0) -> np.ndarray:
    return model.act(observations, np.arange(rows), np.random.default_rng(seed).random((rows, model.num_uniforms)))


@pytest.mark.parametrize("is_trusted", [False, True], ids=["checked", "trusted"])
@pytest.mark.parametrize("case", CASES)
def test_it_acts_bit_for_bit_as_predict_does(case: str, is_trusted: bool):
    observations = batch(CASES[case][2])
    model = loaded(case, is_trusted=is_trusted)
    expected, _ = made(case)[0].predict(observations, deterministic=True)
    got = act(model, observations)
    assert model.num_uniforms == 0 and got.dtype == expected.dtype and got.tobytes() == expected.tobytes()
    assert len(np.unique(got, axis=0)) > 1


def test_a_file_on_disk_is_read(tmp_path: Path):
    (tmp_path / "p.zip").write_bytes(made("PPO CartPole")[1])
    source = read_source(str(tmp_path / "p.zip"), "deterministic", is_trusted=False)
    assert source.kind == "sb3" and act(load_model(source, CART, TWO), batch(CART)).shape == (64,)


def test_actions_outside_of_their_bounds_are_set_to_them():
    for mode in ("deterministic", "sample"):
        assert np.abs(act(loaded("PPO narrow", mode), batch(SWING))).max() == np.float32(0.05)


SAMPLED = ["PPO CartPole", "A2C CartPole", "PPO Pendulum", "SAC Pendulum", "PPO image", "PPO Dict",
           "PPO MultiDiscrete", "PPO MultiBinary"]  # fmt: skip


@pytest.mark.parametrize("case", SAMPLED)
def test_draws_are_distributed_as_those_of_predict(case: str):
    """Of one observation many actions, ours and those of SB3."""
    rows = 200 if "image" in case or "Dict" in case else 4000
    one = batch(CASES[case][2], 1)
    tiled = (
        {key: np.repeat(value, rows, 0) for key, value in one.items()}
        if isinstance(one, dict)
        else np.repeat(one, rows, 0)
    )
    ours = act(loaded(case, "sample"), tiled, rows).reshape(rows, -1).astype(np.float64)
    theirs = made(case)[0].predict(tiled, deterministic=False)[0].reshape(rows, -1).astype(np.float64)
    slack = 5 * np.maximum(theirs.std(axis=0), 1e-9) / np.sqrt(rows) + 1e-6
    assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 1.5 * slack).all()
    assert (np.abs(ours.std(axis=0) - theirs.std(axis=0)) < 1.5 * slack).all()
    space = CASES[case][3]
    assert ours.min() >= space.low.min() and ours.max() <= space.high.max() if isinstance(space, spaces.Box) else True


@pytest.mark.parametrize("case", SAMPLED)
def test_the_same_uniforms_give_the_same_actions(case: str):
    observations = batch(CASES[case][2], 16)
    model = loaded(case, "sample")
    first, again, other = (act(model, observations, 16, seed) for seed in (0, 0, 1))
    assert first.tobytes() == again.tobytes() and first.tobytes() != other.tobytes()


def test_dqn_explores_as_often_as_its_file_says():
    dqn, _ = made("DQN CartPole")
    dqn.exploration_rate = 0.5
    model = load_model(source_of(saved(dqn), "sample"), CART, TWO)
    observations = np.zeros((4000, 4), np.float32)
    greedy = act(loaded("DQN CartPole"), observations, 4000)
    share = (act(model, observations, 4000) != greedy).mean()
    assert abs(share - 0.25) < 0.03
    dqn.exploration_rate = 0.0
    assert load_model(source_of(saved(dqn), "sample"), CART, TWO).num_uniforms == 0


@pytest.mark.parametrize(
    ("case", "message"), [("TD3 Pendulum", "nothing to draw from"), ("PPO gSDE", "use_sde"), ("SAC gSDE", "use_sde")]
)
def test_what_cannot_be_drawn_is_refused(case: str, message: str):
    with pytest.raises(UsageError, match=rf"--policy p.zip: .*{message}.*; use --policy-mode deterministic"):
        loaded(case, "sample")


@pytest.mark.parametrize(
    ("case", "observations", "actions", "message"),
    [
        ("PPO CartPole", SWING, TWO, r"learned with observations in Box\(.*shape=\[4\].*, the envs have Box"),
        (
            "PPO CartPole",
            CART,
            spaces.Discrete(3),
            r"learned with actions in Discrete\(n=2.*, the envs have Discrete\(3\)",
        ),
        ("PPO CartPole", CART, TORQUE, r"learned with actions in Discrete\(n=2.*the envs have Box"),
        ("PPO Pendulum", SWING, spaces.Box(-1, 1, (1,)), r"learned with actions in Box\(.*\[-2"),
        ("PPO CartPole", CART, spaces.Discrete(2, start=1), "Discrete"),
        ("PPO image", spaces.Box(0, 255, (84, 84, 3), np.uint8), spaces.Discrete(4), "learned with observations"),
        ("PPO image", spaces.Box(0, 255, (84, 84, 1)), spaces.Discrete(4), "learned with observations"),
        ("PPO Dict", CART, TWO, "learned with observations"),
        ("PPO Dict", spaces.Dict(GOAL.spaces | {"more": CART}), TWO, "learned with observations in Dict"),
        ("PPO MultiDiscrete", spaces.MultiDiscrete([3, 3]), spaces.MultiDiscrete([2, 3]), "learned with obs"),
        ("PPO CartPole", spaces.Tuple([CART]), TWO, "SB3 takes no observations that are nested"),
    ],
)
def test_other_spaces_are_refused(case: str, observations: spaces.Space, actions: spaces.Space, message: str):
    with pytest.raises(UsageError, match=message) as raised:
        load_model(source_of(made(case)[1]), observations, actions)
    assert "\n" not in str(raised.value)


GOALS = dict(GOAL.spaces)
OTHER_GOALS = {
    "names": {"image": GOALS["image"], "goal": GOALS["place"]},
    "a type": {**GOALS, "place": spaces.Discrete(2)},
    "a shape": {**GOALS, "place": spaces.Box(-1, 1, (1, 2))},
    "one less": {"image": GOALS["image"]},
}


@pytest.mark.parametrize("case", OTHER_GOALS)
def test_observations_of_other_parts_are_refused(case: str):
    with pytest.raises(
        UsageError, match=r"learned with observations in Dict\(spaces=\{'image': Box\(.*, the envs have"
    ):
        load_model(source_of(made("PPO Dict")[1]), spaces.Dict(OTHER_GOALS[case]), TWO)


def test_parts_are_known_in_the_words_of_older_versions():
    from mpi_rollout.policies.sb3_spaces import learned_space

    part = "Box([-1. -1.], [1.\n 1.], (2,), float32)"
    saved = {"spaces": f"OrderedDict([('place', {part}), (\"it's\", Discrete(3)), ('bits', MultiBinary(4))])"}
    space = spaces.Dict({"place": spaces.Box(-1, 1, (2,)), "it's": spaces.Discrete(3), "bits": spaces.MultiBinary(4)})
    assert learned_space(space, saved) == space
    with pytest.raises(UsageError, match="learned with"):
        learned_space(spaces.Dict({**space.spaces, "it's": spaces.Discrete(4)}), saved)


def test_images_may_come_with_the_channels_first():
    """As the policy has learned on them, behind SB3's VecTransposeImage."""
    first = spaces.Box(0, 255, (1, 84, 84), np.uint8)
    observations = batch(first)
    model = load_model(source_of(made("PPO image")[1]), first, spaces.Discrete(4))
    expected, _ = made("PPO image")[0].predict(observations, deterministic=True)
    assert act(model, observations).tobytes() == expected.tobytes()


def changed(content: bytes, edit: Callable[[dict], None] = lambda data: None, **members: bytes) -> bytes:
    """A file with other data and members."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        data = json.loads(old.read("data"))
        edit(data)
        contents = {name: old.read(name) for name in old.namelist()} | {"data": json.dumps(data).encode()}
        for name, content in (
            contents | {key.replace("_pth", ".pth"): value for key, value in members.items()}
        ).items():
            new.writestr(name, content)
    return file.getvalue()


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("entry", ["policy_class", "policy_kwargs", "observation_space", "lr_schedule"])
def test_pickled_code_is_not_executed(entry: str, tmp_path: Path):
    trap = tmp_path / "sprung"
    pickled = base64.b64encode(pickle.dumps(Trap(trap))).decode()

    def edit(data: dict) -> None:
        if not isinstance(data[entry], dict):
            data[entry] = {}
        data[entry] |= {":type:": "<class 'dict'>", ":serialized:": pickled}

    content = changed(made("PPO CartPole")[1], edit)
    try:
        load_model(source_of(content), CART, TWO)
    except UsageError as error:
        assert entry == "policy_class" and "none of PPO, A2C, DQN, SAC and TD3" in str(error)
    assert not trap.exists()
    with pytest.raises(UsageError) if entry.startswith("policy") else pytest.MonkeyPatch.context():
        load_model(source_of(content, is_trusted=True), CART, TWO)
    assert trap.exists()  # So it is a trap.


def test_code_in_the_place_of_weights_is_not_executed(tmp_path: Path):
    trap = tmp_path / "sprung"
    content = changed(made("PPO CartPole")[1], policy_pth=pickle.dumps(Trap(trap)))
    for is_trusted in (False, True):
        with pytest.raises(UsageError, match=r"policy\.pth|SB3 cannot read"):
            load_model(source_of(content, is_trusted=is_trusted), CART, TWO)
    assert not trap.exists()


def test_arguments_that_are_classes_of_torch_need_no_trust():
    import torch

    arguments = {"activation_fn": torch.nn.ReLU, "net_arch": {"pi": [8], "vf": [4]}}
    model, content = made.__wrapped__("A2C CartPole", policy_kwargs=arguments)
    expected, _ = model.predict(batch(CART), deterministic=True)
    assert act(load_model(source_of(content), CART, TWO), batch(CART)).tobytes() == expected.tobytes()


def test_arguments_that_are_code_need_trust():
    from torch import nn

    class Swish(nn.SiLU):
        pass

    Swish.__qualname__ = "Swish"

    model, content = made.__wrapped__("PPO CartPole", policy_kwargs={"activation_fn": Swish})
    with pytest.raises(UsageError, match=r"policy_kwargs have activation_fn=<class .*Swish.*add --trust-policy"):
        load_model(source_of(content), CART, TWO)
    expected, _ = model.predict(batch(CART), deterministic=True)
    trusted = load_model(source_of(content, is_trusted=True), CART, TWO)
    assert act(trusted, batch(CART)).tobytes() == expected.tobytes()


def test_policies_of_other_packages_are_refused():
    from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

    class Derived(ActorCriticPolicy):
        pass

    def edit(kind: type) -> Callable[[dict], None]:
        import cloudpickle

        def put(data: dict) -> None:
            data["policy_class"][":serialized:"] = base64.b64encode(cloudpickle.dumps(kind)).decode()

        return put

    base = changed(made("PPO CartPole")[1], edit(BasePolicy))
    with pytest.raises(UsageError, match=r"is stable_baselines3.common.policies.BasePolicy, none of PPO, A2C"):
        load_model(source_of(base), CART, TWO)
    derived = changed(made("PPO CartPole")[1], edit(Derived))
    with pytest.raises(UsageError, match=r"a class of its own, none of PPO.*add --trust-policy"):
        load_model(source_of(derived), CART, TWO)
    expected = act(loaded("PPO CartPole"), batch(CART))
    assert np.array_equal(act(load_model(source_of(derived, is_trusted=True), CART, TWO), batch(CART)), expected)


def test_weights_of_another_network_are_refused():
    content = changed(made("PPO CartPole")[1], lambda data: data.update(policy_kwargs={"net_arch": [5]}))
    with pytest.raises(UsageError, match=r"ActorCriticPolicy cannot be made .* size mismatch") as raised:
        load_model(source_of(content), CART, TWO)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("members", [{"data": b"{"}, {"data": b"[]"}, {"policy_pth": b"x"}], ids=str)
def test_damaged_members_are_refused(members: dict):
    with pytest.raises(UsageError, match=r"--policy p.zip: .*damaged"):
        load_model(source_of(changed(made("PPO CartPole")[1], **members)), CART, TWO)


@pytest.mark.parametrize("mode", ["deterministic", "sample"])
@pytest.mark.parametrize("case", ["PPO CartPole", "DQN CartPole"])
def test_observations_that_are_not_numbers_give_no_actions(case: str, mode: str):
    with pytest.raises(ActionError, match=r"the policy"):
        act(loaded(case, mode), np.full((64, 4), np.nan, np.float32))


def test_loading_and_acting_leave_the_process_as_it_was():
    import torch

    made("PPO CartPole")
    num_threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        act(loaded("PPO CartPole"), batch(CART))
        assert torch.get_num_threads() == 2 and torch.equal(torch.get_rng_state(), state)
        assert torch.is_grad_enabled()
    finally:
        torch.set_num_threads(num_threads)
