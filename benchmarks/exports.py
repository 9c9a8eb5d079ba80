"""Measure exports: python benchmarks/exports.py measure [NUM_STEPS [ROUNDS]].

64 CartPoles with random actions; thousands of episodes a minute, each export being a command from start to end.
"""

import json
import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path

from measuring import ROUNDS, main, python, spread, table, turns


def timed(sets: str, *command: object) -> tuple[float, dict[str, int]]:
    """Seconds of a command, and what it says."""
    shutil.rmtree(sets, ignore_errors=True)
    start = time.perf_counter()
    said = python(*command, MINARI_DATASETS_PATH=sets)
    return time.perf_counter() - start, json.loads(said)


def measure(num_steps: int = 36_000, rounds: int = ROUNDS) -> None:
    program = "-m", "mpi_rollout"
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as folder:
        recorded, sets, flat = (str(Path(folder, name)) for name in ("run.h5", "sets", "flat.h5"))
        options = f"--env CartPole-v1 --num-envs 64 --num-steps {num_steps} --progress none --out"
        python(0, *program, *options.split(), recorded)
        minari = (*program, "export", "minari", recorded, "cartpole/random-v0", "--overwrite", "--json")
        ways = {
            "minari": (0, *minari),
            "minari, gzip": (0, *minari, "--compression", "gzip"),
            "d4rl": (0, *program, "export", "d4rl", recorded, flat, "--overwrite", "--json"),
        }
        found = turns({name: partial(timed, sets, *command) for name, command in ways.items()}, rounds)
    table(("export", "episodes", "file", "thousand a minute: median (range)"), map(row, found.items()))


def row(found: tuple[str, list[tuple[float, dict[str, int]]]]) -> tuple[str, ...]:
    name, taken = found
    said = taken[0][1]
    rates = spread((said["episodes"] / seconds * 60 / 1e3 for seconds, _ in taken), ",.0f")
    return name, f"{said['episodes']:,}", f"{said['nbytes'] / 1e6:,.0f} MB", rates


if __name__ == "__main__":
    main(__doc__, {"measure": measure})
