"""Measure the share of the limit over the length of fragments, and draw it.

    python benchmarks/fragments.py measure quiet.json "quiet machine" [ROUNDS]
    python benchmarks/fragments.py measure crowded.json "two busy processes" 5 2
    python benchmarks/fragments.py plot fragments quiet.json shared.json crowded.json

The last number is of processes that compute beside it; a picture's name is given without .png and .svg.

All lengths have their runs one after the other, in another random order in each round, unstored and stored.  The share
is what a run says itself: of bare env.step loops on all ranks at once, measured between its parts.  The file has all
samples, also while it is measured.
"""

import json
import os
import random
import shlex
import statistics
import sys

from measuring import ROUNDS, busy, machine, main, run, spread, table

ENV, NUM_ENVS, NUM_STEPS, NUM_RANKS = "CartPole-v1", 64, 20_000, 2
WAYS = [("1", "sync"), ("4", "sync"), ("16", "sync"), ("64", "sync"), ("256", "sync"), ("64", "async")]
BUSY_LENGTH = 64  # Beside busy processes, shorter fragments take so much longer that they have fewer steps.


def sample_of(num_busy: int, length: str, mode: str, stored: bool) -> dict:
    """One run; what it says of itself."""
    share = min(1.0, int(length) / BUSY_LENGTH) if num_busy else 1.0
    words = f"--env {ENV} --num-envs {NUM_ENVS} --num-steps {max(500, round(NUM_STEPS * share))}"
    words += " --batch-size 1" * (mode == "async")
    words += f" --fragment-length {length} --measure-limit --limit-s 0.5"
    summary = run(NUM_RANKS, words, *([] if stored else ["--no-trajectories"]))
    kept = ("ratio_to_limit", "env_steps_per_s", "limit", "losses", "seconds", "num_steps", "fragment_length")
    sample = {name: summary[name] for name in (*kept, "inference", "order_bytes", "slot_bytes")}
    sample["core_shares"] = [rank.get("core_share") for rank in summary["ranks"]]
    return sample | {"asked_length": length, "mode": mode, "stored": stored, "load": os.getloadavg()[0]}


def measure(out: str, label: str, rounds: int = ROUNDS, num_busy: int = 0) -> None:
    """All runs; the file is written anew after each."""
    told = {"label": label, "busy": num_busy, "rounds": rounds, "env": ENV, "num_envs": NUM_ENVS, "ranks": NUM_RANKS}
    command = shlex.join(["python", "benchmarks/fragments.py", *sys.argv[1:]])
    study: dict = {"machine": machine(), "host": os.uname().nodename, "command": command, **told, "samples": []}
    runs = [(length, mode, stored) for length, mode in WAYS for stored in (False, True)]
    with busy(num_busy):
        for number in range(rounds):
            for length, mode, stored in random.Random(number).sample(runs, len(runs)):
                sample = sample_of(num_busy, length, mode, stored) | {"round": number}
                study["samples"].append(sample)
                with open(out, "w") as file:
                    json.dump(study, file, indent=1)
                way = f"--fragment-length {length} --mode {mode}, {'stored' if stored else 'unstored'}"
                print(
                    f"round {number}, {way}: {sample['ratio_to_limit']:.3f} of the limit", file=sys.stderr, flush=True
                )
    rows = ((*way, *(spread(shares(study, *way, stored)) for stored in (False, True))) for way in WAYS)
    table(("--fragment-length", "--mode", "unstored: median (range)", "stored: median (range)"), rows)


def shares(study: dict, length: str, mode: str, stored: bool) -> list[float]:
    """The samples of one way."""
    way = (length, mode, stored)
    some = [each for each in study["samples"] if (each["asked_length"], each["mode"], each["stored"]) == way]
    return [each["ratio_to_limit"] for each in some]


def plot(out: str, *files: str) -> None:
    """A panel for unstored and for stored runs, a line for each file."""
    from mpi_rollout.commands import style

    studies = []
    for path in files:
        with open(path) as file:
            studies.append(json.load(file))
    figure = style.new_figure("plot", 3.9)
    first = studies[0]
    fine = [f"{study['label']}: {study['machine']}, {study['rounds']} runs of each" for study in studies]
    what = f"{first['num_envs']} {first['env']} envs, {first['ranks']} ranks"
    head = f"64 steps at a time reach 0.7 to 0.9 of bare loops, also beside busy processes: {what}"
    style.head(figure, head, ["Medians and ranges. Open markers: --batch-size 1.", *fine])
    panels = figure.subplots(1, 2, sharey=True)
    for axes, stored in zip(panels, (False, True), strict=True):
        style.frame(axes, "Everything stored" if stored else "Not stored", "steps between two exchanges")
        for place, study in enumerate(studies):
            look = style.look(place, len(studies))
            draw(axes, study, [way for way in WAYS if way[1] == "sync"], stored, {**look, "label": study["label"]})
            draw(axes, study, [way for way in WAYS if way[1] == "async"], stored, look | {"markerfacecolor": "w"})
        axes.axhline(1, linestyle="--", color=style.GREY, linewidth=1)
        style.count_x(axes, [int(length) for length, mode in WAYS if mode == "sync"])
        axes.set_ylim(0, 1.1)
    panels[0].set_ylabel("share of bare env.step loops", fontsize=style.SMALL)
    for axes in panels:
        style.legend(axes, loc="lower right")
    print("\n".join(style.save_study(figure, out)))


def draw(axes, study: dict, ways: list[tuple[str, str]], stored: bool, look: dict) -> None:
    """Medians and ranges of some ways."""
    found = {int(length): shares(study, length, mode, stored) for length, mode in ways}
    found = {length: values for length, values in found.items() if values}
    medians = [statistics.median(values) for values in found.values()]
    reach = [[abs(end(values) - middle) for values, middle in zip(found.values(), medians, strict=True)]
             for end in (min, max)]  # fmt: skip
    shift = 1.2 if ways[0][1] == "async" else 1.0  # Beside the other of this length.
    axes.errorbar([length * shift for length in found], medians, reach, capsize=3, markersize=5, **look)


if __name__ == "__main__":
    main(__doc__, {"measure": measure}, {"plot": plot})
