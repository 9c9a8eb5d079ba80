"""Pictures of a comparison: the best of each kind over the number of envs; libraries side by side on the same envs."""

from typing import Any

from compare_tables import ALL_CORES, BASE, NEEDED_SIZES, Analysis, place
from looks import KINDS, kind_of, look

from mpi_rollout.commands import style
from mpi_rollout.studies.statistics import Interval, reaches

NUM_ENVS, NUM_BARS = 64, 8
LIBRARIES = {  # By prefixes of their names: systems that step the env itself, each when it gets its actions.
    "mpi_rollout": ("mpi-1", "mpi-2", "mpi-4", "mpi-8"),
    "process pool": ("pool",),
    "PufferLib": ("puffer-",),
    "Gymnasium": ("sync", "async"),
    "SB3": ("sb3-",),
    "Tianshou": ("tianshou-",),
    "RLlib": ("rllib-",),
    "Sample Factory": ("sample-",),
    "TorchRL": ("torchrl-",),
}
THEMES = {"light": ("0.15", "0.45", style.DARK), "dark": ("0.95", "0.7", "0.7")}  # Text, fine print, intervals.


def draw(study: dict[str, Any], stem: str) -> list[str]:
    """Draw what the comparison has points for; return the names of the files."""
    analysis = Analysis(study)
    if len(analysis.sizes) >= NEEDED_SIZES:
        return style.save_study(overview(analysis), stem)
    env = analysis.envs[0]
    if (env, NUM_ENVS, "sync") not in analysis.rates or not analysis.of(env, ALL_CORES):
        return ["nothing to draw: see `tables`"]
    for theme in THEMES:
        figure = libraries(analysis, env, theme)
        figure.savefig(f"{stem}-{theme}.svg", transparent=True, metadata={"Date": None})
    return [*(f"{stem}-{theme}.svg" for theme in THEMES), style.save(libraries(analysis, env, "light"), "draw", stem)]


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
    """Draw a panel for each env, with a line for each kind of system."""
    from matplotlib.ticker import LogLocator

    figure = style.new_figure("draw", 1.2 + 2.5 * len(analysis.envs))
    panels = figure.subplots(len(analysis.envs), 1, squeeze=False)[:, 0]
    fine = "Each line is the fastest of its kind, median and interval. Grey: bare loops, on one core to all."
    head = "From 16 envs on, mpi_rollout is faster than one process, and than a process for each env"
    style.head(figure, head, [place(analysis.study), fine])
    for axes, env in zip(panels, analysis.envs, strict=True):
        style.frame(axes, env, "", "env steps per second")
        limit(axes, analysis, env)
        for kind in KINDS:
            rates = analysis.best(env, [name for name in analysis.measured(env) if kind_of(name) == kind])
            if rates:
                line(axes, rates, label=kind, **look(kind))
        style.count_x(axes, analysis.sizes)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        style.human_ticks(axes.yaxis)
        axes.tick_params(axis="y", which="minor", left=False, labelleft=False)
    panels[-1].set_xlabel("envs", fontsize=style.SMALL)
    handles, labels = panels[0].get_legend_handles_labels()  # All kinds have a CartPole.
    where = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.24), "ncols": 3}
    style.legend(panels[-1], handles=handles, labels=labels, **where)
    return figure


def libraries(analysis: Analysis, env: str, theme: str) -> Any:
    """Draw a bar for the fastest system of each library, so large that it can be read 400 pixels wide."""
    found = {}
    for library, prefixes in LIBRARIES.items():
        rates = {n: analysis.of(env, n)[NUM_ENVS] for n in analysis.measured(env) if n.startswith(prefixes)}
        if rates:
            found[library] = max(rates.items(), key=lambda item: item[1].median)
    fastest = sorted(found.items(), key=lambda item: -item[1][1].median)[:NUM_BARS]
    ink, faint, reach = THEMES[theme]
    figure = style.new_figure("draw", 3.7)
    figure.set_size_inches(4.6, 3.7)
    axes = figure.subplots()
    for number, (library, (name, rate)) in enumerate(fastest):
        axes.barh(number, rate.median, 0.72, color=look(name)["color"])
        axes.plot([rate.low, rate.high], [number, number], color=reach, linewidth=1.2)
        is_ours = "bold" if library == "mpi_rollout" else "normal"
        words = f" {style.human(round(rate.median, -3))}"
        axes.text(rate.high, number, words, va="center", color=ink, fontsize=style.NORMAL, fontweight=is_ours)
    loops = analysis.of(env, ALL_CORES)[NUM_ENVS].median
    axes.axvline(loops, color=faint, linestyle="--", linewidth=1)
    axes.text(loops, len(fastest) - 0.4, "bare loops \non both cores ", ha="right", color=faint, fontsize=style.SMALL)
    axes.set_yticks(range(len(fastest)), labels=[library for library, _ in fastest], color=ink, fontsize=10)
    axes.set_xlim(0, 1.05 * loops)
    axes.set_xlabel(
        f"env steps per second; {place(analysis.study)}", x=1, ha="right", color=faint, fontsize=style.SMALL
    )
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(axis="x", colors=faint, labelsize=style.SMALL)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(faint)
    axes.invert_yaxis()
    style.human_ticks(axes.xaxis)
    title = f"{NUM_ENVS} times the same {env} on two cores:\nmpi_rollout makes the most env steps"
    figure.suptitle(title, x=0.01, ha="left", color=ink, fontsize=11, fontweight="bold")
    return figure
