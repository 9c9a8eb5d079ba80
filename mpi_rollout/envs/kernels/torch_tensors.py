"""CartPole in torch tensors, on any device that has float64."""

from typing import Any

import numpy as np
import torch

from mpi_rollout.envs.kernels import dynamics
from mpi_rollout.envs.kernels.starts import start_states, start_words
from mpi_rollout.envs.kernels.task import Task, own_device
from mpi_rollout.envs.rollout import RolloutColumns
from mpi_rollout.errors import UsageError, first_line

NAMES = ("observations", "rewards", "terminations", "truncations")


def device_of(name: str | int) -> torch.device:
    """Return a device that is there, or raise UsageError.  "cuda" is the rank's own of several."""
    try:
        device = torch.device(name)
        own = own_device(torch.cuda.device_count()) if device.type == "cuda" and device.index is None else None
        if own is not None:
            device = torch.device("cuda", own)
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        is_missing = str(name).startswith("cuda") and not torch.cuda.is_available()
        problem = "there is no CUDA device" if is_missing else first_line(error)
        raise UsageError(f"device {name!r} of CartPole on torch: {problem}; use device 'cpu'") from error
    return device


class TorchBackend:
    """The envs of a task in tensors.

    On a CPU it writes into the caller's arrays.  On another device the outcome of a fragment stays there until its end.
    Then each column that somebody reads is copied once, into pinned memory where that is CUDA's.  The host waits for
    the device at that time only.  On a CPU it uses as many threads as torch is told.
    """

    def __init__(self, task: Task, device: str | int = "cpu") -> None:
        self._task, self._device = task, device_of(device)
        self._is_on_host = self._device.type == "cpu"
        self._integrate = dynamics.semi_implicit_euler if task.is_semi_implicit else dynamics.euler
        num_envs = task.num_envs
        self._key = (0, 0)
        self._states = self._zeros((4, num_envs), torch.float64)
        self._steps = self._zeros((num_envs,), torch.int32)
        self._episodes = self._zeros((num_envs,), torch.int64)
        self._ended = self._zeros((num_envs,), torch.bool)
        self._indices = torch.arange(task.first_env, task.first_env + num_envs, device=self._device)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def begin(self, key: tuple[int, int], envs: np.ndarray, episodes: np.ndarray) -> None:
        self._key = key
        places = torch.from_numpy(envs).to(self._device)
        states = start_states(key, self._task.first_env + envs, episodes)
        self._states[:, places] = torch.from_numpy(states).to(self._device)
        self._episodes[places] = torch.from_numpy(episodes).to(self._device)
        self._steps[places] = 0
        self._ended[places] = False

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        wanted = {name: array for name in NAMES if (array := getattr(columns, name)) is not None}
        outputs = {name: self._output(array[: len(actions)]) for name, array in wanted.items()}
        on_device = torch.from_numpy(actions.astype(np.uint8)).to(self._device).double()
        for row, batch in enumerate(on_device):
            self._step(batch, {name: output[row] for name, output in outputs.items()})
        if not self._is_on_host:
            self._bring(outputs, wanted)

    def _output(self, array: np.ndarray) -> torch.Tensor:
        """Return what steps write of a column: on a CPU the column itself."""
        tensor = torch.from_numpy(array)
        return tensor if self._is_on_host else torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)

    def _bring(self, outputs: dict[str, torch.Tensor], columns: dict[str, np.ndarray]) -> None:
        """Copy the outcome of a fragment to the host; wait for the device once."""
        is_cuda = self._device.type == "cuda"
        hosts = {}
        for name, output in outputs.items():
            hosts[name] = torch.empty(output.shape, dtype=output.dtype, pin_memory=is_cuda)  # torch keeps such memory.
            hosts[name].copy_(output, non_blocking=is_cuda)
        if is_cuda:
            torch.cuda.current_stream(self._device).synchronize()
        for name, host in hosts.items():
            np.copyto(columns[name][: len(host)], host.numpy())

    def _step(self, actions: torch.Tensor, outputs: dict[str, torch.Tensor]) -> None:
        """Take one step with actions (num_envs,) of float64, and write what is wanted of its outcome."""
        began = self._ended
        x, x_dot, theta, theta_dot = self._states
        sine, cosine = dynamics.sine_cosine(theta)
        x_acc, theta_acc = dynamics.accelerations(sine, cosine, theta_dot, actions)
        x, x_dot = self._integrate(x, x_dot, x_acc)
        theta, theta_dot = self._integrate(theta, theta_dot, theta_acc)
        self._states = torch.stack((x, x_dot, theta, theta_dot))
        self._steps += 1
        terminations = dynamics.is_outside(x, theta) & ~began
        truncations = (self._steps >= self._task.max_episode_steps) & ~began
        if self._is_on_host:
            self._begin_some(began)
        else:
            self._begin_masked(began)
        self._ended = terminations | truncations
        results: dict[str, Any] = {"terminations": terminations, "truncations": truncations}
        if "rewards" in outputs:
            results["rewards"] = 0.0 - terminations.double() if self._task.sutton_barto_reward else ~began
        if "observations" in outputs:
            results["observations"] = self._states.T
        for name, output in outputs.items():
            output.copy_(results[name])

    def _begin_some(self, ended: torch.Tensor) -> None:
        """Begin the next episodes of envs that have ended: of these alone, whose number the host must know."""
        places = ended.nonzero().flatten()
        if len(places):
            self._steps[places] = 0
            self._episodes[places] += 1
            self._states[:, places] = self._starts(self._indices[places], self._episodes[places])

    def _begin_masked(self, ended: torch.Tensor) -> None:
        """Do the same without waiting for the device: draw for all envs, and take what is needed."""
        self._steps.masked_fill_(ended, 0)
        self._episodes += ended
        self._states = torch.where(ended, self._starts(self._indices, self._episodes), self._states)

    def _starts(self, indices: torch.Tensor, episodes: torch.Tensor) -> torch.Tensor:
        return dynamics.start_value(torch.stack(start_words(self._key, indices, episodes)).double())

    def observations(self) -> np.ndarray:
        return self._states.T.float().contiguous().cpu().numpy()

    def episodes(self) -> np.ndarray:
        return self._episodes.cpu().numpy().copy()
