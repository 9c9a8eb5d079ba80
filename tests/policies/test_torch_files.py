"""Policies that torch saved: TorchScript and exported programs."""

import io
import json
import pickle
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from policy_files import CART, DOUBLES, TORQUE, TWO, Trap, act, assert_refused, batch, changed

from mpi_rollout.policies.model import Model, PolicySource
from mpi_rollout.policies.networks import Head
from mpi_rollout.policies.sources import kind_of, load_model

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="pip install 'mpi_rollout[torch]'"),
    pytest.mark.filterwarnings("ignore"),  # TorchScript is deprecated.
]

IMAGE = spaces.Box(0, 255, (84, 84, 1), np.uint8)
PARTS = spaces.Dict(place=spaces.Box(-1, 1, (3,)), target=spaces.Box(-1, 1, (2,)))
WRITERS = ["torchscript", "pt2"]


@cache
def network(name: str) -> Any:
    import torch
    from torch import nn

    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Conv2d(1, 4, 8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(400, 2))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.layers(images.permute(0, 3, 1, 2).float() / 255.0)

    class Gaussian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.log_std = nn.Linear(4, 1), nn.Parameter(torch.zeros(1))

        def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.mean(observations), self.log_std

    class Choice(nn.Module):
        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return (observations[:, 0] > 0).long()

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.layer(torch.cat([parts["place"], parts["target"]], dim=1))

    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    return {"logits": mlp, "images": Images(), "gaussian": Gaussian(), "choice": Choice(), "parts": Parts()}[name]


SPACES = {
    "logits": (CART, TWO),
    "images": (IMAGE, TWO),
    "gaussian": (CART, TORQUE),
    "choice": (CART, TWO),
    "parts": (PARTS, TWO),
}


@cache
def content_of(writer: str, name: str, is_dynamic: bool = True) -> bytes:
    """The file of a network, written by torch."""
    import torch

    file, net = io.BytesIO(), network(name)
    observations = batch(SPACES[name][0], 5)
    if isinstance(observations, dict):
        example: Any = {key: torch.from_numpy(value) for key, value in observations.items()}
        sizes: Any = {key: {0: torch.export.Dim("batch")} for key in example}
    else:
        example, sizes = torch.from_numpy(observations), {0: torch.export.Dim("batch")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if writer == "torchscript":
            torch.jit.save(torch.jit.script(net) if name == "parts" else torch.jit.trace(net, example), file)
        else:
            torch.export.save(
                torch.export.export(net, (example,), dynamic_shapes=(sizes,) if is_dynamic else None), file
            )
    return file.getvalue()


def load(
    content: bytes,
    observations: spaces.Space,
    actions: spaces.Space,
    mode: str = "deterministic",
    is_trusted: bool = False,
) -> Model:
    kind = kind_of(content)
    source = PolicySource(kind, "p.pt", content, "", mode, is_trusted or kind == "torchscript")
    return load_model(source, observations, actions)


def outputs_of(name: str, observations: Any) -> list[np.ndarray]:
    """What the network says."""
    import torch

    is_tree = isinstance(observations, dict)
    given = {key: torch.from_numpy(value) for key, value in (observations if is_tree else {"": observations}).items()}
    with torch.no_grad():
        outputs = network(name)(given if is_tree else given[""])
    return [output.detach().numpy() for output in (outputs if isinstance(outputs, tuple) else [outputs])]


@pytest.mark.parametrize(
    ("writer", "name"),
    [*((writer, name) for writer in WRITERS for name in SPACES), ("trusted pt2", "logits"), ("trusted pt2", "parts")],
)
def test_it_acts_as_the_network_says(writer: str, name: str):
    content, (space, actions) = content_of(writer.split()[-1], name), SPACES[name]
    observations = batch(space)
    assert kind_of(content) == writer.split()[-1]
    expected = outputs_of(name, observations)[0]
    model = load(content, space, actions, is_trusted=writer == "trusted pt2")
    for _ in range(4):  # TorchScript would compile anew after two calls.
        got = act(model, observations)
        assert got.tobytes() == (expected if name in ("choice", "gaussian") else expected.argmax(axis=1)).tobytes()
    assert len(np.unique(got)) > 1


@pytest.mark.parametrize("name", ["logits", "gaussian"])
@pytest.mark.parametrize("writer", WRITERS)
def test_draws_are_those_of_the_outputs_and_the_uniforms(writer: str, name: str):
    observations, actions = batch(CART), SPACES[name][1]
    model, head = load(content_of(writer, name), CART, actions, "sample"), Head(actions, "sample")
    outputs, choice = outputs_of(name, observations), content_of(writer, "choice")
    first, other = (act(model, observations, seed=seed) for seed in (0, 1))
    assert np.array_equal(first, act(Model(lambda _, *rest: head(outputs, *rest), head.num_uniforms), observations))
    assert first.tobytes() != other.tobytes() and np.abs(first).max() <= 2
    with assert_refused("no logits to draw from"):
        load(choice, CART, TWO, "sample")


@pytest.mark.parametrize("writer", WRITERS)
def test_doubles_become_floats(writer: str):
    observations = batch(DOUBLES)
    model = load(content_of(writer, "logits"), DOUBLES, TWO)
    assert np.array_equal(act(model, observations), act(model, observations.astype(np.float32)))


@pytest.mark.parametrize(
    ("writer", "name", "observations", "actions", "message"),
    [
        ("torchscript", "logits", spaces.Box(-1, 1, (5,)), TWO, r"fails on observations float32 \(3, 5\): .*shapes"),
        ("pt2", "logits", spaces.Box(-1, 1, (5,)), TWO, r"of shape \['any', 4\], the envs' are \['any', 5\]"),
        ("pt2", "logits", spaces.Box(0, 9, (4,), np.uint8), TWO, "takes float32 .* are uint8; save a network that"),
        ("pt2", "logits", PARTS, TWO, "takes one array, the envs' observations are 'place', 'target'"),
        ("torchscript", "logits", CART, spaces.Discrete(3), r"must give logits of shape \(3, 3\)"),
        ("pt2", "gaussian", CART, spaces.Box(-1, 1, (2,)), r"must give actions of shape \(3, 2\)"),
        ("pt2", "logits", CART, spaces.Tuple([TWO]), "the envs want Tuple actions"),
    ],
)
def test_other_spaces_are_refused(
    writer: str, name: str, observations: spaces.Space, actions: spaces.Space, message: str
):
    content = content_of(writer, name)
    with assert_refused(r"policy p.pt: .*" + message):
        load(content, observations, actions)


def test_a_network_must_give_numbers_for_rows_of_no_env():
    import torch

    class Direction(torch.nn.Module):
        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return (observations / observations.norm(dim=1, keepdim=True))[:, :2]

    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(Direction(), torch.ones(2, 4)), file)
    with assert_refused("on observations of zeros, which rows of a block have that belong to no env, "):
        load(file.getvalue(), CART, TWO)


def test_a_program_for_batches_of_one_size_is_refused():
    content = content_of("pt2", "logits", is_dynamic=False)
    with assert_refused("takes batches of 5 only; give its first axis a dynamic size"):
        load(content, CART, TWO)


@pytest.mark.parametrize("is_zip", [True, False])
def test_what_torch_save_writes_is_no_policy(is_zip: bool):
    import torch

    for saved in (network("logits").state_dict(), network("logits")):
        file = io.BytesIO()
        torch.save(saved, file, _use_new_zipfile_serialization=is_zip)
        with assert_refused("weights without the network, or a whole module in a pickle, .*; load it"):
            kind_of(file.getvalue())


def with_model(*nodes: dict, edit: Callable[[dict], Any] = lambda model: None) -> bytes:
    """A program with more operations, that says something else of itself."""

    def edited(old: bytes) -> bytes:
        model = json.loads(old)
        graph_of(model)["nodes"] += nodes
        edit(model)
        return json.dumps(model).encode()

    return changed(content_of("pt2", "logits"), "models/model.json", edited)


def graph_of(model: dict) -> dict:
    return model["graph_module"]["graph"]


UNUSED: dict[str, Callable[[dict, str], Any]] = {  # What torch's loader evaluates.
    "guards_code": lambda model, code: model["guards_code"].append(code),
    "range_constraints": lambda model, code: model["range_constraints"].update({code: {"min_val": 0, "max_val": None}}),
    "a size": lambda model, code: graph_of(model)["tensor_values"]["linear"]["sizes"][0]["as_expr"].update(
        expr_str=code
    ),
    "a name": lambda model, code: model["graph_module"]["module_call_graph"][0]["signature"].update(
        forward_arg_names=[f"x={code}"]
    ),
}


@pytest.mark.parametrize("case", [*UNUSED, "a pickle"])
def test_code_in_a_program_is_not_executed(case: str, tmp_path: Path):
    trap = tmp_path / "sprung"
    content = content_of("pt2", "logits")
    if case == "a pickle":
        crafted = changed(content, "sample_inputs/model.pt", lambda _: pickle.dumps(Trap(trap)))
    else:
        crafted = with_model(edit=lambda model: UNUSED[case](model, f"__import__('os').mkdir({str(trap)!r})"))
    assert crafted != content
    got = act(load(crafted, CART, TWO), batch(CART))
    assert not trap.exists() and np.array_equal(got, act(load(content, CART, TWO), batch(CART)))


def argument(value: Any) -> dict:
    """A value as a program has it: a text is the name of a tensor, but for words in quotation marks."""
    if isinstance(value, list):
        return {"as_ints": value}
    if isinstance(value, str):
        return {"as_string": value[1:-1]} if value[0] == "'" else {"as_tensor": {"name": value}}
    return {{int: "as_int", float: "as_float", bool: "as_bool", type(None): "as_none"}[type(value)]: value}


def node(target: str, *results: str, **given: Any) -> dict:
    """An operation of torch, or of another module; nobody needs its result."""
    whole = target if "." in target[:12] and target.startswith(("torch.", "_operator.")) else f"torch.ops.aten.{target}"
    inputs = [{"name": name.rstrip("_"), "arg": argument(value), "kind": 1} for name, value in given.items()]
    outputs = [{"as_tensor": {"name": name}} for name in results or ["other"]]
    return {"target": whole, "inputs": inputs, "outputs": outputs, "metadata": {}}


def ones(name: str, *size: int, is_double: bool = False) -> dict:
    made = node("ones.default", name, size=list(size))
    made["inputs"].append({"name": "dtype", "arg": {"as_scalar_type": 8 if is_double else 7}, "kind": 1})
    return made


def convolution(dims: int, size: int, kernel: int) -> list[dict]:
    image, weight = (ones(name, 1, 1, *[side] * dims, is_double=True) for name, side in (("x", size), ("w", kernel)))
    return [image, weight, node(f"conv{dims}d.default", input="x", weight="w")]


IMAGE_AND_ONE = [ones("image", 2, 8, 4), ones("one", 1), ones("row", 2, 1, 4)]
NORM = {"input": "image", "weight": None, "bias": None, "running_mean": "one", "running_var": "one"}
REST = {"momentum": 0.1, "eps": 1e-5}
UNKNOWN, LARGE = (
    r"has the operation '.*add --trust-policy",
    r"needs [\d,]+ bytes at a time, more than 1,073,7.*add --",
)
BEHIND = "takes tensors of other shapes"  # Kernels would read or write behind the memory of `one` or the image.
HOSTILE: dict[str, tuple[list[dict], str]] = {
    "a file": ([node("from_file.default", filename="'/etc/passwd'", size=9)], UNKNOWN),
    "another's memory": ([node("set_.source_Tensor", self="input", source="input")], UNKNOWN),
    "memory as it is": ([node("empty.memory_format", size=[9])], UNKNOWN),
    "chance": ([node("randn_like.default", self="input")], UNKNOWN),
    "an argument written": ([node("add.out", self="input", other="input", out="input")], UNKNOWN),
    "a hub": ([node("torch.hub.load", repo="'x'")], UNKNOWN),
    "a loop": ([node("torch.ops.higher_order.while_loop", x="input")], UNKNOWN),
    "a part of an operation": ([node("add.__call__", self="input", other="input")], UNKNOWN),
    "a library": ([node("torch.ops.load_library", path="'x.so'")], UNKNOWN),
    "a power": ([node("_operator.pow", a=9, b=9)], UNKNOWN),
    "a weight that is turned in each call": ([node("t_.default", self="p_0_weight")], UNKNOWN),
    "a constant": ([node("full.default", size=[10**11], fill_value=1.0)], LARGE),
    "a repetition": ([node("repeat.default", self="input", repeats=[10**6, 10**6])], LARGE),
    "memory in an operation": (
        [ones("a", 100_000, 1), ones("b", 1, 100_000), node("cosine_similarity.default", x1="a", x2="b")], LARGE
    ),
    "memory in a convolution": (convolution(2, 1000, 20), LARGE),
    "memory in a wide convolution": (convolution(3, 60, 15), LARGE),
    "batch norm": ([node("_native_batch_norm_legit_no_training.default", *"abc", **NORM, **REST)], BEHIND),
    "older batch norm": ([node("native_batch_norm.default", *"abc", **NORM, training=False, **REST)], BEHIND),
    "batch norm without moments": (
        [node("native_batch_norm.default", *"abc", **NORM | dict.fromkeys(["running_mean", "running_var"]),
              training=False, **REST)], BEHIND
    ),
    "group norm": (
        [node("native_group_norm.default", *"abc", input="image", weight="one", bias=None, N=2, C=8, HxW=4, group=2,
              eps=1e-5)], BEHIND
    ),
    "weight norm": ([node("_weight_norm.default", v="image", g="one", dim=0)], BEHIND),
    "upsample": ([node("upsample_nearest1d.default", self="image", output_size=[8], scales=1e-300)], BEHIND),
    "attention": ([node("scaled_dot_product_attention.default", query="image", key="image", value="row")], BEHIND),
    "a size of more than 64 bits": (
        [node("_operator.mul", a=2**40, b=2**40) | {"outputs": [{"as_sym_int": {"as_name": "n"}}]}], "more than 64 bits"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_program_that_could_do_harm_is_refused_before_it_does(case: str):
    nodes, message = HOSTILE[case]
    content = with_model(*IMAGE_AND_ONE, *nodes)
    with assert_refused(message):
        load(content, CART, TWO)


def test_a_large_batch_of_images_is_no_reason_to_refuse_a_convolution():
    """What it takes itself is near to the bound, and oneDNN has the patches of one image at a time."""
    import torch

    from mpi_rollout.policies.pt2_program import Program

    program = Program(content_of("pt2", "images"))
    fitting, too_many = (torch.empty(size, 84, 84, 1, dtype=torch.uint8, device="meta") for size in (18_000, 20_000))
    program.judge([fitting])
    with assert_refused(r"needs 1,128,964,248 bytes at a time, more than 1,073,7\d\d,\d\d\d"):
        program.judge([too_many])


@pytest.mark.parametrize("ending", ["models/model.json", "weights_config.json"])
def test_json_that_is_far_larger_than_its_file_is_not_parsed(ending: str):
    large = b"[" + b"[{}]," * 10**6 + b"0]"
    content = changed(content_of("pt2", "logits"), ending, lambda _: large, zipfile.ZIP_DEFLATED)
    with assert_refused(r"bytes have JSON of 5,000,003"):
        load(content, CART, TWO)


def sized(*sizes: int, **more: Any) -> Callable[[dict], Any]:
    return lambda config: config["0.weight"]["tensor_meta"].update(sizes=[{"as_int": size} for size in sizes], **more)


def of_two_dtypes(config: dict) -> None:
    config["again"] = json.loads(json.dumps(config["0.weight"]))
    config["again"]["tensor_meta"]["dtype"] = 1


WEIGHTS: dict[str, tuple[Callable[[dict], Any], str]] = {
    "pickled": (lambda config: config["0.weight"].update(use_pickle=True), "has pickled weights 'weight_0'.*--trust-p"),
    "larger": (sized(10**9, 4), "in 256 numbers"),
    "repeated": (sized(10**12, strides=[{"as_int": 0}]), r"a tensor of shape \[1000000000000\] in 256 numbers"),
    "before its memory": (sized(64, 4, storage_offset={"as_int": -4}), "no tensor has the shape"),
    "behind its memory": (sized(64, 4, storage_offset={"as_int": 1}), r"shape \[64, 4\] in 256 numbers"),
    "of two dtypes": (of_two_dtypes, "tensors of two dtypes are in one memory"),
}


@pytest.mark.parametrize("case", WEIGHTS)
def test_weights_are_in_their_own_bytes(case: str):
    edit, message = WEIGHTS[case]

    def edited(old: bytes) -> bytes:
        config = json.loads(old)
        edit(config["config"])
        return json.dumps(config).encode()

    content = changed(content_of("pt2", "logits"), "weights_config.json", edited)
    with assert_refused(message):
        load(content, CART, TWO)


def exported(net: Any, shape: tuple[int, ...], is_decomposed: bool = False, **bounds: int) -> Any:
    import torch

    sizes = ({0: torch.export.Dim("batch", **bounds)},)
    program = torch.export.export(net.eval(), (torch.rand(5, *shape),), dynamic_shapes=sizes)
    return program.run_decompositions() if is_decomposed else program


def acts_alike(net: Any, program: Any, shape: tuple[int, ...]) -> Model:
    import torch

    space, file = spaces.Box(-1, 1, shape), io.BytesIO()
    torch.export.save(program, file)
    model, observations = load(file.getvalue(), space, TWO), batch(space)
    with torch.no_grad():
        assert np.array_equal(act(model, observations), net(torch.from_numpy(observations)).argmax(dim=1).numpy())
    return model


def test_networks_of_many_kinds_act_as_torch_has_them():
    import torch
    from torch import nn

    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(4, 2, 16, batch_first=True)
    for net, shape in (
        (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(8, 2)), (8,)),
        (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 2)), (8,)),
        (nn.Sequential(nn.Unflatten(1, (2, 4)), layer, nn.Flatten(), nn.Linear(8, 2)), (8,)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)), (3, 8, 8)),
    ):
        model = acts_alike(net, exported(net, shape, min=2, max=100), shape)
        with pytest.raises(ValueError, match="takes batches of 2 to 100 only, got 200"):
            act(model, batch(spaces.Box(-1, 1, shape), 200), 200)


def test_decomposed_layers_act_as_torch_has_them():
    import torch
    from torch import nn

    torch.manual_seed(1)
    layers = nn.Conv1d(2, 4, 1), nn.BatchNorm1d(4), nn.GroupNorm(2, 4), nn.Upsample(scale_factor=2), nn.Flatten()
    net = nn.Sequential(*layers, nn.Linear(32, 2))
    normed = nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(8, 2)))
    for whole, is_decomposed, name in ((net, True, "native_group_norm"), (normed, False, "_weight_norm")):
        program = exported(whole, (2, 4), is_decomposed)
        assert name in str(program.graph)
        acts_alike(whole, program, (2, 4))


def test_a_program_takes_other_parameters():
    model, other = load(content_of("pt2", "logits"), CART, TWO), load(content_of("pt2", "logits"), CART, TWO)
    parameters = other.parameters()
    assert parameters is not None and list(parameters) == list(network("logits").state_dict())
    other.load({name: -tensor.numpy() * (name[0] == "4") for name, tensor in parameters.items()})
    assert len(np.unique(act(other, batch(CART)))) == 1 and len(np.unique(act(model, batch(CART)))) == 2


@pytest.mark.parametrize(
    ("writer", "member", "edit"),
    [
        ("torchscript", "data.pkl", lambda old: old[:20]),
        ("pt2", "model.json", lambda old: old[:20]),
        ("pt2", "weights/weight_0", lambda old: old[:20]),
        ("pt2", "weights_config.json", lambda old: old.replace(b"path_name", b"path-name")),
        ("pt2", "weights_config.json", lambda old: b"[]"),
    ],
)
def test_a_damaged_file_is_refused_and_nobody_else_says_so(
    writer: str, member: str, edit: Callable[[bytes], bytes], capfd: pytest.CaptureFixture[str]
):
    content = changed(content_of(writer, "logits"), member, edit)
    assert content != content_of(writer, "logits")
    with assert_refused(r"policy p.pt: the file is damaged"):
        load(content, CART, TWO)
    assert capfd.readouterr() == ("", "")
