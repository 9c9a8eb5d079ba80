"""`inspect`: what is in a file, in words.

The file is read in a child process; here its answers become lines.
"""

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mpi_rollout.core.seeding import Reproducibility
from mpi_rollout.core.spaces import wrong_values_text
from mpi_rollout.envs.repeating import not_repeated
from mpi_rollout.errors import UsageError
from mpi_rollout.process.clock import WORDS
from mpi_rollout.storage.ownership import check_place
from mpi_rollout.storage.sandbox import in_sandbox
from mpi_rollout.text import counted, printable

PATIENCE_S = 20.0  # `inspect` reads little, and its user waits.
LEAST_SHARE = 0.001
Summary = Mapping[str, Any]  # What a child says of a file.


def inspect(path: str, as_json: bool = False, plot: str | None = None) -> list[str]:
    """Return the lines to print about a file, complete or not; draw it into the file `plot` if that is given."""
    if plot:
        check_place("plot", plot, way_out="; --plot --out FOLDER draws into another folder")
    summary = in_sandbox("mpi_rollout.commands.run_summary:summary", path, patience_s=PATIENCE_S)
    if plot is not None:
        plot = in_sandbox("mpi_rollout.commands.run_picture:plot_run", path, plot)
    if as_json:
        figure = {"figure": plot} if plot else {}
        return [json.dumps(finite(summary | figure), allow_nan=False)]
    lines = _head(summary) + _trajectories(summary) + ([f"figure        {plot}"] if plot else [])
    if plot and "datasets" in summary and summary["episodes"]["ended"] <= summary["config"]["num_envs"]:
        lines.append("              it shows little: one ended episode of each env at most; more --num-steps give more")
    return [printable(line) for line in lines]


def figures_of(files: Sequence[str], folder: str | None) -> dict[str, str]:
    """Return where the picture of each file goes: beside it, or into a folder.  UsageError if two would be one."""
    figures: dict[str, str] = {}
    for file in files:
        stem = os.path.basename(file).removesuffix(".part").removesuffix(".h5")
        figure = os.path.join(os.path.dirname(file) if folder is None else folder, f"{stem}.png")
        if figure in figures.values():
            raise UsageError(f"--plot would draw two files as {figure}; draw one after the other, with other --out")
        figures[file] = figure
    return figures


def finite(value: object) -> object:
    """Return the same data with None for each float that JSON has no word for."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _origin(summary: Summary) -> list[str]:
    """Return lines about who took the steps of which envs: a run, or a trainer."""
    config = summary["config"]
    first, num_envs = config["first_env"], config["num_envs"]
    if summary["limits"]:
        on_ranks = "" if config["policy"] == "trainer" else f", policy on the ranks {config['policy']}"
        return [
            f"recording     of a trainer: {counted(num_envs, 'env')}, autoreset mode {summary['autoreset_mode']}, "
            f"{config['vectorization_mode']}{on_ranks}",
            f"its limits    {summary['limits']}",
        ]
    promised, seen = Reproducibility(summary["reproducibility"]), not_repeated(summary["seed_check"])
    is_said = config["vectorization_mode"] != "sync" or promised is not Reproducibility.EPISODE
    part = f" ({first} to {first + num_envs - 1} of a larger run)" * bool(first)
    return [
        f"run           {counted(num_envs, 'env')}{part}, seed {config['seed']}, policy {_policy(summary)}, "
        f"{config['vectorization_mode']}" + f", {promised.words}" * is_said,
        *([f"its seeds     {seen}"] if seen else []),
    ]


def _head(summary: Summary) -> list[str]:
    config, throughput = summary["config"], summary["throughput"]
    hosts = sorted(set(summary["hosts"]))
    state = "not complete; what is committed can be read"
    if summary["complete"]:
        state = f"complete, {summary['finished']}"
    elif summary["recovered"]:
        state = f"what a run that did not end had committed, recovered {summary['recovered']}"
    ranks = counted(summary["num_ranks"], "rank") + " (the first of each group)" * (config["ranks_per_env"] > 1)
    lines = [
        f"{summary['file']}: {summary['env']}, {summary['nbytes'] / 1e6:.1f} MB, {state}",
        *_origin(summary),
        f"machine       {ranks} on {', '.join(hosts)}, {summary['mpi_library']}",
        "versions      " + ", ".join(f"{name} {version}" for name, version in summary["versions"].items()),
    ]
    if throughput["seconds"]:
        rate = f"{counted(throughput['env_steps'], 'env step')} in {throughput['seconds']:.2f} s"
        rate += f", {throughput['env_steps_per_s']:,.0f} per s"
        ratios = throughput["ratio_to_limit"]
        of_limit = f", {statistics.median(ratios):.3f} of the limit" if ratios else ""
        of_start = f" (of one start alone; the run had {summary['starts']})" * (summary["starts"] > 1)
        lines.append(f"throughput    {rate}{of_limit}{of_start}")
    if shards := summary.get("shards"):
        envs, steps = ([shard[name] for shard in shards] for name in ("num_envs", "num_steps"))
        lines.append(
            f"shards        {_range(envs)} envs each in {counted(len(shards), 'file')} with {_range(steps)} steps, in "
            f"{os.path.dirname(shards[0]['file'])}"
        )
    advice = [f"advice        {summary['advice']}"] if summary["advice"] else []
    return lines + _ranks(summary["ranks"]) + advice


def _range(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _ranks(ranks: Sequence[Summary]) -> list[str]:
    """Return lines about where the ranks were, if there were several hosts, and where their time went."""
    seconds = {phase: sum(rank["seconds"][phase] for rank in ranks) for phase in WORDS}
    if not math.isfinite(total := sum(seconds.values())) or total <= 0:
        return []
    parts = [f"{WORDS[phase]} {part / total:.1%}" for phase, part in seconds.items() if part / total >= LEAST_SHARE]
    lines = [f"time          of all ranks: {', '.join(parts)}"]
    hosts = sorted({rank["host"] for rank in ranks})
    for host in hosts if len(hosts) > 1 else ():
        here = [rank for rank in ranks if rank["host"] == host]
        num_envs = sum(rank["num_envs"] for rank in here)
        lines.append(f"  {host:<12}{counted(len(here), 'rank')}, {counted(num_envs, 'env')}")
    return lines


def _policy(summary: Summary) -> str:
    config, sha256 = summary["config"], summary["policy_sha256"]
    if not sha256:
        return str(config["policy"])
    return f"{config['policy']} ({config['policy_mode']}, SHA-256 {sha256[:16]}...)"


def _trajectories(summary: Summary) -> list[str]:
    if "datasets" not in summary:
        return ["trajectories  none stored (--no-trajectories)"]
    episodes = summary["episodes"]
    num_under_way = episodes["under_way"]  # None in a file whose run may go on.
    under_way = "others may be under way" if num_under_way is None else f"{num_under_way:,} under way at the end"
    ended = counted(episodes["ended"] + (num_under_way or 0), "episode")
    if num_under_way is None:
        ended = f"{counted(episodes['ended'], 'ended episode')}, and others in episodes under way"
    lines = [
        f"steps         {summary['num_steps']:,} of each env; {summary['num_transitions']:,} transitions in {ended}",
        f"episodes      {episodes['ended']:,} ended ({episodes['terminated']:,} terminated, "
        f"{episodes['truncated']:,} truncated), {under_way}; "
        "in Python data.episodes and data.unfinished",
    ]
    figures = {name: episodes[name] for name in ("return", "length")}
    figures |= {f"return of {agent}": figure["return"] for agent, figure in summary["agents"].items()}
    width = max(12, *(len(name) + 2 for name in figures))
    lines += [f"  {name:<{width}}{_spread(figure)}" for name, figure in figures.items()]
    if summary["wrong_values"]:
        lines.append(f"wrong values  {wrong_values_text(summary['wrong_values'])}")
    if faults := summary["faults"]:
        last = faults[-1]
        lines.append(f"faults        {len(faults):,}, the last in step {last['step']:,}: {last['message']}")
    width = max(map(len, summary["datasets"]))
    lines.append("/trajectories")
    for name, dataset in summary["datasets"].items():
        lines.append(f"  {name:<{width}}  {dataset['dtype']:<8} {tuple(dataset['shape'])}")
    return lines


def _spread(spread: Mapping[str, float | None] | None) -> str:
    """Return words for the figures of all episodes that have ended."""
    if spread is None:
        return "no episode has ended"
    num_left_out = spread["not_finite"]
    figures = [f"{name} {value:,.6g}" for name, value in spread.items() if name != "not_finite" and value is not None]
    if not num_left_out:
        return ", ".join(figures)
    if not figures:
        return "not finite in any episode"
    return f"{', '.join(figures)}; of {num_left_out:,} episodes not finite, and left out"
