"""What compression costs and saves: Breakout's frames on two ranks, by turns without storage and with each compression.

    python results/measured/measure_compression.py [REPETITIONS] [COMPRESSION ...]

It prints the env steps per second of each as a share of those without storage in the same round (medians, and the
lowest and highest), by the clock and by the time of the processors, and how many times smaller the stored frames are
than in memory.  Ranks sleep while they wait, so that the time of the processors is that of work: it is what counts
where all cores have some, and what can be measured where other programs use them too.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import h5py

COMPRESSIONS = "none", "lz4", "zstd", "blosc", "gzip"
OPTIONS = ("--env", "ale_py:ALE/Breakout-v5", "--num-envs", "16", "--num-steps", "400", "--progress", "none")
OPTIONS += ("--wait", "sleep")


def rate(folder: str, *options: str) -> tuple[float, float, float]:
    """Run once; return env steps per second of the clock and of the processors, and how much smaller frames are."""
    out = Path(folder) / "run.h5"
    mpirun = Path(sys.executable).parent / "mpirun"
    command = [str(mpirun), "-n", "2", sys.executable, "-m", "mpi_rollout", *OPTIONS, *options, "--out", str(out)]
    before = used_s()
    subprocess.run(command, check=True, capture_output=True, env=os.environ)
    processors_s = used_s() - before
    with h5py.File(out) as file:
        attributes, ratio = file["throughput"].attrs, 0.0
        steps = float(attributes["env_steps"])
        per_s, per_processor_s = steps / float(attributes["seconds"]), steps / processors_s
        if "trajectories" in file:
            frames = file["trajectories/observations"]
            ratio = frames.nbytes / frames.id.get_storage_size()
    out.unlink()
    return per_s, per_processor_s, ratio


def used_s() -> float:
    """Return the seconds of the processors that ended children of this process, and theirs, have used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Print the figures."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    compressions = sys.argv[2:] or COMPRESSIONS
    shares: dict[str, list[tuple[float, float]]] = {name: [] for name in compressions}
    ratios, rates = dict.fromkeys(compressions, 0.0), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repetitions):
            bare = rate(folder, "--no-trajectories")
            rates.append(bare[0])
            for name in compressions:
                *stored, ratios[name] = rate(folder, "--compression", name)
                shares[name].append((stored[0] / bare[0], stored[1] / bare[1]))
    print(f"without storage: {median(rates):,.0f} env steps/s ({min(rates):,.0f} to {max(rates):,.0f})")
    for name, pairs in shares.items():
        clock, processors = (f"{median(v):.2f} ({min(v):.2f} to {max(v):.2f})" for v in zip(*pairs, strict=True))
        print(f"{name}: {clock} by the clock, {processors} by the processors; {ratios[name]:.1f} times smaller")


if __name__ == "__main__":
    main()
