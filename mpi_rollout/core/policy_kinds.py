"""The kinds of policies, known by what `--policy` says, and the formats of their files: one table."""

from typing import NamedTuple

RANDOM, CALLED, MADE, FILE = "random", "called", "made", "file"
MAKE_POLICY = "make_policy"


class Format(NamedTuple):
    """A format of policy files.

    Parameters
    ----------
    suffixes
        What such files usually end in.
    writer
        Whose format it is.
    loader
        The module of `mpi_rollout.policies` that has a function `load`.
    extra, package
        An extra of this package, and the package that it brings.
    """

    suffixes: tuple[str, ...]
    writer: str
    loader: str
    extra: str
    package: str


FORMATS = {
    "sb3": Format((".zip",), "Stable-Baselines3", "sb3", "sb3", "stable_baselines3"),
    "pt2": Format((".pt2",), "torch.export", "torch_models", "torch", "torch"),
    "onnx": Format((".onnx",), "ONNX", "onnx_models", "onnx", "onnxruntime"),
    "torchscript": Format((".pt", ".pth"), "TorchScript", "torch_models", "torch", "torch"),
}
SUFFIXES = tuple(suffix for form in FORMATS.values() for suffix in form.suffixes)
FILES = ", ".join(f"FILE{form.suffixes[0]} of {form.writer}" for form in FORMATS.values())


def kind_of_name(policy: str) -> str:
    """Return what the value of `--policy` names: "random", a "file", a callable, or what `make_policy` makes."""
    if policy == RANDOM:
        return RANDOM
    if policy.lower().endswith(SUFFIXES):
        return FILE
    return MADE if is_maker(policy) else CALLED


def is_maker(policy: str) -> bool:
    """Tell whether a policy names a `make_policy`: MODULE:make_policy, or a part of something in a module."""
    module, _, name = policy.rpartition(":")
    return bool(module) and name.rpartition(".")[2] == MAKE_POLICY
