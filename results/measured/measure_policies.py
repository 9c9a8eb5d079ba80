"""Measure policies on the ranks: python results/measured/measure_policies.py shares|set|start [ROUNDS].

shares  64 CartPoles and a network of 2 x 64 on two ranks, the network on the ranks or on the root: env steps per second
        of the run over those of two processes that loop over 32 envs and the network by themselves, and SB3's own loops
set     set_policy of 2 MB to 8 ranks over a Bcast of as many bytes
start   what a run with a file of torch takes longer to start than an import of torch
"""

import contextlib
import io
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine, mpirun, spread

NUM_ENVS, NUM_STEPS, LOOP_S = 64, 8000, 2.5
SIZES = (4, 64, 64, 2)
HERE = str(Path(__file__).resolve())
POLICIES = {"numpy": f"{HERE}:make_policy", "onnx": "net.onnx", "torch": "net.pt", "sb3": "net.zip"}
WAYS = {
    "on the ranks, L = 64": ("--fragment-length", "64"),
    "the same, blocks of 32": ("--fragment-length", "64", "--policy-block", "32"),
    "on the root": ("--inference", "root"),
}


def weights() -> list[np.ndarray]:
    """Those of a network that balances the pole for 500 steps.

    One that fails after nine steps would measure resets: runs do not count them as env steps, and loops do not do them
    in a step of their own.
    """
    layers = [0.1 * np.eye(4, 64), np.eye(64), np.zeros((64, 2))]
    layers[2][:4, 1] = 0.1, 0.4, 3, 1
    return [layer.astype(np.float32) for layer in layers]


class Network:
    """In NumPy."""

    num_uniforms = 0

    def __init__(self) -> None:
        self.weights = weights()

    def act(self, observations: np.ndarray, env_indices: object = None, uniforms: object = None) -> np.ndarray:
        for weight in self.weights[:-1]:
            observations = np.tanh(observations @ weight)
        return (observations @ self.weights[-1]).argmax(1)


make_policy = Network


def export(folder: Path) -> None:
    """Make the files of policies with the libraries' own exporters."""
    import torch
    from stable_baselines3 import PPO

    linear = [torch.nn.Linear(*sizes) for sizes in itertools.pairwise(SIZES)]
    net = torch.nn.Sequential(linear[0], torch.nn.Tanh(), linear[1], torch.nn.Tanh(), linear[2]).eval()
    ppo = PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=1, device="cpu")
    of_ppo = [*ppo.policy.mlp_extractor.policy_net[::2], ppo.policy.action_net]
    with torch.no_grad():
        for layer, values in zip([*linear, *of_ppo], 2 * weights(), strict=True):
            layer.weight.copy_(torch.from_numpy(values.T))
            layer.bias.zero_()
    ppo.save(folder / "net.zip")
    example, batch = torch.zeros(2, 4), {0: torch.export.Dim("batch")}
    torch.jit.trace(net, example).save(folder / "net.pt")
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(
            net, (example,), folder / "net.onnx", dynamic_shapes=(batch,), dynamo=True, external_data=False
        )


def loaded(kind: str) -> Callable[[np.ndarray], np.ndarray]:
    """A policy as one would call it in a loop of one's own, with one thread."""
    if kind == "numpy":
        return Network().act
    if kind == "onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession("net.onnx", options)
        name = session.get_inputs()[0].name
        return lambda observations: session.run(None, {name: observations})[0].argmax(1)
    import torch

    torch.set_num_threads(1)
    if kind == "sb3":
        from stable_baselines3 import PPO

        model = PPO.load("net.zip", device="cpu")
        return lambda observations: model.predict(observations, deterministic=True)[0]
    net = torch.jit.load("net.pt")

    def act(observations: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return net(torch.from_numpy(observations)).numpy().argmax(1)

    return act


def loop(kind: str) -> None:
    """Print the env steps per second of a rank's own loop, with the same seeds of episodes as a run."""
    import gymnasium
    from mpi4py import MPI

    from mpi_rollout.core.seeding import episode_seeds

    act, num_envs = loaded(kind), NUM_ENVS // MPI.COMM_WORLD.size
    envs = [gymnasium.make("CartPole-v1") for _ in range(num_envs)]
    seeds = [episode_seeds(0, MPI.COMM_WORLD.rank * num_envs + index) for index in range(num_envs)]
    observations, num_steps = np.zeros((num_envs, 4), np.float32), 0
    for index, env in enumerate(envs):
        observations[index], _ = env.reset(seed=next(seeds[index]))
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    while time.perf_counter() - start < LOOP_S:
        for index, action in enumerate(act(observations).tolist()):
            observation, _, terminated, truncated, _ = envs[index].step(action)
            if terminated or truncated:
                observation, _ = envs[index].reset(seed=next(seeds[index]))
            observations[index] = observation
        num_steps += num_envs
    print(num_steps / (time.perf_counter() - start))


def of_sb3(kind: str) -> None:
    """Print the env steps per second of Stable-Baselines3's predict over its own vectorized envs."""
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if __name__ == "__main__":
        act = loaded("sb3")
        envs = make_vec_env("CartPole-v1", NUM_ENVS, vec_env_cls={"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[kind])
        observations, num_steps = envs.reset(), 0
        start = time.perf_counter()
        while time.perf_counter() - start < LOOP_S:
            observations, *_ = envs.step(act(observations))
            num_steps += NUM_ENVS
        print(num_steps / (time.perf_counter() - start))
        envs.close()


def run(kind: str, options: tuple[str, ...]) -> float:
    """Env steps per second of a run."""
    with tempfile.TemporaryDirectory() as folder:
        command = (
            f"-m mpi_rollout --env CartPole-v1 --num-envs {NUM_ENVS} --num-steps {NUM_STEPS} --no-trajectories".split()
        )
        command += ["--progress", "none", "--json", "--policy", POLICIES[kind], "--out", f"{folder}/run.h5", *options]
        return float(json.loads(mpirun(2, *command))["env_steps_per_s"])


def measure_shares(rounds: int) -> None:
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for kind in POLICIES:
            bare = sum(map(float, mpirun(2, HERE, "loop", kind).split()))
            for way, options in WAYS.items():
                found.setdefault((kind, way), []).append((run(kind, options), bare))
            for vec_env in ("dummy", "subproc") if kind == "sb3" else ():
                command = [sys.executable, HERE, "sb3", vec_env]
                rate = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                found.setdefault((kind, f"SB3's {vec_env.title()}VecEnv"), []).append((rate, bare))
    print(f"\n{machine()}: {NUM_ENVS} CartPoles, 2 ranks, {rounds} rounds\n")
    print("| policy | where | env steps/s | of each rank's own loop: median (range) |\n|---|---|---|---|")
    for (kind, way), pairs in found.items():
        rate, ratios = (
            statistics.median(rate for rate, _ in pairs),
            spread([rate / bare for rate, bare in pairs], ".2f"),
        )
        print(f"| {kind} | {way} | {rate:,.0f} | {ratios} |")


class Large:
    """A policy of 2 MB of parameters."""

    def __init__(self) -> None:
        self.parameters = {f"weight {index}": np.zeros((256, 256), np.float32) for index in range(8)}

    def act(self, observations: np.ndarray, env_indices: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        return np.zeros(len(env_indices), np.int64)

    def load(self, parameters: dict[str, np.ndarray]) -> None:
        self.parameters = parameters


def set_policy(rounds: int) -> None:
    """On all ranks: print the seconds of a Bcast and of set_policy, each until all ranks have it, in turn."""
    from mpi4py import MPI

    import mpi_rollout

    comm, buffer, pairs = MPI.COMM_WORLD, np.zeros(2**21, np.uint8), []
    for _ in range(rounds):
        broadcast_s = []
        for _ in range(20):
            comm.Barrier()
            start = time.perf_counter()
            comm.Bcast(buffer)
            comm.Barrier()
            broadcast_s.append(time.perf_counter() - start)
        with mpi_rollout.connect("CartPole-v1", comm.size, policy=Large, infos="none", wait="spin") as envs:
            if envs is not None:
                pairs.append((statistics.median(broadcast_s), _seconds_of_setting(envs)))
    if comm.rank == 0:
        print(json.dumps(pairs))


def _seconds_of_setting(envs: Any) -> float:
    """Seconds of set_policy until all ranks have it: those of it and of a step, less those of a step."""
    parameters, actions = Large().parameters, np.zeros(envs.num_envs, np.int64)
    envs.reset(seed=0)
    with_it, without = [], []
    for _ in range(20):
        start = time.perf_counter()
        envs.set_policy(parameters)
        envs.step(actions)
        middle = time.perf_counter()
        envs.step(actions)
        with_it.append(middle - start)
        without.append(time.perf_counter() - middle)
    return statistics.median(with_it) - statistics.median(without)


def measure_set(rounds: int) -> None:
    print(f"\n{machine()}: 2 MB, {rounds} rounds, median of 20 each\n")
    print("| ranks | Bcast, ms | set_policy over Bcast: median (range) |\n|---|---|---|")
    for num_ranks in (2, 8):
        pairs = json.loads(mpirun(num_ranks, HERE, "set_policy", str(rounds)))
        ratios = spread([setting / broadcast for broadcast, setting in pairs], ".2f")
        print(f"| {num_ranks} | {1000 * statistics.median(pair[0] for pair in pairs):.2f} | {ratios} |")


def measure_start(rounds: int) -> None:
    def seconds(*arguments: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as folder:
        command = "-m mpi_rollout --env CartPole-v1 --num-envs 64 --num-steps 2 --no-trajectories --progress none"
        number = iter(range(10**6))

        def run_s(*options: str) -> float:
            return seconds(*command.split(), "--out", f"{folder}/{next(number)}.h5", *options)

        more = [
            run_s("--policy", "net.pt") - run_s() - seconds("-c", "import torch") + seconds("-c", "")
            for _ in range(rounds)
        ]
    print(f"\n{machine()}: start with net.pt, less that of a random policy and import torch: {spread(more, '.2f')} s")


def main() -> None:
    what, *more = sys.argv[1:] or ["?"]
    inner = {"loop": loop, "sb3": of_sb3}
    if what in inner:
        inner[what](*more)
    elif what == "set_policy":
        set_policy(int(more[0]))
    elif what in ("shares", "set", "start"):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            if what != "set":
                export(Path(folder))
            measure = {"shares": measure_shares, "set": measure_set, "start": measure_start}[what]
            measure(int(more[0]) if more else 5)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
