"""`inspect`: what is in a file, as a table, as JSON, as a picture."""

import json
import math
import statistics
from typing import Any

from mpi_rollout.core.spaces import wrong_values_text
from mpi_rollout.errors import counted, printable
from mpi_rollout.storage.child import in_child

PATIENCE_S = 20.0  # A user waits, and looks at little.


def inspect(path: str, as_json: bool = False, plot: str | None = None) -> list[str]:
    """Return the lines to print about a file, complete or not; draw `plot` if it is given.

    Raises
    ------
    DataError
        It is not a file of this program, or it is damaged.
    """
    found = in_child("mpi_rollout.storage.reader:summary", path, patience_s=PATIENCE_S)
    if plot is not None:
        plot = in_child("mpi_rollout.commands.plots:plot_run", path, plot)
    if as_json:
        return [json.dumps(finite(found), allow_nan=False)]
    lines = _head(found) + _trajectories(found) + ([f"figure        {plot}"] if plot else [])
    return [printable(line) for line in lines]


def finite(value: Any) -> Any:
    """The same data with None for each float that JSON has no word for."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _head(found: dict[str, Any]) -> list[str]:
    config, throughput = found["config"], found["throughput"]
    hosts = sorted(set(found["hosts"]))
    state = "not complete; what is committed can be read"
    if found["complete"]:
        state = f"complete, {found['finished']}"
    elif found["recovered"]:
        state = f"what a run that did not end had committed, recovered {found['recovered']}"
    lines = [
        f"{found['file']}: {found['env']}, {found['nbytes'] / 1e6:.1f} MB, {state}",
        f"run           {counted(config['num_envs'], 'env')}, seed {config['seed']}, policy {config['policy']}, "
        f"{config['vectorization_mode']}",
        f"machine       {counted(found['num_ranks'], 'rank')} on {', '.join(hosts)}, {found['mpi_library']}",
        "versions      " + ", ".join(f"{name} {version}" for name, version in found["versions"].items()),
    ]
    if throughput["seconds"]:
        rate = f"{counted(throughput['env_steps'], 'env step')} in {throughput['seconds']:.2f} s"
        rate += f", {throughput['env_steps_per_s']:,.0f} per s"
        ratios = throughput["ratio_to_limit"]
        of_limit = f", {statistics.median(ratios):.3f} of the limit" if ratios else ""
        lines.append(f"throughput    {rate}{of_limit}")
    return lines


def _trajectories(found: dict[str, Any]) -> list[str]:
    if "datasets" not in found:
        return ["trajectories  none stored (--no-trajectories)"]
    episodes = found["episodes"]
    lines = [
        f"steps         {found['num_steps']:,} of each env; {found['num_transitions']:,} transitions "
        f"in {counted(episodes['ended'] + episodes['under_way'], 'episode')}",
        f"episodes      {episodes['ended']:,} ended ({episodes['terminated']:,} terminated, "
        f"{episodes['truncated']:,} truncated), {episodes['under_way']:,} under way at the end",
    ]
    lines += [f"  {name:<12}{_spread(episodes[name])}" for name in ("return", "length")]
    if found["wrong_values"]:
        lines.append(f"wrong values  {wrong_values_text(found['wrong_values'])}")
    if faults := found["faults"]:
        last = faults[-1]
        lines.append(f"faults        {len(faults):,}, the last in step {last['step']:,}: {last['message']}")
    width = max(map(len, found["datasets"]))
    lines.append("/trajectories")
    for name, each in found["datasets"].items():
        lines.append(f"  {name:<{width}}  {each['dtype']:<8} {tuple(each['shape'])}")
    return lines


def _spread(spread: dict[str, float | None] | None) -> str:
    """The figures of all episodes that have ended, in words."""
    if spread is None:
        return "no episode has ended"
    num_left_out = spread["not_finite"]
    figures = [f"{name} {value:,.6g}" for name, value in spread.items() if name != "not_finite" and value is not None]
    if not num_left_out:
        return ", ".join(figures)
    if not figures:
        return "not finite in any episode"
    return f"{', '.join(figures)}; of {num_left_out:,} episodes not finite, and left out"
