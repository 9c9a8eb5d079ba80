"""Which kind a policy's file is, and files that are none."""

import os
import re
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from policy_files import CART, TWO, assert_refused, zipped

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.policy_kinds import FORMATS
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.onnx_check import weight_files
from mpi_rollout.policies.sources import load_model, read_source, sha256_of
from mpi_rollout.text import pip_install


def named(*names: str) -> bytes:
    return zipped(dict.fromkeys(names, b"content"))


SB3 = named("data", "policy.pth", "_stable_baselines3_version")
FILES = {
    "p.zip": ("sb3", SB3),
    "p.PT": ("torchscript", named("actor/data.pkl", "actor/code/__torch__.py", "actor/version")),
    "p.pth": ("torchscript", named("actor/data.pkl", "actor/code/__torch__.py", "actor/version")),
    "p.pt2": ("pt2", named("actor/archive_format", "actor/models/model.json")),
    "p.onnx": ("onnx", b"\x08\x0a\x12\x07pytorch"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_kind_is_known_by_its_name(name: str, tmp_path: Path):
    path = tmp_path / name
    kind, content = FILES[name]
    path.write_bytes(content)
    source = read_source(str(path), "sample", is_trusted=True)
    assert source == PolicySource(kind, str(path), content, sha256(content).hexdigest(), "sample", True)


NO_POLICIES = {
    "weights.pt": (named("a/data.pkl", "a/version"), "not a policy: weights without the network, or .*; load it in"),
    "old.pth": (b"\x80\x02}q\x00.", "weights without the network"),
    "p.h5": (
        b"",
        r"has this ending; a policy is FILE.zip of Stable-Baselines3, FILE.onnx of ONNX, FILE.pt2 of .*trust",
    ),
    "half.pt": (SB3[:40], "damaged"),
}


@pytest.mark.parametrize("name", NO_POLICIES)
def test_what_is_no_policy_is_refused_in_one_line(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_bytes(NO_POLICIES[name][0])
    with assert_refused(f"^policy {path}: .*{NO_POLICIES[name][1]}"):
        read_source(str(path), "deterministic", is_trusted=False)


def field(number: int, value: bytes, more: int = 0) -> bytes:
    """A field of a message of protocol buffers, the length of which takes more bytes than it needs."""
    size = bytearray()
    for rest in range(2 + more):
        size.append(len(value) >> 7 * rest & 127 | (128 if rest < 1 + more else 0))
    return bytes([number << 3 | 2]) + bytes(size) + value


def onnx_with(*locations: str, more: int = 0) -> bytes:
    """An ONNX file with weights in these files."""
    entries = [field(2, name.encode(), more) + field(1, b"location", more) for name in locations]
    return b"\x08\x0a" + field(7, b"".join(field(5, field(13, entry, more)) for entry in entries))


@pytest.mark.parametrize("more", [0, 3])
def test_the_hash_of_a_network_is_also_that_of_the_files_with_its_weights(
    more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    long_name = "w" * 200
    content = onnx_with("w.data", long_name, long_name, more=more)
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


@pytest.mark.parametrize("name", ["/dev/zero", "../w", "w\0", "folder", "absent"])
def test_weights_that_are_no_file_beside_the_network_are_refused(name: str, tmp_path: Path):
    (tmp_path / "inner" / "folder").mkdir(parents=True)
    (tmp_path / "w").write_bytes(b"weights")
    path = tmp_path / "inner" / "p.onnx"
    path.write_bytes(onnx_with(name))
    assert sha256_of(str(path)) == ""
    with assert_refused("the weights are in another file, which cannot be read"):
        read_source(str(path), "deterministic", is_trusted=False)


@pytest.mark.parametrize("name", ["p.PT", "p.pt2"])
def test_files_of_torch_need_trust(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_bytes(FILES[name][1])
    with assert_refused(r"p.[pt2PT]+: a file of .* is code, .*; add trust_policy .* or export the network to ONNX"):
        read_source(str(path), "deterministic", is_trusted=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [("folder.zip", "Is a directory"), ("pipe.zip", "it is a pipe"), ("no.zip", "No such file or directory")],
)
def test_a_file_that_cannot_be_read_is_refused(name: str, message: str, tmp_path: Path):
    (tmp_path / "folder.zip").mkdir()
    os.mkfifo(tmp_path / "pipe.zip")
    with assert_refused(f"cannot read this file: {message}"):
        read_source(str(tmp_path / name), "deterministic", is_trusted=False)


def test_names_of_files_are_told_from_code():
    for policy in ("a.zip", "b/c.ONNX", "d.pt", "e.pt2", "f.pth", "mine:make_policy", "mine.py:best.make_net"):
        assert RolloutConfig(env="CartPole-v1", policy=policy).has_model
    for policy in ("mine:makes", "mine:make_it.act", "act.py:act", "random"):
        assert not RolloutConfig(env="CartPole-v1", policy=policy).has_model


@pytest.mark.parametrize("kind", FORMATS)
def test_a_missing_package_is_named_with_its_extra(kind: str, monkeypatch: pytest.MonkeyPatch):
    extra, package = FORMATS[kind].extra, FORMATS[kind].package
    for name in list(sys.modules):
        if name.startswith("mpi_rollout.policies.") and name.rpartition(".")[2] not in ("sources", "model", "random"):
            monkeypatch.delitem(sys.modules, name)
        if name.startswith(f"{package}."):  # An import of these would not look at the package.
            monkeypatch.setitem(sys.modules, name, None)
    for name in (package, "torch"):  # SB3 needs torch too, which takes seconds to import.
        monkeypatch.setitem(sys.modules, name, None)
    source = PolicySource(kind, "p.zip", b"", "", "deterministic")
    with assert_refused("policy p.zip: needs a package .*" + re.escape(pip_install(f"[{extra}]"))):
        load_model(source, CART, TWO)
