"""Which envs of a file may be made.

A file must not choose code that runs on the computer of who reads it, and making an env imports modules and calls what
is in them.  So the envs of a file are made only if they are Gymnasium's own, or if the user says on the command line
that they are what is expected.  Gymnasium's own have arguments that name files to read (`xml_file`) or open windows
(`render_mode`): those of a file may be numbers only.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import gymnasium
from gymnasium.envs.registration import find_highest_version, get_env_id, parse_env_id

from mpi_rollout.config import ENV_OPTIONS, RolloutConfig, flag
from mpi_rollout.envs.env_maker import Kwargs
from mpi_rollout.errors import UsageError
from mpi_rollout.text import shortened


@dataclass(frozen=True)
class Consent:
    """What the user says about the envs of a file, in the options of `run`."""

    env: str | None = None
    env_factory: str | None = None
    env_kwargs: Kwargs | Sequence[Kwargs] = field(default_factory=dict)
    wrappers: str = ""
    trust: bool = False  # Make any envs that the file names.
    what: str = "--replay"  # The command or option that makes envs, for messages.

    def check(self, config: RolloutConfig, path: str) -> None:
        """Raise UsageError unless the envs of this run may be made."""
        given, stored = (
            {name: getattr(options, name) for name in ENV_OPTIONS if getattr(options, name)}
            for options in (self, config)
        )
        if self.trust or given == stored:
            return
        if given:
            raise UsageError(f"{self.what}: {path} is of {_options(stored)}, got {_options(given)}; give the same")
        is_harmless = is_built_in(stored.get("env", "")) and are_gymnasiums(config.wrappers)
        if not is_harmless or not are_numbers(stored.get("env_kwargs", {})):
            raise UsageError(
                f"{self.what} runs the code of the envs, which a file must not choose by itself: {path} is of "
                f"{_options(stored)}; add that if it is what you expect, or --trust"
            )


def _options(values: Mapping[str, object]) -> str:
    """Return options as one types them."""
    words = [(flag(name), value if isinstance(value, str) else json.dumps(value)) for name, value in values.items()]
    return shortened(shlex.join(word for pair in words for word in pair))


def are_numbers(env_kwargs: Mapping[str, object] | Sequence[Mapping[str, object]]) -> bool:
    """Tell whether no argument of an env is more than a number."""
    kwargs_of_envs = [env_kwargs] if isinstance(env_kwargs, Mapping) else env_kwargs
    return all(isinstance(value, int | float | None) for kwargs in kwargs_of_envs for value in kwargs.values())


def are_gymnasiums(wrappers: str) -> bool:
    """Tell whether all wrappers are Gymnasium's own."""
    own = {f"gymnasium.wrappers:{name}" for name in gymnasium.wrappers.__all__}
    return not wrappers or own.issuperset(wrappers.split(","))


def is_built_in(env_id: str) -> bool:
    """Tell whether an env id is one of Gymnasium's own or of this program's; import nothing."""
    try:
        namespace, name, version = parse_env_id(env_id)
    except gymnasium.error.Error:
        return False
    if version is None:
        version = find_highest_version(namespace, name)
    spec = gymnasium.registry.get(get_env_id(namespace, name, version))
    return spec is not None and str(spec.entry_point).startswith(("gymnasium.envs.", "mpi_rollout.envs."))
