"""The kinds of policies, known by what `--policy` says, and the formats of their files: one table.

Another format is one more row of it, and a module of `mpi_rollout.policies` that reads it.
"""

from typing import NamedTuple

RANDOM, CALLED, MADE = "random", "called", "made"
MAKE, MAKE_POLICY = "make_", "make_policy"  # How names of functions begin that make a policy, and one of them.


class Format(NamedTuple):
    """A format of policy files."""

    suffixes: tuple[str, ...]
    writer: str
    loader: str  # The module of `mpi_rollout.policies` that has a function `load`.
    extra: str  # An extra of this package.
    package: str  # What the extra brings.
    is_code: bool = False  # Its loader executes what a file says.


FORMATS = {
    "sb3": Format((".zip",), "Stable-Baselines3", "sb3", "sb3", "stable_baselines3"),
    "onnx": Format((".onnx",), "ONNX", "onnx_models", "onnx", "onnxruntime"),
    "pt2": Format((".pt2",), "torch.export", "torch_models", "torch", "torch", is_code=True),
    "torchscript": Format((".pt", ".pth"), "TorchScript", "torch_models", "torch", "torch", is_code=True),
}
SUFFIXES = {suffix: kind for kind, form in FORMATS.items() for suffix in form.suffixes}
FILES = ", ".join(
    f"FILE{form.suffixes[0]} of {form.writer}" + " (with --trust-policy)" * form.is_code for form in FORMATS.values()
)


def kind_of_name(policy: str) -> str:
    """Classify the value of `--policy`: a key of FORMATS, RANDOM, CALLED, or MADE by a factory."""
    if policy == RANDOM:
        return RANDOM
    for suffix, kind in SUFFIXES.items():
        if policy.lower().endswith(suffix):
            return kind
    return MADE if is_maker(policy) else CALLED


def is_maker(policy: str) -> bool:
    """Tell whether a policy names a factory: its name begins with make_, in a module or in something of a module."""
    module, _, name = policy.rpartition(":")
    return bool(module) and name.rpartition(".")[2].startswith(MAKE)
