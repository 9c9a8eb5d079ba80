"""The infos of a rank's envs: those that are wanted, the action masks among them, and those that a run stores as "all".

Action masks stay on the rank, which draws random actions by them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from mpi_rollout.core.column_types import MASK_NAME, Types, types_in
from mpi_rollout.core.seeding import episode_seeds
from mpi_rollout.core.spaces import MOST_MASK_BITS, Tree, mask_sizes
from mpi_rollout.envs.inputs import Info
from mpi_rollout.errors import DataError, EnvError, RolloutError, SignalInterrupt
from mpi_rollout.exchange.infos import add_info
from mpi_rollout.process.console import say
from mpi_rollout.text import words_of

# As long as `--store-infos all` looks for infos before a run.  Of envs that take longer, only the first step counts:
# how many steps they take in that time is not the same in each start.
LOOK_STEPS, LOOK_S = 300, 10.0
MOST_OTHERS = 100  # As many names that a run does not store are kept for its last message.


class OtherInfos:
    """Collects the names of infos that come during a run, but for those that are `known` when it begins."""

    def __init__(self, known: Iterable[str]):
        self._known, self._names = frozenset(known), set[str]()

    def note(self, info: Iterable[str]) -> None:
        if not self._known.issuperset(info) and len(self._names) < MOST_OTHERS:
            self._names.update(map(str, info))

    def names(self) -> list[str]:
        """Return the names; of natively vectorized envs without those of masks."""
        masks = {f"_{name}" for name in self._known | self._names}
        return sorted(self._names - self._known - masks)


class InfoGatherer:
    """Makes one dict of the infos of a loop's envs: of all (True), of none (False), or those of some names.

    `add_one` adds an env's info to those of others, given these, the info and the env's place: as Gymnasium does it, to
    a dict.  With `keep_apart` they become a list, as a rank sends them.
    """

    def __init__(
        self, names: bool | tuple[str, ...], first_env_index: int, add_one: Callable[[Any, Info, int], object]
    ):
        self.names, self._first_env_index, self._add_one = names, first_env_index, add_one
        self.others: OtherInfos | None = None  # Where a run wants to know of infos of other names.
        self.nothing: Callable[[], Any] = dict  # Makes what the first info is added to.

    def keep_apart(self) -> None:
        """Gather the infos as they are, each with the place of its env."""
        self._add_one, self.nothing = add_info, list

    def wanted(self, infos: Sequence[Info]) -> Sequence[Info]:
        """Select the wanted infos of each env; nothing where nobody wants infos."""
        if isinstance(self.names, bool):
            return infos if self.names else ()
        if self.others is not None:
            for info in filter(None, infos):
                self.others.note(info)
        return [{name: info[name] for name in self.names if name in info} if info else {} for info in infos]

    def add(self, gathered: Any, infos: Sequence[Info], start: int = 0) -> Any:
        """Add the infos of the envs from `start` on to those of the envs before.

        DataError if an info cannot stand beside those of the envs before it.
        """
        if not any(infos):
            return gathered
        for index, info in enumerate(infos, start):
            try:
                self._add_one(gathered, info, index)
            except DataError as error:
                raise DataError(f"env {self._first_env_index + index}: {error}") from error
            except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
                raise DataError(
                    f"env {self._first_env_index + index}: its info should be a dict, its values of the types and "
                    f"shapes that other envs' have, got {repr(info)[:200]} ({words_of(error)}); make them alike, or "
                    "name the infos that are wanted"
                ) from error
        return gathered


class MaskColumn:
    """The action masks of a slice's envs; `space` is that of one env's actions.

    The masks of an episode are heeded if its reset gives one: so nobody looks for masks in the steps of other envs, and
    a continued run, which takes the running episodes again, heeds the same ones.  After the last step of an episode
    there is no action to choose.
    """

    def __init__(self, space: spaces.Space, env_indices: range):
        self._space, self._sizes, self._first_env_index = space, mask_sizes(space), env_indices.start
        num_bytes = -(-sum(self._sizes) // 8)
        self._values = np.zeros((len(env_indices), num_bytes), np.uint8)
        self._flags = np.zeros(len(env_indices), np.bool_)
        self._has_column = num_bytes > 0
        self.places: set[int] = set()  # Of the envs that have masks in their running episode.
        self._has_warned = False

    def given(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the envs that say now what they allow, and their masks as bits, a row for each."""
        places = np.flatnonzero(self._flags)
        return places, self._values[places]

    def begin(self, place: int, info: object) -> None:
        """Note that an env has begun an episode, with this info."""
        if not (isinstance(info, dict) and MASK_NAME in info):
            if place in self.places:
                self.places.discard(place)
                self._flags[place] = False
        elif not self._has_column:
            self._warn(place, f"is heeded for Discrete and MultiDiscrete of at most {MOST_MASK_BITS:,} actions")
        else:
            self.places.add(place)
            self._put([place], [info[MASK_NAME]])

    def write(self, infos: Sequence[object], ended: Collection[int]) -> None:
        """Write the masks of a step, in which the episodes of some envs ended."""
        places = list(self.places)
        own_infos = [infos[place] for place in places]
        self._put(places, [info.get(MASK_NAME) if isinstance(info, dict) else None for info in own_infos])
        self._flags[list(ended)] = False

    def write_batch(self, infos: Info, ended: np.ndarray) -> None:
        """Do the same with the infos of natively vectorized envs, after any step or reset."""
        if MASK_NAME not in infos:
            if self.places:
                self.places.clear()
                self._flags[:] = False
            return
        has_mask = infos.get(f"_{MASK_NAME}", np.ones(len(ended), np.bool_))
        if not self._has_column:
            return self.begin(int(np.argmax(has_mask)), {MASK_NAME: None})
        self.places = set(np.flatnonzero(has_mask).tolist())
        self._flags[:] = False
        self._put(list(self.places), [infos[MASK_NAME][place] for place in self.places])
        self._flags[ended] = False

    def _put(self, places: list[int], masks: list[object]) -> None:
        """Write masks; without a valid mask, an env's actions are not limited in this step."""
        bits = self._bits_of_all(masks)
        if bits is not None:
            self._values[places] = np.packbits(bits, axis=1)
            self._flags[places] = True
            return
        for place, mask in zip(places, masks, strict=True):
            self._flags[place] = False
            try:
                if mask is not None:
                    self._values[place] = np.packbits(mask_bits(mask, self._sizes))
                    self._flags[place] = True
            except (TypeError, ValueError) as error:
                what = "0 or 1 for each action" if len(self._sizes) == 1 else "a tuple with 0 or 1 for each action"
                self._warn(place, f"should be {what} of {self._space}, {error}")

    def _bits_of_all(self, masks: list[object]) -> np.ndarray | None:
        """All masks in one array, if they are alike: a twentieth of the time that 64 of them take one by one."""
        try:
            bits = np.array(masks)
        except ValueError:
            return None
        is_mask = bits.dtype.kind in "biu" and bits.shape == (len(masks), sum(self._sizes))
        return bits if is_mask and bits.min(initial=0) >= 0 and bits.max(initial=0) <= 1 else None

    def _warn(self, place: int, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            say(
                f"mpi_rollout: env {self._first_env_index + place}: its info {MASK_NAME!r} {why}; "
                "random actions are drawn without it\n"
            )


def mask_bits(mask: object, sizes: list[int]) -> np.ndarray:
    """Return one mask as an array of bools; ValueError if it is none for components of these sizes."""
    parts = list(_arrays_in(mask))
    bits = np.concatenate(parts) if parts else np.zeros(0)
    if bits.dtype.kind not in "biu" or not ((bits == 0) | (bits == 1)).all():
        raise ValueError(f"got {bits.dtype}: {bits}"[:80])
    if [len(part) for part in parts] not in (sizes, [sum(sizes)]):
        raise ValueError(f"got {[len(part) for part in parts]} of them")
    return bits.astype(np.bool_)


def _arrays_in(mask: object) -> Iterator[np.ndarray]:
    """Yield the arrays in nested tuples."""
    if isinstance(mask, tuple | list) and any(isinstance(part, tuple | list | np.ndarray) for part in mask):
        for part in mask:
            yield from _arrays_in(part)
    else:
        array = np.asarray(mask)
        if array.ndim != 1:
            raise ValueError(f"got {array.dtype} of shape {array.shape}")
        yield array


class MasksInInfos(gymnasium.Wrapper):
    """Gives the infos of an env what its method `action_masks` says, where they have no mask."""

    def reset(self, **kwargs: Any) -> tuple[Any, Info]:
        observation, info = self.env.reset(**kwargs)
        return observation, self._with_mask(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        *outputs, terminated, truncated, info = self.env.step(action)
        has_ended = terminated or truncated  # There is no action to choose.
        return *outputs, terminated, truncated, info if has_ended else self._with_mask(info)

    def _with_mask(self, info: Info) -> Info:
        return info if MASK_NAME in info else {**info, MASK_NAME: self.env.get_wrapper_attr("action_masks")()}


class ActionSampler:
    """Draws actions for a look at envs, by the masks in their infos."""

    def __init__(self, space: spaces.Space, seed: int):
        self._space = deepcopy(space)  # The env may draw from its own one.
        self._space.seed(seed)

    def draw(self, info: Mapping[str, Any]) -> Tree:
        """Return an action that the mask in the last info allows, or any action without a valid mask."""
        try:
            return self._space.sample(info.get(MASK_NAME))
        except Exception:  # What is no mask of this space is told elsewhere.
            return self._space.sample()


def first_types(envs: gymnasium.Env | VectorEnv, seed: int, env_index: int) -> tuple[Types, dict[str, str]]:
    """Return the types of the infos that `--store-infos all` stores, and what is no number; EnvError if the env fails.

    They follow from the first episode of a rank's first env, or the first that ends of its natively vectorized envs; of
    a longer one from its first `LOOK_STEPS` steps, and of one that takes more than `LOOK_S` from its first step, so
    that they are the same in each start.  The envs are reset again when the run begins.
    """
    try:
        if isinstance(envs, gymnasium.Env):
            return types_in(_episode(envs, next(episode_seeds(seed, env_index)), seed))
        return types_in([_of_first(infos, envs.num_envs) for infos in _episode(envs, seed, seed)])
    except (RolloutError, SignalInterrupt):
        raise
    except Exception as error:
        raise EnvError(
            f"env {env_index}: --store-infos all looks at the infos of an episode, and it fails: {words_of(error)}; "
            "name the infos that are wanted"
        ) from error


def _episode(envs: gymnasium.Env | VectorEnv, seed: int, seed_of_actions: int) -> list[Info]:
    """Take random steps until an episode ends; return the infos, or those of the first step if it takes too long."""
    actions = ActionSampler(envs.action_space, seed_of_actions)
    _, info = envs.reset(seed=seed)
    infos, start = [info], perf_counter()
    while len(infos) <= LOOK_STEPS:
        *_, terminated, truncated, info = envs.step(actions.draw(info))
        infos.append(info)
        if np.any(terminated) or np.any(truncated):
            break
        if perf_counter() - start > LOOK_S:
            return infos[:2]
    return infos


def _of_first(infos: Mapping[str, Any], num_envs: int) -> Info:
    """Return the info of one env, for each name the first that has it."""
    info: Info = {}
    for name, value in infos.items():
        if name.startswith("_") and name[1:] in infos:
            continue
        if isinstance(value, dict):
            info[name] = _of_first(value, num_envs)
            continue
        has = np.flatnonzero(np.broadcast_to(infos.get(f"_{name}", True), num_envs))
        is_of_each = isinstance(value, np.ndarray) and value.shape[:1] == (num_envs,)
        if len(has):
            info[name] = value[has[0]] if is_of_each else value
    return info
