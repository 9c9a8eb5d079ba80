"""A launcher for tests of `scaling sim`: starts nothing, prints what jobs of sleeping envs with known constants would.

As `launcher`, whose FAIL, HANG and LOG it knows.  SHARING is what a rank too many for the cores costs a step.
"""

import json
import math
import os
import sys
import time

import numpy as np
from fake_launcher import outcome
from gymnasium.spaces import Box

from mpi_rollout.core.layout import SlotLayout

ROOT_S, PER_ENV_S, PER_RANK_S, ALPHA_S, BETA_S = 2e-5, 5e-8, 3e-6, 4e-6, 1e-10
POLICY_S, POLICY_PER_ENV_S = 1e-5, 2e-8
OVERSLEPT_S = 6e-5  # By each sleep.


def exchange_s(num_ranks: int, num_envs: int, order_bytes: int, slot_bytes: int) -> float:
    """Of a step, as the constants have it."""
    messages_s = (num_ranks - 1) * PER_RANK_S + math.ceil(math.log2(num_ranks)) * ALPHA_S
    nbytes = order_bytes + (num_ranks - 1) * slot_bytes if num_ranks > 1 else 0
    return ROOT_S + PER_ENV_S * num_envs + messages_s + BETA_S * nbytes


def main() -> None:
    num_ranks = int(sys.argv[2])
    options = dict(each.removeprefix("--").partition("=")[::2] for each in sys.argv[7:])
    if "LOG" in os.environ:
        with open(os.environ["LOG"], "a") as log:
            log.write(f"{num_ranks}\n")
    if os.environ.get("FAIL") == str(num_ranks):
        sys.stderr.write("mpi_rollout: rank 1 (node7): no room\n")
        sys.exit(70)
    if os.environ.get("HANG") == str(num_ranks):
        time.sleep(1000)
    num_envs, num_steps = int(options.get("num-envs", 64)), int(options.get("num-steps", 1000))
    envs, cores = json.loads(options["env-kwargs"]), 2
    per_rank, length = num_envs // num_ranks, int(options["fragment-length"])
    sees_all = options.get("inference") != "workers"  # The policy: the envs of all ranks, not those of one alone.
    order_bytes = 8 * num_envs * (1 + length if sees_all and length > 1 else 1)
    slot_bytes = SlotLayout(Box(0, 255, (envs["observation_bytes"],), np.uint8), per_rank).nbytes * length
    parts = {
        "envs": per_rank * (envs["step_s"] + OVERSLEPT_S),
        "imbalance": (num_ranks > cores) * num_ranks * float(os.environ.get("SHARING", "0")) / length,
        "exchange": exchange_s(num_ranks, num_envs * length, order_bytes, slot_bytes) / length,
        "policy": POLICY_S / length + POLICY_PER_ENV_S * (num_envs if sees_all else per_rank),
        "write": 0.0,
    }
    step_s = sum(parts.values())
    print(json.dumps(outcome(num_ranks, num_envs, num_steps, 1.0, cores) | {
        "seconds": step_s * num_steps, "losses": {name: part / step_s for name, part in parts.items()},
        "order_bytes": order_bytes, "slot_bytes": slot_bytes, "limit": [], "fragment_length": length,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
