"""Measure what durability costs: python results/measured/measure_durability.py cost|resume|gzip [ROUNDS].

cost    runs that store, beside the same with a writer that takes no care: no checksums, no SWMR mode, no commits but
        the last, no status file; and beside the same with all that watches envs switched on
resume  how long it takes to take the running episodes again, beside steps of the run
gzip    runs with --compression gzip, beside the same without: env steps per second, and the size of the file
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import BIN, machine, mpirun, spread

HELPERS = Path(__file__).resolve().parents[2] / "tests" / "helpers"
CARTPOLE = "--env CartPole-v1 --num-envs 64 --num-steps 30000 --measure-limit"
WATCHING = "--on-env-error restart --env-timeout-s 60 --check-finite"
PENDULUM = "--env Pendulum-v1 --num-envs 256 --num-steps 1600 --policy stopping_envs:torque"
PACKED = (
    "--env ale_py:ALE/Breakout-v5 --num-envs 64 --num-steps 300",
    "--env HumanoidStandup-v5 --num-envs 64 --num-steps 1000",
    "--env CartPole-v1 --num-envs 64 --num-steps 30000",
)
STOPPED_AT = 1406  # Episodes have 200 steps, and a row lies between two: the seventh is about to end.


def run_careless() -> None:
    """Be a rank of a run whose writer takes no care."""

    from mpi_rollout.cli import main
    from mpi_rollout.storage import filters, run_file, schema
    from mpi_rollout.storage.status import Status

    def create(self, path, swmr_mode=True, is_locked=False):
        return whole_create(self, path, False, is_locked)

    def commit(self, num_steps, episodes):
        self._tables["episodes"].append(episodes.take(num_steps))
        self._write_notes()
        self.num_committed = num_steps

    def finish(self, ending):
        self._file["trajectories"].attrs.modify("num_steps", self.num_committed)
        return whole_finish(self, ending)

    whole_create, schema.Schema.create = schema.Schema.create, create
    whole_finish, run_file.RunFile.finish = run_file.RunFile.finish, finish
    run_file.RunFile._commit = commit
    run_file.check_chunks = lambda path: None
    filters.fletcher32 = lambda array: bytes(filters.CHECKSUM_NBYTES)
    Status.tell = lambda self, state, **values: None
    sys.exit(main(sys.argv[2:]))


def ratio_to_limit(folder: str, *command: str) -> float:
    printed = mpirun(2, *command, *CARTPOLE.split(), "--json", "--progress", "none", "--out", f"{folder}/run.h5")
    for path in Path(folder).iterdir():
        path.unlink()
    return json.loads(printed)["ratio_to_limit"]


def measure_cost(rounds: int) -> None:
    careless, careful = (__file__, "careless"), ("-m", "mpi_rollout")
    found: dict[str, list[float]] = {"as it is": [], "watching envs too": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            base = ratio_to_limit(folder, *careless)
            for name, more in (("as it is", ()), ("watching envs too", WATCHING.split())):
                found[name].append(ratio_to_limit(folder, *careful, *more) / base)
            after = ratio_to_limit(folder, *careless)  # The machine may have changed: the base is taken on both sides.
            for values in found.values():
                values[-1] *= 2 * base / (base + after)
            print(number, *(f"{values[-1]:.3f}" for values in found.values()), file=sys.stderr)
    print(f"{machine()}, 2 ranks: {CARTPOLE}\n")
    print(f"| of a run whose writer takes no care | median (range) of {rounds} |\n|---|---|")
    for name, values in found.items():
        print(f"| {name} | {spread(values)} |")


def start(folder: str, name: str, **extra: str) -> subprocess.CompletedProcess:
    path = f"{HELPERS}:{os.environ.get('PYTHONPATH', '')}"
    command = [BIN / "mpirun", "-n", "2", sys.executable, "-m", "mpi_rollout", *PENDULUM.split(), "--out", name]
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": path}
    more = ["--json", "--progress", "none"]
    return subprocess.run(
        [*command, *more], cwd=folder, env=os.environ | as_root | extra, capture_output=True, text=True
    )


def measure_resume(rounds: int) -> None:
    steps = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            if start(folder, "run.h5", STOP_AT=f"raise:{STOPPED_AT}").returncode != 70:
                sys.exit("the run was not stopped")
            done = start(folder, "run.h5")
            if done.returncode:
                sys.exit(done.stderr)
            found = json.loads(done.stdout)
            num_steps = found["num_steps"] - found["num_steps_before"]
            steps.append(found["catch_up_s"] / (found["seconds"] / num_steps))
    print(f"{machine()}, 2 ranks: {PENDULUM}, stopped before step {STOPPED_AT}\n")
    print(f"bringing the envs back takes as long as {spread(steps, '.0f')} steps of the run, median of {rounds}; ")
    print(f"their running episodes had {(STOPPED_AT - 1) % 201} steps")


def measure_gzip(rounds: int) -> None:
    print(f"{machine()}, 2 ranks\n")
    print(f"| run | rate with gzip over that without: median (range) of {rounds} | size of the file |\n|---|---|---|")
    for command in PACKED:
        rates: dict[str, list[float]] = {"none": [], "gzip": []}
        sizes = {}
        for number in range(rounds):
            for each in list(rates)[:: -1 if number % 2 else 1]:
                with tempfile.TemporaryDirectory() as folder:
                    options = ["--compression", each, "--json", "--progress", "none", "--out", f"{folder}/run.h5"]
                    found = json.loads(mpirun(2, "-m", "mpi_rollout", *command.split(), *options))
                    rates[each].append(found["env_steps_per_s"])
                    sizes[each] = os.path.getsize(f"{folder}/run.h5")
        ratios = [gzip / none for gzip, none in zip(rates["gzip"], rates["none"], strict=True)]
        print(f"| {command} | {spread(ratios)} | 1/{sizes['none'] / sizes['gzip']:.1f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "careless":
        run_careless()
    measure = {"cost": measure_cost, "resume": measure_resume, "gzip": measure_gzip}[sys.argv[1]]
    measure(int(sys.argv[2]) if len(sys.argv) > 2 else 5)
