"""Networks of files as models: which arrays they take, what their outputs mean, and whether both fit the envs.

A network of a file gives one array, or several of which the first counts:

- floats for `Discrete`, `MultiDiscrete` and `MultiBinary`: logits, those of all components side by side;
- whole numbers for these: the actions;
- for a `Box`: the actions.  To sample, it gives two arrays, the mean and the logarithm of the standard deviation.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from gymnasium import spaces

from mpi_rollout.core.spaces import Leaf, Space, Tree, bounds_of, leaves, tree_of
from mpi_rollout.errors import ActionError, Option, UsageError
from mpi_rollout.policies.memory import INFOS, STARTS, STATE
from mpi_rollout.policies.model import DETERMINISTIC, SAMPLE, Model
from mpi_rollout.policies.sampling import bernoulli, gaussian, modes, multi_categorical, num_normal_uniforms
from mpi_rollout.text import shortened

TRIAL_ROWS = 3, 2  # A network is tried on batches of two sizes.
WAY_OUT = "use ", Option("policy_mode", DETERMINISTIC)
NO_ENV = "on observations of zeros, which rows of a block have that belong to no env, "


Inputs = dict[str, tuple[Leaf, np.dtype]]  # By name: the part of the observations, and the dtype that is wanted.


class Head:
    """The last step of a policy: from a network's outputs to actions of one leaf space.

    "deterministic" takes the most likely action, and the actions of a Box as they are.  "sample" draws, and sets what
    it draws for a Box to the nearest bound where it is outside.  UsageError if there is nothing to draw from.

    Attributes
    ----------
    num_uniforms, num_outputs
        How many random numbers an env needs in a step, and how many of the network's outputs are needed.
    """

    def __init__(self, space: Space, mode: str):
        if isinstance(space, spaces.Dict | spaces.Tuple):
            raise UsageError(f"gives one array of actions, the envs want {type(space).__name__} actions")
        self._space, self._is_sampled = space, mode == SAMPLE
        self._low, self._high = bounds_of(space)
        self._shape, self._size = self._low.shape, self._low.size
        self._begins_elsewhere = bool((self._low != 0).any())  # Discrete(3, start=5) begins with 5.
        is_box, self.num_uniforms, self.num_outputs = isinstance(space, spaces.Box), 0, 1
        self._counts = [] if is_box else (self._high - self._low + 1).ravel().tolist()
        if self._is_sampled and is_box:
            if np.dtype(space.dtype).kind != "f":
                raise UsageError(f"cannot draw actions of {space}; ", *WAY_OUT)
            self.num_uniforms, self.num_outputs = num_normal_uniforms(self._size), 2
        elif self._is_sampled:
            self.num_uniforms = self._size

    def __call__(self, outputs: Sequence[np.ndarray], env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """Return the actions of a batch of a network's outputs, or raise `ActionError` if they are of other kinds."""
        if self.num_outputs == 2:
            return self._drawn(outputs, uniforms)
        first = outputs[0]
        if self._counts and first.dtype.kind == "f":
            return self._chosen(first, env_indices, uniforms)
        if self._is_sampled:
            raise ActionError(f"gives actions ({first.dtype}) and no logits to draw from; ", *WAY_OUT)
        return self._shaped(first, (len(env_indices), *self._shape), "actions")

    def _chosen(self, logits: np.ndarray, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """Return the actions that logits of shape (rows, all categories) say."""
        is_binary = isinstance(self._space, spaces.MultiBinary)
        wanted = len(env_indices), self._size if is_binary else sum(self._counts)
        logits = self._shaped(logits, wanted, "logits")
        refuse_nan(logits, env_indices, "logits")
        if is_binary:
            chosen = bernoulli(logits, uniforms) if self._is_sampled else logits > 0
        elif self._is_sampled:
            chosen = multi_categorical(logits, self._counts, uniforms)
        else:
            chosen = modes(logits, self._counts)
        actions = chosen.reshape(len(env_indices), *self._shape).astype(self._space.dtype, copy=False)
        return actions + self._low if self._begins_elsewhere else actions

    def _drawn(self, outputs: Sequence[np.ndarray], uniforms: np.ndarray) -> np.ndarray:
        """Return draws of a Gaussian within the bounds of the Box."""
        shape = len(uniforms), *self._shape
        if len(outputs) != 2 or any(output.dtype.kind != "f" for output in outputs):
            raise ActionError("must give two float arrays to draw from, the mean and the log of the std; or ", *WAY_OUT)
        mean = self._shaped(outputs[0], shape, "mean").reshape(len(uniforms), -1)
        log_std = outputs[1]
        if log_std.size == self._size:  # The same for all rows.
            log_std = np.broadcast_to(log_std.reshape(self._shape), shape)
        std = np.exp(self._shaped(log_std, shape, "log of the std").astype(np.float64)).reshape(mean.shape)
        return clipped(gaussian(mean, std, uniforms).reshape(shape), self._space)

    def _shaped(self, array: np.ndarray, shape: tuple[int, ...], what: str) -> np.ndarray:
        """Return the array in a shape, from which it may differ by axes of length 1 and by flattened ones."""
        if array.ndim and len(array) == shape[0] and array.size == np.prod(shape, dtype=np.int64):
            return array.reshape(shape)
        raise ActionError(f"must give {what} of shape {shape} for {self._space}, gives {array.dtype} {array.shape}")


def clipped(actions: np.ndarray, space: Space) -> np.ndarray:
    """Return actions of a Box in its dtype and within its bounds; NaN stays."""
    low, high = bounds_of(space)
    return np.clip(actions.astype(space.dtype), low, high)


def refuse_nan(values: np.ndarray, env_indices: np.ndarray, what: str) -> None:
    """Raise `ActionError`, with the name of the env, where values of shape (rows, ...) are NaN."""
    if not math.isnan(values.sum()):  # Quicker than to look at each value; infinities may make it NaN too.
        return
    wrong = np.isnan(values).reshape(len(env_indices), -1).any(axis=1)
    if wrong.any():
        raise ActionError(f"the policy's {what} for env {env_indices[wrong.argmax()]} are NaN; correct the policy")


def model_of(
    call: Callable[[dict[str, np.ndarray]], Sequence[np.ndarray]], inputs: Inputs, head: Head, owner: object = None
) -> Model:
    """Return a model that gives a network its inputs by name, and takes actions from its outputs."""

    def act(observations: Tree, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        arrays = {name: np.ascontiguousarray(leaf.of(observations), dtype) for name, (leaf, dtype) in inputs.items()}
        return head(call(arrays), env_indices, uniforms)

    return Model(act, head.num_uniforms, owner=owner)


def try_model(model: Model, observation_space: Space) -> None:
    """Ask a model for actions on zeros, such as rows of no env have; UsageError or ActionError if it gives none."""
    parts = leaves(observation_space)
    for rows in TRIAL_ROWS:
        zeros = [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in parts]
        try:
            others: dict[str, object] = {STATE: None, STARTS: np.ones(rows, np.bool_), INFOS: {}}
            others = {name: value for name, value in others.items() if name in model.takes}
            uniforms = np.zeros((rows, model.num_uniforms))
            model.act(tree_of(observation_space, zeros), np.arange(rows), uniforms, **others)
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
    """Say what is wrong, in one line; TorchScript says it in the last line of a traceback."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[-1] if "TorchScript" in text else shortened(" ".join(text.split()))
