"""What a functional env is."""

from typing import Any, Protocol, TypeAlias

Key: TypeAlias = Any  # A key of `jax.random`.
State: TypeAlias = Any  # A tree of arrays.
Array: TypeAlias = Any


class FunctionalEnv(Protocol):
    """One env as two pure functions, which JAX can compile and map over many envs.

    The observation is as the observation space nests it: an array, or dicts and tuples of arrays.  The state is any
    tree of arrays; those that `step` returns have the shapes and dtypes of those that `reset` returns.
    """

    def reset(self, key: Key) -> tuple[Any, State]:
        """Return the first observation and the state of an episode."""

    def step(self, key: Key, state: State, action: Any) -> tuple[Any, State, Array, Array, dict[str, Any]]:
        """Return the observation, the next state, the reward, whether the episode is over, and infos.

        Where a time limit of its own may end an episode, the info "truncated" tells that.  An episode that is over
        and not truncated is terminated, unless the info "terminated" says more: an episode may be both.  Other infos
        are not used.  The env does not reset by itself.
        """
