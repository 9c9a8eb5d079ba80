"""Measure what ranks' ways to wait cost: python results/measured/measure_waits.py many|real|shared [ROUNDS [BUSY]].

many    envs that sleep need no core, so many ranks can be tried on few: what their runs lose is what the waits of the
        others take
real    envs that compute, on cores of their own and where ranks share cores: which way is for what
shared  auto, spin and sleep on two ranks in turn, quiet and beside BUSY processes (default: 2) that always compute
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from measure import machine, mpirun, spread

SLEEPING = '--env-factory mpi_rollout.bench.sleeping:SleepingEnv --env-kwargs {"step_s":0.005} --num-steps 150'
MANY = (1, 16, 64)
REAL = (("CartPole-v1", 2, 20000), ("Acrobot-v1", 2, 4000), ("CartPole-v1", 4, 10000), ("Acrobot-v1", 4, 2000))


def rate(num_ranks: int, wait: str, options: str) -> float:
    """Env steps per second of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = f"-m mpi_rollout {options} --wait {wait} --no-trajectories --json --progress none".split()
        return json.loads(mpirun(num_ranks, *command, "--out", f"{folder}/run.h5"))["env_steps_per_s"]


def measure_many(rounds: int) -> None:
    """Weak scaling of envs that sleep, 4 a rank."""
    found: dict[tuple[int, str], list[float]] = {}
    for _ in range(rounds):
        one = rate(1, "spin", f"{SLEEPING} --num-envs 4")
        for num_ranks in MANY[1:]:
            for wait in ("spin", "sleep"):
                each = rate(num_ranks, wait, f"{SLEEPING} --num-envs {4 * num_ranks}")
                found.setdefault((num_ranks, wait), []).append(each / num_ranks / one)
    print(f"\n{machine()}: envs that sleep 5 ms, 4 a rank, {rounds} rounds\n")
    print("| ranks | wait | of the efficiency of 1 rank: median (range) |\n|---|---|---|")
    for (num_ranks, wait), values in found.items():
        print(f"| {num_ranks} | {wait} | {spread(values)} |", flush=True)


def measure_real(rounds: int) -> None:
    """Envs that compute, 64 of them."""
    print(f"\n{machine()}: 64 envs, {rounds} rounds\n")
    print("| env | ranks | spin, env steps/s | sleep over spin: median (range) |\n|---|---|---|---|")
    for env, num_ranks, num_steps in REAL:
        options = f"--env {env} --num-envs 64 --num-steps {num_steps}"
        pairs = [(rate(num_ranks, "spin", options), rate(num_ranks, "sleep", options)) for _ in range(rounds)]
        spinning = statistics.median(spin for spin, _ in pairs)
        ratios = spread([sleep / spin for spin, sleep in pairs])
        print(f"| {env} | {num_ranks} | {spinning:,.0f} | {ratios} |", flush=True)


def measure_shared(rounds: int, num_busy: int) -> None:
    """Two ranks whose cores other programs use, or do not."""
    print(f"\n{machine()}: two ranks, 64 envs, {rounds} rounds\n")
    print("| env | busy processes | spin, env steps/s | auto over spin: median (range) | auto over sleep |")
    print("|---|---|---|---|---|")
    for env, num_steps in (("CartPole-v1", 20000), ("Acrobot-v1", 4000)):
        for count in (0, num_busy):
            options = f"--env {env} --num-envs 64 --num-steps {num_steps if count == 0 else num_steps // 20}"
            with busy(count):
                rates = [{wait: rate(2, wait, options) for wait in ("spin", "auto", "sleep")} for _ in range(rounds)]
            over = [spread([each["auto"] / each[wait] for each in rates]) for wait in ("spin", "sleep")]
            spinning = statistics.median(each["spin"] for each in rates)
            print(f"| {env} | {count} | {spinning:,.0f} | {' | '.join(over)} |", flush=True)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Other programs on this machine, each in a session of its own: some systems share cores out among sessions."""
    # They end with this program too where it is killed.
    program = f"import os\nwhile os.getppid() == {os.getpid()}:\n    sum(range(1_000_000))"
    others = [subprocess.Popen([sys.executable, "-c", program], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    what, *numbers = sys.argv[1:] or ["--help"]
    rounds, num_busy = [*map(int, numbers), *(5, 2)[len(numbers) :]]
    if what == "many":
        measure_many(rounds)
    elif what == "real":
        measure_real(rounds)
    elif what == "shared":
        measure_shared(rounds, num_busy)
    else:
        sys.exit(__doc__)
