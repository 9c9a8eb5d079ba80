"""Count what rank 0 does for a fragment on 2 to 128 ranks of 4 simulated nodes (Open MPI and cc): shards.py root."""

import json
import tempfile
from pathlib import Path

from measuring import CHECKOUT, QUIET, compiled, main, python, table

from mpi_rollout.collect.team import NODES_VARIABLE

LENGTH, FEW, MANY = 16, 4, 24
WAYS = {"one file": "", "shards": "--storage sharded"}


def counted(num_ranks: int, way: str, num_steps: int) -> dict[str, float]:
    """Run sleeping envs; return what rank 0 has counted."""
    envs = f"--env-factory {CHECKOUT}/benchmarks/sleeping.py:SleepingEnv --env-kwargs".split()
    run = f"--num-envs {4 * num_ranks} --num-steps {num_steps} --fragment-length {LENGTH} --wait sleep {WAYS[way]}"
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(f"{folder}/network.so")
        told = {"LD_PRELOAD": library, "NETWORK_COUNTS": f"{folder}/counts", NODES_VARIABLE: "4"}
        words = [*envs, '{"step_s": 0.002}', *run.split(), *QUIET.split(), "--out", f"{folder}/run.h5"]
        python(num_ranks, "-m", "mpi_rollout", *words, **told)
        return json.loads(Path(folder, "counts").read_text())


def root() -> None:
    """A longer run less a shorter one: what both do at start and end is in neither."""

    def rows() -> object:
        for num_ranks in (2, 16, 64, 128):
            for way in WAYS:
                few, many = (counted(num_ranks, way, LENGTH * fragments) for fragments in (FEW, MANY))
                each = [(many[name] - few[name]) / (MANY - FEW) for name in ("messages", "calls", "looks")]
                yield num_ranks, way, *(f"{value:.1f}" for value in each), many["peak_kb"] // 1024

    table(("ranks", "stored in", "messages", "calls that move them", "looks", "peak memory of rank 0, MiB"), rows())


if __name__ == "__main__":
    main(__doc__, {"root": root})
