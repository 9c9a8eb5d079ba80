"""Policies that torch saved: TorchScript and exported programs."""

import io
import json
import os
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

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.files import kind_of, load_model
from mpi_rollout.policies.model import Model, PolicySource

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="pip install 'mpi_rollout[torch]'"),
    pytest.mark.filterwarnings("ignore"),  # TorchScript is deprecated.
]

CART, TWO, TORQUE = spaces.Box(-np.inf, np.inf, (4,)), spaces.Discrete(2), spaces.Box(-2, 2, (1,))
IMAGE, DOUBLES = spaces.Box(0, 255, (84, 84, 1), np.uint8), spaces.Box(-1, 1, (4,), np.float64)
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


def batch(space: spaces.Space, rows: int = 64) -> Any:
    space.seed(3)
    samples = [space.sample() for _ in range(rows)]
    if isinstance(space, spaces.Dict):
        return {key: np.stack([sample[key] for sample in samples]) for key in space.spaces}
    return np.stack(samples)


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


def load(content: bytes, observations: spaces.Space, actions: spaces.Space, mode: str = "deterministic") -> Model:
    return load_model(PolicySource(kind_of(content), "p.pt", content, "", mode), observations, actions)


def act(model: Model, observations: Any, rows: int = 64, seed: int = 0) -> np.ndarray:
    return model.act(observations, np.arange(rows), np.random.default_rng(seed).random((rows, model.num_uniforms)))


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("writer", WRITERS)
def test_it_acts_as_the_network_says(writer: str, name: str):
    import torch

    content, (space, actions) = content_of(writer, name), SPACES[name]
    observations = batch(space)
    assert kind_of(content) == writer
    with torch.no_grad():
        argument = {key: torch.from_numpy(value) for key, value in observations.items()} if name == "parts" else None
        output = network(name)(torch.from_numpy(observations) if argument is None else argument)
    expected = {"choice": lambda: output, "gaussian": lambda: output[0]}.get(name, lambda: output.argmax(dim=1))()
    model = load(content, space, actions)
    for _ in range(4):  # TorchScript would compile anew after two calls.
        got = act(model, observations)
        assert got.tobytes() == expected.numpy().tobytes()
    assert len(np.unique(got)) > 1


@pytest.mark.parametrize("writer", WRITERS)
def test_draws_come_as_often_as_the_logits_say(writer: str):
    import torch

    model = load(content_of(writer, "logits"), CART, TWO, "sample")
    observations = np.repeat(batch(CART, 1), 4000, 0)
    with torch.no_grad():
        share = network("logits")(torch.from_numpy(observations[:1])).softmax(dim=1)[0, 1].item()
    drawn = act(model, observations, 4000)
    assert model.num_uniforms == 1 and abs(drawn.mean() - share) < 0.03


@pytest.mark.parametrize("writer", WRITERS)
def test_draws_of_a_box_need_a_mean_and_a_std(writer: str):
    model = load(content_of(writer, "gaussian"), CART, TORQUE, "sample")
    assert model.num_uniforms == 2 and np.abs(act(model, batch(CART))).max() <= 2
    first, again, other = (act(model, batch(CART), seed=seed).tobytes() for seed in (0, 0, 1))
    assert first == again != other
    with pytest.raises(UsageError, match="no logits to draw from"):
        load(content_of(writer, "choice"), CART, TWO, "sample")


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
        ("pt2", "logits", PARTS, TWO, "takes 1 arrays, the envs' observations are 2"),
        ("torchscript", "logits", CART, spaces.Discrete(3), r"must give logits of shape \(3, 3\)"),
        ("pt2", "gaussian", CART, spaces.Box(-1, 1, (2,)), r"must give actions of shape \(3, 2\)"),
        ("pt2", "logits", CART, spaces.Tuple([TWO]), "the envs want Tuple actions"),
    ],
)
def test_other_spaces_are_refused(
    writer: str, name: str, observations: spaces.Space, actions: spaces.Space, message: str
):
    with pytest.raises(UsageError, match=r"--policy p.pt: .*" + message) as raised:
        load(content_of(writer, name), observations, actions)
    assert "\n" not in str(raised.value)


def test_a_network_must_give_numbers_for_rows_of_no_env():
    import torch

    class Direction(torch.nn.Module):
        def forward(self, observations: torch.Tensor) -> torch.Tensor:
            return (observations / observations.norm(dim=1, keepdim=True))[:, :2]

    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(Direction(), torch.ones(2, 4)), file)
    with pytest.raises(
        UsageError, match="on observations of zeros, which rows of a block have that belong to no env, "
    ):
        load(file.getvalue(), CART, TWO)


def test_a_program_for_batches_of_one_size_is_refused():
    with pytest.raises(UsageError, match="takes batches of 5 only; give its first axis a dynamic size"):
        load(content_of("pt2", "logits", is_dynamic=False), CART, TWO)


def test_what_torch_save_writes_is_no_policy():
    import torch

    for saved in (network("logits").state_dict(), network("logits")):
        file = io.BytesIO()
        torch.save(saved, file)
        with pytest.raises(UsageError, match=r"not a policy; save the network with torch\.export"):
            kind_of(file.getvalue())


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def changed(content: bytes, edit: Callable[[str, bytes], bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, edit(name, old.read(name)))
    return file.getvalue()


def test_a_pickle_in_a_program_is_not_executed(tmp_path: Path):
    trap = tmp_path / "sprung"
    content = changed(
        content_of("pt2", "logits"),
        lambda name, old: pickle.dumps(Trap(trap)) if "sample_inputs" in name else old,
    )
    with pytest.raises(UsageError, match=r"pickled code in 'data/sample_inputs/model\.pt'; add --trust-policy"):
        load(content, CART, TWO)
    assert not trap.exists()


CODE = "__import__('os').abort()"
EDITS: dict[str, Callable[[dict], Any]] = {
    "guards_code": lambda model: model["guards_code"].append(CODE),
    "expr_str": lambda model: model["range_constraints"].update({CODE: {"min_val": 0, "max_val": None}}),
    "target": lambda model: model["graph_module"]["graph"]["nodes"][0].update(target="torch.hub.load"),
    "a size": lambda model: model["graph_module"]["graph"]["tensor_values"]["input"]["sizes"][0]["as_expr"].update(
        expr_str=CODE
    ),
    "a name": lambda model: model["graph_module"]["module_call_graph"][0]["signature"].update(
        forward_arg_names=[f"x={CODE}"]
    ),
}


@pytest.mark.parametrize("case", EDITS)
def test_code_among_the_expressions_of_a_program_is_not_executed(case: str):
    def edit(name: str, old: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return old
        model = json.loads(old)
        EDITS[case](model)
        return json.dumps(model).encode()

    with pytest.raises(UsageError, match="which may be code; add --trust-policy"):
        load(changed(content_of("pt2", "logits"), edit), CART, TWO)


def test_a_script_that_writes_files_needs_trust():
    content = changed(
        content_of("torchscript", "logits"),
        lambda name, old: old + b"\n# torch.save(x, 'y')\n" if name.endswith("container.py") else old,
    )
    with pytest.raises(UsageError, match=r"its code calls save\(\), .*add --trust-policy"):
        load(content, CART, TWO)


@pytest.mark.parametrize(
    ("member", "edit"),
    [
        ("weights/weight_0", lambda old: old[:20]),
        ("weights_config.json", lambda old: old.replace(b"path_name", b"path-name")),
        ("weights_config.json", lambda old: b"[]"),
    ],
)
def test_a_damaged_program_is_refused_and_nobody_else_says_so(
    member: str, edit: Callable[[bytes], bytes], capfd: pytest.CaptureFixture[str]
):
    content = changed(content_of("pt2", "logits"), lambda name, old: edit(old) if name.endswith(member) else old)
    assert content != content_of("pt2", "logits")
    with pytest.raises(UsageError, match=r"--policy p.pt: the file is damaged") as raised:
        load(content, CART, TWO)
    assert "\n" not in str(raised.value) and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("writer", WRITERS)
def test_a_damaged_file_is_refused(writer: str):
    ends = {"torchscript": "data.pkl", "pt2": "model.json"}
    content = changed(content_of(writer, "logits"), lambda name, old: old[:20] if name.endswith(ends[writer]) else old)
    with pytest.raises(UsageError, match=r"--policy p.pt: the file is damaged") as raised:
        load(content, CART, TWO)
    assert "\n" not in str(raised.value)
