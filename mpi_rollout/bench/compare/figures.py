"""Three pictures of a comparison: the best of each kind of system, each system, how many times one of Gymnasium's."""

from collections.abc import Callable
from typing import Any

from mpi_rollout.bench import statistics
from mpi_rollout.bench.compare import report
from mpi_rollout.bench.compare.analysis import Analysis, Cell
from mpi_rollout.bench.compare.comparison import BASE, Point
from mpi_rollout.bench.compare.file import ComparisonFile, read_comparison
from mpi_rollout.bench.compare.systems import System
from mpi_rollout.commands import style
from mpi_rollout.errors import DataError, counted

OURS, ALL_CORES, YARDSTICK = "mpi_rollout", "bare-all", "sync"
FAMILIES = {"sync": "one", "sb3-dummy": "one", "async": "each", "sb3-subproc": "each", "pool": "pool",
            "native": "native", "envpool": "envpool", "envpool-async": "envpool"}  # fmt: skip
"""Systems that do it in the same way; together with this program's ways to step the env itself."""
LOOKS = {
    OURS: {"color": style.BLUE, "marker": "o", "linestyle": "-", "linewidth": 2.5},
    "pool": {"color": style.GREEN, "marker": "^", "linestyle": "--"},
    "one": {"color": style.ORANGE, "marker": "s", "linestyle": "-"},
    "each": {"color": style.DARK, "marker": "X", "linestyle": ":", "markersize": 6},
    "native": {"color": style.PURPLE, "marker": "D", "linestyle": "--"},
    "envpool": {"color": style.RED, "marker": "v", "linestyle": "-."},
}
ELSE = {"native": " (env in NumPy)", "envpool": " (env in C++)"}  # Families that do not step the env itself.
GROUPS: dict[str, Callable[[System], bool]] = {
    "mpi_rollout": lambda system: system.is_ours and system.kind == "loop",
    "Others, same envs": lambda system: not system.is_ours and system.kind == "loop",
    "Rewritten envs": lambda system: system.kind == "native",
    "Storing all of it": lambda system: system.kind == "record",
}
BAR_ENVS = 64


def plot_comparison(path: str) -> list[str]:
    """Draw a comparison beside its file; return the lines to print: the files that were made.

    Raises
    ------
    DataError
        It is not a comparison, or one without any result.
    UsageError
        matplotlib is missing, or cannot write there.
    """
    file = read_comparison(path)
    analysis = Analysis(file.comparison, file.samples)
    envs = [env for env in file.comparison.envs if analysis.systems(env)]
    if not envs:
        raise DataError(f"{path} has no result yet; there is nothing to draw")
    stem = path.removesuffix(".h5")
    made = style.save_study(_overview(file, analysis, envs), stem)
    made += style.save_study(_each_system(file, analysis, envs), f"{stem}-systems")
    num_envs = BAR_ENVS if BAR_ENVS in file.comparison.num_envs else max(file.comparison.num_envs)
    envs = [env for env in envs if (Point(env, num_envs), YARDSTICK) in analysis.cells]
    return made + (style.save_study(_bars(file, analysis, envs, num_envs), f"{stem}-bars") if envs else [])


def family(system: System) -> str:
    """Of `LOOKS`; empty for bare loops, recorders and ways of this program that need another form of the env."""
    return OURS if GROUPS["mpi_rollout"](system) else FAMILIES.get(system.name, "")


def families(analysis: Analysis, env: str) -> dict[str, list[str]]:
    """The systems with results for an env, by family, in the order of `LOOKS`."""
    found = {name: family(analysis.comparison.all_systems[name]) for name in analysis.systems(env)}
    members = {each: [name for name in found if found[name] == each] for each in LOOKS}
    return {each: names for each, names in members.items() if names}


def title_of(analysis: Analysis, kind: str, names: list[str]) -> str:
    """What a family is called: as its members are."""
    if kind == OURS:
        return OURS
    titles = [analysis.comparison.all_systems[name].title.partition(",")[0].split(" ")[-1] for name in names]
    return ", ".join(dict.fromkeys("process pool" if kind == "pool" else each for each in titles)) + ELSE.get(kind, "")


def best(analysis: Analysis, env: str, names: list[str]) -> dict[int, Cell]:
    """By number of envs: that of these systems with the highest median."""
    found = {
        num_envs: [cell for name in names if (cell := analysis.cells.get((Point(env, num_envs), name)))]
        for num_envs in analysis.comparison.num_envs
    }
    return {num_envs: max(cells, key=lambda cell: cell.rate.median) for num_envs, cells in found.items() if cells}


def _overview(file: ComparisonFile, analysis: Analysis, envs: list[str]) -> Any:
    figure = style.new_figure("plot", 1.2 + 2.5 * len(envs))
    panels = figure.subplots(len(envs), 1, squeeze=False)[:, 0]
    style.head(figure, "Env steps per second of mpi_rollout and of other vector envs", [
        report.title(file),
        "Each line is the fastest of its kind with so many envs, median and interval. "
        f"Grey: bare env.step loops, on one core to all {file.comparison.num_cores}.",
    ])  # fmt: skip
    for axes, env in zip(panels, envs, strict=True):
        style.frame(axes, env, "", "env steps per second")
        _plot_limit(axes, analysis, env)
        ends = []
        for kind, names in families(analysis, env).items():
            cells = best(analysis, env, names)
            _plot_line(axes, cells, **LOOKS[kind])
            label = title_of(analysis, kind, names)
            ends.append((max(cells), cells[max(cells)].rate.median, label, LOOKS[kind]["color"]))
        _number_envs(axes, analysis)
        style.label_ends(axes, ends)
    panels[-1].set_xlabel("envs", fontsize=style.SMALL)
    return figure


def _plot_limit(axes: Any, analysis: Analysis, env: str) -> None:
    """What bare loops do on one core and on all, as a band."""
    sizes = analysis.sizes(env, [BASE, ALL_CORES])
    low, high = ([analysis.rate(env, num_envs, name) for num_envs in sizes] for name in (BASE, ALL_CORES))
    axes.fill_between(sizes, low, high, color=style.LIGHT, linewidth=0)


def _plot_line(axes: Any, cells: dict[int, Cell], **look: Any) -> None:
    rates = [cell.rate for cell in cells.values()]
    lengths = [[rate.median - rate.low for rate in rates], [rate.high - rate.median for rate in rates]]
    axes.errorbar([*cells], [rate.median for rate in rates], lengths, **{"markersize": 4.5, "linewidth": 1.4} | look,
                  elinewidth=0.8, markeredgecolor="w", markeredgewidth=0.5)  # fmt: skip


def _number_envs(axes: Any, analysis: Analysis) -> None:
    style.count_x(axes, analysis.comparison.num_envs)
    style.log_y(axes)


def _each_system(file: ComparisonFile, analysis: Analysis, envs: list[str]) -> Any:
    """A row for each env, a column for each group that has results."""
    of = analysis.comparison.all_systems
    groups = {title: [of[name] for name in of if is_in(of[name]) and any(name in analysis.systems(env) for env in envs)]
              for title, is_in in GROUPS.items()}  # fmt: skip
    groups = {title: systems for title, systems in groups.items() if systems} or {"Bare loops": []}
    figure = style.new_figure("plot", 2.4 + 2.0 * len(envs))
    style.head(figure, "Each system of the comparison", [
        report.title(file), "Medians and intervals. Grey line: mpi_rollout, its fastest way with so many of the same "
        f"envs. Grey: bare env.step loops, on one core to all {file.comparison.num_cores}.",
    ])  # fmt: skip
    panels = figure.subplots(len(envs), len(groups), squeeze=False, sharex=True, sharey="row")
    for row, env in zip(panels, envs, strict=True):
        for axes, (title, systems) in zip(row, groups.items(), strict=True):
            style.frame(axes, title if env == envs[0] else "")
            _plot_group(axes, analysis, env, systems)
        row[0].set_ylabel(f"{env}\nenv steps per second", fontsize=style.SMALL)
    for axes, (title, systems) in zip(panels[-1], groups.items(), strict=True):
        axes.set_xlabel("envs", fontsize=style.SMALL)
        _name_systems(axes, title, systems)
    return figure


def looks_of(systems: list[System]) -> dict[str, dict[str, Any]]:
    """How the systems of a group are drawn, by name."""
    return {system.name: style.look(place) for place, system in enumerate(systems)}


def _plot_group(axes: Any, analysis: Analysis, env: str, systems: list[System]) -> None:
    _plot_limit(axes, analysis, env)
    ours = best(analysis, env, families(analysis, env).get(OURS, []))
    axes.plot([*ours], [cell.rate.median for cell in ours.values()], color="0.6", linewidth=3, alpha=0.6)
    for name, look in looks_of(systems).items():
        if cells := best(analysis, env, [name]):
            _plot_line(axes, cells, **look)
    style.count_x(axes, analysis.comparison.num_envs, most=5)
    style.log_y(axes)


def _name_systems(axes: Any, group: str, systems: list[System]) -> None:
    """A legend below the column, whatever of it has results in the last row."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], label=_short(system.title, group), **look)
        for system, look in zip(systems, looks_of(systems).values(), strict=True)
    ]
    style.legend(axes, handles=handles, loc="upper left", bbox_to_anchor=(-0.15, -0.28), fontsize=style.FINE)


def _short(title: str, group: str) -> str:
    """As narrow as a column."""
    for word in (f"{group}, ", "Gymnasium ", ", recording", ", vector_entry_point"):
        title = title.replace(word, "")
    return title.replace(" and a root, ", " + root,\n")


def _bars(file: ComparisonFile, analysis: Analysis, envs: list[str], num_envs: int) -> Any:
    """A panel for each env, a bar for each family, in the same order."""
    kinds = {kind: title_of(analysis, kind, [name for env in envs for name in families(analysis, env).get(kind, [])])
             for kind in LOOKS if any(kind in families(analysis, env) for env in envs)}  # fmt: skip
    figure = style.new_figure("plot", 1.3 + 0.32 * len(kinds))
    style.head(figure, f"Times as fast as Gymnasium's SyncVectorEnv, with {counted(num_envs, 'env')}", [
        f"The fastest of each kind. {report.title(file).split(': ', 1)[1]}, {file.comparison.repeats} turns of "
        f"{file.comparison.window_s:g} s each: ratios of medians, and intervals.",
    ])  # fmt: skip
    panels = figure.subplots(1, len(envs), squeeze=False, sharey=True)[0]
    for axes, env in zip(panels, envs, strict=True):
        style.frame(axes, env, grid="")
        yardstick = analysis.cells[Point(env, num_envs), YARDSTICK].rate
        for place, kind in enumerate(kinds):
            cell = best(analysis, env, families(analysis, env).get(kind, [])).get(num_envs)
            if cell is not None:
                _plot_bar(axes, place, statistics.ratio(cell.rate, yardstick), kind)
        axes.tick_params(axis="y", length=0)
        axes.axvline(1, color=style.GREY, linestyle="--", linewidth=1)
        axes.set_xlim(0, 1.25 * axes.get_xlim()[1])
    panels[0].set_yticks(range(len(kinds)), labels=kinds.values())
    panels[0].invert_yaxis()
    return figure


def _plot_bar(axes: Any, place: int, ratio: statistics.Interval, kind: str) -> None:
    axes.barh(place, ratio.median, 0.7, color=LOOKS[kind]["color"] if kind == OURS else "0.75",
              hatch="///" if kind in ELSE else "", edgecolor="w", linewidth=0)  # fmt: skip
    axes.plot([ratio.low, ratio.high], [place, place], color=style.DARK, linewidth=1)
    told = f" {ratio.median:.{0 if ratio.median >= 10 else 1 if ratio.median >= 1 else 2}f}"
    weight = "bold" if kind == OURS else "normal"
    axes.text(max(ratio.median, ratio.high), place, told, va="center", fontsize=style.SMALL, fontweight=weight,
              bbox={"facecolor": "w", "edgecolor": "none", "pad": 0})  # fmt: skip
