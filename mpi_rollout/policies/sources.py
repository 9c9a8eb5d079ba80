"""Where policies come from: one rank reads a policy, and each rank that asks it makes a model of what was read.

Packages are imported when a file needs them.
"""

import hashlib
import io
import os
from dataclasses import replace
from importlib import import_module

from mpi_rollout.core.policy_kinds import CALLED, FILES, FORMATS, MADE, MAKE, RANDOM, SUFFIXES, kind_of_name
from mpi_rollout.core.spaces import Space
from mpi_rollout.errors import Option, UsageError
from mpi_rollout.options import AUTO, SharedOptions
from mpi_rollout.policies.devices import device_here
from mpi_rollout.policies.model import (
    DEFAULTS,
    DETERMINISTIC,
    POLICY,
    Model,
    Policy,
    PolicySource,
    called_model,
    called_once,
)
from mpi_rollout.policies.networks import try_model
from mpi_rollout.policies.onnx_check import check_network, weight_files
from mpi_rollout.policies.untrusted import needs_trust, reading
from mpi_rollout.process.paths import colon_hint, load_object, located, open_regular
from mpi_rollout.text import first_line, pip_install, system_words

NO_NETWORK = (
    "the file has what torch.save writes, which is not a policy: weights without the network, or a whole module in a "
    "pickle, which is code; load it in Python, and export the network to ONNX or by torch.export.save"
)
OUTSIDE = "the weights are in another file, which cannot be read"
ONE_FILE = "save it in one file, with external_data=False"


def check_options(kind: str, options: SharedOptions) -> None:
    """Raise `UsageError` if an option is given that is for another kind of policies."""
    is_file, mode = kind in FORMATS, options.policy_mode
    if not is_file and mode != DETERMINISTIC:
        raise UsageError(Option("policy_mode"), f" {mode} is for policies in files, got another policy; leave it out")
    if not is_file and options.trust_policy:
        raise UsageError(Option("trust_policy"), " is for policies in files, got another policy; leave it out")
    if options.policy_kwargs and kind not in (MADE, CALLED):
        raise _no_factory("policy_kwargs", "this policy")
    if options.policy_device != AUTO and kind == RANDOM:
        raise UsageError(Option("policy_device"), " is for networks, got no policy that has one; leave it out")


def _no_factory(option: str, name: str) -> UsageError:
    which = f" is for a class or a function whose name begins with {MAKE}, which make a policy"
    return UsageError(Option(option), f"{which}; {name} is none; leave it out")


def find_source(spec: str, options: SharedOptions) -> PolicySource:
    """Load the callable that `--policy` names, or read its file; UsageError if there is none, or it is no policy."""
    kind = kind_of_name(spec)
    check_options(kind, options)
    if kind in FORMATS:
        return replace(read_source(spec, options.policy_mode, options.trust_policy), device=options.policy_device)
    return PolicySource(kind, spec, call=load_policy(spec, options) if kind == CALLED else None)


def load_policy(spec: str, options: SharedOptions = DEFAULTS) -> Policy:
    """Return the policy that `--policy` names: a function, or an object that is callable or has a method `act`.

    A class is called once, see `called_once`.  UsageError if there is no such policy, PolicyError if its class raises.
    """
    if ":" not in spec:
        hint = colon_hint(spec) or _file_hint(spec)
        raise UsageError(POLICY, f" must be MODULE:CALLABLE or FILE.py:CALLABLE, got {spec!r}{hint}")
    policy = load_object(spec, POLICY)
    if isinstance(policy, type):
        policy = called_once(policy, spec, options)
    elif options.policy_kwargs or options.policy_device != AUTO:
        raise _no_factory("policy_kwargs" if options.policy_kwargs else "policy_device", spec)
    policy = policy if callable(policy) else getattr(policy, "act", policy)
    if not callable(policy):
        name = type(policy).__name__
        raise UsageError(POLICY, f" {spec} is {name}, not callable; give a function of a batch of observations")
    return policy


def _file_hint(spec: str) -> str:
    """Return the end of a message: who trained with Stable-Baselines3 is used to names without `.zip`."""
    names = [spec + suffix for suffix in SUFFIXES if os.path.isfile(located(spec + suffix))]
    if names:
        return f"; did you mean {names[0]}?"
    *suffixes, last = SUFFIXES
    return f"; the file of a network ends in {', '.join(suffixes)} or {last}"


def read_source(spec: str, mode: str, is_trusted: bool = False) -> PolicySource:
    """Read a policy's file.  Only the root does this."""
    path = located(spec)
    with reading(POLICY, f" {spec}"):
        content, kind = _content(path), kind_of_name(spec)
        if kind not in FORMATS:
            raise UsageError(f"no file of a policy has this ending; a policy is {FILES}")
        if FORMATS[kind].is_code:
            _check_code(content, FORMATS[kind].writer, is_trusted)
        if kind == "onnx" and not is_trusted:
            check_network(content)
        sha256 = _digest(content, path)
        if kind == "onnx" and weight_files(content):
            content = _with_weights(path)
    return PolicySource(kind, spec, content, sha256, mode, is_trusted)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb", opener=open_regular) as file:
            return file.read()
    except OSError as error:
        raise UsageError(f"cannot read this file: {system_words(error)}") from error


def sha256_of(spec: str) -> str:
    """Return the SHA-256 of the policy that `--policy` names, as `PolicySource` has it; "" if it cannot be read."""
    path = located(spec)
    try:
        return _digest(_content(path), path)
    except (ValueError, UsageError):  # A name with a null byte is no name.
        return ""


def _digest(content: bytes, path: str) -> str:
    """Return the SHA-256 of a policy's file, and of the files beside an .onnx that have its weights."""
    digest = hashlib.sha256(content)
    for name in weight_files(content) if kind_of_name(path) == "onnx" else ():
        place = os.path.join(os.path.dirname(path), name)
        try:
            if os.path.isabs(name) or ".." in name.split("/") or not os.path.isfile(place):
                raise FileNotFoundError(f"No such file: {name!r}")
            with open(place, "rb") as file:
                digest.update(file.read())
        except (OSError, ValueError) as error:
            raise UsageError(f"{OUTSIDE} ({system_words(error)}); {ONE_FILE}") from error
    return digest.hexdigest()


def _check_code(content: bytes, writer: str, is_trusted: bool) -> None:
    """Refuse a file of torch that has no network, and one that is not trusted."""
    if content.startswith(b"PK"):
        from zipfile import ZipFile  # Slow.

        with ZipFile(io.BytesIO(content)) as archive:
            names = archive.namelist()
        is_pickle = any("/data.pkl" in name for name in names) and not any("/code/" in name for name in names)
    else:
        is_pickle = content.startswith(b"\x80")
    if is_pickle:
        raise UsageError(NO_NETWORK)
    if not is_trusted:
        way_out = ", or export the network to ONNX, which is read without trust"
        raise needs_trust(f"a file of {writer} is code, which may do all that you may", way_out)


def _with_weights(path: str) -> bytes:
    """Return an ONNX file with the weights that are in a file beside it."""
    try:
        onnx = import_module("onnx")
    except ImportError as error:
        raise UsageError(f"the weights are in another file; {ONE_FILE}, or pip install onnx") from error
    try:
        return bytes(onnx.load(path).SerializeToString())
    except Exception as error:
        raise UsageError(f"{OUTSIDE} ({first_line(error)}); {ONE_FILE}") from error


def load_model(source: PolicySource, observation_space: Space, action_space: Space) -> Model:
    """Make a model of what was read, for these spaces of one env.  Each rank that asks the policy does this.

    UsageError if a package is missing or the file cannot be used.
    """
    if source.call is not None:
        return called_model(source.call, observation_space, source.name)
    form = FORMATS[source.kind]
    try:
        loader = import_module(f"mpi_rollout.policies.{form.loader}")
    except ImportError as error:
        missing = f"needs a package ({first_line(error)}); {pip_install(f'[{form.extra}]')}"
        raise UsageError(POLICY, f" {source.name}: {missing}") from error
    source = replace(source, device=device_here(source.device))
    with reading(POLICY, f" {source.name}"):
        model: Model = loader.load(source, observation_space, action_space)
        try_model(model, observation_space)
    return model
