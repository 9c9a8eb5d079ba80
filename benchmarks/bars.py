"""Measure how far this program is from what it is compared with, beside what it should reach.

    python benchmarks/bars.py measure NAME [ROUNDS [SECONDS]]   results/measured/NAME.json, a table and a picture
    python benchmarks/bars.py draw results/measured/NAME.json   table and picture of a file

Each round measures every row once, in another random order; a row's ratio is of two things that one round measured one
after the other, or of a run and the limit that it measured itself.  Rounds end before SECONDS (580) are over: the first
one tells how long they take.  A row that fails, because a package is missing, is left out with one line.
"""

import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import policies
import reading
import recording
from measuring import MEASURED, busy, cores_of_others, environment, machine, main, run, spread, table
from systems import all_systems

from mpi_rollout.studies.compare import Setup
from mpi_rollout.studies.compare import measure as take_turns
from mpi_rollout.studies.jobs import JobOptions
from mpi_rollout.text import counted

NUM_ROUNDS, MOST_S, NUM_CORES, NUM_ENVS = 7, 580, 2, 64
CARTPOLES = "--env CartPole-v1 --num-envs 64 --num-steps 12000"
ENVPOOL = '--env CartPole-v1 --vectorization-mode envpool --env-kwargs {"num_threads":1} --no-trajectories'
# For Open MPI's launcher, as --map-by core --bind-to core.
BOUND = {f"PRTE_MCA_{name}_policy": "core" for name in ("hwloc_default_binding", "rmaps_default_mapping")}
BREAKOUT = "--env ale_py:ALE/Breakout-v5 --num-envs 16 --num-steps 300 --wait sleep"
FILE_STEPS = 20_000


@dataclass(frozen=True)
class Row:
    """One line of the table: `before` is what stood when the bar was set."""

    before: str
    bar: float
    measure: Callable[[], float]


def of_limit(num_ranks: int, words: str, num_busy: int = 0) -> float:
    """The share of bare loops on all ranks that a run says itself."""
    with busy(num_busy):
        return run(num_ranks, f"{words} --measure-limit --limit-s 0.5")["ratio_to_limit"]


def of_pools(num_envs: int, num_steps: int) -> float:
    """Slices of EnvPool over bare pools; each rank and its pool's thread have a core, as the pages advise."""
    with patch.dict(os.environ, BOUND):
        return of_limit(NUM_CORES, f"{ENVPOOL} --num-envs {num_envs} --num-steps {num_steps}")


def connected(num_ranks: int) -> float:
    """Steps through `connect` over bare loops on as many cores at once."""
    setup = Setup({"env": "CartPole-v1", "env_factory": None, "env_kwargs": {}}, NUM_ENVS, num_ranks)
    names = (f"mpi-{num_ranks}", "bare" if num_ranks == 1 else "bare-all")
    chosen = [system for system in all_systems(num_ranks).values() if system.name in names]
    taken = {each.system: each.env_steps_per_s for each in take_turns(setup, chosen, JobOptions(repeats=1), 0.5, {})}
    return taken[names[0]] / taken[names[1]]


def of_unstored(words: str, stored: str) -> float:
    """The rate of a run that stores, over the same without."""
    bare, ours = (run(NUM_CORES, f"{words} {each}")["env_steps_per_s"] for each in ("--no-trajectories", stored))
    return ours / bare


def of_own_loop(kind: str) -> float:
    """A run with a policy on the ranks over each rank's own loop with it."""
    ours = policies.rate(kind, policies.WAYS["on the ranks, L = 64"], 5000)
    return ours / policies.loop_rate(kind, 1.2)


def of_sequential(path: str, *names: str) -> float:
    """A sequential read of a file over its episodes, with some of their arrays."""
    whole = reading.seconds(reading.sequential, path)
    return whole / reading.seconds(lambda path: reading.episodes(path, *names), path)


def rows_of(path: str) -> dict[str, Row]:
    """All lines; `path` is a file with short episodes."""
    unstored = "--no-trajectories"
    return {
        "64 CartPoles, two ranks, not stored": Row("0.94", 1.0, partial(of_limit, 2, f"{CARTPOLES} {unstored}")),
        "64 CartPoles, two ranks, stored": Row("0.87", 0.97, partial(of_limit, 2, CARTPOLES)),
        "64 CartPoles, one process, stored": Row("0.80", 0.97, partial(of_limit, 0, CARTPOLES)),
        "512 CartPoles, two ranks, stored": Row(
            "0.94", 0.98, partial(of_limit, 2, "--env CartPole-v1 --num-envs 512 --num-steps 1500")
        ),
        "64 CartPoles beside two busy processes, stored": Row(
            "0.90", 0.93, partial(of_limit, 2, CARTPOLES.replace("12000", "6000"), 2)
        ),
        "64 Acrobots, two ranks, stored": Row(
            "0.95", 0.98, partial(of_limit, 2, "--env Acrobot-v1 --num-envs 64 --num-steps 2500")
        ),
        "64 HumanoidStandups, two ranks, stored": Row(
            "0.94", 0.98, partial(of_limit, 2, "--env HumanoidStandup-v5 --num-envs 64 --num-steps 200")
        ),
        "`connect`, 64 CartPoles, one process, of a bare loop": Row("0.89", 0.92, partial(connected, 1)),
        "`connect`, 64 CartPoles, two ranks, of bare loops": Row("0.84", 0.92, partial(connected, 2)),
        "`connect(record=)`, one process, of the rate without": Row("0.86", 0.97, partial(recording.ratio, 1)),
        "`connect(record=)`, two ranks, of the rate without": Row("0.93", 0.97, partial(recording.ratio, 2)),
        "Breakout's frames with lz4, of the rate without storage": Row(
            "0.59", 0.85, partial(of_unstored, BREAKOUT, "--compression lz4")
        ),
        "a NumPy policy on the ranks, of their own loops": Row("0.95", 0.97, partial(of_own_loop, "numpy")),
        "a policy of SB3 on the ranks, of their own loops": Row("0.96", 0.97, partial(of_own_loop, "sb3")),
        "an ONNX policy on the ranks, of their own loops": Row("0.90", 0.97, partial(of_own_loop, "onnx")),
        "slices of EnvPool, 64 envs, bound, of bare pools": Row("0.82", 0.95, partial(of_pools, 64, 20000)),
        "slices of EnvPool, 256 envs, bound, of bare pools": Row("0.89", 0.95, partial(of_pools, 256, 8000)),
        "`iter_episodes`, observations, of a sequential read": Row(
            "0.26", 0.5, partial(of_sequential, path, "observations")
        ),
        "`iter_episodes`, all arrays, of a sequential read": Row(
            "0.16", 0.5, partial(of_sequential, path, *reading.ARRAYS)
        ),
    }


def measure(name: str, most_rounds: int = NUM_ROUNDS, most_s: int = MOST_S) -> None:
    """Round after round; the file is written anew after each."""
    os.environ.update(environment())
    begun, out, samples, others = time.monotonic(), MEASURED / f"{name}.json", dict[str, list[float]](), list[float]()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        policies.export(Path(folder))
        run(NUM_CORES, f"--env CartPole-v1 --num-envs 64 --num-steps {FILE_STEPS}", keep=(path := f"{folder}/read.h5"))
        rows, begun_rounds = rows_of(path), time.monotonic()
        for number in range(most_rounds):
            if number and time.monotonic() + (time.monotonic() - begun_rounds) / number > begun + most_s:
                break
            with cores_of_others(others):
                for row in random.Random(number).sample(list(rows), len(rows)):
                    if time.monotonic() < begun + most_s:
                        take(row, rows, samples)
            told = {
                row: {"before": rows[row].before, "bar": rows[row].bar, "samples": samples[row]}
                for row in rows
                if row in samples
            }
            study = {"machine": machine(), "command": f"python benchmarks/bars.py {' '.join(sys.argv[1:])}"}
            study |= {"seconds": time.monotonic() - begun, "cores_of_others": others, "rows": told}
            out.write_text(json.dumps(study, indent=1) + "\n")
    draw(str(out))


def take(name: str, rows: dict[str, Row], samples: dict[str, list[float]]) -> None:
    """Measure one row once."""
    try:
        samples.setdefault(name, []).append(rows[name].measure())
        sys.stderr.write(f"{name}: {samples[name][-1]:.3f}\n")
    except (Exception, SystemExit) as error:
        del rows[name]
        sys.stderr.write(f"left out: {name}: {str(error).strip().splitlines()[-1]}\n")


def draw(path: str) -> None:
    """Print the table and draw its picture beside the file."""
    from mpi_rollout.commands import style

    study = json.loads(Path(path).read_text())
    rows, others = study["rows"], study["cores_of_others"]
    cells = ((name, row["before"], spread(row["samples"], ".2f"), row["bar"]) for name, row in rows.items())
    table(("what", "before", "median (range)", "bar"), cells)
    medians = {name: median(row["samples"]) for name, row in rows.items()}
    num_reached = sum(round(medians[name], 2) >= row["bar"] for name, row in rows.items())
    taken = (
        f"Medians and ranges of {counted(len(others), 'round')}. Other processes took {spread(others, '.2f')} cores."
    )
    print(f"{taken}\n")
    figure = style.new_figure("draw", 1.5 + 0.24 * len(rows))
    head = f"{num_reached} of {len(rows)} figures reach their bar: shares of what each is compared with"
    style.head(figure, head, [study["machine"], taken])
    axes = figure.subplots()
    style.frame(axes, grid="x")
    for place, (name, row) in enumerate(rows.items()):
        reach = [[medians[name] - min(row["samples"])], [max(row["samples"]) - medians[name]]]
        axes.barh(place, row["bar"], 0.62, color=style.LIGHT, label="bar" if not place else None)
        look = {"fmt": "o", "color": style.BLUE, "markersize": 5, "capsize": 3, "elinewidth": 1.2}
        axes.errorbar(medians[name], place, xerr=reach, label=None if place else "measured", **look)
    axes.axvline(1, linestyle="--", color=style.GREY, linewidth=1)
    axes.set_yticks(range(len(rows)), labels=[name.replace("`", "") for name in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6), axes.set_xlim(0, 1.2)
    style.legend(axes, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    print("\n".join(style.save_study(figure, str(Path(path).with_suffix("")))))


if __name__ == "__main__":
    main(__doc__, {"measure": measure}, {"draw": draw})
