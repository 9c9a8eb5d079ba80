"""Where actions come from.

Each source has `send`: it sends lanes the actions of their next steps, which have rows in the blocks; PolicyError if
the policy has failed, ActionError if it gave what are no actions of these envs.  After `resume` it goes on as if no run
had been stopped.  `is_on_ranks` tells whether the ranks choose the actions.

Actions that come back with the slots are stored from there.  Others go into their rows when they are sent.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.columns import with_masks
from mpi_rollout.core.layout import Block
from mpi_rollout.core.policy_kinds import MADE
from mpi_rollout.core.spaces import Space, Tree, leaves, map_tree, tree_of
from mpi_rollout.drive.blocks import Blocks
from mpi_rollout.drive.driver import Driver
from mpi_rollout.drive.lanes import Lane, indices_of, parts_of
from mpi_rollout.drive.recall import Recall
from mpi_rollout.errors import ActionError, PolicyError, SignalInterrupt, UsageError
from mpi_rollout.exchange.orders import actions_nbytes
from mpi_rollout.options import AUTO
from mpi_rollout.policies.blocks import BlockPolicy, check_actions_alone
from mpi_rollout.policies.memory import NONE, STATE, check_infos
from mpi_rollout.policies.model import Policy, PolicySource
from mpi_rollout.policies.parameters import Layout, packed
from mpi_rollout.policies.random import RandomPolicy
from mpi_rollout.process.exits import ends_forked
from mpi_rollout.text import counted, shortened, words_of

Given = TypeVar("Given")
# The most bytes of random actions that rank 0 sends for a fragment: those of kernels, which take less time to step than
# to send, have more.
SENT_NBYTES = 2**20


class Span(NamedTuple):
    """The next steps of a lane: at most `num_steps` from `step` on."""

    lane: Lane
    step: int
    num_steps: int


class RandomActions:
    """Random actions, which rank 0 draws for all envs and sends.

    A rank draws again for those of its envs that have action masks.  The actions that were taken come back with the
    slots.
    """

    is_on_ranks = False

    def __init__(self, driver: Driver, random: RandomPolicy):
        self._driver, self._random = driver, random
        self._steps = dict.fromkeys(driver.lanes, 0)

    def resume(self, _recall: Recall) -> None:
        """Do nothing: actions depend on seed, env and step alone."""

    def send(self, spans: Sequence[Span], _blocks: Blocks) -> None:
        for lane, step, num_steps in spans:
            self._steps[lane] = step
            self._random.forget(min(self._steps.values()))
            actions = self._random.rows(step, num_steps, lane.exchange.partition.envs)
            self._driver.clock.lap("policy")
            self._driver.send(lane, actions, num_steps, step)


class RankActions:
    """The ranks choose: by a policy of their own, if there is one, or at random."""

    is_on_ranks = True

    def __init__(self, driver: Driver, policy: "PolicyOnRanks | None" = None):
        self._driver, self._policy = driver, policy

    def resume(self, recall: Recall) -> None:
        if self._policy is not None:
            for rows in recall.rows(STATE in self._policy.takes):
                self._driver.call_ranks(self._driver.worker.policy.remind, rows)

    def send(self, spans: Sequence[Span], _blocks: Blocks) -> None:
        for lane, step, num_steps in spans:
            self._driver.send(lane, None, num_steps, step)


class PolicyOnRanks:
    """The policy that ranks ask for the actions of their own envs.

    Each rank may have made it with random numbers of its own.  Then all get the parameters of the root's.  `actions`
    is the mode of an `ActionReader`, `version` says how many times the policy got new parameters, and `takes` what it
    takes besides observations.

    UsageError if ranks have made policies with parameters of other names, dtypes or shapes; RankError if a rank cannot
    load it.
    """

    def __init__(
        self, driver: Driver, source: PolicySource, actions: str, block: int, seed: int = 0, first_env: int = 0
    ) -> None:
        self._driver, self.version = driver, 0
        self._newest = np.zeros(0, np.uint8)
        self._version_of: dict[Lane, int] = {}  # Where ranks get new parameters with their next order.
        own = driver.worker.policy
        self.takes = NONE.union(*driver.call_ranks(own.use, source, actions, block, seed, first_env))
        is_made = source.kind == MADE
        facts = driver.call_ranks(own.parameter_facts, is_made and driver.exchanges.division.num_ranks > 1)
        layouts = [None if fact is None else fact[0] for fact in facts] if is_made else []
        for rank, layout in enumerate(layouts):
            if layout != layouts[0]:
                wrong = f"{_words(layouts[0])} on rank 0, {_words(layout)} on rank {rank}"
                raise UsageError(
                    "make_policy gave parameters of other names, dtypes or shapes on some ranks than on others: "
                    f"{wrong}; have it make the same policy everywhere"
                )
        told = [fact for fact in facts if fact is not None]
        self._layout: Layout | None = told[0][0] if told else None
        if self._layout is not None and len({digest for _, digest in told}) > 1 and own.model is not None:
            driver.call_ranks(own.load_parameters, packed(own.model.parameters() or {}, self._layout))

    def seed(self, seed: int) -> None:
        """Draw from this seed from now on."""
        self._driver.call_ranks(self._driver.worker.policy.seed, seed)

    def set_parameters(self, parameters: Mapping[str, object] | Sequence[object]) -> None:
        """Send parameters to all ranks; to each with its next order where ranks are served as they get ready.

        UsageError if they are not those of the policy; nothing was sent then.
        """
        if self._layout is None:
            raise UsageError(
                "the policy has no parameters that can be set: give it an attribute `parameters`, arrays by name, "
                "and a method `load`, or make it a torch.nn.Module"
            )
        self._newest = packed(parameters, self._layout)
        if not self._driver.serves_first_ready:
            self._driver.give_parameters(self._newest)
        self.version += 1

    def bring(self, lane: Lane) -> None:
        """Send the newest parameters to the ranks of a lane that do not have them, before its next steps."""
        if self._driver.serves_first_ready and self.version_of(lane) != self.version:
            self._driver.give_parameters(self._newest, lane)
        self._version_of[lane] = self.version

    def version_of(self, lane: Lane) -> int:
        """Return the version of the policy that chose a lane's last actions: how often it had got new parameters."""
        return self._version_of.get(lane, 0)


def _words(layout: Layout | None) -> str:
    if not layout:
        return "none"
    return shortened(", ".join(f"{leaf.path} {leaf.dtype} {leaf.shape}" for leaf in layout), 100)


class ModelActions:
    """A model on the root, which is asked for fixed blocks of envs, and for one step.

    `make` makes the policy of some envs; `name` is for messages.
    """

    is_on_ranks = False

    def __init__(self, driver: Driver, make: Callable[[range], BlockPolicy], name: str):
        self._driver, self._stepped = driver, set[Lane]()
        self._policies = {lane: make(lane.exchange.partition.envs) for lane in driver.lanes}
        self._takes = self._policies[driver.lanes[0]].takes
        self._info_names = [leaf.path for leaf in with_masks(driver.exchanges.contents.kept_infos)]
        check_infos(self._takes, bool(self._info_names), name, driver.action_space)

    def resume(self, recall: Recall) -> None:
        for rows in recall.rows(STATE in self._takes):
            for policy in self._policies.values():
                policy.remind(rows)

    def send(self, spans: Sequence[Span], blocks: Blocks) -> None:
        driver = self._driver
        for span in spans:
            lane, step, _ = span
            block, row = blocks.at(step)
            if self._takes:
                self._look(lane, block, row)
            observations = last_observations(driver.observation_space, [span], blocks)
            acted = _asked(self._policies[lane], observations, step)
            driver.clock.lap("policy")
            arrays = driver.read(acted.actions, lane.env_indices)
            for array, values in zip(block.extra_arrays, acted.extras, strict=False):
                array[row, lane.envs] = values
            _store(blocks, lane, step, [array[np.newaxis] for array in arrays])
            driver.send(lane, arrays, 1, step)

    def _look(self, lane: Lane, block: Block, row: int) -> None:
        """Note what a lane's envs show besides observations; its last slots say which episodes have ended."""
        view, exchange = self._policies[lane].view, lane.exchange
        if lane in self._stepped:
            view.note_step(*(exchange.take(column) for column in exchange.columns.results[1:]))
        self._stepped.add(lane)
        pairs = zip(self._info_names, block.info_arrays, strict=True)
        view.note_infos({name: array[row, lane.envs] for name, array in pairs})


class PolicyActions:
    """A callable on the root.  It gives actions of one step, or a plan: those of several steps.

    `most` is the longest fragment: more than one step needs plans.
    """

    is_on_ranks = False

    def __init__(self, driver: Driver, policy: Policy, most: int = 1):
        self._driver, self._policy, self._most = driver, policy, most
        # The first step of each lane's plan, and for each leaf its actions (num_steps, num_envs, ...).
        self._plans: dict[Lane, tuple[int, list[np.ndarray]]] = {}
        self._length = 0  # All plans are equally long, so that it is known where a run asks again.

    def resume(self, recall: Recall) -> None:
        """Take up the plans within which a run was stopped, with the observations that they were made from."""
        for lane in self._driver.lanes:
            observed, step = itemgetter(lane.envs), recall.num_steps
            plan = self._ask(map_tree(observed, recall.observations(step)), lane.env_indices)
            if taken := step % self._length:
                plan = self._ask(map_tree(observed, recall.observations(step - taken)), lane.env_indices)
            self._plans[lane] = step - taken, plan

    def send(self, spans: Sequence[Span], blocks: Blocks) -> None:
        if unplanned := [span for span in spans if span.step >= self._stop(span.lane)]:
            lanes = [span.lane for span in unplanned]
            plan = self._ask(last_observations(self._driver.observation_space, unplanned, blocks), indices_of(lanes))
            for span, (lane, part) in zip(unplanned, parts_of(lanes), strict=True):
                self._plans[lane] = span.step, [array[:, part] for array in plan]
        for lane, step, num_steps in spans:
            first, plan = self._plans[lane]
            actions = [array[step - first : step - first + num_steps] for array in plan]
            _store(blocks, lane, step, actions)
            self._driver.send(lane, actions, len(actions[0]), step)

    def _stop(self, lane: Lane) -> int:
        first, plan = self._plans.get(lane, (0, [()]))
        return first + len(plan[0])

    def _ask(self, observations: Tree, indices: np.ndarray) -> list[np.ndarray]:
        """Return a plan for some envs: for each leaf its actions (num_steps, num_envs, ...)."""
        driver = self._driver
        actions = _asked(self._policy, observations)
        check_actions_alone(actions, driver.action_space, len(indices))
        plan = driver.read.plan(actions, indices)
        driver.clock.lap("policy")
        if plan is None:
            if self._most > 1:
                raise too_short(self._most, f"return actions of shape (num_steps, {len(indices)}, ...)")
            plan = [array[np.newaxis] for array in driver.read(actions, indices)]
        self._length = self._length or len(plan[0])
        if len(plan[0]) != self._length:
            raise ActionError(f"the policy's plan has {counted(len(plan[0]), 'step')}, the one before {self._length}")
        return plan


ActionSource: TypeAlias = RandomActions | RankActions | ModelActions | PolicyActions


def ranks_draw(config: RolloutConfig, driver: Driver, most: int) -> bool:
    """Tell whether each rank draws the random actions of its own envs; else rank 0 draws and sends those of all.

    `most` is the number of steps of the longest fragment.
    """
    if config.policy_on != AUTO:
        return config.policy_on == "workers"
    nbytes = actions_nbytes(leaves(driver.action_space), most * driver.num_envs)
    return config.on_rank_loss == "shrink" or nbytes > SENT_NBYTES


def too_short(length: int, way_out: str) -> ActionError:
    """Return the error of a policy that does not plan, where fragments have several steps."""
    return ActionError(
        f"--fragment-length {length} needs a policy that returns several steps at a time, this one returned one step; "
        f"use --fragment-length 1, or {way_out}"
    )


def last_observations(space: Space, spans: Sequence[Span], blocks: Blocks) -> Tree:
    """Copy the last observations of some lanes' envs, C-contiguous.

    The policy may write into them: they share no memory with the block, which is stored.
    """
    places = [(*blocks.at(step), lane.envs) for lane, step, _ in spans]
    parts = zip(*([array[row, envs] for array in block.observation_arrays] for block, row, envs in places), strict=True)
    return tree_of(space, map(np.concatenate, parts))


def _asked(policy: Callable[..., Given], *arguments: object) -> Given:
    try:
        with ends_forked:
            return policy(*arguments)
    except (SignalInterrupt, ActionError):
        raise
    except BaseException as error:
        raise PolicyError(f"policy: {words_of(error)}") from error


def _store(blocks: Blocks, lane: Lane, step: int, actions: Sequence[np.ndarray]) -> None:
    block, row = blocks.at(step)
    for array, sent in zip(block.action_arrays, actions, strict=True):
        array[row : row + len(sent), lane.envs] = sent
