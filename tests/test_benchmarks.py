"""The programs of `benchmarks/`: what they share, a system of each kind, and the tables of what was measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import CLONE, job_environment

BENCHMARKS = CLONE / "benchmarks"


def python(*arguments: str | Path) -> str:
    command = [sys.executable, *map(str, arguments)]
    environment = job_environment(PYTHONPATH=f"{CLONE}:{BENCHMARKS}:{CLONE / 'tests/helpers'}")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_turns_are_in_another_order_in_each_round_and_ratios_are_taken_within_a_round():
    program = """
from measuring import ratios, spread, table, turns
taken = []
values = turns({name: lambda name=name: taken.append(name) or len(taken) for name in "abc"}, 4)
assert all(sorted(taken[start : start + 3]) == ["a", "b", "c"] for start in range(0, 12, 3)), taken
assert len({tuple(taken[start : start + 3]) for start in range(0, 12, 3)}) > 1
assert all(taken[number - 1] == name for name in values for number in values[name])
assert ratios([1, 9], [2, 3]) == [0.5, 3.0] and spread([3, 1, 2], ".1f") == "2.0 (1.0 to 3.0)"
table(("a", "b"), [(1, 2)])
"""
    assert python("-c", program) == "| a | b |\n|---|---|\n| 1 | 2 |\n\n"


@pytest.mark.parametrize("name", ["native:entry_point", "native:envpool_async_1", "pool:pool"])
def test_a_system_takes_a_turn(name: str):
    pytest.importorskip("envpool" if "envpool" in name else "gymnasium")
    setup = {"env": {"env": "CartPole-v1", "env_factory": None, "env_kwargs": {}}, "num_envs": 4, "num_cores": 2}
    words = ("-m", "mpi_rollout.studies.compare", f"systems.{name}", "0.01", json.dumps(setup))
    assert json.loads(python(*words).splitlines()[-1])["env_steps_per_s"] > 0


def test_what_a_turn_counts_are_the_env_steps_of_its_window():
    """A second passes with each look at the clock; a window has two sweeps or more."""
    program = """
import itertools
import numpy as np
import systems.stepped as stepped
stepped.perf_counter = map(float, itertools.count()).__next__
resets, ends = [], itertools.cycle(np.array([[[False], [False]], [[True], [False]], [[False], [False]]]))
stepper = stepped.Stepper(lambda: resets.append(1), lambda: next(ends), stepped.count_rows)  # The third row resets.
print(stepper.step_for(6.0), stepper.step_for(0.5), stepper(3.0), resets)
"""
    assert python("-c", program) == "(4, 6.0) (2, 2.0) 0.6666666666666666 [1]\n"


@pytest.mark.parametrize(
    ("env_id", "num_envs", "num_processes"), [("registered_envs:Counting-v0", 5, 2), ("CartPole-v1", 3, 3)]
)
def test_a_pool_gives_what_sync_vector_env_gives(env_id: str, num_envs: int, num_processes: int):
    program = f"""
import numpy as np
from gymnasium.vector import SyncVectorEnv
from mpi_rollout.studies.compare import Setup, drawn_actions
from systems.pool import process_pool
setup = Setup({{"env": {env_id!r}, "env_factory": None, "env_kwargs": {{}}}}, {num_envs}, 2)
functions = setup.maker().functions(range({num_envs}))
envs = SyncVectorEnv(functions)
with process_pool(functions, {num_processes}, seed=7) as step:
    assert step(None)[0].tobytes() == envs.reset(seed=7)[0].tobytes()
    for actions in drawn_actions(envs.action_space):
        ours, theirs = step(actions), envs.step(actions)[:4]
        assert all(np.array_equal(one, other) for one, other in zip(ours, theirs, strict=True))
"""
    python("-c", program)


def test_every_system_of_the_table_is_in_a_module():
    program = """
from importlib import import_module
from systems import all_systems
for system in all_systems(2).values():
    module, _, function = system.make.partition(":")
    assert callable(getattr(import_module(module), function)), system
print(*all_systems(2))
"""
    names = python("-c", program).split()
    assert len(names) == len(set(names)) > 35 and names[0] == "bare"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("compare", "process pool, 2 processes 114.1 4.449 "),  # t_os and t_row.
        ("compare-peers", "subprocess (AsyncVectorEnv) 3.7 11 4.8 18 0.109"),
    ],
)
def test_the_tables_of_what_was_measured_are_made_from_its_file(name: str, words: str):
    text = python(BENCHMARKS / "compare.py", "tables", CLONE / f"results/measured/{name}.json")
    assert words in " ".join(text.split())


def test_the_table_of_bars_tells_medians_and_how_many_are_reached(tmp_path: Path):
    rows = {"one": {"before": "0.5", "bar": 0.9, "samples": [0.95, 0.8, 0.92]}}
    rows["two"] = {"before": "0.6", "bar": 0.97, "samples": [0.9, 0.91]}
    (tmp_path / "bars.json").write_text(json.dumps({"machine": "here", "cores_of_others": [0.1, 0.3], "rows": rows}))
    text = python(BENCHMARKS / "bars.py", "draw", tmp_path / "bars.json")
    assert "| one | 0.5 | 0.92 (0.80 to 0.95) | 0.9 |\n" in text and "0.20 (0.10 to 0.30) cores" in text
    assert "1 of 2 figures reach their bar" in (tmp_path / "bars.svg").read_text()


def test_each_program_says_what_it_measures():
    for path in BENCHMARKS.glob("*.py"):
        assert path.read_text().startswith('"""'), path
