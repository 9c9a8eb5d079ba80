"""Policies in ONNX files, as torch and Stable-Baselines3's recipe export them."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.files import load_model, read_source
from mpi_rollout.policies.model import Model, sha256_of

MISSING = [name for name in ("onnxruntime", "onnx", "onnxscript", "torch") if find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"pip install {' '.join(MISSING)}"),
    pytest.mark.filterwarnings("ignore"),
]

CART, TWO, TORQUE = spaces.Box(-np.inf, np.inf, (4,)), spaces.Discrete(2), spaces.Box(-2, 2, (1,))
DOUBLES = spaces.Box(-1, 1, (4,), np.float64)
PARTS = spaces.Dict(place=spaces.Box(-1, 1, (3,)), target=spaces.Dict(goal=spaces.Box(-1, 1, (2,))))


def network(name: str) -> Any:
    import torch
    from torch import nn

    class Gaussian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.log_std = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.mean(observations), self.log_std(observations)

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, place: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.cat([place, goal], dim=1))

    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
    return {"logits": mlp, "gaussian": Gaussian(), "parts": Parts()}[name]


NAMES: dict[str, tuple[list[str], list[str], list[tuple[int, ...]]]] = {
    "logits": (["observations"], ["logits"], [(5, 4)]),
    "gaussian": (["observations"], ["mean", "log_std"], [(5, 4)]),
    "parts": (["place", "target/goal"], ["logits"], [(5, 3), (5, 2)]),
}


@cache
def files_of(name: str, is_dynamic: bool = True, is_external: bool = False) -> dict[str, bytes]:
    """The files that torch exports, by name."""
    import torch

    inputs, outputs, shapes = NAMES[name]
    with TemporaryDirectory() as folder:
        torch.onnx.export(
            network(name),
            tuple(torch.rand(shape) for shape in shapes),
            f"{folder}/p.onnx",
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=tuple({0: "batch"} for _ in shapes) if is_dynamic else None,
            external_data=is_external,
            verbose=False,
        )
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def load(
    files: dict[str, bytes],
    folder: Path,
    observations: spaces.Space,
    actions: spaces.Space,
    mode: str = "deterministic",
) -> Model:
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return load_model(read_source(str(folder / "p.onnx"), mode, is_trusted=False), observations, actions)


def batch(space: spaces.Box, rows: int = 64) -> np.ndarray:
    space.seed(3)
    return np.stack([space.sample() for _ in range(rows)])


def act(model: Model, observations: Any, rows: int = 64, seed: int = 0) -> np.ndarray:
    return model.act(observations, np.arange(rows), np.random.default_rng(seed).random((rows, model.num_uniforms)))


def test_logits_become_actions(tmp_path: Path):
    import torch

    observations = batch(CART)
    got = act(load(files_of("logits"), tmp_path, CART, TWO), observations)
    with torch.no_grad():
        expected = network("logits")(torch.from_numpy(observations)).argmax(dim=1).numpy()
    assert np.array_equal(got, expected) and got.dtype == np.int64 and len(np.unique(got)) == 2


def test_logits_are_drawn_from(tmp_path: Path):
    import torch

    observations = np.repeat(batch(CART, 1), 4000, 0)
    with torch.no_grad():
        share = network("logits")(torch.from_numpy(observations[:1])).softmax(dim=1)[0, 1].item()
    model = load(files_of("logits"), tmp_path, CART, TWO, "sample")
    assert abs(act(model, observations, 4000).mean() - share) < 0.03


def test_a_mean_is_the_action_and_may_be_drawn_around(tmp_path: Path):
    import torch

    observations = batch(CART)
    got = act(load(files_of("gaussian"), tmp_path, CART, TORQUE), observations)
    with torch.no_grad():
        mean, _ = network("gaussian")(torch.from_numpy(observations))
    assert np.allclose(got, mean.numpy(), atol=1e-5) and got.dtype == np.float32
    model = load(files_of("gaussian"), tmp_path, CART, TORQUE, "sample")
    first, again, other = (act(model, observations, seed=seed).tobytes() for seed in (0, 0, 1))
    assert first == again != other and np.abs(act(model, observations)).max() <= 2


def test_inputs_are_named_after_parts_of_the_observations(tmp_path: Path):
    place, goal = batch(PARTS["place"]), batch(PARTS["target"]["goal"])
    model = load(files_of("parts"), tmp_path, PARTS, TWO)
    assert set(act(model, {"place": place, "target": {"goal": goal}})) == {0, 1}


def test_doubles_become_floats(tmp_path: Path):
    observations = batch(DOUBLES)
    model = load(files_of("logits"), tmp_path, DOUBLES, TWO)
    assert np.array_equal(act(model, observations), act(model, observations.astype(np.float32)))


def test_weights_in_a_file_beside_it_are_read(tmp_path: Path):
    files = files_of("logits", is_external=True)
    if len(files) == 1:
        pytest.skip("this torch puts them into the file")
    observations = batch(CART)
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.mkdir()
    outer.mkdir()
    expected = act(load(files_of("logits"), inner, CART, TWO), observations)
    assert np.array_equal(act(load(files, outer, CART, TWO), observations), expected)
    before = sha256_of(str(outer / "p.onnx"))
    for name in files.keys() - {"p.onnx"}:
        (outer / name).write_bytes(bytes(len(files[name])))
        assert before and sha256_of(str(outer / "p.onnx")) != before
        (outer / name).unlink()
    with pytest.raises(UsageError, match=r"external_data=False|damaged|cannot be read"):
        load({"p.onnx": files["p.onnx"]}, outer, CART, TWO)


@pytest.mark.parametrize(
    ("name", "observations", "actions", "mode", "message"),
    [
        (
            "logits",
            spaces.Box(-1, 1, (5,)),
            TWO,
            "sample",
            r"'observations' has the shape \['batch', 4\], the envs' .*5\]",
        ),
        ("logits", spaces.Box(0, 9, (4,), np.uint8), TWO, "sample", "takes float32 where .* are uint8"),
        ("logits", CART, spaces.Discrete(3), "sample", r"must give logits of shape \(3, 3\)"),
        ("logits", CART, TORQUE, "deterministic", r"must give actions of shape \(3, 1\)"),
        ("logits", CART, TORQUE, "sample", "must have the outputs 'mean' and 'log_std'"),
        ("logits", PARTS, TWO, "sample", "inputs 'observations', .* are 'place', 'target/goal': name the inputs so"),
        ("parts", CART, TWO, "sample", "inputs 'place', 'target/goal', the envs' observations are one array"),
    ],
)
def test_other_spaces_are_refused(
    name: str, observations: spaces.Space, actions: spaces.Space, mode: str, message: str, tmp_path: Path
):
    with pytest.raises(UsageError, match=r"--policy .*p.onnx: .*" + message) as raised:
        load(files_of(name), tmp_path, observations, actions, mode)
    assert "\n" not in str(raised.value)


def test_a_network_for_batches_of_one_size_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="takes batches of 5 only; export it with a dynamic first axis"):
        load(files_of("logits", is_dynamic=False), tmp_path, CART, TWO)


def test_a_network_that_fails_on_another_batch_is_refused(tmp_path: Path):
    """Its input says that any batch will do."""
    import onnx
    from onnx import TensorProto, helper

    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [5, 4])
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 4])],
        [shape],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    with pytest.raises(UsageError, match=r"fails on a batch of 3 observations .*; export it with a dynamic") as raised:
        load({"p.onnx": model.SerializeToString()}, tmp_path, CART, spaces.Box(-1, 1, (4,)))
    assert "\n" not in str(raised.value)


def test_a_damaged_file_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    content = files_of("logits")["p.onnx"]
    for damaged in (content[:500], content.replace(b"Tanh", b"T\xffnh"), content.replace(b"Gemm", b"Gexm")):
        with pytest.raises(UsageError, match="the file is damaged") as raised:
            load({"p.onnx": damaged}, tmp_path, CART, TWO)
        assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="pip install 'mpi_rollout[sb3]'")
@pytest.mark.parametrize(("task", "actions"), [("CartPole-v1", TWO), ("Pendulum-v1", TORQUE)])
def test_the_recipe_of_stable_baselines3_gives_its_actions(task: str, actions: spaces.Space, tmp_path: Path):
    """Its documentation exports actions, values and log probabilities."""
    import torch
    from stable_baselines3 import PPO

    class Exported(torch.nn.Module):
        def __init__(self, policy: Any):
            super().__init__()
            self.policy = policy

        def forward(self, observation: torch.Tensor) -> Any:
            return self.policy(observation, deterministic=True)

    ppo = PPO("MlpPolicy", task, device="cpu", seed=1)
    space = ppo.observation_space
    torch.onnx.export(
        Exported(ppo.policy),
        (torch.rand(5, *space.shape),),
        str(tmp_path / "p.onnx"),
        input_names=["input"],
        dynamic_axes={"input": {0: "batch"}},
        dynamo=False,
    )
    observations = np.random.default_rng(0).uniform(-1, 1, (64, *space.shape)).astype(np.float32)
    expected, _ = ppo.predict(observations, deterministic=True)
    got = act(load({}, tmp_path, space, actions), observations)
    assert np.allclose(got, expected, atol=1e-5)
    message = "no logits to draw from" if actions == TWO else "must have the outputs 'mean' and 'log_std'"
    with pytest.raises(UsageError, match=message):
        load({}, tmp_path, space, actions, "sample")
