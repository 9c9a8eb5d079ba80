"""What `inspect` shows of a run: what is in its file, and a picture of it.

All of it runs in a child process, see `storage.sandbox`.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from mpi_rollout.commands import style
from mpi_rollout.process.clock import PHASES, WORDS
from mpi_rollout.storage.checked_file import CheckedFile, checked
from mpi_rollout.storage.schema import INTERVAL, LIMIT, RETURN_OF, agents_in, is_manifest, is_recording
from mpi_rollout.storage.set_check import wrong_values_of
from mpi_rollout.storage.shard_files import size_of
from mpi_rollout.storage.stored_run import StoredRun
from mpi_rollout.storage.untrusted import Tell, count, number, parsed, steadily, text
from mpi_rollout.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES: dict[str, Callable[[np.ndarray], float]] = {"min": np.min, "median": np.median, "mean": np.mean, "max": np.max}
MOST_BARS = 32  # With more ranks, an area takes the place of bars.
MOST_DOTS, NUM_MEANS, MOST_BINS = 5000, 20, 40
WHOLE, WIDEST = 1e9, 1e300  # With larger values, bars a unit apart or of equal widths cannot be computed.


def summary(tell: Tell, path: str) -> dict[str, object]:
    """Summarize a file in values that JSON can hold."""
    return steadily(path, lambda: _summary(tell, path))


def _summary(tell: Tell, path: str) -> dict[str, object]:
    with checked(path, tell) as checks, _shards_of(checks, path) as shards:
        attributes, config = checks.root, checks.config
        finished, ranks = text(attributes, "finished").strip(), _ranks(checks.ranks())
        checks.tell("its tables")
        faults = shards.faults if shards else checks.faults()
        facts = {
            "file": path,
            "nbytes": size_of(path),
            "complete": bool(finished),
            "recovered": text(attributes, "recovered") if "recovered" in attributes else "",
            "env": config.env or config.env_factory,
            "config": asdict(config),
            "policy_sha256": text(attributes, "policy_sha256") if "policy_sha256" in attributes else "",
            "reproducibility": checks.promise.value,
            "limits": text(attributes, "limits") if is_recording(attributes) else "",
            "autoreset_mode": text(attributes, "autoreset_mode"),
            "num_ranks": len(ranks) or count(attributes, "num_ranks"),
            "hosts": [rank["host"] for rank in ranks] or parsed(attributes, "hosts", list),
            "mpi_library": text(attributes, "mpi_library"),
            "versions": parsed(attributes, "versions", dict),
            "started": text(attributes, "started"),
            "finished": finished,
            "advice": text(attributes, "advice").strip() if "advice" in attributes else "",
            "throughput": _throughput(checks),
            "ranks": ranks,
            "faults": [
                {"env_index": int(env), "step": int(step), "message": message.decode(errors="replace")}
                for env, step, message in faults[["env_index", "step", "message"]]
            ],
        }
        if shards:
            facts["shards"] = [
                {"file": file.path, "num_envs": len(envs), "num_steps": file.num_committed, "nbytes": nbytes}
                for file, envs in shards.parts
                for nbytes in [size_of(file.locate())]
            ]
        if checks.has_trajectories:
            facts |= _trajectories(checks, shards)
        return facts


@contextmanager
def _shards_of(checks: CheckedFile, path: str) -> Iterator[StoredRun | None]:
    """Open the shards of a manifest, and nothing where a file has columns of its own."""
    if not is_manifest(checks.root):
        yield None
        return
    with closing(StoredRun(path)) as stored:
        yield stored


def _throughput(checks: CheckedFile) -> dict[str, float | list[float]]:
    limit = checks.table("throughput/limit", LIMIT)
    env_steps, seconds = count(checks.throughput, "env_steps"), float(number(checks.throughput, "seconds"))
    with np.errstate(all="ignore"):  # Nothing is known of the numbers in a file.
        ratios = limit["rollout_env_steps_per_s"] / limit["limit_env_steps_per_s"]
    return {
        "env_steps": env_steps,
        "seconds": seconds,
        "env_steps_per_s": env_steps / seconds if seconds else 0.0,
        "ratio_to_limit": [float(ratio) for ratio in ratios if np.isfinite(ratio)],
    }


def _ranks(ranks: np.ndarray) -> list[dict[str, object]]:
    """Return each rank's host, envs and seconds by phase; nothing before a run's end."""
    return [
        {
            "rank": int(row["rank"]),
            "host": row["host"].decode(errors="replace"),
            "num_envs": int(row["num_envs"]),
            "seconds": {phase: float(row[phase]) for phase in PHASES},
        }
        for row in ranks
        if row["host"]
    ]


def _trajectories(checks: CheckedFile, shards: StoredRun | None) -> dict[str, object]:
    num_steps, episodes = checks.num_steps, checks.committed_episodes()
    columns, wrong = checks.columns(), checks.wrong_values()
    if shards:
        num_steps, episodes, wrong = shards.num_steps, shards.episodes, wrong_values_of(shards)
        columns = {
            name: {"shape": [shards.num_rows(name), shards.config.num_envs, *leaf.shape], "dtype": str(leaf.dtype)}
            for name, leaf in shards.leaves.items()
        }
    over = episodes[episodes["terminated"] | episodes["truncated"]]
    if not checks.is_sealed:  # Most files have no rows for episodes under way; a shard that waits for others has.
        episodes = over
    return {
        "num_steps": num_steps,
        "datasets": columns,
        "wrong_values": wrong,
        "num_transitions": int(episodes["length"].sum()),
        "episodes": {
            "ended": len(over),
            "terminated": int(episodes["terminated"].sum()),
            "truncated": int(episodes["truncated"].sum()),
            "under_way": len(episodes) - len(over) if checks.is_sealed else None,
            "return": _spread(over["return"]),
            "length": _spread(over["length"]),
        },
        "agents": {agent: {"return": _spread(over[RETURN_OF + agent])} for agent in agents_in(checks.root)},
    }


def _spread(values: np.ndarray) -> dict[str, float | None] | None:
    """Return figures of the finite values, None where there are none; and how many are not finite."""
    if not len(values):
        return None
    finite = values[np.isfinite(values)]
    with np.errstate(over="ignore"):
        spread = {name: float(figure(finite)) if len(finite) else None for name, figure in FIGURES.items()}
    return spread | {"not_finite": len(values) - len(finite)}


def plot_run(tell: Tell, path: str, figure_path: str) -> str:
    """Draw a run: its episodes, its throughput, each rank's time by phase; return the file's name."""
    figure = style.new_figure("--plot", 7.6)
    panels = figure.subplot_mosaic([["over", "returns"], ["rates", "lengths"], ["phases", "phases"]])
    with checked(path, tell) as checks, _shards_of(checks, path) as shards:
        checks.tell("its tables")
        attributes, config = checks.root, checks.config
        intervals, limit = checks.table("throughput/intervals", INTERVAL), checks.table("throughput/limit", LIMIT)
        ranks = checks.ranks()
        episodes = checks.committed_episodes() if checks.has_trajectories else None
        episodes = shards.episodes if shards else episodes
        hosts = ", ".join(sorted(set(parsed(attributes, "hosts", list))))
        num_ranks = len(ranks) or count(attributes, "num_ranks")
        sizes = f"{counted(config.num_envs, 'env')} on {counted(num_ranks, 'rank')}"
        style.head(figure, f"{config.env or config.env_factory}: {sizes}", [f"{hosts}; {text(attributes, 'started')}"])
    tell("drawing")
    _plot_episodes(panels["over"], panels["returns"], panels["lengths"], episodes)
    _plot_rates(panels["rates"], intervals, limit)
    _plot_phases(panels["phases"], ranks)
    return style.save(figure, "--plot", figure_path)


def _plot_episodes(over: "Axes", returns: "Axes", lengths: "Axes", episodes: np.ndarray | None) -> None:
    style.frame(over, "Returns over the run: episodes and mean", "step at which the episode ended", "return")
    style.frame(returns, "Returns", "return", "episodes", "y")
    style.frame(lengths, "Lengths", "steps", "episodes", "y")
    ended = None if episodes is None else episodes[episodes["terminated"] | episodes["truncated"]]
    if ended is None or not len(ended):
        for axes in (over, returns, lengths):
            style.say(axes, "no trajectories stored" if ended is None else "no episode has ended")
        return
    _plot_returns(over, ended)
    _plot_spread(returns, ended["return"])
    _plot_spread(lengths, ended["length"])


def _plot_returns(axes: "Axes", ended: np.ndarray) -> None:
    """Draw a dot for each episode, or for some of them; and the mean of each twentieth of all."""
    ends, returns = ended["start"] + ended["length"], ended["return"]
    shown = np.linspace(0, len(ended) - 1, min(len(ended), MOST_DOTS)).astype(int)
    axes.plot(ends[shown], returns[shown], ".", color="0.75", markersize=2, rasterized=True)
    groups = [group for group in np.array_split(np.arange(len(ended)), NUM_MEANS) if len(group)]
    means = [returns[group].mean() for group in groups]
    middles = [ends[group].mean() for group in groups]
    axes.plot(middles, means, color=style.BLUE, linewidth=2, label="all agents")
    agents = [name for name in ended.dtype.names or () if name.startswith(RETURN_OF)]
    colors = style.ORANGE, style.GREEN, style.RED, style.PURPLE
    for name, color, line in zip(agents[: len(colors)], colors, style.LINES, strict=False):
        of_agent = [ended[name][group].mean() for group in groups]
        axes.plot(middles, of_agent, color=color, linestyle=line, label=name.removeprefix(RETURN_OF))
    if agents:
        more = len(agents) - len(colors)
        style.legend(axes, title=f"and {more} more agents" if more > 0 else None)
    style.human_ticks(axes.xaxis, axes.yaxis)


def _plot_spread(axes: "Axes", values: np.ndarray) -> None:
    """Show how many episodes have which value, the mean and the median."""
    values = values[np.isfinite(values)].astype(float)
    if not len(values):
        return style.say(axes, "none is finite")
    low, high, mean = values.min(), values.max(), values.mean()
    if high - low > WIDEST:
        return style.say(axes, f"from {low:.3g} to {high:.3g}")
    bins = _bins(values, low, high)
    axes.hist(values, bins.tolist(), color=style.BLUE, edgecolor="w", linewidth=0.4)
    if len(bins) < 10:  # Without this a single bar is as wide as the panel.
        axes.set_xlim(bins[0] - 5 * (bins[1] - bins[0]), bins[-1] + 5 * (bins[1] - bins[0]))
    axes.axvline(mean, color=style.DARK, linestyle="--", linewidth=1)
    middle = f"mean {style.human(mean)} (dashed), median {style.human(float(np.median(values)))}"
    axes.text(1, 1.03, middle, ha="right", fontsize=style.SMALL, transform=axes.transAxes)
    axes.locator_params("y", integer=True)
    style.human_ticks(axes.xaxis, axes.yaxis)


def _bins(values: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the ends of bars, each of as many numbers as the others if the numbers are whole."""
    if low == high:
        half = 0.5 if abs(low) < WHOLE else abs(low) / 100
        return np.array([low - half, low + half])
    if high - low < WHOLE and abs(high) < WHOLE and (values == np.round(values)).all():
        width = np.ceil((high - low + 1) / MOST_BINS)  # Without this some bars would hold more numbers than others.
        return np.arange(low - 0.5, high + width, width)
    return np.linspace(low, high, MOST_BINS + 1)


def _plot_rates(axes: "Axes", intervals: np.ndarray, limit: np.ndarray) -> None:
    """Draw rates over time; over env steps where the run waits while the limit is measured."""
    xlabel = "env steps of the run" if len(limit) else "seconds of the run"
    style.frame(axes, "Throughput over the run", xlabel, "env steps per second")
    if not len(intervals):
        return style.say(axes, "no interval measured")
    marker, places = "o" if len(intervals) < 30 else "", intervals["env_steps"] if len(limit) else _times(intervals)
    axes.plot(places, intervals["env_steps_per_s"], color=style.BLUE, linewidth=1.5, marker=marker, markersize=3)
    axes.set_xlim(0, 1.02 * places.max() if places.max() > 0 else 1)
    if len(limit):
        rates = limit["limit_env_steps_per_s"]
        axes.axhspan(rates.min(), rates.max(), color=style.LIGHT, linewidth=0)
        axes.axhline(np.median(rates), color=style.GREY, linestyle="--", linewidth=1)
        axes.annotate(
            "limit: bare env.step loops",
            (0.01, rates.max()),
            (0, 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=style.GREY,
            fontsize=style.SMALL,
        )
    axes.set_ylim(0, 1.12 * axes.get_ylim()[1])
    style.human_ticks(axes.xaxis, axes.yaxis)


def _times(intervals: np.ndarray) -> np.ndarray:
    """Return the seconds of the run at which intervals end; each of its starts has counted its own."""
    times = intervals["time"].astype(float)
    ends_of_starts = np.flatnonzero(np.diff(times) < 0)
    for place in ends_of_starts:
        times[place + 1 :] += intervals["time"][place]
    return times


def _plot_phases(axes: "Axes", ranks: np.ndarray) -> None:
    style.frame(axes, "Where each rank's time went", "rank", "seconds", "y")
    num_ranks = len(ranks)
    if not any(ranks[phase].any() for phase in WORDS):  # A recorded trainer has none, nor has a run before its end.
        return style.say(axes, "not measured")
    if num_ranks > MOST_BARS:  # The root's bar gets a width that can be seen.
        root = -0.025 * num_ranks
        _stack(axes, np.array([root]), ranks[:1], 0.04 * num_ranks)
        _stack(axes, ranks["rank"][1:], ranks[1:])
        shown = [int(rank) for rank in axes.xaxis.get_major_locator().tick_values(0, num_ranks) if 0 < rank < num_ranks]
        axes.set_xticks([root, *shown], labels=["root", *(f"{rank:,}" for rank in shown)])
        axes.set_xlim(-0.055 * num_ranks, num_ranks)
    else:
        _stack(axes, ranks["rank"], ranks, 0.8)
        shown = ranks["rank"][:: 1 + num_ranks // 17].tolist()
        axes.set_xticks(shown, labels=[f"{rank}{' (root)' * (rank == 0)}" for rank in shown])
        axes.set_xlim(-0.5 - 0.5 * (num_ranks < 4), num_ranks - 0.5 + 0.5 * (num_ranks < 4))
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    style.human_ticks(axes.yaxis)
    style.legend_below(axes, len(WORDS))


def _stack(axes: "Axes", places: np.ndarray, ranks: np.ndarray, width: float = 0.0) -> None:
    """Draw bars of some width, or an area."""
    bottom = np.zeros(len(ranks))
    for phase, word in WORDS.items():
        color, hatch = style.TIME[word]
        look: dict[str, Any] = {"facecolor": color, "hatch": hatch, "label": word, "edgecolor": "w"}
        if width:
            axes.bar(places, ranks[phase], width, bottom, linewidth=0.4, **look)
        else:
            axes.fill_between(places, bottom, bottom + ranks[phase], step="mid", linewidth=0, **look)
        bottom = bottom + ranks[phase]
