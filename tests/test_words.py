"""What people type, and what they are told: a word that works, or that there is none."""

import re
from dataclasses import replace

import pytest

import mpi_rollout
from mpi_rollout.cli import make_parser, run_command
from mpi_rollout.config import RolloutConfig, check_used, unused
from mpi_rollout.errors import UsageError
from mpi_rollout.studies.jobs import arguments_of

RUN = ("run", "--env", "CartPole-v1")


def refusal(*words: str) -> str:
    with pytest.raises(UsageError) as error:
        make_parser(words[0]).read(words)
    return str(error.value)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--n-envs 4", "did you mean --num-envs?"),
        ("--env-timeout 3", "did you mean --env-timeout-s?"),
        ("--start-timeout 3", "did you mean --start-timeout-s?"),
        ("--NUM_ENVS=3", "did you mean --num-envs?"),
        ("--num-step 3", "did you mean --num-steps?"),
        ("--polciy random", "did you mean --policy?"),
        ("--overwritten", "did you mean --overwrite?"),
    ],
)
def test_what_is_nearly_an_option_gets_its_name(typed: str, words: str):
    assert refusal(*RUN, *typed.split()) == f"there is no option {re.split('[ =]', typed)[0]}; {words}"


ALONE = """
    device gpu format name config start size loss gamma fps yes nodes test checkpoint save-freq root error
    no-measure-limit no-json hours-left num-ranks workers resume timesteps
"""


@pytest.mark.parametrize("word", ALONE.split())
def test_what_is_like_no_option_gets_no_guess(word: str):
    assert refusal(*RUN, f"--{word}") == f"there is no option --{word}; see python -m mpi_rollout run --help"


def test_a_command_names_its_own_options_alone():
    assert refusal("scaling", "weak", "--env-per-rank", "4").endswith("; did you mean --envs-per-rank?")
    assert refusal("inspect", "run.h5", "--ranks", "4").endswith("; see python -m mpi_rollout inspect --help")
    assert refusal("doctor", "num_steps=4").endswith("one argument too many; see python -m mpi_rollout doctor --help")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("n_envs", "; did you mean num_envs?"),
        ("num_env", "; did you mean num_envs?"),
        ("out", "; it is an option of runs on the command line"),
        ("seed", "; it is an option of runs on the command line"),
        ("num_ranks", ""),
        ("verbose", ""),
    ],
)
def test_connect_names_the_argument_that_works(name: str, words: str):
    with pytest.raises(TypeError) as error:
        mpi_rollout.connect("CartPole-v1", 2, **{name: 1})
    assert str(error.value) == f"connect() got an unexpected keyword argument {name!r}{words}"


IDLE = {
    "limit_s": 3.0, "env_threads": 2, "store_extras": True, "policy_block": 16,
}  # fmt: skip
USED = {"measure_limit": True, "vectorization_mode": "envpool"}


@pytest.mark.parametrize("name", IDLE)
def test_an_option_that_a_run_does_not_use_is_refused_on_the_command_line_alone(name: str):
    config = RolloutConfig(env="CartPole-v1", **{name: IDLE[name]})  # As an older file has it.
    assert [*unused(config)] == [name]
    with pytest.raises(UsageError, match=r"add it, or leave this out$"):
        check_used(config)
    options = vars(make_parser().read([*RUN])) | {name: IDLE[name]}
    with pytest.raises(UsageError, match=r"add it, or leave this out$"):
        run_command(type("Options", (), options))
    used = replace(config, policy="mine:make_policy", **USED)
    assert not unused(used)
    assert not any(name.replace("_", "-") in argument for argument in arguments_of(config))
