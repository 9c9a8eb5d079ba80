"""Policies in ONNX files, as torch and Stable-Baselines3's recipe export them."""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from policy_files import CART, DOUBLES, TORQUE, TWO, act, assert_refused, batch

from mpi_rollout.policies.model import Model
from mpi_rollout.policies.networks import Head
from mpi_rollout.policies.onnx_check import check_network
from mpi_rollout.policies.sources import load_model, read_source, sha256_of

MISSING = [name for name in ("onnxruntime", "onnx", "onnxscript", "torch") if find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"pip install {' '.join(MISSING)}"),
    pytest.mark.filterwarnings("ignore"),
]

PARTS = spaces.Dict(place=spaces.Box(-1, 1, (3,)), target=spaces.Dict(goal=spaces.Box(-1, 1, (2,))))


def mlp() -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))


@cache
def exported() -> dict[str, bytes]:
    """The files that torch exports, by name: a network, and its weights beside it."""
    import torch

    with TemporaryDirectory() as folder:
        torch.onnx.export(
            mlp(),
            (torch.rand(5, 4),),
            f"{folder}/p.onnx",
            input_names=["observations"],
            output_names=["logits"],
            dynamic_shapes=({0: "batch"},),
            external_data=True,
            verbose=False,
        )
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@cache
def content_of(name: str) -> bytes:
    """A network in one file."""
    import onnx

    if name == "parts":
        return linear({"place": 3, "target/goal": 2}, "logits")
    if name == "gaussian":
        return linear({"observations": 4}, "mean", "log_std")
    with TemporaryDirectory() as folder:
        for path, content in exported().items():
            (Path(folder) / path).write_bytes(content)
        model = onnx.load(f"{folder}/p.onnx")
    if name == "of five":
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    return model.SerializeToString()


def weights_of(output: str, rows: int) -> np.ndarray:
    columns = 2 if output == "logits" else 1
    return np.random.default_rng(len(output)).normal(size=(rows, columns)).astype(np.float32)


def linear(inputs: dict[str, int], *outputs: str) -> bytes:
    """A network whose outputs are products of its inputs, side by side, with weights of their own."""
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node("Concat", list(inputs), ["all"], axis=1)]
    nodes += [helper.make_node("MatMul", ["all", f"of {name}"], [name]) for name in outputs]
    known = [numpy_helper.from_array(weights_of(name, sum(inputs.values())), f"of {name}") for name in outputs]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size]) for name, size in sizes.items()]
        for sizes in (inputs, {name: 2 if name == "logits" else 1 for name in outputs})
    ]
    graph = helper.make_graph(nodes, "g", *ends, known)
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Model]:
    """Loads what the files of a folder say, or one with this content."""

    def loaded(
        files: dict[str, bytes] | bytes,
        observations: spaces.Space = CART,
        actions: spaces.Space = TWO,
        mode: str = "deterministic",
    ) -> Model:
        for name, content in (files if isinstance(files, dict) else {"p.onnx": files}).items():
            (tmp_path / name).write_bytes(content)
        return load_model(read_source(str(tmp_path / "p.onnx"), mode, is_trusted=False), observations, actions)

    return loaded


@pytest.mark.parametrize(("name", "actions"), [("logits", TWO), ("gaussian", TORQUE)])
def test_it_acts_and_draws_as_the_network_says(name: str, actions: spaces.Space, load: Callable[..., Model]):
    import torch

    observations = batch(CART)
    with torch.no_grad():
        outputs = [mlp()(torch.from_numpy(observations)).numpy()]
    if name == "gaussian":
        outputs = [observations @ weights_of(output, 4) for output in ("mean", "log_std")]
    for mode in ("deterministic", "sample"):
        model, head = load(content_of(name), actions=actions, mode=mode), Head(actions, mode)
        first, other = (act(model, observations, seed=seed) for seed in (0, 1))
        expected = act(Model(lambda _, *rest, head=head: head(outputs, *rest), head.num_uniforms), observations)
        assert np.allclose(first, expected, atol=1e-5) and first.dtype == actions.dtype
        assert len(np.unique(first)) > 1 and (first.tobytes() == other.tobytes()) == (mode == "deterministic")


def test_inputs_are_named_after_parts_of_the_observations(load: Callable[..., Model]):
    place, goal = batch(PARTS["place"]), batch(PARTS["target"]["goal"])
    model = load(content_of("parts"), PARTS, TWO)
    assert set(act(model, {"place": place, "target": {"goal": goal}})) == {0, 1}


def test_doubles_become_floats(load: Callable[..., Model]):
    observations = batch(DOUBLES)
    model = load(content_of("logits"), DOUBLES, TWO)
    assert np.array_equal(act(model, observations), act(model, observations.astype(np.float32)))


def test_weights_in_a_file_beside_it_are_read(load: Callable[..., Model], tmp_path: Path):
    files = exported()
    if len(files) == 1:
        pytest.skip("this torch puts them into the file")
    observations, path = batch(CART), tmp_path / "p.onnx"
    expected = act(load(content_of("logits")), observations)
    assert np.array_equal(act(load(files), observations), expected)
    before = sha256_of(str(path))
    for name in files.keys() - {"p.onnx"}:
        (tmp_path / name).write_bytes(bytes(len(files[name])))
        assert before and sha256_of(str(path)) != before
        (tmp_path / name).unlink()
    with assert_refused(r"external_data=False|damaged|cannot be read"):
        load({"p.onnx": files["p.onnx"]})


@pytest.mark.parametrize(
    ("name", "observations", "actions", "mode", "message"),
    [
        ("logits", spaces.Box(-1, 1, (5,)), TWO, "sample", r"\(3, 5\): .* index: 1 Got: 5 Expected: 4"),
        (
            "logits",
            spaces.Box(0, 9, (4,), np.uint8),
            TWO,
            "sample",
            r"fails on .*\(uint8\)\) , expected: \(tensor\(float",
        ),
        ("logits", CART, spaces.Discrete(3), "sample", r"must give logits of shape \(3, 3\)"),
        ("logits", CART, TORQUE, "deterministic", r"must give actions of shape \(3, 1\)"),
        ("logits", CART, TORQUE, "sample", "must have the outputs 'mean' and 'log_std'"),
        ("logits", PARTS, TWO, "sample", "takes 'observations', .* are 'place', 'target/goal': name the inputs so"),
        ("parts", CART, TWO, "sample", "takes 'place', 'target/goal', the envs' observations are one array"),
    ],
)
def test_other_spaces_are_refused(
    name: str, observations: spaces.Space, actions: spaces.Space, mode: str, message: str, load: Callable[..., Model]
):
    content = content_of(name)
    with assert_refused(r"policy .*p.onnx: .*" + message):
        load(content, observations, actions, mode)


def test_a_network_for_batches_of_one_size_is_refused(load: Callable[..., Model]):
    content = content_of("of five")
    with assert_refused(r"index: 0 Got: 3 Expected: 5 .*; it must take any number of rows"):
        load(content)


def test_a_damaged_file_is_refused(load: Callable[..., Model], capfd: pytest.CaptureFixture[str]):
    content = content_of("logits")
    for damaged in (content[:500], content.replace(b"Tanh", b"T\xffnh"), content.replace(b"Gemm", b"Gexm")):
        with assert_refused(r"the file is damaged|has the operation '(T.nh|Gexm)'"):
            load(damaged)
    assert capfd.readouterr() == ("", "")


def crafted(nodes: list[Any], sizes: dict[str, list[int]] | None = None, **more: Any) -> bytes:
    """A network that adds what these nodes call `c` to its observations."""
    from onnx import TensorProto, helper

    last = [helper.make_node("ReduceSum", ["c"], ["r"], keepdims=0), helper.make_node("Add", ["x", "r"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    known = [helper.make_tensor(name, TensorProto.INT64, [len(size)], size) for name, size in (sizes or {}).items()]
    numbers = {"zero": 0, "one": 1, "many": 1e9}
    known += [helper.make_tensor(name, TensorProto.FLOAT, [], [value]) for name, value in numbers.items()]
    graph = helper.make_graph([*nodes, *last], "g", ends[:1], ends[1:], known)
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8, **more).SerializeToString()


def hostile(case: str) -> bytes:
    from onnx import helper

    node, versions = helper.make_node, [helper.make_opsetid("", 17)]
    inner = helper.make_graph([node("Identity", ["x"], ["c"])], "inner", [], [])
    hidden = node("If", ["x"], ["c"], then_branch=inner, else_branch=inner)
    inner_loop = helper.make_graph([node("Loop", ["x"], ["c"], body=inner)], "outer", [], [])
    function = helper.make_function("mine", "f", ["x"], ["c"], [node("f", ["x"], ["c"], domain="mine")], versions)
    nodes = {
        "loop": [node("Loop", ["", "x"], ["c"], body=inner)],
        "loop in a branch": [hidden, node("If", ["x"], ["d"], then_branch=inner_loop)],
        "chance": [node("RandomNormal", [], ["c"], shape=[2])],
        "domain": [node("Relu", ["x"], ["c"], domain="com.microsoft")],
        "function": [node("f", ["x"], ["c"], domain="mine")],
        "a batch of five": [node("Reshape", ["x", "five"], ["c"])],
        "a large constant": [node("ConstantOfShape", ["large"], ["c"])],
        "a repetition": [node("Expand", ["one", "large"], ["c"])],
        "a range": [node("Range", ["zero", "many", "one"], ["c"])],
    }
    more = {"functions": [function]} if case == "function" else {}
    return crafted(nodes[case], {"five": [5, 4], "large": [10**10]}, **more)


UNKNOWN = r"has (the operation|a part that no plain) .*; add trust_policy"
FAILS = r"fails on observations float32 \(3, 4\): .*; it must take any number|cannot run it"
HOSTILE = dict.fromkeys(["loop", "loop in a branch", "chance", "domain", "function"], UNKNOWN) | dict.fromkeys(
    ["a batch of five", "a large constant", "a repetition", "a range"], FAILS
)


@pytest.mark.parametrize("case", HOSTILE)
def test_what_could_do_harm_is_refused(case: str, load: Callable[..., Model]):
    content = hostile(case)
    with assert_refused(HOSTILE[case]):
        load(content, actions=spaces.Box(-1, 1, (4,)))


def test_constants_are_not_computed_in_memory_without_bounds(load: Callable[..., Model]):
    """Each of these is below the bound: only what acts has a bound, and it needs one at a time."""
    from onnx import TensorProto, helper

    node = helper.make_node
    nodes = [  # The place is no constant.
        node("Sub", ["x", "x"], ["nothing"]),
        node("ReduceMax", ["nothing"], ["most"], keepdims=0),
        node("Cast", ["most"], ["at"], to=TensorProto.INT64),
    ]
    for value in (1.0, 2.0, 3.0):
        constant = helper.make_tensor("v", TensorProto.FLOAT, [1], [value])
        nodes.append(node("ConstantOfShape", ["s"], [f"large {value}"], value=constant))
        nodes.append(node("Gather", [f"large {value}", "at"], [f"one {value}"]))
    content = crafted([*nodes, node("Sum", [f"one {value}.0" for value in (1, 2, 3)], ["c"])], {"s": [10**8]})
    before = getrusage(RUSAGE_SELF).ru_maxrss
    load(content, actions=spaces.Box(-1, 1, (4,)))
    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 900_000


def test_messages_that_are_nested_deeply_are_refused():
    content = b""
    for _ in range(3000):  # A graph in an attribute of a node of a graph.
        for tag in (0x32, 0x2A, 0x0A):
            size = len(content)
            content = bytes([tag, size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + content
    with assert_refused(r"the file is damaged|no plain network"):
        check_network(b"\x08\x08" + b"\x3a" + content[1:])


@pytest.mark.skipif(find_spec("stable_baselines3") is None, reason="pip install 'mpi_rollout[sb3]'")
@pytest.mark.parametrize(("task", "actions"), [("CartPole-v1", TWO), ("Pendulum-v1", TORQUE)])
def test_the_recipe_of_stable_baselines3_gives_its_actions(
    task: str, actions: spaces.Space, load: Callable[..., Model], tmp_path: Path
):
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
    got = act(load({}, space, actions), observations)
    assert np.allclose(got, expected, atol=1e-5)
    message = "no logits to draw from" if actions == TWO else "must have the outputs 'mean' and 'log_std'"
    with assert_refused(message):
        load({}, space, actions, "sample")
