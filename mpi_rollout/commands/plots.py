"""Figures.  Needs the extra `plots`; draws into files, never to a screen."""

import os
from shlex import quote
from typing import Any

import numpy as np

from mpi_rollout.config import RolloutConfig
from mpi_rollout.core.timing import PHASES
from mpi_rollout.errors import UsageError, counted
from mpi_rollout.storage.objects import Tell, attributes_of, count, parsed, text
from mpi_rollout.storage.reader import committed_episodes, opened, throughput_tables

KINDS = (".png", ".svg")  # Of the pictures of a study.


def plot_run(tell: Tell, path: str, figure_path: str) -> str:
    """Draw a run: returns of its episodes, its throughput over time, each rank's time by phase; return the file's name.

    Raises
    ------
    UsageError
        matplotlib is missing, or cannot write such a file.
    DataError
        The file cannot be read.
    """
    figure = new_figure("--plot", 11, 3.6)
    returns, rates, phases = figure.subplots(1, 3)
    with opened(path, tell) as (file, note):
        note("its tables")
        attributes = attributes_of(file)
        config = RolloutConfig.from_json(attributes.get("config"), path)
        intervals, limit, ranks = throughput_tables(file)
        episodes = committed_episodes(file) if "episodes" in file else None
        hosts = ", ".join(sorted(set(parsed(attributes, "hosts", list))))
        figure.suptitle(
            f"{config.env or config.env_factory}, {counted(config.num_envs, 'env')}, "
            f"{counted(count(attributes, 'num_ranks'), 'rank')} on {hosts}, "
            f"{text(attributes, 'started')}", parse_math=False,
        )  # fmt: skip
    tell("drawing")
    _plot_returns(returns, episodes)
    _plot_rates(rates, intervals, limit)
    _plot_phases(phases, ranks)
    return save(figure, "--plot", figure_path)


def new_figure(what: str, width: float, height: float) -> Any:
    """An empty figure, in inches; `what` is the option or command that needs it.

    Raises
    ------
    UsageError
        matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(f"{what} needs matplotlib; pip install 'mpi_rollout[plots]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Any, what: str, path: str) -> str:
    """Draw it into a file, of the kind that the name says, or else a PNG; return its name.

    Raises
    ------
    UsageError
        matplotlib cannot write such a file.
    """
    if not os.path.basename(path):
        raise UsageError(f"{what} must name a file, got {path!r}")
    if not os.path.splitext(path)[1]:
        path += ".png"
    try:
        figure.savefig(path, dpi=150)
    except FileNotFoundError as error:
        folder = os.path.dirname(path)
        raise UsageError(f"{what} {path}: there is no folder {folder}; mkdir -p {quote(folder)}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{what} {path}: {error}") from error
    return path


def _plot_returns(axes: Any, episodes: np.ndarray | None) -> None:
    axes.set(title="episode returns", xlabel="step of the episode's end", ylabel="return")
    if episodes is None:
        axes.text(0.5, 0.5, "no trajectories stored", ha="center", transform=axes.transAxes)
        return
    over = episodes[episodes["terminated"] | episodes["truncated"]]
    if not len(over):
        axes.text(0.5, 0.5, "no episode has ended", ha="center", transform=axes.transAxes)
        return
    end = over["start"] + over["length"]
    shown = np.linspace(0, len(over) - 1, min(len(over), 5000)).astype(int)
    axes.plot(end[shown], over["return"][shown], ".", color="0.7", markersize=2, label="episodes", rasterized=True)
    groups = [group for group in np.array_split(np.arange(len(over)), 20) if len(group)]
    axes.plot(
        [end[group].mean() for group in groups], [over["return"][group].mean() for group in groups],
        "k-", label="mean of a twentieth of them",
    )  # fmt: skip
    axes.legend(fontsize="small")


def _plot_rates(axes: Any, intervals: np.ndarray, limit: np.ndarray) -> None:
    axes.set(title="throughput", xlabel="seconds", ylabel="env steps per second")
    axes.plot(intervals["time"], intervals["env_steps_per_s"], "k.-", label="this run")
    if len(limit):
        axes.axhline(
            np.median(limit["limit_env_steps_per_s"]), color="0.5", linestyle="--", label="limit: bare env.step loops"
        )
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def _plot_phases(axes: Any, ranks: np.ndarray) -> None:
    axes.set(title="time by phase", xlabel="rank", ylabel="seconds")
    bottom = np.zeros(len(ranks))
    phases = [phase for phase in PHASES if phase != "other"]  # That is measuring the limit, not the run.
    greys, hatches = np.linspace(0.25, 0.95, len(phases)), ("", "//", "", "..", "", "xx")
    for phase, grey, hatch in zip(phases, greys, hatches, strict=True):
        axes.bar(
            ranks["rank"],
            ranks[phase],
            bottom=bottom,
            color=str(grey),
            edgecolor="k",
            linewidth=0.3,
            hatch=hatch,
            label=phase,
        )
        bottom += ranks[phase]
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
