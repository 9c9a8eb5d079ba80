"""Policies that sb3-contrib saved, against their own `predict`: RecurrentPPO and MaskablePPO."""

import json
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from policy_files import CART, SWING, TORQUE, TWO, Still, assert_refused, batch, changed, saved
from policy_files import load_sb3 as load

from mpi_rollout.errors import ActionError, as_flag
from mpi_rollout.policies.blocks import BlockPolicy

pytestmark = pytest.mark.skipif(find_spec("sb3_contrib") is None, reason="pip install sb3-contrib")

GOAL = spaces.Dict(image=spaces.Box(0, 255, (36, 36, 3), np.uint8), place=spaces.Box(-1, 1, (2,)))
PARTS, FIVE = spaces.MultiDiscrete([2, 3]), spaces.Discrete(5)
SMALL = {"lstm_hidden_size": 16}
# Name: algorithm, policy, observation space, action space, arguments of the policy.
CASES: dict[str, tuple[str, str, spaces.Space, spaces.Space, dict]] = {
    "LSTM": ("RecurrentPPO", "MlpLstmPolicy", CART, TWO, SMALL),
    "layers": ("RecurrentPPO", "MlpLstmPolicy", SWING, TORQUE, SMALL | {"n_lstm_layers": 2, "net_arch": [8]}),
    "shared": (
        *("RecurrentPPO", "MultiInputLstmPolicy", GOAL, PARTS),
        SMALL | {"shared_lstm": True, "enable_critic_lstm": False},
    ),
    "masks": ("MaskablePPO", "MlpPolicy", CART, FIVE, {}),
    "masks of parts": ("MaskablePPO", "MultiInputPolicy", GOAL, PARTS, {}),
    "masks of bits": ("MaskablePPO", "MlpPolicy", CART, spaces.MultiBinary(3), {}),
}
WITH_STATE, WITH_MASKS = ["LSTM", "layers", "shared"], ["masks", "masks of parts", "masks of bits"]
ROWS = 70


@cache
def made(case: str) -> tuple[Any, bytes]:
    """A model of sb3-contrib with weights that are not its first ones, and its file."""
    import sb3_contrib
    import torch

    algorithm, policy, observations, actions, arguments = CASES[case]
    env = Still(observations, actions)
    model = getattr(sb3_contrib, algorithm)(policy, env, device="cpu", seed=1, policy_kwargs=dict(arguments))
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model, saved(model)


def asked(case: str, mode: str = "deterministic", is_trusted: bool = False) -> BlockPolicy:
    model = load(made(case)[1], *CASES[case][2:4], mode, is_trusted)
    return BlockPolicy(model, *CASES[case][2:4], range(ROWS), block=ROWS)


def acted(policy: BlockPolicy, observations: Any, step: int, starts: np.ndarray, infos: dict[str, np.ndarray]) -> Any:
    policy.view.resume(np.where(starts, step, -1), step, infos)
    return policy(observations, step).actions


def starts_of(step: int) -> np.ndarray:
    return np.random.default_rng(step).random(ROWS) < (0.2 if step % 2 else 0)


@pytest.mark.parametrize(("case", "is_trusted"), [*((case, False) for case in WITH_STATE), ("LSTM", True)])
def test_a_recurrent_policy_acts_bit_for_bit_as_predict_does(case: str, is_trusted: bool):
    policy, state, seen = asked(case, is_trusted=is_trusted), None, []
    for step in range(12):
        observations, starts = batch(CASES[case][2], ROWS), starts_of(step) if step else np.ones(ROWS, bool)
        expected, state = made(case)[0].predict(observations, state, starts, deterministic=True)
        got = acted(policy, observations, step, starts, {})
        assert got.dtype == expected.dtype and got.tobytes() == expected.tobytes()
        seen.append(got)
    assert case == "shared" or (seen[0] != seen[-1]).any()  # By its state: what it sees is the same.


@pytest.mark.parametrize("case", WITH_MASKS)
def test_a_policy_with_masks_acts_bit_for_bit_as_predict_does(case: str):
    policy, observations = asked(case), batch(CASES[case][2], ROWS)
    sizes = {"masks": [5], "masks of parts": [2, 3], "masks of bits": [2, 2, 2]}[case]
    masks, has_mask = np.random.default_rng(0).integers(0, 2, (ROWS, sum(sizes)), np.int8), np.arange(ROWS) % 7 > 0
    masks[:, np.cumsum(sizes) - 1] = 1
    infos = {"action_mask": masks, "_action_mask": has_mask}
    given = masks.astype(bool) | ~has_mask[:, None]
    expected, _ = made(case)[0].predict(observations, deterministic=True, action_masks=given)
    got = acted(policy, observations, 0, np.ones(ROWS, bool), infos)
    assert got.dtype == expected.dtype and got.tobytes() == expected.tobytes()
    assert (got != made(case)[0].predict(observations, deterministic=True)[0]).any()
    with pytest.raises(ActionError) as refused:
        acted(policy, observations, 0, np.ones(ROWS, bool), {"lives": has_mask, "_lives": has_mask})
    types = f"""'{{"action_mask": ["int8", {sum(sizes)}]}}'"""
    words = f"MaskablePPO needs the info 'action_mask', got lives; store it too: --store-infos {types} for action masks"
    assert refused.value.shown(as_flag).startswith(words)


@pytest.mark.parametrize("case", ["LSTM", "layers", "masks"])
def test_draws_are_distributed_as_those_of_predict(case: str):
    """Many actions of a few observations, by a state and masks that are not the first ones."""
    import torch

    model, policy = made(case)[0], asked(case, "sample")
    observations, ours, theirs, state = batch(CASES[case][2], ROWS), [], [], None
    masks = np.tile([1, 0, 1, 1, 0], (ROWS, 1))
    infos = {"action_mask": masks, "_action_mask": np.ones(ROWS, bool)} if case == "masks" else {}
    more = {"action_masks": masks} if infos else {}
    torch.manual_seed(0)
    for step in range(60):
        starts = np.full(ROWS, step % 3 == 0)
        actions, state = model.predict(observations, state, starts, deterministic=False, **more)
        ours.append(acted(policy, observations, step, starts, infos))
        theirs.append(actions)
    if infos:
        assert set(np.unique(ours)) == {0, 2, 3}
    shares = [np.reshape(parts, (60, ROWS)).astype(float) for parts in (ours, theirs)]
    slack = 5 * shares[1].std() / np.sqrt(shares[1].size)
    assert abs(shares[0].mean() - shares[1].mean()) < 1.5 * slack
    by_row = [part.mean(axis=0) for part in shares]
    assert abs(by_row[0] - by_row[1]).max() < 7 * shares[1].std() / np.sqrt(60)


def test_what_cannot_be_drawn_is_refused():
    with assert_refused(r"MaskablePPO has nothing to draw from for MultiBinary\(3\) here; use policy_mode=deter"):
        asked("masks of bits", "sample")


def with_arguments(edit: Callable[[dict], Any]) -> bytes:
    def edited(old: bytes) -> bytes:
        data = json.loads(old)
        edit(data["policy_kwargs"])
        return json.dumps(data).encode()

    return changed(made("LSTM")[1], "data", edited)


@pytest.mark.parametrize("name", ["lstm_hidden_size", "n_lstm_layers"])
def test_sizes_that_the_weights_do_not_have_are_refused(name: str):
    with assert_refused(f"the file is damaged: {name}=1000000000, and its weights are of at most"):
        load(with_arguments(lambda arguments: arguments.update({name: 10**9})), CART, TWO)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "sb3_contrib.common.recurrent.policies", None)
    with assert_refused("policy p.zip: the policy needs sb3-contrib; pip install sb3-contrib"):
        load(made("LSTM")[1], CART, TWO)
