"""Which kind a policy's file is, and files that are none."""

import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest
from policy_files import CART, TWO, assert_refused, zipped

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.policy_kinds import FORMATS
from mpi_rollout.policies.model import PolicySource
from mpi_rollout.policies.onnx_check import weight_files
from mpi_rollout.policies.sources import kind_of, load_model, read_source, sha256_of


def named(*names: str) -> bytes:
    return zipped(dict.fromkeys(names, b"content"))


KINDS = {
    "sb3": named("data", "policy.pth", "_stable_baselines3_version"),
    "torchscript": named("actor/data.pkl", "actor/code/__torch__.py", "actor/version"),
    "pt2": named("actor/archive_format", "actor/models/model.json"),
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
    "weights": (named("a/data.pkl", "a/version"), "not a policy: weights without the network, or .*; load it in"),
    "old weights": (b"\x80\x02}q\x00.", "weights without the network"),
    "another zip": (named("a.txt"), "a zip of something else; a policy is FILE.zip of Stable-Baselines3, FILE.pt2 of"),
    "half a zip": (KINDS["sb3"][:40], "damaged"),
    "empty": (b"", "the file is empty"),
    "text": (b"def act(): pass", "damaged or of another kind"),
    "a changed byte": (KINDS["sb3"].replace(b"content", b"contend", 1), "damaged: Bad CRC-32 for file 'data'"),
}


@pytest.mark.parametrize("case", NO_POLICIES)
def test_what_is_no_policy_is_refused_in_one_line(case: str, tmp_path: Path):
    path = tmp_path / "policy.zip"
    path.write_bytes(NO_POLICIES[case][0])
    with assert_refused(f"^policy {path}: .*{NO_POLICIES[case][1]}"):
        read_source(str(path), "deterministic", is_trusted=False)


def test_a_compressed_file_that_is_damaged_is_refused():
    content = bytearray(zipped({"data": bytes(range(256)) * 40, "policy.pth": b"weights"}, zipfile.ZIP_DEFLATED))
    assert kind_of(bytes(content)) == "sb3"
    content[60:80] = bytes(255 - byte for byte in content[60:80])
    with assert_refused("damaged"):
        kind_of(bytes(content))


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


def test_torchscript_needs_trust(tmp_path: Path):
    path = tmp_path / "p.pt"
    path.write_bytes(KINDS["torchscript"])
    with assert_refused(r"p.pt: the file is TorchScript, whose code may .*; add --trust-policy, .*pt2"):
        read_source(str(path), "deterministic", is_trusted=False)


@pytest.mark.parametrize("kind", ["sb3", "pt2"])
def test_a_zip_that_unpacks_to_far_more_is_refused_before_it_does(kind: str, tmp_path: Path):
    names = ("data", "policy.pth") if kind == "sb3" else ("a/archive_format", "a/models/model.json")
    content = zipped(dict.fromkeys(names, bytes(40 << 20)), zipfile.ZIP_DEFLATED)
    with assert_refused(r"damaged: its [\d,]+ bytes claim to unpack to 83,886,080", 40):
        kind_of(content)


@pytest.mark.parametrize(("name", "message"), [("", "Is a directory"), ("no.zip", "No such file or directory")])
def test_a_file_that_cannot_be_read_is_refused(name: str, message: str, tmp_path: Path):
    with assert_refused(f"cannot read this file: {message}"):
        read_source(str(tmp_path / name), "deterministic", is_trusted=False)


def test_names_of_files_are_told_from_code():
    for policy in ("a.zip", "b/c.ONNX", "d.pt", "e.pt2", "f.pth", "mine:make_policy", "mine.py:best.make_policy"):
        assert RolloutConfig(env="CartPole-v1", policy=policy).has_model
    for policy in ("mine:make_policies", "act.py:act", "random"):
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
    source = PolicySource(kind, "p.zip", KINDS[kind], "", "deterministic")
    with assert_refused(rf"policy p.zip: needs a package .*pip install 'mpi_rollout\[{extra}\]'"):
        load_model(source, CART, TWO)


def test_a_member_that_is_there_twice_is_refused():
    content = named("data", "policy.pth", "date").replace(b"date", b"data")
    with assert_refused("twice"):
        kind_of(content)
