"""What `inspect` shows of a run: what is in its file.

All of it runs in a child process, see `storage.sandbox`.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict

import numpy as np

from mpi_rollout.process.clock import PHASES
from mpi_rollout.storage.checked_file import CheckedFile, checked
from mpi_rollout.storage.schema import LIMIT, RETURN_OF, agents_in, is_manifest, is_recording
from mpi_rollout.storage.set_end import wrong_values_of
from mpi_rollout.storage.shard_files import shard_path, size_of
from mpi_rollout.storage.stored_run import Part, StoredRun
from mpi_rollout.storage.untrusted import Tell, count, number, parsed, steadily, text

FIGURES: dict[str, Callable[[np.ndarray], float]] = {"min": np.min, "median": np.median, "mean": np.mean, "max": np.max}


def summary(tell: Tell, path: str) -> dict[str, object]:
    """Summarize a file in values that JSON can hold."""
    return steadily(path, lambda: _summary(tell, path))


def _summary(tell: Tell, path: str) -> dict[str, object]:
    with checked(path, tell) as checks, shards_of(checks, path) as shards:
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
            "seed_check": text(attributes, "seed_check").strip() if "seed_check" in attributes else "",
            "limits": text(attributes, "limits") if is_recording(attributes) else "",
            "autoreset_mode": text(attributes, "autoreset_mode"),
            "num_ranks": len(ranks) or count(attributes, "num_ranks"),
            "hosts": [rank["host"] for rank in ranks] or parsed(attributes, "hosts", list),
            "mpi_library": text(attributes, "mpi_library"),
            "versions": parsed(attributes, "versions", dict),
            "started": text(attributes, "started"),
            "finished": finished,
            "advice": text(attributes, "advice").strip() if "advice" in attributes else "",
            "starts": _starts(checks, shards),
            "throughput": _throughput(checks),  # Of the last start that came to its end.
            "ranks": ranks,
            "faults": [
                {"env_index": int(env), "step": int(step), "message": message.decode(errors="replace")}
                for env, step, message in faults[["env_index", "step", "message"]]
            ],
        }
        if shards:
            facts["shards"] = [_shard(shards, part) for part in shards.parts]
        if checks.has_trajectories:
            facts |= _trajectories(checks, shards)
        return facts


def _starts(checks: CheckedFile, shards: StoredRun | None) -> int:
    """Return how many starts have written the run; the manifest of a set is told when the set is complete."""
    if shards is None or shards.is_complete:
        return checks.starts
    return max(part.file.starts for part in shards.parts)


@contextmanager
def shards_of(checks: CheckedFile, path: str) -> Iterator[StoredRun | None]:
    """Open the shards of a manifest, and nothing where a file has columns of its own."""
    if not is_manifest(checks.root):
        yield None
        return
    with closing(StoredRun(path)) as stored:
        yield stored


def _shard(run: StoredRun, part: Part) -> dict[str, object]:
    """Describe a shard; that of a complete set is not opened."""
    if run.is_complete:
        file, num_steps = shard_path(run.path, part.envs), run.num_steps
    else:
        file, num_steps = part.file.path, part.file.num_committed
    return {"file": file, "num_envs": len(part.envs), "num_steps": num_steps, "nbytes": size_of(file)}


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
        num_steps, episodes = shards.num_steps, shards.episodes
        wrong = wrong if checks.is_complete else wrong_values_of(shards)
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
