"""Measure policies on the ranks: python benchmarks/policies.py shares [ROUNDS].

64 CartPoles and a network of 2 x 64 on two ranks, on the ranks or on the root: env steps/s over those of two processes
that loop over 32 envs and the network by themselves.
"""

import contextlib
import io
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from measuring import ROUNDS, main, python, ratios, run, spread, table, turns

NUM_ENVS, NUM_STEPS, LOOP_S = 64, 8000, 2.5
SIZES = (4, 64, 64, 2)
HERE = str(Path(__file__).resolve())
POLICIES = {"numpy": f"{HERE}:make_policy", "onnx": "net.onnx", "torch": "net.pt", "sb3": "net.zip"}
TRUST = "--trust-policy"  # TorchScript is code.
WAYS = {
    "on the ranks, L = 64": ("--fragment-length", "64"),
    "the same, blocks of 32": ("--fragment-length", "64", "--policy-block", "32"),
    "on the root": ("--policy-on", "root"),
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


def loop(kind: str, loop_s: str | float = LOOP_S) -> None:
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
    while time.perf_counter() - start < float(loop_s):
        for index, action in enumerate(act(observations).tolist()):
            observation, _, terminated, truncated, _ = envs[index].step(action)
            if terminated or truncated:
                observation, _ = envs[index].reset(seed=next(seeds[index]))
            observations[index] = observation
        num_steps += num_envs
    print(num_steps / (time.perf_counter() - start))


def rate(kind: str, options: tuple[str, ...], num_steps: int = NUM_STEPS) -> float:
    """Env steps per second of a run."""
    words = f"--num-envs {NUM_ENVS} --num-steps {num_steps} --no-trajectories --policy {POLICIES[kind]}"
    words = f"--env CartPole-v1 {words}"
    return run(2, words, *options, *([TRUST] if kind == "torch" else []))["env_steps_per_s"]


def loop_rate(kind: str, loop_s: float = LOOP_S) -> float:
    """Env steps per second of two ranks' own loops."""
    return sum(map(float, python(2, HERE, "loop", kind, loop_s).split()))


def shares(rounds: int = ROUNDS) -> None:
    def rows(kind: str) -> Iterator[tuple[str, ...]]:
        ways: dict[str, Callable[[], float]] = {way: partial(rate, kind, options) for way, options in WAYS.items()}
        ways["bare"] = partial(loop_rate, kind)
        rates = turns(ways, rounds)
        bare = rates.pop("bare")
        for way, values in rates.items():
            yield kind, way, f"{median(values):,.0f}", spread(ratios(values, bare), ".2f")

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        export(Path(folder))
        head = "policy", "where", "env steps/s", "of each rank's own loop: median (range)"
        table(head, (row for kind in POLICIES for row in rows(kind)))


if __name__ == "__main__":
    main(__doc__, {"shares": shares}, {"loop": loop})
