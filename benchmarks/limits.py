"""Measure the distance to the limit: python benchmarks/limits.py limit|lockstep|start.

limit     how close runs come to bare `env.step` loops; further words choose rows, such as `CartPole stored`
lockstep  what lockstep alone costs: bare loops that meet at a barrier after each sweep, over those that do not
start     what a run takes to start beside a bare import of mpi4py, and the memory of a rank before its envs
"""

import time
from typing import Any

from measuring import main, python, run, spread, table

from mpi_rollout.studies.compare.systems import Setup, bare

LIMITS = (  # Env, envs, steps, more options.
    ("CartPole-v1", 64, 40000, ""),
    ("CartPole-v1", 64, 40000, "--no-trajectories"),
    ("CartPole-v1", 512, 5000, ""),
    ("CartPole-v1", 512, 5000, "--no-trajectories"),
    ("Acrobot-v1", 64, 8000, ""),
    ("Acrobot-v1", 64, 8000, "--no-trajectories"),
    ("HumanoidStandup-v5", 64, 600, ""),
    ("HumanoidStandup-v5", 64, 600, "--no-trajectories"),
    ("CartPole-v1", 8192, 20000, "--no-trajectories --vectorization-mode vector_entry_point"),
)
SHARES = "envs", "imbalance", "exchange", "policy", "write"


def limit(*only: object) -> None:
    def row(env: str, num_envs: int, num_steps: int, options: str) -> list[object]:
        summary = run(2, f"--env {env} --num-envs {num_envs} --num-steps {num_steps} --measure-limit {options}")
        shares = [f"{100 * summary['losses'][name]:.1f}%" for name in SHARES]
        of_limit = spread(rate / limit for rate, limit in summary["limit"])
        return [env, num_envs, options or "stored", f"{summary['env_steps_per_s']:,.0f}", of_limit, *shares]

    chosen = [each for each in LIMITS if all(str(word) in f"{each} {each[3] or 'stored'}" for word in only)]
    head = "env", "envs", "options", "env steps/s", "of the limit: median (range)", *SHARES
    table(head, (row(*each) for each in chosen))


def lockstep_part(env_id: str, num_envs: int) -> None:
    """Be a rank with its share of bare loops; the root prints the ratio of each round."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    env = {"env": env_id, "env_factory": None, "env_kwargs": {}}
    with bare(Setup(env, num_envs, comm.size, comm.rank, comm.size)) as stepper:
        stepper.reset()

        def rate(meets: bool, seconds: float = 1.5) -> float:
            comm.Barrier()
            start, env_steps, num_sweeps = time.perf_counter(), 0, 0
            while True:
                env_steps += stepper.sweep()
                num_sweeps += 1
                is_over = time.perf_counter() - start > seconds
                if meets:
                    comm.Barrier()
                if comm.allreduce(is_over, MPI.LOR) if meets and num_sweeps % 64 == 0 else not meets and is_over:
                    return env_steps / (time.perf_counter() - start)

        pairs = [(rate(True), rate(False)) for _ in range(6)][1:]
    for rounds in zip(*(comm.gather(pairs) or []), strict=True):
        print(sum(pair[0] for pair in rounds) / sum(pair[1] for pair in rounds))


def lockstep() -> None:
    envs = ("CartPole-v1", 64), ("CartPole-v1", 512), ("Acrobot-v1", 64), ("HumanoidStandup-v5", 64)
    head = "env", "envs", "bare loops in lockstep over free ones: median (range)"
    parts = ((*each, python(2, __file__, "lockstep-part", *each)) for each in envs)
    table(head, ((env, num_envs, spread(map(float, out.split()))) for env, num_envs, out in parts))


MEMORY = """
import mpi_rollout.collect.run
from mpi4py import MPI
pages = int(open("/proc/self/statm").read().split()[1])
if MPI.COMM_WORLD.rank:
    print(pages * 4096 / 1e6)
"""


def start(rounds: int = 5) -> None:
    def seconds(of: Any) -> float:
        begun = time.perf_counter()
        of()
        return time.perf_counter() - begun

    bare = [seconds(lambda: python(2, "-c", "from mpi4py import MPI")) for _ in range(rounds)]
    ours = [seconds(lambda: run(2, "--env CartPole-v1 --num-steps 1")) for _ in range(rounds)]
    memory = [float(python(2, "-c", MEMORY)) for _ in range(rounds)]
    over = spread((a - b for a, b in zip(ours, bare, strict=True)), ".2f")
    rows = (
        ("from mpirun to its end, for a bare import of mpi4py", f"{spread(bare, '.2f')} s"),
        ("the same, for a run that stores one step of 64 CartPoles: what it takes more", f"{over} s"),
        ("resident memory of a worker rank before its envs", f"{spread(memory, '.0f')} MB"),
    )
    table(("what", "median (range)"), rows)


if __name__ == "__main__":
    main(__doc__, {"limit": limit, "lockstep": lockstep, "start": start}, {"lockstep-part": lockstep_part})
