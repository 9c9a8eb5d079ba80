"""Measure what durability costs: python benchmarks/durability.py resume|compression [ROUNDS|NAMES].

resume       how long it takes to take the running episodes again, beside steps of the run
compression  runs with --compression NAMES (gzip), and without, beside runs that store nothing
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

from measuring import HELPERS, QUIET, ROUNDS, command_of, environment, main, python, ratios, run, spread, table, turns

PENDULUM = "--env Pendulum-v1 --num-envs 256 --num-steps 1600 --policy stopping_envs:torque"
PACKED = (
    "--env ale_py:ALE/Breakout-v5 --num-envs 64 --num-steps 300",
    "--env HumanoidStandup-v5 --num-envs 64 --num-steps 1000",
    "--env CartPole-v1 --num-envs 64 --num-steps 30000",
)
STOPPED_AT = 1406  # Episodes have 200 steps, and a row lies between two: the seventh is about to end.


def resume(rounds: int = ROUNDS) -> None:
    steps = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            words = "-m", "mpi_rollout", *PENDULUM.split(), *QUIET.split(), "--out", "run.h5"
            variables = environment(PYTHONPATH=str(HELPERS), STOP_AT=f"raise:{STOPPED_AT}")
            stopped = subprocess.run(command_of(2, *words), cwd=folder, env=variables, capture_output=True, text=True)
            if stopped.returncode != 70:
                sys.exit(f"the run was not stopped: {stopped.stderr}")
            found = json.loads(python(2, *words, folder=folder, PYTHONPATH=str(HELPERS)).splitlines()[-1])
            num_steps = found["num_steps"] - found["num_steps_before"]
            steps.append(found["catch_up_s"] / (found["seconds"] / num_steps))
    print(f"2 ranks: {PENDULUM}, stopped before step {STOPPED_AT}\n")
    print(f"bringing the envs back takes as long as {spread(steps, '.0f')} steps of the run, median of {rounds};")
    print(f"their running episodes had {(STOPPED_AT - 1) % 201} steps")


def compression(*names: str) -> None:
    """Each as a share of a run that stores nothing, in the same round."""

    def rows(options: str) -> Iterator[tuple[str, ...]]:
        kinds = ["--no-trajectories", *(f"--compression {name}" for name in ("none", *(names or ("gzip",))))]
        found = turns({kind: partial(run, 2, f"{options} {kind}") for kind in kinds})
        base, plain, *_ = found.values()
        for kind, summaries in list(found.items())[1:]:
            rates = ratios(*([each["env_steps_per_s"] for each in some] for some in (summaries, base)))
            yield options, kind, spread(rates, ".2f"), f"1/{plain[0]['file_bytes'] / summaries[0]['file_bytes']:.1f}"

    head = "run", "stored", "rate over that without storage: median (range)", "size of the file"
    table(head, (row for options in PACKED for row in rows(options)))


if __name__ == "__main__":
    main(__doc__, {"resume": resume, "compression": compression})
