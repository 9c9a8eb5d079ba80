"""A launcher for tests of `tune`: starts nothing, prints what a run of known figures would print.

As `launcher`.  RATES is a JSON object of env steps per second by what `Candidate` calls itself; FAIL and HANG name one
of these; EXCHANGE_S is what an exchange takes on several ranks; LOG is a file that gets a line for each start.
"""

import json
import os
import sys
import time

from fake_launcher import outcome

LIMIT_PER_S, ALONE_S, WRITE_S = 20_000.0, 1e-5, 2e-6


def main() -> None:
    num_ranks, words = int(sys.argv[2]), sys.argv[7:]
    named = ("--dedicated-root", "--mode", "--batch-size", "--num-groups", "--vectorization-mode", "--fragment-length")
    named += ("--inference",)
    options = [word.replace("=", " ") for option in named for word in words if word.startswith(option)]
    name = " ".join([f"-n {num_ranks}", *options])
    given = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    is_idle = "SleepingEnv" in given.get("env-factory", "")
    if "LOG" in os.environ:
        with open(os.environ["LOG"], "a") as log:
            log.write(f"{'idle' if is_idle else name}\n")
    if not is_idle and os.environ.get("FAIL") == name:
        sys.stderr.write("mpi_rollout: rank 1 (node7): the env has lost its licence\n")
        sys.exit(70)
    if not is_idle and os.environ.get("HANG") == name:
        time.sleep(1000)
    rate = json.loads(os.environ["RATES"]).get(name, 1000.0)
    found = outcome(num_ranks, int(given.get("num-envs", 64)), int(given.get("num-steps", 1000)))
    exchange_s = float(os.environ["EXCHANGE_S"]) if num_ranks > 1 else ALONE_S
    found["losses"]["exchange"] = exchange_s / found["seconds"] * found["num_steps"]
    if is_idle:
        found["losses"] |= {"policy": 0.0, "write": WRITE_S / found["seconds"] * found["num_steps"]}
    limit = [(rate, LIMIT_PER_S)] * 5 if "--measure-limit" in words else []
    found["fragment_length"] = 64
    print(json.dumps(found | {"env_steps_per_s": rate, "limit": limit}))


if __name__ == "__main__":
    main()
