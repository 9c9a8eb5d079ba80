"""Measure exports: python benchmarks/exports.py measure [NUM_STEPS].

64 CartPoles with random actions: 2.7 episodes in a step of all.  Each export is a command from its start to its end:
thousands of episodes a minute, median and range; the memory is the most that any of its processes had.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from measuring import ROUNDS, command_of, environment, main, python, spread, table, turns

STEPS = 36_000


def timed(sets: str, *command: object) -> tuple[float, float, dict[str, int]]:
    """Seconds of a command, the most memory of a process in MB, and what the command says."""
    shutil.rmtree(sets, ignore_errors=True)
    start, variables = time.perf_counter(), environment(MINARI_DATASETS_PATH=sets)
    with subprocess.Popen(command_of(*command), env=variables, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.read()
        _, code, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"{command}: exit code {process.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss / 1e3, json.loads(said)


def measure(num_steps: int = STEPS) -> None:
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
        rounds = ROUNDS if num_steps == STEPS else 1
        found = turns({name: partial(timed, sets, *command) for name, command in ways.items()}, rounds)
    table(("export", "episodes", "file", "thousand a minute: median (range)", "memory"), map(row, found.items()))


def row(found: tuple[str, list[tuple[float, float, dict[str, int]]]]) -> tuple[str, ...]:
    name, taken = found
    said = taken[0][2]
    rates = spread((said["episodes"] / seconds * 60 / 1e3 for seconds, *_ in taken), ",.0f")
    memory = max(memory for _, memory, _ in taken)
    return name, f"{said['episodes']:,}", f"{said['nbytes'] / 1e6:,.0f} MB", rates, f"{memory:,.0f} MB"


if __name__ == "__main__":
    main(__doc__, {"measure": measure})
