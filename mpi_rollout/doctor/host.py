"""Examining what only the root needs, on its host: HDF5, the output's folder, leftovers, extras, an env."""

import importlib.metadata
import os
from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from mpi_rollout.core.layout import leaves
from mpi_rollout.doctor.findings import FILES, Finding
from mpi_rollout.doctor.folder import judge_folder
from mpi_rollout.doctor.launch import judge_slurm
from mpi_rollout.doctor.leftovers import judge_segments, judge_sessions, judge_shared_memory
from mpi_rollout.doctor.probe import Report
from mpi_rollout.envs.bare import time_steps

EXTRAS = {"mujoco": "mujoco", "ale_py": "ale-py", "matplotlib": "matplotlib", "stable_baselines3": "stable-baselines3",
          "torch": "torch", "onnxruntime": "onnxruntime", "minari": "minari", "envpool": "envpool",
          "hdf5plugin": "hdf5plugin"}  # fmt: skip


def examine_host(report: Report, folder: str, env_id: str | None) -> None:
    """Examine this host as the root of a run."""
    report.check("slurm", "start the doctor again", "launch", lambda: judge_slurm(os.environ))
    report.check("HDF5", "pip install --force-reinstall h5py", "launch", judge_hdf5)
    advice = "choose another folder by --out; delete .mpi_rollout-doctor-* in it, if there is one"
    report.check("folder", advice, FILES, lambda: _each(report, judge_folder(folder)))
    report.check("shared memory", "ask whoever runs this machine about /dev/shm", "launch", judge_shared_memory)
    report.check("segments", "look into /dev/shm", "launch", judge_segments)
    report.check("sessions", "look into TMPDIR", "launch", judge_sessions)
    report.check("extras", "look at pip list", "launch", judge_extras)
    if env_id is not None:
        advice = "try the env without MPI: gymnasium.make, reset and step in a Python of this environment"
        report.check("env", advice, "launch", lambda: judge_env(env_id))
    report.done()


def _each(report: Report, findings: Iterator[Finding]) -> list[Finding]:
    """Report each as soon as it is there: the next may never be."""
    for finding in findings:
        report(finding)
    return []


def judge_hdf5() -> list[Finding]:
    import h5py

    return [Finding("HDF5", f"h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version}")]


def judge_extras() -> list[Finding]:
    """Without importing any: some take seconds."""
    installed = [f"{module} {_version(name)}" for module, name in EXTRAS.items() if find_spec(module)]
    absent = [module for module in EXTRAS if not find_spec(module)]
    return [Finding("extras", f"{', '.join(installed) or 'none'}; not installed: {', '.join(absent) or 'none'}")]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "(version unknown)"


def judge_env(env_id: str) -> list[Finding]:
    """Make one env and step it with random actions for a second."""
    import gymnasium

    env = gymnasium.make(env_id)
    try:
        nbytes = sum(leaf.nbytes for leaf in leaves(env.observation_space))
        times = time_steps(env)
    finally:
        env.close()
    step_us = float(np.mean(times.step_s)) * 1e6
    found = f"{env_id}: {step_us:,.1f} us per step, observations of {nbytes:,} bytes"
    if times.steps_per_episode:
        found += f", {times.reset_mean_s * 1e6:,.1f} us per reset after {times.steps_per_episode:,.0f} steps on average"
    return [Finding("env", found, figures={"env_step_us": step_us, "observation_bytes": nbytes})]
