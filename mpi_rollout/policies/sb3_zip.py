"""What is in a .zip of Stable-Baselines3, read without executing code of the file.

Its `data` is JSON in which ten entries are pickled (SB3 2.9): the classes, the spaces, the schedules.  SB3's own `load`
unpickles them, which executes whatever they name.  Here a class is found by its name in a list of SB3's own, and
arguments by what the JSON says of them beside the pickle.

Its `policy.pth` is a state dict that `torch.save` wrote: a zip of a pickle and of plain bytes.  `torch.load` reads it
with `weights_only=True`, after a check of its sizes.  Before version 2.6 that has executed code of files.
"""

import base64
import io
import json
import pickle
import pickletools
import re
import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from stable_baselines3.common.save_util import load_from_zip_file
from torch.torch_version import TorchVersion

from mpi_rollout.errors import UsageError
from mpi_rollout.policies.untrusted import JsonObject, damaged, members_of, needs_trust, reading
from mpi_rollout.text import first_line

ALGORITHMS = "PPO, A2C, DQN, SAC, TD3, RecurrentPPO and MaskablePPO"
CONTRIB = "sb3_contrib"
# Policies of SB3 and sb3-contrib by module; each algorithm has three.
_COMMON = "ActorCriticPolicy", "ActorCriticCnnPolicy", "MultiInputActorCriticPolicy"
CLASSES = {
    "stable_baselines3.common.policies": _COMMON,
    "stable_baselines3.dqn.policies": ("DQNPolicy", "CnnPolicy", "MultiInputPolicy"),
    "stable_baselines3.sac.policies": ("SACPolicy", "CnnPolicy", "MultiInputPolicy"),
    "stable_baselines3.td3.policies": ("TD3Policy", "CnnPolicy", "MultiInputPolicy"),
    f"{CONTRIB}.common.recurrent.policies": (
        *("RecurrentActorCriticPolicy", "RecurrentActorCriticCnnPolicy", "RecurrentMultiInputActorCriticPolicy"),
    ),
    f"{CONTRIB}.common.maskable.policies": (
        *("MaskableActorCriticPolicy", "MaskableActorCriticCnnPolicy", "MaskableMultiInputActorCriticPolicy"),
    ),
}
# Arguments that are numbers, booleans, lists and dicts.
PLAIN = {
    *("net_arch", "ortho_init", "use_sde", "log_std_init", "full_std", "use_expln", "squash_output", "clip_mean"),
    *("features_extractor_kwargs", "share_features_extractor", "normalize_images", "n_critics"),
    *("lstm_hidden_size", "n_lstm_layers", "shared_lstm", "enable_critic_lstm", "lstm_kwargs"),
}
COUNTS = "n_critics", "n_lstm_layers"
_LAYERS = "stable_baselines3.common.torch_layers"
FOR_LEARNING = {"optimizer_class", "optimizer_kwargs"}
_ACTIVATIONS = (
    *("ReLU", "Tanh", "ELU", "GELU", "LeakyReLU", "SiLU", "Mish", "Sigmoid"),
    *("SELU", "CELU", "Softplus", "ReLU6"),
)
_EXTRACTORS = ["FlattenExtractor", "NatureCNN", "CombinedExtractor"]
# Arguments that are classes: what `str` gives of them, and where they are.
NAMED = {
    ("activation_fn", f"<class 'torch.nn.modules.activation.{name}'>"): ("torch.nn", name) for name in _ACTIVATIONS
} | {("features_extractor_class", f"<class '{_LAYERS}.{name}'>"): (_LAYERS, name) for name in _EXTRACTORS}
# JSON may have so much more than its file: read, it takes fifty times its size.
FREE_JSON_BYTES = 4 << 20
# A pickle of weights may have so much, and so much more for each member of its zip: reading takes a second a MiB.
FREE_PICKLE_BYTES, MEMBER_PICKLE_BYTES = 1 << 20, 1 << 10


@dataclass(frozen=True)
class SavedPolicy:
    """What a file says of a policy."""

    policy_class: type
    policy_kwargs: dict[str, object]
    weights: dict[str, torch.Tensor]
    data: JsonObject  # What is pickled is a dict with a description.
    is_trusted: bool = False  # Its classes may be code of the file.

    def told(self, name: str) -> JsonObject:
        """Describe a space as far as the file does."""
        entry = self.data.get(name)
        return entry if isinstance(entry, dict) else {}


def read_zip(content: bytes, is_trusted: bool) -> SavedPolicy:
    """Read a file; with `is_trusted` as SB3 does, which executes what is pickled."""
    members = members_of(content)
    if len(members["data"]) > FREE_JSON_BYTES + len(content):
        raise damaged(f"its {len(content):,} bytes have JSON of {len(members['data']):,}")
    data = json.loads(members["data"])
    if not isinstance(data, dict):
        raise damaged("its data is no object")
    if is_trusted:
        return _unpickled(content, data)
    if TorchVersion(torch.__version__) < "2.6":
        raise needs_trust(f"torch {torch.__version__} may execute code of a file; torch 2.6 or newer reads it safely")
    policy_class = _class_of(data.get("policy_class"))
    arguments = _arguments(data.get("policy_kwargs", {}))
    with reading("its policy.pth"):
        weights = read_weights(members["policy.pth"], len(content))
    _check_sizes(arguments, weights)
    return SavedPolicy(policy_class, arguments, weights, data)


def _unpickled(content: bytes, data: JsonObject) -> SavedPolicy:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Entries that this Python cannot unpickle are not all needed.
            read: Any = load_from_zip_file(io.BytesIO(content), device="cpu")
        loaded, weights, _ = read
        arguments = {key: value for key, value in loaded["policy_kwargs"].items() if key not in FOR_LEARNING}
        return SavedPolicy(loaded["policy_class"], arguments, weights["policy"], data, is_trusted=True)
    except Exception as error:
        raise UsageError(f"SB3 cannot read the file: {type(error).__name__}: {first_line(error)}") from error


def _check_sizes(arguments: dict[str, object], weights: dict[str, torch.Tensor]) -> None:
    """Refuse arguments with more layers, or more units in one, than there are weights of."""
    most_units = max((size for weight in weights.values() for size in weight.shape), default=0)
    num_layers = 0
    left: list[tuple[str, object]] = list(arguments.items())
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
        elif isinstance(value, list):
            num_layers += len(value)
            left += [(name, entry) for entry in value]
        elif isinstance(value, int) and value > (most := len(weights) if name in COUNTS else most_units):
            raise damaged(f"{name}={value}, and its weights are of at most {most:,}")
    if num_layers > len(weights):
        raise damaged(f"{num_layers:,} layers, and {len(weights):,} weights")


def _class_of(entry: object) -> type:
    """Return the class of SB3 that a pickle names."""
    module, name = _pickled_name(entry)
    if name not in CLASSES.get(module, ()):
        what = f"{module}.{name}" if module else "a class of its own"
        raise needs_trust(f"the policy is {what}, none of {ALGORITHMS}, though it may be derived of one")
    return _imported(module, name)


def _imported(module: str, name: str) -> type:
    try:
        found: type = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise UsageError("the policy needs sb3-contrib; pip install sb3-contrib") from error
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
    except (TypeError, KeyError, ValueError):
        return "", ""
    return (texts[0], texts[1]) if len(texts) == 2 else ("", "")


def _arguments(entry: object) -> dict[str, object]:
    """Return the arguments of the policy, of which those for learning are left out."""
    if not isinstance(entry, dict):
        raise needs_trust(f"its policy_kwargs are {type(entry).__name__}")
    is_pickled = ":serialized:" in entry
    arguments: dict[str, object] = {}
    for key, value in entry.items():
        if key in FOR_LEARNING or key in (":type:", ":serialized:"):
            continue
        if (key, str(value)) in NAMED:
            arguments[key] = _imported(*NAMED[key, str(value)])
        elif key in PLAIN and not (is_pickled and isinstance(value, str)):
            arguments[key] = value
        else:
            raise needs_trust(f"its policy_kwargs have {key}={str(value)[:80]}, which is code")
    return arguments


def read_weights(content: bytes, file_bytes: int) -> dict[str, torch.Tensor]:
    """Read a state dict that `torch.save` wrote into a file of this size; UsageError if it has more than tensors."""
    if not content.startswith(b"PK"):
        raise damaged("or written by torch 1.5 or older")
    members = members_of(content, file_bytes)
    size = sum(len(member) for name, member in members.items() if name.endswith("/data.pkl"))
    if size > FREE_PICKLE_BYTES + MEMBER_PICKLE_BYTES * len(members):
        raise damaged(f"a pickle of {size:,} bytes in {len(members):,} members")
    try:
        weights = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))  # The rest of the text is torch's advice to trust the file.
        raise UsageError("has code instead of weights" + (f": {named[1]:.80}" if named else "")) from error
    if not isinstance(weights, dict) or not all(isinstance(weight, torch.Tensor) for weight in weights.values()):
        raise damaged("it has more than weights by their names")
    return weights
