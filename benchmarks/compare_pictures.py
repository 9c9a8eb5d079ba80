"""Pictures of a comparison: the best of each kind, each system, bars beside SyncVectorEnv, and times a for-loop."""

from collections.abc import Sequence
from typing import Any

from compare_tables import ALL_CORES, BASE, FIRST_NATIVE, NEEDED_SIZES, ROWS, Analysis, place

from mpi_rollout.commands import style
from mpi_rollout.studies.statistics import Interval, ratio, reaches

YARDSTICK, BAR_ENVS = "sync", 64
FAMILIES = {  # By title: the systems that work in the same way, and how they are drawn.
    "mpi_rollout, step by step": ("mpi-1 mpi-2 mpi-4 mpi-8 mpi-groups mpi-ready", style.BLUE, "o", "-"),
    "mpi_rollout, fragments": ("mpi-fragments", style.SKY, "P", "--"),
    "process pool": ("pool puffer-multi torchrl-parallel", style.GREEN, "^", "--"),
    "one process: Sync, Dummy": ("sync sb3-dummy puffer-serial tianshou-dummy torchrl-serial", style.ORANGE, "s", "-"),
    "a process each: Async, Subproc": ("async sb3-subproc tianshou-subproc tianshou-shmem", style.DARK, "X", ":"),
    "vector_entry_point (NumPy)": ("native", style.PURPLE, "D", "--"),
    "EnvPool (C++)": ("envpool", style.RED, "v", "-."),
}
NEW = ("vector_entry_point (NumPy)", "EnvPool (C++)")  # They do not step the env itself.
GROUPS = {  # The columns of the picture with each system.
    "mpi_rollout": ("mpi-1", "mpi-2", "mpi-4", "mpi-8", "mpi-fragments", "mpi-groups", "mpi-ready", "mpi-run"),
    "Gymnasium, SB3": ("sync", "async", "pool", "sb3"),
    "Peers": ("puffer", "tianshou", "torchrl", "rllib", "sample"),
    "Anew": ("native", "envpool", "numba", "torch", "gymnax"),
    "Anew, mpi_rollout": ("mpi-native", "mpi-envpool", "mpi-numba", "mpi-torch", "mpi-jax"),
}


def draw(study: dict[str, Any], stem: str) -> list[str]:
    """Draw what the comparison has points for; return the names of the files."""
    analysis = Analysis(study)
    made = []
    if len(analysis.sizes) >= NEEDED_SIZES:
        made += style.save_study(overview(analysis), stem)
        made += style.save_study(each_system(analysis), f"{stem}-systems")
    if barred := [env for env in analysis.envs if (env, BAR_ENVS, YARDSTICK) in analysis.rates]:
        made += style.save_study(bars(analysis, barred), f"{stem}-bars")
    return made + style.save_study(times_a_loop(analysis), f"{stem}-loop")


def family(analysis: Analysis, env: str, title: str) -> list[str]:
    names = FAMILIES[title][0].split()
    return [
        name
        for name in analysis.measured(env)
        if name in names or (title in ("mpi_rollout, fragments", NEW[1]) and name.startswith(names[0]))
    ]


def limit(axes: Any, analysis: Analysis, env: str) -> None:
    """Draw the rates of bare loops on one core and on all, as a band."""
    low, high = analysis.of(env, BASE), analysis.of(env, ALL_CORES)
    sizes = [size for size in low if size in high]
    axes.fill_between(sizes, *([of[size].median for size in sizes] for of in (low, high)), color=style.LIGHT)


def line(axes: Any, rates: dict[int, Interval], **look: Any) -> None:
    usual = {"markersize": 4.5, "linewidth": 1.4, "elinewidth": 0.8, "markeredgecolor": "w", "markeredgewidth": 0.5}
    medians = [rate.median for rate in rates.values()]
    axes.errorbar([*rates], medians, reaches([*rates.values()]), **usual | look)


def overview(analysis: Analysis) -> Any:
    figure = style.new_figure("draw", 1.2 + 2.5 * len(analysis.envs))
    panels = figure.subplots(len(analysis.envs), 1, squeeze=False)[:, 0]
    fine = "Each line is the fastest of its kind, median and interval. Grey: bare loops, on one core to all."
    style.head(figure, "Env steps per second of mpi_rollout and of other vector envs", [place(analysis.study), fine])
    for axes, env in zip(panels, analysis.envs, strict=True):
        style.frame(axes, env, "", "env steps per second")
        limit(axes, analysis, env)
        ends = []
        for title, (_, color, marker, kind) in FAMILIES.items():
            rates = analysis.best(env, family(analysis, env, title))
            if rates and title != "mpi_rollout, fragments":  # The others see each observation before they act.
                line(axes, rates, color=color, marker=marker, linestyle=kind)
                ends.append((max(rates), rates[max(rates)].median, title, color))
        style.count_x(axes, analysis.sizes)
        style.log_y(axes)
        style.label_ends(axes, ends)
    panels[-1].set_xlabel("envs", fontsize=style.SMALL)
    return figure


def each_system(analysis: Analysis) -> Any:
    """Draw a row for each env, a column for each group."""
    measured = [name for env in analysis.envs for name in analysis.measured(env)]
    groups = {
        title: names
        for title, prefixes in GROUPS.items()
        if (names := list(dict.fromkeys(n for n in measured if n.startswith(prefixes))))
    }
    figure = style.new_figure("draw", 2.4 + 2.0 * len(analysis.envs))
    style.head(figure, "Each system of the comparison", [place(analysis.study), "Medians and intervals"])
    panels = figure.subplots(len(analysis.envs), len(groups), squeeze=False, sharex=True, sharey="row")
    for env, row in zip(analysis.envs, panels, strict=True):
        for axes, (title, names) in zip(row, groups.items(), strict=True):
            style.frame(axes, title if env == analysis.envs[0] else "")
            limit(axes, analysis, env)
            for number, name in enumerate(names):
                label = analysis.systems[name]["title"].removeprefix("Gymnasium ").removeprefix("mpi_rollout, ")
                line(axes, analysis.of(env, name), label=label, **style.look(number))
            style.count_x(axes, analysis.sizes, most=5)
            style.log_y(axes)
        row[0].set_ylabel(f"{env}\nenv steps per second", fontsize=style.SMALL)
    for axes in panels[-1]:
        axes.set_xlabel("envs", fontsize=style.SMALL)
        style.legend(axes, loc="upper left", bbox_to_anchor=(-0.15, -0.28), fontsize=style.FINE)
    return figure


def bar(axes: Any, place_: int, value: Interval, is_ours: bool, is_new: bool) -> None:
    color, digits = style.BLUE if is_ours else "0.75", 0 if value.median >= 10 else 1 if value.median >= 1 else 2
    axes.barh(place_, value.median, 0.7, color=color, hatch="///" if is_new else "", edgecolor="w", linewidth=0)
    axes.plot([value.low, value.high], [place_, place_], color=style.DARK, linewidth=1)
    words = f" {value.median:.{digits}f}" if value.median < 1000 else f" {style.human(value.median)}"
    box = {"facecolor": "w", "edgecolor": "none", "pad": 0}
    weight = "bold" if is_ours else "normal"
    end = max(value.median, value.high)
    axes.text(end, place_, words, va="center", bbox=box, fontsize=style.SMALL, fontweight=weight)


def bar_panels(analysis: Analysis, values: dict[str, dict[str, Interval]], rows: list[str], new: Sequence[str]) -> Any:
    """Draw a panel for each env, with a bar for each row."""
    figure = style.new_figure("draw", 1.4 + 0.28 * len(rows))
    panels = figure.subplots(1, len(values), squeeze=False, sharey=True)[0]
    for axes, (env, found) in zip(panels, values.items(), strict=True):
        style.frame(axes, env, grid="x")
        is_wide = max(value.median for value in found.values()) > 10
        axes.set_xscale("log" if is_wide else "linear")
        for number, row in enumerate(rows):
            if row in found:
                bar(axes, number, found[row], row.startswith("mpi_rollout"), row in new)
        axes.tick_params(axis="y", length=0)
        axes.axvline(1, color=style.GREY, linestyle="--", linewidth=1)
        low, high = axes.get_xlim()
        axes.set_xlim(low, high * (high / low) ** 0.22 if is_wide else 1.2 * high)  # Room for the numbers.
        style.human_ticks(axes.xaxis)
    panels[0].set_yticks(range(len(rows)), labels=rows)
    panels[0].invert_yaxis()
    return figure


def bars(analysis: Analysis, envs: list[str]) -> Any:
    values: dict[str, dict[str, Interval]] = {}
    for env in envs:
        found = {title: analysis.best(env, family(analysis, env, title)).get(BAR_ENVS) for title in FAMILIES}
        base = analysis.rates[env, BAR_ENVS, YARDSTICK]
        values[env] = {title: ratio(rate, base) for title, rate in found.items() if rate}
    rows = [title for title in FAMILIES if any(title in found for found in values.values())]
    figure = bar_panels(analysis, values, rows, NEW)
    fine = (
        "The fastest of each kind; fragments need actions that are known ahead. Hatched: the task is implemented anew."
    )
    head = f"Times as fast as Gymnasium's SyncVectorEnv, with {BAR_ENVS} envs"
    style.head(figure, head, [place(analysis.study), fine])
    return figure


def times_a_loop(analysis: Analysis) -> Any:
    values = {env: found for env in analysis.envs if (found := analysis.multiples(env))}
    rows = [row for row in ROWS if any(row in found for found in values.values())]
    figure = bar_panels(analysis, values, rows, [*ROWS][[*ROWS].index(FIRST_NATIVE) :])
    fine = "Each system with the number of envs that suits it best. Hatched: the task is implemented anew."
    style.head(figure, "Times as fast as a Python for-loop over the envs", [place(analysis.study), fine])
    return figure
