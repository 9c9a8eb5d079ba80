"""CartPole in torch tensors, on any device that has float64."""

from typing import Any

import numpy as np
import torch

from mpi_rollout.envs.kernels import cartpole
from mpi_rollout.envs.kernels.cartpole import CartPoles, Table, new_table, own_device
from mpi_rollout.envs.rollout import OUTCOME, RolloutColumns
from mpi_rollout.errors import UsageError
from mpi_rollout.text import first_line


def device_of(name: str | int) -> torch.device:
    """Return a device that is there, or raise UsageError.  "cuda" is the rank's own of several."""
    try:
        device = torch.device(name)
        own = own_device(torch.cuda.device_count()) if device.type == "cuda" and device.index is None else None
        device = device if own is None else torch.device("cuda", own)
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        is_missing = str(name).startswith("cuda") and not torch.cuda.is_available()
        problem = "there is no CUDA device" if is_missing else first_line(error)
        raise UsageError(f"device {name!r} of CartPole on torch: {problem}; use device 'cpu'") from error
    return device


class TorchDevice:
    """The envs in tensors.

    On a CPU it writes into the caller's arrays, with as many threads as torch is told.  On another device the outcome
    of a fragment stays there until its end: then each column that somebody reads is copied once.
    """

    def __init__(self, poles: CartPoles, device: str | int | None) -> None:
        self._poles, self._device, self.key = poles, device_of("cpu" if device is None else device), (0, 0)
        self._is_on_host = self._device.type == "cpu"
        self._indices = torch.arange(poles.first_env, poles.first_env + poles.num_envs, device=self._device)
        self.put(new_table(poles.num_envs))

    def get(self) -> Table[np.ndarray]:
        return Table(*(tensor.cpu().numpy() for tensor in self._table))

    def put(self, table: Table[np.ndarray]) -> None:
        self._table = Table(*(torch.from_numpy(array).to(self._device) for array in table))

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        wanted = {name: torch.from_numpy(array[: len(actions)]) for name, array in columns.wanted().items()}
        outputs = wanted
        if not self._is_on_host:
            outputs = {name: torch.empty_like(column, device=self._device) for name, column in wanted.items()}
        on_device = torch.from_numpy(actions.astype(np.uint8)).to(self._device).double()
        for row, batch in enumerate(on_device):
            results = self._step(batch)
            for name, output in outputs.items():
                output[row].copy_(results[name])
        if not self._is_on_host:
            for name, output in outputs.items():
                wanted[name].copy_(output)

    def _step(self, actions: torch.Tensor) -> dict[str, torch.Tensor]:
        """Take one step with actions (num_envs,) of float64; return its outcome, by the names of columns."""
        states, steps, episodes, began = self._table
        x, x_dot, theta, theta_dot = states
        x, x_dot, theta, theta_dot = cartpole.moved(x, x_dot, theta, theta_dot, actions)
        states = torch.stack((x, x_dot, theta, theta_dot))
        steps += 1
        terminations = cartpole.is_outside(x, theta) & ~began
        truncations = (steps >= self._poles.max_episode_steps) & ~began
        # On a CPU only these envs' numbers are drawn.  To know them, a host would have to wait for another device.
        places: Any = began.nonzero().flatten() if self._is_on_host else slice(None)
        if not self._is_on_host or len(places):
            steps.masked_fill_(began, 0)
            episodes += began
            words = cartpole.philox(self._indices[places], episodes[places], 0, 0, *self.key)
            starts = cartpole.start_value(torch.stack(words).double())
            states[:, places] = starts if self._is_on_host else torch.where(began, starts, states)
        self._table = Table(states, steps, episodes, terminations | truncations)
        rewards = 0.0 - terminations.double() if self._poles.sutton_barto_reward else ~began
        return dict(zip(OUTCOME, (states.T, rewards, terminations, truncations), strict=True))


make_device = TorchDevice
