"""What is in a .zip of Stable-Baselines3, read without executing code of the file.

Its `data` is JSON in which ten entries are pickled (SB3 2.9): the classes, the spaces, the schedules.  SB3's own `load`
unpickles them, which executes whatever they name.  Here a class is found by its name in a list of SB3's own, and
arguments by what the JSON says of them beside the pickle.
"""

import base64
import binascii
import io
import json
import pickletools
import warnings
import zipfile
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from stable_baselines3.common.save_util import load_from_zip_file
from torch import nn

from mpi_rollout.errors import UsageError, first_line
from mpi_rollout.policies.model import TRUST_IT

TRUST = f"{TRUST_IT}, whose code is then executed"
ALGORITHMS = "PPO, A2C, DQN, SAC and TD3"
# Policies of SB3 by module; each algorithm has three.
_COMMON = "ActorCriticPolicy", "ActorCriticCnnPolicy", "MultiInputActorCriticPolicy"
CLASSES = {
    "stable_baselines3.common.policies": _COMMON,
    "stable_baselines3.dqn.policies": ("DQNPolicy", "CnnPolicy", "MultiInputPolicy"),
    "stable_baselines3.sac.policies": ("SACPolicy", "CnnPolicy", "MultiInputPolicy"),
    "stable_baselines3.td3.policies": ("TD3Policy", "CnnPolicy", "MultiInputPolicy"),
}
# Arguments that are numbers, booleans, lists and dicts.
PLAIN = {
    *("net_arch", "ortho_init", "use_sde", "log_std_init", "full_std", "use_expln", "squash_output", "clip_mean"),
    *("features_extractor_kwargs", "share_features_extractor", "normalize_images", "n_critics"),
}
FOR_LEARNING = {"optimizer_class", "optimizer_kwargs"}
_ACTIVATIONS = (
    "ReLU",
    "Tanh",
    "ELU",
    "GELU",
    "LeakyReLU",
    "SiLU",
    "Mish",
    "Sigmoid",
    "SELU",
    "CELU",
    "Softplus",
    "ReLU6",
)
_EXTRACTORS = "FlattenExtractor", "NatureCNN", "CombinedExtractor"
# What `str` gives of the classes that an argument may be.
NAMED = {
    "activation_fn": {f"<class 'torch.nn.modules.activation.{name}'>": name for name in _ACTIVATIONS},
    "features_extractor_class": {
        f"<class 'stable_baselines3.common.torch_layers.{name}'>": name for name in _EXTRACTORS
    },
}


@dataclass(frozen=True)
class SavedPolicy:
    """What a file says of a policy.

    Parameters
    ----------
    data
        Its JSON: what is pickled is a dict with a description.
    """

    policy_class: type
    policy_kwargs: dict[str, Any]
    weights: dict[str, Any]
    data: dict[str, Any]


def read_zip(content: bytes, is_trusted: bool) -> SavedPolicy:
    """Read a file; with `is_trusted` as SB3 does, which executes what is pickled.

    Raises
    ------
    UsageError
        It is damaged, of another algorithm, or has arguments that are code.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            data, weights = json.loads(archive.read("data")), archive.read("policy.pth")
    except (ValueError, KeyError) as error:
        raise UsageError(f"the file is damaged: {first_line(error)}") from error
    if not isinstance(data, dict):
        raise UsageError("the file is damaged: its data is no object")
    if is_trusted:
        return _unpickled(content, data)
    policy_class = _class_of(data.get("policy_class"))
    return SavedPolicy(policy_class, _arguments(data.get("policy_kwargs", {})), _weights(weights), data)


def _unpickled(content: bytes, data: dict[str, Any]) -> SavedPolicy:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Entries that this Python cannot unpickle are not all needed.
            read: Any = load_from_zip_file(io.BytesIO(content), device="cpu")
        loaded, weights, _ = read
        arguments = {key: value for key, value in loaded["policy_kwargs"].items() if key not in FOR_LEARNING}
        return SavedPolicy(loaded["policy_class"], arguments, weights["policy"], data)
    except Exception as error:
        raise UsageError(f"SB3 cannot read the file: {type(error).__name__}: {first_line(error)}") from error


def _weights(content: bytes) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Of pickles that are none of torch's: these are refused.
            weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # Damaged, or a pickle with more than tensors: torch tells these apart in many lines.
        raise UsageError(f"its policy.pth is damaged, or has code instead of weights: {first_line(error)}") from error
    if not isinstance(weights, dict):
        raise UsageError("the file is damaged: its policy.pth has no weights")
    return weights


def _class_of(entry: object) -> type:
    """Return the class of SB3 that a pickle names."""
    module, name = _pickled_name(entry)
    if name not in CLASSES.get(module, ()):
        what = f"{module}.{name}" if module else "a class of its own"
        raise UsageError(f"the policy is {what}, none of {ALGORITHMS} in SB3; if it is derived of one, {TRUST}")
    found: type = getattr(import_module(module), name)
    return found


def _pickled_name(entry: object) -> tuple[str, str]:
    """Return the module and the name of a class that is pickled by its name; of another pickle two empty texts."""
    texts: list[str] = []
    try:
        pickled = base64.b64decode(entry[":serialized:"], validate=True)  # type: ignore[index]
        for operation, argument, _ in pickletools.genops(pickled):
            if operation.name == "GLOBAL":
                texts += str(argument).split(" ")
            elif operation.name.endswith("UNICODE"):
                texts.append(str(argument))
            elif operation.name not in ("PROTO", "FRAME", "MEMOIZE", "BINPUT", "STACK_GLOBAL", "STOP"):
                return "", ""
    except (TypeError, KeyError, ValueError, binascii.Error):
        return "", ""
    return (texts[0], texts[1]) if len(texts) == 2 else ("", "")


def _arguments(entry: object) -> dict[str, Any]:
    """Return the arguments of the policy, of which those for learning are left out."""
    if not isinstance(entry, dict):
        raise UsageError(f"its policy_kwargs are {type(entry).__name__}; {TRUST}")
    is_pickled = ":serialized:" in entry
    arguments = {}
    for key, value in entry.items():
        if key in FOR_LEARNING or key in (":type:", ":serialized:"):
            continue
        if key in NAMED and str(value) in NAMED[key]:
            arguments[key] = _class_named(NAMED[key][str(value)])
        elif key in PLAIN and not (is_pickled and isinstance(value, str)):
            arguments[key] = value
        else:
            raise UsageError(f"its policy_kwargs have {key}={str(value)[:80]}, which is code; {TRUST}")
    return arguments


def _class_named(name: str) -> type:
    if name in _ACTIVATIONS:
        activation: type = getattr(nn, name)
        return activation
    extractor: type = getattr(import_module("stable_baselines3.common.torch_layers"), name)
    return extractor
