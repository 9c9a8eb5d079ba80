"""Sample Factory's sampler without a learner: its workers step envs, and its small network chooses the actions."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty
from tempfile import TemporaryDirectory
from typing import Any

from mpi_rollout.studies.compare import Setup
from systems.stepped import Stepper, make_env

ROLLOUT = 32  # Steps of an env in a trajectory.


def _make(name: str, _config: Any, _env_config: Any, render_mode: str | None = None) -> Any:
    return make_env(name)


def _config(setup: Setup, folder: str) -> Any:
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args

    envs_per_worker = setup.num_envs // setup.num_cores
    options = {
        "env": setup.env["env"],
        "num_workers": setup.num_cores,
        "num_envs_per_worker": envs_per_worker,
        "worker_num_splits": 2 if envs_per_worker % 2 == 0 else 1,  # 2: its double buffering.
        "rollout": ROLLOUT,
        "batch_size": ROLLOUT * setup.num_envs,
        "device": "cpu",
        "train_dir": folder,
        "use_rnn": False,
        "normalize_input": False,
    }
    words = ["--encoder_mlp_layers", "8", *(f"--{name}={value}" for name, value in options.items())]
    parser, _ = parse_sf_args(words)
    return parse_full_cfg(parser, words)


@contextmanager
def sampler(setup: Setup) -> Iterator[Stepper]:
    """Make its workers, one for each core."""
    from sample_factory.algo.sampling.simplified_sampling_api import SyncSamplingAPI
    from sample_factory.algo.utils.env_info import extract_env_info
    from sample_factory.algo.utils.make_env import make_env_func_batched
    from sample_factory.algo.utils.rl_utils import samples_per_trajectory
    from sample_factory.envs.env_utils import register_env

    register_env(setup.env["env"], _make)
    with TemporaryDirectory() as folder:  # It writes there, and else into the working folder.
        config = _config(setup, folder)
        env = make_env_func_batched(config, env_config=None)
        facts = extract_env_info(env, config)
        env.close()
        sampling = SyncSamplingAPI(config, facts)
        sampling.start()

        def drop_old() -> None:
            with suppress(Empty):
                while True:
                    sampling.traj_queue.get_nowait()

        yield Stepper(drop_old, lambda: int(samples_per_trajectory(sampling.get_trajectories_sync())))
        sampling.stop()
