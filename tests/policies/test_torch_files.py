"""Policies that torch saved: TorchScript and exported programs."""

import io
import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from policy_files import CART, DOUBLES, TORQUE, TWO, act, assert_refused, batch, changed

from mpi_rollout.policies.model import Model, PolicySource
from mpi_rollout.policies.networks import Head
from mpi_rollout.policies.sources import load_model, read_source

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
    writer: str, content: bytes, observations: spaces.Space, actions: spaces.Space, mode: str = "deterministic"
) -> Model:
    source = PolicySource(writer, "p.pt", content, "", mode, is_trusted=True)
    return load_model(source, observations, actions)


def outputs_of(name: str, observations: Any) -> list[np.ndarray]:
    """What the network says."""
    import torch

    is_tree = isinstance(observations, dict)
    given = {key: torch.from_numpy(value) for key, value in (observations if is_tree else {"": observations}).items()}
    with torch.no_grad():
        outputs = network(name)(given if is_tree else given[""])
    return [output.detach().numpy() for output in (outputs if isinstance(outputs, tuple) else [outputs])]


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("writer", WRITERS)
def test_it_acts_as_the_network_says(writer: str, name: str):
    space, actions = SPACES[name]
    observations = batch(space)
    expected = outputs_of(name, observations)[0]
    model = load(writer, content_of(writer, name), space, actions)
    for _ in range(4):  # TorchScript would compile anew after two calls.
        got = act(model, observations)
        assert got.tobytes() == (expected if name in ("choice", "gaussian") else expected.argmax(axis=1)).tobytes()
    assert len(np.unique(got)) > 1


@pytest.mark.parametrize("name", ["logits", "gaussian"])
@pytest.mark.parametrize("writer", WRITERS)
def test_draws_are_those_of_the_outputs_and_the_uniforms(writer: str, name: str):
    observations, actions = batch(CART), SPACES[name][1]
    model, head = load(writer, content_of(writer, name), CART, actions, "sample"), Head(actions, "sample")
    outputs, choice = outputs_of(name, observations), content_of(writer, "choice")
    first, other = (act(model, observations, seed=seed) for seed in (0, 1))
    assert np.array_equal(first, act(Model(lambda _, *rest: head(outputs, *rest), head.num_uniforms), observations))
    assert first.tobytes() != other.tobytes() and np.abs(first).max() <= 2
    with assert_refused("no logits to draw from"):
        load(writer, choice, CART, TWO, "sample")


@pytest.mark.parametrize("writer", WRITERS)
def test_doubles_become_floats(writer: str):
    observations = batch(DOUBLES)
    model = load(writer, content_of(writer, "logits"), DOUBLES, TWO)
    assert np.array_equal(act(model, observations), act(model, observations.astype(np.float32)))


@pytest.mark.parametrize(
    ("writer", "name", "observations", "actions", "message"),
    [
        ("torchscript", "logits", spaces.Box(-1, 1, (5,)), TWO, r"fails on observations float32 \(3, 5\): .*shapes"),
        (
            "pt2",
            "logits",
            spaces.Box(-1, 1, (5,)),
            TWO,
            r"fails on observations float32 \(3, 5\): .*size\(\)\[1\] == 4",
        ),
        (
            "pt2",
            "logits",
            spaces.Box(0, 9, (4,), np.uint8),
            TWO,
            "fails on .*must have the same dtype, .* Byte and Float",
        ),
        ("pt2", "logits", PARTS, TWO, r"fails on observations float32 \(3, 3\), float32 \(3, 2\): .* inputs"),
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
        load(writer, content, observations, actions)


def test_a_network_must_give_numbers_for_rows_of_no_env():
    import torch

    class Direction(torch.nn.Module):
        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return (observations / observations.norm(dim=1, keepdim=True))[:, :2]

    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(Direction(), torch.ones(2, 4)), file)
    with assert_refused("on observations of zeros, which rows of a block have that belong to no env, "):
        load("torchscript", file.getvalue(), CART, TWO)


def test_a_program_for_batches_of_one_size_is_refused():
    content = content_of("pt2", "logits", is_dynamic=False)
    with assert_refused(r"fails on observations .*size\(\)\[0\] == 5; it must take any number of rows"):
        load("pt2", content, CART, TWO)


@pytest.mark.parametrize("is_zip", [True, False])
def test_what_torch_save_writes_is_no_policy(is_zip: bool, tmp_path: Path):
    import torch

    path = str(tmp_path / "p.pth")
    for saved in (network("logits").state_dict(), network("logits")):
        torch.save(saved, path, _use_new_zipfile_serialization=is_zip)
        for is_trusted in (False, True):
            with assert_refused("weights without the network, or a whole module in a pickle, .*; load it"):
                read_source(path, "deterministic", is_trusted)


def test_a_program_takes_other_parameters():
    model, other = (load("pt2", content_of("pt2", "logits"), CART, TWO) for _ in range(2))
    parameters = other.parameters()
    assert parameters is not None and list(parameters) == list(network("logits").state_dict())
    other.load({name: -tensor.numpy() * (name[0] == "4") for name, tensor in parameters.items()})
    assert len(np.unique(act(other, batch(CART)))) == 1 and len(np.unique(act(model, batch(CART)))) == 2


@pytest.mark.parametrize(("writer", "member"), [("torchscript", "data.pkl"), ("pt2", "model.json")])
def test_a_damaged_file_is_refused_and_nobody_else_says_so(writer: str, member: str, capfd: pytest.CaptureFixture[str]):
    content = changed(content_of(writer, "logits"), member, lambda old: old[:20])
    with assert_refused(r"policy p.pt: the file is damaged"):
        load(writer, content, CART, TWO)
    assert capfd.readouterr() == ("", "")
