"""Policies that Stable-Baselines3 saved, against its own `predict`."""

import base64
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from policy_files import (
    CART,
    SWING,
    TORQUE,
    TWO,
    Still,
    Trap,
    act,
    assert_refused,
    batch,
    changed,
    saved,
    zipped,
)
from policy_files import load_sb3 as load

from mpi_rollout.errors import ActionError, UsageError
from mpi_rollout.policies.model import Model

pytestmark = pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="pip install 'mpi_rollout[sb3]'")

IMAGE = spaces.Box(0, 255, (36, 36, 1), np.uint8)
GOAL = spaces.Dict(image=spaces.Box(0, 255, (36, 36, 3), np.uint8), place=spaces.Box(-1, 1, (2,)))
SMALL = {"net_arch": [16]}


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


def loaded(case: str, mode: str = "deterministic", is_trusted: bool = False) -> Model:
    return load(made(case)[1], *CASES[case][2:4], mode, is_trusted)


TRUSTED = "DQN CartPole", "SAC Pendulum", "PPO gSDE", "PPO Dict"


@pytest.mark.parametrize(
    ("case", "is_trusted"), [*((case, False) for case in CASES), *((case, True) for case in TRUSTED)]
)
def test_it_acts_bit_for_bit_as_predict_does(case: str, is_trusted: bool):
    observations = batch(CASES[case][2])
    model = loaded(case, is_trusted=is_trusted)
    expected, _ = made(case)[0].predict(observations, deterministic=True)
    got = act(model, observations)
    assert model.num_uniforms == 0 and got.dtype == expected.dtype and got.tobytes() == expected.tobytes()
    assert len(np.unique(got, axis=0)) > 1


def test_actions_outside_of_their_bounds_are_set_to_them():
    for mode in ("deterministic", "sample"):
        assert np.abs(act(loaded("PPO narrow", mode), batch(SWING))).max() == np.float32(0.05)


SAMPLED = ["PPO CartPole", "PPO Pendulum", "SAC Pendulum", "PPO image", "PPO Dict",
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


def test_dqn_explores_as_often_as_its_file_says():
    dqn, _ = made("DQN CartPole")
    dqn.exploration_rate = 0.5
    model = load(saved(dqn), mode="sample")
    observations = np.zeros((4000, 4), np.float32)
    greedy = act(loaded("DQN CartPole"), observations, 4000)
    share = (act(model, observations, 4000) != greedy).mean()
    assert abs(share - 0.25) < 0.03
    dqn.exploration_rate = 0.0
    assert load(saved(dqn), mode="sample").num_uniforms == 0


@pytest.mark.parametrize(
    ("case", "message"), [("TD3 Pendulum", "nothing to draw from"), ("PPO gSDE", "use_sde"), ("SAC gSDE", "use_sde")]
)
def test_what_cannot_be_drawn_is_refused(case: str, message: str):
    with assert_refused(rf"policy p.zip: .*{message}.*; use policy_mode=deterministic"):
        loaded(case, "sample")


PARTS = dict(GOAL.spaces)
OTHER_PARTS = r"learned with observations in Dict\(spaces=\{'image': Box\(.*, the envs have"


@pytest.mark.parametrize(
    ("case", "observations", "actions", "message"),
    [
        ("PPO CartPole", SWING, TWO, r"learned with observations in Box\(.*shape=\[4\].*, the envs have Box"),
        ("PPO CartPole", CART, spaces.Discrete(3), r"with actions in Discrete\(n=2.*, the envs have Discrete\(3\)"),
        ("PPO CartPole", CART, TORQUE, r"learned with actions in Discrete\(n=2.*the envs have Box"),
        ("PPO Pendulum", SWING, spaces.Box(-1, 1, (1,)), r"learned with actions in Box\(.*\[-2"),
        ("PPO CartPole", CART, spaces.Discrete(2, start=1), "Discrete"),
        ("PPO image", spaces.Box(0, 255, (36, 36, 3), np.uint8), spaces.Discrete(4), "learned with observations"),
        ("PPO image", spaces.Box(0, 255, (36, 36, 1)), spaces.Discrete(4), "learned with observations"),
        ("PPO MultiDiscrete", spaces.MultiDiscrete([3, 3]), spaces.MultiDiscrete([2, 3]), "learned with obs"),
        ("PPO CartPole", spaces.Tuple([CART]), TWO, "SB3 takes no observations that are nested"),
        ("PPO Dict", CART, TWO, "learned with observations"),
        ("PPO Dict", spaces.Dict(PARTS | {"more": CART}), TWO, OTHER_PARTS),
        ("PPO Dict", spaces.Dict(image=PARTS["image"], goal=PARTS["place"]), TWO, OTHER_PARTS),
        ("PPO Dict", spaces.Dict(PARTS | {"place": TWO}), TWO, OTHER_PARTS),
        (
            "PPO Dict",
            spaces.Dict(PARTS | {"place": spaces.Box(-1, 1, (3,))}),
            TWO,
            "cannot be made for .* size mismatch",
        ),
        ("PPO Dict", spaces.Dict(image=PARTS["image"]), TWO, OTHER_PARTS),
    ],
)
def test_other_spaces_are_refused(case: str, observations: spaces.Space, actions: spaces.Space, message: str):
    content = made(case)[1]
    with assert_refused(message):
        load(content, observations, actions)


def test_parts_are_known_in_the_words_of_older_versions():
    from mpi_rollout.policies.sb3 import learned_space

    part = "Box([-1. -1.], [1.\n 1.], (2,), float32)"
    saved = {"spaces": f"OrderedDict([('place', {part}), (\"it's\", Discrete(3)), ('bits', MultiBinary(4))])"}
    space = spaces.Dict({"place": spaces.Box(-1, 1, (2,)), "it's": spaces.Discrete(3), "bits": spaces.MultiBinary(4)})
    assert learned_space(space, saved) == space
    with pytest.raises(UsageError, match="learned with"):
        learned_space(spaces.Dict({**space.spaces, "it's": spaces.MultiBinary(3)}), saved)


def test_images_may_come_with_the_channels_first():
    """As the policy has learned on them, behind SB3's VecTransposeImage."""
    first = spaces.Box(0, 255, (1, 36, 36), np.uint8)
    observations = batch(first)
    model = load(made("PPO image")[1], first, spaces.Discrete(4))
    expected, _ = made("PPO image")[0].predict(observations, deterministic=True)
    assert act(model, observations).tobytes() == expected.tobytes()


def with_data(case: str = "PPO CartPole", edit: Callable[[dict], Any] = dict.items, **entries: Any) -> bytes:
    """A file with other data."""

    def edited(old: bytes) -> bytes:
        data = json.loads(old) | entries
        edit(data)
        return json.dumps(data).encode()

    return changed(made(case)[1], "data", edited)


def with_member(name: str, content: bytes) -> bytes:
    """A compressed file with another member."""
    return changed(made("PPO CartPole")[1], name, lambda _: content, zipfile.ZIP_DEFLATED)


@pytest.mark.parametrize("entry", ["policy_class", "policy_kwargs", "observation_space", "lr_schedule"])
def test_pickled_code_is_not_executed(entry: str, tmp_path: Path):
    trap = tmp_path / "sprung"
    pickled = base64.b64encode(pickle.dumps(Trap(trap))).decode()

    def edit(data: dict) -> None:
        if not isinstance(data[entry], dict):
            data[entry] = {}
        data[entry] |= {":type:": "<class 'dict'>", ":serialized:": pickled}

    content = with_data(edit=edit)
    try:
        load(content)
    except UsageError as error:
        assert entry == "policy_class" and "none of PPO, A2C, DQN, SAC, TD3, RecurrentPPO and" in str(error)
    assert not trap.exists()
    with pytest.raises(UsageError) if entry.startswith("policy") else pytest.MonkeyPatch.context():
        load(content, is_trusted=True)
    assert trap.exists()  # So it is a trap.


def test_code_in_the_place_of_weights_is_not_executed(tmp_path: Path):
    trap = tmp_path / "sprung"
    content = with_member("policy.pth", pickle.dumps(Trap(trap)))
    for is_trusted in (False, True):
        with assert_refused(r"policy\.pth|SB3 cannot read"):
            load(content, is_trusted=is_trusted)
    assert not trap.exists()


CALLS = {  # Pickles that call what torch's own reader of weights calls, or what sets attributes.
    "code": lambda trap: pickle.dumps(Trap(trap), protocol=2),
    "bytes": lambda _: b"\x80\x02c__builtin__\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85R.",
    "an object": lambda _: pickle.dumps({"a": Path("x")}, protocol=2),
    "a list": lambda _: pickle.dumps([1], protocol=2),
    "text": lambda _: pickle.dumps({"a": "b"}, protocol=2),
    "memory": lambda _: b"\x80\x02}r\xff\xff\xff\x7f.",
}


def weights_with(ending: str, edit: Callable[[bytes], bytes]) -> bytes:
    """A file whose policy.pth has other members."""
    return changed(made("PPO CartPole")[1], "policy.pth", lambda old: changed(old, ending, edit))


@pytest.mark.parametrize("case", CALLS)
def test_a_pickle_of_weights_may_only_name_weights(case: str, tmp_path: Path):
    trap = tmp_path / "sprung"
    with assert_refused(r"its policy\.pth: (has code instead|the file is damaged)|cannot be made"):
        load(weights_with("data.pkl", lambda _: CALLS[case](trap)))
    assert not trap.exists()


def state_dict(**tensors: Any) -> bytes:
    import torch

    file = io.BytesIO()
    torch.save(tensors, file)
    return file.getvalue()


def zip_in_zip() -> bytes:
    """It is large beside its file, since zeros that are not compressed are in it."""
    inner = io.BytesIO(zipped({"a/data.pkl": b"\x80\x02}.", "a/large": bytes(80 << 20)}, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(inner, "a") as archive:
        archive.writestr("a/padding", bytes(40 << 20))
    return inner.getvalue()


LONG_PICKLE = b"\x80\x02}" + b"q\x00" * (1 << 20) + b"."
MEMBERS: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut": (
        lambda: weights_with("", lambda old: old[:40] if len(old) == 1024 else old),
        r"policy\.pth: the file is damaged: record size",
    ),
    "a zip in a zip": (
        lambda: with_member("policy.pth", zip_in_zip()),
        r"policy\.pth: the file is damaged: its [\d,]+ bytes claim to unpack to 125,8",
    ),
    "more pickle than names": (
        lambda: with_member("policy.pth", zipped({"a/data.pkl": LONG_PICKLE}, zipfile.ZIP_DEFLATED)),
        r"a pickle of 2,097,156 bytes in 1 members",
    ),
    "much JSON": (lambda: with_member("data", b"[" + b"[{}]," * 10**6 + b"0]"), r"bytes have JSON of 5,000,003"),
    "deep lists": (lambda: with_member("data", b"[" * 200_000 + b"]" * 200_000), "policy p.zip: the file is damaged"),
    "deep objects": (
        lambda: with_member("data", b'{"a":' * 200_000 + b"1" + b"}" * 200_000), "policy p.zip: the file is damaged"
    ),
    "half an object": (lambda: with_member("data", b"{"), "policy p.zip: .*damaged"),
    "no object": (lambda: with_member("data", b"[]"), "policy p.zip: .*damaged"),
    "no weights": (lambda: with_member("policy.pth", b"x"), "policy p.zip: .*damaged"),
    "much": (lambda: with_member("data", bytes(80 << 20)), r"damaged: its [\d,]+ bytes claim to unpack to 83,9"),
    "another zip": (lambda: zipped({"a.txt": b"a"}), "the file is damaged: 'data'"),
    "empty": (lambda: b"", "the file is damaged"),
    "half a zip": (lambda: made("PPO CartPole")[1][:400], "the file is damaged"),
    "a changed byte": (
        lambda: zipped({"data": b"content"}).replace(b"content", b"contend", 1), "damaged: Bad CRC-32 for file 'data'"
    ),
    "a member twice": (lambda: zipped({"data": b"", "date": b""}).replace(b"date", b"data"), "twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", MEMBERS)
def test_members_that_are_damaged_or_large_are_refused(case: str):
    make, message = MEMBERS[case]
    content = make()
    with assert_refused(message):
        load(content)


SIZES: dict[str, tuple[str, dict, str]] = {
    "units": ("PPO CartPole", {"net_arch": [10**9]}, "net_arch=1000000000, and its weights are of at most 64"),
    "many units": ("PPO CartPole", {"net_arch": {"pi": [64, 65]}}, "pi=65, and its weights are of at most 64"),
    "layers": ("PPO CartPole", {"net_arch": [1] * 10**5}, "100,000 layers, and 12 weights"),
    "critics": ("SAC Pendulum", {"n_critics": 10**9}, r"n_critics=1000000000, and its weights are of at most \d\d\b"),
    "features": ("PPO image", {"features_extractor_kwargs": {"features_dim": 10**9}}, "features_dim=1000000000"),
    "other units": ("PPO CartPole", {"net_arch": [64, 64, 64]}, "cannot be made for .* Missing key|size mismatch"),
    "few units": ("PPO CartPole", {"net_arch": [5]}, "ActorCriticPolicy cannot be made .* size mismatch"),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_are_judged_before_anything_is_made_of_them(case: str):
    name, arguments, message = SIZES[case]
    content = with_data(name, policy_kwargs=arguments)
    with assert_refused(message):
        load(content, *CASES[name][2:4])


def test_a_network_as_wide_as_a_weight_is_long_takes_no_memory():
    """Its weights are those of one long vector: 40,000 units of 40,000 inputs would take 6.4 GB."""
    import torch

    weights = state_dict(**{f"x{index}": torch.zeros(40_000) for index in range(4)})
    content = changed(with_data(policy_kwargs={"net_arch": [40_000, 40_000]}), "policy.pth", lambda _: weights)
    with assert_refused(r"ActorCriticPolicy cannot be made for .* Missing key"):
        load(content)


@pytest.mark.parametrize(
    "space", [{"spaces": "'" * 10**5}, {"n": "9" * 10**4}, {"_shape": [[1]]}, {"dtype": []}, {"low": {"a": 1}}], ids=str
)
def test_spaces_of_any_words_are_read_or_refused_soon(space: dict):
    content = with_data(observation_space=space)
    for observations in (CART, spaces.Dict(place=spaces.Box(-1, 1, (2,)))):
        try:
            load(content, observations)
        except UsageError as error:
            assert "\n" not in str(error)


def test_arguments_that_are_classes_of_torch_need_no_trust():
    import torch

    arguments = {"activation_fn": torch.nn.ReLU, "net_arch": {"pi": [8], "vf": [4]}}
    model, content = made.__wrapped__("A2C CartPole", policy_kwargs=arguments)
    expected, _ = model.predict(batch(CART), deterministic=True)
    assert act(load(content), batch(CART)).tobytes() == expected.tobytes()


def test_arguments_that_are_code_need_trust():
    from torch import nn

    class Swish(nn.SiLU):
        pass

    Swish.__qualname__ = "Swish"

    model, content = made.__wrapped__("PPO CartPole", policy_kwargs={"activation_fn": Swish})
    with assert_refused(r"policy_kwargs have activation_fn=<class .*Swish.*add trust_policy"):
        load(content)
    expected, _ = model.predict(batch(CART), deterministic=True)
    trusted = load(content, is_trusted=True)
    assert act(trusted, batch(CART)).tobytes() == expected.tobytes()


def test_policies_of_other_packages_are_refused():
    import cloudpickle
    from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy

    class Derived(ActorCriticPolicy):
        pass

    def of_class(kind: type) -> bytes:
        return with_data(policy_class={":serialized:": base64.b64encode(cloudpickle.dumps(kind)).decode()})

    with assert_refused(r"is stable_baselines3.common.policies.BasePolicy, none of PPO, A2C"):
        load(of_class(BasePolicy))
    with assert_refused(r"a class of its own, none of PPO.*add trust_policy"):
        load(of_class(Derived))
    expected = act(loaded("PPO CartPole"), batch(CART))
    assert np.array_equal(act(load(of_class(Derived), is_trusted=True), batch(CART)), expected)


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
