"""Measure vector envs of all kinds side by side: python benchmarks/compare.py measure NAME [--python PACKAGE=PYTHON].

    measure overheads       CartPole, Acrobot, HumanoidStandup with 1 to 256 envs: pool, Dummy, Subproc, with their t_os
    measure announcement    the table with which EnvPool was announced, for this machine
    measure peers           PufferLib, Tianshou, TorchRL, RLlib, Sample Factory and all others: 64 CartPoles
    measure native          CartPole implemented anew, with up to 16,384 envs
    tables|draw FILE.json   tables, or pictures beside the file

Each turn is a process of its own, and repeats are in random order: see `mpi_rollout/studies/compare.py`, whose turns
these are.  The file has all of them; it is results/measured/compare-NAME.json unless --out names another.  Libraries
that ask for an older Gymnasium or NumPy have an environment of their own, whose Python --python names: it needs no more
than NumPy, Gymnasium and the library, on Python 3.10 or later.
"""

import argparse
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from measuring import MEASURED, environment
from systems import all_systems, reason_to_skip

from mpi_rollout.process.clock import utc_now
from mpi_rollout.process.host import num_usable_cores
from mpi_rollout.studies.compare import Setup
from mpi_rollout.studies.compare import measure as take_turns
from mpi_rollout.studies.jobs import JobOptions
from mpi_rollout.studies.study_file import machine_facts

LOOPS = "bare,bare-all,mpi-1,mpi-R,mpi-fragments-R,sync,async,pool,sb3-dummy,sb3-subproc,envpool,envpool-async,minari"
NATIVE = (
    "bare,native,envpool-1,envpool-async-1,envpool,envpool-async,numba,torch,cuda,gymnax,mpi-native-R,mpi-native-run-R,"
)
NATIVE += "mpi-envpool-R,mpi-envpool-run-R,mpi-numba-R,mpi-numba-run-R,mpi-cuda-run-R,mpi-jax-run-R"
ANNOUNCED = "bare,async,sample-factory,envpool-1,envpool-async-1,envpool,envpool-async,mpi-R,mpi-run-R,"
ANNOUNCED += "mpi-envpool-run-R,mpi-native-run-R,mpi-numba-run-R"
PRESETS: dict[str, dict[str, Any]] = {
    "overheads": {
        "env": "CartPole-v1,Acrobot-v1,HumanoidStandup-v5", "num_envs": "1,2,4,8,16,64,256", "systems": LOOPS,
        "repeats": 5, "window_s": 0.25,
    },
    "announcement": {
        "env": "CartPole-v1,ALE/Pong-v5,Ant-v5", "num_envs": "32", "systems": ANNOUNCED, "repeats": 7, "window_s": 0.3,
    },
    "peers": {"env": "CartPole-v1", "num_envs": "64", "systems": "", "repeats": 9, "window_s": 0.3},
    "native": {
        "env": "CartPole-v1", "num_envs": "64,1024,16384", "systems": NATIVE, "repeats": 9, "window_s": 0.15,
    },
}  # fmt: skip


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Take all turns; the file is written anew after each point."""
    num_cores, pythons = num_usable_cores(), dict(text.split("=", 1) for text in options.python)
    known = all_systems(num_cores)
    names = {name.replace("-R", f"-{num_cores}") for name in options.systems.split(",")} if options.systems else known
    systems = [system for name, system in known.items() if name in names or name == "bare"]
    study: dict[str, Any] = {"command": " ".join(["python", *sys.argv]), "host": os.uname().nodename}
    study |= {"started": utc_now(), **machine_facts(), "window_s": options.window_s, "pythons": pythons}
    study |= {"systems": {each.name: {"title": each.title, "kind": each.kind} for each in systems}}
    study |= {"turns": [], "skips": []}
    for env, num_envs in itertools.product(options.env.split(","), map(int, options.num_envs.split(","))):
        setup = Setup({"env": env, "env_factory": None, "env_kwargs": {}}, num_envs, num_cores)
        point, applying = {"env": env, "num_envs": num_envs}, []
        for system in systems:
            if why := reason_to_skip(system, setup, pythons):
                study["skips"].append({**point, "system": system.name, "reason": why})
            else:
                applying.append(system)
        jobs = JobOptions(repeats=options.repeats, timeout_s=options.timeout_s)
        for sample in take_turns(setup, applying, jobs, options.window_s, pythons):
            study["turns"].append({**point, **sample._asdict(), "error": sample.error.partition("\n")[0]})
        write(study, options.out)
        sys.stderr.write(f"{env}, {num_envs} envs: {len(applying)} systems\n")
    return study


def write(study: dict[str, Any], path: Path) -> None:
    """Write a comparison, a turn a line."""
    text = json.dumps(study, separators=(",", ":")).replace('{"env":', '\n{"env":')
    path.with_suffix(".new").write_text(text + "\n")
    path.with_suffix(".new").replace(path)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("measure", help="measure, and print the tables").add_argument
    add("name", choices=list(PRESETS))
    add("--python", action="append", default=[], metavar="PACKAGE=PYTHON", help="has systems that are not here")
    add("--timeout-s", type=float, default=300.0)
    add("--out", type=Path)
    for option, kind in (("env", str), ("num-envs", str), ("systems", str), ("repeats", int), ("window-s", float)):
        add(f"--{option}", type=kind, help="instead of what NAME has")
    for name in ("tables", "draw"):
        commands.add_parser(name).add_argument("file", type=Path)
    options = parser.parse_args()
    for name, value in PRESETS.get(getattr(options, "name", ""), {}).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def main() -> None:
    os.environ.update(environment())
    options = parsed()
    if options.command == "measure":
        options.out = options.out or MEASURED / f"compare-{options.name}.json"
        study = measure(options)
    else:
        study = json.loads(options.file.read_text())
    if options.command == "draw":
        from compare_pictures import draw

        print("\n".join(draw(study, str(options.file.with_suffix("")))))
    else:
        from compare_tables import lines

        print("\n".join(lines(study)))


if __name__ == "__main__":
    main()
