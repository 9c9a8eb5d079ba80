"""Do more envs in parallel give better returns for the same env steps, or only more of them a second?

    python results/measured/study.py run     trains on 2 ranks, for about ten minutes: results/measured/study.json
    python results/measured/study.py draw    results/measured/study.png, and a Markdown table

PPO on CartPole-v1.  Whatever the number of envs, each update learns from the same number of env steps, in the same
minibatches and epochs, and runs have equally many updates: only how these steps are made differs, by few envs in long
pieces of episodes or by many in short ones.  What a policy is worth is the mean return of whole episodes that are not
learnt from, with actions drawn as in training; the clock stands meanwhile.  Episodes of training would not do: those of
512 envs cannot reach 500 steps in a run, and the first to end are the short ones.

The seconds mean something on a quiet machine only: then `cpu_share`, CPU seconds over seconds of the root while it
trains, is close to 1.  Runs that were disturbed are run again.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine, mpirun, spread

FOLDER = Path(__file__).parent
NUM_ENVS = (8, 64, 512)
BATCH = 4096  # Env steps for an update.
SOLVED = 475.0
QUIET = 0.97  # CPU share from which on a run's seconds are its own.
Runs = list[dict[str, Any]]


def evaluate(model: Any, envs: Any) -> float:
    """The mean return of one episode in each of some envs, from the same starts every time.

    Training is left as if it had not been: its random numbers are others.
    """
    import torch

    observations, _ = envs.reset(seed=1)
    returns, is_running = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    with torch.random.fork_rng():
        while is_running.any():
            actions, _ = model.predict(observations)
            observations, rewards, terminations, truncations, _ = envs.step(actions)
            returns += rewards * is_running
            is_running &= ~(terminations | truncations)
    return float(returns.mean())


def train(envs: Any, num_updates: int, seed: int) -> dict[str, Any]:
    """Train on these envs; on the root.  The curve has env steps, seconds and return after each update."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO

    from mpi_rollout.sb3 import MPIVecEnv

    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy", MPIVecEnv(envs), n_steps=BATCH // envs.num_envs, batch_size=256, n_epochs=10,
        learning_rate=1e-3, gamma=0.98, gae_lambda=0.8, seed=seed, device="cpu",
    )  # fmt: skip
    test_envs = gymnasium.make_vec("CartPole-v1", num_envs=100, vectorization_mode="vector_entry_point")
    curve, seconds, cpu_seconds = [(0, 0.0, evaluate(model, test_envs))], 0.0, 0.0
    for _ in range(num_updates):
        start, cpu_start = time.perf_counter(), time.process_time()
        model.learn(BATCH, reset_num_timesteps=False)
        seconds += time.perf_counter() - start
        cpu_seconds += time.process_time() - cpu_start
        curve.append((model.num_timesteps, round(seconds, 3), evaluate(model, test_envs)))
    return {"num_envs": envs.num_envs, "seed": seed, "cpu_share": round(cpu_seconds / seconds, 3), "curve": curve}


def one(num_envs: int, num_updates: int, seed: int) -> None:
    """One run, on all ranks of this job; print what it gave."""
    import mpi_rollout

    with mpi_rollout.connect("CartPole-v1", num_envs, autoreset_mode="same_step") as envs:
        if envs is not None:
            print(json.dumps(train(envs, num_updates, seed)))


def undisturbed(num_envs: int, num_updates: int, seed: int, tries: int) -> dict[str, Any]:
    """One run in a job of its own; again if other work took the cores, since only its seconds can differ."""
    found: Runs = []
    while len(found) < tries and all(run["cpu_share"] < QUIET for run in found):
        found.append(json.loads(mpirun(2, __file__, "one", str(num_envs), str(num_updates), str(seed))))
        _, seconds, last = found[-1]["curve"][-1]
        share = found[-1]["cpu_share"]
        print(f"{num_envs} envs, seed {seed}: return {last:.0f}, {seconds:.0f} s, CPU {share}", file=sys.stderr)
    return max(found, key=lambda run: run["cpu_share"])


def run_all(path: Path, num_updates: int, num_seeds: int, tries: int) -> None:
    """All runs one after the other, seed by seed, so that a busy spell of the machine meets every number of envs."""
    runs = [undisturbed(num_envs, num_updates, seed, tries) for seed in range(num_seeds) for num_envs in NUM_ENVS]
    found = {"machine": machine(), "num_ranks": 2, "env_steps_per_update": BATCH, "runs": runs}
    path.write_text(json.dumps(found).replace('{"num_envs"', '\n{"num_envs"') + "\n")


def curves(runs: Runs, num_envs: int) -> np.ndarray:
    """Env steps, seconds and return of all runs with so many envs: (seeds, updates + 1, 3)."""
    return np.array([run["curve"] for run in runs if run["num_envs"] == num_envs])


def over_seconds(found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The returns of all seeds at the same seconds, as long as all of them train."""
    seconds = np.linspace(0, found[:, -1, 1].min(), found.shape[1])
    return seconds, np.array([np.interp(seconds, curve[:, 1], curve[:, 2]) for curve in found])


def draw(path: Path, figure_path: Path) -> None:
    """The returns against env steps, and against seconds."""
    from mpi_rollout.commands import style

    data = json.loads(path.read_text())
    figure = style.new_figure("draw", 4.2)
    by_steps, by_seconds = figure.subplots(1, 2, sharey=True)
    style.frame(by_steps, "Against env steps", "thousands of env steps of training", "mean return of 100 test episodes")
    style.frame(by_seconds, "Against time", "seconds of training, tests not counted")
    for num_envs, color, line in zip(NUM_ENVS, style.COLORS, ("-", "--", "-."), strict=False):
        found = curves(data["runs"], num_envs)
        label = f"{num_envs} envs, {data['env_steps_per_update'] // num_envs} steps each per update"
        for axes, (x, returns) in (
            (by_steps, (found[0, :, 0] / 1000, found[:, :, 2])),
            (by_seconds, over_seconds(found)),
        ):
            axes.plot(x, np.median(returns, axis=0), line, color=color, linewidth=2, label=label)
            axes.fill_between(x, returns.min(axis=0), returns.max(axis=0), color=color, alpha=0.18, linewidth=0)
    for axes in (by_steps, by_seconds):
        axes.axhline(SOLVED, color=style.GREY, linestyle=":", linewidth=1)
        axes.set_xlim(left=0)
    by_steps.set_ylim(0, 515)
    by_steps.text(0, SOLVED - 8, " solved: 475", color=style.GREY, va="top", fontsize=style.SMALL)
    style.legend(by_seconds, loc="lower right")
    words = f"{data['env_steps_per_update']} env steps per update whatever the number of envs"
    fine = [f"{words}; median and range of {len(found)} seeds", str(data["machine"])]
    style.head(figure, f"PPO on CartPole-v1, {data['num_ranks']} ranks", fine)
    style.save(figure, "draw", str(figure_path))


def print_table(path: Path) -> None:
    """What the figure shows, in numbers: median and range over the seeds."""
    data = json.loads(path.read_text())
    print(f"{data['machine']}; CPU share {spread([run['cpu_share'] for run in data['runs']], '.2f')}\n")
    print("| envs | env steps/s of training | env steps until solved | seconds until solved | return at the end |")
    print("|---|---|---|---|---|")
    for num_envs in NUM_ENVS:
        found = curves(data["runs"], num_envs)
        firsts = [next((row for row in curve if row[2] >= SOLVED), None) for curve in found]
        solved = [row for row in firsts if row is not None]
        cells = [spread([curve[-1, 0] / curve[-1, 1] for curve in found], ",.0f")]
        for column, form in ((0, ",.0f"), (1, ".1f")):
            cells.append(spread([row[column] for row in solved], form) if solved else "never")
        cells[1] += f", {len(solved)} of {len(found)} seeds"
        cells.append(spread([curve[-1, 2] for curve in found], ".0f"))
        print(f"| {num_envs} | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    whole = commands.add_parser("run", help="train, and write the curves")
    whole.add_argument("--updates", type=int, default=60, help=f"of {BATCH} env steps, in each run")
    whole.add_argument("--seeds", type=int, default=5)
    whole.add_argument("--tries", type=int, default=3, help="of a run that other work disturbs")
    single = commands.add_parser("one", help="one of the runs, under mpirun")
    for name in ("num_envs", "num_updates", "seed"):
        single.add_argument(name, type=int)
    drawing = commands.add_parser("draw", help="draw the curves")
    for each in (whole, drawing):
        each.add_argument("--data", type=Path, default=FOLDER / "study.json")
    drawing.add_argument("--figure", type=Path, default=FOLDER / "study.png")
    options = parser.parse_args()
    if options.command == "one":
        one(options.num_envs, options.num_updates, options.seed)
    elif options.command == "run":
        run_all(options.data, options.updates, options.seeds, options.tries)
    else:
        draw(options.data, options.figure)
        print_table(options.data)


if __name__ == "__main__":
    main()
