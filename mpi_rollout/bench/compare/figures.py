"""Pictures of a comparison: the best of each kind of system, each system, how many times a loop of Gymnasium's.

`multiples` has another one: how many times a bare loop.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mpi_rollout.bench import statistics
from mpi_rollout.bench.compare import loop_figure, report
from mpi_rollout.bench.compare.analysis import Analysis, Cell
from mpi_rollout.bench.compare.comparison import BASE, ComparisonFile, Point, read_comparison
from mpi_rollout.bench.compare.multiples import multiples
from mpi_rollout.bench.compare.systems import System
from mpi_rollout.commands import style
from mpi_rollout.errors import DataError, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, AHEAD, ALL_CORES, YARDSTICK = "mpi_rollout", "ahead", "bare-all", "sync"
TITLES = {OURS: "mpi_rollout, step by step", AHEAD: "mpi_rollout, fragments", "pool": "process pool"}
FAMILIES = {
    **dict.fromkeys(("sync", "sb3-dummy", "puffer-serial", "tianshou-dummy", "torchrl-serial"), "one"),
    **dict.fromkeys(("async", "sb3-subproc", "tianshou-subproc", "tianshou-shmem"), "each"),
    **dict.fromkeys(("pool", "puffer-multi", "torchrl-parallel"), "pool"),
    "native": "native",
    **dict.fromkeys(("envpool", "envpool-async", "envpool-1", "envpool-async-1"), "envpool"),
}
"""Other programs' systems by name: those of a family work in the same way."""
LOOKS: dict[str, style.Look] = {
    OURS: {"color": style.BLUE, "marker": "o", "linestyle": "-", "linewidth": 2.5},
    AHEAD: {"color": style.SKY, "marker": "P", "linestyle": "--", "linewidth": 2.5},
    "pool": {"color": style.GREEN, "marker": "^", "linestyle": "--"},
    "one": {"color": style.ORANGE, "marker": "s", "linestyle": "-"},
    "each": {"color": style.DARK, "marker": "X", "linestyle": ":", "markersize": 6},
    "native": {"color": style.PURPLE, "marker": "D", "linestyle": "--"},
    "envpool": {"color": style.RED, "marker": "v", "linestyle": "-."},
}
ELSE = {"native": " (env in NumPy)", "envpool": " (env in C++)"}  # Families that do not step the env itself.
_UNLIKE = ("torchrl", "ray", "sample_factory")  # Their own steps or samples, and no Gymnasium vector env.
GROUPS: dict[str, Callable[[System], bool]] = {
    "mpi_rollout": lambda system: system.is_ours and not system.is_native and system.kind != "record",
    "Gymnasium, SB3": lambda system: _is_others(system) and system.needs in ("", "stable_baselines3"),
    "PufferLib, Tianshou": lambda system: _is_others(system) and system.needs in ("pufferlib", "tianshou"),
    "TorchRL, RLlib, SF": lambda system: _is_others(system) and system.needs in _UNLIKE,
    "Anew: EnvPool": lambda system: system.form == "envpool",
    "Anew: NumPy, ALE": lambda system: system.form == "vector_entry_point",
    "Anew: kernels": lambda system: system.form in ("numba", "torch"),
    "Anew: JAX": lambda system: system.form == "jax",
    "Storing all of it": lambda system: system.kind == "record",
}
MOST_COLUMNS, MOST_NAMED = 3, 3
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
    for part, groups in _parts(_groups(analysis, envs)).items():
        made += style.save_study(_each_system(file, analysis, envs, groups), f"{stem}-systems{part}")
    if looped := [env for env in envs if multiples(analysis, env)]:
        made += style.save_study(loop_figure.picture(file, analysis, looped), f"{stem}-loop")
    num_envs = BAR_ENVS if BAR_ENVS in file.comparison.num_envs else max(file.comparison.num_envs)
    envs = [env for env in envs if (Point(env, num_envs), YARDSTICK) in analysis.cells]
    return made + (style.save_study(_bars(file, analysis, envs, num_envs), f"{stem}-bars") if envs else [])


def family(system: System) -> str:
    """Return a key of `LOOKS`; empty for bare loops, recorders and our ways that need another form of the env."""
    if system.is_ours and not system.form and system.kind in ("loop", "ahead"):
        return AHEAD if system.kind == "ahead" else OURS
    return FAMILIES.get(system.name, "")


def _is_others(system: System) -> bool:
    return not system.is_ours and system.kind in ("loop", "sampler")


def families(analysis: Analysis, env: str) -> dict[str, list[str]]:
    """Return the systems with results for an env, by family, in the order of `LOOKS`."""
    kinds = {name: family(analysis.comparison.all_systems[name]) for name in analysis.systems(env)}
    members = {kind: [name for name in kinds if kinds[name] == kind] for kind in LOOKS}
    return {kind: names for kind, names in members.items() if names}


def title_of(analysis: Analysis, kind: str, names: list[str]) -> str:
    """Name a family after its members."""
    if kind in TITLES:
        return TITLES[kind]
    titles = [analysis.comparison.all_systems[name].title.partition(",")[0].split(" ")[-1] for name in names]
    names = list(dict.fromkeys(titles))
    more = f" and {len(names) - MOST_NAMED + 1} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[: MOST_NAMED - 1] if more else names) + more + ELSE.get(kind, "")


def best(analysis: Analysis, env: str, names: list[str]) -> dict[int, Cell]:
    """Return by number of envs the highest median of these systems, as its cell."""
    fastest = {}
    for num_envs in analysis.comparison.sizes:
        cells = [cell for name in names if (cell := analysis.cells.get((Point(env, num_envs), name)))]
        if cells:
            fastest[num_envs] = max(cells, key=lambda cell: cell.rate.median)
    return fastest


def _overview(file: ComparisonFile, analysis: Analysis, envs: list[str]) -> "Figure":
    figure = style.new_figure("plot", 1.2 + 2.5 * len(envs))
    panels = figure.subplots(len(envs), 1, squeeze=False)[:, 0]
    fine = (
        "Each line is the fastest of its kind with so many envs, median and interval. "
        f"Grey: bare env.step loops, on one core to all {file.comparison.num_cores}."
    )
    heading = "Env steps per second of mpi_rollout and of other vector envs"
    style.head(figure, heading, [report.title(file), fine])
    for axes, env in zip(panels, envs, strict=True):
        style.frame(axes, env, "", "env steps per second")
        _plot_limit(axes, analysis, env)
        ends = []
        for kind, names in families(analysis, env).items():
            if kind == AHEAD:  # The others choose each action when they see what the last one did.
                continue
            cells = best(analysis, env, names)
            _plot_line(axes, cells, LOOKS[kind])
            label = title_of(analysis, kind, names)
            ends.append((max(cells), cells[max(cells)].rate.median, label, LOOKS[kind]["color"]))
        _number_envs(axes, analysis)
        style.label_ends(axes, ends)
    panels[-1].set_xlabel("envs", fontsize=style.SMALL)
    return figure


def _plot_limit(axes: "Axes", analysis: Analysis, env: str) -> None:
    """Draw the rates of bare loops on one core and on all, as a band."""
    sizes = analysis.sizes(env, [BASE, ALL_CORES])
    low, high = ([analysis.rate(env, num_envs, name) for num_envs in sizes] for name in (BASE, ALL_CORES))
    axes.fill_between(sizes, low, high, color=style.LIGHT, linewidth=0)


def _plot_line(axes: "Axes", cells: dict[int, Cell], look: style.Look) -> None:
    rates = [cell.rate for cell in cells.values()]
    usual: style.Look = {
        "markersize": 4.5,
        "linewidth": 1.4,
        "elinewidth": 0.8,
        "markeredgecolor": "w",
        "markeredgewidth": 0.5,
    }
    axes.errorbar([*cells], [rate.median for rate in rates], statistics.reaches(rates), **usual | look)


def _number_envs(axes: "Axes", analysis: Analysis) -> None:
    style.count_x(axes, analysis.comparison.sizes)
    style.log_y(axes)


def _parts(groups: dict[str, list[System]]) -> dict[str, dict[str, list[System]]]:
    """Divide the groups over pictures with a few columns each, by what is added to their names."""
    num_parts, titles = -(-len(groups) // MOST_COLUMNS), list(groups)
    most = -(-len(groups) // num_parts)
    parts = [titles[start : start + most] for start in range(0, len(titles), most)]
    numbers = ["", *(f"-{place}" for place in range(2, num_parts + 1))]
    return {part: {title: groups[title] for title in some} for part, some in zip(numbers, parts, strict=True)}


def _each_system(
    file: ComparisonFile, analysis: Analysis, envs: list[str], groups: dict[str, list[System]]
) -> "Figure":
    """Draw a row for each env, a column for each group."""
    figure = style.new_figure("plot", 2.4 + 2.0 * len(envs))
    fine = (
        "Medians and intervals. Grey line: mpi_rollout, its fastest way step by step with so many of the same "
        f"envs. Grey: bare env.step loops, on one core to all {file.comparison.num_cores}."
    )
    style.head(figure, "Each system of the comparison", [report.title(file), fine])
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


def _groups(analysis: Analysis, envs: list[str]) -> dict[str, list[System]]:
    """Return the systems with results by title of their group, in the order of `GROUPS`."""
    measured = {name for env in envs for name in analysis.systems(env)}
    systems = [system for name, system in analysis.comparison.all_systems.items() if name in measured]
    groups = {title: [system for system in systems if is_in(system)] for title, is_in in GROUPS.items()}
    return {title: members for title, members in groups.items() if members} or {"Bare loops": []}


def looks_of(systems: list[System]) -> dict[str, style.Look]:
    """Return how the systems of a group are drawn, by name."""
    return {system.name: style.look(place) for place, system in enumerate(systems)}


def _plot_group(axes: "Axes", analysis: Analysis, env: str, systems: list[System]) -> None:
    _plot_limit(axes, analysis, env)
    ours = best(analysis, env, families(analysis, env).get(OURS, []))
    axes.plot([*ours], [cell.rate.median for cell in ours.values()], color="0.6", linewidth=3, alpha=0.6)
    for name, look in looks_of(systems).items():
        if cells := best(analysis, env, [name]):
            _plot_line(axes, cells, look)
    style.count_x(axes, analysis.comparison.sizes, most=5)
    style.log_y(axes)


def _name_systems(axes: "Axes", group: str, systems: list[System]) -> None:
    """Draw a legend below the column, with all its systems, also those without results in the last row."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], label=_short(system.title, group), **look)
        for system, look in zip(systems, looks_of(systems).values(), strict=True)
    ]
    style.legend(axes, handles=handles, loc="upper left", bbox_to_anchor=(-0.15, -0.28), fontsize=style.FINE)


def _short(title: str, group: str) -> str:
    """Shorten a title to the width of a column."""
    for word in (
        f"{group.partition(',')[0]}, ",
        "Gymnasium ",
        ", recording",
        ", vector_entry_point",
        ", EnvPool slices",
    ):
        title = title.replace(word, "")
    return title.replace(" and a root, ", " + root,\n")


def _bars(file: ComparisonFile, analysis: Analysis, envs: list[str], num_envs: int) -> "Figure":
    """Draw a panel for each env, a bar for each family, in the same order."""
    kinds = {}
    for kind in LOOKS:
        if names := [name for env in envs for name in families(analysis, env).get(kind, [])]:
            kinds[kind] = title_of(analysis, kind, names)
    figure = style.new_figure("plot", 1.3 + 0.32 * len(kinds))
    where, comparison = report.title(file).split(": ", 1)[1], file.comparison
    turns = f"{comparison.jobs.repeats} turns of {comparison.window_s:g} s each"
    fine = (
        f"The fastest of each kind; fragments are for actions that are known ahead. {where}, {turns}: ratios of "
        "medians, and intervals."
    )
    style.head(figure, f"Times as fast as Gymnasium's SyncVectorEnv, with {counted(num_envs, 'env')}", [fine])
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


def _plot_bar(axes: "Axes", place: int, ratio: statistics.Interval, kind: str) -> None:
    color, hatch = LOOKS[kind]["color"] if kind in (OURS, AHEAD) else "0.75", "///" if kind in ELSE else ""
    axes.barh(place, ratio.median, 0.7, color=color, hatch=hatch, edgecolor="w", linewidth=0)
    axes.plot([ratio.low, ratio.high], [place, place], color=style.DARK, linewidth=1)
    digits = 0 if ratio.median >= 10 else 1 if ratio.median >= 1 else 2
    look: style.Look = {"fontsize": style.SMALL, "fontweight": "bold" if kind in (OURS, AHEAD) else "normal"}
    box = {"facecolor": "w", "edgecolor": "none", "pad": 0}
    axes.text(max(ratio.median, ratio.high), place, f" {ratio.median:.{digits}f}", va="center", bbox=box, **look)
