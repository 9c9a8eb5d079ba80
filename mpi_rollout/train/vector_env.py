"""The envs of all ranks as one `gymnasium.vector.VectorEnv`, held by the root.

What `reset`, `step` and `recv` return belongs to the caller.  With `copy=False` observations are views of memory
that the call after the next one for the same envs overwrites: the observations before a step and those after it are
both alive, and nothing is copied.  Everything else belongs to the caller either way.

`collect` takes several steps in one exchange, with actions that are known beforehand, or that the ranks choose.
`step` is `send`, then `recv`.  Where envs are divided into groups, or ranks are served as they get ready, `recv`
returns some of the envs and says which; `send` takes actions for these envs.

Threads may share the envs: a call waits until that of another thread has returned, whichever methods they are.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from mpi_rollout.core.spaces import Tree, agents_of, set_spaces
from mpi_rollout.drive.driver import Driver, Lane
from mpi_rollout.drive.lanes import indices_of, lanes_of
from mpi_rollout.drive.policy_on_ranks import PolicyOnRanks
from mpi_rollout.envs import inputs
from mpi_rollout.envs.inputs import CalledByName, Info, Options, Reset, Seeds, Step, Values
from mpi_rollout.ranks.set_up import EnvFacts
from mpi_rollout.train.agents import AgentsForm
from mpi_rollout.train.closing import OfOneJob
from mpi_rollout.train.ends import RootEnd
from mpi_rollout.train.fragments import Batch, Fragments
from mpi_rollout.train.steps import Outcomes, Steps

Received = tuple[Tree, np.ndarray, np.ndarray, np.ndarray, Info, np.ndarray]  # A step of some envs, and their indices.


class MPIVectorEnv(OfOneJob, CalledByName, VectorEnv):  # Directly, too: skrl looks at these classes alone.
    """All ranks' envs, in env order whatever the number of ranks.  `mpi_rollout.connect` makes it.

    Attributes
    ----------
    num_envs, observation_space, action_space, single_observation_space, single_action_space, spec, render_mode
        As Gymnasium has them.
    autoreset_mode
        As SyncVectorEnv has it; `metadata` has it too.
    agents, agent_spaces
        Their names, () where the env is the only one; with an axis of them the spaces of one, observations and actions.
    """

    def __init__(
        self,
        driver: Driver,
        facts: EnvFacts,
        mode: AutoresetMode,
        end: RootEnd,
        batch_size: int,
        copy: bool,
        form: AgentsForm | None = None,
        policy: PolicyOnRanks | None = None,
    ):
        self._driver, self._batch_size, self.agents = driver, batch_size, agents_of(driver.observation_space)
        spaces = driver.observation_space, driver.action_space
        set_spaces(self, driver.num_envs, *(spaces if form is None else map(form.space, spaces)))
        self.agent_spaces = () if form is None else form.agent_spaces
        self.spec, self.render_mode = facts.spec, facts.render_mode
        self.metadata, self.autoreset_mode = {**facts.metadata, "autoreset_mode": mode}, mode
        self._lane_of_env = np.concatenate([np.full(lane.num_envs, i) for i, lane in enumerate(driver.lanes)])
        self.end, self.interrupts = end, end.interrupts
        self.steps = Steps(driver, end, mode, Outcomes(driver, copy), form)
        self._fragments = Fragments(self.steps, end, policy)
        self.closed = False

    @property
    def envs(self) -> NoReturn:
        """Refused: the envs are on their ranks."""
        raise AttributeError(
            "the envs are on their ranks; use call(name, ...), get_attr(name), set_attr(name, values) and render(), or "
            "call_some and set_some for some of them"
        )

    @property
    def alive(self) -> Tree:
        """Return which agents act in the next step, after a reset or a step of all envs, as infos have it."""
        form = self.steps.form
        if form is None:
            raise AttributeError("alive is for envs with several agents, these have one")
        return form.columns([np.array(flags) for flags in self.steps.alive(self._driver.lanes)])

    def reset(self, *, seed: Seeds = None, options: Options = None, infos_of_each: bool = False) -> Reset:
        """Start a new episode in every env, or in those of `options["reset_mask"]`.

        Return observations of shape (num_envs, ...), and infos.

        Parameters
        ----------
        seed
            An int s seeds env i with s + i; a list has a seed for each env; None leaves the envs' generators alone.
        options
            For the envs: a dict, or a list with one for each env.  `reset_mask` in a dict is a bool array of shape
            (num_envs,) with at least one True; the other envs go on with their episodes.
        infos_of_each
            Return the infos as `recv_all` does.
        """
        with self.interrupts:
            self.end.prepare_reset()
            seed = inputs.read_seed(seed, self.num_envs)
            mask, options = inputs.take_reset_mask(options, self.num_envs)
            self.end.check_reset(seed, mask, options)
            outcome = self.steps.reset(seed, mask, options, infos_of_each)
            self.interrupts.forget()
            if isinstance(seed, int):
                self._fragments.seed(seed)
            return outcome

    def step(self, actions: Tree) -> Step:
        """Step all envs; see `send` and `recv`.

        Parameters
        ----------
        actions
            Of shape (num_envs, ...), or a tree of such arrays; for Dict and Tuple spaces also a list of samples.

        Returns
        -------
        tuple
            Observations (num_envs, ...), rewards float64, terminations bool, truncations bool (num_envs,), infos.  Of
            envs with several agents, rewards and ends are dicts by agent; with `agents="axis"` they have one more axis,
            as observations and actions do.
        """
        steps, lanes = self.steps, self._driver.lanes
        with self.interrupts:
            self.end.check_ready(lanes, "step")
            steps.send(lanes, actions)
            steps.receive(len(lanes), steps.outcomes.lay)
            return steps.outcome(lanes)

    def recv_all(self, *, infos_of_each: bool = False) -> Step:
        """Wait until all envs have stepped, which `send` was told of; return what `step` returns.

        Parameters
        ----------
        infos_of_each
            Return the infos as a list with the dict of each env, as it gave it; an empty list where no env said
            anything.  Where an episode ended, with "same_step", the dict has `final_obs` and `final_info`, and beside
            them the infos of the reset.
        """
        lanes = self._driver.lanes
        with self.interrupts:
            self.end.check_sent("recv_all")
            self.steps.receive(len(lanes), self.steps.outcomes.lay)
            return self.steps.outcome(lanes, infos_of_each)

    def send(self, actions: object, envs_slice: np.ndarray | None = None) -> None:
        """Check actions and send them to the ranks, which step while the caller goes on.

        Parameters
        ----------
        actions
            Of shape (len(envs_slice), ...), or a tree of such arrays, or a list of samples, as for `step`.
        envs_slice
            The envs, as `recv` returned them; None is all.

        Raises
        ------
        ActionError
            Shape, dtype or values do not fit the action space; nothing was sent.
        ResetNeeded, AlreadyPendingCallError, ValueError
            These envs do not wait for actions; nothing was sent.
        """
        lanes = self._lanes_of(envs_slice)
        with self.interrupts:
            self.end.check_ready(lanes, "send")
            self.steps.send(lanes, actions)

    def recv(self) -> Received:
        """Wait until envs have stepped: the group sent first, or the `batch_size` ranks that are ready first.

        Returns
        -------
        As `step`, for these envs, and `envs_slice`: their indices, int64, in increasing order; give it to `send`.

        Raises
        ------
        NoAsyncCallError
            Nothing was sent.
        RankError
            An env failed on some rank; the next `reset` of all envs begins anew.
        """
        with self.interrupts:
            self.end.check_sent("recv")
            lanes = self.steps.receive(self._batch_size, self.steps.outcomes.lay)
            return *self.steps.outcome(lanes), indices_of(lanes)

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
        dict
            Arrays, which belong to the caller.  `observations` (before each step), `actions`, `rewards` float64,
            `terminations` and `truncations` bool are of shape (num_steps, num_envs, ...); `last_observations` are those
            after the last step, (num_envs, ...).  `infos` is a list of num_steps dicts, as `step` returns them.  Where
            the policy on the ranks acted, there are `extras` too, a dict of what it gave besides actions, (num_steps,
            num_envs, ...) each, and `policy_version`, (num_steps, num_envs) int64: how many times `set_policy` was
            called before.  Envs with several agents have `alive` too: which agents act in each step.

        Raises
        ------
        ActionError
            The actions are not of this shape, or not in their space, in the step that the message names; nothing was
            sent.
        RankError
            An env failed on some rank, or without autoreset an episode ended before the last step; the next `reset` of
            all envs begins anew.
        """
        lanes = self._driver.lanes
        with self.interrupts:
            self._send_fragments(lanes, num_steps, actions)
            return self._fragments.receive(len(lanes))[1]

    def collect_async(
        self, num_steps: int, actions: Tree | None = None, envs_slice: np.ndarray | slice | None = None
    ) -> None:
        """Send the actions of several steps, as `collect`; the ranks step while the caller goes on.

        Parameters
        ----------
        envs_slice
            The envs that take them, as `collect_some` returned them; None is all.
        """
        with self.interrupts:
            self._send_fragments(self._lanes_of(envs_slice), num_steps, actions)

    def _send_fragments(self, lanes: Sequence[Lane], num_steps: int, actions: Tree | None) -> None:
        self.end.check_ready_for_fragment(lanes, num_steps)
        self._fragments.send(lanes, int(num_steps), actions)

    def collect_wait(self) -> Batch:
        """Wait for the steps of `collect_async` of all envs; return what `collect` returns."""
        with self.interrupts:
            self.end.check_sent_fragments("collect_wait", self._driver.lanes)
            return self._fragments.receive(len(self._driver.lanes))[1]

    def collect_some(self) -> Batch:
        """Wait for the fragments of the ranks that are ready first, `batch_size` of them, or of the oldest group.

        Returns
        -------
        What `collect` returns, for these envs, and `envs_slice`, their indices, int64, rising, for `collect_async`.
        """
        with self.interrupts:
            self.end.check_sent_fragments("collect_some")
            lanes, batch = self._fragments.receive(self._batch_size)
            return {**batch, "envs_slice": indices_of(lanes)}

    def set_policy(self, parameters: Mapping[str, object] | Sequence[object]) -> None:
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
            A fragment is under way.  With first ready, it may be: each rank gets the parameters with its next one.
        """
        with self.interrupts:
            self.end.check_open()
            self._fragments.set_parameters(parameters)

    def render(self) -> Values:
        """Render each env; return the frames in env order."""
        frames = _by_env(self.end.ask("render", self._driver.worker.env_calls.render))
        return tuple(frames[index] for index in range(self.num_envs))

    def call_some(self, env_indices: Sequence[int], name: str, *args: object, **kwargs: object) -> Values:
        """`call` of these envs only."""
        call_some = self._driver.worker.env_calls.call_some
        results = _by_env(self.end.ask("call_some", call_some, list(env_indices), name, args, kwargs))
        return tuple(results[index] for index in env_indices)

    def set_some(self, env_indices: Sequence[int], name: str, values: object) -> None:
        """`set_attr` of these envs only."""
        of_each = inputs.one_for_each("values of set_attr", values, len(env_indices))
        self.end.ask("set_some", self._driver.worker.env_calls.set_some, list(env_indices), name, list(of_each))

    def _lanes_of(self, envs_slice: np.ndarray | slice | None) -> Sequence[Lane]:
        return self._driver.lanes if envs_slice is None else lanes_of(self._driver.lanes, self._lane_of_env, envs_slice)

    def __enter__(self) -> "MPIVectorEnv":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close_extras(self, code: int = 0, **_kwargs: object) -> None:
        """Let the other ranks out of `connect`, with the job's exit code."""
        try:
            self.end.close(code)
        finally:
            self.closed = self.end.is_closed  # Also if a handler of the program raises at the end of this.


def _by_env(results: Iterable[dict[int, object]]) -> dict[int, object]:
    """Put together what the ranks returned for their envs, by env index."""
    return {index: value for of_rank in results for index, value in of_rank.items()}
