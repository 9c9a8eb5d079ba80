"""Count what rank 0 does for a fragment on 2 to 128 ranks of 4 simulated nodes (Open MPI and cc): shards.py root.

In one file, with a shard for each node, and with one for each 4 ranks of a node.
"""

import json
import tempfile
from pathlib import Path

from measuring import CHECKOUT, QUIET, compiled, main, python, table

from mpi_rollout.collect.team import NODES_VARIABLE

LENGTH, FEW, MANY = 16, 4, 24
BARRIER = "from mpi4py import MPI; import numpy; MPI.COMM_WORLD.Barrier()"
SHARDED = "--storage sharded --shards-per-node"
WAYS = {"one file": "", "a shard a node": f"{SHARDED} 1", "a shard for 4 ranks": f"{SHARDED} {{}}"}


def counted(num_ranks: int, *words: object) -> dict[str, float]:
    """Run Python; return what rank 0 has counted."""
    with tempfile.TemporaryDirectory() as folder:
        told = {"NETWORK_COUNTS": f"{folder}/counts", NODES_VARIABLE: "4"}
        python(num_ranks, *words, folder=folder, LD_PRELOAD=compiled(f"{folder}/network.so"), **told)
        return json.loads(Path(folder, "counts").read_text())


def run_counted(num_ranks: int, way: str, num_steps: int) -> dict[str, float]:
    """Run sleeping envs; return the same."""
    envs = f"--env-factory {CHECKOUT}/benchmarks/sleeping.py:SleepingEnv --env-kwargs".split()
    run = f"--num-envs {4 * num_ranks} --num-steps {num_steps} --fragment-length {LENGTH} --wait sleep {QUIET} "
    run += WAYS[way].format(max(1, num_ranks // 16))
    return counted(num_ranks, "-m", "mpi_rollout", *envs, '{"step_s": 0.002}', *run.split(), "--out", "run.h5")


def root() -> None:
    """A longer run less a shorter one: what both do at start and end is in neither."""

    def rows() -> object:
        for num_ranks in (2, 16, 64, 128):
            yield num_ranks, "no run, one Barrier", "", "", "", counted(num_ranks, "-c", BARRIER)["peak_kb"] // 1024
            for way in WAYS:
                few, many = (run_counted(num_ranks, way, LENGTH * fragments) for fragments in (FEW, MANY))
                each = [(many[name] - few[name]) / (MANY - FEW) for name in ("messages", "calls", "looks")]
                yield num_ranks, way, *(f"{value:.1f}" for value in each), many["peak_kb"] // 1024

    table(("ranks", "stored in", "messages", "calls that move them", "looks", "peak memory of rank 0, MiB"), rows())


if __name__ == "__main__":
    main(__doc__, {"root": root})
