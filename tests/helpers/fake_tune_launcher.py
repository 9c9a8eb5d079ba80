"""A launcher for tests of `tune`: starts nothing, prints what a run of known figures would print.

As `fake_launcher`.  RATES is a JSON object of env steps per second by what a point calls its way, with the number of
envs where these are more than 9; FAIL and HANG name one of these; LOG is a file that gets a line for each start.
LUCKY names one whose first job is half as fast again.
"""

import json
import os
import sys
import time
from pathlib import Path

from fake_launcher import outcome

LIMIT_PER_S = 20_000.0


def main() -> None:
    num_ranks, words = int(sys.argv[2]), sys.argv[7:]
    named = ("--root-envs", "--batch-size", "--num-groups", "--vectorization-mode", "--fragment-length")
    options = [word.replace("=", " ") for option in named for word in words if word.startswith(option)]
    name = " ".join([f"-n {num_ranks}", *options])
    name += "".join(f" --num-envs {word[11:]}" for word in words if word.startswith("--num-envs=") and len(word) > 12)
    is_first = "LUCKY" in os.environ and f"{name} --num-steps" not in Path(os.environ["LOG"]).read_text()
    given = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    if "LOG" in os.environ:
        with open(os.environ["LOG"], "a") as log:
            log.write(f"{name} --num-steps {given['num-steps']}\n")
    if os.environ.get("FAIL") == name:
        sys.stderr.write("mpi_rollout: rank 1 (node7): the env has lost its licence\n")
        sys.exit(70)
    if os.environ.get("HANG") == name:
        time.sleep(1000)
    rate = json.loads(os.environ["RATES"]).get(name, 1000.0)
    rate *= 1.5 if is_first and os.environ["LUCKY"] == name else 1.0
    found = outcome(num_ranks, int(given["num-envs"]), int(given["num-steps"]))
    print(json.dumps(found | {"seconds": found["env_steps"] / rate, "limit": [(rate, LIMIT_PER_S)] * 5}))


if __name__ == "__main__":
    main()
