"""What compression costs and saves: Breakout's frames on two ranks, by turns without storage and with each compression.

    python results/measured/measure_compression.py [REPETITIONS] [COMPRESSION ...]

It prints the env steps per second of each as a share of those without storage in the same round (medians, and the
lowest and highest), and how many times smaller the stored frames are than in memory.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import h5py

COMPRESSIONS = "none", "lz4", "zstd", "blosc", "gzip"
OPTIONS = ("--env", "ale_py:ALE/Breakout-v5", "--num-envs", "16", "--num-steps", "400", "--progress", "none")


def rate(folder: str, *options: str) -> tuple[float, float]:
    """Run once; return env steps per second, and how many times smaller the observations are than in memory."""
    out = Path(folder) / "run.h5"
    mpirun = Path(sys.executable).parent / "mpirun"
    command = [str(mpirun), "-n", "2", sys.executable, "-m", "mpi_rollout", *OPTIONS, *options, "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ)
    with h5py.File(out) as file:
        attributes, ratio = file["throughput"].attrs, 0.0
        steps_per_s = attributes["env_steps"] / attributes["seconds"]
        if "trajectories" in file:
            frames = file["trajectories/observations"]
            ratio = frames.nbytes / frames.id.get_storage_size()
    out.unlink()
    return float(steps_per_s), ratio


def main() -> None:
    """Print the figures."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    compressions = sys.argv[2:] or COMPRESSIONS
    shares: dict[str, list[float]] = {name: [] for name in compressions}
    ratios, bare = dict.fromkeys(compressions, 0.0), list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repetitions):
            bare.append(rate(folder, "--no-trajectories")[0])
            for name in compressions:
                steps_per_s, ratios[name] = rate(folder, "--compression", name)
                shares[name].append(steps_per_s / bare[-1])
    print(f"without storage: {median(bare):,.0f} env steps/s ({min(bare):,.0f} to {max(bare):,.0f})")
    for name, values in shares.items():
        spread = f"({min(values):.2f} to {max(values):.2f})"
        print(f"{name}: {median(values):.2f} of the rate without storage {spread}; {ratios[name]:.1f} times smaller")


if __name__ == "__main__":
    main()
