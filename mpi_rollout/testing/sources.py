"""A conformance test of `drive.source.Source`, but for `resume`.

from gymnasium.spaces import Box, Discrete
from mpi_rollout.testing.sources import check_source

check_source(lambda envs: MySource(envs), Box(-1, 1, (4,)), Discrete(2))
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from mpi_rollout.core.spaces import Space, Tree, leaf_spaces, leaves, tree_of
from mpi_rollout.drive.source import Choice, Source, Span

ENVS = (range(3), range(3, 4), range(4, 9))
MOST = 5
Actions = dict[tuple[int, int], list[bytes]]  # By env and step: the bytes of each leaf.


class Scenes:
    """What envs have shown, made up: it depends on env and step alone."""

    def __init__(self, observation_space: Space, seed: int):
        self._space, self._leaves, self._seed = observation_space, leaves(observation_space), seed

    def observations(self, spans: Sequence[Span]) -> Tree:
        pairs = [(index, span.step) for span in spans for index in span.envs]
        return tree_of(self._space, [self._column(place, pairs) for place in range(len(self._leaves))])

    def _column(self, place: int, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
        leaf = self._leaves[place]
        values = [self._draws(place, *pair).integers(0, 2, leaf.shape) for pair in pairs]
        return np.array(values).astype(leaf.dtype)

    def ends(self, span: Span) -> tuple[np.ndarray, np.ndarray]:
        draws = [self._draws(-1, index, span.step).random() for index in span.envs]
        return np.array(draws) < 0.1, np.array(draws) > 0.9

    def infos(self, _span: Span) -> dict[str, np.ndarray]:
        return {}

    def _draws(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *(part + 1 for part in key)])


def check_source(
    make: Callable[[Sequence[range]], Source],
    observation_space: Space,
    action_space: Space,
    num_steps: int = 40,
    seed: int = 0,
) -> None:
    """Check that a source gives actions as its contract says, for envs that go on by themselves.

    It is asked twice, each time for `num_steps` steps of all envs: for one step at a time, and for spans of any length.

    Parameters
    ----------
    make
        Makes a new source for some envs, of which each range is always asked for together.
    seed
        Of what envs show, and of the order in which they are asked for.

    Raises
    ------
    AssertionError
        The sentence of the contract that does not hold, and where.
    """
    singly, in_spans = (
        _ask(make(ENVS), Scenes(observation_space, seed), action_space, num_steps, most, seed) for most in (1, MOST)
    )
    for (env_index, step), actions in sorted(singly.items()):
        assert in_spans[env_index, step] == actions, (
            f"what it gives must not depend on the lengths of spans: env {env_index} gets another action in step {step}"
        )


def _ask(source: Source, scenes: Scenes, action_space: Space, num_steps: int, most: int, seed: int) -> Actions:
    """Ask for all steps; return the actions."""
    draws, next_step, given = np.random.default_rng(seed), dict.fromkeys(ENVS, 0), Actions()
    while waiting := [envs for envs, step in next_step.items() if step < num_steps]:
        asked = [envs for envs in waiting if draws.random() < 0.7] or waiting[:1]
        lengths = {envs: int(draws.integers(1, most + 1)) for envs in asked}
        spans = [Span(envs, next_step[envs], min(lengths[envs], num_steps - next_step[envs])) for envs in asked]
        for choice in _choices(source, spans, scenes):
            next_step[choice.span.envs] += _taken(source, choice, action_space, given)
    return given


def _choices(source: Source, spans: Sequence[Span], scenes: Scenes) -> Iterator[Choice]:
    left = list(spans)
    for choice in source.actions(spans, scenes):
        assert choice.span in left, f"a choice for each span must be given, once; got one for {choice.span}"
        left.remove(choice.span)
        yield choice
    assert not left, f"a choice for each span must be given, got none for {left[0]}"


def _taken(source: Source, choice: Choice, action_space: Space, given: Actions) -> int:
    """Note the actions of a choice; return for how many steps they are."""
    span, arrays, extras = choice
    assert (arrays is None) == source.is_on_ranks, (
        f"actions are None just where is_on_ranks is True; it is {source.is_on_ranks}, and {span} got "
        + ("None" if arrays is None else "some")
    )
    if arrays is None:
        return span.num_steps
    group = leaves(action_space)
    assert len(arrays) == len(group), f"an array for each of {len(group)} leaves must be given, got {len(arrays)}"
    num_steps = len(arrays[0])
    assert 1 <= num_steps <= span.num_steps, f"{span} must get actions of 1 to {span.num_steps} steps, got {num_steps}"
    for leaf, space, array in zip(group, leaf_spaces(action_space), arrays, strict=True):
        shape = (num_steps, len(span.envs), *leaf.shape)
        assert array.shape == shape and array.dtype == leaf.dtype, (
            f"actions {leaf.path!r} of {span} must be {leaf.dtype} of shape {shape}, got {array.dtype} of {array.shape}"
        )
        values = array.reshape(-1, *leaf.shape)
        assert all(map(space.contains, values)), f"actions {leaf.path!r} of {span} must be in {space}"
    for array in extras:
        assert len(array) == len(span.envs), f"extras must have a row for each env of {span}, got {len(array)}"
    for row in range(num_steps):
        for place, env_index in enumerate(span.envs):
            given[env_index, span.step + row] = [array[row, place].tobytes() for array in arrays]
    return num_steps
