"""The device of a policy: the CPU, or a GPU.  The ranks of a host share its GPUs in turn."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

from mpi_rollout.errors import Option, UsageError
from mpi_rollout.process.rank_variables import claimed_local_rank
from mpi_rollout.text import counted, first_line

CPU = "cpu"


def device_here(device: str) -> str:
    """Return the device that this rank uses for `--policy-device`: "cpu", or "cuda:K"; UsageError if it has none."""
    if not device.startswith("cuda"):
        return CPU
    count = num_gpus()
    index = int(device[5:]) if ":" in device else claimed_local_rank() % max(1, count)
    if index >= count:
        has = f": CUDA shows {counted(count, 'GPU')} on {os.uname().nodename}; use "
        raise UsageError(Option("policy_device", device), has, Option("policy_device", CPU), ", or ask for GPUs")
    return f"cuda:{index}"


def num_gpus() -> int:
    """Return the number of GPUs that the driver shows to this process; CUDA_VISIBLE_DEVICES may hide some."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return 0 if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) else count.value


@contextmanager
def moving_to(device: str) -> Iterator[None]:
    """Raise UsageError where a network cannot be moved to a device: a torch for CPUs raises AssertionError."""
    try:
        yield
    except Exception as error:
        raise UsageError(Option("policy_device", device), f": {first_line(error)}") from error
