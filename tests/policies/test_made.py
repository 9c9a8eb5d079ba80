"""What makes a policy: its arguments, and the device that it gets."""

import io
import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import h5py
import pytest
from block_policies import Levelled, make_levels
from jobs import Collected, Job, Start, assert_same_bytes, collected_in_ways, datasets, preloadable
from policy_files import CART, TWO, act, assert_refused, batch

import mpi_rollout
from mpi_rollout.errors import RolloutError, UsageError
from mpi_rollout.policies import devices
from mpi_rollout.policies.devices import device_here
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.sources import load_model

pytestmark = pytest.mark.any_mpi
ONE = ("--policy-kwargs", '{"level": 1}')
SIZES = ("--env", "CartPole-v1", "--num-envs", "5", "--num-steps", "20", "--progress", "none")
MADE = (*SIZES, "--policy", "block_policies:make_levels", *ONE)
CLASS = (*SIZES, "--policy", "block_policies:Pushing", *ONE)
NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="pip install 'mpi_rollout[torch]'")


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    return collected_in_ways(tmp_path_factory, {"made": MADE, "class": CLASS}, lambda *_: [(), ("--num-steps", "9")])


@pytest.mark.mpi(1, 2, 3)
@pytest.mark.parametrize("name", ["made", "class"])
def test_what_makes_a_policy_gets_the_arguments_on_all_ranks(collected: Collected, num_ranks: int, name: str):
    path, _ = collected(num_ranks)[name]
    data = datasets(path)
    assert (data["actions"] == 1).all()
    assert_same_bytes(data, datasets(collected(None)[name][0]))
    with h5py.File(path) as file:
        assert json.loads(file.attrs["config"])["policy_kwargs"] == {"level": 1}


REFUSED = {
    ("block_policies:make_levels", '{"levle": 1}'): "--policy block_policies:make_levels is called once, to make the "
    "policy: missing a required argument: 'level'; it takes level, device, by --policy-kwargs and --policy-device",
    ("block_policies:Pushing", '{"level": 1, "gain": 2}'): "unexpected keyword argument 'gain'; it takes level, by",
    ("block_policies:make_levels", "level=1"): "--policy-kwargs must be a JSON object such as '{\"level\": 3}', got",
    ("block_policies:make_levels", "[1]"): "--policy-kwargs must be a JSON object, got [1]",
    ("block_policies:steer", '{"level": 1}'): "--policy-kwargs is for a class or a function whose name begins with "
    "make_, which make a policy; block_policies:steer is none; leave it out",
    ("random", '{"level": 1}'): "--policy-kwargs is for a class",
    ("p.onnx", '{"level": 1}'): "--policy-kwargs is for a class",
    ("block_policies:make_levels", '{"level": "x", "device": "cuda:x"}'): "make_levels() raises ValueError",
}
DEVICES = {
    ("block_policies:make_levels", "gpu"): "--policy-device must be auto, cpu, cuda or cuda:K, got 'gpu'",
    ("block_policies:make_levels", "cuda"): "--policy-device cuda: CUDA shows 0 GPUs on ",
    ("block_policies:make_levels", "cuda:2"): "use --policy-device cpu, or ask for GPUs",
    ("block_policies:make_plain", "cpu"): "got an unexpected keyword argument 'device'; it takes level, by",
    ("random", "cpu"): "--policy-device is for networks, got no policy that has one; leave it out",
    ("block_policies:steer", "cpu"): "--policy-device is for a class or a function whose name begins with make_",
}


def test_what_cannot_work_is_refused_in_one_line(job: Job):
    kwargs = [Start((*SIZES, "--policy", policy, "--policy-kwargs", text)) for policy, text in REFUSED]
    on = [(*MADE, "--policy", policy, "--policy-device", device) for policy, device in DEVICES]
    on = [words if "make_" in words[-3] else [*SIZES, *words[-4:]] for words in on]
    environment = {"CUDA_VISIBLE_DEVICES": ""}
    results = job.series([*kwargs, *(Start(words, environment=environment) for words in on)])
    for result, words in zip(results, [*REFUSED.values(), *DEVICES.values()], strict=True):
        assert result.code in (64, 70) and len(result.messages) == 1, result.err
        assert words in result.messages[0]


def test_a_callable_that_takes_what_only_ranks_give_is_refused_with_the_way_out(job: Job):
    (job.folder / "ranked.py").write_text("def act(observations, env_indices, uniforms): pass\n")
    result = job(None, *SIZES, "--policy", "ranked:act")
    assert result.code == 64 and result.num_tracebacks == 0 and len(result.messages) == 1, result.err
    assert "ranked:act is called with observations: missing a required argument: 'env_indices'" in result.messages[0]
    assert result.messages[0].endswith("is returned by a function whose name begins with make_")


def test_a_run_goes_on_with_the_arguments_that_it_began_with(job: Job, collected: Collected):
    whole, half = collected(None)["made"]
    (job.folder / "half.h5").write_bytes(half.read_bytes())
    out = ("--out", "half.h5")
    other, device, same = job.series(
        [Start((*MADE, *more, *out)) for more in (("--policy-kwargs", '{"level": 0}'), ("--policy-device", "cpu"), ())]
    )
    assert 'is of another run: --policy-kwargs was {"level": 1}, is {"level": 0}; ' in other.messages[0]
    assert '--policy-device was "auto", is "cpu"; ' in device.messages[0]
    assert same.code == 0, same.err
    assert_same_bytes(datasets(job.folder / "half.h5"), datasets(whole))


@pytest.mark.parametrize("policy", [make_levels, Levelled, "block_policies:make_levels"])
def test_connect_takes_the_same(tmp_path: Path, policy: Any):
    path = tmp_path / "run.h5"
    options = {"policy": policy, "policy_kwargs": {"level": 1}, "policy_device": "cpu", "record": path}
    with mpi_rollout.connect("CartPole-v1", 3, **options) as envs:
        envs.reset(seed=1)
        assert (envs.collect(4)["actions"] == 1).all()
    with h5py.File(path) as file:
        assert json.loads(file.attrs["config"])["policy_kwargs"] == {"level": 1}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy_kwargs": {"level": 1}}, "^policy_kwargs is for a class or a function"),
        ({"policy": make_levels, "policy_kwargs": 3}, "^policy_kwargs must be a JSON object, got 3"),
        ({"policy": make_levels}, "^policy make_levels is called once, .* missing a required argument: 'level'"),
    ],
)
def test_connect_refuses_what_cannot_work(options: dict[str, Any], words: str):
    with pytest.raises(RolloutError, match=words):
        mpi_rollout.connect("CartPole-v1", 3, **options)


# Devices, with a stand-in for the driver: there may be no GPU here.


@pytest.fixture
def driver(job: Job) -> dict[str, str]:
    """The environment of a job on a host with two GPUs."""
    library = Path(preloadable("cuda_driver.c", job.folder))
    shutil.move(library, job.folder / "libcuda.so.1")
    return {"LD_LIBRARY_PATH": str(job.folder), "FAKE_GPUS": "2"}


@pytest.mark.mpi(3)
def test_ranks_of_a_host_share_its_gpus_in_turn(job: Job, num_ranks: int, driver: dict[str, str]):
    path = job.collect(num_ranks, *MADE, "--policy-device", "cuda", "--store-extras", **driver)
    with h5py.File(path) as file:
        on = file["trajectories/extras/device"][...]
        assert json.loads(file.attrs["config"])["policy_device"] == "cuda"
    assert (on == on[0]).all() and on[0, 0] == on[0, 1] and on[0, 2] == on[0, 3]
    assert sorted(on[0, [0, 2, 4]]) == [0, 0, 1]  # Launchers number the ranks of a host in orders of their own.


@pytest.mark.parametrize(
    ("device", "local_rank", "expected"),
    [("auto", 3, "cpu"), ("cpu", 3, "cpu"), ("cuda", 0, "cuda:0"), ("cuda", 5, "cuda:1"), ("cuda:1", 4, "cuda:1")],
)
def test_a_rank_has_one_device(device: str, local_rank: int, expected: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(devices, "num_gpus", lambda: 2)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", str(local_rank))
    assert device_here(device) == expected
    with pytest.raises(UsageError, match=r"^policy_device=cuda:2: CUDA shows 2 GPUs on .*; use policy_device=cpu, or"):
        device_here("cuda:2")


def source_of(kind: str, content: bytes) -> PolicySource:
    return PolicySource(kind, "p", content, is_trusted=True, device="cuda:1")


def script() -> bytes:
    import torch

    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(torch.nn.Linear(4, 2), torch.zeros(2, 4)), file)
    return file.getvalue()


def exported() -> bytes:
    import torch

    rows, file = {0: torch.export.Dim("rows")}, io.BytesIO()
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.zeros(2, 4),), dynamic_shapes=(rows,)), file)
    return file.getvalue()


def saved() -> bytes:
    import stable_baselines3

    file = io.BytesIO()
    stable_baselines3.PPO("MlpPolicy", "CartPole-v1", device="cpu").save(file)
    return file.getvalue()


@NEEDS_TORCH
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated.
@pytest.mark.parametrize("kind", ["torchscript", "sb3"])
def test_networks_are_moved_with_their_inputs(kind: str, monkeypatch: pytest.MonkeyPatch):
    """The GPU is this processor: what would be moved there stays where it is."""
    import torch

    content = {"torchscript": script, "sb3": saved}[kind]() if find_spec("stable_baselines3") else script()
    kind, moved = kind if find_spec("stable_baselines3") else "torchscript", []
    monkeypatch.setattr(devices, "num_gpus", lambda: 2)
    own = {each: each.to for each in (torch.nn.Module, torch.Tensor)}

    def to(thing: Any, device: Any, *others: Any, **more: Any) -> Any:
        if not str(device).startswith("cuda"):
            return own[torch.Tensor if isinstance(thing, torch.Tensor) else torch.nn.Module](
                thing, device, *others, **more
            )
        moved.append((isinstance(thing, torch.Tensor), str(device)))
        return thing

    for each in own:
        monkeypatch.setattr(each, "to", to)
    model = load_model(source_of(kind, content), CART, TWO)
    assert act(model, batch(CART)).shape == (64,)
    assert {*moved} == {(False, "cuda:1"), (True, "cuda:1")} if kind == "torchscript" else {(False, "cuda:1")}


@NEEDS_TORCH
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [script, exported])
def test_a_torch_for_processors_says_so_in_one_line(make: Any, monkeypatch: pytest.MonkeyPatch):
    import torch

    if torch.version.cuda is not None:
        pytest.skip("this torch is for GPUs")
    monkeypatch.setattr(devices, "num_gpus", lambda: 2)
    with assert_refused("^policy p: policy_device=cuda:1: Torch not compiled with CUDA enabled$"):
        load_model(source_of("torchscript" if make is script else "pt2", make()), CART, TWO)


def test_an_onnx_runtime_for_processors_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(devices, "num_gpus", lambda: 2)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with assert_refused("^policy p: policy_device=cuda:1: ONNX Runtime has no CUDA here; pip install onnxruntime-gpu"):
        load_model(source_of("onnx", b""), CART, TWO)
