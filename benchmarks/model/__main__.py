"""The speed of more ranks than a machine has, from constants that its jobs show: `python benchmarks/model`.

    python benchmarks/model measure --step-s 0.005 --fragment-length 16 --out model.json
    python benchmarks/model measure --latency-s 0.005 --fragment-length 16 --out network.json
    python benchmarks/model show model.json --network network.json

`measure` starts jobs of sleeping envs, which need few cores: in lockstep, in fragments, in shards of simulated nodes,
and first ready.  `show` takes its file, or that of a study of `mpi_rollout scaling weak --fragment-length 1`, prints
constants, curves, and measured points beside them, of which the largest are in no fit, and draws all that.
docs/explanation/scaling-model.md says how to read it.
"""

import argparse
import math
import os
import sys
from dataclasses import asdict, replace

import numpy as np
from fits import READY, NoFit
from model_study import Check, Fitting, make_study
from network import launching
from step_model import LOCKSTEP, Network, Way, ceiling, predict, saturation

from mpi_rollout.commands import style
from mpi_rollout.errors import RolloutError
from mpi_rollout.studies.commands import lengths_list, ranks_list
from mpi_rollout.studies.jobs import JobOptions, claimed, usable_launcher
from mpi_rollout.studies.scaling import Measurement, Runner
from mpi_rollout.studies.statistics import reaches
from mpi_rollout.studies.study_file import StudyFile, gathered, machine_facts, origin, place_and_time, read_study
from mpi_rollout.text import aligned

RANKS = [2**power for power in range(15)]
TOLD = sorted([*RANKS, 6_400])  # Of a large cluster, which the page of the model tells of.
CURVES = ((style.BLUE, "-"), (style.SKY, "--"), (style.DARK, "-."), (style.GREY, ":"))


def measure(options: argparse.Namespace) -> None:
    """Do the study, or what is left of it."""
    envs = options.step_s, options.spread_s, options.bytes, options.envs_per_rank
    network = Network(options.nodes, options.latency_s, options.s_per_byte)
    with claimed(options.out) as folder, launching(network, options.launcher, options.out) as launcher:
        jobs = JobOptions(options.repeats, launcher=launcher)
        # Delays are known, so they are in no fit.
        probe = () if network.latency_s or network.s_per_byte else options.probe
        study = make_study(*envs, probe, options.check, options.fragment_length, jobs)
        now = StudyFile(study, machine_facts(), origin())
        file = Measurement(study, options.out).start(gathered(options.out), now)
        Runner(file, usable_launcher(launcher), folder, options.out).run(study.order())


def show(options: argparse.Namespace) -> None:
    """Print what follows from a file, and draw it beside the file."""
    file = read_study(options.file)
    fitting, lengths = Fitting(file), sorted({*options.fragment_length} - {1})
    ways = [LOCKSTEP, *(Way(length, options.policy_on == "workers") for length in lengths)]
    ways += [replace(way, ranks_per_shard=options.ranks_per_node) for way in ways[-1:]]
    ways += [READY] * (fitting.result.constants.serve_s > 0)
    where = place_and_time(file.origin["host"], file.facts, (), file.origin["started"])
    crowded = ", on more ranks than cores: curves tend to be too low" * fitting.is_crowded
    result = fitting.result
    constants = ", ".join(f"{name} {value:.3g}" for name, value in asdict(result.constants).items() if value)
    print(f"model of {file.study.env_name}, {file.study.size} envs per rank: {where}")
    within = f"fitted to {result.num_points} points within {100 * result.worst_error:.0f} %{crowded}"
    print(f"constants, {within}: {constants}")
    for way in ways:
        print("", f"{_label(way)}, computed:", *_curve(fitting, way), sep="\n")
    print("", "measured beside computed, ms of a step:", *_beside(fitting.checks), sep="\n")
    for check in fitting.checks:
        if check.is_held_out:
            print(f"held out, {check.num_ranks} ranks, {_label(check.way)}: computed {100 * check.error:+.1f} %")
    if options.network:
        network = read_study(options.network)
        print("", f"in no fit: {network.study.jobs.launcher}", *_beside(fitting.beside(network)), sep="\n")
    print("\n".join(_draw(fitting, ways, f"a model of {where}", os.path.splitext(options.file)[0] + "-curves")))


def _label(way: Way) -> str:
    where = "workers" if way.on_workers else "root"
    if way.is_ready:
        return "first ready, rank 0 without envs"
    if way.ranks_per_shard:
        return f"shards of {way.ranks_per_shard} ranks, fragments of {way.fragment_length}"
    return "lockstep" if way == LOCKSTEP else f"fragments of {way.fragment_length}, actions from the {where}"


def _curve(fitting: Fitting, way: Way) -> list[str]:
    constants, work = fitting.result.constants, fitting.work
    cells = [("ranks", "efficiency", "env steps/s", "ms of a step: envs", "waiting", "exchange", "policy", "file")]
    for num_ranks in TOLD[way.is_ready :]:
        step = predict(constants, work, num_ranks, way)
        rate = way.num_stepping(num_ranks) * work.envs_per_rank / step.seconds
        parts = [f"{1e3 * part:.3f}" for part in asdict(step).values()]
        cells.append((str(num_ranks), f"{step.efficiency:.3f}", f"{rate:,.0f}", *parts))
    others = [saturation(refit, work, way) or math.inf for refit in fitting.refits]
    span = f" ({min(others):,} to {max(others):,} without any one number of ranks)" if others else ""
    half, most = saturation(constants, work, way), ceiling(constants, work, way)
    end = "exchange, policy and file never take as long as the envs"
    if half is not None:
        end = f"from {half:,} ranks on{span} exchange, policy and file take as long as the envs"
    return [*aligned(cells), f"{end}; no number of ranks makes more than {most:,.0f} env steps/s"]


def _beside(checks: list[Check]) -> list[str]:
    cells = [("way", "ranks", "jobs", "measured", "computed", "error", "efficiency")]
    for check in checks:
        ranks = f"{check.num_ranks}{'*' * check.oversubscribed}"
        shown = check.measured.scaled(1e3).shown(".2f"), f"{1e3 * check.computed_s:.2f}", f"{100 * check.error:+.1f} %"
        way, efficiency = _label(check.way).partition(",")[0], f"{check.efficiency.median:.3f}"
        cells.append((way, ranks, str(check.num_jobs), *shown, efficiency))
    return [*aligned(cells), "medians of jobs and their intervals; * more ranks than cores"]


def _draw(fitting: Fitting, ways: list[Way], subject: str, stem: str) -> list[str]:
    """Draw lines for what is computed, bands for what hangs on one number of ranks, markers for what is measured."""
    figure = style.new_figure("show", 4.6)
    efficiency, rate = figure.subplots(1, 2)
    style.frame(efficiency, "Efficiency: the envs' share of the time", "ranks")
    style.frame(rate, "Env steps per second", "ranks")
    size = fitting.work.envs_per_rank
    for way, (color, line) in zip(ways, CURVES, strict=False):
        ranks = RANKS[way.is_ready :]
        steps = [predict(fitting.result.constants, fitting.work, n, way) for n in ranks]
        look: style.Look = {"color": color, "linestyle": line}
        label = f"{_label(way).partition(',')[0]} (computed)"
        efficiency.plot(ranks, [step.efficiency for step in steps], label=label, **look)
        rates = [way.num_stepping(n) * size / step.seconds for n, step in zip(ranks, steps, strict=True)]
        rate.plot(ranks, rates, **look)
        refits = [[predict(refit, fitting.work, n, way).efficiency for n in ranks] for refit in fitting.refits]
        if refits:
            low, high = np.min(refits, axis=0), np.max(refits, axis=0)
            efficiency.fill_between(ranks, low, high, color=color, alpha=0.2, linewidth=0)
        checks = [check for check in fitting.checks if check.way.kind == way.kind]
        for is_open in (False, True):
            some = [check for check in checks if check.oversubscribed == is_open]
            marks: style.Look = {"fmt": "o", "color": color, "markerfacecolor": "w" if is_open else color, "capsize": 3}
            marks["label"] = "measured" + ", more ranks than cores" * is_open if some and way == LOCKSTEP else ""
            ranks, spans = [check.num_ranks for check in some], [check.efficiency for check in some]
            medians = [span.median for span in spans]
            efficiency.errorbar(ranks, medians, reaches(spans), **marks)
            if some and is_open:
                computed = [median / (1 + check.error) for median, check in zip(medians, some, strict=True)]
                label = "computed, on shared cores" * (way == LOCKSTEP)
                efficiency.plot(ranks, computed, "x", color=color, label=label)
    efficiency.set_ylim(0, 1.05)
    rate.set_yscale("log")
    style.human_ticks(rate.yaxis)
    for axes in (efficiency, rate):
        style.count_x(axes, RANKS, most=6)
    handles, labels = efficiency.get_legend_handles_labels()
    style.legend(rate, handles=handles, labels=labels, loc="upper left")
    rate.set_ylim(top=30 * rate.get_ylim()[1])  # Room for it.
    halves = [(_label(way).partition(",")[0], saturation(fitting.result.constants, fitting.work, way)) for way in ways]
    ends = ", ".join(f"{half:,} ranks in {label}" for label, half in halves if half and half <= RANKS[-1])
    title = f"Envs have half of the time up to {ends}" if ends else "Envs always have more than half of the time"
    stored = "only shards are" if fitting.result.constants.commit_s else "nothing is"
    fine = f"{stored} stored, all nodes are alike; pale: fitted without any one number of ranks"
    style.head(figure, title, [subject, fine])
    return style.save_study(figure, stem)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    programs = parser.add_subparsers(required=True)
    add = (jobs := programs.add_parser("measure")).add_argument
    add("--step-s", type=float, default=0.005)
    add("--spread-s", type=float, default=0.0)
    add("--bytes", type=int, default=64)
    add("--envs-per-rank", type=int, default=4)
    add("--probe", type=ranks_list, default="1,3,4,6,8,16,32")
    add("--check", type=ranks_list, default="1,4,8,16,32,64,128")
    add("--repeats", type=int, default=3)
    add("--launcher", default="")
    add("--nodes", type=int, default=4)
    add("--latency-s", type=float, default=0.0)
    add("--s-per-byte", type=float, default=0.0)
    add("--out", required=True)
    jobs.set_defaults(program=measure)
    shown = programs.add_parser("show")
    shown.add_argument("file")
    shown.add_argument("--policy-on", choices=("root", "workers"), default="workers")
    shown.add_argument("--ranks-per-node", type=int, default=128)
    shown.add_argument("--network", metavar="FILE", help="a study with --latency-s, to compare with what is computed")
    shown.set_defaults(program=show)
    for each in (jobs, shown):
        each.add_argument("--fragment-length", type=lambda text: [*map(int, lengths_list(text))], default="32")
    options = parser.parse_args()
    try:
        options.program(options)
    except (RolloutError, NoFit) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
