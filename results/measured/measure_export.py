"""Measure exports: python results/measured/measure_export.py [NUM_STEPS].

64 CartPoles with random actions: 2.7 episodes in a step of all.  Each export is a command from its start to its end:
thousands of episodes a minute, median and range; the memory is the most that any of its processes had.  Where HDF5
itself makes the objects, with gzip, there is one round, else five.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import BIN, machine, spread

ROUNDS, SLOW_ROUNDS = 5, 1
ON_TWO_RANKS = [str(BIN / "mpirun"), "-n", "2"]
STEPS = "36000"
PROGRAM = [sys.executable, "-m", "mpi_rollout"]


def timed(command: list[str], environment: dict[str, str]) -> tuple[float, float, dict[str, int]]:
    """Seconds of a command, the most memory of a process in MB, and what the command says."""
    start = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        said = process.stdout.read()
        _, code, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return time.perf_counter() - start, usage.ru_maxrss / 1e3, json.loads(said)


def main() -> None:
    """Print a table."""
    num_steps = sys.argv[1] if len(sys.argv) > 1 else STEPS
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as folder:
        run, sets, flat = (str(Path(folder, name)) for name in ("run.h5", "sets", "flat.h5"))
        environment = {**os.environ, "MINARI_DATASETS_PATH": sets}
        options = ["--num-envs", "64", "--num-steps", num_steps, "--progress", "none", "--out", run]
        subprocess.run([*PROGRAM, "--env", "CartPole-v1", *options], check=True, capture_output=True)
        minari = ["export", "minari", run, "cartpole/random-v0", "--overwrite", "--json"]
        ways = {
            "minari": [*PROGRAM, *minari],
            "minari, two ranks": [*ON_TWO_RANKS, *PROGRAM, *minari],
            "minari, gzip": [*PROGRAM, *minari, "--compression", "gzip"],
            "minari, gzip, two ranks": [*ON_TWO_RANKS, *PROGRAM, *minari, "--compression", "gzip"],
            "d4rl": [*PROGRAM, "export", "d4rl", run, flat, "--overwrite", "--json"],
        }
        found: dict[str, list[tuple[float, float, dict[str, int]]]] = {name: [] for name in ways}
        for number in range(ROUNDS if num_steps == STEPS else 1):
            for name, command in ways.items():
                if number < SLOW_ROUNDS or "gzip" not in name:
                    shutil.rmtree(sets, ignore_errors=True)
                    found[name].append(timed(command, environment))
                    print(name, *found[name][-1][:2], file=sys.stderr, flush=True)
    print(machine())
    for name, rounds in found.items():
        said = rounds[0][2]
        rates = [said["episodes"] / seconds * 60 / 1e3 for seconds, *_ in rounds]
        memory = max(memory for _, memory, _ in rounds)
        size = f"{said['nbytes'] / 1e6:,.0f} MB"
        print(f"| {name} | {said['episodes']:,} | {size} | {spread(rates, ',.0f')} | {memory:,.0f} MB |")


if __name__ == "__main__":
    main()
