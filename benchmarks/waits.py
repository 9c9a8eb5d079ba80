"""Measure what ranks' ways to wait cost: python benchmarks/waits.py many|real|shared [ROUNDS [BUSY]].

many    envs that sleep need no core, so many ranks can be tried on few: what their runs lose is what the waits of the
        others take
real    envs that compute, on cores of their own and where ranks share cores: which way is for what
shared  auto, spin and sleep on two ranks in turn, quiet and beside BUSY processes (default: 2) that always compute
"""

from collections.abc import Iterator
from functools import partial
from statistics import median

from measuring import CHECKOUT, ROUNDS, busy, main, ratios, run, spread, table, turns

SLEEPING = (
    f'--env-factory {CHECKOUT}/benchmarks/sleeping.py:SleepingEnv --env-kwargs {{"step_s":0.005}} --num-steps 150'
)
MANY = (1, 16, 64)
REAL = (("CartPole-v1", 2, 20000), ("Acrobot-v1", 2, 4000), ("CartPole-v1", 4, 10000), ("Acrobot-v1", 4, 2000))


def rate(num_ranks: int, wait: str, options: str) -> float:
    return run(num_ranks, f"{options} --wait {wait} --no-trajectories")["env_steps_per_s"]


def many(rounds: int = ROUNDS) -> None:
    """Weak scaling of envs that sleep, 4 a rank."""
    ways = {
        f"{num_ranks} | {wait}": partial(rate, num_ranks, wait, f"{SLEEPING} --num-envs {4 * num_ranks}")
        for num_ranks, wait in [(1, "spin"), *((size, wait) for size in MANY[1:] for wait in ("spin", "sleep"))]
    }
    rates = turns(ways, rounds)
    one = rates.pop("1 | spin")
    table(
        ("ranks", "wait", "of the efficiency of 1 rank: median (range)"),
        ((way, spread(ratio / int(way.split()[0]) for ratio in ratios(each, one))) for way, each in rates.items()),
    )


def real(rounds: int = ROUNDS) -> None:
    """Envs that compute, 64 of them."""

    def row(env: str, num_ranks: int, num_steps: int) -> tuple:
        options = f"--env {env} --num-envs 64 --num-steps {num_steps}"
        rates = turns({wait: partial(rate, num_ranks, wait, options) for wait in ("spin", "sleep")}, rounds)
        return env, num_ranks, f"{median(rates['spin']):,.0f}", spread(ratios(rates["sleep"], rates["spin"]))

    head = "env", "ranks", "spin, env steps/s", "sleep over spin: median (range)"
    table(head, (row(*each) for each in REAL))


def shared(rounds: int = ROUNDS, num_busy: int = 2) -> None:
    """Two ranks whose cores other programs use, or do not."""

    def rows() -> Iterator[tuple]:
        for env, num_steps in (("CartPole-v1", 20000), ("Acrobot-v1", 4000)):
            for count in (0, num_busy):
                options = f"--env {env} --num-envs 64 --num-steps {num_steps // 20 if count else num_steps}"
                with busy(count):
                    rates = turns({wait: partial(rate, 2, wait, options) for wait in ("spin", "auto", "sleep")}, rounds)
                over = [spread(ratios(rates["auto"], rates[wait])) for wait in ("spin", "sleep")]
                yield env, count, f"{median(rates['spin']):,.0f}", *over

    table(("env", "busy processes", "spin, env steps/s", "auto over spin: median (range)", "auto over sleep"), rows())


if __name__ == "__main__":
    main(__doc__, {"many": many, "real": real, "shared": shared})
