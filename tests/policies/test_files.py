"""Which kind a policy's file is, and files that are none."""

import io
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from gymnasium import spaces

from mpi_rollout.config import RolloutConfig
from mpi_rollout.errors import UsageError
from mpi_rollout.policies.files import kind_of, load_model, read_source
from mpi_rollout.policies.model import PolicySource, sha256_of, weight_files

BOX, TWO = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)


def zipped(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, "content")
    return file.getvalue()


KINDS = {
    "sb3": zipped("data", "policy.pth", "_stable_baselines3_version"),
    "torchscript": zipped("actor/data.pkl", "actor/code/__torch__.py", "actor/version"),
    "pt2": zipped("actor/archive_format", "actor/models/model.json"),
    "onnx": b"\x08\x0a\x12\x07pytorch",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_known_by_its_content(kind: str, tmp_path: Path):
    path = tmp_path / "policy.of.any.name"
    path.write_bytes(KINDS[kind])
    source = read_source(str(path), "sample", is_trusted=True)
    hexadecimal = sha256(KINDS[kind]).hexdigest()
    assert source == PolicySource(kind, str(path), KINDS[kind], hexadecimal, "sample", True)


NO_POLICIES = {
    "weights": (zipped("a/data.pkl", "a/version"), "weights without the network, which is not a policy; save the net"),
    "old weights": (b"\x80\x02}q\x00.", "weights without the network"),
    "another zip": (zipped("a.txt"), "a zip of something else; a policy is an SB3 .zip, a TorchScript .pt, a torch"),
    "half a zip": (KINDS["sb3"][:40], "damaged"),
    "empty": (b"", "the file is empty"),
    "text": (b"def act(): pass", "damaged or of another kind"),
    "a changed byte": (KINDS["sb3"].replace(b"content", b"contend", 1), "wrong checksum of 'data'"),
}


@pytest.mark.parametrize("case", NO_POLICIES)
def test_what_is_no_policy_is_refused_in_one_line(case: str, tmp_path: Path):
    path = tmp_path / "policy.zip"
    path.write_bytes(NO_POLICIES[case][0])
    with pytest.raises(UsageError, match=NO_POLICIES[case][1]) as raised:
        read_source(str(path), "deterministic", is_trusted=False)
    assert str(raised.value).startswith(f"--policy {path}: ") and "\n" not in str(raised.value)


def test_a_compressed_file_that_is_damaged_is_refused():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", bytes(range(256)) * 40)
        archive.writestr("policy.pth", "weights")
    assert kind_of(file.getvalue()) == "sb3"
    content = bytearray(file.getvalue())
    content[60:80] = bytes(255 - byte for byte in content[60:80])
    with pytest.raises(UsageError, match="damaged"):
        kind_of(bytes(content))


ENTRY = b"\x0a\x08location\x12"


def test_the_hash_of_a_network_is_also_that_of_the_files_with_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    long_name = "w" * 200
    content = b"\x08\x0a" + ENTRY + b"\x06w.data" + 2 * (ENTRY + b"\xc8\x01" + long_name.encode())
    assert weight_files(content) == ["w.data", long_name]
    (tmp_path / "p.onnx").write_bytes(content)
    assert sha256_of("~/p.onnx") == ""
    digests = set()
    for first, second in ((b"a", b"b"), (b"a", b"c"), (b"d", b"b")):
        (tmp_path / "w.data").write_bytes(first)
        (tmp_path / long_name).write_bytes(second)
        digests.add(sha256_of("~/p.onnx"))
        assert sha256_of("~/p.onnx") == sha256_of(str(tmp_path / "p.onnx"))
    assert len(digests) == 3 and "" not in digests


@pytest.mark.parametrize("name", [b"/dev/zero", b"../w", b"w\0", b"folder", b"absent"])
def test_weights_that_are_no_file_beside_the_network_are_refused(name: bytes, tmp_path: Path):
    (tmp_path / "inner" / "folder").mkdir(parents=True)
    (tmp_path / "w").write_bytes(b"weights")
    path = tmp_path / "inner" / "p.onnx"
    path.write_bytes(b"\x08\x0a" + ENTRY + bytes([len(name)]) + name)
    assert sha256_of(str(path)) == ""
    with pytest.raises(UsageError, match="the weights are in another file, which cannot be read"):
        read_source(str(path), "deterministic", is_trusted=False)


@pytest.mark.parametrize(("name", "message"), [("", "Is a directory"), ("no.zip", "No such file or directory")])
def test_a_file_that_cannot_be_read_is_refused(name: str, message: str, tmp_path: Path):
    with pytest.raises(UsageError, match=f"cannot read this file: {message}"):
        read_source(str(tmp_path / name), "deterministic", is_trusted=False)


def test_names_of_files_are_told_from_code():
    for policy in ("a.zip", "b/c.ONNX", "d.pt", "e.pt2", "f.pth", "mine:make_policy", "mine.py:best.make_policy"):
        assert RolloutConfig(env="CartPole-v1", policy=policy).has_model
    for policy in ("mine:make_policies", "act.py:act", "random"):
        assert not RolloutConfig(env="CartPole-v1", policy=policy).has_model


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [
        ("sb3", "stable_baselines3", "sb3"),
        ("torchscript", "torch", "torch"),
        ("pt2", "torch", "torch"),
        ("onnx", "onnxruntime", "onnx"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    kind: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
):
    for name in list(sys.modules):
        if name.startswith("mpi_rollout.policies.") and name.rpartition(".")[2] not in ("files", "model", "random"):
            monkeypatch.delitem(sys.modules, name)
        if name.startswith(f"{package}."):  # An import of these would not look at the package.
            monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, package, None)
    source = PolicySource(kind, "p.zip", KINDS[kind], "", "deterministic")
    with pytest.raises(UsageError, match=rf"--policy p.zip: needs a package .*pip install 'mpi_rollout\[{extra}\]'"):
        load_model(source, BOX, TWO)


def test_a_member_that_is_there_twice_is_refused():
    with pytest.warns(UserWarning), pytest.raises(UsageError, match="twice"):
        kind_of(zipped("data", "policy.pth", "data"))
