"""Measure how many env steps a second one env makes on 1, 2, 4 ranks, and draw it.

    python examples/shallow_water/scaling.py results/shallow-water.json

A job measures each grid by `connect`, with one env on all of its ranks, and by a bare loop of `env.step` on the same
ranks.  Jobs of different numbers of ranks take turns.  If the file is there, it is only drawn again.
"""

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from env import NUM_PADS, make_env
from mpi4py import MPI

import mpi_rollout
from mpi_rollout.commands import style
from mpi_rollout.process.launcher import find_launcher
from mpi_rollout.studies.statistics import median_interval, reaches
from mpi_rollout.studies.study_file import cpu_model

RANKS, NUM_ROUNDS = (1, 2, 4), 6
NUM_STEPS = {"32": 1000, "128": 100, "256": 15}  # Of a sample, by cells along a side: a third of a second on one rank.
WAYS = {"connect": (style.BLUE, "o"), "bare loop": (style.DARK, "x")}


def rate(env, num_steps: int, *shape: int) -> float:
    """Return how many steps a second are made, after a few that are not measured."""
    env.reset(seed=0)
    action = np.zeros(shape, np.float32)
    for number in range(-3, num_steps):
        if number == 0:
            start = time.perf_counter()
        env.step(action)
    return num_steps / (time.perf_counter() - start)


def sample(comm: MPI.Intracomm) -> None:
    """Print the rates of this job, by cells and way."""
    rates = {}
    for cells, num_steps in NUM_STEPS.items():
        bare, kwargs = rate(make_env(comm, num_cells=int(cells)), num_steps, NUM_PADS), {"num_cells": int(cells)}
        with mpi_rollout.connect(make_env, 1, env_kwargs=kwargs, ranks_per_env=comm.size) as envs:
            if envs is not None:
                rates[cells] = {"connect": rate(envs, num_steps, 1, NUM_PADS), "bare loop": bare}
    if comm.rank == 0:
        print(json.dumps(rates))


def measure() -> dict:
    """Run the jobs in turn; return all that they printed, by number of ranks."""
    samples: dict[int, list] = {num_ranks: [] for num_ranks in RANKS}
    for num_ranks in RANKS * NUM_ROUNDS:
        command = [find_launcher(), "-n", str(num_ranks), sys.executable, __file__]
        samples[num_ranks].append(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))
    machine = f"{cpu_model()}, {os.cpu_count()} cores, {datetime.now(UTC).date()}"
    return {"machine": machine, "cores": os.cpu_count(), "env_steps_per_s": samples}


def draw(study: dict, stem: str) -> list[str]:
    """Draw the speed-up over one rank's bare loop, a panel for each grid; return the names of the files."""
    figure, rates = style.new_figure("scaling.py", 3.4), list(study["env_steps_per_s"].values())
    head = "A second rank makes an env twice as fast, if its grid is large"
    spread = f"Medians of {NUM_ROUNDS} jobs and their intervals. 1 = the bare loop on one rank."
    style.head(figure, head, [spread, study["machine"]])
    ideal = [num_ranks for num_ranks in RANKS if num_ranks <= study["cores"]]
    panels = figure.subplots(1, len(NUM_STEPS), sharey=True)
    for axes, cells in zip(panels, NUM_STEPS, strict=True):
        ways = {way: [median_interval([job[cells][way] for job in jobs]) for jobs in rates] for way in WAYS}
        base = ways["bare loop"][0].median
        style.frame(axes, f"{cells} x {cells} cells: {style.human(base)} steps/s", "ranks per env")
        axes.axvspan(study["cores"] * 1.2, RANKS[-1] * 1.25, color=style.LIGHT, zorder=0, label="more ranks than cores")
        axes.plot(ideal, ideal, "--", color=style.GREY, linewidth=1, label="ideal")
        for way, (color, marker) in WAYS.items():
            scaled = [interval.scaled(1 / base) for interval in ways[way]]
            medians = [interval.median for interval in scaled]
            axes.errorbar(RANKS, medians, reaches(scaled), label=way, color=color, marker=marker, capsize=3)
        style.count_x(axes, RANKS)
        axes.set_ylim(0, 2.4)
    panels[0].set_ylabel("speed-up", fontsize=style.SMALL)
    style.legend(panels[-1], loc="lower left")
    return style.save_study(figure, stem)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sample(MPI.COMM_WORLD)
    else:
        path = Path(sys.argv[1])
        if not path.exists():
            path.write_text(json.dumps(measure(), indent=1) + "\n")
        print("\n".join(draw(json.loads(path.read_text()), str(path.with_suffix("")))))
