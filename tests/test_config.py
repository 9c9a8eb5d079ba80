"""The configuration as a file has it: written by this version, an older one, a newer one, or damaged."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import h5py
import pytest
from jobs import Job, Start
from written_data import relist

from mpi_rollout.config import RolloutConfig, read_config
from mpi_rollout.errors import DataError, UsageError
from mpi_rollout.storage.schema import digest_of

pytestmark = pytest.mark.any_mpi
RUN = ("--env", "CartPole-v1", "--num-envs", "2", "--num-steps", "20", "--progress", "none")


def change(path: Path, **values: Any) -> None:
    """Change options of a file, or take out those whose value is None, as another version would have written it."""
    with h5py.File(path, "r+") as file:
        options = json.loads(file.attrs["config"]) | values
        file.attrs["config"] = json.dumps({name: value for name, value in options.items() if value is not None})
        file.attrs["digest"] = digest_of(file.attrs)
    relist(path)


def refusal(text: Any) -> str:
    with pytest.raises(DataError) as error:
        read_config(text, "run.h5")
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_written_is_read():
    config = RolloutConfig(env="CartPole-v1", env_kwargs={"a": [1, None]}, limit_s=2, env_timeout_s=3, num_envs=7)
    assert read_config(config.to_json(), "run.h5") == config


def test_options_that_an_older_file_lacks_have_their_defaults():
    assert read_config('{"env": "CartPole-v1"}', "run.h5") == RolloutConfig(env="CartPole-v1")


def test_an_option_of_a_newer_version_is_refused_by_its_name():
    told = refusal('{"env": "CartPole-v1", "num_moons": 3}')
    assert told.startswith("run.h5: its run had the option --num-moons, which mpi_rollout ")
    assert told.endswith("does not know; read it with the version that wrote it")


@pytest.mark.parametrize(
    "text", ["", "3", "{", "[" * 100_000, b"\xff", None, h5py.Empty("f")], ids=lambda text: str(text)[:9]
)
def test_what_is_no_configuration_is_refused(text: Any):
    assert refusal(text).startswith("run.h5: its attribute config should be a JSON object, got ")


@pytest.mark.parametrize("field", fields(RolloutConfig), ids=lambda each: each.name)
def test_a_value_of_another_type_is_refused_with_the_option(field: Any):
    values = asdict(RolloutConfig(env="CartPole-v1")) | {field.name: 3 if isinstance(field.default, bool) else True}
    told = refusal(json.dumps(values))
    assert told.startswith(f"run.h5: no run has its options: --{field.name.replace('_', '-')} ")


def test_a_value_that_no_run_can_have_is_refused_with_the_file():
    told = refusal('{"env": "CartPole-v1", "num_envs": 0}')
    assert told == "run.h5: no run has its options: --num-envs must be at least 1, got 0"


def test_every_reader_takes_files_of_older_versions_and_refuses_those_of_newer_ones(job: Job):
    path = job.collect(None, *RUN)
    part = job.folder / "run.h5.part"
    part.write_bytes(path.read_bytes())
    readers = [("inspect", path), ("verify", path), ("verify", path, "--replay", "1"), (*RUN, "--out", path)]
    readers = [("recover", part, job.folder / "new.h5"), *readers]
    for each in (path, part):
        change(each, env_checks=None, wait=None, policy=None)
    assert [(result.code, result.num_tracebacks) for result in job.series([Start(each) for each in readers])] == [
        (0, 0)
    ] * 5
    (job.folder / "new.h5").unlink()
    for each in (path, part):
        change(each, num_moons=3)
    *reading, running = job.series([Start(each) for each in readers])
    assert running.code == 64 and "exists; move it away or use another --out" in running.err
    for result in (*reading, running):
        assert (result.code, result.out, result.num_tracebacks) == (65 if result in reading else 64, "", 0)
        assert "its run had the option --num-moons" in result.err and result.err.count("\n") == 1


FRAGMENTS = {"fragment_length": "16", "policy": "policies:leaning"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fragment_length": "0"}, "fragment_length must be auto or a number of steps, at least 1, got 0"),
        ({"fragment_length": "-3"}, "fragment_length must be auto or a number of steps, at least 1, got -3"),
        ({"fragment_length": "many"}, "fragment_length must be auto or a number of steps, at least 1, got many"),
        ({"policy_on": "both"}, "policy_on must be one of auto, root, workers, got both"),
        ({"policy_on": "workers", "policy": "a:b"}, "--policy-on workers is for random actions and .* --policy a:b is"),
        (
            {"episode_seeds": False, "vectorization_mode": "envpool"},
            "--no-episode-seeds is for single envs, got .*envpool; leave it",
        ),
        ({"episode_seeds": False, "max_env_restarts": 1}, "--no-episode-seeds and --max-env-restarts do not go"),
        ({"episode_seeds": False, "on_rank_loss": "shrink"}, "--no-episode-seeds and --on-rank-loss shrink do not go"),
        ({"on_rank_loss": "shrink", **FRAGMENTS}, "--on-rank-loss shrink with --fragment-length 16 is for actions"),
    ],
)
def test_what_no_run_can_have_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(UsageError, match=message):
        RolloutConfig(env="CartPole-v1", **options)


def test_a_policy_may_have_fragments_and_ranks_that_may_be_lost_may_draw_them():
    for options in (
        FRAGMENTS,
        {"fragment_length": "16", "on_rank_loss": "shrink"},
        {"fragment_length": "1", "on_rank_loss": "shrink", "policy": "policies:leaning"},
    ):
        config = RolloutConfig(env="CartPole-v1", **options)
        assert {name: getattr(config, name) for name in options} == options
