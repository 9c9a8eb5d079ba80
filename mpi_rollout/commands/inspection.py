"""`inspect`, `list`, `verify` and `recover`: the commands that look at the files of runs.

A file is read in a child process; here its answers become lines.  How far a run is, the `status.json` beside its output
says.
"""

import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Any

from mpi_rollout.core.reproducibility import Reproducibility
from mpi_rollout.core.spaces import wrong_values_text
from mpi_rollout.errors import AlreadyComplete, DataError, RolloutError, StorageError, UsageError, counted, printable
from mpi_rollout.storage.child import in_child
from mpi_rollout.storage.ownership import is_locked, removed, temporary_path, why_no_file
from mpi_rollout.storage.status import read_status

PATIENCE_S = 20.0  # `inspect` reads little, and its user waits.
SUFFIX = ".part"
STATUS_ENDING = ".status.json"
SILENT_S = 60.0  # A run tells how far it is twice a second, between two steps.
PHASES = {  # Of `clock.PHASES`, in words; measuring the limit is not the run.
    "step": "stepping envs",
    "gather": "gathering the ranks' data",
    "wait": "waiting for orders",
    "send": "sending orders",
    "policy": "policy",
    "write": "waiting for the disk",
}
LEAST_SHARE = 0.001
COLUMNS = ("run", "state", "steps", "starts", "updated", "message")
Summary = Mapping[str, Any]  # What a child says of a file.


def inspect(path: str, as_json: bool = False, plot: str | None = None) -> list[str]:
    """Return the lines to print about a file, complete or not; draw it into the file `plot` if that is given."""
    summary = in_child("mpi_rollout.commands.run_summary:summary", path, patience_s=PATIENCE_S)
    if plot is not None:
        plot = in_child("mpi_rollout.commands.run_summary:plot_run", path, plot)
    if as_json:
        figure = {"figure": plot} if plot else {}
        return [json.dumps(finite(summary | figure), allow_nan=False)]
    lines = _head(summary) + _trajectories(summary) + ([f"figure        {plot}"] if plot else [])
    return [printable(line) for line in lines]


def figures_of(files: Sequence[str], folder: str | None) -> dict[str, str]:
    """Return where the picture of each file goes: beside it, or into a folder.

    Raises
    ------
    UsageError
        Two of them would be one.
    """
    figures: dict[str, str] = {}
    for file in files:
        stem = os.path.basename(file).removesuffix(SUFFIX).removesuffix(".h5")
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


def _head(summary: Summary) -> list[str]:
    config, throughput = summary["config"], summary["throughput"]
    hosts = sorted(set(summary["hosts"]))
    state = "not complete; what is committed can be read"
    if summary["complete"]:
        state = f"complete, {summary['finished']}"
    elif summary["recovered"]:
        state = f"what a run that did not end had committed, recovered {summary['recovered']}"
    promised = Reproducibility(summary["reproducibility"])
    origin = [
        f"run           {counted(config['num_envs'], 'env')}, seed {config['seed']}, policy {_policy(summary)}, "
        f"{config['vectorization_mode']}" + f", {promised.words}" * (config["vectorization_mode"] != "sync")
    ]
    if summary["limits"]:
        on_ranks = "" if config["policy"] == "trainer" else f", policy on the ranks {config['policy']}"
        origin = [
            f"recording     of a trainer: {counted(config['num_envs'], 'env')}, autoreset mode "
            f"{summary['autoreset_mode']}, {config['vectorization_mode']}{on_ranks}",
            f"its limits    {summary['limits']}",
        ]
    lines = [
        f"{summary['file']}: {summary['env']}, {summary['nbytes'] / 1e6:.1f} MB, {state}",
        *origin,
        f"machine       {counted(summary['num_ranks'], 'rank')} on {', '.join(hosts)}, {summary['mpi_library']}",
        "versions      " + ", ".join(f"{name} {version}" for name, version in summary["versions"].items()),
    ]
    if throughput["seconds"]:
        rate = f"{counted(throughput['env_steps'], 'env step')} in {throughput['seconds']:.2f} s"
        rate += f", {throughput['env_steps_per_s']:,.0f} per s"
        ratios = throughput["ratio_to_limit"]
        of_limit = f", {statistics.median(ratios):.3f} of the limit" if ratios else ""
        lines.append(f"throughput    {rate}{of_limit}")
    return lines + _ranks(summary["ranks"])


def _ranks(ranks: Sequence[Summary]) -> list[str]:
    """Return lines about where the ranks were, if there were several hosts, and where their time went."""
    seconds = {phase: sum(rank["seconds"][phase] for rank in ranks) for phase in PHASES}
    if not math.isfinite(total := sum(seconds.values())) or total <= 0:
        return []
    parts = [f"{PHASES[phase]} {part / total:.1%}" for phase, part in seconds.items() if part / total >= LEAST_SHARE]
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
    lines = [
        f"steps         {summary['num_steps']:,} of each env; {summary['num_transitions']:,} transitions "
        f"in {counted(episodes['ended'] + episodes['under_way'], 'episode')}",
        f"episodes      {episodes['ended']:,} ended ({episodes['terminated']:,} terminated, "
        f"{episodes['truncated']:,} truncated), {episodes['under_way']:,} under way at the end",
    ]
    lines += [f"  {name:<12}{_spread(episodes[name])}" for name in ("return", "length")]
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


def verify(path: str, num_replayed: int = 0, replay_seed: int = 0, as_json: bool = False, **consent: Any) -> list[str]:
    """Check a file, and replay some of its episodes; return the lines to print if nothing is wrong.

    DataError if something is wrong, UsageError if its episodes cannot be replayed.  `consent` has the fields of
    `Consent`: which envs may be made to replay episodes.
    """
    start = time.perf_counter()
    report = in_child("mpi_rollout.storage.verification:verify", path)
    report["seconds"] = time.perf_counter() - start
    if num_replayed > 0:
        from mpi_rollout.commands.replay import Consent, replay  # Only this needs envs.

        report |= replay(path, num_replayed, replay_seed, Consent(**consent))
    return [json.dumps(report)] if as_json else _report_lines(report)


def recover(path: str, new_path: str | None, num_steps: int | None = None, as_json: bool = False) -> list[str]:
    """Make a complete file of what a run has committed; return the lines to print about it.

    DataError if there is nothing to recover or it is damaged; StorageError if the new file exists or cannot be written.
    """
    new_path = _checked_new_path(path, new_path)
    temporary = temporary_path(new_path, "recovering")
    start = time.perf_counter()
    with removed(temporary):
        report = in_child("mpi_rollout.storage.recovery:recover", path, new_path, temporary, num_steps)
    report["seconds"] = time.perf_counter() - start
    return [json.dumps(report)] if as_json else _report_lines(report)


def _checked_new_path(path: str, new_path: str | None) -> str:
    """Return the name of the recovered file: it is free, and its folder is there."""
    if why := why_no_file(path):
        raise DataError(why)
    if new_path is None:
        if not path.endswith(SUFFIX):
            raise _without_suffix(path)
        new_path = path.removesuffix(SUFFIX)
    if os.path.lexists(new_path):
        raise StorageError(f"{new_path} exists; move it away or give another name: recover {quote(path)} DEST")
    folder = os.path.dirname(os.path.abspath(new_path))
    if not os.path.isdir(folder):
        raise StorageError(f"cannot write {new_path}: there is no folder {folder}; mkdir -p {quote(folder)}")
    return new_path


def _without_suffix(path: str) -> RolloutError:
    """Return why a file that does not end with .part cannot be recovered without a second name."""
    if in_child("mpi_rollout.storage.reader:identity", path)["complete"]:
        return AlreadyComplete(f"{path} is complete already; there is nothing to recover")
    return UsageError(f"recover: {path} does not end with {SUFFIX}; give the new file's name, too")


def _report_lines(report: Summary) -> list[str]:
    state = "not complete; what is committed is whole"
    if report["complete"]:
        state = "complete and whole"
    elif report["recovered"]:
        state = "recovered and whole"
    if report["wrong_values"]:
        state += f", but {wrong_values_text(report['wrong_values'])}"
    read = f"{report['nbytes'] / 1e6:,.1f} MB, read in {report['seconds']:.1f} s"
    lines = [
        f"{report['file']}: {state}",
        f"checksums     {report['chunks']:,} chunks, {read}",
        f"steps         {report['num_steps']:,} of each env, as long as every dataset",
        f"episodes      {report['episodes']:,}, as they follow from rewards, ends and seeds",
    ]
    if report["limits"]:
        lines.append(printable(f"recording     {report['limits']}"))
    if "replayed" in report:
        replayed = f"{counted(report['replayed'], 'episode')} of {counted(report['replayed_steps'], 'step')}"
        lines.append(f"replay        {replayed} from seed and actions: every byte the same")
    return lines


def list_runs(folders: Sequence[str], as_json: bool = False) -> list[str]:
    """Return the lines to print about the runs of some folders."""
    runs = [run for folder in folders for run in runs_of(folder)]
    if as_json:
        return [json.dumps(runs)]
    return table(runs) if runs else [f"no runs in {', '.join(folders)}: there is no *{STATUS_ENDING}"]


def runs_of(folder: str) -> list[dict[str, object]]:
    """Return all runs whose output is in a folder, in alphabetical order; UsageError if there is no folder.

    For each run there is what `status.json` says, and the path of its output as `run`.  The state is "killed" where
    `status.json` says "running" but no process writes the output.
    """
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder}; give the folder of --out")
    outs = [output_of(str(path)) for path in sorted(Path(folder).glob(f"*{STATUS_ENDING}"))]
    statuses = [(out, read_status(out)) for out in outs]
    return [{"run": out} | status | {"state": state_of(out, status)} for out, status in statuses if status]


def output_of(status: str) -> str:
    """Return the output that a status belongs to: its name ends in .h5, unless only a file of another name is there."""
    name = status.removesuffix(STATUS_ENDING)
    candidates = (f"{name}.h5", name)
    return next((out for out in candidates if os.path.lexists(out) or os.path.lexists(f"{out}.part")), candidates[0])


def state_of(out: str, status: Mapping[str, object]) -> object:
    """Return the state that a status says; if it says "running", look whether that is still so."""
    state = status.get("state")
    if state != "running" or is_locked(f"{out}.part"):
        return state
    # Some file systems have no locks, and some do not show a host the locks of another one.
    if status.get("host") == os.uname().nodename:
        return state if Path(f"/proc/{status.get('pid')}").exists() else "killed"
    return state if seconds_since(status.get("updated")) < SILENT_S else "killed"


def seconds_since(updated: object) -> float:
    """Return the seconds since a time that a status has; infinity if it is no time."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(str(updated))).total_seconds()
    except (TypeError, ValueError):
        return float("inf")


def table(runs: Sequence[Mapping[str, object]]) -> list[str]:
    """Return lines for people."""
    rows = [COLUMNS, *map(row, runs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, words, widths)).rstrip() for words in rows]


def row(run: Mapping[str, object]) -> tuple[str, ...]:
    """Return the words of one run."""
    num_steps, total = run.get("num_steps"), run.get("of_num_steps")
    steps = f"{num_steps} of {total}"
    if isinstance(num_steps, int) and isinstance(total, int) and total > 0:
        steps = f"{num_steps:,} of {total:,} ({100 * num_steps // total}%)"
    has_ended_badly = run["state"] in ("interrupted", "failed")
    message = str(run.get("message", "")).partition("\n")[0] if has_ended_badly else ""
    words = (str(run["run"]).removesuffix(".h5"), run["state"], steps, run.get("starts"), run.get("updated"), message)
    return tuple(printable("" if word is None else str(word)) for word in words)
