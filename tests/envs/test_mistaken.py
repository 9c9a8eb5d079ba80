"""What is no env, and what no file can hold, is refused in one line with the way out, by runs and trainers."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import refused_envs
from gymnasium.error import DependencyNotInstalled
from gymnasium.vector import AutoresetMode
from jobs import Job, Result, Start
from refusals import refusal

from mpi_rollout.envs.env_maker import EnvMaker, make_slice
from mpi_rollout.errors import EnvError, RolloutError, UsageError

pytestmark = pytest.mark.any_mpi

OTHER_NAME = "which cannot be a name in HDF5; rename it with gymnasium.wrappers.Transform{} around the env, or use -"
OF_A_FILE = {
    "slash": f"space has the key 'a/b', {OTHER_NAME}",
    "no name": f"space has the key '', {OTHER_NAME}",
    "dots": f"space has the key '..', {OTHER_NAME}",
    "zero byte": f"space has the key 'a\\x00b', {OTHER_NAME}",
    "no text": f"space has the key '\\udcff', {OTHER_NAME}",
    "integers": f"space has the key 1, {OTHER_NAME}",
    "no numbers": "space has no numbers to store, its part 'none' of shape (0,); leave it out with gymnasium.wrappers.",
    "no choices": "space has no numbers to store, it is a MultiDiscrete of shape (0,); leave it out with gymnasium.wr",
}
OF_ACTIONS = "the action space has an empty {}, which cannot be batched; leave it out with gymnasium.wrappers.Tran"
OF_ENVS = {
    (
        "observing",
        "empty Dict",
    ): "the observation space is an empty Dict; give it a member with gymnasium.wrappers.T",
    ("observing", "empty Tuple"): "the observation space is an empty Tuple; give it a member with gymnasium.wrappers.T",
    ("acting", "empty Dict"): OF_ACTIONS.format("Dict"),
    ("acting", "empty Tuple"): OF_ACTIONS.format("Tuple"),
    ("acting", "in a Dict"): OF_ACTIONS.format("Tuple"),
    ("spaceless", "action_space"): "must return an env, got one without action_space; set self.action_space in its __i",
    ("spaceless", "observation_space"): "got one without observation_space; set self.observation_space in its __init__",
    ("forgetful",): "refused_envs:forgetful must return an env, got None; does it lack a return?",
    ("unmade",): "refused_envs:unmade must return an env, got the class Env; return an instance, Env(...)",
    ("vectorized",): "must return an env, got the vectorized CartPoleVectorEnv; return a single env",
    ("other",): "must return an env, got array([0., 0., 0.]); derive its class from gymnasium.Env",
    ("of_gym", "0.21.0"): "got Old, an env of the old gym; return shimmy.GymV21CompatibilityV0(env=env), after pip ins",
    (
        "Unseeded",
    ): "reset of Unseeded must take seed and options by name, with defaults, got reset(self); write def res",
    (
        "Needy",
    ): "reset of Needy must take seed and options by name, with defaults, got reset(self, seed, options); write",
    ("Idle",): "refused_envs:Idle: step of Idle must take one action, got step(self); write def step(self, action)",
    (
        "wrapped",
        "Unseeded",
    ): "refused_envs:wrapped: reset of Unseeded must take seed and options by name, got reset(self",
    ("of_gym", "0.26.2"): "return shimmy.GymV26CompatibilityV0(env=env), after pip install 'shimmy[gym-v26]'",
}
WHILE_STEPPING = {
    "done": "its step should return observation, reward, terminated, truncated and info, got 4 values; return term",
    "bare": "env 0, reset: its reset should return observation and info, got ndarray; return both; for an env of gym",
}


def kwargs_of(make: str, *arguments: str) -> dict[str, str]:
    return dict(zip({"of_gym": ["version"], "wrapped": ["kind"]}.get(make, ["name"]), arguments, strict=False))


def start(make: str, *arguments: str, more: tuple[str, ...] = ()) -> Start:
    return Start(
        ["--env-factory", f"refused_envs:{make}", "--env-kwargs", json.dumps(kwargs_of(make, *arguments)),
         "--num-envs", "2", "--num-steps", "3", "--progress", "none", "--out", "run.h5", *more]
    )  # fmt: skip


RUNS = {
    **{("observing", name): (words.format("Observation"), 64) for name, words in OF_A_FILE.items()},
    **{("acting", name): (OF_A_FILE[name].format("Action"), 64) for name in ("slash", "no numbers")},
    **{case: (OF_ENVS[case], 64) for case in (("observing", "empty Dict"), ("forgetful",), ("of_gym", "0.21.0"))},
    ("Unseeded",): (OF_ENVS["Unseeded",], 64),
    **{(make,): (words, 65) for make, words in WHILE_STEPPING.items()},
}  # fmt: skip
GOOD = [("observing", "in a Dict"), ("acting", "indices")]
UNSTORED = ("slash", "zero byte", "no numbers")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[tuple[str, ...], Result]]:
    """How each run ends, and the folder in which all were."""
    job = Job(tmp_path_factory.mktemp("mistaken"))
    cases = [*RUNS, *GOOD]
    starts = [start(*case) for case in RUNS]
    starts += [start(*case, more=("--out", f"{n}.h5")) for n, case in enumerate(GOOD)]
    starts += [start("observing", name, more=("--no-trajectories", "--out", f"{name}.h5")) for name in UNSTORED]
    cases += [("unstored", name) for name in UNSTORED]
    return job.folder, dict(zip(cases, job.series(starts), strict=True))


@pytest.mark.parametrize("case", RUNS, ids=" ".join)
def test_a_run_refuses_it_in_one_line_and_leaves_nothing(ended: tuple[Path, dict], case: tuple[str, ...]):
    words, code = RUNS[case]
    assert words in refusal(ended[1][case], code)
    assert not (ended[0] / "run.h5").exists() and not (ended[0] / "run.h5.part").exists()


@pytest.mark.parametrize("case", [*GOOD, *(("unstored", name) for name in UNSTORED)], ids=" ".join)
def test_what_can_be_stored_or_is_not_stored_runs(ended: tuple[Path, dict], case: tuple[str, ...]):
    assert ended[1][case].code == 0, ended[1][case].err


@pytest.mark.parametrize("case", OF_ENVS, ids=" ".join)
def test_a_trainer_is_told_the_same_as_a_run(monkeypatch: pytest.MonkeyPatch, case: tuple[str, ...]):
    monkeypatch.setitem(sys.modules, "gym", None)  # Is as before in the end, whatever a case puts there.
    with pytest.raises(RolloutError) as caught:
        make_slice(EnvMaker(getattr(refused_envs, case[0]), kwargs_of(*case)), range(2))
    assert OF_ENVS[case] in str(caught.value)


@pytest.mark.parametrize("name", [*OF_A_FILE, "in a Dict"])
def test_a_trainer_gets_observations_that_no_file_can_hold(name: str):
    envs = make_slice(EnvMaker(refused_envs.observing, {"name": name}), range(2))
    observations, _ = envs.reset(seed=2**70)
    assert envs.observation_space.contains(observations)


def test_an_env_of_an_old_version_needs_no_package_but_its_latest_version():
    pytest.importorskip("mujoco")
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(RolloutError, match=r"gymnasium-robotics.*; use its latest ver"),
    ):
        EnvMaker("HalfCheetah-v3")()


def test_wrappers_decide_which_signature_the_env_inside_may_have():
    wrapper = "refused_envs:Renewed", refused_envs.Renewed
    for maker in (
        EnvMaker(refused_envs.Unseeded, wrappers=(wrapper,)),
        EnvMaker(refused_envs.wrapped, {"kind": "Needy"}),
    ):
        observations, _ = make_slice(maker, range(2)).reset(seed=1)
        assert len(observations) == 2


def test_a_reset_that_a_wrapper_calls_otherwise_is_told_with_the_way_out():
    passing = "refused_envs:Passing", refused_envs.Passing
    envs = make_slice(EnvMaker(refused_envs.Unseeded, wrappers=(passing,)), range(2))
    told = (
        "TypeError: Unseeded.reset() got an unexpected keyword argument 'seed'; it must take them: def reset(self, *, "
    )
    with pytest.raises(EnvError, match=re.escape(told)):
        envs.reset(seed=1)


def test_the_calls_of_parallel_envs_are_looked_at_too():
    agents_envs = pytest.importorskip("agents_envs")  # It needs pettingzoo.
    parallel = EnvMaker(agents_envs.Lives)().unwrapped.parallel_env
    parallel.reset = lambda seed=None: ({}, {})
    with pytest.raises(UsageError, match=r"reset of Lives must take seed and options by name, got reset\(self, seed="):
        EnvMaker(lambda: parallel)()


def test_of_what_a_factory_raises_the_message_comes_last_and_our_frames_are_left_out(job: Job):
    [result] = job.series([start("dividing")])
    first, *_, last = result.err.splitlines()
    assert (result.code, first) == (70, "Traceback (most recent call last):")
    told = (
        f"rank 0 ({os.uname().nodename}): env 0 cannot be made: ZeroDivisionError: division by zero (refused_envs.py, "
    )
    assert last.startswith(f"mpi_rollout: {told}") and "agreement.py" not in result.err


def test_an_error_without_a_message_is_told_with_its_code():
    for kwargs in ({}, {"vectorization_mode": "native"}):
        told = r"^envs? 4( to 5)? cannot be made: AssertionError in `assert is_licensed` \(refused_envs.py, line \d+\)$"
        with pytest.raises(EnvError, match=told):
            make_slice(EnvMaker(refused_envs.asserting, first_env=4, **kwargs), range(2))


def test_metadata_may_be_none():
    envs = make_slice(EnvMaker(refused_envs.bare_of_metadata), range(2))
    assert envs.metadata == {"autoreset_mode": AutoresetMode.NEXT_STEP}


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ImportError("pursuit_v4 is now deprecated, use pursuit_v5 instead"), "use pursuit_v5 instead"),
        (ImportError("cannot import name 'Env' from 'sim'"), "from 'sim'; install a version that has it"),
        (ImportError("libsim.so.1: cannot open shared object file"), "file; install it"),
        (ModuleNotFoundError("No module named 'sim'"), "No module named 'sim'; install it"),
        (DependencyNotInstalled("sim is not installed"), "sim is not installed; install it"),
    ],
)
def test_what_is_missing_is_to_be_installed_and_nothing_else(error: Exception, told: str):
    def raising() -> None:
        raise error

    with pytest.raises(UsageError, match=f"{re.escape(told)}$"):
        EnvMaker(raising)()
