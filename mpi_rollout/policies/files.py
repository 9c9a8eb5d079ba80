"""Files of policies: what kind each is, and how it becomes a model.

The root reads a file once; each rank loads the bytes.  A file's kind follows from its content, not from its name.
Packages are imported when a file needs them.
"""

import io
import os
import re
import zipfile
import zlib
from importlib import import_module

from mpi_rollout.core.spaces import Space
from mpi_rollout.errors import ActionError, UsageError, first_line, system_words
from mpi_rollout.policies.model import Model, PolicySource, digest_of, weight_files

# Kind: the module with a function `load`, and the extra that its packages are in.
LOADERS = {
    "sb3": ("mpi_rollout.policies.sb3", "sb3"),
    "torchscript": ("mpi_rollout.policies.torch_models", "torch"),
    "pt2": ("mpi_rollout.policies.torch_models", "torch"),
    "onnx": ("mpi_rollout.policies.onnx_models", "onnx"),
}
KINDS = "a policy is an SB3 .zip, a TorchScript .pt, a torch.export .pt2 or an .onnx file"
NO_NETWORK = (
    "has what torch.save writes, weights without the network, which is not a policy; "
    "save the network with torch.export.save(torch.export.export(...), 'policy.pt2')"
)
ON_ZEROS = "on observations of zeros, which rows of a block have that belong to no env, "
ONE_FILE = "save it in one file, with external_data=False"


def read_source(spec: str, mode: str, is_trusted: bool) -> PolicySource:
    """Read a policy's file.  Only the root does this.

    Raises
    ------
    UsageError
        There is no such file, or it is damaged, or not a policy.
    """
    path = os.path.expanduser(spec)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise UsageError(f"--policy {spec}: cannot read this file: {system_words(error)}") from error
    try:
        kind = kind_of(content)
        digest = _digest(content, path)
        if kind == "onnx" and weight_files(content):
            content = _with_weights(path)
    except UsageError as error:
        raise UsageError(f"--policy {spec}: {error}") from error
    return PolicySource(kind, spec, content, digest, mode, is_trusted)


def _digest(content: bytes, path: str) -> str:
    try:
        return digest_of(content, path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the weights are in another file, which cannot be read ({system_words(error)}); {ONE_FILE}"
        ) from error


def kind_of(content: bytes) -> str:
    """Return the kind of a policy's file, a key of LOADERS.

    Raises
    ------
    UsageError
        It is damaged or no policy.
    """
    if content.startswith(b"PK"):
        return _kind_of_zip(_names(content))
    if content.startswith(b"\x08"):  # The first field of an ONNX model, the version of its format.
        return "onnx"
    if not content:
        raise UsageError("the file is empty")
    if content.startswith(b"\x80"):
        raise UsageError(f"the file {NO_NETWORK}")
    raise UsageError(f"the file is damaged or of another kind; {KINDS}")


def _names(content: bytes) -> list[str]:
    """Return the names of a zip's members, all of which are read and are what their checksums say."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            damaged = archive.testzip()
            names = archive.namelist()
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError, RuntimeError) as error:
        raise UsageError(f"the file is damaged: {first_line(error)}") from error
    if damaged is not None:
        raise UsageError(f"the file is damaged: wrong checksum of {damaged!r}")
    if len(set(names)) < len(names):
        raise UsageError("the file is damaged: it has a member twice")
    return names


def _kind_of_zip(names: list[str]) -> str:
    if "policy.pth" in names and "data" in names:
        return "sb3"
    inner = {name.partition("/")[2] for name in names}  # All members are in one folder.
    if "archive_format" in inner or "serialized_exported_program.json" in names:
        return "pt2"
    if "data.pkl" in inner:
        if any(name.startswith("code/") for name in inner):
            return "torchscript"
        raise UsageError(f"the file {NO_NETWORK}")
    raise UsageError(f"the file is a zip of something else; {KINDS}")


def _with_weights(path: str) -> bytes:
    """Return an ONNX file with the weights that are in a file beside it."""
    try:
        onnx = import_module("onnx")
    except ImportError as error:
        raise UsageError(f"the weights are in another file; {ONE_FILE}, or pip install onnx") from error
    try:
        return bytes(onnx.load(path).SerializeToString())
    except Exception as error:
        raise UsageError(
            f"the weights are in another file, which cannot be read ({first_line(error)}); {ONE_FILE}"
        ) from error


def load_model(source: PolicySource, observation_space: Space, action_space: Space) -> Model:
    """Make a model of a policy's file.  Each rank that asks the policy does this.

    Where the model is of torch, it is called with one thread, whatever the process has set.

    Parameters
    ----------
    observation_space, action_space
        Of one env.

    Raises
    ------
    UsageError
        Its package is missing; it is damaged; it does not fit the spaces; it would have to execute code of the file; or
        it has nothing to draw from.
    """
    module, extra = LOADERS[source.kind]
    try:
        try:
            loader = import_module(module)
        except ImportError as error:
            missing = f"needs a package ({first_line(error)}); pip install 'mpi_rollout[{extra}]'"
            raise UsageError(missing) from error
        model: Model = loader.load(source, observation_space, action_space)
    except (UsageError, ActionError) as error:
        where = ON_ZEROS if isinstance(error, ActionError) and " are NaN" in str(error) else ""
        raise UsageError(f"--policy {source.name}: {where}{_sentence(str(error))}") from error
    return model


def _sentence(text: str) -> str:
    """Return a message in one line."""
    return re.sub(r"\s*\n\s*", " ", text.strip())
