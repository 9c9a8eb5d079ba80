"""The specs of envs, as readers of files and other ranks get them."""

import json
import pickle

from gymnasium.envs.registration import EnvSpec, WrapperSpec

from mpi_rollout.envs.wrapping import name_of


def describe_spec(spec: EnvSpec | None) -> str:
    """Return a spec as JSON for readers of a file, as `EnvSpec.to_json` has it; a class, for example, by its name."""
    try:
        values = {name: value for name, value in vars(spec).items() if name not in ("namespace", "name", "version")}
        return json.dumps(values, skipkeys=True, default=_described)
    except Exception:  # There is no spec, or an env has its own idea of it.
        return ""


def _described(value: object) -> object:
    return vars(value) if isinstance(value, WrapperSpec) else name_of(value) if callable(value) else repr(value)


def can_be_pickled(value: object) -> bool:
    """Tell whether a value can be sent to other ranks."""
    try:
        return bool(pickle.dumps(value))
    except Exception:
        return False
