"""Pictures and tables of what `study.py` has measured: `study.py draw`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import spread
from study import NUM_ENVS, QUIET, SOLVED, SYSTEMS

from mpi_rollout.commands import style

Runs = list[dict[str, Any]]
LABELS = {
    ("learners", "lockstep"): "lockstep: rank 0 asks the policy",
    ("learners", "fragments"): "fragments of 64 steps",
    ("learners", "ahead"): "fragments, one version behind",
    ("uneven", "lockstep"): "lockstep",
    ("uneven", "fragments"): "fragments of 128 steps",
    ("uneven", "async"): "fragments of the rank that is ready",
}


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
    look = style.look(place)
    kind = {name: look[name] for name in ("color", "linestyle")}
    axes.plot(places / unit, np.median(returns, axis=0), label=label, linewidth=1.8, **kind)
    axes.fill_between(
        places / unit, returns.min(axis=0), returns.max(axis=0), color=look["color"], alpha=0.12, linewidth=0
    )


def mark_solved(axes: Any) -> None:
    axes.axhline(SOLVED, color=style.GREY, linestyle=":", linewidth=1)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 515)


def fine_print(data: dict[str, Any], runs: Runs, words: str) -> list[str]:
    others = max(run["others"] for run in runs if run["system"] != "SubprocVecEnv")
    num_seeds = len({run["seed"] for run in runs})
    quiet = f"other processes had {100 * others:.1f} % of the machine at most during a run"
    return [f"{words}; median and range of {num_seeds} seeds", f"{data['machine']}; {quiet}"]


def draw_envs(data: dict[str, Any], path: Path) -> None:
    """Returns against env steps and seconds for each number of envs, and the seconds of all updates by system."""
    runs = chosen(data["runs"], what="envs")
    figure = style.new_figure("draw", 4.6)
    by_steps, by_seconds, by_system = figure.subplots(1, 3)
    style.frame(by_steps, "Against env steps", "thousands of env steps", "mean return of 100 test episodes")
    style.frame(by_seconds, "Against time", "seconds of training, tests not counted")
    style.frame(by_system, "Time for all updates", "envs", "seconds")
    for place, num_envs in enumerate(NUM_ENVS):
        found = chosen(runs, system="MPIVecEnv", num_envs=num_envs)
        for axes, column, unit in ((by_steps, 0, 1000.0), (by_seconds, 1, 1.0)):
            line(axes, found, column, f"{num_envs} env{'s' if num_envs > 1 else ''}, MPIVecEnv", place, unit)
    for place, system in enumerate(SYSTEMS["envs"]):
        counts = [number for number in NUM_ENVS if chosen(runs, system=system, num_envs=number)]
        seconds = [[run["curve"][-1][1] for run in chosen(runs, system=system, num_envs=number)] for number in counts]
        by_system.plot(counts, [np.median(each) for each in seconds], label=system, markersize=4, **style.look(place))
    mark_solved(by_steps)
    mark_solved(by_seconds)
    style.count_x(by_system, NUM_ENVS)
    by_system.set_ylim(bottom=0)
    style.legend(by_seconds, loc="lower right")
    style.legend(by_system, loc="upper right")
    style.head(
        figure, "PPO on CartPole-v1: more envs in parallel", fine_print(data, runs, "4,096 env steps per update")
    )
    style.save(figure, "draw", str(path))


def draw_learners(data: dict[str, Any], path: Path) -> None:
    """Returns against seconds, on even and uneven envs."""
    figure = style.new_figure("draw", 4.2)
    titles = {"learners": "PPO, 64 envs, 2 ranks", "uneven": "V-trace, 16 uneven envs, 5 ranks"}
    for axes, (what, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
        style.frame(axes, title, "seconds of training", "mean return of the last 100 episodes")
        for place, system in enumerate(SYSTEMS[what]):
            line(axes, chosen(data["runs"], what=what, system=system), 1, LABELS[what, system], place)
        mark_solved(axes)
        style.legend(axes, loc="lower right")
    runs = [run for run in data["runs"] if run["what"] in titles]
    style.head(figure, "CartPole-v1: lockstep, fragments, first ready", fine_print(data, runs, "until 475 is reached"))
    style.save(figure, "draw", str(path))


def first_solved(run: dict[str, Any]) -> tuple[int, float, float] | None:
    return next((row for row in run["curve"] if row[2] >= SOLVED), None)


def cells(runs: Runs) -> list[str]:
    """Seeds that got there, their env steps and seconds, median and range."""
    solved = [row for row in map(first_solved, runs) if row is not None]
    told = [f"{len(solved)} of {len(runs)}"]
    for column, form in ((0, ",.0f"), (1, ".1f")):
        told.append(spread([row[column] for row in solved], form) if solved else "never")
    return told


def rate(run: dict[str, Any]) -> float:
    return float(run["curve"][-1][0] / run["curve"][-1][1])


def print_tables(data: dict[str, Any]) -> None:
    shares = [run["others"] for run in data["runs"] if run["system"] != "SubprocVecEnv"]
    late = sum(share > QUIET for share in shares)
    print(
        f"{data['machine']}; others' share of the processors {spread(shares)}; above {QUIET}: {late} of {len(shares)}"
    )
    print("\n| envs | system | env steps/s, learning included | seeds at 475 | env steps | seconds |")
    print("|---|---|---|---|---|---|")
    for num_envs in NUM_ENVS:
        for system in SYSTEMS["envs"]:
            if found := chosen(data["runs"], what="envs", system=system, num_envs=num_envs):
                row = [str(num_envs), system, spread([rate(run) for run in found], ",.0f"), *cells(found)]
                print(f"| {' | '.join(row)} |")
    print("\n| envs | way | collecting, of lockstep's | of train_ppo.py's | seeds at 475 | env steps | seconds |")
    print("|---|---|---|---|---|---|---|")
    lockstep = chosen(data["runs"], what="learners", system="lockstep")
    example = chosen(data["runs"], what="envs", system="MPIVecEnv", num_envs=64)
    for what in ("learners", "uneven"):
        for system in SYSTEMS[what]:
            found = chosen(data["runs"], what=what, system=system)
            shares = [waited(found, lockstep), waited(found, example)] if what == "learners" else ["", ""]
            row = ["even" if what == "learners" else "uneven", LABELS[what, system], *shares, *cells(found)]
            print(f"| {' | '.join(row)} |")


def waited(runs: Runs, others: Runs) -> str:
    """The seconds that a learner waits for an env step, over those of another one with the same seed."""
    per_step: Callable[[dict[str, Any]], float] = lambda run: run["waited_s"] / run["curve"][-1][0]  # noqa: E731
    base = {run["seed"]: per_step(run) for run in others}
    return spread([per_step(run) / base[run["seed"]] for run in runs if run["seed"] in base], ".2f")


def draw(path: Path) -> None:
    data = json.loads(path.read_text())
    draw_envs(data, path.with_name("study.png"))
    draw_learners(data, path.with_name("learners.png"))
    print_tables(data)
