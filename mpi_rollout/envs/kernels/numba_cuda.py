"""CartPole on an NVIDIA GPU: Numba compiles one CUDA thread for each env.

A thread takes all steps of a fragment in one launch, with its env's state in registers, and begins its episodes itself.
Without a GPU, Numba's simulator runs the same code in Python (NUMBA_ENABLE_CUDASIM=1), some ten thousand steps a
second.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numba import cuda

from mpi_rollout.envs.kernels import cartpole
from mpi_rollout.envs.kernels.cartpole import CartPoles, Table, check, new_table, own_device
from mpi_rollout.envs.rollout import RolloutColumns
from mpi_rollout.errors import UsageError

WARP, MOST_THREADS = 32, 128  # Threads that go together on every CUDA device, and those of a block here.
# On the device rewards have 32 bits: -1, 0 and 1 are exact, and cross in half the time.
OUTPUTS = {
    "observations": (np.float32, 4), "rewards": (np.float32,), "terminations": (np.uint8,), "truncations": (np.uint8,),
}  # fmt: skip
NO_DEVICE = (
    "CartPole on cuda needs a CUDA device, and there is none that Numba can use; "
    "use mpi_rollout/CartPoleNumba-v0, or Numba's simulator: NUMBA_ENABLE_CUDASIM=1"
)

_on_device = cuda.jit(device=True)
_moved, _is_outside = _on_device(cartpole.moved), _on_device(cartpole.is_outside)
_philox, _start_value = _on_device(cartpole.philox), _on_device(cartpole.start_value)


@cuda.jit
def rollout(
    states, steps, episodes, ended, first_env, max_episode_steps, is_sutton_barto, key_0, key_1,
    num_rows, actions, observations, rewards, terminations, truncations,
):  # fmt: skip
    """Take steps with one env, whose state is in registers.  Arrays without rows are those that nobody reads."""
    env = cuda.grid(1)
    if env >= len(steps):
        return
    x, x_dot, theta, theta_dot = states[0, env], states[1, env], states[2, env], states[3, env]
    num_steps, episode, has_ended = int(steps[env]), int(episodes[env]), ended[env] != 0
    for row in range(num_rows):
        began = has_ended
        if began:
            episode += 1
            words = _philox(first_env + env, episode, 0, 0, key_0, key_1)
            x, x_dot = _start_value(words[0]), _start_value(words[1])
            theta, theta_dot = _start_value(words[2]), _start_value(words[3])
            num_steps, terminated, truncated = 0, False, False
        else:
            x, x_dot, theta, theta_dot = _moved(x, x_dot, theta, theta_dot, actions[row, env])
            num_steps += 1
            terminated, truncated = _is_outside(x, theta), num_steps >= max_episode_steps
        has_ended = terminated or truncated
        if len(observations):
            observations[row, env, 0], observations[row, env, 1] = x, x_dot
            observations[row, env, 2], observations[row, env, 3] = theta, theta_dot
        if len(rewards):
            rewards[row, env] = 0.0 - terminated if is_sutton_barto else 1.0 - began
        if len(terminations):
            terminations[row, env] = terminated
        if len(truncations):
            truncations[row, env] = truncated
    states[0, env], states[1, env], states[2, env], states[3, env] = x, x_dot, theta, theta_dot
    steps[env], episodes[env], ended[env] = num_steps, episode, has_ended


class CUDADevice:
    """The envs on one device: of its number, else the rank's own of several.

    Only columns that somebody reads leave the device: each in one copy per fragment, through pinned memory.
    """

    def __init__(self, poles: CartPoles, device: str | int | None) -> None:
        self._poles, self._threads = poles, min(MOST_THREADS, -(-poles.num_envs // WARP) * WARP)
        if not cuda.is_available():
            raise UsageError(NO_DEVICE)
        num_devices = len(cuda.gpus)
        self._device = own_device(num_devices) if device is None else check("device", device, 0, num_devices - 1)
        self.key = 0, 0
        with self._chosen():
            self._stream = cuda.stream()
            self._table = Table(*map(cuda.to_device, new_table(poles.num_envs)))
            self._reserve(1, [])
            self._launch(0, num_blocks=1)  # It compiles in its first launch: not during a run.

    def _chosen(self) -> AbstractContextManager[Any]:
        return nullcontext() if self._device is None else cuda.gpus[self._device]

    def _reserve(self, num_rows: int, names: list[str]) -> None:
        """Make room for the actions of a fragment and for what is read of its outcome: on the device, and pinned."""
        num_envs = self._poles.num_envs
        shape = num_rows, num_envs
        self._actions = cuda.pinned_array(shape, np.uint8), cuda.device_array(shape, np.uint8)
        self._hosts, self._outputs = {}, {}
        for name, (dtype, *inner) in OUTPUTS.items():
            self._outputs[name] = cuda.device_array((num_rows if name in names else 0, num_envs, *inner), dtype)
            if name in names:
                self._hosts[name] = cuda.pinned_array((*shape, *inner), dtype)

    def get(self) -> Table[np.ndarray]:
        with self._chosen():
            return Table(*(array.copy_to_host() for array in self._table))

    def put(self, table: Table[np.ndarray]) -> None:
        with self._chosen():
            for array, host in zip(self._table, table, strict=True):
                array.copy_to_device(host)

    def rollout(self, actions: np.ndarray, columns: RolloutColumns) -> None:
        if not len(actions):
            return
        wanted = columns.wanted()
        names = list(wanted)
        with self._chosen():
            if (len(actions), names) != (len(self._actions[0]), [*self._hosts]):
                self._reserve(len(actions), names)
            host, device = self._actions
            np.copyto(host, actions, casting="unsafe")  # One of eight bytes is enough: they are 0 and 1.
            device.copy_to_device(host, stream=self._stream)
            self._launch(len(actions), -(-self._poles.num_envs // self._threads))
            for name in names:
                self._outputs[name].copy_to_host(self._hosts[name], stream=self._stream)
            self._stream.synchronize()
        for name, array in wanted.items():
            np.copyto(array[: len(actions)], self._hosts[name], casting="unsafe")

    def _launch(self, num_rows: int, num_blocks: int) -> None:
        launch = rollout[num_blocks, self._threads, self._stream]
        launch(*self._table, *self._poles[1:], *self.key, num_rows, self._actions[1], *self._outputs.values())


make_device = CUDADevice
