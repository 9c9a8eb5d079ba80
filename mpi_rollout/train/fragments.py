"""Fragments for a trainer: several steps of all envs in one exchange."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.host import check_length
from mpi_rollout.core.layout import Block
from mpi_rollout.core.spaces import Tree, tree_of
from mpi_rollout.envs.inputs import CalledByName, Info
from mpi_rollout.errors import ActionError, RankError, UsageError
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.process.interrupts import Interrupts
from mpi_rollout.ranks.driver import Driver
from mpi_rollout.ranks.lanes import Lane, Outcomes
from mpi_rollout.train.policies import NO_POLICY, PolicyOnRanks
from mpi_rollout.train.turns import CallState

Batch = dict[str, Any]


class Fragments:
    """Sends actions of several steps, and makes arrays of what comes back.

    Attributes
    ----------
    num_steps
        Of the fragment under way; 0 if there is none.
    policy
        The ranks ask it for actions where the trainer gives none; None: random ones.
    """

    def __init__(self, driver: Driver, policy: PolicyOnRanks | None = None):
        self._driver, self.policy = driver, policy
        self._random: RandomPolicy | None = None
        self._num_drawn = self._room = self.num_steps = 0
        self._block: Block

    def seed(self, seed: int) -> None:
        """Begin to draw random actions, or what the policy draws from, from this seed."""
        self._num_drawn = 0
        if self.policy is not None:
            self.policy.seed(seed)
        else:
            self._random = RandomPolicy(self._driver.action_space, self._driver.num_envs, seed)

    def make_room(self, num_steps: int) -> bool:
        """Have slots hold so many steps; return whether they are others now."""
        if self._room >= num_steps:
            return False
        exchange = max((lane.exchange for lane in self._driver.lanes), key=lambda exchange: exchange.layout.nbytes)
        num_slots = self._driver.exchanges.num_slots
        check_length(f"collect({num_steps})", num_steps, exchange.layout.nbytes, num_slots, exchange.order_nbytes)
        self._driver.make_room(num_steps)
        self._block = self._driver.block(num_steps + 1)
        self._destinations = self._driver.destinations(self._block)
        self._room = num_steps
        return True

    def send(self, num_steps: int, actions: object) -> None:
        """Send the actions of several steps; None for random ones, or those of the policy on the ranks.

        Raises
        ------
        ActionError
            The actions are not of shape (num_steps, num_envs, ...), or not in their space; nothing was sent.
        """
        driver = self._driver
        if actions is None and self.policy is not None:
            for lane in driver.lanes:
                driver.have_chosen(lane, num_steps, self._num_drawn)
            self._num_drawn += num_steps
            self.num_steps, self._actions = num_steps, []
            return
        arrays = self._draw(num_steps) if actions is None else self._read(num_steps, actions)
        for lane in driver.lanes:
            driver.send_fragment(lane, [array[:, lane.envs] for array in arrays])
        self.num_steps, self._actions = num_steps, arrays

    def _draw(self, num_steps: int) -> list[np.ndarray]:
        if self._random is None:
            self.seed(int(np.random.SeedSequence().generate_state(1, np.uint64)[0]))
        assert self._random is not None
        self._random.forget(self._num_drawn)
        arrays = self._random.rows(self._num_drawn, num_steps, range(self._driver.num_envs))
        self._num_drawn += num_steps
        return arrays

    def _read(self, num_steps: int, actions: object) -> list[np.ndarray]:
        arrays = self._driver.read.plan(actions, range(self._driver.num_envs), 0)
        if arrays is None or len(arrays[0]) != num_steps:
            got = f", got {len(arrays[0])} steps" if arrays is not None else f", got {_shape_of(actions)}"
            raise ActionError(f"actions must be of shape ({num_steps}, {self._driver.num_envs}, ...){got}")
        return arrays

    def take(self, lanes: Sequence[Lane]) -> None:
        """Lay the slots of some lanes, which have just come."""
        for lane in lanes:
            self._destinations[lane].lay_observations(1, 0, self.num_steps)
            self._destinations[lane].lay_results(0, self.num_steps)

    def batch(self, first_observations: Sequence[np.ndarray]) -> tuple[Batch, list[np.ndarray]]:
        """Return what came back, and the last observations as one array for each leaf.

        Parameters
        ----------
        first_observations
            Those before the fragment, an array (num_envs, ...) for each leaf.
        """
        driver, block, num_steps, self.num_steps = self._driver, self._block, self.num_steps, 0
        for destination in self._destinations.values():
            destination.unpack(0, num_steps)
        for array, first in zip(block.observation_arrays, first_observations, strict=True):
            array[0] = first
        last = [np.array(array[num_steps]) for array in block.observation_arrays]
        rewards, terminations, truncations = (np.array(column[:num_steps]) for column in block.results)
        batch: Batch = {
            "observations": _tree(driver.observation_space, [array[:num_steps] for array in block.observation_arrays]),
            "actions": _tree(
                driver.action_space, self._actions or [array[:num_steps] for array in block.action_arrays]
            ),
            "rewards": rewards,
            "terminations": terminations,
            "truncations": truncations,
            "last_observations": _tree(driver.observation_space, last),
        }
        if self.policy is not None and not self._actions:
            names = [leaf.path for leaf in driver.exchanges.contents.extras]
            extras = zip(names, block.extra_arrays, strict=True)
            batch["extras"] = {name: np.array(array[:num_steps]) for name, array in extras}
            batch["policy_version"] = np.full(rewards.shape, self.policy.version)
        return batch, last


class FragmentVectorEnv(CalledByName):
    """A `MPIVectorEnv`, as far as it takes several steps in one exchange."""

    autoreset_mode: AutoresetMode
    interrupts: Interrupts
    _driver: Driver
    _block: Block
    _outcomes: Outcomes
    _fragments: Fragments
    _state: CallState

    def _check_open(self) -> None:
        raise NotImplementedError

    def _infos(self, lanes: Sequence[Lane], ended: np.ndarray | None = None) -> list[Info]:
        raise NotImplementedError

    def collect(self, num_steps: int, actions: Tree | None = None) -> Batch:
        """Take several steps of all envs in one exchange: equal to as many calls of `step`.

        Parameters
        ----------
        num_steps
            How many.  The ranks take them all before they hear of an interrupt of rank 0.
        actions
            Of shape (num_steps, num_envs, ...), or a tree of such arrays.  None leaves them to the policy that the
            ranks have, or, without one, to chance; what is drawn depends on the seed of the last `reset` that had one.

        Returns
        -------
        A dict of arrays, which belong to the caller.  `observations` (before each step), `actions`, `rewards` float64,
        `terminations` and `truncations` bool are of shape (num_steps, num_envs, ...); `last_observations` are those
        after the last step, (num_envs, ...).  `infos` is a list of num_steps dicts, as `step` returns them.  Where the
        policy on the ranks acted, there are `extras` too, a dict of what it gave besides actions, (num_steps, num_envs,
        ...) each, and `policy_version`, (num_steps, num_envs) int64: how many times `set_policy` was called before.

        Raises
        ------
        ActionError
            The actions are not of this shape, or not in their space, in the step that the message names; nothing was
            sent.
        RankError
            An env failed on some rank, or without autoreset an episode ended before the last step; the next `reset` of
            all envs begins anew.
        """
        self.collect_async(num_steps, actions)
        return self.collect_wait()

    def set_policy(self, parameters: Mapping[str, Any] | Sequence[Any]) -> None:
        """Give the policy on the ranks new parameters: the next fragments are taken with these.

        Parameters
        ----------
        parameters
            Arrays or tensors by their names, such as a state dict, or a sequence of all of them in their order.

        Raises
        ------
        UsageError
            There is no such policy, or these are not its parameters; nothing was sent.
        AlreadyPendingCallError
            A fragment is under way.
        """
        self._check_open()
        self._check_no_fragment("set_policy")
        self._state.check_idle("set_policy")
        if self._fragments.policy is None:
            raise UsageError(NO_POLICY)
        with self.interrupts:
            self._fragments.policy.set_parameters(parameters)

    def collect_async(self, num_steps: int, actions: Tree | None = None) -> None:
        """Send the actions of several steps, as `collect`; the ranks step while the caller goes on."""
        self._check_open()
        self._check_no_fragment("collect_async")
        self._state.check_idle("collect_async")
        self._state.check_ready(self._driver.lanes)
        if not isinstance(num_steps, int | np.integer) or num_steps < 1:
            raise ValueError(f"num_steps must be an int of at least 1, got {repr(num_steps)[:40]}")
        with self.interrupts:
            if self._fragments.make_room(int(num_steps)):
                self._outcomes.use(self._driver.destinations(self._block))
            self._fragments.send(int(num_steps), actions)

    def collect_wait(self) -> Batch:
        """Wait for the steps of `collect_async`; return what `collect` returns."""
        self._check_open()
        self._state.check_whole()
        if not self._fragments.num_steps:
            raise NoAsyncCallError("collect_wait without collect_async; call collect_async first", "collect_wait")
        lanes = self._driver.lanes
        with self.interrupts:
            self._take_in_fragment(lanes)
            batch, last = self._fragments.batch(self._outcomes.last_arrays(lanes))
            self._outcomes.keep(lanes, last)
            ended = batch["terminations"] | batch["truncations"]
            if self.autoreset_mode == AutoresetMode.DISABLED:
                self._state.ended[:] = ended[-1]
            return {**batch, "infos": self._infos(lanes, ended)}

    def _take_in_fragment(self, lanes: Sequence[Lane]) -> None:
        try:
            while self._driver.under_way:
                self._fragments.take(self._driver.await_some(len(lanes)))
        except RankError as error:
            if self.autoreset_mode == AutoresetMode.DISABLED:
                error.args = (f"{error}; the fragment is void: call reset() for all envs",)
            raise

    def _check_no_fragment(self, what: str) -> None:
        if self._fragments.num_steps:
            raise AlreadyPendingCallError(f"{what} while a fragment is under way; call collect_wait()", what)


def _tree(space: spaces.Space, arrays: Sequence[np.ndarray]) -> Tree:
    return tree_of(space, [np.array(array) for array in arrays])


def _shape_of(actions: object) -> object:
    return getattr(actions, "shape", type(actions).__name__)
