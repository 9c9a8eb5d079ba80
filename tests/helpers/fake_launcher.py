"""A launcher for tests of studies: starts nothing, prints what a run of known figures would print.

Started as `python fake_launcher.py -n R PYTHON -m mpi_rollout run --num-envs=N ...`.  The environment says what
goes wrong: FAIL, HANG, ZOMBIE, GARBLE and REFUSE are numbers of ranks; LOG is a file that gets a line for each start;
LIBRARY is the MPI library that runs tell of.
"""

import json
import math
import os
import subprocess
import sys
import time
from typing import Any

PHASES = ("policy", "send", "step", "wait", "gather", "write", "other")
BARE_PER_S = 30_000.0
ROOT_S, ALPHA_S, BETA_S = 1e-5, 4e-6, 1e-10


def outcome(
    num_ranks: int, num_envs: int, num_steps: int, slower: float = 1.0, num_cores: int = 64, **more: Any
) -> dict[str, Any]:
    """What a run prints whose envs take as long as in the base case, and in which the rest is known.

    The exchange takes ROOT_S + ALPHA_S * ceil(log2 num_ranks) + BETA_S * bytes for each step; the slowest rank 2 %
    more than the mean, where there is more than one; the policy 1 % of that mean.  All of it times `slower`.
    """
    env_steps = num_envs * num_steps
    mean_s = slower * env_steps / num_ranks / BARE_PER_S
    slowest_s = mean_s * (1.02 if num_ranks > 1 else 1.0)
    slot_bytes, order_bytes = 40 * num_envs // num_ranks, 8 * num_envs + 16
    nbytes = order_bytes + (num_ranks - 1) * slot_bytes if num_ranks > 1 else 0
    exchange_s = slower * num_steps * (ROOT_S + ALPHA_S * math.ceil(math.log2(num_ranks)) + BETA_S * nbytes)
    parts = {"envs": mean_s, "imbalance": slowest_s - mean_s, "exchange": exchange_s, "policy": 0.01 * mean_s}
    seconds = sum(parts.values())
    others_s = (num_ranks * mean_s - slowest_s) / max(1, num_ranks - 1)
    return {
        "file": "run.h5", "num_ranks": num_ranks, "num_envs": num_envs, "num_steps": num_steps, "complete": True,
        "env_steps": env_steps, "seconds": seconds, "in_lockstep": True, "mpi_library": "Some MPI v1",
        "losses": {name: part / seconds for name, part in parts.items()} | {"write": 0.0},
        "step_s": [slowest_s] + [others_s] * (num_ranks - 1),
        "ranks": [
            {"rank": rank, "host": "node7", "cores": list(range(num_cores)), "physical_cores": list(range(num_cores)),
             "num_envs": num_envs // num_ranks, "cpu_share": 0.99, "seconds": dict.fromkeys(PHASES, 0.25)}
            for rank in range(num_ranks)
        ],
        "limit": [(env_steps / seconds, num_ranks * BARE_PER_S / slower)] * 5,
        "order_bytes": order_bytes, "slot_bytes": slot_bytes,
    } | more  # fmt: skip


def main() -> None:
    num_ranks = sys.argv[2]
    options = dict(each.removeprefix("--").partition("=")[::2] for each in sys.argv[7:])
    if "LOG" in os.environ:
        with open(os.environ["LOG"], "a") as log:
            log.write(f"{num_ranks} {options['out']}\n")
    trouble = {name for name in ("FAIL", "HANG", "ZOMBIE", "GARBLE", "REFUSE") if os.environ.get(name) == num_ranks}
    if "FAIL" in trouble:
        sys.stderr.write("mpi_rollout: rank 1 (node7): the env has lost its licence\nPrimary job terminated normally\n")
        sys.exit(70)
    if "REFUSE" in trouble:
        sys.stderr.write("mpi_rollout: env Acrobat-v1: no such env\n")
        sys.exit(64)
    if trouble & {"HANG", "ZOMBIE"}:
        if "ZOMBIE" in trouble:  # A rank that outlives its launcher.
            subprocess.Popen(["sleep", "1000"])
        sys.stderr.write("mpi_rollout: rank 0: still going\n")
        sys.stderr.flush()
        time.sleep(1000)
    found = outcome(int(num_ranks), int(options.get("num-envs", 64)), int(options.get("num-steps", 1000)))
    found["mpi_library"] = os.environ.get("LIBRARY", found["mpi_library"])
    print("no JSON" if "GARBLE" in trouble else json.dumps(found))


if __name__ == "__main__":
    main()
