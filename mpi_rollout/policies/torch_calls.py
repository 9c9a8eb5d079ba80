"""How networks of torch are called, without gradients and with one thread, and how they get other parameters."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from mpi_rollout.policies.model import Model


class TorchParameters(Model):
    """A model whose parameters are those of a module of torch, in the order of its state dict."""

    module: Any

    def parameters(self) -> dict[str, Any] | None:
        return dict(self.module.state_dict())

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        tensors = {name: torch.from_numpy(array) for name, array in parameters.items()}
        for name, own in self.module.state_dict().items():
            if own.dtype == torch.bfloat16:  # These came as their bits.
                tensors[name] = tensors[name].view(own.dtype)
        self.module.load_state_dict(tensors)


@contextmanager
def calling() -> Iterator[None]:
    """Call a network with one thread and without gradients; afterwards the process has its threads again.

    One thread, because each core has a rank, and because two threads may give a row other bits than one.  It is
    `no_grad`, not `inference_mode`, in which a loaded TorchScript module fails after some calls.
    """
    num_threads = torch.get_num_threads()
    if num_threads != 1:
        torch.set_num_threads(1)
    try:
        with torch.no_grad():
            yield
    finally:
        if num_threads != 1:
            torch.set_num_threads(num_threads)
