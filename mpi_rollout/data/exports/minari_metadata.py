"""The metadata of a Minari data set, and what its users should be told."""

import json
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec

from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from mpi_rollout import __version__
from mpi_rollout.core.spaces import Space
from mpi_rollout.data.exports.selection import Options
from mpi_rollout.data.opening import SeveralRuns
from mpi_rollout.data.run_data import RunData
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.text import shortened

AS_GIVEN = (  # Options whose values the metadata have.
    "code_permalink", "author", "author_email", "algorithm_name", "description", "requirements", "ref_min_score",
    "ref_max_score",
)  # fmt: skip
MINARI_VERSION = "0.5.4"  # The first that reads images without JPEG; older ones refuse the data set by themselves.
OF_VECTOR_ENVS = ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers", "first_env", "num_threads")


def metadata_of(data: SeveralRuns, options: Options) -> tuple[dict[str, object], list[str]]:
    """Return the part of `metadata.json` that does not depend on the episodes, and lines for the user.

    UsageError if Minari has no such spaces, DataError if several files are of different envs.
    """
    first, notes = data.files[0], list[str]()
    check_same_env(data.files)
    metadata = {
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(described(data.observation_space)),
        "action_space": json.dumps(described(data.action_space)),
        "dataset_id": options["dataset_id"],
        "minari_version": MINARI_VERSION,
        "algorithm_name": policies_of(data.files),
        "description": description_of(data.files),
    }
    metadata |= {name: options[name] for name in AS_GIVEN if options.get(name) not in (None, [])}
    if why := why_not_recovered(spec := spec_of(first)):
        notes.append(f"recover_environment() will not work: {why}; the spaces are there")
    else:
        metadata["env_spec"] = spec
        notes += _notes_of_spec(first, EnvSpec.from_json(spec))
    if not all(file.knows_final for file in data.files):
        notes.append("the last observations of episodes are not in the file: they repeat those before")
    return metadata, notes


def check_same_env(files: Sequence[RunData]) -> None:
    """Raise DataError if several files are not of one env: a data set has one spec."""
    for file in files[1:]:
        if spec_of(file) != spec_of(files[0]):
            raise DataError(
                f"{file.path} is of {name_of_env(file)}, {files[0].path} of {name_of_env(files[0])}, with another "
                "spec; export each by itself"
            )


def name_of_env(file: RunData) -> str:
    """Return the value of `--env` or `--env-factory`."""
    return str(file.env_id or file.config.env_factory)


def policies_of(files: Sequence[RunData]) -> str:
    """Return the `--policy` of the run, or those of all runs."""
    return shortened(", ".join(dict.fromkeys(file.config.policy for file in files)))


def description_of(files: Sequence[RunData]) -> str:
    """Say where the data come from, in the words of the command line."""
    config = files[0].config
    seeds = ", ".join(str(file.config.seed) for file in files[:10]) + (" ..." if len(files) > 10 else "")
    return shortened(
        f"{name_of_env(files[0])}, policy {policies_of(files)}, {config.num_envs} envs, seed {seeds}; collected by "
        f"mpi_rollout {__version__}"
    )


def spec_of(file: RunData) -> str:
    """Return the spec of a single env, in JSON; "" where there is none.

    In the spec of a vectorized env Gymnasium notes what `make_vec` gave to it, which a single env does not take: its
    limit of steps belongs elsewhere, and the number of envs was that of one rank.
    """
    try:
        spec = json.loads(file.env_spec)
        given, most_steps = dict(spec["kwargs"]), spec["max_episode_steps"]
    except (ValueError, TypeError, KeyError):  # The export says what is wrong with it.
        return str(file.env_spec)
    if "vectorization_mode" not in given:
        return str(file.env_spec)
    kwargs = {name: value for name, value in given.items() if name not in OF_VECTOR_ENVS}
    most_steps = kwargs.pop("max_episode_steps", most_steps)
    return json.dumps(spec | {"kwargs": kwargs, "max_episode_steps": most_steps})


def why_not_recovered(env_spec: str) -> str:
    """Tell why Minari cannot make the env from its spec; "" if it can, as far as that is seen without making it."""
    if not env_spec:
        return "the env has no spec (it comes from a factory, or from EnvPool)"
    try:
        spec = EnvSpec.from_json(env_spec)
    except Exception as error:
        return f"its spec cannot be read ({type(error).__name__}: {error})"
    if not isinstance(spec.entry_point, str) or ":" not in spec.entry_point or "<" in spec.entry_point:
        return f"its entry point is no MODULE:NAME, but {str(spec.entry_point)[:80]!r}"
    if objects := [name for name, value in spec.kwargs.items() if _was_object(value)]:
        return f"its argument {objects[0]} was an object, of which the file has the name"
    for wrapper in spec.additional_wrappers:
        if wrapper.kwargs is None or any(map(_was_object, wrapper.kwargs.values())):
            return f"the arguments of its wrapper {wrapper.name} are not known"
    for module in modules_of(spec):
        if find_spec(module) is None:
            return f"its module {module} is not found here"
    return ""


def modules_of(spec: EnvSpec) -> list[str]:
    """Return the modules, or packages of these, that making the env imports."""
    places = [str(spec.entry_point), *(wrapper.entry_point for wrapper in spec.additional_wrappers)]
    return [*dict.fromkeys(place.partition(":")[0].partition(".")[0] for place in places)]


def is_installed(module: str) -> bool:
    """Tell whether a module is where Python finds it from any folder, or nowhere."""
    found = find_spec(module)
    return found is None or found.origin is None or found.origin.startswith(tuple(sysconfig.get_paths().values()))


def _was_object(value: object) -> bool:
    """Tell whether a text in a spec is the name of a lambda, or of an object: JSON has no words for these."""
    return isinstance(value, str) and "<" in value


def _notes_of_spec(file: RunData, spec: EnvSpec) -> list[str]:
    own = [module for module in modules_of(spec) if not is_installed(module)]
    where = f"recover_environment() works where Python finds {', '.join(own)}, as in this folder"
    return [*_notes_of_config(file), *[where] * bool(own)]


def _notes_of_config(file: RunData) -> list[str]:
    if file.config.env is None:
        return ["the env comes from a factory: recover_environment() makes what its spec says, which may be less"]
    if isinstance(file.config.env_kwargs, list):
        return ["the envs have different arguments: recover_environment() makes the first one"]
    if file.config.vectorization_mode == "vector_entry_point":
        single = "the envs were vectorized: recover_environment() makes the single env of that name"
        return [f"{single}, which may show or take something else"]
    return []


def described(space: Space) -> dict[str, object]:
    """Return a space as data for JSON.  UsageError if Minari has no words for it."""
    of_kind: dict[str, object]
    match space:
        case spaces.Box():
            of_kind = {"dtype": str(space.dtype), "shape": list(space.shape)}
            of_kind |= {"low": space.low.tolist(), "high": space.high.tolist()}
        case spaces.Discrete():
            of_kind = {"dtype": "int64", "start": int(space.start), "n": int(space.n)}
        case spaces.MultiDiscrete():
            of_kind = {"dtype": str(space.dtype), "nvec": space.nvec.tolist(), "start": space.start.tolist()}
        case spaces.MultiBinary():
            of_kind = {"n": space.n if isinstance(space.n, int) else list(map(int, space.n))}
        case spaces.Dict():
            if wrong := [key for key in space.spaces if "/" in key]:
                raise UsageError(f"Minari cannot load a Dict space with a / in a key, got {wrong[0]!r}")
            of_kind = {"subspaces": {key: described(child) for key, child in space.spaces.items()}}
        case spaces.Tuple():
            of_kind = {"subspaces": [described(child) for child in space.spaces]}
        case _:
            raise UsageError(f"Minari has no {type(space).__name__} spaces, got {space}")
    return {"type": type(space).__name__, **of_kind}
