"""What more cores and a GPU bring, in at most eight minutes and without a network, for whoever has them.

    python benchmarks/bigger_machine.py measure NAME [RANKS [SECONDS]]   such as: measure mine 1-2-4-8-16 480
    python benchmarks/bigger_machine.py draw results/measured/NAME.json

Scaling: CartPoles on 1, 2, 4, 8 and 16 ranks, of those that have a core each unless RANKS says otherwise; strong (512
in all) and weak (64 on each rank), with the share of bare `env.step` loops on the same cores.  Slices: CartPole as a
kernel on CUDA, in torch (on the GPU, if torch has one, and the CPU), in Numba and as gymnax in JAX, with 2^10 to 2^20
envs: a run on one rank beside the bare loop of the same calls; on CUDA for 32 to 1,024 threads of a block.  What is not
there is said in a line.  The file, results/measured/NAME.json, is written anew after each figure, with all samples.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from measuring import MEASURED, machine, main, python, run, spread, table

from mpi_rollout.process.host import num_usable_cores

RANKS, MOST_S, SLOW_S, ROUNDS, WINDOW_S = (1, 2, 4, 8, 16), 480, 12, 3, 0.5
STRONG_ENVS, WEAK_ENVS, RUN_S = 512, 64, 2.0
NUM_ENVS = tuple(2**power for power in range(10, 21, 2))
THREADS = (32, 64, 128, 256, 512, 1024)
LEAST_STEPS = 64  # Of a run.
KERNEL = "--vectorization-mode vector_entry_point --env mpi_rollout/CartPole"
WAYS = {  # Options of a run, and words of `bare`.
    "CUDA": (KERNEL + "CUDA-v0", ("CUDA", "")),
    "torch on CUDA": (KERNEL + 'Torch-v0 --env-kwargs {"device":"cuda"}', ("Torch", "cuda")),
    "torch": (KERNEL + "Torch-v0", ("Torch", "cpu")),
    "Numba": (KERNEL + "Numba-v0", ("Numba", "")),
    "JAX (gymnax)": (
        "--vectorization-mode native --env-factory mpi_rollout.envs.jax_slices:gymnax"
        ' --env-kwargs {"task":"CartPole-v1"}', ("gymnax", "")
    ),
}  # fmt: skip


def why_not(way: str) -> str:
    """Say what a way lacks here; empty if it has all."""
    package = {"CUDA": "numba", "Numba": "numba", "JAX (gymnax)": "gymnax"}.get(way, "torch")
    if find_spec(package) is None or (package == "gymnax" and find_spec("jax") is None):
        return f"{way}: {package} is not installed"
    if way == "CUDA":
        from numba import cuda

        return "" if cuda.is_available() else "CUDA: there is no device that Numba can use"
    if way == "torch on CUDA":
        import torch

        return "" if torch.cuda.is_available() else "torch on CUDA: there is no device that torch can use"
    return ""


def bare(form: str, device: str, num_envs: int, threads: int = 0) -> None:
    """Print the env steps per second of calls by themselves, in one process; rows that reset are not counted."""
    from contextlib import ExitStack

    from systems import gymnax_, native

    from mpi_rollout.studies.compare.systems import Setup

    if threads:
        from mpi_rollout.envs.kernels import numba_cuda

        numba_cuda.MOST_THREADS = threads
    setup = Setup({"env": "CartPole-v1", "env_factory": None, "env_kwargs": {}}, num_envs, 1)
    with ExitStack() as stack:
        if form == "gymnax":
            stepper = stack.enter_context(gymnax_.scan(setup))
        else:
            stepper = stack.enter_context(native.kernel(setup, f"mpi_rollout/CartPole{form}-v0", device or None))
        turn = stepper.take_turn(WINDOW_S)
    print(turn.env_steps / turn.seconds)


def stepped(way: str, num_envs: int) -> float:
    """Env steps per second of a run on one rank, of as many steps as take half of a second."""
    num_steps = LEAST_STEPS
    while True:
        told = run(1, f"{WAYS[way][0]} --num-envs {num_envs} --num-steps {num_steps} --no-trajectories")
        if told["seconds"] > 0.6 * WINDOW_S:
            return float(told["env_steps_per_s"])
        num_steps = int(num_steps * min(100, max(2, 1.2 * WINDOW_S / max(told["seconds"], 1e-3))))


def figures(ranks: list[int]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what to measure, all of it in each round."""
    ways = [way for way in WAYS if not why_not(way)]
    for way in WAYS:
        if way not in ways:
            print(f"skipped: {why_not(way)}")
    for number in range(ROUNDS):
        for num_ranks in ranks:
            for kind, num_envs in (("strong", STRONG_ENVS), ("weak", WEAK_ENVS * num_ranks)):
                yield kind, {"ranks": num_ranks, "num_envs": num_envs}
        for num_envs in NUM_ENVS:
            for way in ways:
                yield "bare", {"way": way, "num_envs": num_envs}
                yield "slice", {"way": way, "num_envs": num_envs}
        if "CUDA" in ways and not number:
            for threads in THREADS:
                yield "threads", {"way": "CUDA", "num_envs": NUM_ENVS[-1], "threads": threads}


def figure(kind: str, point: dict[str, Any]) -> dict[str, float]:
    """Take one figure."""
    if kind in ("strong", "weak"):
        num_steps = max(200, round(RUN_S * 150_000 * point["ranks"] / point["num_envs"]))
        words = f"--env CartPole-v1 --num-envs {point['num_envs']} --num-steps {num_steps} --no-trajectories"
        told = run(point["ranks"], f"{words} --measure-limit --limit-s 0.3")
        return {"env_steps_per_s": told["env_steps_per_s"], "of_limit": told["ratio_to_limit"]}
    if kind == "slice":
        return {"env_steps_per_s": stepped(point["way"], point["num_envs"])}
    words = "bare", *WAYS[point["way"]][1], point["num_envs"], point.get("threads", 0)
    return {"env_steps_per_s": float(python(0, __file__, *words).split()[-1])}


def measure(name: str, ranks: str = "", most_s: int = MOST_S) -> None:
    """Take figures until the time is over; those of a way that failed are left out."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # Of torch, in a run and beside it.
    begun, out, failed, most_envs = time.monotonic(), MEASURED / f"{name}.json", set(), dict[str | None, int]()
    counts = [int(word) for word in str(ranks).split("-") if word] or [n for n in RANKS if n <= num_usable_cores()]
    print(f"ranks: {counts}, of {num_usable_cores()} cores", flush=True)
    study: dict[str, Any] = {
        "machine": machine(),
        "command": f"python benchmarks/bigger_machine.py {' '.join(sys.argv[1:])}",
    }
    study |= {"cores": num_usable_cores(), "samples": []}
    for kind, point in figures(counts):
        if time.monotonic() > begun + most_s - 15:
            print("stopped: the time is over")
            break
        if point.get("way") in failed or point["num_envs"] > most_envs.get(point.get("way"), point["num_envs"]):
            continue
        start = time.monotonic()
        try:
            sample = {"kind": kind, **point, **figure(kind, point)}
        except (Exception, SystemExit) as error:
            failed.add(point.get("way", kind))
            print(f"failed: {kind}, {point}: {str(error).strip().splitlines()[-1]}", flush=True)
            continue
        if time.monotonic() - start > SLOW_S and "way" in point:
            most_envs[point["way"]] = point["num_envs"]
            print(f"{point['way']}: at most {point['num_envs']:,} envs, which take more than {SLOW_S} s", flush=True)
        study["samples"].append(sample)
        sys.stderr.write(f"{sample}\n")
        out.write_text(json.dumps(study, indent=1) + "\n")
    draw(str(out))


def rates_of(
    study: dict[str, Any], kind: str, by: str, way: str = "", value: str = "env_steps_per_s"
) -> dict[int, list]:
    """Samples of one kind by what they were taken at."""
    found: dict[int, list[float]] = {}
    for sample in study["samples"]:
        if sample["kind"] == kind and sample.get("way", "") == way:
            found.setdefault(sample[by], []).append(sample[value])
    return dict(sorted(found.items()))


def draw(path: str) -> None:
    """Print the tables, and draw a picture of scaling and one of slices beside the file."""
    study = json.loads(Path(path).read_text())
    for kind in ("strong", "weak"):
        rates, shares = (rates_of(study, kind, "ranks", value=value) for value in ("env_steps_per_s", "of_limit"))
        one = median(rates[min(rates)]) / min(rates) if rates else 1
        head = kind, "env steps/s", "times one rank", "of bare loops: median (range)"
        lines = (
            (n, f"{median(rates[n]):,.0f}", f"{median(rates[n]) / one:.2f}", spread(shares[n], ".2f")) for n in rates
        )
        table(head, lines)
    ways = [way for way in WAYS if rates_of(study, "bare", "num_envs", way)]
    for way in ways:
        loops, slices = (rates_of(study, kind, "num_envs", way) for kind in ("bare", "slice"))
        both = [num_envs for num_envs in loops if num_envs in slices]
        rows = ((f"{n:,}", *(f"{median(some[n]) / 1e6:,.1f}" for some in (loops, slices)),
                 f"{median(slices[n]) / median(loops[n]):.2f}") for n in both)  # fmt: skip
        table((f"{way}: envs", "bare calls, M steps/s", "a run, M steps/s", "run over bare"), rows)
    threads = rates_of(study, "threads", "threads", "CUDA")
    if threads:
        table(("threads of a block", "M steps/s"), ((n, f"{median(some) / 1e6:,.1f}") for n, some in threads.items()))
    stem = os.path.splitext(path)[0]
    print("\n".join([*scaling_picture(study, stem), *slices_picture(study, ways, stem)]))


def scaling_picture(study: dict[str, Any], stem: str) -> list[str]:
    from mpi_rollout.commands import style

    picture = style.new_figure("draw", 3.6)
    style.head(picture, "CartPoles on more ranks: how many times the rate of one rank", [study["machine"]])
    for axes, kind in zip(picture.subplots(1, 2, sharey=True), ("strong", "weak"), strict=True):
        envs = f"{STRONG_ENVS} envs in all" if kind == "strong" else f"{WEAK_ENVS} envs on each rank"
        style.frame(axes, f"{kind}: {envs}", "ranks", "times one rank" if kind == "strong" else "")
        rates = rates_of(study, kind, "ranks")
        if not rates:
            style.say(axes, "nothing was measured")
            continue
        one = median(rates[min(rates)]) / min(rates)
        axes.plot([*rates], [*rates], linestyle="--", color=style.GREY, label="ideal")
        draw_line(axes, {n: [rate / one for rate in some] for n, some in rates.items()}, color=style.BLUE, marker="o")
        style.count_x(axes, [*rates])
        style.legend(axes, loc="upper left")
    return style.save_study(picture, f"{stem}-scaling")


def slices_picture(study: dict[str, Any], ways: list[str], stem: str) -> list[str]:
    from mpi_rollout.commands import style

    picture = style.new_figure("draw", 1.4 + 2.3 * (max(1, len(ways)) + 1) // 2)
    style.head(picture, "Slices of many envs beside the same calls without a run", [study["machine"]])
    panels = picture.subplots((max(1, len(ways)) + 1) // 2, 2, squeeze=False).flat
    for axes, way in zip(panels, [*ways, *[""] * (len(ways) % 2), *[""] * 2 * (not ways)], strict=False):
        if not way:
            axes.set_axis_off()
            continue
        style.frame(axes, way, "envs", "env steps per second")
        draw_line(axes, rates_of(study, "bare", "num_envs", way), color=style.GREY, marker="s", label="bare calls")
        draw_line(
            axes, rates_of(study, "slice", "num_envs", way), color=style.BLUE, marker="o", label="a run, one rank"
        )
        style.count_x(axes, [*rates_of(study, "bare", "num_envs", way)])
        axes.set_yscale("log")
        style.human_ticks(axes.yaxis)
        style.legend(axes, loc="lower right")
    return style.save_study(picture, f"{stem}-slices")


def draw_line(axes: Any, rates: dict[int, list[float]], **look: Any) -> None:
    """Medians and ranges."""
    middles = [median(some) for some in rates.values()]
    reach = [
        [abs(end(some) - middle) for some, middle in zip(rates.values(), middles, strict=True)] for end in (min, max)
    ]
    axes.errorbar([*rates], middles, reach, capsize=3, markersize=5, **({"label": "mpi_rollout"} | look))


if __name__ == "__main__":
    main(__doc__, {"measure": measure}, {"draw": draw, "bare": bare})
