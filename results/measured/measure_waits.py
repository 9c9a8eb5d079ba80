"""Measure what spinning and sleeping waits cost: python results/measured/measure_waits.py [ROUNDS].

Envs that sleep need no core, so many ranks can be tried on few: what their runs lose is what the waits of the others
take.  On cores of their own, and where real envs share cores, ratios say which wait is for what.
"""

import json
import statistics
import sys
import tempfile

from measure import machine, mpirun, spread

SLEEPING = '--env-factory mpi_rollout.scaling.sleeping:SleepingEnv --env-kwargs {"step_s":0.005} --num-steps 150'
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


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    measure_many(rounds)
    measure_real(rounds)
