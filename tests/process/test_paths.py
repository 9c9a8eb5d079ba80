"""What `MODULE:CALLABLE` and `FILE.py:CALLABLE` load, and what is said where they cannot."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import Job, Start, job_environment

from mpi_rollout.errors import Option, RolloutError, as_flag
from mpi_rollout.policies.sources import load_policy
from mpi_rollout.process.paths import load_callable

MINE = """
import gymnasium

import mine_too


class Env(gymnasium.Wrapper):
    pass


def make():
    return Env(gymnasium.make("CartPole-v1"))


class Act:
    def __call__(self, observations):
        return mine_too.choose(observations)


class Actor:
    def act(self, observations):
        return mine_too.choose(observations)


class Sized:
    def __init__(self, size):
        pass


class Broken:
    def __init__(self):
        raise ArithmeticError("no weights")


class Mute:
    pass


actor = Actor()
"""
BESIDE = "import numpy as np\ndef choose(observations): return np.zeros(len(observations), np.int64)\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("mine", "mine_too"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "mine_too.py").write_text(BESIDE)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/json.py").write_text("def make(): pass\n")
    yield tmp_path
    for name in ("mine", "mine_too"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("source", ["./mine.py", "mine.py", "./mine", "../{0.name}/mine.py", "{0}/mine.py"])
def test_a_callable_of_a_file_is_that_of_its_module(folder: Path, source: str):
    make = load_callable(f"{source.format(folder)}:make", Option("env_factory"))
    assert make.__module__ == "mine" and make is load_callable("mine:make", Option("env_factory"))


def test_classes_of_a_file_can_be_pickled_and_read_where_the_path_is_the_same(folder: Path):
    load_callable("./mine.py:make", Option("env_factory"))
    (folder / "act").write_bytes(pickle.dumps(load_policy("./mine.py:Act")))
    code = f"import pickle, sys; sys.path.insert(0, {str(folder)!r}); pickle.load(open({str(folder / 'act')!r}, 'rb'))"
    subprocess.run([sys.executable, "-c", code], check=True, env=job_environment())


@pytest.mark.parametrize("name", ["Act", "Actor", "actor"])
def test_a_policy_may_be_a_class_which_is_called_once_or_have_a_method_act(folder: Path, name: str):
    assert load_policy(f"mine.py:{name}")([1, 2, 3]).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        ("mine.py", 64, "must be MODULE:CALLABLE or FILE.py:CALLABLE, got 'mine.py'"),
        ("mien.py:make", 64, "mien.py:make: there is no file {folder}/mien.py"),
        ("sub/json.py:make", 64, "json is also the name of "),
        ("mine.py:mkae", 64, "module 'mine' has no attribute 'mkae'; did you mean make?"),
        ("mine.py:Sized", 64, "is called once, to make the policy: missing a required argument: 'size'; it takes size, "
                              "by --policy-kwargs and --policy-device"),
        ("mine.py:Broken", 70, "Broken() raises ArithmeticError: no weights"),
        ("mine.make", 64, "got 'mine.make'; did you mean mine:make?"),
        ("mine.make()", 64, "got 'mine.make()'; did you mean mine:make?"),
        ("mine.py", 64, "got 'mine.py'; did you mean mine.py:CALLABLE?"),
        ("mine:make()", 64, "must name a callable, not call it, got 'mine:make()'; use mine:make"),
        ("mien.make", 64, "got 'mien.make'; the file of a network ends in"),
        ("mine.py:Mute", 64, "mine.py:Mute is Mute, not callable; give a function of a batch of observations"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_loaded_is_refused_with_the_way_out(folder: Path, spec: str, code: int, words: str):
    sys.path.insert(0, str(folder))  # As `python -m` has the current folder.
    with pytest.raises(RolloutError) as caught:
        load_policy(spec)
    message = caught.value.shown(as_flag)
    assert words.format(folder=folder) in message and caught.value.exit_code == code
    assert message.startswith("--policy ") and str(caught.value).startswith("policy ")


def test_a_policy_that_is_named_without_its_ending_is_told(folder: Path):
    """As Stable-Baselines3 takes it: `PPO.load("ppo")` reads `ppo.zip`."""
    with pytest.raises(RolloutError, match=r"got 'ppo'; the file of a network ends in \.zip, .*, \.pt or \.pth$"):
        load_policy("ppo")
    (folder / "ppo.zip").touch()
    with pytest.raises(RolloutError, match=r"got 'ppo'; did you mean ppo\.zip\?$"):
        load_policy("ppo")


@pytest.mark.any_mpi
@pytest.mark.mpi
def test_all_ranks_load_a_file_and_a_replay_and_the_same_command_again_load_it_too(job: Job, folder: Path):
    arguments = ("--env-factory", "./mine.py:make", "--policy", "./mine.py:Act", "--num-envs", "2", "--num-steps", "9")
    job.collect(2, *arguments)
    replayed, refused, again = job.series(
        [
            Start(["verify", "run.h5", "--replay", "2", "--env-factory", "./mine.py:make"]),
            Start(["verify", "run.h5", "--replay", "2"]),
            Start([*arguments, "--out", "run.h5"]),
        ]
    )
    assert replayed.code == 0 and "every byte the same" in replayed.out
    assert refused.code == 64 and "--env-factory ./mine.py:make; add that if it is what you expect" in refused.err
    assert again.code == 0 and "of the same run and complete" in again.err
