"""What people type, and what they are told: a word that works, or that there is none."""

import json
import re
from dataclasses import fields, replace

import pytest

import mpi_rollout
from mpi_rollout.cli import make_parser, run_command
from mpi_rollout.config import RolloutConfig, check_used, unused
from mpi_rollout.errors import UsageError
from mpi_rollout.storage.output import check_same_run
from mpi_rollout.studies.jobs import arguments_of
from mpi_rollout.train.request import Request
from mpi_rollout.words import OF_CONNECT, OF_RUN, SAME

RUN = ("run", "--env", "CartPole-v1")


def refusal(*words: str) -> str:
    with pytest.raises(UsageError) as error:
        make_parser(words[0]).read(words)
    return str(error.value)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--num-ranks 8", "the launcher starts the ranks: mpirun -n 8 python -m mpi_rollout ..."),
        ("-np=2", "the launcher starts the ranks: mpirun -n 2 python -m mpi_rollout ..."),
        ("--workers", "the launcher starts the ranks: mpirun -n N python -m mpi_rollout ..."),
        ("--force", "did you mean --overwrite?"),
        ("--resume", "the same command continues a run that was interrupted"),
        ("--n-episodes 5", "did you mean --num-episodes?"),
        ("--total-timesteps 1e6", "--num-steps is the number of steps of each env, so divide by --num-envs"),
        ("--render", "that is a command: python -m mpi_rollout render FILE"),
        ("--replay 3", "this replays episodes of a file: python -m mpi_rollout verify FILE --replay 3"),
        ("--trajectories", "trajectories are stored unless --no-trajectories is given"),
        ("--episode-seeds", "each episode has a seed of its own unless --no-episode-seeds is given"),
        ("--n-envs 4", "did you mean --num-envs?"),
        ("--envs 4", "did you mean --num-envs or --env?"),
        ("--steps 4", "did you mean --num-steps?"),
        ("--output run.h5", "did you mean --out?"),
        ("-o run.h5", "did you mean --out?"),
        ("--model ppo.zip", "did you mean --policy?"),
        ("--time 10:00", "did you mean --max-walltime?"),
        ("--timeout 3", "did you mean --env-timeout-s or --start-timeout-s?"),
        ("--record_compression gzip", "did you mean --compression?"),
        ("--strict_dtypes", "did you mean --env-checks dtypes?"),
        ("--check-finite", "did you mean --env-checks finite?"),
        ("--check-bounds", "did you mean --env-checks bounds?"),
        ("--dedicated-root", "did you mean --root-envs 0?"),
        ("--on-env-error restart", "did you mean --max-env-restarts N?"),
        ("--inference workers", "did you mean --policy-on?"),
        ("--ft shrink", "did you mean --on-rank-loss?"),
        ("--env-timeout 3", "did you mean --env-timeout-s?"),
        ("--start-timeout 3", "did you mean --start-timeout-s?"),
        (
            "--mode async",
            "all ranks take each step together unless --batch-size K is given: --batch-size 1 was --mode async",
        ),
        ("--NUM-ENVS 3", "did you mean --num-envs?"),
    ],
)
def test_a_word_of_other_programs_gets_the_word_that_works(typed: str, words: str):
    assert refusal(*RUN, *typed.split()) == f"there is no option {re.split('[ =]', typed)[0]}; {words}"


ALONE = """
    device gpu format name config start size loss gamma fps yes nodes test checkpoint save-freq root error
    no-measure-limit no-json hours-left
"""


@pytest.mark.parametrize("word", ALONE.split())
def test_what_is_like_no_option_gets_no_guess(word: str):
    assert refusal(*RUN, f"--{word}") == f"there is no option --{word}; see python -m mpi_rollout run --help"


def test_a_command_names_its_own_options_alone():
    assert refusal("scaling", "weak", "--num-envs", "4").endswith("; did you mean --envs-per-rank?")
    assert refusal("scaling", "strong", "--nprocs", "4").endswith("; did you mean --ranks?")
    assert refusal("inspect", "run.h5", "--ranks", "4").endswith("; see python -m mpi_rollout inspect --help")
    assert refusal("doctor", "num_steps=4").endswith("one argument too many; see python -m mpi_rollout doctor --help")


def test_the_tables_name_options_that_are_there_and_mend_none_of_run():
    shown = make_parser().commands
    scaling = shown["scaling"].commands
    known = {name for parser in (shown["run"], *scaling.values()) for name in parser._names}
    assert {name for names in SAME.values() for name in names.split()} <= known
    answers = " ".join([*OF_RUN.values(), *SAME.values()])
    assert set(re.findall(r"--([a-z-]+)", answers)) <= known | {"replay", "mode"}
    assert not set(OF_RUN) & set(shown["run"]._names)
    assert not OF_CONNECT.keys() & {own.name for own in fields(Request)}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("n_envs", "; did you mean num_envs?"),
        ("num_env", "; did you mean num_envs?"),
        ("strict_dtypes", '; did you mean env_checks="dtypes"?'),
        ("dedicated_root", "; did you mean root_envs=0?"),
        ("record_compression", "; did you mean compression?"),
        ("out", "; did you mean record?"),
        ("seed", "; give it to reset(seed=...)"),
        ("no_episode_seeds", "; only reset(seed=...) seeds the envs, as in Gymnasium; no option is needed"),
        (
            "num_ranks",
            "; ranks are started by mpirun -n 4 python trainer.py, or by mpi_rollout.launch(..., num_ranks=4)",
        ),
        ("measure_limit", "; it is an option of runs on the command line"),
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


def test_a_run_that_was_begun_with_options_that_it_did_not_use_is_continued_without_them():
    config = RolloutConfig(env="CartPole-v1")
    before = replace(config, store_extras=True, policy_block=16)
    stored = {
        "complete": False,
        "config": before.to_json(),
        "policy_sha256": "",
        "version": 2,
        "recorded": False,
        "sharded": False,
    }
    assert not check_same_run(config, stored, "run.h5.part")
    stored["config"] = json.dumps(json.loads(stored["config"]) | {"policy": "mine:make_policy"})
    with pytest.raises(UsageError, match="--store-extras was given, is not given"):
        check_same_run(replace(config, policy="mine:make_policy"), stored, "run.h5.part")
