"""A network between simulated nodes: how jobs get one, `network.c`, and what the words of their launcher say of it."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from step_model import Network

from mpi_rollout.collect.team import NODES_VARIABLE
from mpi_rollout.process.launcher import find_launcher

LATENCY, PER_BYTE = "NETWORK_LATENCY_S", "NETWORK_S_PER_BYTE"


def network_of(launcher: str) -> Network:
    """Read it from the words that start the jobs of a study."""
    words = dict(word.split("=", 1) for word in shlex.split(launcher) if "=" in word)
    return Network(int(words.get(NODES_VARIABLE, 1)), float(words.get(LATENCY, 0)), float(words.get(PER_BYTE, 0)))


@contextmanager
def launching(network: Network, launcher: str, out: str) -> Iterator[str]:
    """Return words that start jobs with this network; a library for that is beside `out` meanwhile."""
    words = ["env", f"{NODES_VARIABLE}={network.num_nodes}"]
    library = os.path.join(os.curdir, f"{out}.network.so")  # A name without a slash would be looked for elsewhere.
    if network.latency_s or network.s_per_byte:
        sys.path.append(str(Path(__file__).parents[1]))
        from measuring import compiled

        compiled(library)
        words += [f"{LATENCY}={network.latency_s}", f"{PER_BYTE}={network.s_per_byte}", f"LD_PRELOAD={library}"]
    try:
        yield shlex.join([*words, *shlex.split(launcher or find_launcher())])
    finally:
        Path(library).unlink(missing_ok=True)
