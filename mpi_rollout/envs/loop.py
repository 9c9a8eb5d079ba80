"""A slice of unmodified envs, stepped one after the other: the loop that everything else must keep up with.

Semantics are those of `gymnasium.vector.SyncVectorEnv`, bit for bit, in its three autoreset modes.  What differs is
the price.  Outputs are written once, into arrays that the caller gives (a rank's slot).  The wrappers that
`gymnasium.make` puts around every env are stepped over, and their work is done here for all envs at once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from operator import call

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from mpi_rollout.core.layout import Columns, Contents, SlotLayout
from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.core.spaces import Tree, leaves, tree_of
from mpi_rollout.envs import faults, inputs
from mpi_rollout.envs.agents import write_agents, write_alive
from mpi_rollout.envs.faults import ABORT, Begun, OnFault, Outcome, OutputChecks, Parts, WrongValue
from mpi_rollout.envs.infos import InfoGatherer, MaskColumn
from mpi_rollout.envs.inputs import Info, Options, Reset, Seeds, Step
from mpi_rollout.envs.outputs import Casting, ObservationRows, ResultColumns, is_exact
from mpi_rollout.envs.single_envs import SingleEnvs
from mpi_rollout.errors import SignalInterrupt
from mpi_rollout.exchange.infos import FINAL_INFO, FINAL_OBS, plain

StepCall = Callable[[Tree], Outcome]


class LoopVectorEnv(SingleEnvs):
    """A vector env that steps the envs of `env_fns` in a sequential loop.

    Parameters
    ----------
    env_fns
        Each makes one env; all with the same spaces.
    seeds
        For each env the seeds of its episodes, taken at every reset that is not given one.  Without them episodes
        go on with the env's own generator, as in Gymnasium.
    first_env_index
        The index of the first env, for messages.
    autoreset_mode
        NEXT_STEP: an env is reset in the step after its episode's end, its action is ignored.  SAME_STEP: in the
        same step; the last observation is then in `columns.final_observation_arrays`, and in the infos only where its
        types are not those of its space.  DISABLED: only by `reset`.
    infos
        True: those that `SyncVectorEnv` returns.  False: always {}, for no time.  Names: the infos of these names.
    on_fault
        An env that is restarted has been truncated, with its last observation, reward 0 and {"env_error": the failure}
        as its info.  An env that fails as it begins an episode begins another one in the next step.

    `step` and `reset` return arrays that are valid until the next call.
    """

    reproducibility, has_episode_seeds = Reproducibility.EPISODE, True  # In a run that gives seeds for all resets.

    def __init__(
        self,
        env_fns: Sequence[Callable[[], gymnasium.Env]],
        *,
        seeds: Sequence[Iterator[int | None]] | None = None,
        first_env_index: int = 0,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
        infos: bool | tuple[str, ...] = True,
        on_fault: OnFault = ABORT,
    ):
        super().__init__(env_fns, seeds, first_env_index, on_fault)
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = dict(self.envs[0].metadata or {}) | {"autoreset_mode": self.autoreset_mode}
        self.infos = InfoGatherer(infos, first_env_index, self._add_info)
        is_same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        self._leaves, self._casting = leaves(self.single_observation_space), Casting(on_fault.strict_dtypes)
        contents = Contents(self.single_observation_space, self.single_action_space, is_same_step)
        layout = SlotLayout(contents, self.num_envs)
        self.columns = layout.columns(np.zeros(layout.nbytes, np.uint8), self.num_envs)
        self.write_to([self.columns])
        # What the next step calls: a step, or a reset.  OrderEnforcing is in charge until the first one.
        self._calls: list[StepCall] = [env.step for env in self.envs]
        self._resets = [partial(self._reset_instead, index) for index in range(self.num_envs)]
        self.ended: list[int] = []  # And not reset since.
        self._checks = OutputChecks(self.single_observation_space, on_fault)
        self._is_checked = bool(self._checks)
        self.masks: MaskColumn | None = None  # The envs' masks, where these are wanted.
        # While episodes are taken again: envs that failed and are left out since, and how they failed.
        self.failing: dict[int, str] | None = None

    def step(self, actions: Tree, row: int = 0) -> Step:
        """Step every env and write to this row; where its episode ended, do what the autoreset mode says.

        Raises
        ------
        EnvError
            An env raised.
        DataError
            An env returned what its space does not promise, or has ended and is not reset (in DISABLED mode).
        """
        if self.ended and self.autoreset_mode is AutoresetMode.DISABLED:
            raise faults.not_reset(self.ended, self._first_env_index)
        self._time.num_steps += 1
        outcomes = self._call_envs(self._split_actions(actions))
        if self._is_checked:
            self._restart_wrong(outcomes)
        observations, *results, infos = self._outputs_of(outcomes)
        columns = self._columns[row]
        self._note_ends(columns, self._results[row].write(*results))
        if self.agents:
            write_agents(self.agents, columns, self.ended)
        if self.masks is not None and self.masks.places:
            self.masks.write(infos, self.ended)
        if self.ended and self.autoreset_mode is AutoresetMode.SAME_STEP:
            observations, gathered = self._begin_again(observations, self.infos.wanted(infos), row)
            write_alive(self.agents, columns)
        elif self.infos.names is False or not any(infos):  # The usual cases.
            gathered = self.infos.nothing()
        else:
            gathered = self.infos.add(self.infos.nothing(), self.infos.wanted(infos))
        self._rows.write(observations, row)
        self.row, self.columns = row, columns
        return columns.observations, columns.rewards, columns.terminations, columns.truncations, gathered

    def _call_envs(self, actions: Iterable[object]) -> list[Outcome]:
        """Step or reset one env after the other; what fails is restarted, if it may be."""
        outcomes: list[Outcome] = []
        pending = map(call, self._calls, actions)
        while len(outcomes) < self.num_envs:
            try:
                self._outcomes = outcomes
                outcomes.extend(pending)  # If one raises, its place is known, and the others can go on.
                if len(outcomes) < self.num_envs:
                    raise StopIteration  # An env has raised it, and `extend` took it for the end.
            except SignalInterrupt:
                raise
            except BaseException as error:
                self._outcomes = None
                outcomes.append(self._outcome_of_failed(len(outcomes), error))
        self._outcomes = None
        return outcomes

    def _outputs_of(self, outcomes: Sequence[Outcome]) -> tuple[Parts, ...]:
        """Return all observations, rewards, terminations, truncations and infos; DataError for a step without them."""
        try:
            observations, rewards, terminations, truncations, infos = zip(*outcomes, strict=True)
            return observations, rewards, terminations, truncations, infos
        except (TypeError, ValueError) as error:
            raise faults.no_outcome(outcomes, self._first_env_index) from error

    def _note_ends(self, columns: Columns, may_have_some: bool) -> None:
        self.ended = []
        if self._time.num_steps >= self._time.next_deadline:
            self._time.apply(columns.truncations)
        elif not may_have_some:
            return
        self.ended = np.logical_or(columns.terminations, columns.truncations).nonzero()[0].tolist()
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            for index in self.ended:
                if not self.failing or index not in self.failing:
                    self._calls[index] = self._resets[index]

    def _reset_instead(self, index: int, _action: object) -> Outcome:
        """Begin an episode in the place of a step, as one of a sweep."""
        single = self._singles[index]
        self._calls[index] = single.step
        self._time.begin(index)
        observation, info = single.begin()
        if self.masks is not None:
            self.masks.begin(index, info)
        return observation, 0.0, False, False, info

    def write_to(self, rows: Sequence[Columns]) -> None:
        """Let steps write into these rows of `num_envs`."""
        self._columns = rows
        self.rewind()
        parts, first = self._leaves, self._first_env_index
        self._rows = ObservationRows(parts, [columns.observation_arrays for columns in rows], first, self._casting)
        self._results = [ResultColumns(columns.results, first) for columns in rows]
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            finals = [columns.final_observation_arrays for columns in rows]
            self._final_rows = ObservationRows(parts, finals, first, self._casting)

    def rewind(self) -> None:
        """Take the last outcome over to the first row: a reset of some envs leaves the others as they are."""
        last, self.row, self.columns = self.columns, 0, self._columns[0]  # Where the last outcome is.
        pairs = (columns.observation_arrays + columns.outcomes for columns in (self.columns, last))
        for array, old in zip(*pairs, strict=True):
            array[...] = old

    def reset(self, *, seed: Seeds = None, options: Options = None) -> Reset:
        """Start a new episode in every env, or in those of `options["reset_mask"]`, a bool array of `num_envs`.

        The outermost wrappers are called: OrderEnforcing allows rendering only after that.  Options are for all envs,
        or a list with those of each.
        """
        seeds = inputs.seed_of_each(seed, self.num_envs)
        mask, options = inputs.take_reset_mask(options, self.num_envs)
        indices = list(range(self.num_envs)) if mask is None else mask.nonzero()[0].tolist()
        return self._reset_these(indices, seeds, inputs.one_for_each("options", options, self.num_envs))

    def begin_some(self, indices: Sequence[int]) -> Reset:
        """Begin an episode in some envs, without options."""
        return self._reset_these(indices, [None] * self.num_envs, [None] * self.num_envs)

    def _reset_these(
        self, indices: Sequence[int], seeds: Sequence[int | None], options: Sequence[inputs.OptionsOfOne]
    ) -> Reset:
        """Reset some envs; the rows of the others stay as they are."""
        infos = self.infos.nothing()
        for index in indices:
            single = self._singles[index]
            observation, info = self._begin(index, single.given_reset(seeds[index], options[index]))
            if self.masks is not None:
                self.masks.begin(index, info)
            if not self.failing or index not in self.failing:
                self._calls[index] = single.step
            self._rows.write_one(index, observation, self.row)
            self.infos.add(infos, self.infos.wanted([info]), index)
        for column in self.columns.outcomes:
            column[indices] = 0
        write_alive(self.agents, self.columns)
        self.ended = sorted(set(self.ended).difference(indices))
        return self.columns.observations, infos

    def hold(self, index: int, is_truncated: bool = False) -> None:
        """Leave one env out of steps until it is reset: it gives its last observation, without reward."""
        last = self._last_observation(index)
        if self.agents:
            self.agents[index].leave_out()
        self._time.hold(index)
        self._calls[index] = lambda _action: (last, 0.0, False, is_truncated, {})
        self.ended = [ended for ended in self.ended if ended != index]

    def end_episode(self, index: int) -> None:
        """Let one env begin a new episode in the next step, also if it has not begun any."""
        self._singles[index].begin_from_outside()
        self._calls[index] = self._resets[index]
        self.ended = sorted({*self.ended, index})

    def replace(self, index: int) -> None:
        super().replace(index)
        single = self._singles[index]
        self._calls[index] = single.step
        single.begin_from_outside()

    def _restart_wrong(self, outcomes: list[Outcome]) -> None:
        """Restart envs that gave wrong values, as if they had failed."""
        observations, rewards, *_ = self._outputs_of(outcomes)
        for index, what in self._checks.in_parts(observations, rewards).items():
            outcomes[index] = self._outcome_of_failed(index, WrongValue(what))

    def _outcome_of_failed(self, index: int, error: BaseException) -> Outcome:
        """Restart an env that has failed in a step; return the outcome that it gets instead.

        EnvError or DataError if it has failed too often.
        """
        if self.failing is not None:
            self._leave_out(index, error, self.failing)
            return self._calls[index](None)
        self._restart(index, error)
        return self._last_observation(index), 0.0, False, True, {"env_error": self.faults[-1][1]}

    def _leave_out(self, index: int, error: BaseException, failing: dict[int, str]) -> None:
        """Call an env no more; in each step it is truncated, which no episode under way is."""
        failing.setdefault(index, str(faults.described(error, self._describe(index))))
        self.hold(index, is_truncated=True)

    def _last_observation(self, index: int) -> Tree:
        parts = [np.array(array[index]) for array in self.columns.observation_arrays]
        return tree_of(self.single_observation_space, parts)

    def _begin(self, index: int, reset: Callable[[], Begun]) -> Begun:
        """Begin an episode of one env outside the sweep, if need be with a new env."""
        while True:
            self._time.begin(index)
            try:
                with self._calling(index, "reset"):
                    observation, info = faults.begun(reset())
                for what in self._checks.in_parts([observation]).values():
                    raise WrongValue(what)
                return observation, info
            except SignalInterrupt:
                raise
            except BaseException as error:
                if self.failing is not None:
                    self._leave_out(index, error, self.failing)
                    return self._last_observation(index), {}
                self._restart(index, error)

    def _tells_finals(self, observation: Tree) -> bool:
        """Tell whether a last observation goes with the infos: its column would change its types."""
        return self.infos.names is True and not is_exact(self._leaves, observation)

    def _begin_again(self, observations: Parts, infos: Parts, row: int) -> tuple[Parts, Info]:
        """Reset the envs that have just ended, keeping their last observations and infos apart.

        Envs may write again to what they returned: each env's outputs are kept before it is reset.
        """
        add, start, observations = self.infos.add, 0, list(observations)
        gathered = self.infos.nothing()
        for index in self.ended:
            add(gathered, infos[start:index], start)
            self._final_rows.write_one(index, observations[index], row)
            finals = {FINAL_OBS: deepcopy(observations[index])} if self._tells_finals(observations[index]) else {}
            add(gathered, [finals | {FINAL_INFO: plain(info)} for info in infos[index : index + 1]], index)
            observations[index], info = self._begin(index, self._singles[index].begin)
            add(gathered, self.infos.wanted([info]), index)
            start = index + 1
        self.ended = []
        return observations, add(gathered, infos[start:], start)
