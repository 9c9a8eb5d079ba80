"""The kinds of policies, known by what `--policy` says, and the formats of their files: one table.

Another format is one more row of it, and a module of `mpi_rollout.policies` that reads it.
"""

from typing import NamedTuple

RANDOM, CALLED, MADE, FILE = "random", "called", "made", "file"
MAKE_POLICY = "make_policy"


class Format(NamedTuple):
    """A format of policy files."""

    suffixes: tuple[str, ...]  # What such files usually end in.
    writer: str
    loader: str  # The module of `mpi_rollout.policies` that has a function `load`.
    extra: str  # An extra of this package.
    package: str  # What the extra brings.
    members: tuple[frozenset[str], ...] = ()  # A zip with all of one of these has this format; * is any one folder.
    begins: bytes = b"PK"  # What files begin with.


ZIP_OF_SB3 = frozenset({"policy.pth", "data"})
PROGRAM, OLD_PROGRAM = frozenset({"*/archive_format"}), frozenset({"serialized_exported_program.json"})
SCRIPT = frozenset({"*/data.pkl", "*/code/"})
FORMATS = {
    "sb3": Format((".zip",), "Stable-Baselines3", "sb3", "sb3", "stable_baselines3", (ZIP_OF_SB3,)),
    "pt2": Format((".pt2",), "torch.export", "torch_models", "torch", "torch", (PROGRAM, OLD_PROGRAM)),
    "onnx": Format((".onnx",), "ONNX", "onnx_models", "onnx", "onnxruntime", begins=b"\x08"),  # Its format's version.
    "torchscript": Format((".pt", ".pth"), "TorchScript", "torch_models", "torch", "torch", (SCRIPT,)),
}
SUFFIXES = tuple(suffix for form in FORMATS.values() for suffix in form.suffixes)
FILES = ", ".join(f"FILE{form.suffixes[0]} of {form.writer}" for form in FORMATS.values())


def kind_of_name(policy: str) -> str:
    """Classify the value of `--policy`: "random", a "file", a callable, or made by `make_policy`."""
    if policy == RANDOM:
        return RANDOM
    if policy.lower().endswith(SUFFIXES):
        return FILE
    return MADE if is_maker(policy) else CALLED


def is_maker(policy: str) -> bool:
    """Tell whether a policy names a `make_policy`: MODULE:make_policy, or a part of something in a module."""
    module, _, name = policy.rpartition(":")
    return bool(module) and name.rpartition(".")[2] == MAKE_POLICY
