"""The picture and the table of what `learning.py` has measured: `learning.py draw`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from learning import NUM_ENVS, SOLVED, SYSTEMS
from looks import look
from measuring import spread, table

from mpi_rollout.commands import style

Runs = list[dict[str, Any]]


def chosen(runs: Runs, **wanted: object) -> Runs:
    return [run for run in runs if all(run[name] == value for name, value in wanted.items())]


def resampled(runs: Runs, column: int) -> tuple[np.ndarray, np.ndarray]:
    """The returns of all seeds at the same env steps (column 0) or seconds (1): as far as one seed at least goes."""
    curves = [np.array(run["curve"], float) for run in runs]
    places = np.linspace(min(curve[0, column] for curve in curves), max(curve[-1, column] for curve in curves), 200)
    # A seed that was solved earlier stays what it was.
    return places, np.array([np.interp(places, curve[:, column], curve[:, 2]) for curve in curves])


def line(axes: Any, runs: Runs, column: int, label: str, place: int, unit: float = 1.0) -> None:
    """The median of all seeds, and their range."""
    places, returns = resampled(runs, column)
    shown = style.look(place, len(NUM_ENVS)) | {"marker": ""}
    axes.plot(places / unit, np.median(returns, axis=0), label=label, linewidth=1.8, **shown)
    lowest, highest = returns.min(axis=0), returns.max(axis=0)
    axes.fill_between(places / unit, lowest, highest, color=shown["color"], alpha=0.1, linewidth=0)


def mark_solved(axes: Any) -> None:
    axes.axhline(SOLVED, color=style.GREY, linestyle=":", linewidth=1)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 515)


def draw_envs(data: dict[str, Any], path: Path) -> None:
    """Returns against env steps and seconds for each number of envs, and the seconds of all updates by system."""
    runs = chosen(data["runs"], what="envs")
    figure = style.new_figure("draw", 4.6)
    by_steps, by_seconds, by_system = figure.subplots(1, 3)
    style.frame(by_steps, "MPIVecEnv, by env steps", "thousands of env steps", "mean return of 100 test episodes")
    style.frame(by_seconds, "MPIVecEnv, by time", "seconds of training, tests not counted")
    style.frame(by_system, "All updates, each system", "envs", "seconds")
    for place, num_envs in enumerate(NUM_ENVS):
        found = chosen(runs, system="MPIVecEnv", num_envs=num_envs)
        for axes, column, unit in ((by_steps, 0, 1000.0), (by_seconds, 1, 1.0)):
            line(axes, found, column, f"{num_envs} env{'s' if num_envs > 1 else ''}", place, unit)
    for system in SYSTEMS:
        counts = [number for number in NUM_ENVS if chosen(runs, system=system, num_envs=number)]
        seconds = [[run["curve"][-1][1] for run in chosen(runs, system=system, num_envs=number)] for number in counts]
        by_system.plot(counts, [np.median(each) for each in seconds], label=system, markersize=4, **look(system))
    mark_solved(by_steps)
    mark_solved(by_seconds)
    style.count_x(by_system, NUM_ENVS)
    by_system.set_ylim(bottom=0)
    for axes in (by_steps, by_seconds, by_system):
        style.legend(axes, loc="upper right" if axes is by_system else "lower right")
    others = max(run["others"] for run in runs if run["system"] != "SubprocVecEnv")
    fine = f"4,096 env steps per update; median and range of {len({run['seed'] for run in runs})} seeds"
    quiet = f"{data['machine']}; other processes had {100 * others:.1f} % of the machine at most during a run"
    style.head(figure, "More envs learn from as many env steps, in less time (PPO, CartPole-v1)", [fine, quiet])
    style.save(figure, "draw", str(path))


def cells(runs: Runs) -> list[str]:
    """Seeds that got there, their env steps and seconds, median and range."""
    solved = [rows[0] for run in runs if (rows := [row for row in run["curve"] if row[2] >= SOLVED])]
    told = [f"{len(solved)} of {len(runs)}"]
    for column, form in ((0, ",.0f"), (1, ".1f")):
        told.append(spread([row[column] for row in solved], form) if solved else "never")
    return told


def rows(data: dict[str, Any]) -> Iterator[list[str]]:
    for num_envs in NUM_ENVS:
        for system in SYSTEMS:
            if found := chosen(data["runs"], what="envs", system=system, num_envs=num_envs):
                rates = [num_steps / seconds for num_steps, seconds, _ in (run["curve"][-1] for run in found)]
                yield [str(num_envs), system, spread(rates, ",.0f"), *cells(found)]


def draw(path: Path) -> None:
    data = json.loads(path.read_text())
    draw_envs(data, path.with_suffix(".png"))
    shares = [run["others"] for run in chosen(data["runs"], what="envs") if run["system"] != "SubprocVecEnv"]
    print(f"{data['machine']}; others' share of the processors {spread(shares)}\n")
    head = "envs", "system", "env steps/s, learning included", f"seeds at {SOLVED:g}", "env steps", "seconds"
    table(head, rows(data))
