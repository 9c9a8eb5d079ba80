"""Networks of files as models: which arrays they take, and a trial that shows whether they fit the envs."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mpi_rollout.core.spaces import Leaf, Space, Tree, leaves, tree_of
from mpi_rollout.errors import ActionError, UsageError
from mpi_rollout.policies.heads import Head
from mpi_rollout.policies.model import Model
from mpi_rollout.text import first_line

TRIAL_ROWS = 3, 2  # A network is tried on batches of two sizes.
NO_ENV = "on observations of zeros, which rows of a block have that belong to no env, "


class Input(NamedTuple):
    """An array that a network takes: its dtype and its shape, in which None is any size."""

    dtype: np.dtype
    shape: tuple[int | None, ...]


Inputs = dict[str, tuple[Leaf, np.dtype]]  # By name: the part of the observations, and the dtype that is wanted.


def model_of(
    call: Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]], inputs: Inputs, head: Head, owner: object = None
) -> Model:
    """Return a model that gives a network its inputs by name, and takes actions from its outputs."""

    def act(observations: Tree, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        arrays = {name: np.ascontiguousarray(leaf.of(observations), dtype) for name, (leaf, dtype) in inputs.items()}
        return head(call(arrays), env_indices, uniforms)

    return Model(act, head.num_uniforms, owner=owner)


def match_inputs(inputs: Mapping[str, Input], observation_space: Space, advice: str) -> Inputs:
    """Find the part of the observations that each input takes: by its path, or the only one.

    `advice` says how a network is saved that takes batches of any size.
    """
    observed = {leaf.path: leaf for leaf in leaves(observation_space)}
    if len(observed) == len(inputs) == 1:
        observed = dict(zip(inputs, observed.values(), strict=True))
    if observed.keys() != inputs.keys():
        taken, given = (
            ", ".join(repr(name) if name else "one array" for name in names) for names in (inputs, observed)
        )
        hint = ": name the inputs so" if len(observed) > 1 else ""
        raise UsageError(f"takes {taken}, the envs' observations are {given}{hint}")
    for name, leaf in observed.items():
        _check_input(inputs[name], leaf, advice)
    return {name: (leaf, inputs[name].dtype) for name, leaf in observed.items()}


def _check_input(taken: Input, leaf: Leaf, advice: str) -> None:
    """Check that an observation may be given to a network.

    Floats may become other floats, and whole numbers other whole numbers.  Bytes of an image do not become floats: some
    networks want these from 0 to 255, and some from 0 to 1.
    """
    name = f"observation {leaf.path!r}" if leaf.path else "observations"
    batch, *shape = taken.shape or (0,)
    own = leaf.shape
    if len(shape) != len(own) or any(size not in (None, other) for size, other in zip(shape, own, strict=True)):
        wanted = ["any" if size is None else size for size in taken.shape]
        raise UsageError(f"takes {name} of shape {wanted}, the envs' are {['any', *own]}")
    if batch is not None:
        raise UsageError(f"takes batches of {batch} only; {advice}")
    if _kind(leaf.dtype) != _kind(taken.dtype):
        raise UsageError(
            f"takes {taken.dtype} where the envs' {name} are {leaf.dtype}; save a network that takes {leaf.dtype}, "
            "and that converts and scales them itself"
        )


def _kind(dtype: np.dtype) -> str:
    return "i" if dtype.kind == "u" else dtype.kind


def try_model(model: Model, observation_space: Space) -> None:
    """Ask a model of a file for actions on zeros, such as the rows of a block have that belong to no env.

    Raises
    ------
    UsageError, ActionError
        It fails, or its outputs are no actions.
    """
    parts = leaves(observation_space)
    for rows in TRIAL_ROWS:
        zeros = [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in parts]
        try:
            model.act(tree_of(observation_space, zeros), np.arange(rows), np.zeros((rows, model.num_uniforms)))
        except ActionError as error:
            raise ActionError(NO_ENV * (" are NaN" in str(error)) + str(error)) from error
        except UsageError:
            raise
        except Exception as error:
            shapes = ", ".join(f"{zero.dtype} {zero.shape}" for zero in zeros)
            raise UsageError(
                f"fails on observations {shapes}: {_reason(error)}; it must take any number of rows"
            ) from error


def _reason(error: BaseException) -> str:
    """Return what is wrong; TorchScript says so in the last line of a traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines and "TorchScript" in str(error) else first_line(error)
