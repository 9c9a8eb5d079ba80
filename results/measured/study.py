"""What parallel envs, fragments and ranks that nobody waits for do to learning.  PPO on CartPole-v1.

    python results/measured/study.py run [envs] [learners] [uneven]    results/measured/study.json
    python results/measured/study.py draw                              study.png, learners.png, and Markdown tables

envs      1 to 256 envs, in Stable-Baselines3's own vectorized envs, in MPIVecEnv and with the policy on the ranks;
          each update learns from as many env steps, in the same minibatches and epochs, whatever the number of envs
learners  one learner of 64 envs: it asks the policy in each step, gets fragments, or gets them one version behind
uneven    examples/impala.py, where the steps of some envs take four times as long

What a policy is worth in `envs` is the mean return of 100 whole episodes that are not learnt from; the clock stands
meanwhile.  The mean of training episodes would not do: those of 256 envs are 16 steps of each in an update, and the
first to end are the short ones.  In the others it is the mean of the last 100 episodes of training.

Nothing else must run.  `others` of each run is the share of the machine's processor time that went to other processes
meanwhile; a run with more than 3 % is done again, twice at most.  Nobody waits for the processes of SubprocVecEnv: in
its runs, `others` has them too, and says nothing.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from measure import machine, mpirun

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parents[1] / "examples"))
NUM_ENVS, BATCH = (1, 4, 16, 64, 256), 4096
MOST_PROCESSES = 64  # Of SubprocVecEnv.
SYSTEMS = {
    "envs": ("DummyVecEnv", "SubprocVecEnv", "MPIVecEnv", "policy on the ranks"),
    "learners": ("lockstep", "fragments", "ahead"),
    "uneven": ("lockstep", "fragments", "async"),
}
NUM_RANKS = {"envs": 2, "learners": 2, "uneven": 5}
MOST_STEPS = {"envs": 15 * BATCH, "learners": 300_000, "uneven": 200_000}
SOLVED, QUIET, TRIES = 475.0, 0.03, 3
Curve = list[tuple[int, float, float]]  # Env steps, seconds, mean return.


def evaluate(act: Callable[[np.ndarray], np.ndarray], envs: Any) -> float:
    """The mean return of one episode in each of some envs, from the same starts every time."""
    observations, _ = envs.reset(seed=1)
    returns, is_running = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    while is_running.any():
        observations, rewards, terminations, truncations, _ = envs.step(act(observations))
        returns += rewards * is_running
        is_running &= ~(terminations | truncations)
    return float(returns.mean())


class Evaluation:
    """Notes how good a policy is after each update, while the clock of the training stands."""

    def __init__(self) -> None:
        import gymnasium

        self.envs = gymnasium.make_vec("CartPole-v1", num_envs=100, vectorization_mode="vector_entry_point")
        self.curve: Curve = []
        self.spent_s = 0.0

    def note(self, num_steps: int, seconds: float, act: Callable[[np.ndarray], np.ndarray]) -> None:
        import torch

        start = time.perf_counter()
        with torch.random.fork_rng():  # Training is left as if this had not been.
            value = evaluate(act, self.envs)
        self.curve.append((num_steps, round(seconds - self.spent_s, 3), round(value, 1)))
        self.spent_s += time.perf_counter() - start


def by_sb3(vec_env: Any, seed: int) -> dict[str, Any]:
    """Train by Stable-Baselines3, with the numbers of examples/actor_learner.py."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    evaluation = Evaluation()

    class Note(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:  # After an update, and before the first.
            act = lambda observations: self.model.predict(observations)[0]  # noqa: E731
            evaluation.note(self.num_timesteps, time.perf_counter() - start, act)

    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy", vec_env, n_steps=BATCH // vec_env.num_envs, batch_size=512, n_epochs=8, learning_rate=1e-3,
        gamma=0.98, gae_lambda=0.9, seed=seed, device="cpu",
    )  # fmt: skip
    collecting_s, collect = 0.0, model.collect_rollouts

    def timed(*arguments: Any, **options: Any) -> bool:
        nonlocal collecting_s
        start = time.perf_counter()
        goes_on = collect(*arguments, **options)
        collecting_s += time.perf_counter() - start
        return goes_on

    model.collect_rollouts = timed
    start = time.perf_counter()
    model.learn(MOST_STEPS["envs"], callback=Note())
    collecting_s -= evaluation.spent_s  # It evaluates where it begins to collect.
    act = lambda observations: model.predict(observations)[0]  # noqa: E731
    evaluation.note(model.num_timesteps, time.perf_counter() - start, act)
    return {"curve": evaluation.curve, "waited_s": round(collecting_s, 3)}


def by_ranks(num_envs: int, seed: int) -> dict[str, Any] | None:
    """Train by examples/actor_learner.py."""
    import actor_learner

    import mpi_rollout

    evaluation, rng = Evaluation(), np.random.default_rng(seed)

    def tell(num_steps: int, seconds: float, _mean: float, model: Any) -> None:
        act = lambda observations: model.act(observations, None, rng.random((len(observations), 1)))[0]  # noqa: E731
        evaluation.note(num_steps, seconds, act)

    options = options_of("CartPole-v1", BATCH // num_envs, False, MOST_STEPS["envs"], seed)
    actor_learner.TASKS["CartPole-v1"] = (0.98, 0.1, np.inf)
    policy = partial(actor_learner.ActorCritic, "CartPole-v1")
    with mpi_rollout.connect("CartPole-v1", num_envs, policy=policy, infos="none") as envs:
        if envs is None:
            return None
        actor_learner.train(envs, options, tell)
    return {"curve": evaluation.curve}


def options_of(env: str, length: int, ahead: bool, total_steps: int, seed: int, mode: str = "") -> SimpleNamespace:
    return SimpleNamespace(env=env, length=length, ahead=ahead, total_steps=total_steps, seed=seed, mode=mode)


def of_envs(system: str, num_envs: int, seed: int) -> dict[str, Any] | None:
    if system == "policy on the ranks":
        return by_ranks(num_envs, seed)
    if system == "MPIVecEnv":
        import mpi_rollout

        with mpi_rollout.connect("CartPole-v1", num_envs, autoreset_mode="same_step", infos="all") as envs:
            if envs is None:
                return None
            from mpi_rollout.sb3 import MPIVecEnv

            return by_sb3(MPIVecEnv(envs), seed)
    from stable_baselines3.common import vec_env
    from stable_baselines3.common.env_util import make_vec_env

    own = make_vec_env("CartPole-v1", num_envs, vec_env_cls=getattr(vec_env, system))
    try:
        return by_sb3(own, seed)
    finally:
        own.close()


def in_lockstep(envs: Any, model: Any, length: int, _is_ahead: bool) -> Iterator[dict[str, Any]]:
    """`actor_learner.fragments`, made of steps for which rank 0 asks the policy."""
    rng, (observations, _) = np.random.default_rng(0), envs.reset()
    while True:
        rows: list[tuple[Any, ...]] = []
        for _ in range(length):
            actions, extras = model.act(observations, None, rng.random((envs.num_envs, 1)))
            after, *results, _ = envs.step(actions)
            rows.append((observations, actions, *results, *extras.values()))
            observations = after
        names = "observations", "actions", "rewards", "terminations", "truncations", "log_prob", "value"
        batch: dict[str, Any] = {
            name: np.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
        }
        extras = {"log_prob": batch["log_prob"], "value": batch["value"]}
        yield {**batch, "extras": extras, "last_observations": observations}


def of_learners(system: str, num_envs: int, seed: int) -> dict[str, Any] | None:
    """Train by examples/actor_learner.py, and note how long it waits for fragments."""
    import actor_learner

    import mpi_rollout

    waited_s = 0.0
    fragments = in_lockstep if system == "lockstep" else actor_learner.fragments

    def timed(*arguments: Any) -> Iterator[Any]:
        nonlocal waited_s
        start = time.perf_counter()
        for batch in fragments(*arguments):
            waited_s += time.perf_counter() - start
            yield batch
            start = time.perf_counter()

    actor_learner.fragments = timed
    curve: Curve = []
    options = options_of("CartPole-v1", 64, system == "ahead", MOST_STEPS["learners"], seed)
    policy = partial(actor_learner.ActorCritic, "CartPole-v1")
    with mpi_rollout.connect("CartPole-v1", num_envs, policy=policy, infos="none") as envs:
        if envs is None:
            return None
        actor_learner.train(envs, options, lambda *told: curve.append(rounded(*told)))
    return {"curve": curve, "waited_s": round(waited_s, 3)}


def rounded(num_steps: int, seconds: float, mean: float, _model: Any) -> tuple[int, float, float]:
    return int(num_steps), round(seconds, 3), round(float(np.nan_to_num(mean)), 1)


def of_uneven(system: str, num_envs: int, seed: int) -> dict[str, Any] | None:
    """Train by examples/impala.py."""
    import actor_learner
    import impala

    import mpi_rollout

    curve: Curve = []
    options = options_of(impala.ENV, 128, False, MOST_STEPS["uneven"], seed, system)
    with mpi_rollout.connect(
        partial(impala.make_env, num_envs),
        num_envs,
        policy=partial(actor_learner.ActorCritic, impala.ENV),
        dedicated_root=True,
        infos="none",
        wait="sleep",
        **({"batch_size": 1} if system == "async" else {}),
    ) as envs:
        if envs is None:
            return None
        impala.train(envs, options, lambda *told: curve.append(rounded(*told)))
    return {"curve": curve}


def one(what: str, system: str, num_envs: int, seed: int) -> None:
    """One run, on all ranks of this job; print what it gave."""
    found = {"envs": of_envs, "learners": of_learners, "uneven": of_uneven}[what](system, num_envs, seed)
    if found is not None:
        print(json.dumps(found))


def busy_s() -> float:
    """The seconds for which this machine's processors have worked."""
    user, nice, system, _idle, _iowait, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def own_s() -> float:
    """The processor time of this process and of those that it has started and that have ended."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def watched(what: str, system: str, num_envs: int, seed: int) -> dict[str, Any]:
    """One run in a job of its own, with the share of processor time that others had."""
    start, busy, own = time.perf_counter(), busy_s(), own_s()
    num_ranks = 1 if system in ("DummyVecEnv", "SubprocVecEnv") else min(NUM_RANKS[what], num_envs)
    found = json.loads(mpirun(num_ranks, __file__, "one", what, system, str(num_envs), str(seed)).splitlines()[-1])
    others = (busy_s() - busy - (own_s() - own)) / (time.perf_counter() - start) / (os.cpu_count() or 1)
    told = {"what": what, "system": system, "num_envs": num_envs, "seed": seed, "others": round(others, 3), **found}
    num_steps, seconds, value = found["curve"][-1]
    what_came = f"{num_steps:,} steps, {seconds:.1f} s, {value:.0f}, others {others:.3f}"
    print(f"{what}, {system}, {num_envs} envs, seed {seed}: {what_came}", flush=True)
    return told


def run_all(path: Path, kinds: list[str], num_seeds: int) -> None:
    """All runs one after the other, seed by seed, so that a busy spell of the machine meets every system."""
    before = json.loads(path.read_text())["runs"] if path.exists() else []
    runs = [run for run in before if run.get("what") not in kinds]
    for seed in range(num_seeds):
        for what in kinds:
            for num_envs in {"envs": NUM_ENVS, "learners": (64,), "uneven": (16,)}[what]:
                for system in SYSTEMS[what]:
                    if system == "SubprocVecEnv" and num_envs > MOST_PROCESSES:
                        continue
                    tries = [watched(what, system, num_envs, seed)]
                    while tries[-1]["others"] > QUIET and system != "SubprocVecEnv" and len(tries) < TRIES:
                        tries.append(watched(what, system, num_envs, seed))
                    runs.append(min(tries, key=lambda run: run["others"]))
            text = json.dumps({"machine": machine(), "runs": runs})
            path.write_text(text.replace('{"what"', '\n{"what"') + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    whole = commands.add_parser("run", help="train, and write the curves")
    whole.add_argument(
        "what", nargs="*", default=list(SYSTEMS), help=f"of {', '.join(SYSTEMS)}; all of them by default"
    )
    whole.add_argument("--seeds", type=int, default=5)
    single = commands.add_parser("one", help="one of the runs, under mpirun")
    for name, kind in (("what", str), ("system", str), ("num_envs", int), ("seed", int)):
        single.add_argument(name, type=kind)
    drawing = commands.add_parser("draw", help="draw the curves, and print the tables")
    for each in (whole, drawing):
        each.add_argument("--data", type=Path, default=FOLDER / "study.json")
    options = parser.parse_args()
    if options.command == "one":
        one(options.what, options.system, options.num_envs, options.seed)
    elif options.command == "run":
        run_all(options.data, options.what, options.seeds)
    else:
        import study_figures

        study_figures.draw(options.data)


if __name__ == "__main__":
    main()
