"""Systems that have the env in another form, other libraries, and the Pythons that have them."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from jobs import Job
from made_up_comparisons import ENV, ENV_S, TIMES, made_up, make_comparison

from mpi_rollout.bench.compare import loop_figure, multiples, published, report
from mpi_rollout.bench.compare.analysis import Analysis
from mpi_rollout.bench.compare.comparison import ComparisonFile, Point, read_comparison
from mpi_rollout.bench.compare.forms import connect_options, run_options
from mpi_rollout.bench.compare.peers import ActionsInTurn, Sampler
from mpi_rollout.bench.compare.pythons import INSTALLS, check_pythons, command_and_path, facts_now, read_pythons
from mpi_rollout.bench.compare.reasons import reason_to_skip
from mpi_rollout.bench.compare.setups import Setup, maker_of
from mpi_rollout.bench.compare.systems import systems_of
from mpi_rollout.bench.compare.turns import BatchSystem, NextStepRows, take_turn
from mpi_rollout.cli import main
from mpi_rollout.errors import UsageError

PEERS = {
    "pufferlib": ("puffer-serial", "puffer-multi"),
    "tianshou": ("tianshou-dummy", "tianshou-subproc", "tianshou-shmem"),
    "torchrl": ("torchrl-serial", "torchrl-parallel", "torchrl-collector"),
    "ray": ("rllib-local", "rllib-remote"),
    "sample_factory": ("sample-factory",),
}


def python_with(folder: Path, found: dict[str, object]) -> str:
    """Make a Python that says it has these packages."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\necho '{json.dumps(found)}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


# What does not apply.


@pytest.mark.parametrize(
    ("name", "env", "num_envs", "reason"),
    [
        ("numba", "Acrobot-v1", 4, "there is no kernel of this env"),
        ("mpi-torch-run-2", "Acrobot-v1", 4, "there is no kernel of this env"),
        ("numba", "CartPole-v1", 1, "1 env for 2 processes"),
        ("gymnax", "Ant-v5", 4, "gymnax has no such env"),
        ("mpi-jax-2", "Ant-v5", 4, "gymnax has no such env"),
        ("mpi-native-run-1", "Acrobot-v1", 4, "the env has no vectorized version of its own"),
        ("mpi-envpool-2", "registered_envs:Counting-v0", 4, "EnvPool has no registered_envs:Counting-v0"),
        ("mpi-envpool-run-2", "CartPole-v1", 1, "1 env for 2 ranks that step envs"),
        ("envpool-async-1", "CartPole-v1", 1, "half of 1 env"),
        ("puffer-multi", "CartPole-v1", 3, "3 envs for 2 processes, which all get as many"),
        ("sample-factory", "CartPole-v1", 1, "1 env for 2 processes"),
        ("tianshou-shmem", "CartPole-v1", 1, ""),
    ],
)
def test_what_does_not_apply_is_skipped_with_the_reason(monkeypatch, name, env, num_envs, reason):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("mpi_rollout.bench.compare.reasons._envs_of_envpool", lambda: {"CartPole-v1"})
    assert reason_to_skip(systems_of((1, 2), 2)[name], env, num_envs, 2) == reason


@pytest.mark.parametrize("package", PEERS)
def test_a_library_that_is_not_installed_is_skipped_with_what_to_install_and_may_be_elsewhere(monkeypatch, package):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in PEERS[package]:
        system = systems_of((1,), 2)[name]
        words = (
            f"{package} is not installed; pip install {INSTALLS[package]}, or name another: --python {package}=PYTHON"
        )
        assert reason_to_skip(system, ENV, 4, 2) == words
        assert reason_to_skip(system, ENV, 4, 2, {package: "venv/bin/python"}) == ""


def test_without_the_libraries_a_comparison_goes_on_and_tells_their_figures_apart(job: Job):
    names = [name for names in PEERS.values() for name in names]
    arguments = ("--env", ENV, "--num-envs", "4", "--repeats", "1", "--window-s", "0.02", "--systems")
    result = job(None, "compare", *arguments, ",".join(["sync", *names]), "--out", "compare.h5")
    assert result.code == 0, result.err
    samples = read_comparison(str(job.folder / "compare.h5")).samples
    skipped = {skip.system for skip in samples.skips}
    assert {turn.system for turn in samples.turns} | skipped == {"bare", "sync", *names}
    told = [line for line in result.out.splitlines() if line.startswith(("skipped: ", "not measured here: "))]
    assert len(told) == 2 * len(skipped)
    assert all(any(title in line for line in told) for title in ("Tianshou DummyVectorEnv", "Sample Factory's"))


# Other Pythons.


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tianshou", "--python must be PACKAGE=PYTHON such as tianshou=venv/bin/python, got 'tianshou'"),
        ("=venv/bin/python", "--python must be PACKAGE=PYTHON"),
        ("jumanji=venv/bin/python", "--python jumanji=venv/bin/python: no system needs jumanji; those needed are"),
    ],
)
def test_another_python_is_named_with_the_package_that_it_has(text, words):
    with pytest.raises(UsageError) as refusal:
        read_pythons([text])
    assert words in str(refusal.value)


def test_another_python_that_does_not_work_is_refused_before_anything_is_measured(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    no_python = tmp_path / "no python"
    no_python.write_text("#!/bin/sh\nexit 1\n")
    no_python.chmod(0o755)
    for python, words in (
        ("nowhere/python", "there is no such program; name the python of an environment"),
        (str(no_python), "is no Python, or does not start: CalledProcessError"),
        (sys.executable, "has no tianshou; install it there"),
    ):
        if python == sys.executable and "tianshou" in facts_now({})["versions"]:
            continue
        assert main(["compare", "--env", ENV, "--python", f"tianshou={python}", "--out", "compare.h5"]) == 64
        assert f"--python tianshou={python}" in (told := capsys.readouterr().err) and words in told
    assert not list(tmp_path.glob("*.h5*"))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"python": [3, 9]}, "is Python 3.9; 3.10 or later is needed"),
        ({"python": [3, 11], "tianshou": "2", "numpy": "1.26"}, "has no gymnasium; install it there"),
        ({"python": [3, 11], "numpy": "1.26"}, "has no tianshou and no gymnasium; install it there"),
    ],
)
def test_another_python_must_have_what_the_comparison_asks_of_it(tmp_path: Path, found, words):
    with pytest.raises(UsageError, match=words):
        check_pythons({"tianshou": python_with(tmp_path, found)})


def test_the_versions_of_another_python_are_facts_of_the_comparison(tmp_path: Path):
    found = {"python": [3, 11], "tianshou": "2.0.1", "gymnasium": "0.29.1", "numpy": "1.26.4"}
    told = facts_now({"tianshou": python_with(tmp_path, found)})["versions"]
    assert "tianshou 2.0.1 (gymnasium 0.29.1, numpy 1.26.4)" in told


def test_another_python_finds_this_package_and_nothing_that_lies_beside_it(tmp_path: Path):
    python, variables = command_and_path("tianshou", {"tianshou": "venv/bin/python"}, tmp_path)
    assert python == "venv/bin/python"
    [link] = Path(variables["PYTHONPATH"]).iterdir()
    assert link.name == "mpi_rollout" and (link / "bench" / "compare" / "server.py").exists()
    assert command_and_path("envpool", {"tianshou": "venv/bin/python"}, tmp_path) == (sys.executable, {})


def test_what_another_python_runs_asks_for_no_more_than_numpy_and_an_old_gymnasium():
    """Gymnasium 0.29 has no AutoresetMode, and such environments have no h5py, mpi4py, tqdm and psutil."""
    code = (
        "import sys, gymnasium.vector\n"
        "gymnasium.make('CartPole-v1')\n"
        "del gymnasium.vector.AutoresetMode\n"
        "for name in ('h5py', 'mpi4py', 'tqdm', 'psutil', 'numba', 'torch'): sys.modules[name] = None\n"
        "from mpi_rollout.bench.compare import server, setups, turns\n"
        "from mpi_rollout.bench.compare.peers import of_puffer, of_rllib, of_sample_factory, of_tianshou, of_torchrl\n"
        "from mpi_rollout.bench.compare.peers import drawn_actions\n"
        "print(len(drawn_actions(setups.Setup('CartPole-v1', 3, 2))[0]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "3\n", done.stderr


def test_a_comparison_with_another_python_steps_there(job: Job):
    """The Python is this one, and the package one that is installed: what it is asked and answers is the same."""
    pytest.importorskip("stable_baselines3")
    arguments = ("--env", ENV, "--num-envs", "4", "--repeats", "1", "--window-s", "0.02", "--systems", "sb3-dummy")
    python = ("--python", f"stable_baselines3={sys.executable}")
    result = job(None, "compare", *arguments, *python, "--out", "compare.h5")
    assert result.code == 0, result.err
    stored = read_comparison(str(job.folder / "compare.h5"))
    assert {turn.system for turn in stored.samples.turns} == {"bare", "sb3-dummy"}
    assert stored.comparison.python_of == {"stable_baselines3": sys.executable}
    refused = job(None, "compare", *arguments, "--out", "compare.h5")
    assert refused.code == 64 and "--python was" in refused.messages[-1]


# Counting.


def test_rows_after_an_end_are_resets_over_several_calls():
    rows = NextStepRows()
    ends = np.zeros((4, 2, 3), np.bool_)
    ends[1, 0, 0] = ends[3, 1, 2] = True
    assert rows.count(ends[:2]) == 6 and rows.count(ends[2:]) == 6 - 1 and rows.count(ends[:1]) == 3 - 1
    rows.begin()
    assert rows.count(ends[:1]) == 3


@pytest.mark.parametrize(("resets_in_next_step", "expected"), [(True, 3 + 2 + 2), (False, 9)])
def test_the_envs_of_libraries_count_rows_as_they_reset_them(resets_in_next_step: bool, expected: int):
    ends, calls = (np.zeros(3, np.bool_), np.array([True, False, False])), []
    envs = ActionsInTurn(lambda: calls.append("reset"), lambda actions: ends, calls.clear, [1], resets_in_next_step)
    envs.reset()
    assert envs.count([envs.sweep() for _ in range(3)]) == expected and calls == ["reset"]


def test_a_sampler_counts_what_it_gives():
    given = iter(range(10, 10_000))
    turn = take_turn(Sampler(lambda: None, lambda: next(given), lambda: None), 0.0)
    assert turn.env_steps == 11 and turn.sweeps == 1  # The first is of the warm-up.


@pytest.mark.parametrize("form", ["numba", "torch"])
def test_a_kernel_counts_the_steps_that_its_rewards_tell(form: str):
    pytest.importorskip(form)
    from mpi_rollout.bench.compare.native_makers import _kernel

    stepper = _kernel(form, Setup(ENV, 7, 2), range(3, 7))
    stepper.reset()
    rewards, sweeps = 0.0, []
    for _ in range(5):
        sweeps.append(stepper.sweep())
        rewards += stepper._columns.rewards.sum()
    assert stepper.count(sweeps[:2]) + stepper.count(sweeps[2:]) == rewards < 5 * 4 * len(stepper._columns.rewards)
    stepper.close()


def test_a_kernel_is_stepped_in_a_process_for_each_core():
    pytest.importorskip("numba")
    made = maker_of("native_makers.numba")(Setup(ENV, 64, 2))
    turn = made.take_turn(0.01)
    made.close()
    assert turn.env_steps > 0 and turn.seconds >= 0.01


@pytest.mark.parametrize("package", ["pufferlib", "tianshou", "torchrl"])
def test_a_library_that_is_installed_is_stepped(package: str):
    pytest.importorskip(package)
    for name in PEERS[package]:
        system = systems_of((1,), 2)[name]
        made: BatchSystem = maker_of(system.maker)(Setup(ENV, 4, 2))
        assert made.take_turn(0.05).env_steps > 0
        made.close()


# Slices of this program.


def test_slices_have_the_options_of_the_command_line():
    assert run_options("", ENV) == {"env": ENV}
    envpool = run_options("envpool", "ALE/Pong-v5")
    assert envpool == {"env": "Pong-v5", "vectorization_mode": "envpool", "env_kwargs": {"num_threads": 1}}
    kernel = {"env": "mpi_rollout/CartPoleNumba-v0", "vectorization_mode": "vector_entry_point"}
    assert run_options("numba", ENV) == kernel
    jax = connect_options("jax", ENV)
    assert jax["env"].__name__ == "gymnax" and jax["env_kwargs"] == {"task": ENV} and "env_factory" not in jax


@pytest.mark.mpi(2)
def test_slices_and_runs_are_measured_beside_what_they_are_made_of(job: Job):
    pytest.importorskip("envpool")
    systems = ("mpi-run-2", "native", "mpi-native-2", "mpi-native-run-2", "envpool-1", "mpi-envpool-2")
    systems += ("mpi-envpool-run-2",)
    arguments = ("--env", ENV, "--num-envs", "4", "--native-num-envs", "8", "--ranks", "2", "--repeats", "1")
    given = (*arguments, "--window-s", "0.02", "--systems", ",".join(systems), "--out", "compare.h5")
    result = job(None, "compare", *given)
    assert result.code == 0, result.err
    turns = read_comparison(str(job.folder / "compare.h5")).samples.turns
    assert {turn.system for turn in turns if turn.num_envs == 4} == {"bare", *systems}
    assert {turn.system for turn in turns if turn.num_envs == 8} == {"bare", *systems} - {"mpi-run-2"}
    assert all(0 < turn.env_steps <= turn.num_envs * turn.sweeps for turn in turns if turn.system.startswith("mpi"))
    lines = result.out.splitlines()
    assert "-- another implementation of the same task" in lines and "-- the env itself" in lines
    assert any(
        line.startswith("mpi_rollout with EnvPool slices, run, beside EnvPool, sync, 1 thread: ") for line in lines
    )


# What is told.


def test_the_table_of_multiples_is_over_the_fastest_bare_loop_each_with_its_best_number_of_envs(monkeypatch):
    for name in ("envpool", "mpi-run-2"):
        monkeypatch.setitem(TIMES, name, (ENV_S / 10, 1e-5))
    file = made_up(make_comparison(systems=tuple(TIMES)))
    analysis = Analysis(file.comparison, file.samples)
    found = {each.row: each for each in multiples.multiples(analysis, ENV)}
    assert list(found) == [row for row in multiples.ROWS if row in found]
    assert found["for-loop"].ratio.median == pytest.approx(1)
    ours, pool = found["mpi_rollout"], found["EnvPool, sync"]
    assert (ours.system, ours.num_envs) == ("mpi-run-2", 64) and pool.num_envs == 64
    assert pool.ratio.median == pytest.approx(64 * ENV_S / (64 * ENV_S / 10 + 1e-5))
    assert found["Gymnasium's NumPy, ALE"].ratio.median > found["mpi_rollout, NumPy or ALE slices"].ratio.median
    text = "\n".join(report.lines(file))
    assert f"{ENV}: times the bare loop on one core, each with the number of envs that suits it best" in text


def test_ratios_that_are_near_each_other_are_drawn_on_a_linear_axis():
    file = made_up(make_comparison(systems=("sync", "mpi-2")))
    assert drawn_scale(file) == "linear"
    assert drawn_scale(made_up(make_comparison())) == "log"  # NumPy is 50 times the loop.


def drawn_scale(file: ComparisonFile) -> str:
    pytest.importorskip("matplotlib")
    return loop_figure.picture(file, Analysis(file.comparison, file.samples), [ENV]).axes[0].get_xscale()


def test_a_row_of_the_announcement_is_of_one_kind():
    for system in systems_of((1, 2), 2).values():
        rows = [row for row, is_in in multiples.ROWS.items() if is_in(system)]
        assert len(rows) <= 1, system.name
        after = [*multiples.ROWS].index(multiples.FIRST_NATIVE)
        assert not rows or ([*multiples.ROWS].index(rows[0]) >= after) == system.is_native


def test_published_figures_are_of_systems_and_have_a_source_and_a_date():
    names = systems_of((1,), 2)
    for name, figure, source in published.PUBLISHED:
        assert name in names and "env steps/s" in figure and "202" in source
    assert all(len(row) == len(published.MACHINES) for row in published.ANNOUNCED.values())


def test_published_figures_are_told_of_what_was_not_measured_alone(monkeypatch):
    monkeypatch.setitem(TIMES, "tianshou-dummy", (ENV_S, 1e-5))
    monkeypatch.setitem(TIMES, "tianshou-shmem", (ENV_S, 1e-5))
    file = made_up(make_comparison(systems=("tianshou-dummy", "tianshou-shmem", "sync")), failing="tianshou-shmem")
    assert [line.partition(": ")[2].partition(":")[0] for line in published.lines(file)] == ["Tianshou ShmemVectorEnv"]


def test_systems_that_step_another_implementation_have_a_part_of_the_table():
    file = made_up(make_comparison())
    lines = report.matrix(Analysis(file.comparison, file.samples), ENV, lambda cell: "x")
    heads = [place for place, line in enumerate(lines) if line.startswith("--")]
    assert [lines[place] for place in heads] == [
        "-- the env itself",
        "-- another implementation of the same task",
    ]
    assert any("vector_entry_point" in line for line in lines[heads[1] :])
    assert not any("vector_entry_point" in line for line in lines[: heads[1]])


def test_with_more_envs_only_those_in_another_form_and_the_bare_loop_are_measured():
    comparison = make_comparison(num_envs=(4,), native_num_envs=(4, 1024))
    assert comparison.sizes == (4, 1024)
    assert {system.name for system in comparison.systems_at(Point(ENV, 4))} == set(TIMES)
    names = {system.name for system in comparison.systems_at(Point(ENV, 1024))}
    assert names == {"bare", "native", "mpi-native-1"}
