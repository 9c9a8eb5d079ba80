"""The vector env of a trainer, as far as it calls methods of its envs, and of the ranks, by name."""

from collections.abc import Sequence
from typing import NoReturn

from mpi_rollout.envs import inputs
from mpi_rollout.envs.inputs import CalledByName, Values
from mpi_rollout.process.interrupts import Interrupts
from mpi_rollout.ranks.driver import Driver
from mpi_rollout.train.turns import CallState


class CalledEnvs(CalledByName):
    """A `MPIVectorEnv`, as far as it calls methods by name."""

    interrupts: Interrupts
    _driver: Driver
    _state: CallState

    def _check_open(self) -> None:
        raise NotImplementedError

    @property
    def envs(self) -> NoReturn:
        """Refused: the envs are on their ranks."""
        raise AttributeError(
            "the envs are on their ranks; use call(name, ...), get_attr(name), set_attr(name, values) and render(), or "
            "call_some and set_some for some of them"
        )

    def ask(self, method: str, *args: object) -> None:
        """Call a method of every rank's worker, for what concerns more than the envs."""
        self._check_open()
        self._state.check_idle(method)
        with self.interrupts:
            self._driver.call_ranks(method, *args)

    def render(self) -> Values:
        """Return what each env's `render` gives, in env order."""
        frames = self._call_envs("render")
        return tuple(frames[index] for index in range(self.num_envs))

    def call_some(self, env_indices: Sequence[int], name: str, *args: object, **kwargs: object) -> Values:
        """`call` of these envs only."""
        results = self._call_envs("call_some", list(env_indices), name, args, kwargs)
        return tuple(results[index] for index in env_indices)

    def set_some(self, env_indices: Sequence[int], name: str, values: object) -> None:
        """`set_attr` of these envs only."""
        values = inputs.values_of_each(values, len(env_indices))
        self._call_envs("set_some", list(env_indices), name, list(values))

    def _call_envs(self, method: str, *args: object) -> dict[int, object]:
        self._check_open()
        self._state.check_idle(method)
        with self.interrupts:
            return self._driver.call_envs(method, *args)
