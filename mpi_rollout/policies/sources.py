"""Where policies that act in blocks come from: the root reads them once, and each rank that asks them loads them."""

from mpi_rollout.config import is_maker
from mpi_rollout.core.spaces import Space
from mpi_rollout.policies import files
from mpi_rollout.policies.made import make_model
from mpi_rollout.policies.model import Model, PolicySource


def read_source(spec: str, mode: str, is_trusted: bool = False) -> PolicySource:
    """Read what `--policy` names: a file, or `MODULE:make_policy`, of which there is nothing to read.

    Raises
    ------
    UsageError
        There is no such file, or it is no policy.
    """
    if is_maker(spec):
        return PolicySource("made", spec, b"", "", mode, is_trusted)
    return files.read_source(spec, mode, is_trusted)


def load_model(source: PolicySource, observation_space: Space, action_space: Space) -> Model:
    """Load a policy for these spaces of a single env.

    Raises
    ------
    UsageError
        A package is missing, or the policy does not fit the spaces.
    PolicyError
        The user's `make_policy` raises.
    """
    if source.kind == "made":
        return make_model(source.name)
    return files.load_model(source, observation_space, action_space)
